"""Reads slices of segments: byte ranges in, Arrow batches out, exactly the columns asked for."""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from kts_source.errors import (
    CorruptSegmentError,
    DataLossError,
    ObjectNotFoundError,
    TieredKafkaError,
)
from kts_source.read.segment_source import SegmentSource, SegmentSpan, VanishedSpanError
from kts_source.read.slice_boundaries import (
    Boundary,
    BoundaryCheck,
    checked_stop,
    first_request_stop,
    segment_start,
    slice_boundaries,
)
from kts_source.read.slice_transactions import check_around
from kts_source.read.task_metrics import LostRange
from segment_format.errors import SegmentFormatError, TruncatedBatchError
from segment_format.transaction_check import TransactionCheck

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import pyarrow as pa

    from kts_source.read.fallback import BrokerFallback
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.task import SegmentSlice
    from kts_source.read.task_metrics import TaskMeter

log = logging.getLogger(__name__)


def read_slices(
    slices: tuple[SegmentSlice, ...],
    reader: SegmentSource,
    settings: ReadSettings,
    *,
    meter: TaskMeter | None = None,
    fallback: BrokerFallback | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of slices, in their order; offsets ascend within a slice.

    Close the iterator to stop what is under way.

    Args:
        slices: What to read.
        reader: What reads it.
        settings: How.
        meter: Where to count.
        fallback: What finishes a slice that the tier does not give; the columns hold `offset` then.

    Raises:
        DataLossError: An object has gone since the plan was made; unless the settings say to go on,
            then what is left of its slice is left out, with a warning.
        ObjectChangedError: An object is not the version that was planned.
        TieredKafkaError: Bytes that are not what was planned; names topic, partition, offset,
            object and position.
    """
    if meter is not None:
        reader.stopwatch = meter.stopwatch
    while slices:
        if fallback is None:
            lost = yield from _read(slices, reader, settings, meter)
        else:
            lost = yield from _read_or_fall_back(slices, reader, settings, meter, fallback)
        if lost is None:
            return
        slices = slices[next(at for at, part in enumerate(slices) if part is lost) + 1 :]


def _read_or_fall_back(
    slices: tuple[SegmentSlice, ...],
    reader: SegmentSource,
    settings: ReadSettings,
    meter: TaskMeter | None,
    fallback: BrokerFallback,
) -> Generator[pa.RecordBatch, None, SegmentSlice | None]:
    """As `_read`; where the tier fails brokers serve the rest of the slice that was being read,
    which is returned.
    """
    at = _Position(slices[0])
    try:
        for batch in _read(slices, reader, settings, meter, at):
            yield batch
            at.next_offset = batch.column("offset")[-1].as_py() + 1
    except TieredKafkaError as error:
        part = at.part
        place = error.topic, error.partition, error.offset
        # The request of a later slice may have failed: this one only has rows that wait.
        later = any(place == (one.topic, one.partition, one.start_offset) for one in slices)
        mine = not later or place == (part.topic, part.partition, part.start_offset)
        if not fallback.covers(part, error, counts=mine):
            raise
        yield from fallback.rest(part, at.next_offset, reader, error)
        return part
    fallback.went_well()
    return None


@dataclass(slots=True)
class _Position:
    """How far a task has come.

    Attributes:
        part: The slice that is being read.
        next_offset: Rows of it below this one were returned.
    """

    part: SegmentSlice
    next_offset: int = 0


def _read(
    slices: tuple[SegmentSlice, ...],
    reader: SegmentSource,
    settings: ReadSettings,
    meter: TaskMeter | None,
    at: _Position | None = None,
) -> Generator[pa.RecordBatch, None, SegmentSlice | None]:
    """The rows up to the first slice whose object has gone, which is returned; unless `at`, which
    follows what is read, says that somebody else deals with it.
    """
    decoding: _SliceDecoder | None = None
    ahead = settings.read_ahead
    early = ahead.slow_start or (ahead.prefetch_bytes > 0 and not reader.store.is_near)
    spans = _spans(slices, reader, early=early)
    windows = reader.windows(spans, read_ahead=ahead, meanwhile=_prepare_decoder)
    with closing(windows):
        try:
            for span, window in windows:
                if decoding is None or decoding.span.part is not span.part:
                    if decoding is not None:
                        yield from decoding.finish(meter)
                    decoding = _SliceDecoder(span, reader, settings)
                    if at is not None:
                        at.part, at.next_offset = span.part, 0
                yield from decoding.feed(span, window)
                del window  # the next read may have this memory, warm
                if decoding.done and span.part is slices[-1]:
                    break
        except VanishedSpanError as error:
            if at is not None:
                raise
            part = cast("_SliceSpan", error.span).part
            whole = decoding is None or decoding.span.part is not part
            text = f"{_lost(part, started=not whole)}: no object {error.uri}"
            if settings.fail_on_data_loss:
                place = {**_place(part, reader), "uri": error.uri}
                text = f"{text}; failOnDataLoss=false leaves them out"
                raise DataLossError(text, **place) from error
            log.warning("%s-%s: %s; not read", part.topic, part.partition, text)
            if meter is not None:
                offsets = part.start_offset, part.stop_offset
                in_part = not (whole and part.is_whole)
                lost = LostRange(part.topic, part.partition, *offsets, in_part)
                meter.add_lost(lost, f"{part.topic}-{part.partition} {text}")
            if decoding is not None:
                yield from decoding.finish(meter, rest_is_lost=not whole)
            return part
        if decoding is not None:
            yield from decoding.finish(meter)
    return None


def _prepare_decoder() -> None:
    """Imports and links what decodes, once a process."""
    import kts_source.read.slice_decoder  # noqa: F401
    from segment_format.kernels.decoder import load_kernel

    load_kernel()


def _lost(part: SegmentSlice, *, started: bool) -> str:
    what = "offsets" if part.is_whole else "a slice of offsets"
    rest = ", of which the first may have been returned," if started else ""
    place = f"[{part.start_offset}, {part.stop_offset})"
    return f"{what} {place}{rest} have gone since the plan was made"


@dataclass(frozen=True, slots=True)
class _SliceSpan(SegmentSpan):
    """Bytes of one slice, and a few more where its end is to be checked.

    Attributes:
        last: `None` where more of the slice follows in the next span, and nobody has looked yet
            where it ends.
    """

    part: SegmentSlice
    first: Boundary
    last: Boundary | None

    @classmethod
    def of(
        cls,
        part: SegmentSlice,
        start: int,
        stop: int,
        first: Boundary,
        last: Boundary | None = None,
    ) -> _SliceSpan:
        """Original bytes [start, stop) of the slice's segment."""
        place = (part.topic, part.partition, part.start_offset)
        return cls(*place, part.objects, start, stop, part, first, last)


def _spans(
    slices: Sequence[SegmentSlice], reader: SegmentSource, *, early: bool
) -> Iterator[_SliceSpan]:
    """The bytes of the slices. With `early`, those of the first request are a span by themselves
    where they need no look at an index: a LIMIT may want no more, and from afar they are there
    sooner than a whole chunk.
    """
    for part in slices:
        sure = first_request_stop(part, reader) if early else 0
        early = False
        if sure:
            yield _SliceSpan.of(part, 0, sure, segment_start(part))
        try:
            with _located(part, reader):
                first, last = slice_boundaries(part, reader)
        except ObjectNotFoundError as error:
            nowhere = _SliceSpan.of(part, 0, 0, segment_start(part))
            raise VanishedSpanError.of(nowhere, error) from error
        if first.position < last.position:
            start = max(first.position, sure)
            stop = checked_stop(last, part.objects.size_in_bytes)
            yield _SliceSpan.of(part, start, stop, first, last)


class _SliceDecoder:
    """Decodes the bytes of one slice as they come in."""

    def __init__(self, span: _SliceSpan, reader: SegmentSource, settings: ReadSettings) -> None:
        from kts_source.read.slice_decoder import open_decoder

        self.span = span
        self._reader = reader
        self._fail_on_data_loss = settings.fail_on_data_loss
        self._check = BoundaryCheck(span.first)
        self._transactions: TransactionCheck | None = None
        if settings.read_committed:
            self._transactions = TransactionCheck(
                span.part.aborted,
                start_offset=span.part.start_offset,
                stop_offset=span.part.stop_offset,
            )
        self._decoder = open_decoder(span.part, span.first, span.last, settings, self._transactions)

    @property
    def done(self) -> bool:
        """Whether the slice's last offset has passed."""
        return self._decoder.done

    def feed(self, span: _SliceSpan, window: memoryview) -> Iterator[pa.RecordBatch]:
        """The rows of the next bytes, which are of this span of the slice."""
        if span.last is not None:
            self._check.stop = span.last
        if self.done:
            return
        with _located(self.span.part, self._reader):
            decoded = self._decoder.feed(self._check.inside(window))
            yield from self._reader.stopwatch.decoding(decoded)

    def _check_transactions(self) -> None:
        """Compares the aborted intervals that end in the slice with the markers met."""
        if self._transactions is None:
            return
        part = self.span.part
        stop = part.stop_offset if self.done else self._check.stop_offset(part)
        self._transactions.finish(self._check.first_offset(part), stop)
        try:
            check_around(
                part,
                self._transactions,
                self._reader,
                position=self.span.first.position + self._decoder.counters.bytes,
                next_offset=stop,
            )
        except ObjectNotFoundError as error:
            text = f"transactions are not compared with the log around: no object {error.uri}"
            if self._fail_on_data_loss:
                place = {**_place(part, self._reader), "uri": error.uri}
                text = f"{text}; failOnDataLoss=false goes on without"
                raise DataLossError(text, **place) from error
            log.warning("%s-%s: %s", part.topic, part.partition, text)

    def finish(
        self, meter: TaskMeter | None, *, rest_is_lost: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows still held back, once all bytes have been fed, or the rest will never come."""
        with _located(self.span.part, self._reader):
            if not (self.done or rest_is_lost):
                self._check.finish(self._decoder.next_offset)
            if not rest_is_lost:
                self._check_transactions()
            try:
                yield from self._decoder.finish()
            except TruncatedBatchError:
                if not rest_is_lost:
                    raise
        if meter is not None:
            meter.add_decoded(self._decoder.counters)


def _place(part: SegmentSlice, reader: SegmentSource) -> dict[str, Any]:
    return {
        "topic": part.topic,
        "partition": part.partition,
        "offset": part.start_offset,
        "uri": reader.store.uri(part.objects.log.key),
    }


@contextmanager
def _located(part: SegmentSlice, reader: SegmentSource) -> Iterator[None]:
    """Adds the place to errors of the layers below, which know bytes but not whose."""
    try:
        yield
    except TieredKafkaError as error:
        error.located(**_place(part, reader))
        raise
    except SegmentFormatError as error:
        place = _place(part, reader)
        if error.offset is not None:
            place["offset"] = error.offset
        raise CorruptSegmentError(error.message, **place, position=error.position) from error
