"""Checks that an export refuses a table if its state was written in another format version. The
error names the version.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import ExportError
from kts_source.export.tables.export_table import STATE_VERSION
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.small_tier import SmallTier, table_offsets

if TYPE_CHECKING:
    from pathlib import Path

MODULES = {"parquet": "parquet_folder", "delta": "delta", "iceberg": "iceberg"}


@pytest.mark.parametrize("version", [STATE_VERSION - 1, STATE_VERSION + 1])
@pytest.mark.parametrize("table_format", FORMATS)
def test_table_with_state_of_another_format_version_is_refused(
    table_format: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, table_format)
    tier = SmallTier(tmp_path / "tier").grow(1)
    module = importlib.import_module(f"kts_source.export.tables.{MODULES[table_format]}")
    with monkeypatch.context() as other:
        other.setattr(module, "STATE_VERSION", version)
        other.setattr("kts_source.export.tables.export_table.STATE_VERSION", version)
        lake.export(tier.options())
    match = f"in format version {version}, .* only format version {STATE_VERSION}. Export into"
    with pytest.raises(ExportError, match=match):
        lake.export(tier.grow(1).options())
    assert table_offsets(lake) == list(range(10))


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_state_without_a_version_counts_as_version_1(
    table_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, table_format)
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options())
    table = lake.table()
    name = "_properties"
    original = getattr(table, name)
    if table_format == "iceberg":
        properties = {
            key: text for key, text in original(table._open()).items() if key != "version"
        }
        monkeypatch.setattr(type(table), name, lambda *_: properties)
    else:
        monkeypatch.setattr(
            "kts_source.export.tables.delta._Transactions.version",
            lambda self, key: (
                None
                if key == "version"
                else self.table.transaction_version(f"kts/{self.export_id}/{key}")
            ),
        )
    table.close()
    with pytest.raises(ExportError, match="in format version 1, "):
        lake.table().load()
