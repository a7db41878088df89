"""Decodes a slice and keeps the rows for which option `where` is true.

The columns of the condition are decoded first. If a window has a match, a second pass decodes all
columns of the rows from its first to its last match. All columns are decoded in a single pass if
most rows would otherwise be decoded twice, or if two passes save nothing. The rows are the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from kts_source.predicate.evaluate import wanted_rows
from kts_source.predicate.model import columns_of
from segment_format.kernels.decoder import DecodeCounters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kts_source.predicate.model import Predicate
    from kts_source.read.read_settings import BatchLimits
    from segment_format.arrow import RecordDecoder

_PROBE_ROWS: Final = 32768
"""More than the rows in a window of small records, because each batch has a fixed cost."""
_LARGE_COLUMNS: Final = frozenset(("value", "headers"))
"""Columns that justify a second pass; decoding other columns is as fast as skipping them."""


class FilteringDecoder:
    """A `RecordDecoder` that filters rows.

    Args:
        predicate: Condition without constant columns; only rows for which it is true are returned.
        decoder: Creates a `RecordDecoder` of the slice; its arguments override the slice's
            arguments.
        columns: Columns of the batches, in order.
        position: Log position of the first byte that will be fed.
        batches: Limits of a batch.
    """

    def __init__(
        self,
        predicate: Predicate,
        decoder: Callable[..., RecordDecoder],
        *,
        columns: Sequence[str],
        position: int,
        batches: BatchLimits,
    ) -> None:
        deciding = columns_of(predicate)
        self._predicate = predicate
        self._columns = list(columns)
        needed = tuple(dict.fromkeys((*columns, *sorted(deciding))))
        self._make = partial(decoder, columns=needed, max_rows=batches.rows, max_bytes=batches.size)
        self._batches = batches
        self._position = position
        self._late = not _LARGE_COLUMNS.isdisjoint(set(columns) - deciding)
        if self._late:
            names = dict.fromkeys(("offset", *sorted(deciding)))
            self._decoder = decoder(columns=names, max_rows=_PROBE_ROWS, position=position)
        else:
            self._decoder = self._make(position=position)
        # Bytes of the incomplete entry of the first pass, and the position after all bytes fed.
        self._carry = bytearray()
        self._fed = position
        self._earlier = DecodeCounters()

    @property
    def done(self) -> bool:
        """True if a batch at or after the stop offset was read."""
        return self._decoder.done

    @property
    def next_offset(self) -> int:
        """One past the last offset of the entries read."""
        return self._decoder.next_offset

    @property
    def counters(self) -> DecodeCounters:
        """Counters of the first or only pass; they include filtered rows."""
        return self._earlier + self._decoder.counters

    def feed(self, window: memoryview) -> Iterator[pa.RecordBatch]:
        """Decodes the next bytes, and yields the matching rows."""
        rows = self._late_rows(window) if self._late else self._filtered(self._decoder.feed(window))
        yield from _packed(rows, self._batches)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yields the remaining matching rows."""
        # The first pass has no rows left: it is flushed after every window.
        yield from _packed(self._filtered(self._decoder.finish()), self._batches)

    def _filtered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            mask = wanted_rows(self._predicate, batch)
            if mask is not None:
                # Also copies the rows, which releases the decoder's buffers.
                yield batch.select(self._columns).filter(mask)

    def _late_rows(self, window: memoryview) -> Iterator[pa.RecordBatch]:
        first, last, spread, rows = self._matches(window)
        self._fed += len(window)
        start = self._fed - len(window) - len(self._carry)
        complete = self._position + self._decoder.counters.bytes - start
        if last is not None and first is not None:
            yield from self._second_pass(window, complete, first, last)
        self._carry_rest(window, complete)
        if 2 * spread > rows and not self.done:
            yield from self._decode_at_once()

    def _matches(self, window: memoryview) -> tuple[int | None, int | None, int, int]:
        """Returns the first and last matching offset, the number of rows from the first to the
        last match, and the number of rows in the window.
        """
        first = last = None
        before = rows = 0
        stop = 0
        for batch in self._first_pass(window):
            mask = wanted_rows(self._predicate, batch)
            if mask is not None:
                numbers = pc.indices_nonzero(mask)
                low, high = numbers[0].as_py(), numbers[-1].as_py()
                offsets = batch.column("offset")
                if first is None:
                    first, before = offsets[low].as_py(), rows + low
                last, stop = offsets[high].as_py(), rows + high + 1
            rows += batch.num_rows
        return first, last, stop - before, rows

    def _first_pass(self, window: memoryview) -> Iterator[pa.RecordBatch]:
        yield from self._decoder.feed(window)
        yield from self._decoder.flush()

    def _second_pass(
        self, window: memoryview, complete: int, first: int, last: int
    ) -> Iterator[pa.RecordBatch]:
        """Yields all columns of the matching rows with offsets from `first` to `last`. They are in
        the first `complete` bytes of carry and window.
        """
        decoder = self._make(
            position=self._fed - len(window) - len(self._carry),
            start_offset=first,
            stop_offset=last + 1,
            # Both were checked in the first pass.
            check_crcs=False,
            lineage=None,
            transactions=None,
        )
        if self._carry:
            yield from self._filtered(decoder.feed(bytes(self._carry)))
        if not decoder.done:
            yield from self._filtered(decoder.feed(window[: complete - len(self._carry)]))
        yield from self._filtered(decoder.finish())

    def _carry_rest(self, window: memoryview, complete: int) -> None:
        """Keeps the bytes of carry and window after the last complete entry."""
        if self.done:
            self._carry = bytearray()
        elif complete:
            self._carry = bytearray(window[complete - len(self._carry) :])
        else:
            self._carry += window

    def _decode_at_once(self) -> Iterator[pa.RecordBatch]:
        """Switches to a single pass."""
        self._late = False
        self._earlier = self._decoder.counters
        bounds = self._decoder.open_bounds
        self._decoder = self._make(position=self._fed - len(self._carry), offset_bounds=bounds)
        yield from self._filtered(self._decoder.feed(bytes(self._carry)))
        self._carry = bytearray()


def _packed(batches: Iterable[pa.RecordBatch], limits: BatchLimits) -> Iterator[pa.RecordBatch]:
    """Joins batches up to about the limits."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += batch.nbytes
        if waiting and (rows > limits.rows or size > limits.size):
            yield _joined(waiting)
            waiting, rows, size = [], batch.num_rows, batch.nbytes
        waiting.append(batch)
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
