"""Writes the log of one partition: the original batches of the tier, and side files that the broker
loads without a scan.

Offset indexes, time indexes and transaction indexes are computed from the batches. The leader-epoch
checkpoint contains the lineage of the tier up to the end of the log. The producer snapshots at its
start and end are empty: no transaction is open there, and the broker forgets the producers of the
old cluster, whose ids the new cluster assigns again.
"""

from __future__ import annotations

import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.errors import CorruptSegmentError, InvalidOptionError
from kts_source.planning.lineage import epoch_at
from kts_source.read.fetch import ReadAhead
from kts_source.read.segment_source import SegmentSource, SegmentSpan
from kts_source.restore.journal import MAX_PRODUCER_ID, high_producer_id
from kts_source.restore.restore_plan import ABORT
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import write_producer_snapshot
from segment_format.index.rebuild import RebuiltSideFiles
from segment_format.kernels.batch_scanner import BatchScanner
from segment_format.record.batch_header import (
    CONTROL_BIT,
    CRC_START,
    HEADER_SIZE,
    MAGIC_2,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_BIT,
    RecordBatchHeader,
    crc32c,
)
from segment_format.record.recovery import WholeBatches

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from concurrent.futures import Future
    from typing import BinaryIO

    from kts_source.planning.lineage import SegmentRange
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.restore.restore_plan import PartitionRestore
    from segment_format.kernels.batch_scanner import BatchTable
    from segment_format.record.recovery import WholeBatch

TEMPORARY: Final = ".kts-restore"
"""Suffix of files that are not complete."""
EPOCHS: Final = "leader-epoch-checkpoint"
_COPY_BYTES: Final = 8 << 20
_SCAN_BYTES: Final = 1 << 20  # fits into the caches of a core
_SYNC_THREADS: Final = 4
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_READ_AHEAD: Final = ReadAhead(4, 64 << 20, slow_start=False)


