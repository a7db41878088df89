"""Compares the committed offsets on a broker's disk with those that the broker reports.

The disk is copied while the broker runs, with a member of a group and with an open transaction, as
after a crash.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition

from kts_source.options import parse_options
from kts_source.planning.describe import OFFSETS_TOPIC, groups_on_disks
from tests.integration.admin import wait_until
from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.kafka_jars import NEWEST_KAFKA
from tests.needs import needs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

Offsets = dict[tuple[str, str, int], int]
"""Offsets by group, topic and partition."""
TOPIC, DELETED = "orders", "deleted"
PARTITIONS = 2
RECORDS = 20


def _consumer(cluster: Cluster, group: str, **settings: str) -> Consumer:
    common: dict[str, str | int] = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    return Consumer({**common, **{n.replace("_", "."): value for n, value in settings.items()}})


def _commit(cluster: Cluster, group: str, offset: int, topic: str = TOPIC, number: int = 0) -> None:
    consumer = _consumer(cluster, group)
    consumer.commit(offsets=[TopicPartition(topic, number, offset)], asynchronous=False)
    consumer.close()


def _join(cluster: Cluster, group: str, offset: int) -> Consumer:
    """Returns a member of a group of the new protocol (KIP-848), which has committed an offset."""
    consumer = _consumer(cluster, group, group_protocol="consumer")
    consumer.subscribe([TOPIC])
    wait_until(lambda: consumer.poll(0.5) is not None)
    consumer.commit(offsets=[TopicPartition(TOPIC, 1, offset)], asynchronous=False)
    return consumer


def _begin(cluster: Cluster, group: str, offset: int) -> Producer:
    """Returns a producer with an open transaction that has sent an offset of the group."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"of {group}", "log_level": 0}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(TOPIC, b"in a transaction")
    consumer = _consumer(cluster, group)
    offsets = [TopicPartition(TOPIC, 0, offset)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
    consumer.close()
    return producer


def _fill_new_protocol(cluster: Cluster) -> Consumer:
    left = _join(cluster, "848-left", 3)
    left.close()
    return _join(cluster, "848-live", 7)


def _fill_tombstones(cluster: Cluster) -> None:
    """Commits offsets and deletes them: of groups, of a partition, and of a topic."""
    for group in ("gone", "part-gone", "returned"):
        for number in range(PARTITIONS):
            _commit(cluster, group, 5, number=number)
    for topic in (TOPIC, DELETED):
        _commit(cluster, "topic-gone", 6, topic)
    client = cluster.admin.client()
    for future in client.delete_consumer_groups(["gone", "returned"]).values():
        future.result(60)
    cluster.admin.run_tool(
        *("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server"),
        *(cluster.bootstrap, "--delete-offsets", "--group", "part-gone", "--topic", f"{TOPIC}:0"),
    )
    cluster.admin.delete_topic(DELETED)
    _commit(cluster, "returned", 4)


def _fill_transactions(cluster: Cluster) -> Producer:
    for group in ("committed", "aborted", "pending", "replaced"):
        _commit(cluster, group, 1)
    _begin(cluster, "committed", 2).commit_transaction(60)
    _begin(cluster, "aborted", 2).abort_transaction(60)
    replaced = _begin(cluster, "replaced", 2)
    _commit(cluster, "replaced", 3)
    replaced.commit_transaction(60)
    return _begin(cluster, "pending", 2)


def _reported(cluster: Cluster) -> Offsets:
    """Returns the offsets of all groups, as the broker reports them."""
    client = cluster.admin.client()
    groups = [group.group_id for group in client.list_consumer_groups().result(60).valid]
    offsets: Offsets = {}
    for group in groups:
        (future,) = client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)]
        ).values()
        for each in future.result(60).topic_partitions:
            offsets[group, each.topic, each.partition] = each.offset
    return offsets


def _on_disk(disk: Path) -> Offsets:
    options: dict[str, Any] = {"path": str(disk), "layout": "kafka-logs", "endOfLog": "true"}
    options |= {"subscribe": OFFSETS_TOPIC, "isolationLevel": "read_uncommitted"}
    return {
        (each.group, each.topic, each.partition): found.offset
        for each, found in groups_on_disks(parse_options(options)).items()
    }


@pytest.fixture(scope="module")
def offsets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Offsets, Offsets]:
    """Returns the offsets on the disk, and those that the broker reports."""
    needs("java", "mvn")
    folder = tmp_path_factory.mktemp("groups")
    with Cluster(folder / "cluster", ClusterSpec(version=NEWEST_KAFKA, settings=BUSY)) as cluster:
        for topic in (TOPIC, DELETED):
            cluster.admin.create_topic(topic, PARTITIONS)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"value", partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        live = _fill_new_protocol(cluster)
        _fill_tombstones(cluster)
        pending = _fill_transactions(cluster)
        reported = _reported(cluster)
        others = shutil.ignore_patterns("*.tmp", "*.deleted", "__[rt]*", "__cluster*", f"{TOPIC}*")
        shutil.copytree(cluster.nodes[1].logs, folder / "disk", ignore=others)
        pending.abort_transaction(60)
        live.close()
    return _on_disk(folder / "disk"), reported


def _of(offsets: Offsets, *groups: str) -> Offsets:
    return {key: offset for key, offset in offsets.items() if key[0] in groups}


def test_disk_has_offsets_of_consumer_protocol(offsets: tuple[Offsets, Offsets]) -> None:
    for found in offsets:
        assert _of(found, "848-left", "848-live") == {
            ("848-left", TOPIC, 1): 3,
            ("848-live", TOPIC, 1): 7,
        }


def test_deleted_offsets_on_disk_are_dropped(offsets: tuple[Offsets, Offsets]) -> None:
    for found in offsets:
        assert _of(found, "gone", "part-gone", "returned", "topic-gone") == {
            ("part-gone", TOPIC, 1): 5,
            ("returned", TOPIC, 0): 4,
            ("topic-gone", TOPIC, 0): 6,
        }


def test_transactional_offsets_on_disk_count_if_committed(
    offsets: tuple[Offsets, Offsets],
) -> None:
    for found in offsets:
        assert _of(found, "committed", "aborted", "pending", "replaced") == {
            ("committed", TOPIC, 0): 2,
            ("aborted", TOPIC, 0): 1,
            ("pending", TOPIC, 0): 1,
            ("replaced", TOPIC, 0): 3,
        }


def test_disk_has_all_offsets_that_the_broker_reports(offsets: tuple[Offsets, Offsets]) -> None:
    found, reported = offsets
    assert found == reported
    assert len(found) == 9
