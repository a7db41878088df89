"""Restores topics of a lost cluster into a new one, and compares what both clusters return to a
consumer.

The old cluster is stopped after it tiered its closed segments. Only rows with offsets in the tier
are expected in the new cluster.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ElectionType, Producer, TopicPartition

from kts_source.errors import InvalidOptionError
from kts_source.restore.committing import commit_restore, status_restore, verify_restore
from kts_source.restore.restore_plan import plan_restore
from kts_source.restore.writing import write_restore
from tests.integration.admin import wait_until
from tests.integration.broker import Broker, running_broker
from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.kafka_jars import KAFKA_VERSION, NEWEST_KAFKA, OLDEST_KAFKA
from tests.integration.killed_runs import KilledRuns
from tests.integration.served_rows import Row, consume_until
from tests.needs import needs
from tests.quick import sample

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.restore.restore_plan import RestorePlan
    from tests.integration.broker import PartitionOffsets
    from tests.integration.nodes import Node

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

LEVELS = ("read_uncommitted", "read_committed")
LATE = b"late"
"""Value prefix of a transaction whose commit marker is not in the tier."""
READY = {
    "local_retention_bytes": "-2",
    "retention_ms": "-1",
    "retention_bytes": "-1",
}
CREATED_MS = 1_700_000_000_000
"""Time of the first record. Topic `moves` has the times of the broker's clock instead."""
NEW_NAME = "orders-restored"
SEED, OTHER = 3, 2
"""Nodes: the seed broker gets the restored files, then all partitions move to the other broker."""
LAST_SEED, FINAL = 4, (1, 2, 3)
"""The same in a cluster of four nodes, with three replicas at the end."""
PAIRS = [("orders", 0), ("orders", 1), ("moves", 0)]
LATEST = "latest"
"""A compacted topic, which is only on the disk: brokers do not tier compacted topics."""


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
            timestamp=CREATED_MS + number * 1000 - (number % 3) * 5000,
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


def _fill_compacted(broker: Broker) -> None:
    """Writes 20 keys many times. The last value of every fifth key is a tombstone."""
    producer = _producer(broker)
    for number in range(3000):
        is_tombstone = number >= 2980 and number % 5 == 0
        value = None if is_tombstone else b"value %d" % number
        producer.produce(LATEST, key=b"key %d" % (number % 20), value=value)
    assert producer.flush(60) == 0


@dataclass(frozen=True, slots=True)
class OldCluster:
    """A cluster that was lost after it tiered its closed segments.

    Attributes:
        tier: Folder of its tier. Tests copy it.
        disk: Log directory of its only node, which was also the controller.
        served: Consumed rows by isolation level, up to the end of the log.
        ends: One past the last tiered offset of each partition.
        disk_ends: One past the last offset of each partition.
        starts: Log start of each partition.
    """

    tier: Path
    disk: Path
    served: dict[str, list[Row]]
    ends: PartitionOffsets
    disk_ends: PartitionOffsets
    starts: PartitionOffsets


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> OldCluster:
    """Fills a cluster and stops it."""
    needs("java", "mvn")
    folder = tmp_path_factory.mktemp("restore") / "old"
    with running_broker(folder) as broker:
        broker.create_topics({"orders": 2})
        broker.create_topics({"moves": 1}, message_timestamp_type="LogAppendTime")
        compacted = {"remote_storage_enable": "false", "cleanup_policy": "compact"}
        broker.create_topics({LATEST: 1}, **compacted, min_compaction_lag_ms="86400000")
        _fill_plain(broker, b"first")
        broker.delete_records({("orders", 1): 77})
    with running_broker(folder) as broker:  # a restart raises leader epochs
        _fill_plain(broker, b"second")
        _fill_transactions(broker)
        _fill_compacted(broker)
        broker.wait_until_tiered(PAIRS)
        ends = {pair: at + 1 for pair, at in broker.offsets("latest-tiered").items()}
        starts = broker.offsets("earliest")
        ends = {pair: ends[pair] for pair in PAIRS}
        disk_ends = broker.offsets("latest")
        served = {level: consume_until(broker, level, disk_ends) for level in LEVELS}
    assert all(disk_ends[pair] > ends[pair] for pair in PAIRS)
    assert any(row[5] and row[5].startswith(LATE) for row in served["read_committed"])
    assert all(
        row[3] > CREATED_MS + 10**9 for row in served["read_uncommitted"] if row[0] == "moves"
    )
    disk = folder / "node-1" / "logs"
    return OldCluster(folder / "tier", disk, served, ends, disk_ends, starts)


