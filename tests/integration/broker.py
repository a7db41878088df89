"""Runs a Kafka broker with tiered storage: one KRaft node with free local ports."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.integration.admin import TIERED
from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.dump_log_segments import dump_log_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

PartitionOffsets = dict[tuple[str, int], int]
T = TypeVar("T")

SETTLE_SECONDS = 90
_UNSETTLED = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
    }
)


def retry_until_leader(request: Callable[[], T]) -> T:
    """Calls `request` until it succeeds, and returns its result.

    A broker that has just started returns errors until it leads its partitions. Repeats the request
    after such errors for up to 30 seconds; raises all other errors.
    """
    deadline = time.monotonic() + 30
    while True:
        try:
            return request()
        except KafkaException as error:
            if error.args[0].code() not in _UNSETTLED or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@dataclass(frozen=True)
class Broker:
    """A running broker.

    Attributes:
        bootstrap: Address for clients.
        folder: Contains all files of the broker.
        tier: Folder of the storage plugin; it remains after the broker stops.
        class_path: Class path of Kafka's tools.
        pid: Process id.
    """

    bootstrap: str
    folder: Path
    tier: Path
    class_path: str
    pid: int

    def new_admin(self) -> AdminClient:
        """Creates an admin client. Keep it until the futures that it returned are done."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topics(self, partitions: Mapping[str, int], **settings: str) -> None:
        """Creates tiered topics. `partitions` maps their names to numbers of partitions. `settings`
        are added to `TIERED`; their names contain `_` instead of `.`.
        """
        config = {**TIERED, **{k.replace("_", "."): v for k, v in settings.items()}}
        topics = [NewTopic(name, count, 1, config=config) for name, count in partitions.items()]
        admin = self.new_admin()
        for future in admin.create_topics(topics).values():
            future.result()

    def delete_records(self, offsets: PartitionOffsets) -> None:
        """Moves the log start of each partition to its offset in `offsets`."""
        partitions = [TopicPartition(*pair, offset) for pair, offset in offsets.items()]
        admin = self.new_admin()
        for future in admin.delete_records(partitions).values():
            future.result()

    def offsets(self, when: str) -> PartitionOffsets:
        """Returns an offset of each partition of each user topic, as the broker reports it. `when`
        is the kind of offset: `earliest`, `latest`, `latest-tiered` or `earliest-local`.
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
        fields = (line.rsplit(":", 2) for line in run.stdout.splitlines() if line.count(":") >= 2)
        return {(topic, int(number)): int(offset) for topic, number, offset in fields if offset}

    def last_stable_offsets(self, partitions: Iterable[tuple[str, int]]) -> PartitionOffsets:
        """Returns the last stable offset of each partition: the end of read_committed reads."""
        specs = {TopicPartition(*pair): OffsetSpec.latest() for pair in partitions}
        admin = self.new_admin()

        def list_offsets() -> PartitionOffsets:
            futures = admin.list_offsets(specs, isolation_level=IsolationLevel.READ_COMMITTED)
            offsets = ((key, future.result().offset) for key, future in futures.items())
            return {(key.topic, key.partition): offset for key, offset in offsets}

        return retry_until_leader(list_offsets)

    def console_offsets(self, topic: str, partition: int, start: int, isolation: str) -> list[int]:
        """Reads a partition from offset `start` on with Kafka's console consumer.

        Returns the offsets of the received records. The consumer stops when it has received no
        record for 15 s.
        """
        run = subprocess.run(
            [
                *("java", "-Xmx256m", "-cp", self.class_path),
                *("org.apache.kafka.tools.consumer.ConsoleConsumer", "--timeout-ms", "15000"),
                *("--bootstrap-server", self.bootstrap, "--isolation-level", isolation),
                *("--topic", topic, "--partition", str(partition), "--offset", str(start)),
                *("--property", "print.value=false"),
                *("--property", "print.offset=true"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        # The consumer may end with an error after the timeout, but it always prints this last line.
        if "Processed a total of" not in run.stderr:
            raise RuntimeError(f"ConsoleConsumer failed:\n{run.stderr[-2000:]}")
        return [int(number) for number in re.findall(r"^Offset:(\d+)", run.stdout, re.MULTILINE)]

    def local_bases(self, topic: str, partition: int) -> list[int]:
        """Returns the base offsets of the segments on the broker's disk."""
        logs = (self.folder / "logs" / f"{topic}-{partition}").glob("*.log")
        return sorted(int(path.stem) for path in logs)

    def wait_until_tiered(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Waits until all closed segments below the last stable offset are in the tier and deleted
        from the broker's disk.

        Raises:
            TimeoutError: Some segments are still on the disk after `SETTLE_SECONDS`.
        """
        pairs = list(partitions)
        deadline = time.monotonic() + SETTLE_SECONDS
        quiet_since, last_listing = time.monotonic(), ""
        while True:
            stable = self.last_stable_offsets(pairs)
            waiting = [pair for pair in pairs if self._has_copied_segments(pair, stable[pair])]
            listing = str(sorted(self.tier.rglob("*")))
            if waiting or listing != last_listing:
                quiet_since, last_listing = time.monotonic(), listing
            elif time.monotonic() - quiet_since > 2:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"partitions not tiered after {SETTLE_SECONDS} s: {waiting}")
            time.sleep(0.3)

    def _has_copied_segments(self, pair: tuple[str, int], stable: int) -> bool:
        """Returns whether the disk still has a closed segment of the partition `pair` that ends at
        or below the last stable offset `stable`.

        Brokers copy such segments to the tier and then delete them from the disk.
        """
        return any(following <= stable for following in self.local_bases(*pair)[1:])

    def tier_stable_offsets(self, tier_ends: PartitionOffsets) -> PartitionOffsets:
        """Returns the offset at which read_committed scans of the tier end, for each partition.

        If a transaction is open at the end of the tier, this is the first offset of the oldest open
        transaction. Without an open transaction, it is the end of the tier. The producer snapshot
        of the last tiered segment lists the open transactions.

        `tier_ends` is the offset after the last tiered offset of each partition, or 0 if nothing is
        tiered.
        """
        names: dict[str, tuple[str, int]] = {}
        scratch = self.folder / "snapshots"
        scratch.mkdir(exist_ok=True)
        for number, ((topic, partition), end) in enumerate(tier_ends.items()):
            folders = list(self.tier.glob(f"kafka-tiered-storage/{topic}-{partition}-*"))
            if end == 0 or not folders:
                continue
            (folder,) = folders
            # The tool accepts only the file names that brokers use for snapshots.
            name = f"{number:020d}.snapshot"
            (scratch / name).write_bytes(max(folder.glob("*.snapshot")).read_bytes())
            names[name] = (topic, partition)
        dump = dump_log_segments(scratch, names)
        stable = dict(tier_ends)
        for name, pair in names.items():
            for entry in dump.entries(name):
                first = entry.get("currentTxnFirstOffset", "OptionalLong.empty")
                if first != "OptionalLong.empty":
                    stable[pair] = min(stable[pair], int(first[len("OptionalLong[") : -1]))
        return stable


@contextlib.contextmanager
def running_broker(
    folder: Path, *, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Broker]:
    """Runs a broker during a `with` block; formats a disk if the folder has none.

    In `folder`, `node-1` contains the broker's files and log, `node-1/logs` its disk, and `tier`
    the tier. `settings` are additional broker settings.

    Raises:
        RuntimeError: The broker did not start. The message contains the end of its log.
    """
    with Cluster(folder, ClusterSpec(settings={**BUSY, **settings})) as cluster:
        node = cluster.nodes[1]
        yield Broker(node.bootstrap, node.folder, cluster.tier, cluster.class_path, node.pid)
