"""Tests `end_offsets`, which returns `startingOffsets` for a read that continues where a table
ends.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kts_source.errors import ExportError
from kts_source.export.end_offsets import end_offsets
from tests.golden_data import TIER, assert_same_rows, expected_table, topic_summary
from tests.kts_source.export.exporting import FORMATS, Lake, source
from tests.kts_source.export.small_tier import SmallTier, offset_option, table_offsets
from tests.kts_source.planning.scanning import scan
from tests.kts_source.streaming.running import Checkpointed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def ends(lake: Lake, options: dict[str, str], **arguments: Any) -> dict[str, dict[str, int]]:  # noqa: ANN401
    if lake.table_format == "iceberg":
        arguments["catalog"] = {**lake.catalog, "name": "lake"}
    text = end_offsets(
        source=options, target=lake.target, table_format=lake.table_format, **arguments
    )
    offsets: dict[str, dict[str, int]] = json.loads(text)
    return offsets


def test_scan_continues_at_end_offsets_of_the_table(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(3)
    lake.export(tier.options())
    tier.grow(2)
    offsets = ends(lake, tier.options())
    assert offsets == {"t": {"0": 30}}
    remaining = scan(tier.options(startingOffsets=json.dumps(offsets)))
    assert sorted([*table_offsets(lake), *remaining["offset"].to_pylist()]) == list(range(50))


def test_read_from_end_offsets_returns_exactly_the_rows_missing_in_the_table(lake: Lake) -> None:
    lake.export(source(endingOffsets='{"txn":{"0":1000,"1":2000}}'))
    starting = {"startingOffsets": json.dumps(ends(lake, source()))}
    stream = Checkpointed(source(**starting, maxSegmentsPerTrigger="3"))
    assert stream.all() > 1
    stream.close()
    expected = expected_table("txn", "read_committed")
    for remaining in (scan(source(**starting)), pa.concat_tables(stream.batches.values())):
        tables = [batch.select(expected.column_names) for batch in (lake.read(), remaining)]
        together = pa.concat_tables([batch.cast(expected.schema) for batch in tables])
        assert_same_rows(together, expected)
        assert remaining.num_rows


def test_end_offsets_include_partitions_missing_in_the_table(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options())
    assert ends(lake, tier.options(), partitions={"t": 3}) == {"t": {"0": 10, "1": -2, "2": -2}}


def test_end_offsets_include_partition_that_was_deleted_from_the_tier(
    lake: Lake, tmp_path: Path
) -> None:
    (topic,) = (TIER / "tiered").glob(f"txn-{topic_summary('txn')['topicId']}")
    tier = tmp_path / "copy"
    shutil.copytree(topic, tier / "tiered" / topic.name)
    options = {**source(), "path": str(tier)}
    lake.export(options)
    expected_ends = {"txn": {"0": 3675, "1": 3671}}
    assert ends(lake, options) == expected_ends
    shutil.rmtree(tier / "tiered" / topic.name / "0")
    assert ends(lake, options) == expected_ends
    shutil.copytree(topic / "0", tier / "tiered" / topic.name / "0")
    shutil.rmtree(tier / "tiered" / topic.name / "1")
    assert ends(lake, options, partitions={"txn": 2}) == expected_ends


def test_end_offsets_stay_the_same_if_their_segments_expire(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(3)
    lake.export(tier.options(endingOffsets=offset_option(20)))
    tier.expire(0, 1)
    assert ends(lake, tier.options()) == {"t": {"0": 20}}


def test_end_offsets_fail_if_table_has_no_offsets_of_export(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(1)
    with pytest.raises(ExportError, match=f"there is no {lake.table_format} table of export 'kts'"):
        ends(lake, tier.options())
    lake.export(tier.options())
    with pytest.raises(ExportError, match=r"'other'.*export_id"):
        ends(lake, tier.options(), export_id="other")


def test_end_offsets_of_recreated_topic_raise(lake: Lake, tmp_path: Path) -> None:
    lake.export(SmallTier(tmp_path / "first").grow(3).options())
    again = SmallTier(tmp_path / "second").grow(1)
    with pytest.raises(ExportError, match="created again"):
        ends(lake, again.options())