class PartitionWriter:
    """Writes the files of one partition under temporary names.

    Args:
        folder: Folder of the partition. Temporary files of an earlier attempt are removed.
        undecided: `abort` appends abort markers for transactions that are open at the end. With
            other values, open transactions are an error: `cut` has planned an earlier end.

    Attributes:
        files: Size of each written file, by its final name.
        end: One past the last offset of the written log.
        max_producer_id: Highest producer id in the written log; −1 if it has none.
        has_transactions: True if the written log has a batch of a transaction, or a marker.
    """

    def __init__(
        self, folder: Path, restore: PartitionRestore, plan: PartitionPlan, undecided: str
    ) -> None:
        self._folder = folder
        self._restore = restore
        self._plan = plan
        self._undecided = undecided
        self._open: dict[int, int] = {}
        self._epochs: dict[int, int] = {}  # producer epochs
        self._window = memoryview(bytearray(_SCAN_BYTES))
        self._syncs: list[Future[None]] = []
        self._sync_threads: ThreadPoolExecutor
        self._data_end = restore.local_start  # one past the last restored offset
        self.files: dict[str, int] = {}
        self.end = restore.local_start
        self.max_producer_id = -1
        self.has_transactions = False
        for path in folder.glob(f"*{TEMPORARY}"):
            path.unlink()

    def write(self, source: SegmentSource) -> None:
        """Downloads the segments and writes all files.

        Raises:
            CorruptSegmentError: A batch is invalid or belongs to another branch of the log.
            TieredKafkaError: A segment cannot be read.
        """
        ranges = [
            replace(span, stop=min(span.stop, self._restore.stop))
            for span in self._plan.surviving.ranges
            if self._restore.local_start < span.stop and span.start < self._restore.stop
        ]
        with ThreadPoolExecutor(_SYNC_THREADS, "kts-sync") as self._sync_threads:
            self._write_segments(source, ranges)
            self._write_state()
            self._wait_for_syncs()

    def _write_segments(self, source: SegmentSource, ranges: Sequence[SegmentRange]) -> None:
        with closing(self._downloads(source, ranges)) as downloads:
            for number, (span, path) in enumerate(downloads):
                with path.open("r+b") as file:
                    start, stop = self._kept_bytes(file, span)
                    base = _base_offset(file, span, start, stop)
                    _keep(file, start, stop)
                    self._finish(file, base, is_last=number == len(ranges) - 1)
        if not ranges:
            with self._temporary_file(0).open("w+b") as file:
                self._finish(file, self._restore.local_start, is_last=True)

    def _write_state(self) -> None:
        """Writes the leader-epoch checkpoint and the producer snapshots."""
        lineage = [
            entry
            for entry in self._plan.surviving.lineage
            if entry.start_offset < self.end and entry.start_offset <= self._data_end
        ]
        self._add(EPOCHS, LeaderEpochCheckpoint(tuple(lineage)).to_bytes())
        snapshots = {self.end}
        if self._restore.local_start > self._restore.log_start:
            snapshots.add(self._restore.local_start)
        for offset in snapshots:
            self._add(f"{offset:020d}.snapshot", write_producer_snapshot(()))

    def _downloads(
        self, source: SegmentSource, ranges: Sequence[SegmentRange]
    ) -> Generator[tuple[SegmentRange, Path]]:
        """Yields each range with the downloaded file of its segment. A thread downloads the next
        segment while the caller checks the current one. To stop early, close the generator; this
        waits for the thread.
        """

        def download(number: int) -> Path:
            path = self._temporary_file(number)
            with path.open("wb") as file:
                _download(source, ranges[number], file)
            return path

        with ThreadPoolExecutor(1, "kts-download") as pool:
            pending = pool.submit(download, 0) if ranges else None
            for number, span in enumerate(ranges, 1):
                assert pending is not None
                path = pending.result()
                if number < len(ranges):
                    pending = pool.submit(download, number)
                yield span, path

    def _temporary_file(self, number: int) -> Path:
        return self._folder / f"download-{number % 2}{TEMPORARY}"

    def _kept_bytes(self, file: BinaryIO, span: SegmentRange) -> tuple[int, int]:
        """Returns the byte range of the batches to keep. This includes the batch that contains the
        log start.
        """
        if (span.start, span.stop) == (span.segment.start_offset, span.segment.stop_offset):
            return 0, _size(file)
        start = None
        batches = self._batches(file, span.segment.start_offset, span.stop, check_crcs=False)
        for batch in batches:
            if start is None and batch.header.next_offset > span.start:
                start = batch.position
                if batch.header.base_offset < span.start > self._restore.log_start:
                    raise self._corrupt(
                        f"offset {span.start} is inside a batch of this segment, but the previous"
                        " segment is kept up to this offset: the segments overlap in the middle of"
                        " a batch",
                        span.start,
                    )
            if batch.header.next_offset > span.stop:
                raise self._corrupt(
                    f"a batch of this segment extends beyond offset {span.stop}, where the restored"
                    " range of the segment ends",
                    span.stop,
                )
        self._check_whole(batches, span)
        return (batches.position if start is None else start), batches.position

    def _finish(self, file: BinaryIO, base: int, *, is_last: bool) -> None:
        """Checks all batches of a segment, appends abort markers and the batch up to `resume_at`,
        and writes the side files.
        """
        side_files = RebuiltSideFiles(base, _size(file), self._open)
        self._data_end = self.end = max(self.end, self._scan(file, base, side_files))
        if is_last:
            stop = _size(file)
            file.seek(stop)
            file.write(self._appended(side_files.open_after, base))
            file.flush()
            for batch in self._batches(file, base, None, check_crcs=True, position=stop):
                self._add_batch(batch, side_files)
                self.end = batch.header.next_offset
            if side_files.open_after:
                first = min(side_files.open_after.values())
                raise self._corrupt(
                    "a transaction starts here and does not end, but the restore plan does not list"
                    " it, because a producer snapshot in the tier is wrong",
                    first,
                )
        self._open = dict(side_files.open_after)
        name = f"{base:020d}.log"
        self.files[name] = _size(file)
        path = Path(file.name).replace(self._folder / (name + TEMPORARY))
        self._wait_for_syncs()  # at most two segments are not yet on the disk
        self._sync(path)
        self._add(f"{base:020d}.index", side_files.offset_index())
        self._add(f"{base:020d}.timeindex", side_files.time_index())
        if aborted := side_files.transaction_index():
            self._add(f"{base:020d}.txnindex", aborted)

    def _add_batch(self, batch: WholeBatch, side_files: RebuiltSideFiles) -> None:
        side_files.add(batch)
        self._remember_epoch(batch.header)

    def _remember_epoch(self, header: RecordBatchHeader) -> None:
        if header.is_transactional:
            self._epochs[header.producer_id] = header.producer_epoch

    def _appended(self, open_transactions: Mapping[int, int], base: int) -> bytes:
        """Returns abort markers of the open transactions, and a batch that spans the offsets up to
        `resume_at`.
        """
        epoch = epoch_at(self._plan.surviving.lineage, self.end)
        at, added = self.end, b""

        def fill(stop: int) -> bytes:
            if stop - base > _MAX_RELATIVE_OFFSET:
                raise InvalidOptionError(
                    f"{self._restore.name}: the next record would get offset {stop}, which is too"
                    f" far above the last segment at {base}: use a lower offset in --resume-at"
                )
            return empty_batch(at, stop, epoch) if stop > at else b""

        if self._undecided == ABORT and open_transactions:
            # Markers get new offsets, so that no offset of the old cluster is assigned again.
            added += fill(self._restore.stop)
            at = max(at, self._restore.stop)
            now = time.time_ns() // 1_000_000
            for producer in sorted(open_transactions):
                added += abort_marker(at, producer, self._epochs[producer], now, epoch)
                at += 1
        return added + fill(self._restore.resume_at)

    def _scan(self, file: BinaryIO, base: int, side_files: RebuiltSideFiles) -> int:
        """Checks all batches of a segment and adds them to the side files. Returns one past the
        last offset of the segment.
        """
        size, end = _size(file), base
        scanner = BatchScanner(size, max_batch_bytes=max(size, HEADER_SIZE))
        try:
            for position in range(0, size, _SCAN_BYTES):
                count = os.preadv(file.fileno(), [self._window], position)
                for table in scanner.feed(self._window[:count]):
                    end = self._add_table(file, table, end, base, side_files)
            end = self._add_table(file, scanner.rest(), end, base, side_files)
            scanner.finish()
        except SegmentFormatError as error:
            raise self._corrupt(error.message, end) from None
        return end

    def _add_table(
        self,
        file: BinaryIO,
        table: BatchTable,
        end: int,
        base: int,
        side_files: RebuiltSideFiles,
    ) -> int:
        """Checks batches and adds them to the side files. `end` is one past the last offset before
        the batches. Returns one past their last offset.
        """
        if not len(table):
            return end
        self._check_table(table, end, base)
        self.max_producer_id = max(self.max_producer_id, int(table.producer_ids.max()))
        if self.max_producer_id > MAX_PRODUCER_ID:
            at = int(table.base_offsets[table.producer_ids.argmax()])
            raise self._corrupt(high_producer_id(self.max_producer_id), at)
        columns = (
            *(table.positions, table.base_offsets, table.last_offsets),
            *(table.max_timestamps, table.leader_epochs),
        )
        is_special = (table.are_transactional | table.are_control).tolist()
        self.has_transactions |= any(is_special)
        for row, entry in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            if is_special[row]:
                header = RecordBatchHeader.from_bytes(
                    os.pread(file.fileno(), HEADER_SIZE, entry[0])
                )
                side_files.apply(header, table.markers.get(row))
                self._remember_epoch(header)
            side_files.add_entry(*entry)
        return int(table.last_offsets[-1]) + 1

    def _check_table(self, table: BatchTable, end: int, base: int) -> None:
        bases, log_start = table.base_offsets, self._restore.log_start
        ends = table.last_offsets + 1
        entries = self._plan.surviving.lineage
        owners = np.searchsorted(
            [entry.start_offset for entry in entries], np.maximum(bases, log_start), side="right"
        )
        expected = np.array([-1, *(entry.epoch for entry in entries)])[owners]
        problems = {
            "the checksum of a batch does not match its bytes": ~table.are_sound,
            "a batch has no leader epoch, as in message formats 0 and 1": table.leader_epochs < 0,
            "offsets of batches do not ascend": bases < np.concatenate(([end], ends[:-1])),
            "an offset is too far from the base offset": ends - 1 - base > _MAX_RELATIVE_OFFSET,
            "the leader epoch of a batch differs from the lineage of the tier": (
                (table.leader_epochs != expected) & (ends > log_start)
            ),
        }
        for problem, rows in problems.items():
            if rows.any():
                raise self._corrupt(problem, int(bases[rows.argmax()]))

    def _batches(
        self,
        file: BinaryIO,
        base: int,
        stop_offset: int | None,
        *,
        check_crcs: bool,
        position: int = 0,
    ) -> WholeBatches:
        def read(start: int, stop: int) -> bytes:
            return os.pread(file.fileno(), stop - start, start)

        return WholeBatches(
            read,
            _size(file),
            base,
            position=position,
            stop_offset=stop_offset,
            check_crcs=check_crcs,
        )

    def _check_whole(self, batches: WholeBatches, span: SegmentRange) -> None:
        if batches.problem:
            raise self._corrupt(batches.problem, batches.next_offset).located(
                position=batches.position, uri=span.segment.objects.log.key
            )

    def _corrupt(self, problem: str, offset: int) -> CorruptSegmentError:
        return CorruptSegmentError(
            f"{problem}. Run kts verify to find all faults of the topic",
            topic=self._restore.topic,
            partition=self._restore.partition,
            offset=offset,
        )

    def _add(self, name: str, data: bytes) -> None:
        path = self._folder / (name + TEMPORARY)
        path.write_bytes(data)
        self._sync(path)
        self.files[name] = len(data)

    def _sync(self, path: Path) -> None:
        """Syncs a file in another thread, so that the next segment is read in the meantime."""
        self._syncs.append(self._sync_threads.submit(sync, path))

    def _wait_for_syncs(self) -> None:
        """Waits until all files are on the disk. Raises the error of a sync that failed."""
        while self._syncs:
            self._syncs.pop().result()


