"""Writes the broker disks of a simulated partition into the store of its tier."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kts_source.store.joined_store import additional_store_prefix
from segment_format.testing.segment import write_leader_epoch_checkpoint
from tests.kts_source.planning.replica import build, divergence, extend

if TYPE_CHECKING:
    import random

    from segment_format.testing import LogBuilder, SegmentFiles
    from tests.kts_source.planning.cluster import PartitionLife
    from tests.kts_source.planning.replica import Replica


def build_local_segments(replica: Replica, interval: int) -> tuple[SegmentFiles, ...]:
    """Returns all segments of a replica, including segments that the broker can delete.

    The active segment is last.
    """
    builder: LogBuilder | None = None
    epoch = next_offset = 0
    for stop in dict.fromkeys([*replica.rolls, replica.end]):
        new_entries = [entry for entry in replica.entries if next_offset <= entry.base < stop]
        if not new_entries:
            continue
        if builder is None:
            builder, epoch = build(new_entries, interval), new_entries[-1].epoch
        else:
            epoch = extend(builder, new_entries, epoch)
        builder.roll()
        next_offset = stop
    return () if builder is None else builder.build().segments


def find_copied_stop(life: PartitionLife, replica: Replica) -> int:
    """Returns the offset up to which finished uploads contain the same entries as the log of
    `replica`. A broker may delete its segments below this offset.
    """
    return max(
        (
            min(copy.stop, divergence(copy.log, replica.entries))
            for copy in life.uploads
            if copy.finished
        ),
        default=0,
    )


@dataclass(slots=True)
class DiskWriter:
    """Writes the log directory of one broker.

    Args:
        store: Receives the files by key. Scans read them with option `tailPath`.
        topic: Topic name.
        topic_id: Topic id.
        number: Number of the broker.
        is_clean: Whether the broker was shut down cleanly.
    """

    store: dict[str, bytes]
    topic: str
    topic_id: str
    number: int
    is_clean: bool
    _marks: dict[str, list[str]] = field(default_factory=dict)

    def write(
        self,
        life: PartitionLife,
        partition: int,
        replica: Replica,
        high_watermark: int,
        source: random.Random,
    ) -> int:
        """Writes the partition folder of a replica. Omits some of the oldest segments that the
        broker may delete; their number is random. Returns the first offset on the disk.
        """
        folder = f"{additional_store_prefix(self.number)}{self.topic}-{partition}/"
        segments = build_local_segments(replica, life.interval)
        deletable_stop = max(find_copied_stop(life, replica), replica.log_start)
        droppable = [segment for segment in segments[:-1] if segment.next_offset <= deletable_stop]
        kept = segments[source.randint(0, len(droppable)) :]
        local_start = kept[0].base_offset if kept else 0
        for segment in kept:
            stem = f"{folder}{segment.base_offset:020d}"
            is_active = segment is kept[-1]
            padding = bytes(64) if is_active and not self.is_clean else b""
            self.store[f"{stem}.log"] = segment.log
            self.store[f"{stem}.index"] = segment.index + padding
            self.store[f"{stem}.timeindex"] = segment.timeindex + padding
            if segment.txnindex is not None:
                self.store[f"{stem}.txnindex"] = segment.txnindex
            if self.is_clean or not is_active:
                self.store[f"{folder}{segment.next_offset:020d}.snapshot"] = segment.snapshot
        before = [segment for segment in segments if segment.next_offset == local_start]
        for segment in before:  # the last snapshot of the deleted segments remains
            self.store[f"{folder}{local_start:020d}.snapshot"] = segment.snapshot
        if not kept:
            self.store[f"{folder}{0:020d}.log"] = b""
        epochs = replica.epochs(replica.log_start, replica.end)
        if replica is life.leader and (not epochs or epochs[-1][0] != life.epoch):
            epochs = [entry for entry in epochs if entry[1] < replica.end]
            epochs.append((life.epoch, replica.end))
        self.store[f"{folder}leader-epoch-checkpoint"] = write_leader_epoch_checkpoint(epochs)
        self.store[f"{folder}partition.metadata"] = (
            f"version: 0\ntopic_id: {self.topic_id}".encode()
        )
        recovery = replica.end
        if not self.is_clean and kept:
            recovery = source.choice([kept[0].base_offset, kept[-1].base_offset, replica.end])
        recorded_start = replica.log_start
        # Brokers write the checkpoint of log starts only once a minute.
        if not self.is_clean and life.complete():
            recorded_start = source.choice((0, recorded_start))
        for name, offset in (
            ("replication-offset-checkpoint", high_watermark),
            ("recovery-point-offset-checkpoint", recovery),
            ("log-start-offset-checkpoint", recorded_start),
        ):
            self._marks.setdefault(name, []).append(f"{self.topic} {partition} {offset}")
        return local_start

    def close(self) -> None:
        """Writes the files of the log directory that are outside the partition folders."""
        for name, lines in self._marks.items():
            text = "\n".join(["0", str(len(lines)), *lines, ""])
            self.store[f"{additional_store_prefix(self.number)}{name}"] = text.encode()
        self.store[f"{additional_store_prefix(self.number)}meta.properties"] = b"version=1\n"
        if self.is_clean:
            self.store[f"{additional_store_prefix(self.number)}.kafka_cleanshutdown"] = b""
