"""A real Kafka broker with tiered storage on a folder: one node, KRaft, on free local ports."""

from __future__ import annotations

import base64
import contextlib
import secrets
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.integration.dump_log_segments import dump_log_segments
from tests.integration.kafka_jars import kafka_class_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

PartitionOffsets = dict[tuple[str, int], int]

START_SECONDS = 90
SETTLE_SECONDS = 90
STOP_SECONDS = 40

_PROPERTIES = """
node.id=1
process.roles=broker,controller
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={folder}/logs
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=4
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.check.interval.ms=1000
log.initial.task.delay.ms=500
remote.log.storage.system.enable=true
remote.log.metadata.manager.class.name=org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.listener.name=PLAINTEXT
remote.log.metadata.manager.impl.prefix=rlmm.config.
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=1
remote.log.manager.task.interval.ms=500
remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage
remote.log.storage.manager.impl.prefix=rsm.config.
rsm.config.dir={folder}/tier
"""

_LOG4J = """
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1}: %m%n
"""

TIERED_TOPIC: Mapping[str, str] = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "internal.segment.bytes": "20000",
    "index.interval.bytes": "1000",
}
"""Closed segments move to the tier, and small ones so that there are many."""


@dataclass(frozen=True)
class Broker:
    """A broker that runs.

    Attributes:
        bootstrap: Where clients find it.
        folder: Everything it writes.
        tier: The storage plugin's folder, which outlives the broker.
    """

    bootstrap: str
    folder: Path
    tier: Path
    class_path: str

    def new_admin(self) -> AdminClient:
        """An admin client; it must outlive the futures that it gives."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topics(self, partitions: Mapping[str, int], **settings: str) -> None:
        """Creates tiered topics.

        Args:
            partitions: Topic to its number of partitions.
            settings: Topic settings with `_` for `.`, on top of `TIERED_TOPIC`.
        """
        config = {**TIERED_TOPIC, **{k.replace("_", "."): v for k, v in settings.items()}}
        topics = [NewTopic(name, count, 1, config=config) for name, count in partitions.items()]
        admin = self.new_admin()
        for future in admin.create_topics(topics).values():
            future.result()

    def delete_records(self, offsets: PartitionOffsets) -> None:
        """Moves the log start of partitions."""
        wanted = [TopicPartition(topic, number, at) for (topic, number), at in offsets.items()]
        admin = self.new_admin()
        for future in admin.delete_records(wanted).values():
            future.result()

    def offsets(self, when: str) -> PartitionOffsets:
        """What the broker answers for every partition of every user topic.

        Args:
            when: `earliest`, `latest`, `latest-tiered` or `earliest-local`.
        """
        run = subprocess.run(
            [
                *("java", "-Xmx256m", "-cp", self.class_path),
                *("org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", self.bootstrap),
                *("--time", when, "--exclude-internal-topics"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(f"GetOffsetShell failed:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        parts = (line.rsplit(":", 2) for line in run.stdout.splitlines() if line.count(":") >= 2)
        return {(topic, int(number)): int(offset) for topic, number, offset in parts if offset}

    def last_stable_offsets(self, partitions: Iterable[tuple[str, int]]) -> PartitionOffsets:
        """What the broker answers to a read_committed consumer that asks for the latest offset."""
        wanted = {TopicPartition(*pair): OffsetSpec.latest() for pair in partitions}
        admin = self.new_admin()
        futures = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
        return {(at.topic, at.partition): future.result().offset for at, future in futures.items()}

    def local_bases(self, topic: str, partition: int) -> list[int]:
        """Base offsets of the segments that the broker has on its own disk."""
        logs = (self.folder / "logs" / f"{topic}-{partition}").glob("*.log")
        return sorted(int(path.stem) for path in logs)

    def wait_until_tiered(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Waits until the tier has all that the broker may copy and the local copies are gone.

        Raises:
            TimeoutError: After `SETTLE_SECONDS`.
        """
        wanted = list(partitions)
        deadline = time.monotonic() + SETTLE_SECONDS
        quiet_since, before = time.monotonic(), ""
        while True:
            stable = self.last_stable_offsets(wanted)
            waiting = [pair for pair in wanted if self._has_copied_segments(pair, stable[pair])]
            now = str(sorted(self.tier.rglob("*")))
            if waiting or now != before:
                quiet_since, before = time.monotonic(), now
            elif time.monotonic() - quiet_since > 2:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"not tiered after {SETTLE_SECONDS} s: {waiting}")
            time.sleep(0.3)

    def _has_copied_segments(self, pair: tuple[str, int], stable: int) -> bool:
        """Whether a closed segment below the last stable offset is still on the broker's disk."""
        return any(following <= stable for following in self.local_bases(*pair)[1:])

    def tier_stable_offsets(self, tier_ends: PartitionOffsets) -> PartitionOffsets:
        """Where a read_committed read of the tier alone must end, from the broker's own snapshots.

        That is the first offset of the oldest transaction open at the end of the last tiered
        segment, else the tier's end.

        Args:
            tier_ends: Exclusive ends of the tiered partitions.
        """
        names: dict[str, tuple[str, int]] = {}
        scratch = self.folder / "snapshots"
        scratch.mkdir(exist_ok=True)
        for number, ((topic, partition), end) in enumerate(tier_ends.items()):
            folders = list(self.tier.glob(f"kafka-tiered-storage/{topic}-{partition}-*"))
            if end == 0 or not folders:
                continue
            (folder,) = folders
            # Named after the segment's start; the tool wants a snapshot's offset.
            name = f"{number:020d}.snapshot"
            (scratch / name).write_bytes(max(folder.glob("*.snapshot")).read_bytes())
            names[name] = (topic, partition)
        dump = dump_log_segments(self.class_path, scratch, names)
        stable = dict(tier_ends)
        for name, pair in names.items():
            for entry in dump.entries(name):
                first = entry.get("currentTxnFirstOffset", "OptionalLong.empty")
                if first != "OptionalLong.empty":
                    stable[pair] = min(stable[pair], int(first[len("OptionalLong[") : -1]))
        return stable


