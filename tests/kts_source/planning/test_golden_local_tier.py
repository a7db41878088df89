"""Checks that scans of a `LocalTieredStorage` that a real broker wrote return exactly the rows that
a consumer received.

This tier has no compacted topic. The tests therefore also scan generated logs in which, as after
compaction, segments end above their last record.
"""

from __future__ import annotations

import json
import logging
import tempfile
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.errors import CorruptSegmentError, DataLossError
from kts_source.layout.find_layout import find_layout
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.store.local_store import LocalStore
from segment_format.record.records import iter_batches
from segment_format.testing import BuiltLog, LocalTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import (
    ISOLATION_LEVELS,
    LOCAL_TIER,
    SPARK_SCHEMA,
    IsolationLevel,
    assert_same_rows,
    expected_table,
)
from tests.kts_source.planning.scanning import run, scan
from tests.log_strategies import logs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa

    from segment_format.testing import SegmentFiles

TOPICS = ("codecs", "txn")
EXPECTED = LOCAL_TIER / "expected"
LAYOUT = "local-tiered-storage"


def make_options(path: Path | str, topic: str, **options: str) -> dict[str, str]:
    return {"path": str(path), "layout": LAYOUT, "subscribe": topic, **options}


def make_local_options(topic: str, **options: str) -> dict[str, str]:
    return make_options(LOCAL_TIER / "tier", topic, includeHeaders="true", **options)


def read_summaries() -> Iterable[tuple[str, dict[str, Any]]]:
    document = json.loads((EXPECTED / "summary.json").read_text())
    return [
        (topic["topic"], partition)
        for topic in document["topics"]
        for partition in topic["partitions"]
    ]


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_scan_returns_expected_rows(topic: str, isolation_level: IsolationLevel) -> None:
    table = scan(make_local_options(topic, isolationLevel=isolation_level))
    assert table.schema == SPARK_SCHEMA
    assert_same_rows(table, expected_table(topic, isolation_level, folder=EXPECTED))


@pytest.mark.parametrize("size", ["1", "1000", "16384", "100k", "1g"])
@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_scan_rows_do_not_depend_on_task_size(
    topic: str, isolation_level: IsolationLevel, size: str
) -> None:
    options = make_local_options(topic, isolationLevel=isolation_level, targetPartitionBytes=size)
    plan = plan_scan(parse_options(options))
    expected = expected_table(topic, isolation_level, folder=EXPECTED)
    assert_same_rows(run(plan, options), expected)
    assert (len(plan.tasks) == 1) == (size == "1g")


@pytest.mark.parametrize(
    ("topic", "partition"),
    read_summaries(),
    ids=[f"{t}-{p['partition']}" for t, p in read_summaries()],
)
def test_described_segments_match_broker_metadata(topic: str, partition: dict[str, Any]) -> None:
    store, layout = LocalStore(LOCAL_TIER / "tier"), find_layout(LAYOUT)
    (folder,) = layout.topic_folders(store, "", topic)
    listing = layout.list_partition(store, folder, partition["partition"])
    segments = [layout.describe(store, segment) for segment in listing.segments]
    assert listing.orphans == ()
    assert [
        {
            "id": segment.segment_id,
            "base_offset": segment.start_offset,
            "end_offset": segment.end_offset,
            "leader_epochs": {str(e.epoch): e.start_offset for e in segment.leader_epochs},
            "size": segment.objects.size_in_bytes,
            "max_timestamp_ms": segment.max_timestamp_ms,
        }
        for segment in segments
    ] == [
        {
            name: uploaded[name]
            for name in (
                "id",
                "base_offset",
                "end_offset",
                "leader_epochs",
                "size",
                "max_timestamp_ms",
            )
        }
        for uploaded in partition["remote_segments"]
    ]


@pytest.mark.parametrize(
    ("level", "end"),
    [
        ("read_uncommitted", "tier_end_offset"),
        ("read_committed", "tier_last_stable_offset"),
    ],
)
@pytest.mark.parametrize("topic", TOPICS)
def test_plan_bounds_equal_offsets_of_broker(topic: str, level: str, end: str) -> None:
    plan = plan_scan(parse_options(make_local_options(topic, isolationLevel=level)))
    bounds = {
        partition.partition: (partition.start, partition.stop) for partition in plan.partitions
    }
    assert bounds == {
        partition["partition"]: (partition["log_start_offset"], partition[end])
        for name, partition in read_summaries()
        if name == topic
    }


def write_and_read(
    path: Path | str, log: BuiltLog, level: str, **options: str
) -> list[tuple[int, bytes]]:
    writer = LocalTierWriter(path)
    for segment in log.segments:
        writer.write_segment(segment)
    return sort_rows(scan(make_options(path, "topic", isolationLevel=level, **options)))


def sort_rows(table: pa.Table) -> list[tuple[int, bytes]]:
    return sorted(
        zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True),
        key=lambda row: row[0],
    )


