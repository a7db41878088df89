"""Chooses the replica of a partition to read. If the chosen replica lacks offsets, finds other
replicas that have them.

Replicas may have different histories of leader epochs (branches). The branch with the highest
leader epoch survives; all other branches are dead. The replica with the highest offset on the
surviving branch is read, because electing it as leader would lose the fewest records. The high
watermark of a replica is used only if the replica agrees with this branch on all lower offsets.

The chosen replica may lack offsets: a replica that was added late begins at the tier's end
(KIP-1023), and a copy of a disk may lack `.log` files in between. Another replica fills such a gap
if it is proven to be on the branch of the chosen replica: the epochs of both checkpoints must
agree. If both replicas have batches at the border of the gap, these batches must be equal, too.

Source: KIP-101, `LeaderEpochFileCache.endOffsetFor`, `ReplicaManager`, `TierStateMachine`,
`UnifiedLog` in Kafka.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from kts_source.errors import DataLossError
from kts_source.layout.kafka_logs.log_dirs import LOG_STARTS, LostLog
from kts_source.layout.kafka_logs.recovered_segments import described
from kts_source.layout.kafka_logs.replica import Recovery, SurvivingLog, offset_index
from kts_source.layout.layout import Orphan, read_last_offset
from kts_source.layout.remote_segment import IndexType, StoredIndex, epochs_between
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.layout.kafka_logs.log_dirs import SegmentFiles, TopicPartition
    from kts_source.layout.kafka_logs.replica import Replica
    from kts_source.layout.layout import TopicFolder
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectStore

MAX_OFFSET: Final = (1 << 63) - 1
_NO_MARK: Final = "no high watermark is recorded, so its records are not read: see endOfLog"


@dataclass(frozen=True, slots=True)
class Branch:
    """A history of leader epochs, which determines one version of a log.

    Attributes:
        lineage: Leader epochs with their first offsets.
        log_start: First offset with a known epoch.
        stop: One past the last offset with a known epoch.
    """

    lineage: tuple[EpochEntry, ...]
    log_start: int
    stop: int


def newest_branch(replicas: Sequence[Replica]) -> Branch:
    """Returns the branch with the highest leader epoch of all replicas."""
    newest = max(replicas, key=lambda replica: (replica.last_epoch, replica.stop, replica.folder))
    start = newest.history[0].start_offset if newest.history else newest.log_start
    return Branch(newest.history, start, MAX_OFFSET)


def longest_replica(replicas: Sequence[Replica], branch: Branch) -> Replica:
    """Returns the replica with the highest end offset on a branch.

    If several replicas have the same end, prefers the replica with the fewest lost logs, then the
    replica with the most bytes. A smaller size may be the only sign that files are missing or
    truncated.
    """
    return max(
        replicas,
        key=lambda replica: (
            _end_on_branch(replica, branch),
            -replica.lost_in_between,
            replica.log_bytes,
            replica.last_epoch,
            replica.high_watermark or -1,
            -replica.log_start,
            replica.folder,
        ),
    )


def end_of_agreement(log: Replica | Branch, branch: Branch) -> int:
    """Returns the first offset at which the leader epochs of `log` and `branch` differ;
    `MAX_OFFSET` if they never differ. Returns −1 if they differ at the first offset that both have:
    they may have diverged at any lower offset.
    """
    diverges = first_difference(log, branch)
    if diverges is None:
        return MAX_OFFSET
    return diverges if diverges > max(log.log_start, branch.log_start) else -1


def _end_on_branch(replica: Replica, branch: Branch) -> int:
    """Returns one past the last offset of `replica` on `branch`; −1 if no offset of the replica is
    on the branch.
    """
    return min(replica.stop, end_of_agreement(replica, branch))


def surviving_log(
    topic_partition: TopicPartition,
    replicas: Sequence[Replica],
    *,
    end_of_log: bool,
    branch: Branch | None = None,
    replicated: int = 0,
) -> SurvivingLog:
    """Chooses the replica to read, and the end of its log.

    Args:
        topic_partition: Topic and partition, for errors.
        replicas: The replicas of the partition, at least one.
        end_of_log: True to read all complete batches; False to read only replicated offsets.
        branch: The branch that survives; default: the newest branch. The replica with the highest
            offset on this branch is read, up to the offset at which it diverges from the branch.
        replicated: Offsets below `replicated` always count as replicated.

    Raises:
        DataLossError: There are records, but no checkpoint with high watermarks.
    """
    branch = branch or newest_branch(replicas)
    best = longest_replica(replicas, branch)
    notes = [*_notes_on_dead_branches(replicas, branch, best)]
    marks = [
        replica.high_watermark
        for replica in replicas
        if replica.high_watermark is not None
        and replica.high_watermark <= end_of_agreement(replica, branch)
    ]
    end, flushed = _end_on_branch(best, branch), best.recovery_point or 0
    if end < best.log_start:  # no offset on the disks is of the branch
        return SurvivingLog(best, 0, 0, None, tuple(notes))
    if end_of_log:
        recorded = [flushed, best.lost_end] if end == best.stop else []
        stop, expected_stop = end, max([end, *recorded, *marks])
    elif marks:
        expected_stop = max([best.log_start, *marks])
        stop = min(end, max(expected_stop, replicated))
    elif any(replica.log_dir.high_watermarks is not None for replica in replicas):
        # The checkpoint does not name this partition. Brokers write it every few seconds, so the
        # partition is new. A starting broker would assume that no offset was replicated.
        expected_stop = best.log_start
        stop = min(end, max(expected_stop, replicated))
        if end > stop:
            notes.append(Orphan((best.folder,), _NO_MARK))
    elif end == best.log_start or replicated >= end:
        stop = expected_stop = end
    else:
        raise DataLossError(
            "no log directory has replication-offset-checkpoint, so it is unknown up to which"
            " offset records were replicated. Set endOfLog=true to read all complete batches",
            topic=topic_partition[0],
            partition=topic_partition[1],
        )
    stop = max(stop, best.log_start)
    if best.lost_end > expected_stop:
        notes.append(_note_on_lost_end(best))
    notes += _notes_on_unread_files(best, lost=expected_stop > stop)
    return SurvivingLog(best, stop, expected_stop, max(marks, default=None), tuple(notes))


def _notes_on_dead_branches(
    replicas: Sequence[Replica], branch: Branch, best: Replica
) -> Iterator[Orphan]:
    for replica in replicas:
        diverges = first_difference(replica, branch)
        if diverges is not None:
            reason = f"from offset {diverges} on it is on an abandoned branch"
            reason += f"; {best.folder} is read" if replica is not best else ""
            yield Orphan((replica.folder,), reason)


def _note_on_lost_end(replica: Replica) -> Orphan:
    logs = [log for log in replica.files.lost_logs if log.base_offset >= replica.stop]
    return Orphan(
        tuple(log.info.key for log in logs) or (replica.folder,),
        f"offsets [{replica.stop}, {replica.lost_end}) are in no log, although side files name"
        " them. They were not replicated, so they do not count as lost: see option endOfLog",
    )


def _notes_on_unread_files(replica: Replica, *, lost: bool) -> Iterator[Orphan]:
    yield from replica.files.not_read
    if replica.problem and replica.segments and not lost:  # losses are reported separately
        log = replica.segments[-1].log
        yield Orphan(
            (log.key,),
            f"incomplete from position {replica.stop_size} on, offset {replica.stop}:"
            f" {replica.problem}; later records are not read",
        )
    above = [offset for offset in replica.files.snapshots if offset > replica.stop]
    if above and not replica.problem and replica.recovery_point is not None:
        key = replica.files.snapshots[max(above)].key
        text = f"a snapshot above the end of the log, {replica.stop}: records before the snapshot"
        yield Orphan((key,), f"{text} were lost or never flushed")
    for segment in replica.dropped:
        yield Orphan((segment.log.key,), "not read, because it is after an incomplete segment")


def first_difference(log: Replica | Branch, branch: Branch) -> int | None:
    """Returns the first offset that has different leader epochs in `log` and in `branch`; `None` if
    there is none.
    """
    low = max(log.log_start, branch.log_start)
    high = min(log.stop, branch.stop)
    starts = {entry.start_offset for entry in (*log.lineage, *branch.lineage)}
    for offset in sorted({low, *starts}):
        if low <= offset < high and epoch_at(log.lineage, offset) != epoch_at(
            branch.lineage, offset
        ):
            return offset
    return None


def epoch_at(lineage: Sequence[EpochEntry], offset: int) -> int:
    """Returns the leader epoch of an offset; −1 if `lineage` has no epoch for it."""
    number = bisect_right(lineage, offset, key=lambda entry: entry.start_offset) - 1
    return lineage[number].epoch if number >= 0 else -1


@dataclass(frozen=True, slots=True)
class ReplicaSource:
    """A replica from which records may be read, and its segments below the end of the log."""

    replica: Replica
    segments: Sequence[tuple[RemoteSegment, SegmentFiles]]
    recovery: Recovery

    def runs(self) -> list[tuple[int, int]]:
        """Returns the offset ranges [start, stop) in which the replica has no gap."""
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
        """Returns whether the transaction indexes of the segments with records at or above `offset`
        are complete.

        Transaction indexes on the disk are complete. Rebuilt indexes are complete only if a
        snapshot records which transactions were open at the start of the first rebuilt segment.
        """
        after = [pair for pair in self.segments if pair[0].stop_offset > offset]
        kind = IndexType.TRANSACTION
        is_rebuilt = any(
            kind in segment.objects.indexes and segment.objects.indexes[kind].content is not None
            for segment, _ in after
        )
        return not is_rebuilt or self.recovery.records_open_at_start(after[0][1].base_offset)


@dataclass(frozen=True, slots=True)
class FilledSpan:
    """Offsets [start, stop) of a gap that are read from another replica."""

    source: ReplicaSource
    start: int
    stop: int

    @property
    def segments(self) -> list[tuple[RemoteSegment, SegmentFiles]]:
        """The segments of `source` that have offsets of the span, with their files."""
        return [
            pair
            for pair in self.source.segments
            if pair[0].start_offset < self.stop and pair[0].stop_offset > self.start
        ]


class Filler:
    """Finds other replicas that have the offsets that the main replica lacks. Not thread-safe.

    Args:
        branch: The branch that survives.
        main: The chosen replica.
        low: First offset of the log.
        stop: One past the last offset to read.

    Attributes:
        notes: Reasons why a replica with offsets of a gap was not used for them.
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
        """Fills a gap [start, stop) with spans of other replicas, from its end downwards. Stops at
        the first offset for which no replica is proven to be on the branch. Returns the spans in
        ascending order of offsets.
        """
        spans: list[FilledSpan] = []
        end = stop
        while end > start:
            above = spans[-1].source if spans else self._main_source_at(stop)
            span = self._span(above, start, end)
            if span is None:
                break
            spans.append(span)
            end = span.start
        return spans[::-1]

    def note(self, replica: Replica, start: int, stop: int, reason: str) -> None:
        """Adds a note that the offsets [start, stop) of a replica are not read."""
        start, stop = max(start, replica.log_start), min(stop, replica.stop)
        text = f"offsets [{start}, {stop}) are not read: {reason}; {self._main.replica.folder} is"
        self.notes.append(Orphan((replica.folder,), f"{text} read"))

    def _main_source_at(self, offset: int) -> ReplicaSource | None:
        """Returns the main replica if it has the offset; otherwise `None`."""
        return self._main if any(low <= offset < high for low, high in self._main.runs()) else None

    def _span(self, above: ReplicaSource | None, start: int, end: int) -> FilledSpan | None:
        for replica in self._others:
            if replica.log_start >= end or replica.stop <= start or not replica.segments:
                continue
            if end_of_agreement(replica, self._branch) < end:
                self.note(replica, start, end, "they are on another branch")
                continue
            source = self._source(replica)
            runs = source.runs()
            run = next((run for run in runs if run[0] < end <= run[1]), None)
            if run is not None:
                low = max(run[0], start)
                reason = self._reason_not_to_fill(above, source, run, low, end)
                if not reason:
                    return FilledSpan(source, low, end)
                self.note(replica, start, end, reason)
            elif held := [run for run in runs if run[0] < end and run[1] > start]:
                text = ", ".join(f"[{low}, {high})" for low, high in held)
                reason = f"it holds {text}, which does not reach offset {end}"
                self.note(replica, start, end, reason)
        return None

    def _reason_not_to_fill(
        self,
        above: ReplicaSource | None,
        source: ReplicaSource,
        run: tuple[int, int],
        start: int,
        end: int,
    ) -> str:
        """Returns why the replica `source` must not fill the offsets [start, end) of a gap; an
        empty text if it may. `above` is the replica from which offset `end` is read.
        """
        if above is None or run[1] == end:
            if not self._epochs_meet(above, source.replica, end):
                return f"no leader epoch proves that they are on the branch of offset {end}"
        elif not _have_same_batch(source, above, end):
            return f"it has another batch at offset {end}"
        main = self._main
        if (
            run[0] < start
            and any(low < start <= high for low, high in main.runs())
            and not _have_same_batch(source, main, start - 1)
        ):
            return f"it has another batch below offset {start}"
        for side, first in ((above, end), (source, run[0])):
            if side is not None and first > self._low and not side.is_decided_from(first):
                return (
                    f"no producer snapshot lists the transactions open at offset {first} of"
                    f" {side.replica.folder}"
                )
        return ""

    def _epochs_meet(self, above: ReplicaSource | None, replica: Replica, end: int) -> bool:
        """Returns whether leader epochs prove that the batches of a replica below `end` are on the
        branch: the branch has an epoch for these offsets, or their epoch continues above `end`.
        """
        if self._branch.log_start < end:
            return True  # `end_of_agreement` has compared them
        epoch = epoch_at(replica.lineage, end - 1)
        return above is not None and epoch >= 0 and epoch == epoch_at(above.replica.lineage, end)

    def _source(self, replica: Replica) -> ReplicaSource:
        if replica.folder not in self._sources:
            topic_partition = self._folder.topic, self._partition
            recovery = Recovery(self._store, replica.log_dir, topic_partition, replica.files)
            stop = max(
                min(replica.stop, self._stop, end_of_agreement(replica, self._branch)),
                replica.log_start,
            )
            log = SurvivingLog(replica, stop, stop, None, ())
            segments, _ = described(self._store, self._folder, self._partition, log, recovery)
            self._sources[replica.folder] = ReplicaSource(replica, segments, recovery)
        return self._sources[replica.folder]