def write_synced(path: Path, data: bytes) -> None:
    """Writes a new file and waits until it is on the disk. Removes a file or link of this name."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def give_to_owner(path: Path) -> None:
    """Gives a file to the owner of its folder if this process is root, because the broker runs as
    another user and must write to the file.
    """
    owner = path.parent.stat()
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def sync(path: Path) -> None:
    """Waits until the content of a file, or the renames in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _download(source: SegmentSource, span: SegmentRange, file: BinaryIO) -> None:
    segment = span.segment
    wanted = SegmentSpan(
        *(segment.topic, segment.partition, segment.start_offset, segment.objects),
        *(0, segment.objects.size_in_bytes),
    )
    if segment.objects.size_in_bytes:
        for _, data in source.windows([wanted], read_ahead=_READ_AHEAD):
            file.write(data)
    file.flush()


def _base_offset(file: BinaryIO, span: SegmentRange, start: int, stop: int) -> int:
    """Returns the base offset of the restored segment, which has bytes [start, stop) of `file`."""
    if start == 0:
        return span.segment.start_offset
    first = int.from_bytes(os.pread(file.fileno(), 8, start), "big")
    return min(first, span.start) if start < stop else span.start


def _keep(file: BinaryIO, start: int, stop: int) -> None:
    """Drops all bytes outside [start, stop)."""
    if start:
        for position in range(start, stop, _COPY_BYTES):
            data = os.pread(file.fileno(), min(_COPY_BYTES, stop - position), position)
            os.pwrite(file.fileno(), data, position - start)
    if stop - start < _size(file):  # else the next sync would write the file's time again
        os.ftruncate(file.fileno(), stop - start)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


