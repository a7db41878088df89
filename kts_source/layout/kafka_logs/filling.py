"""Offsets that the replica chosen for a partition lacks, from other replicas of its branch.

A replica that was added late may begin at the tier's end (KIP-1023), and a copy of a disk may lack
logs in between. Another replica fills such a gap if both are proven to be of one branch: the epochs
of their checkpoints agree, and where the replicas overlap at the border of the gap, so do their
batches there. Source: `LeaderEpochFileCache`, `TierStateMachine`, `UnifiedLog` in Kafka.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from kts_source.layout.kafka_logs.described import described
from kts_source.layout.kafka_logs.log_dirs import LOG_STARTS
from kts_source.layout.kafka_logs.replica import Recovery, offset_index
from kts_source.layout.kafka_logs.segment_files import LostLog
from kts_source.layout.kafka_logs.surviving import (
    Branch,
    SurvivingLog,
    agreed_to,
    epoch_at,
)
from kts_source.layout.layout import Orphan
from kts_source.layout.remote_segment import IndexType, StoredIndex, epochs_between
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint
from segment_format.record.recovery import last_offset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.layout.kafka_logs.log_dirs import TopicPartition
    from kts_source.layout.kafka_logs.replica import Replica
    from kts_source.layout.kafka_logs.segment_files import SegmentFiles
    from kts_source.layout.layout import TopicFolder
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class ReplicaSource:
    """A replica and its segments below the end of the log.

    Attributes:
        segments: In order of offsets.
        recovery: Of the same replica.
    """

    replica: Replica
    segments: Sequence[tuple[RemoteSegment, SegmentFiles]]
    recovery: Recovery

    def runs(self) -> list[tuple[int, int]]:
        """Returns the offsets [start, stop) that it holds, without a gap in between."""
        runs: list[tuple[int, int]] = []
        for segment, _ in self.segments:
            start = max(segment.start_offset, self.replica.log_start)
            if start >= segment.stop_offset:
                continue
            if runs and runs[-1][1] == start:
                start = runs.pop()[0]
            runs.append((start, segment.stop_offset))
        return runs

    def is_decided_from(self, offset: int) -> bool:
        """Returns whether the indexes from an offset on know the transactions that were open
        there. Those of the disk do; those that were rebuilt need a snapshot to begin with.
        """
        after = [pair for pair in self.segments if pair[0].stop_offset > offset]
        kind = IndexType.TRANSACTION
        rebuilt = any(
            kind in segment.objects.indexes and segment.objects.indexes[kind].content is not None
            for segment, _ in after
        )
        return not rebuilt or self.recovery.knows_open(after[0][1].base_offset)


@dataclass(frozen=True, slots=True)
class FilledSpan:
    """Offsets [start, stop) that are read from another replica."""

    source: ReplicaSource
    start: int
    stop: int

    @property
    def segments(self) -> list[tuple[RemoteSegment, SegmentFiles]]:
        """The segments that hold them."""
        return [
            pair
            for pair in self.source.segments
            if pair[0].start_offset < self.stop and pair[0].stop_offset > self.start
        ]


class Filler:
    """Finds what other replicas hold of gaps. Used by one thread.

    Args:
        store: Where the replicas are.
        folder: Topic and topic id.
        partition: Its number.
        branch: The branch that survives.
        main: The replica that is read.
        others: The other replicas.
        low: First offset of the log.
        stop: One past the last offset that is read.

    Attributes:
        notes: Why a replica does not fill a gap that it has offsets of.
    """

    def __init__(
        self,
        store: ObjectStore,
        folder: TopicFolder,
        partition: int,
        branch: Branch,
        main: ReplicaSource,
        others: Sequence[Replica],
        low: int,
        stop: int,
    ) -> None:
        self._store = store
        self._folder = folder
        self._partition = partition
        self._branch = branch
        self._main = main
        self._others = sorted(
            others, key=lambda other: (other.log_start, -other.stop, other.folder)
        )
        self._low = low
        self._stop = stop
        self._sources: dict[str, ReplicaSource] = {}
        self.notes: list[Orphan] = []

    def fill(self, start: int, stop: int) -> list[FilledSpan]:
        """Returns the offsets of a gap [start, stop) that other replicas hold, from its end down to
        the first offset that none is proven to hold; in order of offsets.
        """
        spans: list[FilledSpan] = []
        at = stop
        while at > start:
            above = spans[-1].source if spans else self._above(stop)
            span = self._span(above, start, at)
            if span is None:
                break
            spans.append(span)
            at = span.start
        return spans[::-1]

    def _above(self, offset: int) -> ReplicaSource | None:
        """Returns the main replica where it holds an offset."""
        runs = self._main.runs()
        return self._main if any(low <= offset < high for low, high in runs) else None

    def _span(self, above: ReplicaSource | None, start: int, at: int) -> FilledSpan | None:
        for replica in self._others:
            if replica.log_start >= at or replica.stop <= start or not replica.segments:
                continue
            reason = ""
            if agreed_to(replica, self._branch) < at:
                reason = "they are of another branch"
            else:
                source = self._source(replica)
                run = next((one for one in source.runs() if one[0] < at <= one[1]), None)
                if run is None:
                    held = [one for one in source.runs() if one[0] < at and one[1] > start]
                    if not held:
                        continue
                    text = ", ".join(f"[{low}, {high})" for low, high in held)
                    reason = f"it holds {text}, which does not reach offset {at}"
                else:
                    low = max(run[0], start)
                    reason = self._mismatch(above, source, run, low, at)
                    if not reason:
                        return FilledSpan(source, low, at)
            self.note(replica, start, at, reason)
        return None

    def note(self, replica: Replica, start: int, stop: int, reason: str) -> None:
        """Notes that offsets of a replica are not read."""
        start, stop = max(start, replica.log_start), min(stop, replica.stop)
        text = f"offsets [{start}, {stop}) are not read: {reason}; {self._main.replica.folder} is"
        self.notes.append(Orphan((replica.folder,), f"{text} read"))

    def _mismatch(
        self,
        above: ReplicaSource | None,
        source: ReplicaSource,
        run: tuple[int, int],
        start: int,
        at: int,
    ) -> str:
        """Returns why a replica must not fill [start, at); empty if it may."""
        if above is None or run[1] == at:
            if not self._epochs_meet(above, source.replica, at):
                return f"no leader epoch proves that they are of the branch that is read at {at}"
        else:
            theirs, ours = source.recovery.batch_at(at), above.recovery.batch_at(at)
            if theirs is None or theirs != ours:
                return f"it has another batch at offset {at}"
        main = self._main
        if run[0] < start and any(low < start <= high for low, high in main.runs()):
            theirs, ours = source.recovery.batch_at(start - 1), main.recovery.batch_at(start - 1)
            if theirs is None or theirs != ours:
                return f"it has another batch below offset {start}"
        for part, first in ((above, at), (source, run[0])):
            if part is not None and first > self._low and not part.is_decided_from(first):
                return (
                    f"no producer snapshot tells which transactions were open at offset {first} of"
                    f" {part.replica.folder}"
                )
        return ""

    def _epochs_meet(self, above: ReplicaSource | None, replica: Replica, at: int) -> bool:
        """Returns whether leader epochs prove that a replica has the branch's batches below `at`:
        the branch names the epoch there, or the same epoch goes on.
        """
        if self._branch.log_start < at:
            return True  # `agreed_to` has compared them
        epoch = epoch_at(replica.lineage, at - 1)
        return above is not None and epoch >= 0 and epoch == epoch_at(above.replica.lineage, at)

    def _source(self, replica: Replica) -> ReplicaSource:
        if replica.folder not in self._sources:
            place = self._folder.topic, self._partition
            recovery = Recovery(self._store, replica.log_dir, place, replica.files)
            stop = max(
                min(replica.stop, self._stop, agreed_to(replica, self._branch)), replica.log_start
            )
            log = SurvivingLog(replica, stop, stop, None, ())
            segments, _ = described(self._store, self._folder, self._partition, log, recovery)
            self._sources[replica.folder] = ReplicaSource(replica, segments, recovery)
        return self._sources[replica.folder]


def recorded_start(
    place: TopicPartition, main: Replica, replicas: Sequence[Replica], branch: Branch
) -> int:
    """Returns the first offset of a log of which the main replica may lack the front.

    Brokers record the log start of tiered topics below the first segment that they hold, and that
    of others only above it.
    """
    own = main.log_dir.log_starts.get(place)
    if own is None or own >= main.log_start:
        return main.log_start
    known = [own]
    for replica in replicas:
        start = replica.log_dir.log_starts.get(place)
        if start is not None and start <= agreed_to(replica, branch):
            known.append(start)
    return min(max(known), main.log_start)


def joined_lineage(older: Sequence[FilledSpan], main: Replica, stop: int) -> tuple[EpochEntry, ...]:
    """Returns the leader epochs of filled spans below a replica, and of the replica itself."""
    pieces = [(span.source.replica.lineage, span.start, span.stop) for span in older]
    pieces.append((main.lineage, main.log_start, max(stop, main.log_start + 1)))
    entries: list[EpochEntry] = []
    for lineage, low, high in pieces:
        for entry in epochs_between(lineage, low, high - 1):
            if not entries or entry.epoch > entries[-1].epoch:
                entries.append(entry)
    return tuple(entries)


def with_lineage(segment: RemoteSegment, lineage: tuple[EpochEntry, ...]) -> RemoteSegment:
    """Returns a segment with the leader-epoch checkpoint of a joined log."""
    objects = segment.objects
    below = tuple(entry for entry in lineage if entry.start_offset < max(segment.stop_offset, 1))
    checkpoint = LeaderEpochCheckpoint(lineage).to_bytes()
    indexes = {
        **objects.indexes,
        IndexType.LEADER_EPOCH: StoredIndex.rebuilt(objects.log, checkpoint),
    }
    return replace(
        segment,
        leader_epochs=epochs_between(below, segment.start_offset, segment.end_offset),
        objects=replace(objects, indexes=indexes),
    )


def start_note(place: TopicPartition, main: Replica, low: int, first: int) -> Orphan:
    """Returns the note that no disk has the front of a log."""
    return Orphan(
        (main.log_dir.folder + LOG_STARTS,),
        f"it says that the log of {place[0]}-{place[1]} starts at offset {low}, and what is read"
        f" begins at {first}: older records were tiered, or are lost; read the tier, with the disks"
        " as option 'tailPath'",
    )


def with_missing_ends(
    store: ObjectStore, place: TopicPartition, replicas: Sequence[Replica]
) -> list[Replica]:
    """Returns replicas with the records that they lack between two of their logs.

    A log that was cut, or a segment whose files are all gone, leaves no trace on its own disk:
    compaction leaves such gaps, too. Another replica of the same branch that holds records there
    shows the loss, above the offset up to which the cleaner of one of them came.
    """
    cleaned = max((replica.log_dir.cleaned.get(place, 0) for replica in replicas), default=0)
    found = []
    for replica in replicas:
        others = [other for other in replicas if other is not replica]
        lost = [*_missing_ends(store, place, replica, others, cleaned)] if others else []
        if lost:
            logs = sorted((*replica.files.lost_logs, *lost), key=lambda log: log.base_offset)
            files = replace(replica.files, lost_logs=tuple(logs))
            # Transactions that began in the records that are missing are known from snapshots only.
            recovery = Recovery(store, replica.log_dir, place, files)
            found.append(recovery.replica(replica.folder))
        else:
            found.append(replica)
    return found


def _missing_ends(
    store: ObjectStore,
    place: TopicPartition,
    replica: Replica,
    others: Sequence[Replica],
    cleaned: int,
) -> Iterator[LostLog]:
    """Yields the records between two logs of a replica that another one holds. Reads the end of a
    log only where the other replica has other segments there, or a larger one.
    """
    branch = Branch(replica.lineage, replica.log_start, replica.stop)
    lost = [log.base_offset for log in replica.files.lost_logs]
    sizes = [({one.base_offset: one.log.size for one in other.segments}, other) for other in others]
    ordered = [(sorted(known), known, other) for known, other in sizes]
    for segment, following in pairwise(replica.segments):
        low = segment.base_offset
        high = min([following.base_offset, *(base for base in lost if base >= low)])
        if high <= max(low, cleaned, replica.log_start):
            continue
        unlike = [
            other
            for bases, known, other in ordered
            if other.log_start < high
            and other.stop > low
            and (
                bisect_left(bases, high) - bisect_right(bases, low) > 0
                or high not in known
                or known.get(low, 0) > segment.log.size
            )
        ]
        end = _end_of(store, segment) if unlike else None
        if end is None or not cleaned <= end < high:
            continue
        for other in unlike:
            batch = Recovery(store, other.log_dir, place, other.files).batch_at(end)
            if (
                batch is None
                or batch.base_offset >= high
                or batch.next_offset > min(other.stop, agreed_to(other, branch))
            ):
                continue
            reason = (
                f"its records end at offset {end}, the next log begins at {high}, and"
                f" {other.folder} holds records in between"
            )
            yield LostLog(end, segment.log, high, reason)
            break


def _end_of(store: ObjectStore, segment: SegmentFiles) -> int | None:
    """Returns one past the last offset of a log; `None` where its end cannot be read."""
    info, base = segment.log, segment.base_offset
    if not info.size:
        return base
    index = offset_index(store, segment)
    try:
        return 1 + last_offset(
            lambda start, stop: store.get_range(info.key, start, stop, version=info.version),
            info.size,
            0 if index is None else int(index.positions[-1]),
            base_offset=base,
            indexed=None if index is None else int(index.offsets[-1]),
        )
    except SegmentFormatError:
        return None