@given(
    log=logs(transactions=True, compaction=True),
    level=st.sampled_from(ISOLATION_LEVELS),
    size=st.sampled_from(["1", "200", "1g"]),
)
@settings(max_examples=60, deadline=None)
def test_scan_of_random_log_returns_expected_rows(log: BuiltLog, level: str, size: str) -> None:
    expected = [(row.offset, row.value) for row in log.rows(level)]
    gaps = [
        f"[{low}, {high.base_offset})"
        for before, high in pairwise(log.segments)
        if (low := find_last_offset(before) + 1) < high.base_offset
    ]
    with tempfile.TemporaryDirectory() as folder:
        error_text = ""
        try:
            rows = write_and_read(folder, log, level, targetPartitionBytes=size)
        except DataLossError as error:
            error_text = str(error)
            options = make_options(folder, "topic", isolationLevel=level, failOnDataLoss="false")
            rows = sort_rows(scan(options))
        except CorruptSegmentError as error:
            if "one bit of the base offset" not in str(error):
                raise
            # Here, the offset after a compacted range looks like an offset with a flipped bit.
            assert any(map(has_one_bit_gap_at_end, log.segments))
            return
    if not error_text or level == "read_uncommitted":
        assert rows == expected
    # If compaction removed the last records of a segment, the gap looks like a lost segment.
    assert not error_text or any(gap in error_text for gap in gaps), (gaps, error_text)
    plain = {row.offset for row in log.all_rows if row.transaction is None}
    assert [row for row in rows if row[0] in plain] == [row for row in expected if row[0] in plain]
    assert set(rows) <= set(expected)


def has_one_bit_gap_at_end(segment: SegmentFiles) -> bool:
    batches = list(iter_batches(segment.log))
    before = batches[-2].last_offset + 1 if len(batches) > 1 else segment.base_offset
    return (batches[-1].base_offset ^ before).bit_count() == 1


def find_last_offset(segment: SegmentFiles) -> int:
    return max(batch.last_offset for batch in iter_batches(segment.log))


def build_log_with_gap() -> BuiltLog:
    """Builds a log in which compaction removed offsets 2 to 6 of the first segment.

    Two transactions begin before this gap and end after it.
    """
    builder = LogBuilder()
    builder.send(1, [SimpleRecord(b"committed")])
    builder.send(2, [SimpleRecord(b"aborted")])
    builder.skip_offsets(5)
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.commit(1)
    builder.abort(2)
    return builder.build()


def test_transactions_across_unverifiable_gap_raise_data_loss_error_or_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = build_log_with_gap()
    with pytest.raises(DataLossError, match=r"\[2, 7\).*compaction"):
        write_and_read(tmp_path, log, "read_committed")
    options = make_options(tmp_path, "topic", failOnDataLoss="false")
    # A transaction may have ended in the gap. Then the marker after the gap ends a later
    # transaction of the same producer.
    assert sort_rows(scan({**options, "isolationLevel": "read_committed"})) == [(7, b"plain")]
    assert "offsets [2, 7)" in caplog.text
    assert "1 since offset 0; this run skips their records" in caplog.text
    assert [row for row, _ in sort_rows(scan({**options, "isolationLevel": "read_uncommitted"}))]
    (partition,) = plan_scan(parse_options(options)).partitions
    assert partition.surviving.holes == ()
    assert [(gap.start, gap.stop) for gap in partition.surviving.unverifiable] == [(2, 7)]


def test_markers_after_gap_are_read_from_log_if_transaction_index_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = LocalTierWriter(tmp_path)
    for segment in build_log_with_gap().segments:
        writer.write_segment(segment)
    (index,) = tmp_path.rglob("*.txnindex")
    index.write_bytes(b"\xff" * 34)
    options = make_options(tmp_path, "topic", isolationLevel="read_committed")
    caplog.set_level(logging.INFO, "kts_source")
    table = scan({**options, "failOnDataLoss": "false"})
    assert table["offset"].to_pylist() == [7]
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    (about_index,) = [text for text in warnings if "transaction index" in text]
    assert index.stem in about_index
    assert "topic topic, partition 0" in about_index
    assert "replaying batch headers" in caplog.text


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
@pytest.mark.parametrize("start", [0, 3, 4])
def test_lost_segment_raises_data_loss_error(tmp_path: Path, level: str, start: int) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"a")] * 4)
    builder.roll()
    builder.append([SimpleRecord(b"lost")] * 3)
    builder.roll()
    builder.append([SimpleRecord(b"b")])
    writer = LocalTierWriter(tmp_path)
    first, _, last = builder.build().segments
    for segment in (first, last):
        writer.write_segment(segment)
    options = make_options(
        tmp_path, "topic", isolationLevel=level, startingOffsets=f'{{"topic": {{"0": {start}}}}}'
    )
    with pytest.raises(DataLossError, match=r"\[4, 7\)"):
        scan(options)
    table = scan({**options, "failOnDataLoss": "false"})
    assert table["offset"].to_pylist() == [*range(start, 4), 7]


def test_transaction_that_may_end_in_a_gap_raises_data_loss_error(
    tmp_path: Path,
) -> None:
    builder = LogBuilder()
    builder.send(7, [SimpleRecord(b"a")] * 3)
    builder.roll()
    builder.abort(7)
    builder.roll()
    builder.append([SimpleRecord(b"b")])
    first, _, last = builder.build().segments
    writer = LocalTierWriter(tmp_path)
    for segment in (first, last):
        writer.write_segment(segment)
    options = make_options(
        tmp_path,
        "topic",
        isolationLevel="read_committed",
        endingOffsets='{"topic": {"0": 2}}',
    )
    with pytest.raises(DataLossError, match=r"\[3, 4\).*7 since offset 0"):
        scan(options)


def test_missing_segment_at_log_start_raises_data_loss_error(tmp_path: Path) -> None:
    builder = LogBuilder()
    for _ in range(3):
        builder.append([SimpleRecord(b"a"), SimpleRecord(b"b")])
        builder.roll()
    builder.delete_records_before(2)
    builder.append([SimpleRecord(b"c")])
    writer = LocalTierWriter(tmp_path)
    for segment in builder.build().segments:
        if segment.base_offset != 2:
            writer.write_segment(segment)
    with pytest.raises(DataLossError, match=r"\[2, 4\)"):
        scan(make_options(tmp_path, "topic"))
