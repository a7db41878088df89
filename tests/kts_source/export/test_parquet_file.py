"""Tests the Parquet files of an export: columns with one constant text, and timestamp bounds of
every time unit.
"""

from __future__ import annotations

import io
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kts_source.export.parquet_file import ParquetFile
from tests.golden_data import TIER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_ROWS = 10_000


class _Kept(io.BytesIO):
    """A file object in memory whose bytes can still be read after `close`."""

    def close(self) -> None:
        """Does nothing, so that `getvalue` still works."""


def _batches() -> list[pa.RecordBatch]:
    columns = {
        "topic": pa.array(["orders-ö"] * _ROWS),
        "offset": pa.array(range(_ROWS), pa.int64()),
        "value": pa.array([str(n).encode() if n % 3 else None for n in range(_ROWS)], pa.binary()),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    return [batch.slice(start, 999) for start in range(0, _ROWS, 999)]


def _written(constants: Mapping[str, str], sort_by: Sequence[str] = ()) -> pq.ParquetFile:
    sink = _Kept()
    file = ParquetFile(
        sink,
        _batches()[0].schema,
        compression="zstd",
        row_group_rows=3000,
        sort_by=sort_by,
        bounded={"topic"},
        constants=constants,
    )
    for batch in _batches():
        file.add(batch)
    file.close()
    return pq.ParquetFile(pa.BufferReader(sink.getvalue()))


def test_constant_text_column_reads_back_equal() -> None:
    plain, constant = _written({}), _written({"topic": "orders-ö"})
    assert constant.read().equals(plain.read())
    assert constant.schema_arrow.equals(plain.schema_arrow)
    assert constant.metadata.num_row_groups == plain.metadata.num_row_groups > 3
    for group in range(plain.metadata.num_row_groups):
        column_chunks = [file.metadata.row_group(group).column(0) for file in (plain, constant)]
        assert column_chunks[0].statistics == column_chunks[1].statistics
        assert column_chunks[1].statistics.min == column_chunks[1].statistics.max == "orders-ö"
        assert column_chunks[0].encodings == column_chunks[1].encodings


def test_sorted_rows_keep_their_constant_text() -> None:
    file = _written({"topic": "orders-ö"}, sort_by=["value"])
    assert file.read().column("topic").to_pylist() == ["orders-ö"] * _ROWS


@pytest.mark.parametrize(
    ("unit", "zone", "values", "low", "high"),
    [
        ("s", None, [-1, 86_400], "1969-12-31T23:59:59.000", "1970-01-02T00:00:00.000"),
        ("ms", "UTC", [-1, 1], "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.001Z"),
        ("us", "UTC", [-1, 1], "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.001Z"),
        ("ns", None, [-1, 1], "1969-12-31T23:59:59.999", "1970-01-01T00:00:00.001"),
        ("us", "UTC", [0, 1 << 60], "1970-01-01T00:00:00.000Z", None),  # the year 38505
    ],
)
def test_timestamp_bounds_include_every_row(
    unit: str, zone: str | None, values: list[int], low: str, high: str | None
) -> None:
    times = pa.array([*values, None], pa.int64()).cast(pa.timestamp(unit, zone))
    rows = pa.RecordBatch.from_arrays([times], names=["at"])
    file = ParquetFile(_Kept(), rows.schema, compression="zstd", row_group_rows=1, sort_by=())
    file.add(rows)
    _, bounds = file.close()
    assert (bounds["at"].low, bounds["at"].high, bounds["at"].nulls) == (low, high, 1)


def test_task_imports_no_pandas(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["pandas"] = None
from kts_source.export.task_writer import LocalExecutor
from kts_source.export.run import export
from kts_source.export.settings import export_settings
source = {{"path": {str(TIER)!r}, "keyPrefix": "tiered/", "subscribe": "wide"}}
print(export(source, export_settings({str(tmp_path / "lake")!r}), LocalExecutor(1)).rows)
assert "pytz" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
