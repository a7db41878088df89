"""Tests that a batch can be released without the GIL.

Engines release batches from a native thread while a Python thread keeps the GIL and waits. If a
release needs the GIL, the process hangs, so the test runs in a separate process.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from segment_format.arrow import LINEAGE_COLUMNS, RECORD_COLUMNS, RecordDecoder
from segment_format.testing import SimpleRecord, write_batch

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = ("topic", "partition", *RECORD_COLUMNS, *LINEAGE_COLUMNS)
LOG = b"".join(
    write_batch(
        [
            SimpleRecord(
                None if row % 3 == 0 else b"v" * (5000 if row == 4 else row),
                key=b"k" if row % 2 else None,
                headers=(("h", b"x"), ("i", None)) if row % 4 == 0 else (),
            )
            for row in range(20)
        ],
        base_offset=base,
        codec=codec,
        producer_id=producer_id,
        base_sequence=0 if producer_id >= 0 else -1,
    )
    for base, codec, producer_id in ((0, "none", 7), (20, "lz4", -1), (40, "zstd", 3))
)


def decoded() -> list[pa.RecordBatch]:
    decoder = RecordDecoder(
        columns=COLUMNS, max_rows=7, constants={"topic": "orders", "partition": 3}
    )
    return [*decoder.feed(LOG), *decoder.finish()]


def _whole() -> list[Any]:
    return list(decoded())


def _columns() -> list[Any]:
    return [column for batch in decoded() for column in batch.columns]


def _children() -> list[Any]:
    pairs = [batch.column("headers").values for batch in decoded()]
    return [column for pair in pairs for column in pair.flatten()]


def _slices() -> list[Any]:
    return [batch.slice(2, 3) for batch in decoded()]


def _filtered() -> list[Any]:
    return [batch.filter(pc.is_valid(batch.column("value"))) for batch in decoded()]


def _taken() -> list[Any]:
    return [batch.take(pa.array([3, 0])) for batch in decoded() if batch.num_rows > 3]


def _projected() -> list[Any]:
    return [batch.select(["topic", "codec", "value"]) for batch in decoded()]


def _over_python() -> list[Any]:
    data = pa.py_buffer(b"12345678" * 4)
    return [pa.Array.from_buffers(pa.int64(), 4, [None, data])]


PIECES: dict[str, Callable[[], list[Any]]] = {
    "whole": _whole,
    "columns": _columns,
    "children": _children,
    "slices": _slices,
    "filtered": _filtered,
    "taken": _taken,
    "projected": _projected,
    "over python": _over_python,
}


class _ArrowArray(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("length", "null_count", "offset")),
        *((name, ctypes.c_int64) for name in ("n_buffers", "n_children")),
        *((name, ctypes.c_void_p) for name in ("buffers", "children", "dictionary", "release")),
        ("private_data", ctypes.c_void_p),
    ]


def release_under_a_held_gil(kind: str) -> int:
    """Releases batches in native threads while this thread keeps the GIL and waits. Returns the
    number of bytes that Arrow has not freed.
    """
    c_library = ctypes.PyDLL(None)  # PyDLL keeps the GIL during calls
    decoded()  # creates the objects that are never freed
    before = pa.total_allocated_bytes()
    pieces = PIECES[kind]()
    handed = (_ArrowArray * len(pieces))()
    for number, piece in enumerate(pieces):
        piece._export_to_c(ctypes.addressof(handed[number]))
    del pieces, piece
    for number in range(len(handed)):
        thread = ctypes.c_ulong()
        address = ctypes.c_void_p(ctypes.addressof(handed[number]))
        release = ctypes.c_void_p(handed[number].release)
        if c_library.pthread_create(ctypes.byref(thread), None, release, address):
            raise OSError("no thread")
        if c_library.pthread_join(thread, None):
            raise OSError("no thread to wait for")
        assert not handed[number].release
    allocated: int = pa.total_allocated_bytes() - before
    return allocated


def _run(kinds: list[str], seconds: float) -> str:
    code = f"""
from {__name__} import release_under_a_held_gil
for kind in {kinds!r}:
    print(kind, release_under_a_held_gil(kind), flush=True)
"""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=seconds,
    ).stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs pthreads through ctypes")
def test_batches_are_released_while_another_thread_keeps_the_gil() -> None:
    kinds = sorted(set(PIECES) - {"over python"})
    assert _run(kinds, 60).splitlines() == [f"{kind} 0" for kind in kinds]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs pthreads through ctypes")
def test_release_of_python_buffer_blocks_while_another_thread_keeps_the_gil() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        _run(["whole", "over python"], 4)
    assert (caught.value.stdout or b"").decode() in ("", "whole 0\n")
