"""Decodes a slice and returns the rows that satisfy option `where`.

Usually makes two passes over each window of bytes:

1. Decode only the columns that the condition uses.
2. If the window has matching rows, decode all columns of the rows from the first to the last match.

If two passes would save nothing, a single pass decodes all columns. If two passes would decode most
rows of a window twice, a single pass decodes the rest of the slice. The number of passes does not
affect the result.
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
"""Maximum rows of a batch in the first pass. A window of small records has fewer rows, so it
becomes one batch. Each batch has a fixed cost.
"""
_LARGE_COLUMNS: Final = frozenset(("value", "headers"))
"""Columns that justify a second pass; decoding other columns is as fast as skipping them."""


class FilteringDecoder:
    """A replacement for `RecordDecoder` that also filters rows.

    Args:
        predicate: Condition that returned rows must satisfy. It does not use topic or partition.
        decoder: Creates a `RecordDecoder` for the slice. Its keyword arguments replace the slice's
            defaults.
        columns: Columns of the batches, in order.
        position: Position in the log of the first byte that `feed` will receive.
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
        # Bytes of an incomplete entry at the end of the last window of the first pass.
        self._carry = bytearray()
        self._fed = position
        self._earlier = DecodeCounters()

    @property
    def done(self) -> bool:
        """True if a batch that begins at or after the stop offset was read. Then no further bytes
        are needed.
        """
        return self._decoder.done

    @property
    def next_offset(self) -> int:
        """One past the last offset of the log entries that were read."""
        return self._decoder.next_offset

    @property
    def counters(self) -> DecodeCounters:
        """Counters of the decoder. Each record counts once, even if two passes decode it or the
        condition excludes it.
        """
        return self._earlier + self._decoder.counters

    def feed(self, window: memoryview) -> Iterator[pa.RecordBatch]:
        """Decodes the next bytes, and yields the matching rows."""
        rows = self._late_rows(window) if self._late else self._filtered(self._decoder.feed(window))
        yield from _join_small_batches(rows, self._batches)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yields the matching rows that `feed` has not yielded yet. Call it after all bytes of the
        slice were fed.
        """
        # A first pass has no rows left, because it is flushed after every window.
        yield from _join_small_batches(self._filtered(self._decoder.finish()), self._batches)

    def _filtered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            mask = wanted_rows(self._predicate, batch)
            if mask is not None:
                # The filter copies the rows, so the buffers of the decoder are released.
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
        """Runs the first pass for a window. Returns the offset of the first and of the last
        matching row (`None` without a match), the number of rows from the first to the last match,
        and the number of all rows.
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
        """Yields the matching rows with offsets from `first` to `last`, with all columns. Decodes
        the first `complete` bytes of `_carry` and the window together.
        """
        decoder = self._make(
            position=self._fed - len(window) - len(self._carry),
            start_offset=first,
            stop_offset=last + 1,
            # The first pass has checked the checksums, the lineage and the transactions.
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
        """Stores in `_carry` the bytes after the last complete entry of the window."""
        if self.done:
            self._carry = bytearray()
        elif complete:
            self._carry = bytearray(window[complete - len(self._carry) :])
        else:
            self._carry += window

    def _decode_at_once(self) -> Iterator[pa.RecordBatch]:
        """Switches to a single pass for the rest of the slice. Yields the matching rows of
        `_carry`.
        """
        self._late = False
        self._earlier = self._decoder.counters
        bounds = self._decoder.open_bounds
        self._decoder = self._make(position=self._fed - len(self._carry), offset_bounds=bounds)
        yield from self._filtered(self._decoder.feed(bytes(self._carry)))
        self._carry = bytearray()


def _join_small_batches(
    batches: Iterable[pa.RecordBatch], limits: BatchLimits
) -> Iterator[pa.RecordBatch]:
    """Joins successive batches while the result is within the limits."""
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
