"""Checks that readers find the rows of a partition by the text of its value. Exports refuse texts
that readers cannot read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import BooleanExpression, EqualTo, IsNull, Reference
from pyiceberg.expressions.literals import literal

from kts_source.errors import ExportError, InvalidOptionError
from kts_source.export.partitioning import split
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.tables.rows import by_country, tier_of

if TYPE_CHECKING:
    from pathlib import Path

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
TEXTS = [
    *("CH", "a/b", "a=b", "a%2Fb", "é√日本", "NULL", "..", ".a", "_a", " a ", "\n\t", "a'b\"c"),
    *("a+b", "a:b?c*d", "x" * 200, "a" * 15 + "\ud7ffzz", None),
]
ELSEWHERE = {
    "parquet": [],
    "delta": [NULL_FOLDER, "x" * 5000],
    "iceberg": ["", NULL_FOLDER, "x" * 4096],
}
UNREADABLE = {
    "parquet": ["", NULL_FOLDER, "x" * 248, "√" * 83],
    "delta": [""],
    "iceberg": ["x" * 4097],
}


def is_equal(name: str, text: str | None) -> BooleanExpression:
    column = Reference(name)
    return IsNull(term=column) if text is None else EqualTo(term=column, value=literal(text))


@pytest.mark.parametrize("table_format", FORMATS)
def test_readers_find_rows_by_partition_texts(tmp_path: Path, table_format: str) -> None:
    texts = [*TEXTS, *ELSEWHERE[table_format]]
    lake = Lake(tmp_path, table_format)
    source = tier_of(tmp_path / "tier", texts)
    lake.export(source, partition_by=["country"], transform=by_country)
    table = lake.read().sort_by("offset")
    assert table["offset"].to_pylist() == list(range(len(texts)))
    assert table["country"].to_pylist() == texts
    if table_format == "parquet":
        files = f"read_parquet('{lake.target}/**/*.parquet', hive_partitioning=true)"
        query = f'select country from {files} order by "offset"'
        rows = duckdb.connect().execute(query).fetchall()
        assert [country for (country,) in rows] == texts
    if table_format == "iceberg":  # the scan prunes files by their partitions
        catalog = load_catalog("lake", **lake.catalog)
        opened = catalog.load_table(lake.target)
        for offset, text in enumerate(texts):
            matching = is_equal("country", text)
            assert opened.scan(matching).to_arrow()["offset"].to_pylist() == [offset]
        catalog.close()


@pytest.mark.parametrize("table_format", FORMATS)
def test_polars_reads_partition_texts(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    lake = Lake(tmp_path, table_format)
    lake.export(tier_of(tmp_path / "tier", TEXTS), partition_by=["country"], transform=by_country)
    if table_format == "parquet":
        rows = pl.scan_parquet(f"{lake.target}/**/*.parquet", hive_partitioning=True)
    elif table_format == "delta":
        rows = pl.scan_delta(lake.target)
    else:
        catalog = load_catalog("lake", **lake.catalog)
        rows = pl.scan_iceberg(catalog.load_table(lake.target))
        catalog.close()
    assert rows.sort("offset").collect()["country"].to_list() == TEXTS
    for offset, text in enumerate(TEXTS):
        matching = pl.col("country").is_null() if text is None else pl.col("country") == text
        assert rows.filter(matching).collect()["offset"].to_list() == [offset]


@pytest.mark.parametrize(
    ("table_format", "text"),
    [(name, text) for name, texts in UNREADABLE.items() for text in texts],
)
def test_partition_texts_that_readers_cannot_read_are_refused(
    tmp_path: Path, table_format: str, text: str
) -> None:
    lake = Lake(tmp_path, table_format)
    source = tier_of(tmp_path / "tier", ["CH", "CH", text])
    with pytest.raises(ExportError, match=r"country is .*offsets 0 to 2") as caught:
        lake.export(source, partition_by=["country"], transform=by_country)
    assert (caught.value.topic, caught.value.partition) == ("t", 0)
    assert not list(lake.folder.rglob("*.parquet")) + list(lake.folder.rglob("*.part"))


def with_country(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("timestamp_date", batch["value"])


@pytest.mark.parametrize("table_format", FORMATS)
def test_date_partition_outside_years_1_to_9999_raises_with_offset(
    tmp_path: Path, table_format: str
) -> None:
    lake = Lake(tmp_path, table_format)
    source = tier_of(tmp_path / "tier", ["CH"] * 3, last_ms=1_700_000_000_000_000)
    with pytest.raises(
        ExportError, match=r"date\(timestamp\) is not in the years 1 to 9999"
    ) as caught:
        lake.export(source, partition_by=["date(timestamp)"])
    assert caught.value.offset == 2


def test_partition_path_beyond_key_limit_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    source = tier_of(tmp_path / "tier", ["x" * 240])

    def three_times(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = by_country(batch)
        for name in ("b", "c"):
            rows = rows.append_column(name, rows["country"])
        return rows

    with pytest.raises(ExportError, match="the limit is 600"):
        lake.export(source, partition_by=["country", "b", "c"], transform=three_times)


def test_partitioning_by_many_columns_separates_all_combinations() -> None:
    count = 1 << 13  # five such columns have more combinations than 64 bits
    first = pa.array([*range(count), 7, 7 + (count >> 1)])
    columns = [first, *[pa.array([*range(count), 7, 7])] * 4]
    batch = pa.RecordBatch.from_arrays(columns, names=list("abcde"))
    groups = [rows.column("a").unique().to_pylist() for _, rows in split(batch, columns)]
    assert groups == [[value] for value in (*range(count), 7 + (count >> 1))]


def test_date_partition_with_existing_column_name_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    with pytest.raises(InvalidOptionError, match="the rows already have one of this name"):
        lake.export(
            tier_of(tmp_path / "tier", ["CH"]),
            partition_by=["date(timestamp)"],
            transform=with_country,
        )