def _have_same_batch(left: ReplicaSource, right: ReplicaSource, offset: int) -> bool:
    batch = left.recovery.batch_at(offset)
    return batch is not None and batch == right.recovery.batch_at(offset)


def recorded_start(
    topic_partition: TopicPartition, main: Replica, replicas: Sequence[Replica], branch: Branch
) -> int:
    """Returns the first offset of a log, which may be below the first offset of the main replica.

    Brokers record the log start of a tiered topic if it is below the first segment on their disk.
    They record the log start of other topics only if it is above the base offset of the first
    segment.
    """
    own = main.log_dir.log_starts.get(topic_partition)
    if own is None or own >= main.log_start:
        return main.log_start
    recorded = [own]
    for replica in replicas:
        start = replica.log_dir.log_starts.get(topic_partition)
        if start is not None and start <= end_of_agreement(replica, branch):
            recorded.append(start)
    return min(max(recorded), main.log_start)


def joined_lineage(older: Sequence[FilledSpan], main: Replica, stop: int) -> tuple[EpochEntry, ...]:
    """Returns the leader epochs of a log that consists of filled spans and, after them, the main
    replica up to `stop`.
    """
    pieces = [(span.source.replica.lineage, span.start, span.stop) for span in older]
    pieces.append((main.lineage, main.log_start, max(stop, main.log_start + 1)))
    entries: list[EpochEntry] = []
    for lineage, low, high in pieces:
        for entry in epochs_between(lineage, low, high - 1):
            if not entries or entry.epoch > entries[-1].epoch:
                entries.append(entry)
    return tuple(entries)


