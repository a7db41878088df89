"""Recovers one replica of a partition in memory, like a broker that starts with its disk.

After a clean shutdown, all files are trusted. Only the batches after the last index entry of the
last `.log` file are read.

After a crash, all batches from the recovery point on are read, and the log ends before the first
incomplete batch. Indexes and transactions are rebuilt from batch headers, because index files and
snapshots may not have been flushed.

Source: `LogLoader.load`, `UnifiedLog`, `ProducerStateManager`, `LeaderEpochFileCache` in Kafka.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.errors import CorruptSegmentError
from kts_source.layout.kafka_logs.log_dirs import (
    MAX_SIDE_FILE_BYTES,
    named_stop,
    partition_files,
    read_file,
)
from kts_source.layout.layout import read_last_offset
from segment_format.errors import CorruptIndexError, SegmentFormatError
from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import open_first_offsets, parse_producer_snapshot
from segment_format.index.rebuild import RebuiltSideFiles
from segment_format.index.sparse_indexes import OFFSET_ENTRY_SIZE, OffsetIndex
from segment_format.record.recovery import WholeBatches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.layout.kafka_logs.log_dirs import (
        LogDir,
        PartitionFiles,
        SegmentFiles,
        TopicPartition,
    )
    from kts_source.layout.layout import Orphan
    from kts_source.store.object_store import ObjectStore
    from segment_format.record.batch_header import RecordBatchHeader

EPOCHS_FILE: Final = "leader-epoch-checkpoint"


@dataclass(frozen=True, slots=True)
class Walked:
    """The result of reading the batches of a segment.

    Attributes:
        size: Bytes of the complete batches at the start of the segment.
        next_offset: One past the last offset of the complete batches.
        side_files: Side files rebuilt from the complete batches.
        problem: Why the batch after the complete batches is incomplete; empty if the file ends
            after the complete batches.
    """

    size: int
    next_offset: int
    side_files: RebuiltSideFiles
    problem: str


@dataclass(frozen=True, slots=True)
class Replica:
    """A recovered replica.

    Attributes:
        segments: Segments in order of base offset, up to the segment with the end of the log.
        walked: Result of reading the batches of a segment, by base offset. Contains only segments
            that were read.
        log_start: First offset that a consumer may see.
        stop: One past the last offset of the replica.
        stop_size: Bytes of the last segment that belong to the log.
        lineage: Leader epochs of all offsets from the log start on.
        history: All leader epochs on the disk, including epochs of tiered offsets below the log
            start, and epochs of leaders that wrote no records.
        high_watermark: Recorded high watermark, or `None`.
        recovery_point: All records below this offset were flushed; `None` after a clean shutdown.
        problem: Why the last segment is incomplete; empty if it is complete.
        dropped: Segments after an incomplete segment; they are not part of the log.
        lost_end: One past the last offset of records that were lost at the end of the log; 0 if the
            side files show no such loss. The offset is from side files of segments without a `.log`
            file and, after a clean shutdown, of the last segment.
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
        """Number of segments below the end of the log that have lost records."""
        logs = self.files.lost_logs
        return sum(self.log_start <= log.base_offset < self.stop for log in logs)

    @property
    def log_bytes(self) -> int:
        """Bytes of the replica's log."""
        return sum(segment.log.size for segment in self.segments[:-1]) + self.stop_size

    @property
    def last_epoch(self) -> int:
        """The newest leader epoch on the disk; −1 if the disk records no epoch."""
        return self.history[-1].epoch if self.history else -1


@dataclass(frozen=True, slots=True)
class SurvivingLog:
    """The replica to read, and the end of the log.

    Attributes:
        stop: One past the last offset to read.
        expected_stop: One past the last offset that the log should have according to checkpoints
            and side files. If it is above `stop`, records were lost.
        high_watermark: Highest recorded high watermark of the branch, or `None`.
    """

    replica: Replica
    stop: int
    expected_stop: int
    high_watermark: int | None
    notes: tuple[Orphan, ...]


def recovered(store: ObjectStore, log_dir: LogDir, topic_partition: TopicPartition) -> Replica:
    """Recovers a partition of a log directory in memory.

    Raises:
        CorruptSegmentError: The epoch checkpoint cannot be read, or a `.log` file that must be read
            has messages of format 0 or 1.
    """
    folder = log_dir.partitions[topic_partition]
    files = partition_files(store, folder)
    return Recovery(store, log_dir, topic_partition, files).replica(folder)


