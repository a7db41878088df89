from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from segment_format.arrow import RecordDecoder
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


def test_import_of_package_loads_neither_numba_nor_pyarrow() -> None:
    result = run("import sys, segment_format; print({'numba', 'pyarrow'} & set(sys.modules))")
    assert result.stdout.strip() == "set()", result.stderr


def test_import_of_arrow_module_loads_neither_numba_nor_pandas() -> None:
    code = "import sys, segment_format.arrow; print({'numba', 'pandas'} & set(sys.modules))"
    assert run(code).stdout.strip() == "set()"


def test_decoding_does_not_load_pandas() -> None:
    result = run(DECODE + "import sys; print('pandas' in sys.modules)")
    assert result.stdout.split() == ["3", "False"], result.stderr


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