def with_lineage(segment: RemoteSegment, lineage: tuple[EpochEntry, ...]) -> RemoteSegment:
    """Returns a segment with `lineage` as its leader-epoch checkpoint. Its `leader_epochs` are the
    entries of `lineage` for the offsets of the segment.
    """
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


def start_note(topic_partition: TopicPartition, main: Replica, low: int, first: int) -> Orphan:
    """Returns a note that no disk has the offsets [low, first) at the start of a log."""
    return Orphan(
        (main.log_dir.folder + LOG_STARTS,),
        f"it records that the log of {topic_partition[0]}-{topic_partition[1]} starts at offset"
        f" {low}, but no disk has offsets below {first}: older records were tiered, or are lost."
        " To read tiered records, set option 'path' to the tier and 'tailPath' to the disks",
    )


def with_lost_logs_in_gaps(
    store: ObjectStore, topic_partition: TopicPartition, replicas: Sequence[Replica]
) -> list[Replica]:
    """Returns the replicas. If a replica lacks records between two of its `.log` files, adds them
    to its attribute `files.lost_logs`.

    A gap between two files is no proof of loss: the first file may be truncated, a segment may be
    missing, or compaction may have removed the records. The records are lost if another replica of
    the same branch has records in the gap, and no log cleaner has compacted these offsets.
    """
    cleaned = max(
        (replica.log_dir.cleaned.get(topic_partition, 0) for replica in replicas), default=0
    )
    completed = []
    for replica in replicas:
        others = [other for other in replicas if other is not replica]
        lost = (
            [*_lost_logs_in_gaps(store, topic_partition, replica, others, cleaned)]
            if others
            else []
        )
        if lost:
            logs = sorted((*replica.files.lost_logs, *lost), key=lambda log: log.base_offset)
            files = replace(replica.files, lost_logs=tuple(logs))
            # Recover again, because transactions that began in the missing records are known only
            # from snapshots.
            replica = Recovery(store, replica.log_dir, topic_partition, files).replica(
                replica.folder
            )
        completed.append(replica)
    return completed


