"""Checks that an export continues a table only if the log and the table still match its last
commit.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from kts_source import backfill
from kts_source.cli.flags import with_flags
from kts_source.errors import (
    DataLossError,
    ExportError,
    OffsetOutOfRangeError,
    TierNotFoundError,
    TopicNotFoundError,
)
from kts_source.export.end_offsets import end_offsets
from kts_source.export.ranges import PartitionKey
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.fates import Dying
from tests.kts_source.export.killing import Killed
from tests.kts_source.export.small_tier import T0, SmallTier, offset_option, ranges, table_offsets

if TYPE_CHECKING:
    from pathlib import Path

TABLES = ("delta", "iceberg")


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def records(word: str, start: int, stop: int) -> list[SimpleRecord]:
    return [
        SimpleRecord(f"{word}{offset}".encode(), b"k", timestamp=T0)
        for offset in range(start, stop)
    ]


class Elections:
    """A tier with one partition. An upload either continues the log of earlier uploads, or contains
    a different log from some offset on, as after an unclean leader election.
    """

    def __init__(self, root: Path, *, topic_id: str | None = None, partition: int = 0) -> None:
        self.options = {"path": str(root), "subscribe": "t", "cache": "false"}
        self._writer = AivenTierWriter(str(root), topic="t", partition=partition, topic_id=topic_id)
        self._uploads = 0

    @property
    def topic_id(self) -> str:
        return self._writer.topic_id

    def upload(self, *spans: tuple[int, str, int, int], only: int | None = None) -> None:
        """Builds a log with one segment for each span, and uploads its segments.

        Args:
            spans: Leader epoch, prefix of the values, start offset and stop offset of each segment.
            only: Number of segments to upload, counted from the end of the log; `None` uploads all.
        """
        log = LogBuilder(leader_epoch=spans[0][0])
        last = spans[0][0]
        for epoch, word, start, stop in spans:
            if epoch != last:
                log.set_leader_epoch(epoch)
            last = epoch
            log.append(records(word, start, stop))
            log.roll()
        for segment in log.build().segments[-(only or 0) :]:
            self._uploads += 1
            self._writer.write_segment(segment, event_timestamp_ms=T0 + 1000 * self._uploads)


def values(lake: Lake) -> list[str]:
    rows = lake.read().sort_by("offset")
    return [value.decode() for value in rows["value"].to_pylist()]


def test_export_after_unclean_election_before_the_end_of_the_table_raises(
    lake: Lake, tmp_path: Path
) -> None:
    tier = Elections(tmp_path / "tier")
    tier.upload((4, "a", 0, 10), (4, "dead", 10, 15))
    lake.export(tier.options)
    tier.upload((4, "a", 0, 10), (5, "live", 10, 20), only=1)
    with pytest.raises(DataLossError, match=r"the table has offsets \[0, 15\).*epoch 4,.*epoch 5"):
        lake.export(tier.options)
    assert values(lake)[10:] == [f"dead{offset}" for offset in range(10, 15)]
    report = lake.export({**tier.options, "failOnDataLoss": "false"})
    assert ranges(report) == [(15, 20)]
    # Later runs continue the branch that was accepted with failOnDataLoss=false.
    tier.upload((4, "a", 0, 10), (5, "live", 10, 20), (5, "live", 20, 25), only=1)
    assert ranges(lake.export(tier.options)) == [(20, 25)]


def test_export_continues_after_clean_election(lake: Lake, tmp_path: Path) -> None:
    tier = Elections(tmp_path / "tier")
    tier.upload((4, "a", 0, 10))
    lake.export(tier.options)
    tier.upload((4, "a", 0, 10), (6, "a", 10, 20), only=1)
    lake.export(tier.options)
    tier.upload((4, "a", 0, 10), (6, "a", 10, 20), (6, "a", 20, 25), (9, "a", 25, 30), only=2)
    assert ranges(lake.export(tier.options)) == [(20, 30)]
    assert values(lake) == [f"a{offset}" for offset in range(30)]


def test_leader_epoch_of_the_last_offset_is_stored_with_each_commit(
    lake: Lake, tmp_path: Path
) -> None:
    tier = Elections(tmp_path / "tier")
    tier.upload((4, "a", 0, 10), (5, "a", 10, 20))
    lake.export({**tier.options, "maxSegmentsPerTask": "1", "endingOffsets": offset_option(10)})
    state = lake.table().load().committed.get(PartitionKey(tier.topic_id, 0))
    assert state is not None
    assert (state.stop, state.epoch) == (10, 4)
    lake.export({**tier.options, "maxSegmentsPerTask": "1"}, commit_bytes=1)
    state = lake.table().load().committed.get(PartitionKey(tier.topic_id, 0))
    assert state is not None
    assert (state.stop, state.epoch) == (20, 5)


def test_export_raises_if_the_log_ends_before_the_table(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(3)
    lake.export(tier.options())
    tier.expire(2)
    ends = r"t-0: the table has offsets \[0, 30\), but the log ends at offset 20\."
    hint = "If earlier runs also read brokers or disks, set --bootstrap-servers or --tail-path"
    with pytest.raises(DataLossError, match=ends) as raised:
        lake.export(tier.options())
    assert f"20. {hint} again. " in with_flags(str(raised.value))
    assert lake.export(tier.options(failOnDataLoss="false")).ranges == ()
    assert table_offsets(lake) == list(range(30))


def test_plan_file_created_before_unclean_election_is_refused(lake: Lake, tmp_path: Path) -> None:
    import kts_source

    tier = Elections(tmp_path / "tier")
    tier.upload((4, "a", 0, 10), (4, "dead", 10, 20))
    plan = tmp_path / "plan.json"
    plan.write_text(kts_source.plan(tier.options).to_json())
    tier.upload((4, "a", 0, 10), (5, "live", 10, 15), only=1)
    lake.export(tier.options)
    with pytest.raises(DataLossError, match=r"has offsets \[0, 15\), and .* leader epoch 5"):
        lake.export({**tier.options, "planFile": str(plan)})


def test_export_of_recreated_topic_raises(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Elections(tmp_path / "tier")
    first.upload((1, "old", 0, 10))
    lake.export(first.options)
    first.upload((1, "old", 0, 10), (1, "late", 10, 20), only=1)
    second = Elections(tmp_path / "tier")
    second._uploads = 5
    second.upload((1, "new", 0, 5))
    assert first.topic_id != second.topic_id
    with (
        caplog.at_level("WARNING"),
        pytest.raises(DataLossError, match=r"topic t was created again") as raised,
    ):
        lake.export(second.options)
    advice = f"first run once with topicId={first.topic_id}. Then "
    if lake.table_format == "delta":
        advice = "first run once with topicId set to its id, which the log of this run names. Then "
        assert f"reading topic id {second.topic_id}, not {first.topic_id}" in caplog.text
    assert advice in str(raised.value)
    assert f"set topicId={second.topic_id}, or " in str(raised.value)
    assert ranges(lake.export({**second.options, "topicId": first.topic_id})) == [(10, 20)]
    report = lake.export({**second.options, "topicId": second.topic_id})
    assert ranges(report) == [(0, 5)]
    assert lake.read().num_rows == 25
    assert lake.export(second.options).commits == 0


def test_export_of_recreated_topic_succeeds_if_loss_is_allowed(lake: Lake, tmp_path: Path) -> None:
    Elections(tmp_path / "tier").upload((1, "old", 0, 10))
    options = Elections(tmp_path / "tier").options
    lake.export(options)
    second = Elections(tmp_path / "tier")
    second._uploads = 5
    second.upload((1, "new", 0, 5))
    assert lake.export({**options, "failOnDataLoss": "false"}).rows == 5
    assert lake.export(options).commits == 0


def test_export_of_new_partition_without_its_first_records_raises(
    lake: Lake, tmp_path: Path
) -> None:
    tier = Elections(tmp_path / "tier")
    tier.upload((1, "a", 0, 10))
    lake.export(tier.options)
    other = Elections(tmp_path / "tier", topic_id=tier.topic_id, partition=1)
    other.upload((1, "a", 0, 10), (1, "a", 10, 20), only=1)
    with pytest.raises(OffsetOutOfRangeError, match=r"t-1: the partition is new.* offset 10"):
        lake.export(tier.options)
    starts = json.dumps({"t": {"0": 0, "1": 10}})
    assert ranges(lake.export({**tier.options, "startingOffsets": starts})) == [(10, 20)]
    assert lake.export(tier.options).commits == 0


def test_lost_first_records_of_new_partition_are_reported_if_loss_is_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake, tier = Lake(tmp_path, "parquet"), Elections(tmp_path / "tier")
    tier.upload((1, "a", 0, 10))
    lake.export(tier.options)
    other = Elections(tmp_path / "tier", topic_id=tier.topic_id, partition=1)
    other.upload((1, "a", 0, 10), (1, "a", 10, 20), only=1)
    report = lake.export({**tier.options, "failOnDataLoss": "false"})
    assert ranges(report) == [(10, 20)]
    assert [(gap.partition, gap.start, gap.stop) for gap in report.skipped] == [(1, 0, 10)]
    assert "t-1: the partition is new to the table" in caplog.text
    assert "failOnDataLoss" not in caplog.text
    assert lake.export({**tier.options, "failOnDataLoss": "false"}).skipped == ()


def test_run_after_interrupted_first_run_exports_partition_that_starts_above_zero(
    lake: Lake, tmp_path: Path
) -> None:
    tier = Elections(tmp_path / "tier")
    tier.upload((1, "a", 0, 10), (1, "a", 10, 20), only=1)
    other = Elections(tmp_path / "tier", topic_id=tier.topic_id, partition=1)
    other.upload((1, "b", 0, 30), (1, "b", 30, 40), only=1)
    options = {**tier.options, "maxSegmentsPerTask": "1"}
    dying: Any = Dying(lake.table(), 0, after=True)
    with pytest.raises(Killed):
        lake.export(options, table=dying, commit_bytes=1)
    assert table_offsets(lake) == list(range(10, 20))
    assert lake.export(options).rows == 10
    assert table_offsets(lake) == [*range(10, 20), *range(30, 40)]
    assert lake.export(options).commits == 0


def test_new_partition_beginning_at_zero_is_exported(lake: Lake, tmp_path: Path) -> None:
    tier = Elections(tmp_path / "tier")
    tier.upload((1, "a", 0, 10))
    lake.export(tier.options)
    other = Elections(tmp_path / "tier", topic_id=tier.topic_id, partition=1)
    other.upload((1, "b", 0, 5))
    assert ranges(lake.export(tier.options)) == [(0, 5)]


def test_topic_added_later_may_begin_above_offset_zero(lake: Lake, tmp_path: Path) -> None:
    Elections(tmp_path / "tier").upload((1, "a", 0, 10))
    other = AivenTierWriter(str(tmp_path / "tier"), topic="u", partition=0)
    log = LogBuilder()
    log.append(records("u", 0, 10))
    log.roll()
    log.append(records("u", 10, 20))
    log.roll()
    other.write_segment(log.build().segments[1])
    options = {"path": str(tmp_path / "tier"), "cache": "false"}
    lake.export({**options, "subscribe": "t"})
    assert ranges(lake.export({**options, "subscribe": "t,u"})) == [(10, 20)]


# -- tables that were rolled back


def roll_back(lake: Lake, version: int) -> None:
    """Restores a Delta table to version `version`, or an Iceberg table to the snapshot with index
    `version`, counted from 0.
    """
    if lake.table_format == "delta":
        DeltaTable(lake.target).restore(version)
        return
    catalog = load_catalog("lake", **lake.catalog)
    table = catalog.load_table(lake.target)
    snapshot = sorted(table.metadata.snapshots, key=lambda entry: entry.sequence_number or 0)[
        version
    ]
    table.manage_snapshots().set_current_snapshot(snapshot.snapshot_id).commit()
    catalog.close()


@pytest.mark.parametrize("table_format", TABLES)
def test_export_into_rolled_back_table_raises(table_format: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path, table_format)
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options())
    lake.export(tier.grow(1).options())
    roll_back(lake, 0)
    for options in (tier.options(), tier.grow(1).options()):
        with pytest.raises(DataLossError, match=r"no longer has: .* t-0 \[10, 20\)\. ") as raised:
            lake.export(options)
        assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("t", 0, 10)
    assert table_offsets(lake) == list(range(10))
    assert ranges(lake.export(tier.options(failOnDataLoss="false"))) == [(20, 30)]
    assert table_offsets(lake) == [*range(10), *range(20, 30)]
    assert ranges(lake.export(tier.grow(1).options())) == [(30, 40)]


@pytest.mark.parametrize("table_format", TABLES)
def test_accepted_rollback_without_new_records_is_accepted_once(
    table_format: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options())
    lake.export(tier.grow(1).options())
    roll_back(lake, 0)
    report = lake.export(tier.options(failOnDataLoss="false"))
    assert (report.rows, report.commits) == (0, 1)
    assert [(gap.start, gap.stop) for gap in report.skipped] == [(10, 20)]
    assert "kts_export_skipped_offsets{" in report.to_prometheus()
    assert report.figures()["skipped_offsets"] == 10
    assert lake.export(tier.options()).commits == 0
    assert table_offsets(lake) == list(range(10))
    assert ranges(lake.export(tier.grow(1).options())) == [(20, 30)]


@pytest.mark.parametrize("table_format", TABLES)
def test_export_after_undone_rollback_continues(table_format: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path, table_format)
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options())
    lake.export(tier.grow(1).options())
    roll_back(lake, 0)
    roll_back(lake, 1)
    assert ranges(lake.export(tier.grow(1).options())) == [(20, 30)]
    assert table_offsets(lake) == list(range(30))


@pytest.mark.parametrize("table_format", TABLES)
def test_second_rollback_names_only_rows_that_the_first_one_left(
    table_format: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    tier = SmallTier(tmp_path / "tier")
    for _ in range(4):
        lake.export(tier.grow(1).options())
    roll_back(lake, 1)
    with pytest.raises(DataLossError, match=r"t-0 \[20, 40\)\. "):
        lake.export(tier.options())
    lake.export(tier.grow(1).options(failOnDataLoss="false"))
    roll_back(lake, 0)
    lost = r"t-0 \[10, 20\); t-0 \[40, 50\)\. "
    with pytest.raises(DataLossError, match=lost) as raised:
        lake.export(tier.options())
    if table_format == "delta":
        assert "RESTORE in version 6 of the table removed what versions 1 to 5" in str(raised.value)


def test_export_raises_if_later_versions_follow_a_rollback(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options())
    lake.export(tier.grow(1).options())
    roll_back(lake, 0)
    for _ in range(12):
        write_deltalake(lake.target, DeltaTable(lake.target).to_pyarrow_table(), mode="overwrite")
    DeltaTable(lake.target).restore(8)
    with pytest.raises(DataLossError, match="RESTORE in version 2 "):
        lake.export(tier.options())


def test_compaction_by_another_writer_is_not_reported_as_rollback(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options())
    lake.export(tier.grow(1).options())
    DeltaTable(lake.target).optimize.compact()
    assert ranges(lake.export(tier.grow(1).options())) == [(20, 30)]
    assert table_offsets(lake) == list(range(30))


def test_expired_snapshots_are_not_reported_as_rollback(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "iceberg")
    tier = SmallTier(tmp_path / "tier").grow(1)
    for _ in range(2):
        lake.export(tier.grow(1).options())
    catalog = load_catalog("lake", **lake.catalog)
    table = catalog.load_table(lake.target)
    table.append(table.scan().to_arrow().slice(0, 0))  # a snapshot of another writer
    old = [snapshot.snapshot_id for snapshot in table.metadata.snapshots[:-1]]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(catalog.load_table(lake.target).metadata.snapshots) == 1
    catalog.close()
    assert ranges(lake.export(tier.grow(1).options())) == [(30, 40)]


# -- tables that lost their state


def test_export_into_folder_that_lost_its_commit_log_raises(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options(), partition_by=["topic"])
    shutil.rmtree(tmp_path / "table" / "_kts")
    with pytest.raises(ExportError, match="does not record which offsets"):
        lake.export(tier.grow(1).options(), partition_by=["topic"])
    assert table_offsets(lake) == list(range(10))
    # As the error advises, export to another folder.
    (tmp_path / "again").mkdir()
    other = Lake(tmp_path / "again", "parquet")
    assert other.export(tier.options(), partition_by=["topic"]).rows == 20


def test_export_ignores_files_of_export_whose_id_has_same_prefix(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options(), export_id="kts-all")
    assert lake.export(tier.options(), export_id="kts", second_copy=True).rows == 10


def test_export_into_iceberg_table_that_lost_its_properties_raises(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "iceberg")
    tier = SmallTier(tmp_path / "tier").grow(1)
    lake.export(tier.options())
    catalog = load_catalog("lake", **lake.catalog)
    table = catalog.load_table(lake.target)
    with table.transaction() as transaction:
        transaction.remove_properties(*[name for name in table.properties if "kts." in name])
    catalog.close()
    with pytest.raises(ExportError, match="are missing"):
        lake.export(tier.options())
    assert table_offsets(lake) == list(range(10))


def test_follow_and_end_offsets_raise_after_unclean_election(tmp_path: Path) -> None:
    tier = Elections(tmp_path / "tier")
    tier.upload((4, "a", 0, 10), (4, "dead", 10, 15))
    target = str(tmp_path / "table")
    backfill(None, source=tier.options, target=target, progress=False)
    tier.upload((4, "a", 0, 10), (5, "live", 10, 20), only=1)
    with pytest.raises(DataLossError, match="unclean election"):
        backfill(None, source=tier.options, target=target, follow=True, progress=False)
    with pytest.raises(DataLossError, match="unclean election"):
        end_offsets(source=tier.options, target=target)


# -- topics whose last segment has expired


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
def test_exported_topic_that_expired_ends_without_rows_if_data_loss_is_allowed(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    table_format: str,
) -> None:
    lake, tier = Lake(tmp_path, table_format), SmallTier(tmp_path / "tier").grow(2)
    options = {"path": str(tier.root), "cache": "false", "subscribe": "t"}
    lake.export(options)
    shutil.rmtree(tier.root / f"t-{tier.topic_id}")
    allowed = {**options, "failOnDataLoss": "false"}
    tier.root.mkdir(exist_ok=True)
    with pytest.raises(TierNotFoundError):  # the tier is gone, not only the topic
        lake.export(allowed)
    other = LogBuilder()
    other.append(records("v", 0, 5))
    writer = AivenTierWriter(str(tier.root), topic="other")
    writer.write_segment(other.build().segments[0])
    with pytest.raises(TopicNotFoundError, match="set failOnDataLoss=false to end without new"):
        lake.export(options)
    report = lake.export(allowed)
    assert (report.rows, report.commits, report.skipped) == (0, 0, ())
    assert "nothing new to write" in caplog.text
    assert table_offsets(lake) == list(range(20))
    for topics in ("mistyped", "t,mistyped"):  # the table never had rows of this topic
        with pytest.raises(TopicNotFoundError, match="mistyped"):
            lake.export({**allowed, "subscribe": topics})
    del allowed["subscribe"]
    with pytest.raises(TopicNotFoundError):  # the pattern may be wrong
        lake.export({**allowed, "subscribePattern": "^t$"})
