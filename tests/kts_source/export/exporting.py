"""Exports golden topics. Reads the tables with the library of each table format."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from kts_source.export.run import export
from kts_source.export.settings import ExportSettings, export_settings
from kts_source.export.tables import open_table
from kts_source.export.task_writer import LocalExecutor
from kts_source.secret import Secret
from tests.golden_data import assert_same_rows, expected_table, tier_options

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kts_source.export.report import BackfillReport
    from kts_source.export.tables.export_table import ExportTable
    from kts_source.export.task_writer import ExportExecutor

FORMATS = ("parquet", "delta", "iceberg")
ICEBERG_TABLE = "lake.rows"


def source(topics: str | Iterable[str] = "txn", **options: str) -> dict[str, str]:
    """Returns options that read golden topics in several small tasks. `options` overrides the
    defaults.
    """
    defaults = {"targetPartitionBytes": "100k", "includeHeaders": "true", **options}
    return tier_options(topics, **defaults)


@dataclass(frozen=True)
class Lake:
    """The target table of exports, stored in `folder`."""

    folder: Path
    table_format: str

    @property
    def catalog(self) -> dict[str, str]:
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": self.folder.as_uri(),
        }

    @property
    def target(self) -> str:
        return ICEBERG_TABLE if self.table_format == "iceberg" else str(self.folder / "table")

    def settings(self, **arguments: Any) -> ExportSettings:  # noqa: ANN401
        """Returns settings with small commits and any number of allowed rejected rows. `arguments`
        overrides settings.
        """
        if self.table_format == "iceberg":
            arguments["catalog"] = {**self.catalog, "name": "lake"}
        arguments.setdefault("commit_bytes", 250_000)
        arguments.setdefault("max_rejected", "100%")
        own = Secret(arguments.pop("topic_options", {}))
        settings = export_settings(self.target, table_format=self.table_format, **arguments)
        return dataclasses.replace(settings, topic_options=own)

    def table(self, **arguments: Any) -> ExportTable:  # noqa: ANN401
        return open_table(self.settings(**arguments))

    def export(
        self,
        options: dict[str, str],
        *,
        executor: ExportExecutor | None = None,
        table: ExportTable | None = None,
        **arguments: Any,  # noqa: ANN401
    ) -> BackfillReport:
        return export(
            options,
            self.settings(**arguments),
            executor or LocalExecutor(1),
            table=table,
        )

    def read(self) -> pa.Table:
        """Reads the table with the library of its format. Returns an empty Arrow table if a Delta
        or Iceberg table does not exist.
        """
        if self.table_format == "delta":
            if not DeltaTable.is_deltatable(self.target):
                return pa.table({})
            return DeltaTable(self.target).to_pyarrow_table()
        if self.table_format == "iceberg":
            catalog = load_catalog("lake", **self.catalog)
            try:
                return catalog.load_table(self.target).scan().to_arrow()
            except NoSuchTableError:
                return pa.table({})
            finally:
                catalog.close()
        return ds.dataset(self.target, format="parquet", partitioning="hive").to_table()

    def duckdb_rows(self) -> list[tuple[Any, ...]]:
        """Returns the sorted (topic, partition, offset) of all rows that a DuckDB query returns."""
        connection = duckdb.connect()
        if self.table_format == "parquet":
            files = f"read_parquet('{self.target}/**/*.parquet', hive_partitioning=true)"
        else:
            connection.register("lake", self.read())
            files = "lake"
        query = f'select topic, "partition", "offset" from {files} order by all'
        return connection.execute(query).fetchall()


def assert_holds(
    table: pa.Table,
    topics: Iterable[str],
    isolation_level: Any = "read_committed",  # noqa: ANN401
) -> None:
    """Asserts that the table contains each visible row of the golden `topics` once, and no other
    rows.
    """
    row_count = 0
    for topic in topics:
        expected = expected_table(topic, isolation_level)
        rows = table.filter(pc.equal(table["topic"].cast(pa.string()), topic))
        assert_same_rows(rows.select(expected.column_names), expected)
        row_count += rows.num_rows
    assert row_count == table.num_rows


def row_locations(table: pa.Table) -> list[tuple[str, int, int]]:
    """Returns (topic, partition, offset) of every row."""
    if table.num_rows == 0:
        return []
    columns = (table[name].to_pylist() for name in ("topic", "partition", "offset"))
    return list(zip(*columns, strict=True))


def assert_at_most_once(lake: Lake) -> None:
    """Asserts that no row is in the table twice."""
    if lake.table_format == "parquet" and not (lake.folder / "table").exists():
        return
    locations = row_locations(lake.read())
    assert len(locations) == len(set(locations))


def replaced(settings: ExportSettings, **changes: Any) -> ExportSettings:  # noqa: ANN401
    return dataclasses.replace(settings, **changes)