# A record of 16 bytes: length, attributes, timestamp delta, offset delta, key (version 0, type 0 =
# ABORT), value (version 0, coordinator epoch 0), no headers. Lengths are zigzag varints.
_ABORT_RECORD: Final = struct.pack(">5bhhbhib", 32, 0, 0, 0, 8, 0, 0, 12, 0, 0, 0)


def abort_marker(
    offset: int, producer_id: int, producer_epoch: int, timestamp_ms: int, leader_epoch: int
) -> bytes:
    """Returns the control batch that aborts a producer's open transaction."""
    return _batch(
        RecordBatchHeader(
            base_offset=offset,
            batch_length=MIN_BATCH_LENGTH + len(_ABORT_RECORD),
            partition_leader_epoch=leader_epoch,
            magic=MAGIC_2,
            crc=0,
            attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
            last_offset_delta=0,
            base_timestamp=timestamp_ms,
            max_timestamp=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=-1,
            record_count=1,
        ),
        _ABORT_RECORD,
    )


def empty_batch(start: int, stop: int, leader_epoch: int) -> bytes:
    """Returns a batch without records that spans offsets [start, stop). The next record that a
    broker appends gets offset `stop`.
    """
    return _batch(
        RecordBatchHeader(
            base_offset=start,
            batch_length=MIN_BATCH_LENGTH,
            partition_leader_epoch=leader_epoch,
            magic=MAGIC_2,
            crc=0,
            attributes=0,
            last_offset_delta=stop - start - 1,
            base_timestamp=-1,
            max_timestamp=-1,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=0,
        ),
        b"",
    )


def _batch(header: RecordBatchHeader, records: bytes) -> bytes:
    covered = header.to_bytes()[CRC_START:HEADER_SIZE] + records
    return replace(header, crc=crc32c(covered)).to_bytes() + records