class Recovery:
    """Recovers one replica. Not thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        log_dir: LogDir,
        topic_partition: TopicPartition,
        files: PartitionFiles,
    ) -> None:
        self._store = store
        self._log_dir = log_dir
        self._key = topic_partition
        self._files = files
        self._bases = [segment.base_offset for segment in files.segments]
        self._walked: dict[int, Walked] = {}

    def replica(self, folder: str) -> Replica:
        """Recovers the replica in `folder`."""
        segments = self._files.segments
        log_start = self._log_dir.log_starts.get(self._key, 0)
        lost = [log.base_offset for log in self._files.lost_logs]
        log_start = max(log_start, min([*self._bases[:1], *lost[:1]], default=0))
        point = None
        last, problem, stop, size = len(segments) - 1, "", log_start, 0
        if not self._log_dir.is_clean:
            point = self._log_dir.recovery_points.get(self._key, 0)
        if segments and point is None:
            end = self._read_end_of_last_file()
            stop, size, problem = end.next_offset, end.position, end.problem
        elif segments and point is not None:
            for number in range(max(bisect_right(self._bases, point) - 1, 0), len(segments)):
                walked = self.walk(number)
                self._walked[self._bases[number]] = walked
                last, problem, stop, size = number, walked.problem, walked.next_offset, walked.size
                if problem:
                    break
        if size and (error := self._base_offset_error(last, stop, size, is_clean=point is None)):
            walked = self.walk(last, stop_offset=error.offset)
            self._walked[self._bases[last]] = walked = replace(walked, problem=error.message)
            problem, stop, size = walked.problem, walked.next_offset, walked.size
        kept, dropped = segments[: last + 1], segments[last + 1 :]
        if stop < log_start:  # `LogLoader` starts an empty log at the log start
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
            (self._log_dir.high_watermarks or {}).get(self._key),
            point,
            problem,
            dropped,
            self._lost_end(stop, is_clean=point is None),
        )

    def _base_offset_error(
        self, number: int, stop: int, size: int, *, is_clean: bool
    ) -> SegmentFormatError | None:
        """Returns an error if the base offset of the log's last batch seems to be wrong; no
        checksum covers this offset. Returns `None` if it is plausible, if a checkpoint or snapshot
        confirms the log's end, or if the log was compacted.

        Args:
            number: Number of the last segment.
            stop: One past the last offset of the log.
            size: Bytes of the last segment that belong to the log.
            is_clean: True after a clean shutdown, when the index files are complete.
        """
        points = self._log_dir.high_watermarks or {}, self._log_dir.recovery_points
        confirmed = {*self._files.snapshots, *(point.get(self._key, -1) for point in points)}
        # Compaction leaves gaps that look like a wrong base offset.
        if stop in confirmed or self._log_dir.cleaned.get(self._key, 0) > 0:
            return None
        segment = self._files.segments[number]
        index = offset_index(self._store, segment) if is_clean else None
        try:
            read_last_offset(self._store, segment.log, segment.base_offset, index, size=size)
        except SegmentFormatError as error:
            return None if error.offset is None else error
        return None

    def _lost_end(self, stop: int, *, is_clean: bool) -> int:
        """Returns the value of `Replica.lost_end` for a log that ends at `stop`.

        After a clean shutdown, a producer snapshot exists at the end of the log. So snapshots or
        index entries above `stop` show a loss. After a crash, such files prove nothing: side files
        of the last segment may name offsets of records that were never flushed.
        """
        files = self._files
        ends = [log.stop for log in files.lost_logs if log.base_offset >= stop]
        last = files.segments[-1] if files.segments else None
        is_proven = max(files.snapshots, default=-1) == stop and (last is None or last.log.size)
        if is_clean and not is_proven:
            ends += files.snapshots
            if last is not None:
                ends.append(named_stop(self._store, last.base_offset, last.files))
        return max((end for end in ends if end > stop), default=0)

    def records_open_at_start(self, base_offset: int | None = None) -> bool:
        """Returns whether files show which transactions are open at the start of the segment with
        this base offset, by default the first segment.
        """
        if not self._bases:
            return True
        number = 0 if base_offset is None else self._bases.index(base_offset)
        return self._recorded_open(number) is not None

    def batch_at(self, offset: int) -> RecordBatchHeader | None:
        """Returns the header of the first batch whose last offset is at or after `offset`; `None`
        if no such batch exists, or if it has message format 0 or 1.
        """
        for segment in self._files.segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            index = offset_index(self._store, segment)
            position = 0
            if index is not None:
                after = int(np.searchsorted(index.offsets, offset, side="right"))
                position = int(index.positions[after - 1]) if after else 0
            batches = self._batches(segment, position=position, check_crcs=False)
            try:
                for batch in batches:
                    if batch.header.next_offset > offset:
                        return batch.header
            except SegmentFormatError:
                return None
        return None

    def walk(self, number: int, *, stop_offset: int | None = None) -> Walked:
        """Reads the batches of a segment from its start up to the first incomplete batch, or up to
        `stop_offset`.
        """
        return self._walk(
            number, self._open_at_start(number), stop_offset=stop_offset, check_crcs=True
        )

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
        side_files = RebuiltSideFiles(segment.base_offset, segment.log.size, open_before)
        try:
            for batch in batches:
                side_files.add(batch)
        except SegmentFormatError as error:
            raise self._located(error, segment) from error
        return Walked(batches.position, batches.next_offset, side_files, batches.problem)

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

    def _read_end_of_last_file(self) -> WholeBatches:
        """Reads the last `.log` file from its last index entry to the end. Returns the reader,
        whose attributes describe the end of the log.
        """
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

    def _open_at_start(self, number: int) -> Mapping[int, int]:
        """Returns the first offset of each transaction that is open at the start of a segment, by
        producer id. Starts from the nearest earlier valid snapshot, and reads batch headers from
        there to the segment.
        """
        first = number
        while not self._has_no_predecessor(first) and self._recorded_open(first) is None:
            first -= 1
        open_transactions = self._recorded_open(first) or {}
        for between in range(first, number):
            walked = self._walk(between, open_transactions, check_crcs=False)
            if walked.problem:
                raise CorruptSegmentError(
                    f"{walked.problem}. No valid producer snapshot after this offset records which"
                    " transactions are open",
                    topic=self._key[0],
                    partition=self._key[1],
                    offset=walked.next_offset,
                    uri=self._store.uri(self._files.segments[between].log.key),
                    position=walked.size,
                )
            open_transactions = walked.side_files.open_after
        return open_transactions

    def _has_no_predecessor(self, number: int) -> bool:
        """Returns whether a segment is the first segment, or the records before it are lost."""
        if not number:
            return True
        previous, base = self._bases[number - 1 : number + 1]
        return any(previous <= log.base_offset < base for log in self._files.lost_logs)

    def _recorded_open(self, number: int) -> Mapping[int, int] | None:
        """Returns the first offset of each transaction that is open at the start of a segment, by
        producer id. Returns `None` if the previous segment was not read and there is no valid
        snapshot at the start of the segment.
        """
        if not self._has_no_predecessor(number):
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
            return None  # a broker deletes it and uses the previous one
        return open_first_offsets(entries)

    def _history(self) -> list[EpochEntry]:
        """Returns the leader epochs of the checkpoint, followed by newer epochs in batches that
        were read.
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
                    topic=self._key[0],
                    partition=self._key[1],
                    uri=self._store.uri(info.key),
                ) from error
        for base in sorted(self._walked):
            for entry in self._walked[base].side_files.epochs:
                if not entries or entry.epoch > entries[-1].epoch:
                    entries = [old for old in entries if old.start_offset < entry.start_offset]
                    entries.append(entry)
        return entries

    def _lineage(
        self, history: Sequence[EpochEntry], log_start: int, stop: int
    ) -> tuple[EpochEntry, ...]:
        """Returns the leader epochs of the offsets [log_start, stop). Epochs that are not in the
        checkpoint are read from batches.
        """
        entries = [entry for entry in history if entry.start_offset < stop]
        first = entries[0].start_offset if entries else stop
        if log_start < first:
            # A broker removes epochs from `leader-epoch-checkpoint` before it writes the new log
            # start, so epochs of the first offsets may be missing after a crash.
            read = self._epochs_between(log_start, first)
            newest = read[-1].epoch if read else -1
            entries = [*read, *(entry for entry in entries if entry.epoch > newest)]
        below = [entry for entry in entries if entry.start_offset <= log_start]
        if below:
            entries = [replace(below[-1], start_offset=log_start), *entries[len(below) :]]
        return tuple(entries)

    def _epochs_between(self, start: int, stop: int) -> list[EpochEntry]:
        """Reads the leader epochs of the offsets [start, stop) from batch headers."""
        entries: list[EpochEntry] = []
        first = max(bisect_right(self._bases, start) - 1, 0)
        for segment in self._files.segments[first:]:
            if segment.base_offset >= stop:
                break
            try:
                for batch in self._batches(segment, stop_offset=stop, check_crcs=False):
                    header = batch.header
                    epoch = header.partition_leader_epoch
                    newest = entries[-1].epoch if entries else -1
                    if header.next_offset > start and epoch > newest:
                        entries.append(EpochEntry(epoch, max(header.base_offset, start)))
            except SegmentFormatError as error:
                raise self._located(error, segment) from error
        return entries

    def _located(self, error: SegmentFormatError, segment: SegmentFiles) -> CorruptSegmentError:
        return CorruptSegmentError(
            error.message,
            topic=self._key[0],
            partition=self._key[1],
            offset=segment.base_offset if error.offset is None else error.offset,
            uri=self._store.uri(segment.log.key),
            position=error.position,
        )


def offset_index(store: ObjectStore, segment: SegmentFiles) -> OffsetIndex | None:
    """Reads the offset index of a segment. Ignores zeros at the end, because brokers preallocate
    the file. Returns `None` if the index is missing, empty or does not match the `.log` file.
    """
    info = segment.files.get("index")
    if info is None:
        return None
    data = read_file(store, info, MAX_SIDE_FILE_BYTES).rstrip(b"\0")
    data += bytes(-len(data) % OFFSET_ENTRY_SIZE)
    try:
        index = OffsetIndex.from_bytes(data, base_offset=segment.base_offset)
    except SegmentFormatError:
        return None
    return index if len(index) and int(index.positions[-1]) < segment.log.size else None
