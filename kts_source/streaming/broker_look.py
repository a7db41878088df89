"""What a stream sees of one partition through its leader, with the tier beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kts_source.broker.broker_range import BrokerRange
from kts_source.errors import OffsetOutOfRangeError, OldBrokerError
from kts_source.planning.bounds import Place
from kts_source.planning.hybrid import bytes_per_offset, plan_partition
from kts_source.planning.lineage import PartitionLog
from kts_source.planning.tiered_part import tier_end
from kts_source.planning.union_log import union_log
from kts_source.streaming.admission import PendingSegment, dated, undated
from kts_source.streaming.batch import bounds_left, check_stable
from kts_source.streaming.lag import PartitionLag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.options import ScanOptions
    from kts_source.planning.assemble import PlannedPartition
    from kts_source.planning.bounds import TimestampLookup
    from kts_source.planning.cluster_view import BrokerLog, ClusterView
    from kts_source.planning.lineage import Hole
    from kts_source.planning.tiered_part import TieredPart
    from kts_source.streaming.batch import BatchRange
    from kts_source.streaming.tier_listing import TierListing

_CHUNK_BYTES: Final = 64 << 20
"""What counts as a segment of that which only brokers have."""
_SHARES: Final = 64
"""Into so many chunks, at least, a limit is cut, so that partitions take turns."""
_EPOCHS_AT_ONCE: Final = 100


class BrokerLook:
    """A partition as its leader describes it.

    Args:
        options: What is read.
        brokers: What the leader says.
        view: Asks it for more.
        listing: Of the tier.
        last_read: The last offset that the stream has read, and the leader epoch that owned it.
    """

    is_complete: Final = True

    def __init__(
        self,
        options: ScanOptions,
        brokers: BrokerLog,
        view: ClusterView,
        listing: TierListing,
        last_read: tuple[int, int] | None,
    ) -> None:
        self._options = options
        self._brokers = brokers
        self._view = view
        self._listing = listing
        self._last_read = last_read
        self.place = Place(
            brokers.topic,
            brokers.partition,
            fail_on_data_loss=options.fail_on_data_loss,
            holder="the cluster" if options.tail else "the tier",
            beyond="not written yet" if options.tail else "not tiered yet (tail=false)",
        )

    @cached_property
    def log(self) -> PartitionLog:
        """Its start and end, without ranges."""
        brokers = self._brokers
        end = brokers.end
        if not self._options.tail:
            tiered = self._listing.part(brokers, brokers.log_start)
            end = tier_end(tiered, brokers, self._owned(tiered), self.place)
        return PartitionLog((), brokers.log_start, end, (), (), ())

    @property
    def written_stop(self) -> int:
        """The high watermark: open transactions and `tail=false` end what may be read before."""
        return max(self._brokers.high_watermark, self.log.stop)

    def end(self) -> int:
        """One past the last offset that may be read: for `read_committed` the last stable one."""
        return self.log.stop

    def end_before(self, hole: Hole) -> int:
        """Brokers serve what the tier lacks: there are no holes."""
        raise AssertionError(hole)

    def epoch_of(self, offset: int) -> int | None:
        """The leader epoch that owns an offset; `None` where the leader does not tell."""
        newest = self._brokers.leader_epoch
        if newest < 0 or not self._brokers.log_start <= offset < self._brokers.end:
            return None
        read, epoch = self._last_read or (offset, -1)
        if offset == self._brokers.end - 1 or (epoch == newest and offset >= read):
            return newest
        owners = (one for one, (low, high) in self._near.items() if low <= offset < high)
        found = next(owners, None)
        # An epoch that is not on the leader's branch any more has another owner there.
        return self._view.owner(self._brokers, offset) if found is None else found

    @cached_property
    def _near(self) -> dict[int, tuple[int, int]]:
        """The epochs that probably own what is asked for, with their offsets: from the last one
        read on, else the newest.
        """
        newest = self._brokers.leader_epoch
        first = max(newest - _EPOCHS_AT_ONCE + 1, 0)
        if self._last_read is not None:
            first = min(self._last_read[1], newest)
        return self._view.owned(
            self._brokers, range(first, min(first + _EPOCHS_AT_ONCE, newest + 1))
        )

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """The first offset whose record is dated so; `None` when there is none."""
        return self._view.first_offset_dated(self._brokers, timestamp_ms)

    def _known(self, start: int) -> PartitionLog:
        """The log with the ranges that the tier serves from an offset on."""
        brokers = self._brokers
        tiered = self._listing.part(brokers, start)
        low = min(brokers.log_start, start)
        return union_log(tiered.segments, low, brokers.end, self._owned(tiered))

    def _owned(self, tiered: TieredPart) -> dict[int, tuple[int, int]]:
        epochs = tiered.epochs
        return self._view.owned(self._brokers, epochs) if epochs else {}

    def pending(self, start: int, stop: int) -> Iterator[PendingSegment]:
        """The segments of offsets [start, stop), ascending, and between and behind them what only
        brokers have, in chunks.
        """
        if start >= stop:
            return
        at, order = start, dated(-1)
        known = self._known(start)
        each = self._bytes_per_offset(known, start, stop)
        for span in known.ranges:
            low, high = max(span.start, at), min(span.stop, stop)
            if low >= high:
                continue
            for first, last in self._chunks(at, low, each):
                yield PendingSegment(first, last, round((last - first) * each), order)
            segment = span.segment
            offsets = max(segment.stop_offset - segment.start_offset, 1)
            size = segment.objects.size_in_bytes * (high - low) // offsets
            order = dated(segment.max_timestamp_ms)
            yield PendingSegment(low, high, size, order)
            at = high
        for number, (first, last) in enumerate(self._chunks(at, stop, each)):
            turn = undated(number, stop - start)
            yield PendingSegment(first, last, round((last - first) * each), turn)

    def _chunks(self, start: int, stop: int, each: float) -> Iterator[tuple[int, int]]:
        stream = self._options.stream
        most = stop - start
        if stream.max_bytes is not None or stream.max_segments is not None:
            size = min(_CHUNK_BYTES, (stream.max_bytes or _SHARES * _CHUNK_BYTES) // _SHARES)
            most = min(most, max(round(size / max(each, 1e-3)), 1))
        if stream.max_offsets is not None:
            most = min(most, max(stream.max_offsets // _SHARES, 1))
        for low in range(start, stop, max(most, 1)):
            yield low, min(low + most, stop)

    def _bytes_per_offset(self, known: PartitionLog, start: int, stop: int) -> float:
        stream = self._options.stream
        if stream.max_bytes is None and stream.max_segments is None:
            return 0.0
        return bytes_per_offset(known, self._brokers, start, stop, self._view)

    def lag(self, position: int) -> PartitionLag:
        """What is unread from an offset on."""
        end = self.end()
        offsets = max(end - position, 0)
        if not offsets:
            return PartitionLag(end, 0, 0, None, self._brokers.log_start)
        known = self._known(position)
        size, at, oldest = 0.0, position, None
        for span in known.ranges:
            segment = span.segment
            unread = span.stop - max(span.start, position)
            if unread <= 0:
                continue
            whole = max(segment.stop_offset - segment.start_offset, 1)
            size += segment.objects.size_in_bytes * unread / whole
            if span.start <= position:
                oldest = segment.max_timestamp_ms
            at = span.stop
        if at < end:
            size += (end - at) * bytes_per_offset(known, self._brokers, at, end, self._view)
        if oldest is None:
            oldest = self._view.first_timestamp_ms(self._brokers, position)
        return PartitionLag(end, offsets, round(size), oldest, self._brokers.log_start)

    def plan(self, wanted: BatchRange) -> PlannedPartition:
        """The plan of some of its offsets. What the tier still has below a log start that has moved
        is read: the batch was fixed before.

        Raises:
            DataLossError: Offsets have gone, unless loss is allowed.
        """
        brokers = self._brokers
        check_stable(self.place, wanted, brokers.end, brokers.high_watermark)
        if brokers.end < wanted.stop <= brokers.high_watermark:
            wanted = replace(wanted, stop=max(wanted.start, brokers.end))
        try:
            planned = self._planned(wanted, self._listing.part(brokers, wanted.start))
        except OldBrokerError:
            # The offsets may have moved into the tier since it was listed.
            tiered = self._listing.part(brokers, wanted.start, refresh=True)
            planned = self._planned(wanted, tiered)
        part = planned.plan.brokers
        assert part is not None
        gone = [
            (low, min(high, brokers.log_start))
            for low, high in part.ranges
            if low < brokers.log_start
        ]
        if not gone:
            return planned
        names = ", ".join(f"[{low}, {high})" for low, high in gone)
        self.place.raise_or_warn(
            f"offsets {names} of the batch that ends at offset {wanted.stop} are no longer in the"
            f" cluster, which begins at {brokers.log_start}, nor in the tier;"
            " failOnDataLoss=false leaves them out",
            OffsetOutOfRangeError,
        )
        left = [
            piece.from_offset(brokers.log_start) if isinstance(piece, BrokerRange) else piece
            for piece in planned.spans
            if not isinstance(piece, BrokerRange) or piece.stop_offset > brokers.log_start
        ]
        return replace(planned, spans=left)

    def _planned(self, wanted: BatchRange, tiered: TieredPart) -> PlannedPartition:
        def bounds_of(_: PartitionLog, __: TimestampLookup) -> tuple[int, int]:
            return bounds_left(self.place, wanted, wanted.start, self._brokers.end)

        from_start = replace(self._brokers, log_start=min(self._brokers.log_start, wanted.start))
        return plan_partition(self._options, from_start, tiered, self._view, bounds_of)