@dataclass(frozen=True, slots=True)
class DiskRestore:
    """Another restore into the same seed broker, from a disk of the old cluster.

    Attributes:
        plan_file: Path of the plan.
        source: Options of the old log.
        pairs: The partitions in the old cluster.
        configs: Configurations to set at the end.
    """

    plan_file: Path
    source: dict[str, str]
    pairs: list[tuple[str, int]]
    configs: dict[str, str]

    @property
    def targets(self) -> list[tuple[str, int]]:
        """Returns the restored partitions."""
        return [(f"{topic}-disk", number) for topic, number in self.pairs]

    def plan(self, target: dict[str, str]) -> None:
        """Plans the restore. No transaction is undecided, because the disk has the markers."""
        rename = {topic: f"{topic}-disk" for topic, _ in self.pairs}
        plan = plan_restore(self.source, target, rename=rename)
        assert plan.refusals == ()
        assert all(not each.undecided for each in plan.partitions)
        self.plan_file.write_text(plan.to_json())

    def write(self, log_dir: Path) -> None:
        """Writes the restore while the broker is stopped."""
        write_restore(str(self.plan_file), self.source, str(log_dir))

    def commit(self, target: dict[str, str]) -> None:
        """Verifies the restore on the final broker, and commits it."""
        commit_restore(str(self.plan_file), target, configs=self.configs, groups={})


def _disk_restores(old: OldCluster, tier: Path, folder: Path) -> list[DiskRestore]:
    """Returns the restores of the tier with the disk, and of the compacted topic on the disk."""
    disk = {"endOfLog": "true", "subscribe": ",".join(sorted({topic for topic, _ in PAIRS}))}
    joined = {"path": str(tier), "layout": "local-tiered-storage", "tailPath": str(old.disk)}
    alone = {"path": str(old.disk), "layout": "kafka-logs"}
    compact = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "1000",
    }
    return [
        DiskRestore(folder / "joined.json", {**joined, **disk}, PAIRS, {}),
        DiskRestore(
            folder / "compacted.json",
            {**alone, **disk, "subscribe": LATEST},
            [(LATEST, 0)],
            compact,
        ),
    ]


def _check_disk_rows(broker: Broker, old: OldCluster, restore: DiskRestore) -> None:
    """Checks that the broker serves all rows of the old cluster: those in the tier and those that
    were only on the disk.
    """
    names = dict(zip(restore.pairs, restore.targets, strict=True))
    ends = {names[pair]: old.disk_ends[pair] for pair in restore.pairs}
    for level in LEVELS:
        rows = [row for row in old.served[level] if row[:2] in names]
        assert any(row[2] >= old.ends.get(row[:2], 0) for row in rows)
        expected = [(*names[row[:2]], *row[2:]) for row in rows]
        assert consume_until(broker, level, ends) == sorted(expected, key=lambda row: row[:3])


