"""One replica of a partition as a broker that starts on its disk would have it: recovered.

After a clean shutdown the files are what they say, but for the last log, which is looked at behind
its last index entry. Otherwise everything from the recovery point on is read: the log ends before
the first batch that is not whole, and indexes and transactions are worked out from batch headers,
since files that were not flushed prove nothing. Source: `LogLoader.load`, `UnifiedLog`,
`ProducerStateManager`, `LeaderEpochFileCache` in Kafka.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.errors import CorruptSegmentError
from kts_source.layout.kafka_logs.log_dirs import read_file
from kts_source.layout.kafka_logs.segment_files import (
    MAX_SIDE_FILE_BYTES,
    named_stop,
    partition_files,
)
from segment_format.errors import CorruptIndexError, SegmentFormatError
from segment_format.index.leader_epoch_checkpoint import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.offset_index import ENTRY_SIZE, OffsetIndex
from segment_format.index.producer_snapshot import open_first_offsets, parse_producer_snapshot
from segment_format.index.rebuild import RebuiltSideFiles
from segment_format.record.recovery import WholeBatches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.layout.kafka_logs.log_dirs import LogDir, TopicPartition
    from kts_source.layout.kafka_logs.segment_files import PartitionFiles, SegmentFiles
    from kts_source.store.object_store import ObjectStore
    from segment_format.record.batch_header import RecordBatchHeader

EPOCHS_FILE: Final = "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True)
class Walked:
    """What the batches of a segment tell.

    Attributes:
        size: Bytes of whole batches at its front.
        next_offset: One past the last of their offsets.
        side_files: Worked out from them.
        problem: Why the file is not whole behind them; empty where it is.
    """

    size: int
    next_offset: int
    side_files: RebuiltSideFiles
    problem: str


@dataclass(frozen=True, slots=True)
class Replica:
    """A recovered replica.

    Attributes:
        segments: In order of base offset, up to the one where the log ends.
        walked: By base offset, those that were recovered.
        log_start: First offset a consumer may see.
        stop: One past its last offset.
        stop_size: Bytes of the last segment that belong to the log.
        lineage: Leader epochs of all its offsets from the log start on.
        history: All leader epochs that the disk tells of: also those of offsets below, which were
            tiered, and of a leader that has not written anything yet, or of whose records nothing
            is left.
        high_watermark: As recorded; `None` where it is not.
        recovery_point: Everything below was flushed; `None` after a clean shutdown.
        problem: Why the last segment is not whole; empty where it is.
        dropped: Segments behind one that is not whole.
        lost_end: One past the last offset that side files of lost logs at the end name, and after a
            clean shutdown those of the last log; 0 where none lies above `stop`.
    """

    log_dir: LogDir
    folder: str
    files: PartitionFiles
    segments: tuple[SegmentFiles, ...]
    walked: Mapping[int, Walked]
    log_start: int
    stop: int
    stop_size: int
    lineage: tuple[EpochEntry, ...]
    history: tuple[EpochEntry, ...]
    high_watermark: int | None
    recovery_point: int | None
    problem: str
    dropped: tuple[SegmentFiles, ...]
    lost_end: int

    @property
    def lost_in_between(self) -> int:
        """Segments below the end whose log is lost."""
        logs = self.files.lost_logs
        return sum(self.log_start <= log.base_offset < self.stop for log in logs)

    @property
    def log_bytes(self) -> int:
        """Bytes of its log."""
        return sum(segment.log.size for segment in self.segments[:-1]) + self.stop_size

    @property
    def last_epoch(self) -> int:
        """The newest leader epoch that it tells of; −1 for none."""
        return self.history[-1].epoch if self.history else -1


def recovered(store: ObjectStore, log_dir: LogDir, place: TopicPartition) -> Replica:
    """Recovers a partition of a log directory in memory.

    Raises:
        CorruptSegmentError: What cannot be recovered: an epoch checkpoint that cannot be read, or
            messages of format 0 or 1 where batches must be looked at.
    """
    folder = log_dir.partitions[place]
    files = partition_files(store, folder)
    return Recovery(store, log_dir, place, files).replica(folder)


class Recovery:
    """Recovers one replica. Used by one thread."""

    def __init__(
        self, store: ObjectStore, log_dir: LogDir, place: TopicPartition, files: PartitionFiles
    ) -> None:
        self._store = store
        self._log_dir = log_dir
        self._place = place
        self._files = files
        self._bases = [segment.base_offset for segment in files.segments]
        self._walked: dict[int, Walked] = {}

    def replica(self, folder: str) -> Replica:
        """See `recovered`."""
        segments = self._files.segments
        log_start = self._log_dir.log_starts.get(self._place, 0)
        lost = [log.base_offset for log in self._files.lost_logs]
        log_start = max(log_start, min([*self._bases[:1], *lost[:1]], default=0))
        point = None
        last, problem, stop, size = len(segments) - 1, "", log_start, 0
        if not self._log_dir.is_clean:
            point = self._log_dir.recovery_points.get(self._place, 0)
        if segments and point is None:
            end = self._end_of_last()
            stop, size, problem = end.next_offset, end.position, end.problem
        elif segments and point is not None:
            for number in range(max(bisect_right(self._bases, point) - 1, 0), len(segments)):
                found = self.walk(number)
                self._walked[self._bases[number]] = found
                last, problem, stop, size = number, found.problem, found.next_offset, found.size
                if problem:
                    break
        kept, dropped = segments[: last + 1], segments[last + 1 :]
        if stop < log_start:  # `LogLoader` begins anew at the log start
            kept, dropped, stop, size = (), segments, log_start, 0
        history = self._history()
        lineage = self._lineage(history, log_start, stop)
        return Replica(
            self._log_dir,
            folder,
            self._files,
            kept,
            self._walked,
            log_start,
            stop,
            size,
            lineage,
            tuple(history) or lineage,
            (self._log_dir.high_watermarks or {}).get(self._place),
            point,
            problem,
            dropped,
            self._lost_end(stop, is_clean=point is None),
        )

    def _lost_end(self, stop: int, *, is_clean: bool) -> int:
        """Returns what `Replica.lost_end` is for a log that ends at `stop`.

        A broker that is shut down writes a producer snapshot at the end of its log. After a crash,
        side files of the last log may name offsets that were never flushed.
        """
        files = self._files
        ends = [log.stop for log in files.lost_logs if log.base_offset >= stop]
        last = files.segments[-1] if files.segments else None
        is_told = max(files.snapshots, default=-1) == stop and (last is None or last.log.size)
        if is_clean and not is_told:
            ends += files.snapshots
            if last is not None:
                ends.append(named_stop(self._store, last.base_offset, last.files))
        return max((end for end in ends if end > stop), default=0)

    def knows_open(self, base_offset: int | None = None) -> bool:
        """Returns whether something records which transactions were open where a segment begins.

        Args:
            base_offset: Of the segment; default: the first.
        """
        if not self._bases:
            return True
        number = 0 if base_offset is None else self._bases.index(base_offset)
        return self._known_at(number) is not None

    def batch_at(self, offset: int) -> RecordBatchHeader | None:
        """Returns the header of the first batch that ends after an offset.

        Returns:
            `None` where there is no such batch, or one of format 0 or 1.
        """
        for segment in self._files.segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            index = offset_index(self._store, segment)
            at = 0 if index is None else int(np.searchsorted(index.offsets, offset, side="right"))
            position = 0 if index is None or not at else int(index.positions[at - 1])
            batches = self._batches(segment, position=position, check_crcs=False)
            try:
                for batch in batches:
                    if batch.header.next_offset > offset:
                        return batch.header
            except SegmentFormatError:
                return None
        return None

    def walk(self, number: int, *, stop_offset: int | None = None) -> Walked:
        """Reads a segment from its front, to where it stops being whole, or up to an offset."""
        return self._walk(number, self._open_at(number), stop_offset=stop_offset, check_crcs=True)

    def _walk(
        self,
        number: int,
        open_before: Mapping[int, int],
        *,
        stop_offset: int | None = None,
        check_crcs: bool,
    ) -> Walked:
        segment = self._files.segments[number]
        batches = self._batches(segment, stop_offset=stop_offset, check_crcs=check_crcs)
        found = RebuiltSideFiles(segment.base_offset, segment.log.size, open_before)
        try:
            for batch in batches:
                found.add(batch)
        except SegmentFormatError as error:
            raise self._located(error, segment) from error
        return Walked(batches.position, batches.next_offset, found, batches.problem)

    def _batches(
        self,
        segment: SegmentFiles,
        *,
        position: int = 0,
        stop_offset: int | None = None,
        check_crcs: bool,
    ) -> WholeBatches:
        info = segment.log
        return WholeBatches(
            partial(self._store.get_range, info.key, version=info.version),
            info.size,
            segment.base_offset,
            position=position,
            stop_offset=stop_offset,
            check_crcs=check_crcs,
        )

    def _end_of_last(self) -> WholeBatches:
        """Goes over the end of the last log, from where its index leaves off."""
        segment = self._files.segments[-1]
        index = offset_index(self._store, segment)
        try:
            if index:
                batches = self._batches(
                    segment, position=int(index.positions[-1]), check_crcs=False
                )
                if len(index) > 1:
                    batches.next_offset = int(index.offsets[-2]) + 1
                first = next(iter(batches), None)
                if first is not None and first.header.base_offset <= int(index.offsets[-1]):
                    deque(batches, maxlen=0)
                    return batches
            batches = self._batches(segment, check_crcs=False)
            deque(batches, maxlen=0)
        except SegmentFormatError as error:
            raise self._located(error, segment) from error
        return batches

    def _open_at(self, number: int) -> Mapping[int, int]:
        """The transactions open where a segment begins: from the nearest sound snapshot, and the
        headers behind it.
        """
        first = number
        while not self._begins_anew(first) and self._known_at(first) is None:
            first -= 1
        is_open = self._known_at(first) or {}
        for between in range(first, number):
            found = self._walk(between, is_open, check_crcs=False)
            if found.problem:
                raise CorruptSegmentError(
                    f"{found.problem}; no sound producer snapshot behind it tells which"
                    " transactions are open",
                    topic=self._place[0],
                    partition=self._place[1],
                    offset=found.next_offset,
                    uri=self._store.uri(self._files.segments[between].log.key),
                    position=found.size,
                )
            is_open = found.side_files.open_after
        return is_open

    def _begins_anew(self, number: int) -> bool:
        """Returns whether batches right before a segment are not there: it is the first, or the log
        of the segment before it is lost.
        """
        if not number:
            return True
        before, base = self._bases[number - 1 : number + 1]
        return any(before <= log.base_offset < base for log in self._files.lost_logs)

    def _known_at(self, number: int) -> Mapping[int, int] | None:
        """The same, where a segment before it was walked or a snapshot tells."""
        if not self._begins_anew(number):
            before = self._walked.get(self._bases[number - 1])
            if before is not None:
                return before.side_files.open_after
        if self._bases[number] == 0:
            return {}
        info = self._files.snapshots.get(self._bases[number])
        if info is None:
            return None
        try:
            entries = parse_producer_snapshot(read_file(self._store, info, MAX_SIDE_FILE_BYTES))
        except CorruptIndexError:
            return None  # a broker deletes it and takes the one before
        return open_first_offsets(entries)

    def _history(self) -> list[EpochEntry]:
        """The leader epochs of the checkpoint, and of the batches that were read and that it does
        not tell of.
        """
        entries: list[EpochEntry] = []
        info = self._files.others.get(EPOCHS_FILE)
        if info is not None:
            try:
                data = read_file(self._store, info, MAX_SIDE_FILE_BYTES)
                entries += LeaderEpochCheckpoint.from_bytes(data).entries
            except SegmentFormatError as error:
                raise CorruptSegmentError(
                    error.message,
                    topic=self._place[0],
                    partition=self._place[1],
                    uri=self._store.uri(info.key),
                ) from error
        for base in sorted(self._walked):
            for entry in self._walked[base].side_files.epochs:
                if not entries or entry.epoch > entries[-1].epoch:
                    entries = [one for one in entries if one.start_offset < entry.start_offset]
                    entries.append(entry)
        return entries

    def _lineage(
        self, history: Sequence[EpochEntry], log_start: int, stop: int
    ) -> tuple[EpochEntry, ...]:
        """The leader epochs of [log_start, stop), also where the checkpoint does not tell."""
        entries = [entry for entry in history if entry.start_offset < stop]
        first = entries[0].start_offset if entries else stop
        if log_start < first:
            # A log start that was deleted up to is in this file before it is in its checkpoint.
            told = self._epochs_between(log_start, first)
            newest = told[-1].epoch if told else -1
            entries = [*told, *(entry for entry in entries if entry.epoch > newest)]
        below = [entry for entry in entries if entry.start_offset <= log_start]
        if below:
            entries = [replace(below[-1], start_offset=log_start), *entries[len(below) :]]
        return tuple(entries)

    def _epochs_between(self, start: int, stop: int) -> list[EpochEntry]:
        """The leader epochs that the batches of [start, stop) name."""
        found: list[EpochEntry] = []
        first = max(bisect_right(self._bases, start) - 1, 0)
        for segment in self._files.segments[first:]:
            if segment.base_offset >= stop:
                break
            try:
                for batch in self._batches(segment, stop_offset=stop, check_crcs=False):
                    header = batch.header
                    epoch = header.partition_leader_epoch
                    newest = found[-1].epoch if found else -1
                    if header.next_offset > start and epoch > newest:
                        found.append(EpochEntry(epoch, max(header.base_offset, start)))
            except SegmentFormatError as error:
                raise self._located(error, segment) from error
        return found

    def _located(self, error: SegmentFormatError, segment: SegmentFiles) -> CorruptSegmentError:
        return CorruptSegmentError(
            error.message,
            topic=self._place[0],
            partition=self._place[1],
            offset=segment.base_offset if error.offset is None else error.offset,
            uri=self._store.uri(segment.log.key),
            position=error.position,
        )


def offset_index(store: ObjectStore, segment: SegmentFiles) -> OffsetIndex | None:
    """The offset index without zeros that were allocated ahead; `None` where it has no entry, or
    does not fit the log.
    """
    info = segment.files.get("index")
    if info is None:
        return None
    data = read_file(store, info, MAX_SIDE_FILE_BYTES).rstrip(b"\0")
    data += bytes(-len(data) % ENTRY_SIZE)
    try:
        index = OffsetIndex.from_bytes(data, base_offset=segment.base_offset)
    except SegmentFormatError:
        return None
    return index if len(index) and int(index.positions[-1]) < segment.log.size else None
