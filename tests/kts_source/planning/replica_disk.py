"""The disks of the brokers of a simulated partition, as files beside its tier."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kts_source.store.joined_store import beside
from segment_format.testing.segment import write_leader_epoch_checkpoint
from tests.kts_source.planning.replica import build, divergence, extend

if TYPE_CHECKING:
    import random

    from segment_format.testing import LogBuilder, SegmentFiles
    from tests.kts_source.planning.cluster import PartitionLife
    from tests.kts_source.planning.replica import Replica


def local_segments(replica: Replica, interval: int) -> tuple[SegmentFiles, ...]:
    """All segments that a replica ever had, the active one last."""
    builder: LogBuilder | None = None
    epoch = done = 0
    for stop in dict.fromkeys([*replica.rolls, replica.end]):
        fresh = [one for one in replica.entries if done <= one.base < stop]
        if not fresh:
            continue
        if builder is None:
            builder, epoch = build(fresh, interval), fresh[-1].epoch
        else:
            epoch = extend(builder, fresh, epoch)
        builder.roll()
        done = stop
    return () if builder is None else builder.build().segments


def copied_up_to(life: PartitionLife, replica: Replica) -> int:
    """Below it a broker may have deleted its own segments: they were copied."""
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
    """Writes log directories, one a broker.

    Args:
        store: Where to, as option `tailPath` is read.
        topic: Its name.
        topic_id: Its id.
        number: Of the broker.
        is_clean: Whether it was shut down cleanly.
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
        """Writes a replica; returns the first offset on the disk."""
        folder = f"{beside(self.number)}{self.topic}-{partition}/"
        segments = local_segments(replica, life.interval)
        gone = max(copied_up_to(life, replica), replica.log_start)
        droppable = [one for one in segments[:-1] if one.next_offset <= gone]
        kept = segments[source.randint(0, len(droppable)) :]
        local_start = kept[0].base_offset if kept else 0
        for segment in kept:
            stem = f"{folder}{segment.base_offset:020d}"
            is_active = segment is kept[-1]
            room = bytes(64) if is_active and not self.is_clean else b""
            self.store[f"{stem}.log"] = segment.log
            self.store[f"{stem}.index"] = segment.index + room
            self.store[f"{stem}.timeindex"] = segment.timeindex + room
            if segment.txnindex is not None:
                self.store[f"{stem}.txnindex"] = segment.txnindex
            if self.is_clean or not is_active:
                self.store[f"{folder}{segment.next_offset:020d}.snapshot"] = segment.snapshot
        before = [one for one in segments if one.next_offset == local_start]
        for segment in before:  # of what was deleted, the last snapshot stays
            self.store[f"{folder}{local_start:020d}.snapshot"] = segment.snapshot
        if not kept:
            self.store[f"{folder}{0:020d}.log"] = b""
        epochs = replica.epochs(replica.log_start, replica.end)
        if replica is life.leader and (not epochs or epochs[-1][0] != life.epoch):
            epochs = [one for one in epochs if one[1] < replica.end]
            epochs.append((life.epoch, replica.end))
        self.store[f"{folder}leader-epoch-checkpoint"] = write_leader_epoch_checkpoint(epochs)
        self.store[f"{folder}partition.metadata"] = (
            f"version: 0\ntopic_id: {self.topic_id}".encode()
        )
        recovery = replica.end
        if not self.is_clean and kept:
            recovery = source.choice([kept[0].base_offset, kept[-1].base_offset, replica.end])
        starts = replica.log_start
        if not self.is_clean and life.complete():  # written every minute only
            starts = source.choice((0, starts))
        for name, offset in (
            ("replication-offset-checkpoint", high_watermark),
            ("recovery-point-offset-checkpoint", recovery),
            ("log-start-offset-checkpoint", starts),
        ):
            self._marks.setdefault(name, []).append(f"{self.topic} {partition} {offset}")
        return local_start

    def close(self) -> None:
        """Writes what is of the whole directory."""
        for name, lines in self._marks.items():
            text = "\n".join(["0", str(len(lines)), *lines, ""])
            self.store[f"{beside(self.number)}{name}"] = text.encode()
        self.store[f"{beside(self.number)}meta.properties"] = b"version=1\n"
        if self.is_clean:
            self.store[f"{beside(self.number)}.kafka_cleanshutdown"] = b""
