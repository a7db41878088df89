"""A real Kafka broker with tiered storage on a folder: one node, KRaft, on free local ports."""

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


def once_it_leads(ask: Callable[[], T]) -> T:
    """An answer of a broker that has just started, once it leads what is asked for."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _UNSETTLED or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@dataclass(frozen=True)
class Broker:
    """A broker that runs.

    Attributes:
        bootstrap: Where clients find it.
        folder: Everything it writes.
        tier: The storage plugin's folder, which outlives the broker.
        pid: Of its process.
    """

    bootstrap: str
    folder: Path
    tier: Path
    class_path: str
    pid: int

    def new_admin(self) -> AdminClient:
        """An admin client; it must outlive the futures that it gives."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topics(self, partitions: Mapping[str, int], **settings: str) -> None:
        """Creates tiered topics.

        Args:
            partitions: Topic to its number of partitions.
            settings: Topic settings with `_` for `.`, on top of `TIERED`.
        """
        config = {**TIERED, **{k.replace("_", "."): v for k, v in settings.items()}}
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

        def ask() -> PartitionOffsets:
            futures = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
            found = ((at, future.result().offset) for at, future in futures.items())
            return {(at.topic, at.partition): offset for at, offset in found}

        return once_it_leads(ask)

    def console_offsets(self, topic: str, partition: int, start: int, isolation: str) -> list[int]:
        """The offsets that Kafka's console consumer prints from an offset on; nothing for 15 s is
        the end.
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
        # It ends once nothing comes, by an error or not; the counting line is its last word.
        if "Processed a total of" not in run.stderr:
            raise RuntimeError(f"ConsoleConsumer failed:\n{run.stderr[-2000:]}")
        return [int(number) for number in re.findall(r"^Offset:(\d+)", run.stdout, re.MULTILINE)]

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
    """Starts and in the end stops a broker; formats its disk unless there is one already.

    Args:
        folder: Holds the broker's files and log in `node-1`, its disk in `node-1/logs`, and the
            tier in `tier`.
        settings: More broker settings.

    Raises:
        RuntimeError: The broker did not start; with the end of its log.
    """
    with Cluster(folder, ClusterSpec(settings={**BUSY, **settings})) as cluster:
        node = cluster.nodes[1]
        yield Broker(node.bootstrap, node.folder, cluster.tier, cluster.class_path, node.pid)
