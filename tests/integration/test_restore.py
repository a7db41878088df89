"""Restores topics of a lost cluster into a new one, and compares what both clusters return to a
consumer.

The old cluster is stopped after it tiered its closed segments. Only rows with offsets in the tier
are expected in the new cluster.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kts_source.restore.committing import commit_restore, status_restore, verify_restore
from kts_source.restore.restore_plan import plan_restore
from kts_source.restore.writing import write_restore
from tests.integration.admin import wait_until
from tests.integration.broker import Broker, running_broker
from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.kafka_jars import KAFKA_VERSION, NEWEST_KAFKA, OLDEST_KAFKA
from tests.integration.served_rows import Row, consume_until
from tests.needs import needs

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.restore.restore_plan import RestorePlan
    from tests.integration.broker import PartitionOffsets

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

LEVELS = ("read_uncommitted", "read_committed")
LATE = b"late"
"""Value prefix of a transaction whose commit marker is not in the tier."""
READY = {
    "local_retention_bytes": "-2",
    "retention_ms": "-1",
    "retention_bytes": "-1",
}
NEW_NAME = "orders-restored"
SEED, OTHER = 3, 2
"""Nodes: the seed broker gets the restored files, then all partitions move to the other broker."""
PAIRS = [("orders", 0), ("orders", 1), ("moves", 0)]


def _producer(broker: Broker, **settings: str | int) -> Producer:
    # A batch must fit into a segment of 20,000 bytes.
    limits: dict[str, str | int] = {"batch.num.messages": 20, "log_level": 0}
    return Producer({"bootstrap.servers": broker.bootstrap, **limits, **settings})


def _write(producer: Producer, topic: str, partition: int, count: int, prefix: bytes) -> None:
    for number in range(count):
        producer.produce(
            topic,
            partition=partition,
            key=None if number % 7 == 0 else b"key %d" % (number % 20),
            value=None if number % 11 == 0 and prefix != LATE else prefix + b"x" * (number % 200),
            headers=[("h", b"%d" % number), ("h", None)] if number % 5 == 0 else None,
            timestamp=1_700_000_000_000 + number * 1000 - (number % 3) * 5000,
        )
    assert producer.flush(60) == 0


def _fill_plain(broker: Broker, prefix: bytes) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = _producer(broker, **{"compression.type": codec})
        for topic, partition in PAIRS:
            _write(producer, topic, partition, 150, prefix)


def _fill_transactions(broker: Broker) -> None:
    """Writes committed and aborted transactions, and one that is committed after all its segments
    were closed.
    """
    writers = []
    for number in range(2):
        writer = _producer(broker, **{"transactional.id": f"t{number}"})
        writer.init_transactions(60)
        writers.append(writer)
    for number in range(6):
        for writer in writers:
            writer.begin_transaction()
        for writer in writers:
            _write(writer, "moves", 0, 20, b"tx%d" % number)
        for position, writer in enumerate(writers):
            is_aborted = (number + position) % 3 == 0
            writer.abort_transaction(60) if is_aborted else writer.commit_transaction(60)
    writers[0].begin_transaction()
    _write(writers[0], "moves", 0, 20, LATE)
    _write(_producer(broker), "moves", 0, 600, b"plain" * 20)
    writers[0].commit_transaction(60)


@dataclass(frozen=True, slots=True)
class OldCluster:
    """A cluster that was lost after it tiered its closed segments.

    Attributes:
        tier: Folder of its tier. Tests copy it.
        served: Consumed rows by isolation level.
        ends: One past the last tiered offset of each partition.
        starts: Log start of each partition.
    """

    tier: Path
    served: dict[str, list[Row]]
    ends: PartitionOffsets
    starts: PartitionOffsets


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> OldCluster:
    """Fills a cluster and stops it."""
    needs("java", "mvn")
    folder = tmp_path_factory.mktemp("restore") / "old"
    with running_broker(folder) as broker:
        broker.create_topics({"orders": 2, "moves": 1})
        _fill_plain(broker, b"first")
        broker.delete_records({("orders", 1): 77})
    with running_broker(folder) as broker:  # a restart raises leader epochs
        _fill_plain(broker, b"second")
        _fill_transactions(broker)
        broker.wait_until_tiered(PAIRS)
        ends = {pair: at + 1 for pair, at in broker.offsets("latest-tiered").items()}
        starts = broker.offsets("earliest")
        ends = {pair: ends[pair] for pair in PAIRS}
        served = {level: consume_until(broker, level, ends) for level in LEVELS}
    assert any(row[5] and row[5].startswith(LATE) for row in served["read_committed"])
    return OldCluster(folder / "tier", served, ends, starts)


@pytest.mark.parametrize(
    ("version", "zero_copy"),
    [(KAFKA_VERSION, False), (OLDEST_KAFKA, False), (NEWEST_KAFKA, True)],
)
def test_restored_topics_serve_the_rows_of_the_lost_cluster(
    version: str, zero_copy: bool, old: OldCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "new"
    if zero_copy:  # the new cluster uses the old tier
        folder.mkdir()
        tier = tmp_path / "tier"
        (folder / "tier").symlink_to(tier)
    else:
        tier = tmp_path / "old-tier"
    shutil.copytree(old.tier, tier)
    objects = _objects(tier)
    source = {
        "path": str(tier),
        "layout": "local-tiered-storage",
        "subscribe": "orders,moves",
    }
    plan_file = tmp_path / "plan.json"
    spec = ClusterSpec(replicas=2, version=version, settings=BUSY)
    with Cluster(folder, spec) as cluster:
        node, other = cluster.nodes[SEED], cluster.nodes[OTHER]
        others = {"kafka.bootstrap.servers": other.bootstrap}
        ready = {**READY, "remote_storage_enable": str(zero_copy).lower()}
        for name, count in ((NEW_NAME, 2), ("moves", 1)):
            cluster.admin.create_topic(name, count, replicas=(SEED,), **ready)
        plan = _accepted_plan(cluster, source, zero_copy=zero_copy)
        plan_file.write_text(plan.to_json())
        with pytest.raises(Exception, match="stop its broker first"):
            write_restore(str(plan_file), source, str(node.logs), target=others)
        node.stop()
        write_restore(str(plan_file), source, str(node.logs), target=others)
        cluster.start_node(SEED)
        target = {"kafka.bootstrap.servers": node.bootstrap}
        assert verify_restore(str(plan_file), target) == []
        assert "verified" in status_restore(str(plan_file))[-2]
        _move(cluster, tmp_path)
        node.stop()
        groups = {"continues": {"orders": {0: old.ends["orders", 0] - 5, 1: 10}}}
        configs = {"local.retention.bytes": "1"} if zero_copy else {"max.message.bytes": "2000000"}
        report = commit_restore(str(plan_file), others, configs=configs, groups=groups)
        assert any("offset 10 is outside" in line for line in report)
        assert status_restore(str(plan_file))[-2] == "committed"
        new = Broker(other.bootstrap, other.folder, cluster.tier, cluster.class_path, other.pid)
        _check_rows(new, old)
        if zero_copy:
            _check_serves_old_objects(new, plan)
            _check_rows(new, old)
        _check_continues(new, old.ends)
        if zero_copy:
            cluster.admin.delete_topic("moves")
            (links,) = (tier / "kafka-tiered-storage").glob(f"moves-0-{plan.target_ids['moves']}")
            wait_until(lambda: not any(links.glob("*.log")))
    assert objects == {path: found for path, found in _objects(tier).items() if path in objects}


def _objects(tier: Path) -> dict[str, tuple[int, int]]:
    """Returns inode and modification time of each object, by path."""
    paths = (path for path in tier.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def _accepted_plan(cluster: Cluster, source: dict[str, str], *, zero_copy: bool) -> RestorePlan:
    """Restarts the seed until its leader epochs are above those of the tier."""
    rename = {"orders": NEW_NAME}
    target = {"kafka.bootstrap.servers": cluster.nodes[SEED].bootstrap}
    plan = plan_restore(source, target, rename=rename, zero_copy=zero_copy)
    assert any("leader epoch 0" in text for text in plan.refusals), plan.refusals
    assert any("--undecided abort" in text for text in plan.refusals), plan.refusals
    for _ in range(4):
        cluster.restart_node(SEED)
        plan = plan_restore(source, target, rename=rename, undecided="abort", zero_copy=zero_copy)
        if not plan.refusals:
            break
    assert plan.refusals == ()
    return plan


def _check_rows(broker: Broker, old: OldCluster) -> None:
    ends = {_new(pair): end for pair, end in old.ends.items()}
    for level in LEVELS:
        expected = [
            (*_new((row[0], row[1])), *row[2:])
            for row in old.served[level]
            if level == "read_uncommitted" or not (row[5] or b"").startswith(LATE)
        ]
        assert consume_until(broker, level, ends) == sorted(expected, key=lambda r: r[:3])
    starts = broker.offsets("earliest")
    assert {pair: starts[_new(pair)] for pair in PAIRS} == {p: old.starts[p] for p in PAIRS}


def _check_serves_old_objects(broker: Broker, plan: RestorePlan) -> None:
    """Waits until the broker has deleted the local segments that it uploaded, and checks that it
    begins where the plan lets brokers serve the old objects.
    """
    for each in plan.partitions:
        assert each.served
        (folder,) = (broker.tier / "kafka-tiered-storage").glob(
            f"{each.name}-{plan.target_ids[each.target_topic]}"
        )
        logs = [path for path in folder.glob("*.log") if int(path.name[:20]) < each.local_start]
        assert len(logs) == each.served
        assert {path.stat().st_nlink for path in logs} == {2}
    broker.wait_until_tiered([_new(pair) for pair in PAIRS])


def _move(cluster: Cluster, folder: Path) -> None:
    """Moves all restored partitions from the seed broker to the other broker."""
    moves = [
        {"topic": topic, "partition": number, "replicas": [OTHER]}
        for topic, number in map(_new, PAIRS)
    ]
    file = folder / "moves.json"
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    server = cluster.nodes[OTHER].bootstrap
    arguments = (tool, "--bootstrap-server", server, "--reassignment-json-file", str(file))
    cluster.admin.run_tool(*arguments, "--execute")
    wait_until(lambda: all(cluster.admin.in_sync(*_new(pair)) == [OTHER] for pair in PAIRS))


def _new(pair: tuple[str, int]) -> tuple[str, int]:
    return (NEW_NAME if pair[0] == "orders" else pair[0]), pair[1]


def _check_continues(broker: Broker, ends: PartitionOffsets) -> None:
    """Checks that consumer groups continue with the next record after their committed offsets, and
    that producers write at new offsets.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "continues",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(NEW_NAME, 0)])
    message = consumer.poll(60)
    assert message is not None
    assert message.error() is None
    assert message.offset() == ends["orders", 0] - 5
    consumer.close()
    offsets: list[int] = []
    for number in range(3):
        producer = _producer(broker, **{"transactional.id": f"new-{number}"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(
            "moves",
            partition=0,
            value=b"new",
            on_delivery=lambda error, message: offsets.append(message.offset() or 0),
        )
        producer.commit_transaction(60)
    assert len(offsets) == 3
    assert min(offsets) > ends["moves", 0]  # an abort marker has the offset of the tier's end
