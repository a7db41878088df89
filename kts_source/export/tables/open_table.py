"""Which table the settings of an export name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.export.settings import DELTA, ICEBERG
from kts_source.libraries import require

if TYPE_CHECKING:
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import ExportTable


def open_table(settings: ExportSettings) -> ExportTable:
    """The target of an export.

    Raises:
        UnsupportedTargetError: It cannot keep the promise of exactly once.
        InvalidOptionError: The format's library is not installed.
    """
    if settings.table_format == DELTA:
        require("deltalake", "delta", "a Delta table")
        from kts_source.export.tables.delta import DeltaExportTable

        return DeltaExportTable(settings)
    if settings.table_format == ICEBERG:
        require("pyiceberg", "iceberg", "an Iceberg table")
        from kts_source.export.tables.iceberg import IcebergExportTable

        return IcebergExportTable(settings)
    from kts_source.export.tables.open_target import open_target
    from kts_source.export.tables.parquet_folder import ParquetFolder

    return ParquetFolder(settings, open_target(settings.target, settings.storage))
