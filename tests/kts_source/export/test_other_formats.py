"""Tests exports into a folder that has a table of another format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.errors import UnsupportedTargetError
from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.export.task_writer import LocalExecutor
from tests.kts_source.export.exporting import Lake, source

if TYPE_CHECKING:
    from pathlib import Path


def table_folder(lake: Lake) -> Path:
    if lake.table_format != "iceberg":
        return lake.folder / "table"
    (metadata,) = (path for path in lake.folder.rglob("metadata") if path.is_dir())
    return metadata.parent


@pytest.mark.parametrize(
    ("present", "wanted"), [("delta", "parquet"), ("parquet", "delta"), ("iceberg", "parquet")]
)
def test_export_into_table_of_another_format_is_refused(
    tmp_path: Path, present: str, wanted: str
) -> None:
    lake = Lake(tmp_path, present)
    lake.export(source())
    rows = lake.read().num_rows
    assert rows
    target = str(table_folder(lake))

    with pytest.raises(UnsupportedTargetError, match=f"table_format={present}"):
        export(source(), export_settings(target, table_format=wanted), LocalExecutor(1))

    assert lake.read().num_rows == rows
    assert lake.export(source()).rows == 0