def _check_compacts(broker: Broker, old: OldCluster) -> None:
    """Waits until the new broker has compacted the topic, and checks that the last value of each
    key is still at its offset.
    """
    pair = (f"{LATEST}-disk", 0)
    ends = {pair: old.disk_ends[LATEST, 0]}
    rows = [row for row in old.served[LEVELS[0]] if row[0] == LATEST]
    last = {row[4]: row[2:] for row in rows}
    assert len(last) == 20
    assert sum(row[3] is None for row in last.values()) == 4

    def is_compacted() -> bool:
        return len(consume_until(broker, LEVELS[0], ends)) < len(rows) // 2

    wait_until(is_compacted)
    found = {row[4]: row[2:] for row in consume_until(broker, LEVELS[0], ends)}
    assert found == last


def _create_topics(
    cluster: Cluster, pairs: list[tuple[str, int]], untiered: list[tuple[str, int]]
) -> None:
    for name, count in Counter(topic for topic, _ in pairs).items():
        is_tiered = (name, 0) not in untiered
        ready = {**READY, "remote_storage_enable": str(is_tiered).lower()}
        cluster.admin.create_topic(name, count, replicas=(SEED,), **ready)


@pytest.mark.parametrize(
    ("version", "zero_copy", "with_disks"),
    sample(
        2,
        [
            (OLDEST_KAFKA, False, True),
            (KAFKA_VERSION, True, True),
            (NEWEST_KAFKA, True, False),
        ],
    ),
)
def test_restored_topics_serve_the_rows_of_the_lost_cluster(
    version: str, zero_copy: bool, with_disks: bool, old: OldCluster, tmp_path: Path
) -> None:
    folder = tmp_path / "new"
    tier = shutil.copytree(old.tier, tmp_path / "old-tier")
    if zero_copy:  # the new cluster uses the old tier
        folder.mkdir()
        (folder / "tier").symlink_to(tier)
    objects = _objects(tier)
    source = {"path": str(tier), "layout": "local-tiered-storage", "subscribe": "orders,moves"}
    plan_file = tmp_path / "plan.json"
    more = _disk_restores(old, tier, tmp_path) if with_disks else []
    on_disk = [pair for each in more for pair in each.targets]
    moved = [_new(pair) for pair in PAIRS] + on_disk
    settings = {**BUSY, "log.cleaner.backoff.ms": "300"}
    spec = ClusterSpec(replicas=2, version=version, settings=settings)
    with Cluster(folder, spec) as cluster:
        node, other = cluster.nodes[SEED], cluster.nodes[OTHER]
        others = {"kafka.bootstrap.servers": other.bootstrap}
        _create_topics(cluster, moved, untiered=on_disk if zero_copy else moved)
        plan = _accepted_plan(cluster, source, SEED, zero_copy=zero_copy)
        plan_file.write_text(plan.to_json())
        target = {"kafka.bootstrap.servers": node.bootstrap}
        for each in more:
            each.plan(target)
        with pytest.raises(InvalidOptionError, match="stop its broker first"):
            write_restore(str(plan_file), source, str(node.logs), target=others)
        node.stop()
        for each in more:  # zero copy adds topic ids to the tier
            each.write(node.logs)
        with KilledRuns() as runs:
            _write_with_kills(runs, plan_file, source, node, target=others)
            assert runs.kills == 18 + 2 * zero_copy
        cluster.start_node(SEED)
        assert verify_restore(str(plan_file), target) == []
        assert "verified" in status_restore(str(plan_file))[-2]
        _move(cluster, tmp_path, (OTHER,), moved)
        _wait_in_sync(cluster, (OTHER,), moved)
        node.stop()
        groups = {"continues": {"orders": {0: old.ends["orders", 0] - 5, 1: 10}}}
        configs = {"local.retention.bytes": "1"} if zero_copy else {}
        report = commit_restore(str(plan_file), others, configs=configs, groups=groups)
        assert any("offset 10 is outside" in line for line in report)
        assert status_restore(str(plan_file))[-2] == "committed"
        new = _broker(cluster)
        _check_rows(new, old)
        for each in more:
            _check_disk_rows(new, old, each)  # before the commit, which may start a compaction
            each.commit(others)
        if more:
            _check_compacts(new, old)
        if zero_copy:
            _check_serves_old_objects(new, plan)
            _check_rows(new, old)
        _check_continues(new, old.ends)
        if zero_copy:
            _check_deletes_links(cluster, new, plan)
    assert objects == {path: found for path, found in _objects(tier).items() if path in objects}


