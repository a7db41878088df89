"""Tests the library of compiled kernels, its variants for CPUs with different instructions, and the
fallback to numba.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from segment_format.kernels import decoder, native
from segment_format.testing import SimpleRecord, write_batch
from tests.golden_data import LOCAL_TIER
from tests.quick import sample
from tests.segment_format.kernels.yardstick import actual, expected

ROOT = Path(__file__).resolve().parents[3]
VARIANTS = [variant.name for variant in native.variants_of_cpu()]
WITHOUT_NUMBA = "import sys\nsys.modules['numba'] = sys.modules['llvmlite'] = None\n"
TEXTS_SIZE = """
import numpy as np
from segment_format.kernels.native import load_kernel
from tests.quick import sample
data = np.array([5 << 1, 7 << 1], np.int64)
print(load_kernel("texts_size")(data.ctypes.data, 2))
"""
LOG = b"".join(
    write_batch(
        [
            SimpleRecord(b"v" * (number * 37 % 900), key=b"k", headers=(("h", b"x"), ("i", None)))
            for number in range(20)
        ],
        base_offset=base,
        codec=codec,
    )
    for base, codec in ((0, "none"), (20, "lz4"), (40, "snappy"), (60, "zstd"), (80, "gzip"))
)


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=250,
    )


def test_library_contains_all_kernels_in_all_variants() -> None:
    library = native.open_library(native.LIBRARY)
    for variant in native.VARIANTS[native.machine_name()]:
        for name in native.KERNELS:
            assert library[native.symbol(variant.name, name)]


def test_rows_are_decoded_without_numba() -> None:
    code = """
import pyarrow as pa, segment_format
from segment_format.testing import SimpleRecord, write_batch
from segment_format.values.avro.decoder import AvroDecoder
from segment_format.values.avro.schema import parse_avro
(batch,) = segment_format.iter_arrow(write_batch([SimpleRecord(b"v")], base_offset=3))
print(batch.column("offset")[0])
found = AvroDecoder(parse_avro('{"type": "map", "values": "int"}')).decode(
    pa.array([b"\\x04\\x02a\\x02\\x02a\\x04\\x00"], pa.binary())
)
print(found.array.to_pylist())
"""
    done = run(WITHOUT_NUMBA + code)
    assert done.stdout == "3\n[[('a', 2)]]\n", done.stderr
    assert done.stderr == ""


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes decoders use the kernels of one CPU variant, and returns the variant's name."""
    library = native.open_library(native.LIBRARY)
    name: str = request.param
    monkeypatch.setattr(
        decoder, "load_kernel", lambda kernel: native.library_kernel(library, name, kernel)
    )
    return name


@pytest.mark.usefixtures("variant")
def test_rows_decoded_by_cpu_variant_match_reference() -> None:
    rows = actual(LOG)
    assert len(rows) == 100
    assert rows == expected(LOG)
    logs = sorted((LOCAL_TIER / "tier").rglob("*.log"))
    assert logs
    for log in logs:
        assert actual(log.read_bytes()) == expected(log.read_bytes())