@contextlib.contextmanager
def running_broker(folder: Path, *, settings: str = "") -> Iterator[Broker]:
    """Formats, starts and in the end stops a broker.

    Args:
        folder: Empty or absent; holds the broker's files and log, and the tier in `tier`.
        settings: More lines of its properties.

    Raises:
        RuntimeError: The broker did not start; with the end of its log.
    """
    cluster_id = base64.urlsafe_b64encode(b"\x00" + secrets.token_bytes(15)).decode().rstrip("=")
    with _started(folder, settings, cluster_id) as broker:
        yield broker


@contextlib.contextmanager
def restarted_broker(folder: Path, *, settings: str = "") -> Iterator[Broker]:
    """Starts and in the end stops a broker on disks that one has written.

    Args:
        folder: Holds the log directory in `logs`.
        settings: More lines of its properties.

    Raises:
        RuntimeError: The broker did not start; with the end of its log.
    """
    with _started(folder, settings, None) as broker:
        yield broker


@contextlib.contextmanager
def _started(folder: Path, settings: str, cluster_id: str | None) -> Iterator[Broker]:
    """A broker that runs; formatted before, where a cluster id is given."""
    class_path = kafka_class_path()
    port, controller_port = _free_ports(2)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tier").mkdir(exist_ok=True)
    properties = folder / "server.properties"
    properties.write_text(
        _PROPERTIES.format(port=port, controller_port=controller_port, folder=folder) + settings
    )
    (folder / "log4j2.properties").write_text(_LOG4J)
    java = ["java", f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"]
    log_file = folder / "broker.log"
    with log_file.open("wb") as output:
        if cluster_id is not None:
            subprocess.run(
                [
                    *(*java, "-cp", class_path, "kafka.tools.StorageTool", "format"),
                    *("-t", cluster_id, "-c", str(properties)),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                check=True,
                timeout=60,
            )
        process = subprocess.Popen(
            [*java, "-Xmx768m", "-cp", class_path, "kafka.Kafka", str(properties)],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    broker = Broker(f"127.0.0.1:{port}", folder, folder / "tier", class_path)
    try:
        _wait_until_ready(broker, process, log_file)
        yield broker
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(broker: Broker, process: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):
            if broker.new_admin().list_topics(timeout=2).brokers:
                return
        time.sleep(0.2)
    tail = log_file.read_text(errors="replace")[-4000:]
    raise RuntimeError(f"the broker did not start (exit code {process.poll()}):\n{tail}")


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(int(listener.getsockname()[1]))
        return ports
