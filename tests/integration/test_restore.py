"""Restores topics of a lost cluster into a new one, and compares what both clusters return to a
consumer.

The old cluster is stopped after it tiered its closed segments. Only rows with offsets in the tier
are expected in the new cluster.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kts_source.restore.committing import commit_restore, status_restore, verify_restore
from kts_source.restore.restore_plan import plan_restore
from kts_source.restore.writing import write_restore
from tests.integration.admin import wait_until
from tests.integration.broker import Broker, running_broker
from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.served_rows import Row, consume_until
from tests.needs import needs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.broker import PartitionOffsets

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

LEVELS = ("read_uncommitted", "read_committed")
LATE = b"late"
"""Value prefix of a transaction whose commit marker is not in the tier."""
READY = {
    "remote_storage_enable": "false",
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


def _old_cluster(folder: Path) -> tuple[dict[str, list[Row]], PartitionOffsets, PartitionOffsets]:
    """Fills a cluster and stops it. Returns the consumed rows by isolation level, the tier ends and
    the log starts.
    """
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
        return {level: consume_until(broker, level, ends) for level in LEVELS}, ends, starts


def test_restored_topics_serve_the_rows_of_the_lost_cluster(tmp_path: Path) -> None:
    needs("java", "mvn")
    served, ends, starts = _old_cluster(tmp_path / "old")
    assert any(row[5] and row[5].startswith(LATE) for row in served["read_committed"])
    tier = {
        "path": str(tmp_path / "old" / "tier"),
        "layout": "local-tiered-storage",
        "subscribe": "orders,moves",
    }
    plan_file = tmp_path / "plan.json"
    with Cluster(tmp_path / "new", ClusterSpec(replicas=2, settings=BUSY)) as cluster:
        node = cluster.nodes[SEED]
        target = {"kafka.bootstrap.servers": node.bootstrap}
        rename = {"orders": NEW_NAME}
        for name, count in ((NEW_NAME, 2), ("moves", 1)):
            cluster.admin.create_topic(name, count, replicas=(SEED,), **READY)
        plan = plan_restore(tier, target, rename=rename)
        assert any("leader epoch 0" in text for text in plan.refusals), plan.refusals
        assert any("--undecided abort" in text for text in plan.refusals), plan.refusals
        for _ in range(4):
            cluster.restart_node(SEED)
            plan = plan_restore(tier, target, rename=rename, undecided="abort")
            if not plan.refusals:
                break
        assert plan.refusals == ()
        plan_file.write_text(plan.to_json())
        with pytest.raises(Exception, match="stop its broker first"):
            write_restore(str(plan_file), tier, str(node.logs))
        node.stop()
        write_restore(str(plan_file), tier, str(node.logs))
        cluster.start_node(SEED)
        assert verify_restore(str(plan_file), target) == []
        assert "verified" in status_restore(str(plan_file))[-2]
        _move(cluster, tmp_path)
        node.stop()
        node = cluster.nodes[OTHER]
        target = {"kafka.bootstrap.servers": node.bootstrap}
        groups = {"continues": {"orders": {0: ends["orders", 0] - 5, 1: 10}}}
        configs = {"max.message.bytes": "2000000"}
        report = commit_restore(str(plan_file), target, configs=configs, groups=groups)
        assert any("offset 10 is outside" in line for line in report)
        assert status_restore(str(plan_file))[-2] == "committed"
        new = Broker(node.bootstrap, node.folder, cluster.tier, cluster.class_path, node.pid)
        new_ends = {_new(pair): end for pair, end in ends.items()}
        for level in LEVELS:
            expected = [
                (*_new((row[0], row[1])), *row[2:])
                for row in served[level]
                if level == "read_uncommitted" or not (row[5] or b"").startswith(LATE)
            ]
            assert consume_until(new, level, new_ends) == sorted(expected, key=lambda r: r[:3])
        found_starts = new.offsets("earliest")
        assert {pair: found_starts[_new(pair)] for pair in PAIRS} == {p: starts[p] for p in PAIRS}
        _check_continues(new, ends)


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
