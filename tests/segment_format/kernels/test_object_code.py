from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.arrow import LINEAGE_COLUMNS, RECORD_COLUMNS, RecordDecoder
from segment_format.errors import SegmentFormatError
from segment_format.kernels import contract as c
from segment_format.kernels import decoder, object_code
from segment_format.testing import SimpleRecord, write_batch

if TYPE_CHECKING:
    import pyarrow as pa

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = (*RECORD_COLUMNS, *LINEAGE_COLUMNS)
LOG = b"".join(
    write_batch(
        [
            SimpleRecord(b"v" * (number % 50), key=b"k", headers=(("h", b"x"), ("i", None)))
            for number in range(20)
        ],
        base_offset=base,
        codec=codec,
    )
    for base, codec in ((0, "none"), (20, "lz4"), (40, "snappy"), (60, "zstd"), (80, "none"))
)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    from segment_format.kernels import decode_window  # noqa: F401 - the first one leaves the file


def decoded(data: bytes, monkeypatch: pytest.MonkeyPatch, *, stored: bool) -> list[pa.RecordBatch]:
    def kernel() -> object:
        return object_code.load() if stored else decoder.kernel_by_numba()

    monkeypatch.setattr(decoder, "load_kernel", kernel)
    found = RecordDecoder(columns=COLUMNS, max_rows=7)
    return [*found.feed(data), *found.finish()]


def outcome(data: bytes, *, stored: bool) -> object:
    with pytest.MonkeyPatch.context() as monkeypatch:
        try:
            return decoded(data, monkeypatch, stored=stored)
        except SegmentFormatError as error:
            return type(error), str(error), error.position, error.offset


def test_rows_decoded_with_object_file_match_rows_decoded_with_numba(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = decoded(LOG, monkeypatch, stored=True)
    assert sum(batch.num_rows for batch in rows) == 100
    assert rows == decoded(LOG, monkeypatch, stored=False)


@settings(max_examples=60)
@given(st.integers(0, len(LOG) - 1), st.integers(1, 255))
def test_errors_of_object_file_match_errors_of_numba(position: int, flipped: int) -> None:
    data = bytearray(LOG)
    data[position] ^= flipped
    assert outcome(bytes(data), stored=True) == outcome(bytes(data), stored=False)


def test_broken_object_file_is_not_linked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = object_code._path("decode_window")
    assert path is not None
    content = path.read_bytes()
    copy = tmp_path / "copy.o"
    monkeypatch.setattr(object_code, "_path", lambda _name: copy)
    assert object_code.load() is None
    for broken in (b"", content[:-1], content[:500], content[:99] + b"?" + content[100:]):
        copy.write_bytes(broken)
        assert object_code.load() is None
    copy.write_bytes(content)
    assert object_code.load() is not None


def test_exception_in_object_file_raises_runtime_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_code, "_entry", lambda *_: lambda *_arguments: -(2**63))
    kernel = object_code.load()
    assert kernel is not None
    nothing = np.zeros(0, np.uint8)
    with pytest.raises(RuntimeError, match="instead of returning a status"):
        kernel(nothing, nothing, np.zeros(c.FRAME_SIZE, np.int64))


def test_process_with_object_file_does_not_load_numba() -> None:
    code = """
import sys, segment_format
from segment_format.testing import SimpleRecord, write_batch
(batch,) = segment_format.iter_arrow(write_batch([SimpleRecord(b"v")], base_offset=3))
print(batch.num_rows, {"numba", "pandas"} & set(sys.modules))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert run.stdout.split() == ["1", "set()"]


def test_object_file_is_not_used_with_jit_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert object_code.load() is None


def test_object_file_is_not_used_with_tuning_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert object_code.load() is not None
    monkeypatch.setenv("KTS_TUNING", "off")
    assert object_code.load() is None


ARRAY = "ptr %arg.{0}.0, ptr %arg.{0}.1, i64 %arg.{0}.2, i64 %arg.{0}.3, ptr %arg.{0}.4"
REST = ", i64 %arg.{0}.5.0, i64 %arg.{0}.6.0"
AS_IT_IS = "i32 @kernel(ptr %retptr, ptr %excinfo, " + ", ".join(
    (ARRAY + REST).format(name) for name in ("window", "payload", "frame")
)


def emitted(head: str) -> bytes:
    """Returns the object file of a kernel that has the function header `head` in LLVM IR."""
    from numba.core.registry import cpu_target

    result = head.split(" ", 1)[0]
    code = f"define {head}) {{\n  ret {result} 0\n}}\n"
    return object_code._emitted(
        code, "decode_window", "kernel", cpu_target.target_context.codegen()
    )


def test_object_file_with_expected_signature_is_emitted() -> None:
    assert emitted(AS_IT_IS)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("i32 @", "i64 @"),
        ("ptr %retptr, ptr %excinfo", "ptr %excinfo, ptr %retptr"),
        ("ptr %arg.window.1, ", ""),
        ("i64 %arg.payload.3, ptr %arg.payload.4", "ptr %arg.payload.4, i64 %arg.payload.3"),
        ("i64 %arg.frame.6.0", "i64 %arg.frame.6.0, i64 %arg.frame.7"),
        ("i64 %arg.frame.5.0", "i32 %arg.frame.5.0"),
    ],
)
def test_object_file_with_other_signature_is_not_emitted(was: str, becomes: str) -> None:
    assert was in AS_IT_IS
    with pytest.raises(ValueError, match="the kernel is"):
        emitted(AS_IT_IS.replace(was, becomes))


def test_object_file_with_other_calling_convention_is_not_emitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from numba.core import callconv

    from segment_format.kernels.decode_window import decode_window

    kernel: Any = decode_window
    (signature,) = kernel.signatures
    object_code._check_conventions(kernel.targetctx, signature)
    model = kernel.targetctx.data_model_manager[signature[0]]
    with monkeypatch.context() as patched:
        patched.setattr(model, "_fields", ("parent", "meminfo", *model._fields[2:]))
        with pytest.raises(ValueError, match="unknown fields"):
            object_code._check_conventions(kernel.targetctx, signature)
    monkeypatch.setattr(callconv, "RETCODE_OK", "i32 1")
    with pytest.raises(ValueError, match="numba returns i32 1"):
        object_code._check_conventions(kernel.targetctx, signature)


def test_object_file_has_no_reference_counting() -> None:
    path = object_code._path("decode_window")
    assert path is not None
    assert b"NRT_" not in path.read_bytes()
