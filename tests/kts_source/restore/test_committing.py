"""Tests the commit of a restore: new producer ids, committed group offsets and topic
configurations.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.cli.app import main
from kts_source.errors import BrokerError, InvalidOptionError, ObjectChangedError
from kts_source.restore import committing
from kts_source.restore.committing import commit_restore, status_restore
from kts_source.restore.journal import Journal
from kts_source.restore.restore_plan import read_plan
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import GOLDEN
from tests.kts_source.broker.fake_broker import FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.broker.fake_node import (
    ALTER_CONFIGS,
    COORDINATOR,
    OFFSET_COMMIT,
    PRODUCER_IDS,
    Fault,
)
from tests.kts_source.restore.world import (
    SMALL_LOG,
    START,
    VERIFIED,
    WRITTEN,
    state_of,
    write_small_tier,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from segment_format.testing import SegmentFiles
    from tests.kts_source.restore.world import NewCluster

GROUPS = GOLDEN / "group-offsets"
OLD_PRODUCER = 9
"""Highest producer id in the restored log."""
UNKNOWN_MEMBER, LOADING, NOT_COORDINATOR, INVALID_CONFIG = 25, 14, 16, 40


def _commit(
    cluster: NewCluster,
    configs: dict[str, str] | None = None,
    groups: dict[str, dict[str, dict[int, int]]] | None = None,
) -> list[str]:
    path = str(cluster.plan_file)
    return commit_restore(path, cluster.target, configs=configs or {}, groups=groups or {})


def test_commit_raises_producer_ids_above_restored_ids(restored: NewCluster) -> None:
    restored.brokers.fail(PRODUCER_IDS, Fault(code=LOADING), times=4)
    _commit(restored)
    assert restored.brokers.producer_ids[0] == OLD_PRODUCER + 1
    assert status_restore(str(restored.plan_file))[-2] == "committed"


def test_commit_requests_few_producer_ids_if_broker_already_assigns_higher_ones(
    restored: NewCluster,
) -> None:
    restored.brokers.producer_ids[0] = 5000
    _commit(restored)
    assert restored.brokers.producer_ids[0] <= 5000 + OLD_PRODUCER + 1


def test_group_offset_after_log_end_is_clamped_and_reported(restored: NewCluster) -> None:
    restored.brokers.fail(COORDINATOR, Fault(code=15))
    restored.brokers.fail(OFFSET_COMMIT, Fault(code=NOT_COORDINATOR), times=3)
    end = read_plan(str(restored.plan_file)).partitions[0].stop
    groups = {"readers": {"orders": {0: 3}}, "ahead": {"orders": {0: end + 7}}}
    report = _commit(restored, groups=groups)
    assert restored.brokers.committed == {
        ("readers", "orders", 0): 3,
        ("ahead", "orders", 0): end,
    }
    text = f"group ahead, orders-0: offset {end + 7} is outside the restored log [0, {end})"
    assert report[0].startswith(text)
    assert len(report) == 5


def test_group_offset_of_unrestored_partition_is_skipped_and_reported(
    restored: NewCluster,
) -> None:
    report = _commit(restored, groups={"readers": {"orders": {4: 3, 0: 2}, "other": {0: 1}}})
    assert restored.brokers.committed == {("readers", "orders", 0): 2}
    text = "is not committed, because the plan does not restore this partition"
    assert report[:2] == [
        f"group readers, orders-4: offset 3 {text}",
        f"group readers, other-0: offset 1 {text}",
    ]


def test_groups_from_disk_are_committed(
    tmp_path: Path, restored: NewCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = tmp_path / "groups.json"
    assert main(["groups", str(GROUPS / "disk"), "--layout", "kafka-logs", "--json"]) == 0
    groups.write_text(capsys.readouterr().out)
    commit = ["restore", "commit", str(restored.plan_file), "--groups", str(groups)]
    assert main([*commit, "--to", restored.brokers.bootstrap]) == 0
    assert "group g-live, orders-1: offset 5 is not committed" in capsys.readouterr().out
    expected = {
        (row["group"], "orders", 0): row["offset"]
        for row in json.loads((GROUPS / "committed.json").read_text())
        if row["partition"] == 0
    }
    assert expected
    assert restored.brokers.committed == expected


def test_commit_of_group_with_members_is_rejected(restored: NewCluster) -> None:
    restored.brokers.fail(OFFSET_COMMIT, Fault(code=UNKNOWN_MEMBER), times=2)
    with pytest.raises(InvalidOptionError, match="group readers has members"):
        _commit(restored, groups={"readers": {"orders": {0: 3}}})


def test_failed_group_commit_leaves_configurations_unchanged(restored: NewCluster) -> None:
    restored.brokers.fail(OFFSET_COMMIT, Fault(code=UNKNOWN_MEMBER), times=2)
    configs = {"retention.ms": "86400000", "cleanup.policy": "compact"}
    with pytest.raises(InvalidOptionError):
        _commit(restored, configs, {"readers": {"orders": {0: 3}}})
    assert restored.brokers.configs["retention.ms"] == "-1"
    _commit(restored, configs)
    assert restored.brokers.configs["retention.ms"] == "86400000"
    assert restored.brokers.configs["cleanup.policy"] == "compact"


def test_commit_with_invalid_configuration_fails(restored: NewCluster) -> None:
    restored.brokers.fail(ALTER_CONFIGS, Fault(code=INVALID_CONFIG))
    with pytest.raises(BrokerError, match="orders"):
        _commit(restored, {"retention.ms": "x"})
    assert status_restore(str(restored.plan_file))[-2] != "committed"


def test_commit_with_missing_rows_is_rejected_without_changes(restored: NewCluster) -> None:
    partition = restored.brokers.topics["orders"][1][0]
    partition.log = replace(partition.log, batches=partition.log.batches[:-1])
    with pytest.raises(InvalidOptionError, match="the restore is not verified: orders-0"):
        _commit(restored, {"retention.ms": "1"})
    assert restored.brokers.producer_ids == {}
    assert restored.brokers.configs["retention.ms"] == "-1"


def test_commit_continues_after_retention_removed_rows(restored: NewCluster) -> None:
    groups = {"readers": {"orders": {0: 3}}}
    restored.brokers.fail(ALTER_CONFIGS, Fault(code=INVALID_CONFIG))
    with pytest.raises(BrokerError):
        _commit(restored, {"retention.ms": "1"}, groups)
    partition = restored.brokers.topics["orders"][1][0]
    partition.log = replace(partition.log, batches=partition.log.batches[2:])
    report = _commit(restored, {"retention.ms": "1"}, groups)
    assert "the rows were compared before the commit began, and are not compared again" in report
    assert restored.brokers.configs["retention.ms"] == "1"
    assert status_restore(str(restored.plan_file))[-2] == "committed"


def test_commit_after_old_cluster_wrote_to_the_tier_changes_nothing(
    tmp_path: Path, restored: NewCluster
) -> None:
    tier = tmp_path / "tier"
    options = {"path": str(tier), "layout": "local-tiered-storage"}
    more: dict[str, Any] = {"configs": {"retention.ms": "1"}, "source": options}
    more["groups"] = {"readers": {"orders": {0: 3}}}
    plan = read_plan(str(restored.plan_file))
    # The new cluster uses the same tier. Its uploads do not count.
    new_writer = LocalTierWriter(tier, topic="orders", topic_id=plan.target_ids["orders"])
    new_writer.write_segment(_later_segment(plan.partitions[0].stop))
    old_writer = LocalTierWriter(tier, topic="orders", topic_id=plan.partitions[0].topic_id)
    uploaded = old_writer.write_segment(_later_segment(plan.partitions[0].stop))
    with pytest.raises(ObjectChangedError, match="perhaps because the old cluster still runs"):
        commit_restore(str(restored.plan_file), restored.target, **more)
    assert restored.brokers.committed == {}
    assert restored.brokers.producer_ids == {}
    assert restored.brokers.configs["retention.ms"] == "-1"
    assert status_restore(str(restored.plan_file))[-1].startswith("next: move the partitions")
    for key in uploaded.keys:
        (tier / key).unlink()
    report = commit_restore(str(restored.plan_file), restored.target, **more)
    assert not any("PATH is missing" in line for line in report)
    assert restored.brokers.committed == {("readers", "orders", 0): 3}


def test_commit_without_tier_reports_that_it_was_not_checked(restored: NewCluster) -> None:
    text = "the tier was not checked for new segments of the old cluster: PATH is missing"
    assert text in _commit(restored)


def test_holes_of_other_partitions_refuse_neither_write_nor_commit(
    tmp_path: Path, cluster: NewCluster
) -> None:
    builder = LogBuilder(leader_epoch=5)
    for _ in range(3):
        builder.append([SimpleRecord(b"value")])
        builder.roll()
    log = builder.build()
    topic_id = None
    for partition in (0, 1):
        writer = LocalTierWriter(
            tmp_path / "tier", topic="orders", partition=partition, topic_id=topic_id
        )
        topic_id = writer.topic_id
        for files in log.segments[:3]:
            if partition == 0 or files.base_offset != 1:
                writer.write_segment(files)
    tier = {"path": str(tmp_path / "tier"), "layout": "local-tiered-storage"}
    cluster.add_topic("orders")
    assert cluster.plan({**tier, "subscribe": "orders"}).refusals != ()
    assert cluster.plan({**tier, "assign": '{"orders": [0]}'}).refusals == ()
    cluster.write({**tier, "subscribe": "orders"})
    new_id, _ = cluster.brokers.topics["orders"]
    cluster.brokers.create("orders", [FakePartition(fake_log(log), epoch=100)], new_id)
    commit_restore(str(cluster.plan_file), cluster.target, configs={}, groups={}, source=tier)
    assert state_of(cluster)[-2] == "committed"


@pytest.mark.parametrize(
    ("selection", "is_selected"),
    [
        ({"subscribe": "orders"}, True),
        ({"assign": '{"orders": [0, 1]}'}, True),
        ({"assign": '{"orders": [1]}'}, False),
    ],
)
def test_data_in_partition_that_was_empty_in_plan_refuses_write_and_commit_if_selected(
    selection: dict[str, str], is_selected: bool, tmp_path: Path, cluster: NewCluster
) -> None:
    whole = write_small_tier(tmp_path / "tier", "orders", 1, 0)
    tier = {name: text for name, text in whole.items() if name != "subscribe"}
    (data,) = (tmp_path / "tier" / "tiered").glob("orders-*/0")
    data.rename(tmp_path / "later")
    cluster.add_topic("orders", partitions=2)
    assert cluster.plan({**tier, **selection}).refusals == ()

    def check(step: Callable[[], object]) -> None:
        (tmp_path / "later").rename(data)
        if is_selected:
            with pytest.raises(ObjectChangedError, match=r"the tier changed.*partition 0"):
                step()
            data.rename(tmp_path / "later")
            step()
        else:
            step()
            data.rename(tmp_path / "later")

    def commit() -> None:
        commit_restore(str(cluster.plan_file), cluster.target, configs={}, groups={}, source=tier)

    check(lambda: cluster.write(whole))
    cluster.brokers.topics["orders"][1][1].log = fake_log(SMALL_LOG)
    check(commit)
    assert state_of(cluster)[-2] == "committed"


def test_topic_that_was_created_again_after_write_is_not_committed(
    tmp_path: Path, restored: NewCluster
) -> None:
    source = {"path": str(tmp_path / "tier"), "layout": "local-tiered-storage"}
    (planned,) = read_plan(str(restored.plan_file)).partitions
    created_again = LocalTierWriter(tmp_path / "tier", topic="orders")
    created_again.write_segment(_later_segment(0))
    more: dict[str, Any] = {"configs": {}, "groups": {}}
    with pytest.raises(ObjectChangedError, match=f"again with id {created_again.topic_id}"):
        commit_restore(str(restored.plan_file), restored.target, source=source, **more)
    assert restored.brokers.producer_ids == {}
    chosen = {**source, "topicId": planned.topic_id}
    commit_restore(str(restored.plan_file), restored.target, source=chosen, **more)
    assert state_of(restored)[-2] == "committed"


def test_repeated_commit_refuses_a_topic_that_was_created_again(
    tmp_path: Path, restored: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise _CrashError

    with monkeypatch.context() as patched:
        patched.setattr(committing, "set_configs", crash)
        with pytest.raises(_CrashError):
            _commit(restored)
    source = {"path": str(tmp_path / "tier"), "layout": "local-tiered-storage"}
    more: dict[str, Any] = {"configs": {}, "groups": {"readers": {"orders": {0: 3}}}}
    topic_id, partitions = restored.brokers.topics["orders"]
    restored.brokers.create("orders", partitions)
    with pytest.raises(InvalidOptionError, match="deleted or created again"):
        commit_restore(str(restored.plan_file), restored.target, source=source, **more)
    assert restored.brokers.committed == {}
    restored.brokers.create("orders", partitions, topic_id)
    report = commit_restore(str(restored.plan_file), restored.target, source=source, **more)
    assert "the tier is not checked, because a commit began before" in report


def test_write_with_another_topic_id_than_the_plan_changes_nothing(
    tmp_path: Path, cluster: NewCluster
) -> None:
    writer = LocalTierWriter(tmp_path / "tier", topic="orders")
    writer.write_segment(_later_segment(0))
    source = {"path": str(tmp_path / "tier"), "layout": "local-tiered-storage"}
    cluster.add_topic("orders")
    assert cluster.plan({**source, "subscribe": "orders"}).refusals == ()
    other = LocalTierWriter(tmp_path / "tier", topic="orders")
    other.write_segment(_later_segment(0))
    before = cluster.files()
    with pytest.raises(InvalidOptionError, match=f"--topic-id chooses {other.topic_id}"):
        cluster.write({**source, "topicId": str(other.topic_id)})
    assert cluster.files() == {**before, ".lock": b""}


def _later_segment(base_offset: int) -> SegmentFiles:
    """Returns a segment after the restored ones."""
    builder = LogBuilder(leader_epoch=5, start_offset=base_offset)
    builder.append([SimpleRecord(b"later")])
    builder.roll()
    return builder.build().segments[0]


STEPS = ("verify_restore", "raise_producer_ids", "commit_offsets", "set_configs")


def test_commit_resumes_after_a_crash_at_any_step(
    restored: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crashes once before and once after each step, and runs the commit again each time."""
    configs = {"retention.ms": "86400000"}
    groups = {"readers": {"orders": {0: 3}}, "writers": {"orders": {0: 4}}}
    limit = passed = 0
    states: list[tuple[str, ...]] = []

    def crash_here() -> None:
        nonlocal passed
        passed += 1
        if passed > limit:
            raise _CrashError

    def crashing(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:  # noqa: ANN401
            crash_here()
            result = step(*args, **more)
            crash_here()
            return result

        return run

    for name in STEPS:
        monkeypatch.setattr(committing, name, crashing(getattr(committing, name)))
    monkeypatch.setattr(Journal, "add", crashing(Journal.add))
    while True:
        passed, limit = 0, limit + 1
        try:
            _commit(restored, configs, groups)
            break
        except _CrashError:
            states.append(state_of(restored))
    assert len(states) > 8
    whole = "written: 1 of 1 partitions"
    begun = "commit is not complete: it may have committed offsets and set configurations"
    assert [*dict.fromkeys(states)] == [
        (whole, WRITTEN, START),
        (
            *(whole, WRITTEN, VERIFIED),
            "next: move the partitions to their brokers, then kts restore commit",
        ),
        (
            *(whole, WRITTEN, VERIFIED, begun),
            "next: run kts restore commit again with the same arguments; do not start producers and"
            " consumers before it is complete",
        ),
        (
            *(whole, WRITTEN, VERIFIED, "committed"),
            "next: nothing; producers and consumers may start",
        ),
    ]
    assert status_restore(str(restored.plan_file))[-2] == "committed"
    assert restored.brokers.committed == {("readers", "orders", 0): 3, ("writers", "orders", 0): 4}
    assert restored.brokers.configs["retention.ms"] == "86400000"
    assert restored.brokers.producer_ids[0] > OLD_PRODUCER


class _CrashError(Exception):
    """Ends a commit like a crash, because no code catches it."""
