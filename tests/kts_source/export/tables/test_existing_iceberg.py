"""Tests exports into existing Iceberg tables. Unsupported tables are refused before any row is
written. Concurrent commits are detected.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from kts_source.errors import CommitConflictError, ExportError, UnsupportedTargetError
from kts_source.export.tables import iceberg
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.tables.rows import by_country, tier_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.table import Table

    from kts_source.export.ranges import OffsetRange, PartitionKey
    from kts_source.export.tables.export_table import Commit

OFFSET = NestedField(1, "offset", LongType())
COUNTRY = NestedField(2, "country", StringType())
TEXTS = ["CH", "DE", "CH"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path, "iceberg")


@pytest.fixture
def catalog(lake: Lake) -> Iterator[Catalog]:
    opened = load_catalog("lake", **lake.catalog)
    opened.create_namespace("lake")
    yield opened
    opened.close()


def export(lake: Lake, **arguments: Any) -> None:  # noqa: ANN401
    lake.export(tier_of(lake.folder / "tier", TEXTS), transform=by_country, **arguments)


def countries(lake: Lake) -> list[str]:
    countries_read: list[str] = lake.read().sort_by("offset")["country"].to_pylist()
    return countries_read


def partition(table: Table, source: str, transform: Any) -> None:  # noqa: ANN401
    with table.update_spec() as spec:
        spec.add_field(source, transform)


@pytest.mark.parametrize(
    ("existing", "partition_by", "match"),
    [
        (
            ("country", IdentityTransform()),
            [],
            r"by identity\(country\), .* has partition_by no column",
        ),
        (None, ["country"], r"by no column, .* has partition_by identity\(country\)"),
        (("time", DayTransform()), ["country"], r"by day\(time\), .* identity\(country\)"),
        (
            ("time", MonthTransform()),
            ["date(time)"],
            r"by month\(time\), .* has partition_by day\(time\)",
        ),
    ],
)
def test_export_with_other_partition_columns_than_the_table_is_refused(
    lake: Lake,
    catalog: Catalog,
    existing: tuple[str, Any] | None,
    partition_by: list[str],
    match: str,
) -> None:
    table = catalog.create_table(
        lake.target, Schema(OFFSET, COUNTRY, NestedField(3, "time", TimestamptzType()))
    )
    if existing is not None:
        partition(table, *existing)
    with pytest.raises(UnsupportedTargetError, match=match):
        export(lake, partition_by=partition_by)
    assert not list(lake.folder.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("properties", "match"),
    [
        ({"write.metadata.metrics.default": "none"}, "records no bounds of column country"),
        (
            {"write.metadata.metrics.column.country": "counts"},
            "records no bounds of column country",
        ),
        (
            {"schema.name-mapping.default": json.dumps([{"field-id": 1, "names": ["offset"]}])},
            "does not map the names country to columns",
        ),
        (
            {
                "schema.name-mapping.default": json.dumps(
                    [
                        {"field-id": 1, "names": ["offset"]},
                        {"field-id": 7, "names": ["country"]},
                    ]
                )
            },
            "does not map the names country to columns",
        ),
    ],
)
def test_unsupported_iceberg_table_is_refused_before_any_row(
    lake: Lake, catalog: Catalog, properties: dict[str, str], match: str
) -> None:
    table = catalog.create_table(lake.target, Schema(OFFSET, COUNTRY), properties=properties)
    partition(table, "country", IdentityTransform())
    with pytest.raises(UnsupportedTargetError, match=match):
        export(lake, partition_by=["country"])
    assert not list(lake.folder.rglob("*.parquet"))


@pytest.mark.parametrize(
    "schema",
    [
        Schema(NestedField(1, "offset", IntegerType()), COUNTRY),
        Schema(OFFSET, NestedField(2, "country", StringType(), required=True)),
        Schema(OFFSET, COUNTRY, NestedField(3, "more", StringType(), required=True)),
    ],
)
def test_export_with_other_columns_than_the_table_is_refused(
    lake: Lake, catalog: Catalog, schema: Schema
) -> None:
    catalog.create_table(lake.target, schema)
    with pytest.raises(ExportError, match="do not fit the Iceberg table"):
        export(lake)
    assert lake.read().num_rows == 0


def test_table_with_newer_iceberg_format_version_is_refused(lake: Lake, catalog: Catalog) -> None:
    table = catalog.create_table("lake.older", Schema(OFFSET, COUNTRY))
    path = table.metadata_location.removeprefix("file://")
    metadata = json.loads(Path(path).read_text())
    metadata |= {"format-version": 3, "next-row-id": 0}
    newer = lake.folder / "newer.metadata.json"
    newer.write_text(json.dumps(metadata))
    catalog.register_table(lake.target, newer.as_uri())
    with pytest.raises(UnsupportedTargetError, match="format version 3"):
        export(lake)


def test_export_into_table_that_lacks_a_column_is_refused(lake: Lake, catalog: Catalog) -> None:
    catalog.create_table(lake.target, Schema(OFFSET, NestedField(2, "land", StringType())))
    with pytest.raises(ExportError, match="lacks the columns country"):
        export(lake)


def test_table_features_that_do_not_affect_an_export_are_accepted(
    lake: Lake, catalog: Catalog
) -> None:
    table = catalog.create_table(
        lake.target,
        Schema(OFFSET, COUNTRY),
        sort_order=SortOrder(SortField(2)),
        properties={"format-version": "1"},
    )
    export(lake)
    # The older partition spec remains in the metadata.
    partition(table.refresh(), "country", IdentityTransform())
    more = tier_of(lake.folder / "more", ["DE", "DE"])
    arguments: dict[str, Any] = {"export_id": "more", "second_copy": True}
    lake.export(more, transform=by_country, partition_by=["country"], **arguments)
    assert sorted(countries(lake)) == ["CH", "CH", "DE", "DE", "DE"]


def test_unsigned_integer_columns_are_refused(lake: Lake) -> None:
    def unsigned(batch: pa.RecordBatch) -> pa.RecordBatch:
        huge = pa.array([2**64 - 1] * batch.num_rows, pa.uint64())
        return pa.RecordBatch.from_arrays([huge], names=["huge"])

    with pytest.raises(ExportError, match="huge is uint64, and tables have signed"):
        lake.export(tier_of(lake.folder / "tier", TEXTS), transform=unsigned)


class Overtaken:
    """Calls `between` once, after an export has checked the table and before it commits. `tries`
    counts the commit attempts.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, between: Any) -> None:  # noqa: ANN401
        self._between = between
        self._commit_once = iceberg.IcebergExportTable._commit_once
        self.tries = 0

        def commit_once(
            export: iceberg.IcebergExportTable,
            loaded: Table,
            commit: Commit,
            moved: Mapping[PartitionKey, OffsetRange],
        ) -> None:
            self.tries += 1
            between, self._between = self._between, None
            if between is not None:
                between()
            self._commit_once(export, loaded, commit, moved)

        monkeypatch.setattr(iceberg.IcebergExportTable, "_commit_once", commit_once)