def _lost_logs_in_gaps(
    store: ObjectStore,
    topic_partition: TopicPartition,
    replica: Replica,
    others: Sequence[Replica],
    cleaned: int,
) -> Iterator[LostLog]:
    """Yields a `LostLog` for each gap between two `.log` files of `replica` in which another
    replica has records. The gap begins after the last record of the first file.

    To save time, the end of a file is read only if another replica has a larger file with this base
    offset, or files with other base offsets.
    """
    branch = Branch(replica.lineage, replica.log_start, replica.stop)
    lost = [log.base_offset for log in replica.files.lost_logs]
    sizes = [
        ({segment.base_offset: segment.log.size for segment in other.segments}, other)
        for other in others
    ]
    ordered = [(sorted(by_base), by_base, other) for by_base, other in sizes]
    for segment, following in pairwise(replica.segments):
        low = segment.base_offset
        high = min([following.base_offset, *(base for base in lost if base >= low)])
        if high <= max(low, cleaned, replica.log_start):
            continue
        unlike = [
            other
            for bases, by_base, other in ordered
            if other.log_start < high
            and other.stop > low
            and (
                bisect_left(bases, high) - bisect_right(bases, low) > 0
                or low not in by_base
                or high not in by_base
                or by_base.get(low, 0) > segment.log.size
            )
        ]
        end = _last_file_stop(store, segment) if unlike else None
        if end is None or not cleaned <= end < high:
            continue
        for other in unlike:
            batch = Recovery(store, other.log_dir, topic_partition, other.files).batch_at(end)
            if (
                batch is None
                or batch.base_offset >= high
                or batch.next_offset > min(other.stop, end_of_agreement(other, branch))
            ):
                continue
            reason = (
                f"its records end at offset {end}, the next log begins at {high}, and"
                f" {other.folder} holds records in between"
            )
            yield LostLog(end, segment.log, high, reason)
            break


def _last_file_stop(store: ObjectStore, segment: SegmentFiles) -> int | None:
    """Returns one past the last offset in the `.log` file of a segment; `None` if the end of the
    file cannot be read.
    """
    info, base = segment.log, segment.base_offset
    if not info.size:
        return base
    index = offset_index(store, segment)
    try:
        return 1 + read_last_offset(store, info, base, index)
    except SegmentFormatError:
        return None
