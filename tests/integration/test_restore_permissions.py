"""Tests that a restore finds missing permissions before it changes a real cluster, and that the
commands that it prints add them.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition

from kts_source.errors import BrokerAccessError
from kts_source.restore.committing import commit_restore, status_restore
from kts_source.restore.restore_plan import plan_restore
from kts_source.restore.writing import write_restore
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.integration.certificates import make_certificates
from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.kafka_jars import NEWEST_KAFKA
from tests.needs import needs

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.restore.restore_plan import RestorePlan

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

USER, PASSWORD = "restorer", "a password"
GROUPS = ("readers", "a group")
READY = {
    "cleanup_policy": "delete",
    "local_retention_bytes": "-2",
    "retention_ms": "-1",
    "retention_bytes": "-1",
    "remote_storage_enable": "false",
}
OLD_PRODUCER = 9


def _write_tier(folder: Path) -> dict[str, str]:
    """Writes a topic with a transaction. Returns the options of the tier."""
    builder = LogBuilder(leader_epoch=0)
    builder.append([SimpleRecord(b"value", b"key")])
    builder.send(OLD_PRODUCER, [SimpleRecord(b"in a transaction", b"key")])
    builder.commit(OLD_PRODUCER)
    builder.roll()
    writer = LocalTierWriter(folder, topic="orders")
    for files in builder.build().segments:
        if files.log:
            writer.write_segment(files)
    return {"path": str(folder), "layout": "local-tiered-storage", "subscribe": "orders"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Returns a cluster of one node, which is not running, with permissions."""
    needs("java", "mvn")
    folder = tmp_path_factory.mktemp("permissions")
    spec = ClusterSpec(
        version=NEWEST_KAFKA,
        certificates=make_certificates(folder / "certificates"),
        passwords={USER: PASSWORD},
        has_acls=True,
        settings=BUSY,
    )
    return Cluster(folder / "cluster", spec)


def _login(cluster: Cluster) -> dict[str, str]:
    assert cluster.spec.certificates is not None
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "kafka.bootstrap.servers": cluster.address("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(cluster.spec.certificates.authority),
    }


def _run_commands(cluster: Cluster, texts: list[str]) -> list[str]:
    """Runs the commands of `kafka-acls.sh` in messages as an administrator. Returns their flags."""
    found = [
        command
        for text in texts
        for command in re.findall(r"kafka-acls\.sh (.*?)(?: &&|\. Run it)", text)
    ]
    tool = "org.apache.kafka.tools.AclCommand"
    for command in found:
        words = shlex.split(command.replace("NAME", USER))
        assert words[:2] == ["--bootstrap-server", cluster.address("SASL_SSL")]
        words[1] = cluster.bootstrap  # its clients are administrators
        cluster.admin.run_tool(tool, *words)
    return [command.split("User:NAME ")[1] for command in found]


def _accepted_plan(cluster: Cluster, source: dict[str, str], login: dict[str, str]) -> RestorePlan:
    """Plans without permissions, adds those that the plan lists, and raises the leader epoch."""
    plan = plan_restore(source, login)
    assert _run_commands(cluster, list(plan.refusals)) == [
        "--operation Read --operation Describe --operation DescribeConfigs --operation"
        " AlterConfigs --topic orders",
        "--operation IdempotentWrite --cluster",
    ]
    plan = plan_restore(source, login)
    assert len(plan.refusals) == 1
    assert "leader epoch 0 of the new cluster is not above" in plan.refusals[0]
    cluster.restart_node(1)
    return plan_restore(source, login)


def test_restore_lists_missing_permissions_before_any_change(
    secured: Cluster, tmp_path: Path
) -> None:
    source = _write_tier(tmp_path / "old-tier")
    plan_file = tmp_path / "plan.json"
    login = _login(secured)
    configs = {"retention.ms": "604800000"}
    groups = {group: {"orders": {0: 2}} for group in GROUPS}
    with secured as cluster:
        cluster.admin.create_topic("orders", 1, replicas=(1,), **READY)
        plan = _accepted_plan(cluster, source, login)
        assert plan.refusals == ()
        plan_file.write_text(plan.to_json())
        cluster.nodes[1].stop()
        write_restore(str(plan_file), source, str(cluster.nodes[1].logs))
        cluster.start_node(1)
        with pytest.raises(BrokerAccessError, match="so this run changed nothing") as caught:
            commit_restore(str(plan_file), login, configs=configs, groups=groups)
        assert _committed(cluster) == {}
        assert cluster.admin.topic_config("orders", "retention.ms") == "-1"
        assert status_restore(str(plan_file))[-1].startswith("next: start broker 1")
        assert _run_commands(cluster, [str(caught.value)]) == [
            "--operation Read --group 'a group' --group readers"
        ]
        commit_restore(str(plan_file), login, configs=configs, groups=groups)
        assert _committed(cluster) == dict.fromkeys(GROUPS, 2)
        assert cluster.admin.topic_config("orders", "retention.ms") == configs["retention.ms"]
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
        producer.produce("orders", b"new")
        assert producer.flush(60) == 0


def _committed(cluster: Cluster) -> dict[str, int]:
    """Returns the committed offset of each group in `orders`, as brokers report it."""
    offsets = {}
    for group in GROUPS:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition("orders", 0)])
        (future,) = cluster.admin.client().list_consumer_group_offsets([asked]).values()
        (partition,) = future.result(60).topic_partitions
        if partition.offset >= 0:
            offsets[group] = partition.offset
    return offsets