@pytest.mark.parametrize("exists", [False, True], ids=["new", "existing"])
def test_concurrent_commit_of_same_offsets_conflicts(
    lake: Lake, catalog: Catalog, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exists:
        catalog.create_table(lake.target, Schema(OFFSET, COUNTRY))
    overtaken = Overtaken(monkeypatch, lambda: export(lake))
    with pytest.raises(CommitConflictError, match="was planned for a table that has no offsets"):
        export(lake)
    assert overtaken.tries == 2, "the other export's, and one that was refused"
    assert countries(lake) == TEXTS


@pytest.mark.parametrize("exists", [False, True], ids=["new", "existing"])
def test_rows_that_another_writer_commits_before_an_export_are_kept(
    lake: Lake, catalog: Catalog, exists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exists:
        catalog.create_table(lake.target, Schema(OFFSET, COUNTRY))
    rows = pa.table({"offset": pa.array([9], pa.int64()), "country": ["FR"]})
    overtaken = Overtaken(monkeypatch, lambda: catalog.load_table(lake.target).append(rows))
    export(lake)
    assert overtaken.tries == 2
    assert countries(lake) == [*TEXTS, "FR"]


def test_offsets_are_compared_again_if_pyiceberg_retries(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "_NO_RETRIES", "not.the.name.of.the.property")
    Overtaken(monkeypatch, lambda: export(lake))
    with pytest.raises(CommitConflictError, match="was planned for a table that has no offsets"):
        export(lake)
    assert countries(lake) == TEXTS


@pytest.mark.parametrize("change", ["rename", "partition"])
def test_iceberg_table_changed_before_commit_is_checked_again(
    lake: Lake, catalog: Catalog, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.create_table(lake.target, Schema(OFFSET, COUNTRY))

    def between() -> None:
        table = catalog.load_table(lake.target)
        if change == "partition":
            partition(table, "country", IdentityTransform())
            return
        with table.update_schema() as schema:
            schema.rename_column("country", "land")

    Overtaken(monkeypatch, between)
    with pytest.raises(ExportError, match=r"lacks the columns country|is partitioned by ident"):
        export(lake)
    assert lake.read().num_rows == 0
