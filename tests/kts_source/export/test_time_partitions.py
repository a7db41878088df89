"""Tests partition columns that contain the hour, day or month of a timestamp, in a given time
zone.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kts_source.errors import ExportError, InvalidOptionError
from kts_source.export.partitioning import parse_partition_by
from tests.kts_source.export.exporting import FORMATS, Lake, assert_holds, source
from tests.kts_source.read.typed_tier import as_avro, avro, write
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UTC = datetime.UTC
BERLIN = ZoneInfo("Europe/Berlin")
TOKYO = ZoneInfo("Asia/Tokyo")
UNITS: dict[str, Callable[[datetime.datetime], Any]] = {
    "hour": lambda time: f"{time:%Y-%m-%d-%H}",
    "day": lambda time: time.date(),
    "date": lambda time: time.date(),
    "month": lambda time: time.date().replace(day=1),
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("zone", [UTC, BERLIN, TOKYO])
def test_partition_column_contains_hour_day_or_month_in_the_given_zone(
    unit: str, zone: datetime.tzinfo
) -> None:
    times = [
        datetime.datetime(2025, 3, 30, 0, 59, 59, 999_000, UTC),  # Berlin: before summer time
        datetime.datetime(2025, 3, 30, 1, 0, tzinfo=UTC),
        datetime.datetime(2024, 12, 31, 23, 30, tzinfo=UTC),
        datetime.datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
        None,
    ]
    argument = "" if zone is UTC else f", {zone}"
    (field,) = parse_partition_by([f"{unit}(timestamp{argument})"])
    expected = [time and UNITS[unit](time.astimezone(zone)) for time in times]
    for kind in (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us")):
        naive = [time and time.replace(tzinfo=None) for time in times]
        column = pa.array(naive, pa.timestamp(kind.unit)).cast(kind)
        batch = pa.RecordBatch.from_arrays([column], names=["timestamp"])
        assert field.values(batch).to_pylist() == expected
        assert field.values(batch).type == field.type_in(batch.schema)


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize(
    "text",
    only(2, ["month(timestamp)", "day(timestamp, Asia/Tokyo) as tokyo", "hour(timestamp)"]),
)
def test_table_partitioned_by_time_contains_all_rows(
    tmp_path: Path, table_format: str, text: str
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(source("timeline"), partition_by=[text])
    table = lake.read()
    assert_holds(table, ["timeline"])
    assert lake.export(source("timeline"), partition_by=[text]).rows == 0
    (field,) = parse_partition_by([text])
    if field.name in table.column_names:
        zone = TOKYO if "Tokyo" in text else UTC
        unit = UNITS[text.partition("(")[0]]
        values = [unit(time.astimezone(zone)) for time in table["timestamp"].to_pylist()]
        assert list(map(str, table[field.name].to_pylist())) == list(map(str, values))


@pytest.mark.parametrize(
    "text",
    only(
        2,
        [
            "month(timestamp) as m",
            "topic as name",
            "day(timestamp, Asia/Tokyo) as t",
            "hour(timestamp)",
        ],
    ),
)
def test_delta_and_iceberg_have_the_same_partition_names(tmp_path: Path, text: str) -> None:
    (field,) = parse_partition_by([text])
    delta, iceberg = Lake(tmp_path / "d", "delta"), Lake(tmp_path / "i", "iceberg")
    for lake in (delta, iceberg):
        lake.folder.mkdir()
        lake.export(source("timeline"), partition_by=[text])
    assert DeltaTable(delta.target).metadata().partition_columns == [field.name]
    catalog = load_catalog("lake", **iceberg.catalog)
    spec = catalog.load_table(iceberg.target).spec()
    catalog.close()
    assert [column.name for column in spec.fields] == [field.name]


@pytest.mark.parametrize("table_format", FORMATS)
def test_partition_column_has_the_name_after_as(tmp_path: Path, table_format: str) -> None:
    lake = Lake(tmp_path, table_format)
    options = write(tmp_path / "tier", [[avro(number) for number in range(9)]])
    fields = ["value.country as land", "partition as part"]
    assert lake.export(as_avro(**options), partition_by=fields).rows == 9
    assert lake.export(as_avro(**options), partition_by=fields).rows == 0
    table = lake.read()
    countries = [value["country"] for value in table["value"].to_pylist()]
    assert table["land"].cast(pa.string()).to_pylist() == countries
    assert table["part"].to_pylist() == table["partition"].to_pylist() == [0] * 9


def test_partition_column_with_the_name_of_a_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="already have one of this name"):
        Lake(tmp_path, "delta").export(source("timeline"), partition_by=["topic as key"])


def test_table_with_another_time_zone_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    lake.export(source("timeline"), partition_by=["day(timestamp)"])
    with pytest.raises(ExportError):
        lake.export(source("timeline"), partition_by=["day(timestamp, Asia/Tokyo)"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["hour(timestamp, Mars/Olympus)"], "which this machine does not know"),
        (["week(timestamp)"], "must be a column, or date, day, month or hour"),
        (["topic as"], "must be a column, or date, day, month or hour"),
        (["topic as t", "day(timestamp) as t"], "names 't' twice"),
        (["day(timestamp) as x", "hour(timestamp) as x"], "names 'x' twice"),
    ],
)
def test_invalid_time_partition_raises_invalid_option_error(texts: list[str], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        parse_partition_by(texts)


def test_parsed_partition_fields_are_printed_as_written() -> None:
    texts = ["hour(timestamp, Europe/Berlin) as h", "date(timestamp)", "value.country", "key as k"]
    assert [str(field) for field in parse_partition_by(texts)] == texts
    assert [str(field) for field in parse_partition_by(["day(a, Z)"])] == ["day(a)"]
