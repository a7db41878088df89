"""The batches that stand at positions of a segment, from brokers, which know offsets alone.

What brokers send is byte for byte what was uploaded. So batches are counted from the segment's
first one on; where the log start has passed that one, back from the segment's end.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.fetch_range import RangeFetcher
from kts_source.read.read_ranges import counted
from segment_format.record.batch_header import MAGIC_2
from segment_format.record.framing import iter_entries, read_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from kts_source.broker.cluster import Cluster
    from kts_source.broker.fetch_range import FetchedBatches
    from kts_source.errors import DataLossError
    from kts_source.read.task import SegmentSlice
    from kts_source.read.task_metrics import TaskMeter


class CountedFetch:
    """Fetches a part of a segment. Used by one thread.

    Args:
        cluster: Whom to ask; nobody else may use its connections meanwhile.
        part: Of which segment.
        max_batch_bytes: Bound on one batch.
        meter: Where to count.
        on_loss: Called with offsets [at, behind) that are gone and why, where they are of the part.

    Attributes:
        lost_offsets: Whether some of the segment is gone.
    """

    def __init__(
        self,
        cluster: Cluster,
        part: SegmentSlice,
        *,
        max_batch_bytes: int,
        meter: TaskMeter | None,
        on_loss: Callable[[int, int, DataLossError], None],
    ) -> None:
        self._cluster = cluster
        self._part = part
        self._max_batch_bytes = max_batch_bytes
        self._meter = meter
        self._on_loss = on_loss
        self.lost_offsets = False

    def batches(self, start: int, stop: int) -> Generator[FetchedBatches]:
        """The batches at positions [start, stop), up to the slice's last offset.

        Args:
            start: Where a batch begins.
            stop: Where another one begins, or the segment's end.

        Raises:
            BrokerError: Brokers refuse, or do not answer.
        """
        part = self._part
        offset, at = part.segment_start, 0
        passed: _PassedError | None = None
        while offset < part.stop_offset:
            try:
                if passed is not None:
                    at = part.objects.size_in_bytes - self._bytes_from(offset)
                with closing(self._fetched(offset, part.stop_offset)) as fetched:
                    for found in fetched:
                        if passed is not None:
                            # The log start may lie inside of a batch.
                            entry = read_prefix(found.data)
                            is_cut = entry.magic != MAGIC_2 or entry.offset < offset
                            if at > start or (at == start and is_cut):
                                self._on_loss(passed.at, passed.behind, passed.error)
                            passed = None
                        low, high = max(start - at, 0), min(stop - at, len(found.data))
                        at += len(found.data)
                        offset = found.next_offset
                        if low < high:
                            yield replace(found, data=found.data[low:high])
                        if at >= stop:
                            return
            except _PassedError as error:
                # What an earlier one passed is gone as well.
                first = error.at if passed is None else passed.at
                passed = _PassedError(first, error.behind, error.error)
                offset = error.behind
        if passed is not None:
            self._on_loss(passed.at, passed.behind, passed.error)

    def _fetched(self, start: int, stop: int) -> Generator[FetchedBatches]:
        """The batches of an offset range; `_PassedError` where some are gone."""
        part = self._part
        wanted = BrokerRange(
            topic=part.topic,
            topic_id=part.topic_id,
            partition=part.partition,
            leader_epoch=part.lineage[-1].epoch,
            start_offset=start,
            stop_offset=stop,
            read_committed=False,
            nominal_bytes=part.nominal_bytes,
        )
        fetcher = RangeFetcher(
            self._cluster, wanted, max_batch_bytes=self._max_batch_bytes, on_loss=self._pass
        )
        with counted(fetcher, self._meter), closing(fetcher.batches()) as fetched:
            yield from fetched

    def _pass(self, at: int, behind: int, error: DataLossError) -> NoReturn:
        self.lost_offsets = True
        raise _PassedError(at, behind, error)

    def _bytes_from(self, offset: int) -> int:
        """Bytes of the segment from the batch that holds an offset on."""
        stop = self._part.segment_stop
        with closing(self._fetched(offset, stop)) as fetched:
            return sum(_bytes_below(found, stop) for found in fetched)


class _PassedError(Exception):
    """Offsets [at, behind) are gone."""

    def __init__(self, at: int, behind: int, error: DataLossError) -> None:
        super().__init__(at, behind)
        self.at = at
        self.behind = behind
        self.error = error


def _bytes_below(found: FetchedBatches, stop_offset: int) -> int:
    """Bytes of the batches below an offset where one begins: those of the answer's segment."""
    if found.next_offset <= stop_offset:
        return len(found.data)
    entries = iter_entries(found.data)
    return next((one.position for one in entries if one.offset >= stop_offset), len(found.data))
