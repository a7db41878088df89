"""Tests that an export refuses partitions that another export has already written into the same
table.

Also tests that the user can follow the advice in the error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from kts_source.errors import ExportError
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.small_tier import SmallTier, table_offsets
from tests.kts_source.read.typed_tier import TOPIC, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def test_topic_of_another_export_is_refused(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options(), export_id="first")
    tier.grow(1)
    with pytest.raises(ExportError, match="would have its rows twice") as raised:
        lake.export(tier.options(), export_id="other")
    assert (raised.value.topic, raised.value.partition) == ("t", 0)
    assert table_offsets(lake) == [*range(10)]
    # Do what the error advises.
    assert "export_id='first'" in str(raised.value)
    lake.export(tier.options(), export_id="first")
    assert table_offsets(lake) == [*range(20)]
    for _ in range(2):
        lake.export(tier.options(), export_id="other", second_copy=True)
        assert table_offsets(lake) == sorted([*range(20)] * 2)
    # Both exports continue the partitions that they have.
    tier.grow(1)
    for export_id in ("first", "other"):
        lake.export(tier.options(), export_id=export_id)
    assert table_offsets(lake) == sorted([*range(30)] * 2)


def test_exports_of_different_partitions_share_a_table(lake: Lake, tmp_path: Path) -> None:
    tier = write(tmp_path / "tier", [[b"a"], [b"b"]])
    for partition in (0, 1):
        options = {k: v for k, v in tier.items() if k != "subscribe"}
        options["assign"] = json.dumps({TOPIC: [partition]})
        lake.export(options, export_id=f"p{partition}")
    assert sorted(lake.read()["partition"].to_pylist()) == [0, 1]
    with pytest.raises(ExportError, match="export 'p0'"):
        lake.export(tier, export_id="both")


def test_concurrent_export_of_the_same_topic_is_refused_at_commit(
    lake: Lake, tmp_path: Path
) -> None:
    tier = SmallTier(tmp_path / "tier").grow(1)
    table: Any = lake.table(export_id="second")
    commit = table.commit

    def after_another(own: object) -> Any:  # noqa: ANN401
        lake.export(tier.options(), export_id="first")
        return commit(own)

    table.commit = after_another
    with pytest.raises(ExportError, match="export 'first' has written this partition"):
        lake.export(tier.options(), table=table, export_id="second")
    table.close()
    assert table_offsets(lake) == [*range(10)]


def test_topic_in_rewritten_delta_table_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    tier = SmallTier(tmp_path / "tier").grow(1)
    for export_id in ("a", "b"):
        lake.export(tier.options(), export_id=export_id, second_copy=True)
    DeltaTable(lake.target).optimize.compact()
    with pytest.raises(ExportError, match="export 'a'"):
        lake.export(tier.options(), export_id="c")