@pytest.mark.usefixtures("variant")
def test_errors_of_cpu_variant_match_reference() -> None:
    errors = set()
    for position in range(0, len(LOG), 61):
        data = LOG[:position] + bytes([LOG[position] ^ 0x55]) + LOG[position + 1 :]
        outcome = expected(data)
        assert actual(data) == outcome
        errors |= {outcome} if isinstance(outcome, str) else set()
    assert "CrcMismatchError" in errors


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(1, [*VARIANTS[1:], native.JIT]))
def test_value_kernels_of_cpu_variant_pass_their_tests(name: str, tmp_path: Path) -> None:
    files = (
        "kernels/test_batch_scanner.py",
        "values/avro/test_decoder.py",
        "values/json/test_equal_to_oracle.py",
        "values/protobuf/test_equal_to_upb.py",
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(f"tests/segment_format/{file}" for file in files),
        ],
        cwd=ROOT,
        env={**os.environ, "KTS_KERNELS": name, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def copied_package(folder: Path) -> Path:
    """Copies the sources of the library and returns the copied package."""
    library = ctypes.CDLL(str(native.LIBRARY))
    text = ctypes.c_char_p.in_dll(library, native.SOURCES_SYMBOL).value
    assert text is not None
    for line in text.decode().splitlines():
        name = line.rpartition(" ")[2]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((native.PACKAGE / name).read_bytes())
    return folder


@pytest.mark.parametrize(
    "name",
    ["kernels/native.py", "kernels/crc32c.py", "values/json/tokens.py", "values/avro/opcodes.py"],
)
def test_library_with_changed_source_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = copied_package(tmp_path)
    monkeypatch.setattr(native, "PACKAGE", package)
    source = package / name
    text = source.read_text()
    source.write_text(f"# a comment\n{text.replace('Returns', 'Return')}")
    native.open_library(native.LIBRARY)
    source.write_text(f"{text}\n_CHANGED = 1\n")
    with pytest.raises(OSError, match=f"compiled before {name} changed"):
        native.open_library(native.LIBRARY)


def test_open_library_refuses_missing_files_and_foreign_libraries(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        native.open_library(tmp_path / "kernels.so")
    (tmp_path / "kernels.so").write_bytes(b"not a library")
    with pytest.raises(OSError, match=r"kernels\.so"):
        native.open_library(tmp_path / "kernels.so")
    other = find_spec("zstandard.backend_c")
    assert other is not None
    with pytest.raises(OSError, match="not a library of kernels"):
        native.open_library(Path(str(other.origin)))


BASELINE = "sse4_1 sse4_2 ssse3 popcnt cx16 lahf_lm"
AVX512 = (
    f"{BASELINE} avx2 bmi1 bmi2 f16c fma abm movbe xsave avx512f avx512bw avx512cd avx512dq"
    " avx512vl vpclmulqdq pclmulqdq"
)


@pytest.mark.parametrize(
    ("machine", "flags", "names"),
    [
        ("x86_64", AVX512, ["avx512", "sse42"]),
        ("x86_64", AVX512.replace("vpclmulqdq ", ""), ["sse42"]),
        ("x86_64", AVX512.replace("avx512vl ", ""), ["sse42"]),
        ("AMD64", BASELINE, ["sse42"]),
        ("x86_64", BASELINE.replace("sse4_2", ""), []),
        ("aarch64", "fp asimd aes crc32 atomics", ["crc"]),
        ("aarch64", "fp asimd", []),
        ("riscv64", "rv64imafdc", []),
    ],
)
def test_variants_of_cpu_lists_only_variants_with_all_features_present(
    machine: str, flags: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nflags\t\t: fpu {flags} ht\n\nprocessor\t: 1\n")
    monkeypatch.setattr(native, "_CPU_INFO", info)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert [variant.name for variant in native.variants_of_cpu()] == names


def test_unknown_variant_is_refused() -> None:
    done = run(TEXTS_SIZE, KTS_KERNELS="mmx")
    assert f"KTS_KERNELS=mmx: this CPU runs {', '.join([*VARIANTS, 'jit'])}" in done.stderr


def test_numba_compiles_once_and_prints_a_notice(tmp_path: Path) -> None:
    environment = {"KTS_KERNELS": "jit", "XDG_CACHE_HOME": str(tmp_path)}
    first, second = (run(TEXTS_SIZE, **environment) for _ in range(2))
    assert first.stdout == second.stdout == "12\n"
    assert first.stderr == (
        "tiered-kafka: compiling kernels, once per machine, about 20 s (KTS_KERNELS=jit)\n"
    )
    assert second.stderr == ""
    (folder,) = (tmp_path / "tiered-kafka").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_numba_compiles_without_a_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run(TEXTS_SIZE, KTS_KERNELS="jit", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.stdout == "12\n", done.stderr


def test_missing_library_and_numba_are_reported() -> None:
    done = run(WITHOUT_NUMBA + TEXTS_SIZE, KTS_KERNELS="jit")
    assert done.stdout == ""
    assert "ImportError: No compiled kernels: KTS_KERNELS=jit." in done.stderr
    assert "the extra `jit` of tiered-kafka" in done.stderr
