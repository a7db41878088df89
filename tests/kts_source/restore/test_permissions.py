"""Tests that missing permissions in the new cluster are found before the first change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import BrokerAccessError
from kts_source.restore.committing import commit_restore
from tests.golden_data import tier_options
from tests.kts_source.restore.world import VERIFIED, serving_cluster, state_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kts_source.restore.world import NewCluster

READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 3, 4, 8, 10, 11, 12
EPOCHS = tier_options("epochs")


def _command(cluster: NewCluster, flags: str) -> str:
    return (
        f"kafka-acls.sh --bootstrap-server {cluster.brokers.bootstrap} --add --allow-principal"
        f" User:NAME {flags}"
    )


def test_plan_lists_permissions_of_all_steps_as_commands(cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    cluster.brokers.denied = {
        "epochs": {READ, DESCRIBE_CONFIGS, ALTER_CONFIGS},
        "cluster": {IDEMPOTENT_WRITE},
    }
    topic = "--operation Read --operation DescribeConfigs --operation AlterConfigs --topic epochs"
    flags = [topic, "--operation IdempotentWrite --cluster"]
    refusals = cluster.plan(EPOCHS).refusals
    assert [text.split(". Run it")[0] for text in refusals] == [
        f"permissions are missing: {_command(cluster, each)}" for each in flags
    ]
    assert cluster.brokers.producer_ids == {}
    cluster.brokers.denied = {}
    assert cluster.plan(EPOCHS).refusals == ()


def test_plan_with_undescribable_topic_is_refused(cluster: NewCluster) -> None:
    cluster.add_topic("epochs")
    cluster.brokers.denied = {"epochs": {DESCRIBE}}
    (text,) = cluster.plan(EPOCHS).refusals
    operations = ("Read", "Describe", "DescribeConfigs", "AlterConfigs")
    flags = " ".join(f"--operation {name}" for name in operations)
    assert _command(cluster, f"{flags} --topic epochs") in text


def test_plan_with_zero_copy_needs_permissions_on_metadata_topic(
    tmp_path: Path, cluster: NewCluster
) -> None:
    ready = serving_cluster(tmp_path / "serving", cluster.brokers, "epochs")
    ready.brokers.denied = {"__remote_log_metadata": {WRITE}}
    command = _command(ready, "--operation Write --topic __remote_log_metadata")
    assert any(command in text for text in ready.plan(EPOCHS, zero_copy=True).refusals)


def test_commit_without_permissions_changes_nothing(restored: NewCluster) -> None:
    restored.brokers.denied = {
        "orders": {ALTER_CONFIGS},
        "a group": {READ},
        "cluster": {IDEMPOTENT_WRITE},
    }
    journal = restored.plan_file.with_name("plan.json.journal")
    before = journal.read_text()
    groups = {name: {"orders": {0: 3}} for name in ("readers", "a group")}
    with pytest.raises(BrokerAccessError, match="so this run changed nothing") as caught:
        _commit(restored, groups)
    for flags in (
        "--operation AlterConfigs --topic orders",
        "--operation Read --group 'a group'",
        "--operation IdempotentWrite --cluster",
    ):
        assert _command(restored, flags) in str(caught.value)
    assert "readers" not in str(caught.value)
    assert journal.read_text() == before
    assert restored.brokers.committed == {}
    assert restored.brokers.producer_ids == {}
    assert restored.brokers.configs["retention.ms"] == "-1"
    restored.brokers.denied = {}
    _commit(restored, groups)
    assert state_of(restored)[-3:-1] == (VERIFIED, "committed")


def test_commit_needs_only_permissions_that_it_uses(restored: NewCluster) -> None:
    journal = restored.plan_file.with_name("plan.json.journal")
    steps = [json.loads(line) for line in journal.read_text().splitlines()]
    steps = [{**step, "maxProducerId": -1} if "maxProducerId" in step else step for step in steps]
    journal.write_text("".join(json.dumps(step) + "\n" for step in steps))
    restored.brokers.denied = {
        "orders": {DESCRIBE_CONFIGS, ALTER_CONFIGS},
        "cluster": {IDEMPOTENT_WRITE},
    }
    commit_restore(str(restored.plan_file), restored.target, configs={}, groups={})
    assert state_of(restored)[-2] == "committed"


def _commit(cluster: NewCluster, groups: dict[str, dict[str, dict[int, int]]]) -> None:
    configs = {"retention.ms": "1000"}
    commit_restore(str(cluster.plan_file), cluster.target, configs=configs, groups=groups)
