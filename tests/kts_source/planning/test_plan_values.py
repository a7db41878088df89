"""Checks that plans can be explained, limited, stored and replayed, and contain no secrets."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import kts_source
from kts_source.errors import (
    ArchivedObjectError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    PlanTooLargeError,
)
from kts_source.options import parse_options
from kts_source.planning.estimate import Price, estimate
from kts_source.planning.planner import check_plan, plan_scan
from kts_source.planning.scan_plan import ScanPlan
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task import ScanTask
from kts_source.secret import Secret
from kts_source.store.local_store import LocalStore
from kts_source.store.open_store import open_store
from kts_source.tier import Tier, open_tier
from segment_format.index.sparse_indexes import TimeIndex
from tests.golden_data import (
    KEYS,
    TIER,
    TOPICS,
    assert_same_rows,
    expected_table,
    partition_summaries,
    tier_options,
)
from tests.kts_source.classed_store import ClassedStore
from tests.kts_source.planning.scanning import run, scan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("topic", TOPICS)
def test_plan_is_unchanged_after_a_json_round_trip(topic: str) -> None:
    plan = kts_source.plan(tier_options(topic, targetPartitionBytes="50k"))
    parsed = ScanPlan.from_json(plan.to_json())
    assert parsed.to_json() == plan.to_json()
    assert parsed.partitions == plan.partitions
    assert [len(task.slices) for task in parsed.tasks] == [len(task.slices) for task in plan.tasks]


def test_plan_file_replays_scan(tmp_path: Path) -> None:
    plan_file = tmp_path / "plan.json"
    options = tier_options(["txn", "encrypted"], includeHeaders="true")
    plan_file.write_text(kts_source.plan(options).to_json())
    replay = {**options, "planFile": str(plan_file)}
    table = run(kts_source.plan(replay), replay)
    txn = table.filter([name == "txn" for name in table["topic"].to_pylist()])
    assert_same_rows(txn, expected_table("txn", "read_committed"))


def test_replay_raises_error_if_an_object_changed_or_is_missing(tmp_path: Path) -> None:
    tier = shutil.copytree(TIER, tmp_path / "tier")
    options = {**tier_options("codecs"), "path": str(tier)}
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(kts_source.plan(options).to_json())
    replay = {**options, "planFile": str(plan_file)}
    log = sorted(tier.glob("tiered/codecs-*/0/*.log"))[1]
    log.write_bytes(log.read_bytes()[:-1] + b"x")
    with pytest.raises(ObjectChangedError, match=re.escape(log.name)):
        kts_source.plan(replay)
    log.unlink()
    with pytest.raises(ObjectNotFoundError, match=re.escape(log.name)):
        kts_source.plan(replay)


def test_replay_detects_changed_index_only_if_tasks_read_it(tmp_path: Path) -> None:
    tier = shutil.copytree(TIER, tmp_path / "tier")
    for size, is_found in (("100k", True), ("1g", False)):
        options = {**tier_options("codecs", targetPartitionBytes=size), "path": str(tier)}
        plan_file = tmp_path / f"{size}.json"
        plan_file.write_text(kts_source.plan(options).to_json())
        index = sorted(tier.glob("tiered/codecs-*/0/*.indexes"))[1]
        data = index.read_bytes()
        index.write_bytes(data + b"x")
        replay = {**options, "planFile": str(plan_file)}
        if is_found:
            with pytest.raises(ObjectChangedError, match=re.escape(index.name)):
                kts_source.plan(replay)
        else:
            kts_source.plan(replay)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":9}', '{"version":4,"segments":[{}]}'])
def test_invalid_plan_file_raises_invalid_option_error(tmp_path: Path, text: str) -> None:
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(text)
    with pytest.raises(InvalidOptionError, match="plan"):
        kts_source.plan(tier_options("codecs", planFile=str(plan_file)))


def test_plan_and_tasks_contain_no_private_key() -> None:
    options = tier_options(
        ["encrypted", "evolved"],
        storageOptions='{"auto_mkdir":false}',
    )
    key = (KEYS / "key1.private.pem").read_text()
    body = "".join(key.split("\n")[1:3])
    plan = kts_source.plan(options)
    for text in (plan.to_json(), plan.explain(), repr(plan)):
        assert body[:40] not in text
        assert "private" not in text
    for task in plan.tasks:
        assert body[:40].encode() not in pickle.dumps(task)


def test_explain_names_partitions_and_skipped_segments() -> None:
    text = kts_source.plan(tier_options(["trimmed", "txn", "crashed"])).explain()
    assert "trimmed-0" in text
    assert "open transaction of producer 6 since offset 3675" in text
    assert "its offsets are read from another segment" in text
    assert "no .rsm-manifest" in text
    assert "requests" in text
    assert "$" in text


def test_explain_reports_segments_skipped_by_where() -> None:
    segments = list(TIER.glob("tiered/codecs-*/0/*.log"))
    plain = kts_source.plan(tier_options("codecs"))
    assert "where" not in plain.explain()
    text = kts_source.plan(tier_options("codecs", where="offset BETWEEN 200 AND 249")).explain()
    assert text.count("skipped by where") == len(segments) - 1
    assert f"where skips {len(segments) - 1} segments" in text
    assert "narrows 1 by offsets" in text
    assert "where leaves [200, 250)" in text
    by_rows = kts_source.plan(tier_options("codecs", where="value LIKE '%x%'")).explain()
    assert "where skips 0 segments of 0 bytes and narrows 0" in by_rows
    assert "rows of the others are decided by the tasks" in by_rows


class RemoteStore(LocalStore):
    """A local store that planner and reader treat like a remote object store."""

    is_near = False


@pytest.mark.parametrize("topic", ["codecs", "evolved", "wide"])
@pytest.mark.parametrize("size", ["40k", "1g"])
def test_estimate_matches_requests_and_bytes_of_the_scan(topic: str, size: str) -> None:
    options = tier_options(topic, targetPartitionBytes=size)
    plan = kts_source.plan(options)
    expected = estimate(plan.tasks)
    store = RemoteStore(TIER)
    before = store.counters
    run(plan, options, Tier(store))
    work = store.counters - before
    # If no index entry follows a cut, the slice is empty, and the scan reads only the index.
    assert work.requests <= expected.requests
    assert work.requests == expected.requests or size == "40k"
    # A slice that begins at a cut reads up to one chunk more than its nominal bytes.
    chunk = 16384 + 64
    slices = sum(len(task.slices) for task in plan.tasks)
    assert abs(work.bytes - expected.bytes) <= chunk * slices
    if size == "1g":
        assert work.bytes == expected.bytes


def test_plan_that_exceeds_limits_raises_plan_too_large_error() -> None:
    with pytest.raises(PlanTooLargeError, match="maxPlanBytes=1000;"):
        kts_source.plan(tier_options("codecs", maxPlanBytes="1000"))
    with pytest.raises(PlanTooLargeError, match="maxPlanRequests=1;"):
        kts_source.plan(tier_options("codecs", maxPlanRequests="1"))
    kts_source.plan(tier_options("codecs", maxPlanBytes="1g", maxPlanRequests="1000"))


def test_check_plan_raises_archived_object_error_for_archived_object() -> None:
    plan = kts_source.plan(tier_options("codecs"))
    (task,) = plan.tasks
    task_slice = task.slices[1]
    cold = replace(
        task_slice.objects, log=replace(task_slice.objects.log, storage_class="DEEP_ARCHIVE")
    )
    frozen = ScanTask((task.slices[0], replace(task_slice, objects=cold)))
    options = parse_options(tier_options("codecs"))
    with pytest.raises(ArchivedObjectError, match=re.escape(task_slice.objects.log.key)):
        check_plan(replace(plan, tasks=(frozen,)), options, open_store(TIER.as_uri(), Secret({})))


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE", "Archive"])
def test_plan_with_archived_object_in_listing_raises_error_with_names(storage_class: str) -> None:
    with pytest.raises(ArchivedObjectError) as error:
        kts_source.plan(tier_options("codecs"), ClassedStore(log=storage_class))
    names = [path.name for path in TIER.glob("tiered/codecs-*/0/*.log")]
    assert f"{len(names)} objects" in str(error.value)
    assert all(name in str(error.value) for name in names)
    sliced = tier_options("codecs", targetPartitionBytes="100k")
    with pytest.raises(ArchivedObjectError, match=r"\.indexes"):
        kts_source.plan(sliced, ClassedStore(indexes=storage_class))
    # Tasks of complete segments read no index.
    kts_source.plan(tier_options("codecs"), ClassedStore(indexes=storage_class))


def test_explain_reports_requests_and_bytes_by_storage_class() -> None:
    plan = kts_source.plan(tier_options("codecs"), ClassedStore(log="GLACIER_IR"))
    work = estimate(plan.tasks)
    text = plan.explain()
    assert f"  GLACIER_IR: {work.requests:,} requests, {work.bytes:,} bytes" in text
    assert "STANDARD" not in text
    prices = {
        "STANDARD": Price(1e9, 1e9, 1e9),
        "GLACIER_IR": Price(2_000_000.0, 1024.0, 512.0),
    }
    dollars = 2 * work.requests + work.bytes / (1 << 20) * 1.5
    assert f"about ${dollars:.4f}" in plan.explain(prices)


def test_cost_is_computed_from_price_table() -> None:
    work = estimate(kts_source.plan(tier_options("codecs")).tasks)
    prices = {"STANDARD": Price(1_000_000.0, 0.0, 0.0)}
    assert work.cost(prices) == pytest.approx(work.requests)
    plan = kts_source.plan(tier_options("codecs"))
    assert f"about ${work.requests:.4f}" in plan.explain(prices)
    prices = {"STANDARD": Price(0.0, 1024.0, 1024.0)}
    assert work.cost(prices) == pytest.approx(work.bytes / (1 << 30) * 2048)


@pytest.mark.parametrize("topic", [topic for topic in TOPICS if topic != "recreated"])
def test_describe_equals_golden_summary(topic: str) -> None:
    partitions = {
        partition.partition: partition
        for partition in kts_source.describe(tier_options(topic)).partitions
    }
    for number, summary in partition_summaries(topic).items():
        if summary["tier_end_offset"] is None:
            assert number not in partitions
            continue
        partition = partitions[number]
        assert partition.log_start == summary["log_start_offset"]
        assert partition.tier_end == summary["tier_end_offset"]
        assert partition.last_stable_offset == summary["tier_last_stable_offset"]
        assert partition.tier_end_timestamp_ms == summary["remote_segments"][-1]["max_timestamp_ms"]
        assert ("open transaction" in partition.reason) == bool(summary["undecided_in_tier"])


@pytest.mark.parametrize("topic", ["encrypted", "txn", "codecs"])
def test_last_stable_timestamp_is_from_a_batch_below_last_stable_offset(topic: str) -> None:
    options = parse_options(tier_options(topic))
    tier = open_tier(options)
    reader = SegmentSource(tier, options.key_ring.loaded())
    side_files = SideFiles(reader, max_batch_bytes=1 << 30)
    marks = kts_source.describe(options, tier.store).partitions
    for mark, partition in zip(marks, plan_scan(options, tier).partitions, strict=True):
        below = [
            span for span in partition.surviving.ranges if span.start < mark.last_stable_offset
        ]
        segment = below[-1].segment
        stamps = [
            batch.max_timestamp
            for batch in side_files.batches(segment, 0)
            if batch.last_offset < mark.last_stable_offset
        ]
        timestamp = mark.last_stable_timestamp_ms
        assert timestamp is not None
        assert max(stamps[: stamps.index(timestamp) + 1]) == timestamp
        if mark.last_stable_offset == mark.tier_end:
            assert timestamp == max(stamps) == mark.tier_end_timestamp_ms


def test_last_stable_timestamp_ignores_index_entry_at_last_stable_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = 3675
    index = TimeIndex(0, np.array([5, 6, 7]), np.array([end - 2, end - 1, end]))
    monkeypatch.setattr(SideFiles, "time_index", lambda *_: index)
    mark = kts_source.describe(tier_options("txn")).partitions[0]
    assert (mark.last_stable_offset, mark.last_stable_timestamp_ms) == (end, 6)


def test_last_stable_timestamp_is_none_without_time_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SideFiles, "time_index", lambda *_: None)
    marks = {
        partition.partition: partition
        for partition in kts_source.describe(tier_options("txn")).partitions
    }
    assert marks[0].last_stable_offset < marks[0].tier_end
    assert marks[0].last_stable_timestamp_ms is None
    assert marks[1].last_stable_timestamp_ms == marks[1].tier_end_timestamp_ms


def test_arrow_table_of_describe_contains_holes(tmp_path: Path) -> None:
    tier = shutil.copytree(TIER, tmp_path / "tier")
    stem = sorted(tier.glob("tiered/codecs-*/0/*.log"))[1].stem
    for path in tier.glob(f"tiered/codecs-*/0/{stem}.*"):
        path.unlink()
    table = kts_source.describe({**tier_options(["codecs", "txn"]), "path": str(tier)}).to_arrow()
    assert table["topic"].to_pylist() == ["codecs", "txn", "txn"]
    assert table["holes"].to_pylist() == [[[5841, 10634]], [], []]


def test_option_include_lineage_adds_segment_and_batch_of_each_record() -> None:
    table = scan(tier_options("epochs", includeLineage="true"))
    expected = expected_table("epochs", "read_committed")
    assert_same_rows(table.select(expected.column_names[:-1]), expected)
    segments = {
        entry["id"]: (entry["base_offset"], entry["end_offset"])
        for entry in partition_summaries("epochs")[0]["remote_segments"]
    }
    from tests.golden_data import expected_records

    epochs = dict(
        zip(
            expected_records("epochs")["offset"].to_pylist(),
            expected_records("epochs")["leader_epoch"].to_pylist(),
            strict=True,
        )
    )
    for row in table.to_pylist():
        low, high = segments[row["segmentId"]]
        assert low <= row["batchBaseOffset"] <= row["offset"] <= high
        assert row["leaderEpoch"] == epochs[row["offset"]]
        assert row["codec"] in {"none", "gzip", "snappy", "lz4", "zstd"}


LINEAGE = (
    *("leaderEpoch", "producerId", "producerEpoch", "sequence"),
    *("isTransactional", "batchBaseOffset", "codec", "segmentId"),
)


def negative_to_none(number: int) -> int | None:
    """Converts -1, which Kafka writes for missing numbers, to `None`."""
    return None if number < 0 else number


@pytest.mark.parametrize("topic", ["txn", "epochs", "encrypted", "codecs"])
def test_lineage_columns_equal_batch_headers(topic: str) -> None:
    columns = ("offset", "partition", *LINEAGE)
    options = tier_options(topic, columns=",".join(columns), isolationLevel="read_uncommitted")
    plan = kts_source.plan(options)
    reader = SegmentSource(
        Tier(open_store(TIER.as_uri(), Secret({}))), parse_options(options).key_ring.loaded()
    )
    side_files = SideFiles(reader, max_batch_bytes=1 << 30)
    expected = [
        (
            *(record.offset, partition.partition, record.leader_epoch),
            *map(negative_to_none, (batch.producer_id, batch.producer_epoch, record.sequence)),
            *(batch.is_transactional, batch.base_offset),
            *(batch.compression_type.name.lower(), span.segment.segment_id),
        )
        for partition in plan.partitions
        for span in partition.surviving.ranges
        for batch in side_files.batches(span.segment, 0)
        if not batch.is_control_batch
        for record in batch.records
        if span.start <= record.offset < span.stop
    ]
    table = run(plan, options)
    assert table.column_names == list(columns)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert rows == expected
    if topic == "txn":
        assert len({row[3] for row in rows}) > 3
        assert {row[6] for row in rows} == {True, False}


def test_lineage_columns_are_returned_only_if_selected_or_included() -> None:
    assert scan(tier_options("epochs", columns="segmentId")).column_names == ["segmentId"]
    assert not set(scan(tier_options("epochs")).column_names) & set(LINEAGE)
    everything = scan(tier_options("epochs", includeLineage="true")).column_names
    assert set(LINEAGE) < set(everything)


def test_plan_json_contains_version_and_segments() -> None:
    document = json.loads(kts_source.plan(tier_options("codecs")).to_json())
    assert document["version"] == 4
    assert len(document["segments"]) == 4
