from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from segment_format.arrow import RecordDecoder
from segment_format.kernels import compiled
from segment_format.testing import SimpleRecord, write_batch

ROOT = Path(__file__).resolve().parents[3]
DECODE = """
import segment_format
from segment_format.testing import SimpleRecord, write_batch
(batch,) = segment_format.iter_arrow(write_batch([SimpleRecord(b"v")], base_offset=3))
print(batch.column("offset")[0].as_py())
"""


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


def test_decode_window_is_a_compiled_kernel() -> None:
    from segment_format.kernels.decode_window import decode_window

    assert not compiled.numba_config.DISABLE_JIT
    assert isinstance(decode_window, numba.core.dispatcher.Dispatcher)
    assert len(decode_window.nopython_signatures) == 1


def test_import_of_package_loads_neither_numba_nor_pyarrow() -> None:
    result = run("import sys, segment_format; print({'numba', 'pyarrow'} & set(sys.modules))")
    assert result.stdout.strip() == "set()", result.stderr


def test_import_of_arrow_module_loads_neither_numba_nor_pandas() -> None:
    code = "import sys, segment_format.arrow; print({'numba', 'pandas'} & set(sys.modules))"
    assert run(code).stdout.strip() == "set()"


def test_decoding_does_not_load_pandas() -> None:
    result = run(DECODE + "import sys; print('pandas' in sys.modules)")
    assert result.stdout.split() == ["3", "False"], result.stderr


@pytest.mark.slow
def test_kernel_is_compiled_in_memory_without_code_folder() -> None:
    nowhere = (
        "from segment_format.kernels import code_folder\n"
        "code_folder._candidates = lambda given: iter(())\n"
    )
    result = run(nowhere + DECODE + "print(code_folder.code_folder())", NUMBA_CACHE_DIR="")
    assert result.stdout.split() == ["3", "None"], result.stderr


@pytest.mark.slow
def test_concurrent_processes_share_one_compilation(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DECODE], stdout=subprocess.PIPE, cwd=ROOT, env=environment
        )
        for _ in range(3)
    ]
    assert [process.communicate(timeout=250)[0].strip() for process in processes] == [b"3"] * 3
    assert len(list(tmp_path.rglob("*.nbc"))) == 1
    assert len(list(tmp_path.rglob("*.o"))) == 1


def test_feed_raises_before_all_rows_are_read_and_after_finish() -> None:
    data = write_batch([SimpleRecord(b"v")] * 9, base_offset=0)
    decoder = RecordDecoder(columns=("offset",), max_rows=1)
    next(decoder.feed(data))
    with pytest.raises(RuntimeError, match="not exhausted"):
        decoder.feed(data)
    finished = RecordDecoder(columns=("offset",))
    assert list(finished.finish()) == []
    with pytest.raises(RuntimeError, match="finished"):
        finished.feed(data)
