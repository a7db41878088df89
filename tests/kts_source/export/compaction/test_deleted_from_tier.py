"""Checks that compacted tables keep the rows of topics and partitions that were deleted from the
tier, even if a new topic with the same name was created.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import (
    CommitConflictError,
    DataLossError,
    RangeGapError,
    UnsupportedTargetError,
)
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.fates import Between
from tests.kts_source.export.killing import Killed
from tests.quick import only

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.export.tables.export_table import Commit

T0 = 1_700_000_000_000
IDS = ("lZ6vvmajTWKDBUTV6SQAtQ", "adh9f8BMS4anaUnD8KWfWg", "Yl1lYmRGRkOUTJhZBvZJzg")
MERGED = "key,value,topic,partition,offset,timestamp"
MERGES = ["delta", "iceberg"]


class Tier:
    """A tier with topics whose names begin with `o`. Each call of `grow` adds one segment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._logs: dict[tuple[str, int, str], tuple[LogBuilder, AivenTierWriter]] = {}

    def grow(
        self, topic: str, keys: str, *, partition: int = 0, topic_id: str = IDS[0], null: str = ""
    ) -> None:
        """Writes a segment with one record for each letter of `keys`. The letter is the key of the
        record. Letters in `null` become tombstones.
        """
        location = topic, partition, topic_id
        if location not in self._logs:
            writer = AivenTierWriter(
                str(self.root), topic=topic, partition=partition, topic_id=topic_id
            )
            self._logs[location] = LogBuilder(), writer
        log, writer = self._logs[location]
        log.append(
            [
                SimpleRecord(
                    None if key in null else b"%d" % (log.next_offset + row),
                    key.encode(),
                    timestamp=T0 + 1000 * (log.next_offset + row),
                )
                for row, key in enumerate(keys)
            ]
        )
        files = log.roll()
        assert files is not None
        writer.write_segment(files)

    def lose(self, topic: str, *, partition: int | None = None, topic_id: str = IDS[0]) -> None:
        folder = self.root / f"{topic}-{topic_id}"
        shutil.rmtree(folder if partition is None else folder / str(partition))

    def lose_segment(self, topic: str, first: int) -> None:
        for path in (self.root / f"{topic}-{IDS[0]}" / "0").glob(f"{first:020d}-*"):
            path.unlink()

    def options(self, columns: str = MERGED, **options: str) -> dict[str, str]:
        return {
            "path": str(self.root),
            "subscribePattern": "^o",
            "cache": "false",
            "columns": columns,
            **options,
        }


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path / "tier")


