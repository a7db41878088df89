"""Writes the log of one partition: the original batches of the tier, and side files, so that the
broker need not rebuild them from the log.

Transaction indexes are computed from the batches. The last producer snapshot is empty: after the
restore no transaction is open, and the broker must forget the producers of the old cluster, because
the new cluster assigns their ids again.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError, InvalidOptionError
from kts_source.planning.lineage import epoch_at
from kts_source.read.fetch import ReadAhead
from kts_source.read.segment_source import SegmentSpan
from kts_source.restore.appended import abort_marker, empty_batch
from kts_source.restore.log_dir import EPOCHS, TEMPORARY, write_synced
from kts_source.restore.restore_plan import ABORT
from segment_format.index.checkpoints import LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import write_producer_snapshot
from segment_format.index.rebuild import RebuiltSideFiles
from segment_format.record.recovery import WholeBatches

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import BinaryIO

    from kts_source.planning.lineage import SegmentRange
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.read.segment_source import SegmentSource
    from kts_source.restore.restore_plan import PartitionRestore
    from segment_format.record.recovery import WholeBatch

_COPY_BYTES: Final = 8 << 20
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_READ_AHEAD: Final = ReadAhead(4, 64 << 20, slow_start=False)


class PartitionWriter:
    """Writes the files of one partition under temporary names.

    Args:
        folder: Folder of the partition. Temporary files of an earlier attempt are removed.
        undecided: If it is `abort`, abort markers are appended for transactions that are open at
            the end. Otherwise such transactions are an error.

    Attributes:
        files: Size of each written file, by its final name.
        end: One past the last offset of the written log.
        max_producer_id: Highest producer id in the written log; −1 if it has none.
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
        self._download_file = folder / f"download{TEMPORARY}"
        self.files: dict[str, int] = {}
        self.end = restore.log_start
        self.max_producer_id = -1
        for path in folder.glob(f"*{TEMPORARY}"):
            path.unlink()

    def write(self, source: SegmentSource) -> None:
        """Downloads the segments and writes all files.

        Raises:
            CorruptSegmentError: A batch is invalid or belongs to another branch of the log.
            TieredKafkaError: A segment cannot be read.
        """
        ranges = self._plan.surviving.ranges
        for number, span in enumerate(ranges):
            with self._download_file.open("w+b") as file:
                _download(source, span, file)
                start, stop = self._kept_bytes(file, span, is_first=number == 0)
                base = _base_offset(file, span, start, stop)
                _keep(file, start, stop)
                self._finish(file, base, is_last=number == len(ranges) - 1)
        lineage = [e for e in self._plan.surviving.lineage if e.start_offset < self.end]
        self._add(EPOCHS, LeaderEpochCheckpoint(tuple(lineage)).to_bytes())
        self._add(f"{self.end:020d}.snapshot", write_producer_snapshot(()))

    def _kept_bytes(self, file: BinaryIO, span: SegmentRange, *, is_first: bool) -> tuple[int, int]:
        """Returns the byte range of the batches to keep. In the first segment, this includes the
        batch that contains the log start.
        """
        if (span.start, span.stop) == (span.segment.start_offset, span.segment.stop_offset):
            return 0, _size(file)
        start = None
        batches = self._batches(file, span.segment.start_offset, span.stop, check_crcs=False)
        for batch in batches:
            if start is None and batch.header.next_offset > span.start:
                start = batch.position
                if batch.header.base_offset < span.start and not is_first:
                    raise self._corrupt(
                        "two segments do not end and begin with the same batch", span.start
                    )
            if batch.header.next_offset > span.stop:
                raise self._corrupt("a batch extends beyond the end of its epoch", span.stop)
        self._check_whole(batches, span)
        return (batches.position if start is None else start), batches.position

    def _finish(self, file: BinaryIO, base: int, *, is_last: bool) -> None:
        """Checks all batches of a segment, appends abort markers and the batch up to `resume_at`,
        and writes the side files.
        """
        side_files = RebuiltSideFiles(base, _size(file), self._open)
        batches = self._batches(file, base, None, check_crcs=True)
        for batch in batches:
            self._check_epoch(batch)
            self._add_batch(batch, side_files)
        if batches.position != _size(file):
            raise self._corrupt(batches.problem, batches.next_offset)
        self.end = max(self.end, batches.next_offset)
        if is_last:
            stop = batches.position
            file.seek(stop)
            file.write(self._appended(side_files.open_after, base))
            file.flush()
            for batch in self._batches(file, base, None, check_crcs=True, position=stop):
                self._add_batch(batch, side_files)
                self.end = batch.header.next_offset
            if side_files.open_after:
                first = min(side_files.open_after.values())
                raise self._corrupt("a transaction without a known end is not in the plan", first)
        self._open = dict(side_files.open_after)
        file.flush()
        os.fsync(file.fileno())
        name = f"{base:020d}.log"
        self.files[name] = _size(file)
        self._download_file.replace(self._folder / (name + TEMPORARY))
        self._add(f"{base:020d}.index", side_files.offset_index())
        self._add(f"{base:020d}.timeindex", side_files.time_index())
        if aborted := side_files.transaction_index():
            self._add(f"{base:020d}.txnindex", aborted)

    def _add_batch(self, batch: WholeBatch, side_files: RebuiltSideFiles) -> None:
        side_files.add(batch)
        self.max_producer_id = max(self.max_producer_id, batch.header.producer_id)
        if batch.header.is_transactional:
            self._epochs[batch.header.producer_id] = batch.header.producer_epoch

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

    def _check_epoch(self, batch: WholeBatch) -> None:
        header = batch.header
        last = max(header.base_offset, self._restore.log_start)
        expected = epoch_at(self._plan.surviving.lineage, last)
        if (
            header.partition_leader_epoch != expected
            and header.next_offset > self._restore.log_start
        ):
            raise self._corrupt(
                f"a batch has leader epoch {header.partition_leader_epoch}, but the lineage of the"
                f" tier has {expected}",
                header.base_offset,
            )

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
        write_synced(self._folder / (name + TEMPORARY), data)
        self.files[name] = len(data)


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
    os.ftruncate(file.fileno(), stop - start)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