def test_restore_to_three_brokers_survives_kills_of_tool_and_brokers(
    old: OldCluster, tmp_path: Path
) -> None:
    tier = tmp_path / "old-tier"
    shutil.copytree(old.tier, tier)
    objects = _contents(tier)
    source = {"path": str(tier), "layout": "local-tiered-storage", "subscribe": "orders,moves"}
    plan_file = tmp_path / "plan.json"
    small_fetches = {"replica.fetch.max.bytes": "20000"}
    settings = {"broker.session.timeout.ms": "9000", **small_fetches}
    spec = ClusterSpec(replicas=3, settings=settings)
    moved = [_new(pair) for pair in PAIRS]
    with Cluster(tmp_path / "new", spec) as cluster, KilledRuns() as runs:
        seed = cluster.nodes[LAST_SEED]
        target = {"kafka.bootstrap.servers": cluster.bootstrap}
        for name, count in ((NEW_NAME, 2), ("moves", 1)):
            ready = {**READY, "remote_storage_enable": "false"}
            cluster.admin.create_topic(name, count, replicas=(LAST_SEED,), **ready)
        plan_file.write_text(_accepted_plan(cluster, source, LAST_SEED).to_json())
        seed.kill()
        _write_with_kills(runs, plan_file, source, seed)
        assert runs.kills == 18
        cluster.start_node(LAST_SEED)
        for step, state in ((1, f"next: start broker {LAST_SEED}, "), (2, "next: move the parti")):
            assert runs.is_killed(step, (ADD,), "committing.verify_restore", str(plan_file), target)
            assert status_restore(str(plan_file))[-1].startswith(state)
        _kill_and_start(cluster, LAST_SEED, FINAL[2])
        assert verify_restore(str(plan_file), target) == []
        _move_with_kills(cluster, tmp_path, moved)
        seed.stop()
        for leader in FINAL:
            _lead(cluster, leader, tmp_path)
            assert verify_restore(str(plan_file), target) == []
        _commit_with_kills(runs, cluster, old, plan_file, target)
        assert runs.kills > 30
        new = _broker(cluster)
        _check_rows(new, old)
        _check_continues(new, old.ends)
    assert _contents(tier) == objects


ADD = "journal.Journal.add"
"""Kills before and after this function occur between a step and its line in the journal, and after
the line."""


def _write_with_kills(
    runs: KilledRuns,
    plan_file: Path,
    source: dict[str, str],
    seed: Node,
    **more: Any,  # noqa: ANN401
) -> None:
    """Kills the write before and after each line of the journal. Checks the status after each
    kill.
    """
    arguments = str(plan_file), source, str(seed.logs)
    states: list[list[str]] = []
    while runs.is_killed(1 + len(states) % 2, (ADD,), "writing.write_restore", *arguments, **more):
        states.append([*status_restore(str(plan_file))])
    again = (
        "next: run kts restore write again with the same arguments; do not start broker"
        f" {seed.number} before it is complete"
    )
    start = f"next: start broker {seed.number}, then kts restore verify"
    assert states[0] == [
        "planned: nothing is written",
        f"next: stop broker {seed.number}, then kts restore write",
    ]
    assert [state[-1] for state in states[1:]] == [again] * (len(states) - 2) + [start]
    assert {state[0] for state in states[1:]} == {f"log directory: {seed.logs.resolve()}"}
    assert [state[1].split()[1] for state in states[1:]] == [*"000011112222"] + ["3"] * (
        len(states) - 13
    )
    assert status_restore(str(plan_file))[-1] == start


