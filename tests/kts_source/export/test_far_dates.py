"""Tests exports of records whose timestamps are outside the years that Python or tables can
represent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from kts_source.errors import ExportError
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.export.exporting import FORMATS, Lake

if TYPE_CHECKING:
    from pathlib import Path

FAR_MS = (1_700_000_000_000_000, (2**63 - 1) // 1000, -(2**63 // 1000), 253402300800000)


def tier(folder: Path) -> dict[str, str]:
    log = LogBuilder()
    for number, time_ms in enumerate((0, 1, *FAR_MS)):
        log.append([SimpleRecord(b"v", b"k%d" % number, timestamp=time_ms)])
    writer = AivenTierWriter(folder, topic="t", topic_id="lZ6vvmajTWKDBUTV6SQAtQ")
    for segment in log.build().segments:
        writer.write_segment(segment)
    return {"path": str(folder), "subscribe": "t", "cache": "false"}


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("table_format", FORMATS)
def test_rows_with_timestamps_beyond_python_datetime_are_written(
    table_format: str, compact: bool, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    report = lake.export(tier(tmp_path / "tier"), compact=compact)
    assert report.rows == 6
    table = lake.read()
    timestamps = table["timestamp"].cast(pa.int64()).to_pylist()
    assert sorted(zip(table["offset"].to_pylist(), timestamps, strict=True)) == [
        (number, time_ms * 1000) for number, time_ms in enumerate((0, 1, *FAR_MS))
    ]


@pytest.mark.parametrize("table_format", FORMATS)
def test_date_partition_after_year_9999_raises_error_with_offset(
    table_format: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    options = tier(tmp_path / "tier")
    with pytest.raises(ExportError, match=r"date\(timestamp\).*where") as caught:
        lake.export(options, partition_by=["date(timestamp)"])
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 2)
    within = "timestamp BETWEEN DATE '0001-01-01' AND TIMESTAMP '9999-12-31 23:59:59.999999'"
    report = lake.export(
        {**options, "where": within, "timeZone": "UTC"}, partition_by=["date(timestamp)"]
    )
    assert report.rows == 2


def with_far_column(batch: pa.RecordBatch) -> pa.RecordBatch:
    far = pa.array([FAR_MS[0] * 1000] * batch.num_rows, pa.timestamp("us", "UTC"))
    return batch.select(["offset", "timestamp"]).append_column("far", far)


def test_file_is_found_by_its_date_if_another_column_is_beyond_year_9999(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path, "iceberg")
    options = {**tier(tmp_path / "tier"), "endingOffsets": '{"t":{"0":2}}'}
    lake.export(options, transform=with_far_column, partition_by=["date(timestamp)"])
    catalog = load_catalog("lake", **lake.catalog)
    scan = catalog.load_table(lake.target).scan("timestamp >= '1970-01-01T00:00:00+00:00'")
    assert [task.file.partition[0] for task in scan.plan_files()] == [0]
    assert scan.to_arrow()["offset"].to_pylist() == [0, 1]
    catalog.close()
