"""Tests that pyarrow, Polars and DuckDB read partition values from folder names with the right
values and types.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from kts_source.errors import ExportError, InvalidOptionError
from kts_source.export.partitioning import LOG_ALONE, inferred_type
from kts_source.export.run import clean
from kts_source.export.settings import export_settings
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.killing import Killed
from tests.kts_source.export.tables.rows import by_country, tier_of
from tests.kts_source.export.tables.test_protocol import DiesAtCommit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

READERS: Final[dict[str, Callable[[str], list[Any]]]] = {
    "pyarrow": lambda folder: (
        ds.dataset(folder, partitioning="hive").to_table().sort_by("offset")["country"].to_pylist()
    ),
    "polars": lambda folder: (
        pl.read_parquet(f"{folder}/**/*.parquet", hive_partitioning=True)
        .sort("offset")["country"]
        .to_list()
    ),
    "duckdb": lambda folder: [
        country
        for (country,) in duckdb.connect()
        .execute(
            f"select country from read_parquet('{folder}/**/*.parquet', hive_partitioning=true)"
            ' order by "offset"'
        )
        .fetchall()
    ],
}
READERS_WITH_TYPES: Final[dict[str, Callable[[str], list[Any]]]] = {
    "pyarrow": lambda folder: (
        ds.dataset(
            folder,
            partitioning=ds.partitioning(pa.schema([("country", pa.string())]), flavor="hive"),
        )
        .to_table()
        .sort_by("offset")["country"]
        .to_pylist()
    ),
    "polars": lambda folder: (
        pl.read_parquet(
            f"{folder}/**/*.parquet", hive_partitioning=True, hive_schema={"country": pl.String}
        )
        .sort("offset")["country"]
        .to_list()
    ),
    "duckdb": lambda folder: [
        country
        for (country,) in duckdb.connect()
        .execute(
            f"select country from read_parquet('{folder}/**/*.parquet', hive_partitioning=true,"
            " hive_types={'country': VARCHAR}) order by \"offset\""
        )
        .fetchall()
    ],
}
SPARK_NUMBERS: Final = ("1d", "1f", "0x1p3")
"""Texts that Spark reads as numbers and other readers read as text."""
NUMBERS: Final = [
    *("1", "01", "001", "-1", "-0", "1.5", ".5", "5.", "0.10", "1e5", "12e4", "1E5", "+.5"),
    *SPARK_NUMBERS,
    *("0x1F", "0b1", "NaN", "inf", "-Infinity", " 1", "1 ", "٣"),
    *("2147483648", "9" * 20, "1" * 39),
]
OTHER_TYPES: Final = [
    *("true", "True", "false", "2024-01-01", "2024/01/01", "2024-1-1", "01.01.2024", "24-01-01"),
    *("2024-01-01 00:00:00", "2024-01-01T00:00:00Z", "1.2.3", "12:30", "epoch", "2024 01 01"),
]
TEXTS: Final = [
    *("CH", "1a", "a1", "e1", "1-2", "2024-01", "1.2.3.4", "10.20.30", "12 Main", "1_000", "None"),
    *("550e8400-e29b-41d4-a716-446655440000", "yes", "null", "t", "-", "a/b", "é", " a", "~"),
    *("10115x", "v1.2.3", "today", "1,5"),
]


def export(folder: Path, texts: Sequence[str | None], **arguments: Any) -> Lake:  # noqa: ANN401
    lake = Lake(folder, arguments.pop("table_format", "parquet"))
    source = tier_of(folder / "tier", texts)
    arguments = {"partition_by": ["country"], "transform": by_country, **arguments}
    lake.export(source, **arguments)
    return lake


@pytest.mark.parametrize("reader", READERS)
def test_partition_values_of_type_text_are_read_as_text(tmp_path: Path, reader: str) -> None:
    for number, text in enumerate(TEXTS):  # its own folder, because other values influence the type
        assert READERS[reader](export(tmp_path / str(number), [text]).target) == [text]
    lake = export(tmp_path / "all", [*TEXTS, None])
    assert READERS[reader](lake.target) == [*TEXTS, None]


@pytest.mark.parametrize("text", [*NUMBERS, *OTHER_TYPES])
def test_partition_text_that_readers_infer_as_another_type_is_refused(
    tmp_path: Path, text: str
) -> None:
    lake = export(tmp_path / "as-is", [text], text_partitions="as-is")
    assert any(_read(READERS[name], lake) != [text] for name in READERS) or text in SPARK_NUMBERS
    with pytest.raises(ExportError, match=r"country is the text .* parse as a .*as-is") as caught:
        export(tmp_path / "checked", [text])
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 0)
    assert not list((tmp_path / "checked").rglob("*.par*"))


def _read(reader: Callable[[str], list[Any]], lake: Lake) -> list[Any]:
    try:
        return reader(lake.target)
    except (
        pl.exceptions.PolarsError
    ) as error:  # Polars fails on some digits that it reads as numbers
        return [error]


@pytest.mark.parametrize("reader", READERS)
def test_unescaped_partition_texts_are_read_with_the_type_of_the_column(
    tmp_path: Path, reader: str
) -> None:
    texts = [*NUMBERS, *OTHER_TYPES, *TEXTS, None]
    lake = export(tmp_path, texts, text_partitions="as-is")
    assert READERS_WITH_TYPES[reader](lake.target) == texts


@pytest.mark.parametrize("text", ["1.20.3", "2024-31-12", "99.12.99", "1.2.3 beta", "1e", "--1"])
def test_plain_text_has_no_inferred_type(text: str) -> None:
    assert inferred_type(text) is None


def test_unescaped_text_partitions_are_refused_for_delta_tables(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="is only for a Parquet folder"):
        export_settings(str(tmp_path), table_format="delta", text_partitions="as-is")


@pytest.mark.parametrize("name", ["_p", ".p"])
@pytest.mark.parametrize("other_columns", [[], ["topic"]], ids=["first", "second"])
def test_partition_column_with_a_hidden_name_is_refused(
    name: str, other_columns: list[str]
) -> None:
    with pytest.raises(InvalidOptionError, match=r"skip names that begin with .* Rename"):
        export_settings("/t", partition_by=[*other_columns, name])


def test_polars_reads_partition_values_of_a_delta_table(tmp_path: Path) -> None:
    texts = [*NUMBERS, *OTHER_TYPES, *TEXTS, "a%2Fb", "a=b", "\n\t", "x" * 200, None]
    lake = export(tmp_path, texts, table_format="delta")
    assert pl.read_delta(lake.target).sort("offset")["country"].to_list() == texts
    matching = pl.scan_delta(lake.target).filter(pl.col("country") == "01")
    assert matching.collect()["offset"].to_list() == [1]
    assert lake.read().sort_by("offset")["country"].to_pylist() == texts


def test_polars_reads_number_and_date_partitions_of_delta_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    source = tier_of(tmp_path / "tier", ["a"])
    columns = ["topic", "partition", "date(timestamp)"]
    lake.export(source, partition_by=columns)
    expected = lake.read().to_pylist()
    assert expected[0]["topic"] == "t"
    assert pl.read_delta(lake.target).select(lake.read().column_names).to_dicts() == expected


@pytest.mark.parametrize("text", ["__HIVE_DEFAULT_PARTITION__", "x" * 256, "x" * 5000])
def test_polars_fails_on_partition_value_that_cannot_be_a_folder_name(
    tmp_path: Path, text: str
) -> None:
    lake = export(tmp_path, [text], table_format="delta")
    assert lake.read()["country"].to_pylist() == [text]
    assert [LOG_ALONE in uri for uri in DeltaTable(lake.target).file_uris()] == [True]
    with pytest.raises(pl.exceptions.PolarsError, match="kts-values"):
        pl.read_delta(lake.target)


def test_clean_removes_only_uncommitted_files_in_folders_of_a_delta_table(tmp_path: Path) -> None:
    lake = export(tmp_path, ["a/b", "é", "0" * 32], table_format="delta")
    arguments: dict[str, Any] = {"partition_by": ["country"], "transform": by_country}
    source = tier_of(tmp_path / "tier", ["a/b", "é", "0" * 32, "a/b", "0" * 32])
    table: Any = DiesAtCommit(lake.table(**arguments), 0, after=False)
    with pytest.raises(Killed):
        lake.export(source, table=table, **arguments)
    orphans = clean(lake.settings(**arguments), older_than_hours=-1, remove=True)
    assert len(orphans) == 2
    assert lake.read().sort_by("offset")["country"].to_pylist() == ["a/b", "é", "0" * 32]


def test_delta_log_has_url_encoded_paths(tmp_path: Path) -> None:
    lake = export(tmp_path, ["a/b c"], table_format="delta")
    (entry,) = (lake.folder / "table" / "_delta_log").glob("*.json")
    paths = [
        action["add"]["path"]
        for action in map(json.loads, entry.read_text().splitlines())
        if "add" in action
    ]
    assert [path.split("/")[3] for path in paths] == ["country=a%252Fb%20c"]