def _move_with_kills(cluster: Cluster, folder: Path, moved: list[tuple[str, int]]) -> None:
    """Moves the partitions to their final brokers. Kills the seed and two of these brokers while
    they replicate.
    """
    for topic in {topic for topic, _ in moved}:
        cluster.admin.alter_topic(
            topic,
            leader_replication_throttled_replicas="*",
            follower_replication_throttled_replicas="*",
        )
    _throttle(cluster, 5000)
    _move(cluster, folder, FINAL, moved)
    for killed in ((LAST_SEED, FINAL[1]), (FINAL[2],)):
        assert any(cluster.admin.in_sync(*pair) != [*FINAL] for pair in moved)
        _kill_and_start(cluster, *killed)
    _throttle(cluster, 100_000_000)
    _wait_in_sync(cluster, FINAL, moved)


def _throttle(cluster: Cluster, bytes_per_second: int) -> None:
    rate = str(bytes_per_second)
    cluster.admin.alter_brokers(
        leader_replication_throttled_rate=rate, follower_replication_throttled_rate=rate
    )


def _kill_and_start(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        cluster.nodes[number].kill()
    for number in numbers:
        cluster.nodes[number].start()
    cluster.wait_ready()


def _commit_with_kills(
    runs: KilledRuns, cluster: Cluster, old: OldCluster, plan_file: Path, target: dict[str, str]
) -> None:
    """Kills the commit before and after each of its steps, and once a broker between them. Checks
    the status after each kill.
    """
    groups = {"continues": {"orders": {0: old.ends["orders", 0] - 5}}}
    configs = {"retention.bytes": "1000000000"}
    wanted: dict[str, Any] = {"configs": configs, "groups": groups}
    wanted["metadata_log"] = str(old.disk)
    steps = (ADD, *(f"committing.{name}" for name in COMMIT_STEPS))
    states: list[str] = []
    while runs.is_killed(
        1 + len(states), steps, "committing.commit_restore", str(plan_file), target, **wanted
    ):
        states.append(status_restore(str(plan_file))[-1])
        if len(states) == 5:
            _kill_and_start(cluster, FINAL[1])
    again = (
        "next: run kts restore commit again with the same arguments; do not start producers and"
        " consumers before it is complete"
    )
    move = "next: move the partitions to their brokers, then kts restore commit"
    done = "next: nothing; producers and consumers may start"
    # The start and the end of the journal's lines `verified` and `committing` come first.
    assert states == [move] * 3 + [again] * (len(states) - 4) + [done]
    report = commit_restore(str(plan_file), target, **wanted)
    (line,) = (line for line in report if line.startswith(f"{NEW_NAME}: configurations set"))
    assert {"local.retention.bytes", "remote.storage.enable", "retention.bytes"} <= set(
        line.split(": ")[2].split(", ")
    )


COMMIT_STEPS = ("raise_producer_ids", "commit_offsets", "set_configs")


def _broker(cluster: Cluster) -> Broker:
    other = cluster.nodes[OTHER]
    return Broker(other.bootstrap, other.folder, cluster.tier, cluster.class_path, other.pid)


def _lead(cluster: Cluster, leader: int, folder: Path) -> None:
    """Moves the leadership of all restored partitions to one of their replicas."""
    pairs = [_new(pair) for pair in PAIRS]
    _move(cluster, folder, (leader, *(number for number in FINAL if number != leader)), pairs)

    def is_leader() -> bool:
        moving = [pair for pair in pairs if cluster.admin.leader(*pair) != leader]
        if moving:
            partitions = [TopicPartition(*pair) for pair in moving]
            cluster.admin.client().elect_leaders(ElectionType.PREFERRED, partitions).result(60)
        return not moving

    wait_until(is_leader)


def _contents(tier: Path) -> dict[str, str]:
    """Returns the SHA-256 of each object, by path."""
    paths = (path for path in tier.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _objects(tier: Path) -> dict[str, tuple[int, int]]:
    """Returns inode and modification time of each object, by path."""
    paths = (path for path in tier.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


def _accepted_plan(
    cluster: Cluster, source: dict[str, str], seed: int, *, zero_copy: bool = False
) -> RestorePlan:
    """Restarts the seed until its leader epochs are above those of the tier."""
    rename = {"orders": NEW_NAME}
    target = {"kafka.bootstrap.servers": cluster.nodes[seed].bootstrap}
    plan = plan_restore(source, target, rename=rename, zero_copy=zero_copy)
    assert any("leader epoch 0" in text for text in plan.refusals), plan.refusals
    assert any("--undecided abort" in text for text in plan.refusals), plan.refusals
    for _ in range(4):
        cluster.restart_node(seed)
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
            if row[2] < old.ends.get(row[:2], 0)
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
        logs = _served_logs(folder, plan)
        assert len(logs) == each.served
        assert {path.stat().st_nlink for path in logs} == {2}
    broker.wait_until_tiered([_new(pair) for pair in PAIRS])


def _check_deletes_links(cluster: Cluster, broker: Broker, plan: RestorePlan) -> None:
    """Expires the records of one topic and deletes the other one. Waits until their links are
    deleted.
    """
    tier = broker.tier / "kafka-tiered-storage"
    folders = [*tier.glob(f"{NEW_NAME}-*")]
    served = [path for folder in folders for path in _served_logs(folder, plan)]
    assert len(folders) == 2
    for number in (0, 1):  # retention keeps the last segment that is not empty
        _write(_producer(broker), NEW_NAME, number, 10, b"new")
    cluster.admin.alter_topic(NEW_NAME, OTHER, retention_bytes="1")
    wait_until(lambda: not any(path.exists() for path in served))
    cluster.admin.delete_topic("moves", OTHER)
    (links,) = tier.glob(f"moves-0-{plan.target_ids['moves']}")
    wait_until(lambda: not any(links.glob("*.log")))


def _served_logs(folder: Path, plan: RestorePlan) -> list[Path]:
    """Returns the logs in the folder of a new topic id that are links to old objects."""
    (local_start,) = (
        each.local_start for each in plan.partitions if folder.name.startswith(f"{each.name}-")
    )
    return [path for path in folder.glob("*.log") if int(path.name[:20]) < local_start]


def _move(
    cluster: Cluster, folder: Path, replicas: tuple[int, ...], pairs: list[tuple[str, int]]
) -> None:
    """Assigns restored partitions to these nodes. The first one is the preferred leader."""
    moves = [{"topic": topic, "partition": number, "replicas": replicas} for topic, number in pairs]
    file = folder / "moves.json"
    file.write_text(json.dumps({"version": 1, "partitions": moves}))
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    server = cluster.nodes[OTHER].bootstrap
    arguments = (tool, "--bootstrap-server", server, "--reassignment-json-file", str(file))
    cluster.admin.run_tool(*arguments, "--execute")


def _wait_in_sync(
    cluster: Cluster, replicas: tuple[int, ...], pairs: list[tuple[str, int]]
) -> None:
    wait_until(lambda: all(cluster.admin.in_sync(*pair) == sorted(replicas) for pair in pairs))


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
    for name in ("t0", "t1", "new", None):  # the old cluster knew the first two
        extra = {"enable.idempotence": "true"} if name is None else {"transactional.id": name}
        producer = _producer(broker, **extra)
        if name is not None:
            producer.init_transactions(60)
            producer.begin_transaction()
        producer.produce(
            "moves",
            partition=0,
            value=b"new",
            on_delivery=lambda error, message: offsets.append(message.offset() or 0),
        )
        if name is None:
            assert producer.flush(60) == 0
        else:
            producer.commit_transaction(60)
    assert len(offsets) == 4
    assert min(offsets) > ends["moves", 0]  # an abort marker has the offset of the tier's end