@pytest.fixture(params=MERGES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def topic_keys(lake: Lake) -> Counter[tuple[str, str]]:
    """Returns how many rows of the table have each pair of topic id and key."""
    table = lake.read()
    keys = [key.decode() for key in table["key"].to_pylist()]
    return Counter(zip(table["topicId"].to_pylist(), keys, strict=True))


def rows(*groups: tuple[str, str]) -> Counter[tuple[str, str]]:
    return Counter((topic_id, key) for topic_id, keys in groups for key in keys)


def test_compaction_of_recreated_topic_raises_unless_loss_is_allowed(
    tier: Tier, lake: Lake
) -> None:
    tier.grow("oa", "abc")
    lake.export(tier.options(), compact=True)
    tier.lose("oa")
    tier.grow("oa", "cd", topic_id=IDS[1])
    with pytest.raises(DataLossError, match="topic oa was created again"):
        lake.export(tier.options(), compact=True)
    assert topic_keys(lake) == rows((IDS[0], "abc"))
    report = lake.export(tier.options(failOnDataLoss="false"), compact=True)
    assert topic_keys(lake) == rows((IDS[0], "abc"), (IDS[1], "cd"))
    assert [(span.topic_id, span.stop) for span in report.ranges] == [(IDS[1], 2)]
    tier.grow("oa", "de", topic_id=IDS[1])
    lake.export(tier.options(), compact=True)
    assert topic_keys(lake) == rows((IDS[0], "abc"), (IDS[1], "cde"))


@pytest.mark.parametrize("tombstones", ["keep", "remove", "remove-old"])
def test_merge_keeps_rows_of_topics_and_partitions_deleted_from_the_tier(
    tier: Tier, lake: Lake, tombstones: str
) -> None:
    arguments: dict[str, Any] = {
        "compact": True,
        "tombstones": tombstones,
        "delete_retention_ms": 1500,
    }
    tier.grow("oa", "abx", null="x")
    tier.grow("ob", "pq", topic_id=IDS[1])
    tier.grow("ob", "rs", topic_id=IDS[1], partition=1)
    lake.export(tier.options(), **arguments)
    tier.lose("oa")
    tier.lose("ob", topic_id=IDS[1], partition=1)
    tier.grow("ob", "pt", topic_id=IDS[1])
    lake.export(tier.options(), **arguments)
    kept = "ab" if tombstones == "remove" else "abx"
    assert topic_keys(lake) == rows((IDS[0], kept), (IDS[1], "pqrst"))
    tier.lose("ob", topic_id=IDS[1])
    tier.grow("oc", "z", topic_id=IDS[2])
    lake.export(tier.options(), **arguments)
    assert topic_keys(lake) == rows((IDS[0], kept), (IDS[1], "pqrst"), (IDS[2], "z"))


def test_merge_without_matching_new_records_keeps_rows_of_deleted_partition(
    tier: Tier, lake: Lake
) -> None:
    tier.grow("oa", "ab")
    tier.grow("oa", "cd", partition=1)
    options = tier.options(where="key IN ('a', 'b')")
    lake.export(options, compact=True, tombstones="remove-old")
    # Without these offsets, a rebuild of the table would fail, but a merge succeeds.
    shutil.rmtree(tier.root / f"oa-{IDS[0]}" / "0")
    tier.grow("oa", "ef", partition=1)
    lake.export(options, compact=True, tombstones="remove-old")
    assert topic_keys(lake) == rows((IDS[0], "ab"))


def test_compaction_merges_into_table_without_timestamp_column(tier: Tier, lake: Lake) -> None:
    options = tier.options("key,value,topic,partition,offset")
    tier.grow("oa", "ab")
    lake.export(options, compact=True)
    tier.lose("oa")
    tier.grow("ob", "c", topic_id=IDS[1])
    lake.export(options, compact=True)
    tier.grow("ob", "cd", topic_id=IDS[1])
    lake.export(options, compact=True)
    assert topic_keys(lake) == rows((IDS[0], "ab"), (IDS[1], "cd"))


@pytest.mark.parametrize("columns", ["key,value,offset", "key,partition,offset"])
@pytest.mark.parametrize("partition_by", only(1, [("topicId",), ()]))
def test_rebuild_that_would_lose_rows_raises_range_gap_error(
    tier: Tier, lake: Lake, columns: str, partition_by: tuple[str, ...]
) -> None:
    arguments: dict[str, Any] = {"compact": True, "partition_by": partition_by}
    options = tier.options(columns)
    tier.grow("oa", "ab")
    tier.grow("oa", "cd", partition=3)
    lake.export(options, **arguments)
    tier.grow("oa", "ae")
    lake.export(options, **arguments)
    before = topic_keys(lake)
    assert before == rows((IDS[0], "abecd"))
    tier.lose("oa", partition=3)
    # There are no new records, so there is no rebuild.
    assert lake.export(options, **arguments).commits == 0
    tier.grow("oa", "f")
    with pytest.raises(RangeGapError, match=f"topic id {IDS[0]}, partition 3, .*no longer"):
        lake.export(options, **arguments)
    tier.lose("oa")
    tier.grow("oa", "z", topic_id=IDS[1])
    with pytest.raises(
        RangeGapError, match=f"{IDS[0]}, partition 0; topic id {IDS[0]}, partition 3"
    ):
        lake.export(options, **arguments)
    assert topic_keys(lake) == before


@pytest.mark.parametrize("columns", ["key,value,offset", "key,partition,offset", "key,partition"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_rebuild_raises_if_the_tier_lost_a_segment_of_the_table(
    tier: Tier, lake: Lake, columns: str, in_flight: bool
) -> None:
    """With `failOnDataLoss=false`, an export may skip lost records, but it must not remove rows
    from the table.
    """
    options = tier.options(columns, failOnDataLoss="false")
    for keys in ("ab", "cd", "ef"):
        tier.grow("oa", keys)
    lake.export(options, compact=True)
    tier.grow("oa", "gh")
    between = Between(lambda: tier.lose_segment("oa", 2), before=in_flight)
    if not in_flight:
        tier.lose_segment("oa", 2)
    with pytest.raises(RangeGapError, match=r"\[2, 4\) .*partition 0, .*would lose rows"):
        lake.export(options, compact=True, executor=between)
    assert topic_keys(lake) == rows((IDS[0], "abcdef"))


def test_rebuild_skips_missing_segment_that_was_not_exported(tier: Tier, lake: Lake) -> None:
    options = tier.options("key,partition,offset", failOnDataLoss="false")
    for keys in ("ab", "cd", "ef"):
        tier.grow("oa", keys)
    tier.lose_segment("oa", 2)
    lake.export(options, compact=True)
    tier.grow("oa", "gh")
    tier.grow("oa", "ij")
    tier.grow("oa", "kl")
    tier.lose_segment("oa", 8)
    report = lake.export(options, compact=True)
    assert topic_keys(lake) == rows((IDS[0], "abefghkl"))
    assert [(gap.start, gap.stop) for gap in report.skipped] == [(2, 4), (8, 10)]


def test_compaction_into_folder_with_rows_is_refused(tier: Tier, tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    tier.grow("oa", "abc")
    lake.export(tier.options(), compact=True)
    before = lake.read()
    tier.lose("oa")
    tier.grow("oa", "d", topic_id=IDS[1])
    with pytest.raises(UnsupportedTargetError, match="cannot be replaced"):
        lake.export(tier.options(), compact=True)
    assert lake.read().equals(before)


def test_concurrent_first_compactions_conflict(tier: Tier, lake: Lake) -> None:
    """Both exports start before the table exists. The topic is deleted and created again between
    their starts.
    """
    tier.grow("oa", "abc")
    table: Any = lake.table(compact=True)
    commit = table.commit

    def late(commit_data: Commit) -> Any:  # noqa: ANN401
        tier.lose("oa")
        tier.grow("oa", "d", topic_id=IDS[1])
        lake.export(tier.options(), compact=True)
        return commit(commit_data)

    table.commit = late
    with pytest.raises(CommitConflictError, match="another writer changed the table"):
        lake.export(tier.options(), table=table, compact=True)
    assert topic_keys(lake) == rows((IDS[1], "d"))


def test_run_killed_before_commit_writes_each_row_once_after_resume(tier: Tier, lake: Lake) -> None:
    tier.grow("oa", "abc")
    lake.export(tier.options(), compact=True)
    tier.lose("oa")
    tier.grow("ob", "d", topic_id=IDS[1])
    table: Any = lake.table(compact=True)

    def dies(_given: Commit) -> bool:
        raise Killed

    table.commit = dies
    with pytest.raises(Killed):
        lake.export(tier.options(), table=table, compact=True)
    assert topic_keys(lake) == rows((IDS[0], "abc"))
    lake.export(tier.options(), compact=True)
    assert topic_keys(lake) == rows((IDS[0], "abc"), (IDS[1], "d"))
