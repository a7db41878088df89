"""The tables to which an export commits rows, and the stores with their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError
from kts_source.export.settings import DELTA, ICEBERG, SPARK
from kts_source.libraries import require

if TYPE_CHECKING:
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import ExportTable


def open_table(settings: ExportSettings) -> ExportTable:
    """Opens the target of an export. Imports only the library that the target's format needs.

    Raises:
        UnsupportedTargetError: The target cannot store each row exactly once.
        MissingExtraError: The library of the format is not installed.
        InvalidOptionError: The table must be opened by a Spark session.
    """
    if settings.writer == SPARK:
        raise InvalidOptionError(
            "writer='spark' needs a Spark session, as in backfill(spark, …): pass the session, or"
            " name the path of the table and remove writer"
        )
    if settings.table_format == DELTA:
        require("deltalake", "delta", "a Delta table")
        from kts_source.export.tables.delta import DeltaExportTable

        return DeltaExportTable(settings)
    if settings.table_format == ICEBERG:
        require("pyiceberg", "iceberg", "an Iceberg table")
        from kts_source.export.tables.iceberg import IcebergExportTable

        return IcebergExportTable(settings)
    from kts_source.export.tables.parquet_folder import ParquetFolder

    return ParquetFolder(settings)
