"""From wanted byte ranges to requests: merge what touches, cut what is too long. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Bytes [start, stop) of an object.

    Raises:
        ValueError: Negative or backwards.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not a byte range: [{self.start}, {self.stop})")

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Request:
    """One ranged read, and what of it is wanted.

    Attributes:
        byte_range: What to ask for. Begins and ends with a wanted byte.
        wanted: The wanted bytes in it, ascending, none empty, none touching the next; gaps between
            them are fetched because that is cheaper than another request.
    """

    byte_range: ByteRange
    wanted: tuple[ByteRange, ...]


def coalesce(
    ranges: Iterable[ByteRange],
    *,
    max_gap: int,
    max_request_bytes: int,
    first_request_bytes: int | None = None,
) -> tuple[Request, ...]:
    """The requests that fetch all of the ranges, every byte at most once.

    Ranges that overlap, touch or lie at most `max_gap` apart are fetched together. What becomes
    longer than `max_request_bytes` is cut into nearly equal requests, between two of the given
    ranges where one of their borders is near enough, else inside a range.

    Args:
        ranges: Wanted bytes in any order; overlaps and repetitions count once, empty ranges not at
            all.
        max_gap: Largest number of unwanted bytes fetched to save a request.
        max_request_bytes: Largest request.
        first_request_bytes: Slow start: the first request ends with the first given range, and at
            the latest after this many bytes; None for no such limit.

    Returns:
        Requests in ascending order, none overlapping another.

    Raises:
        ValueError: A negative gap, or a request size below one.
    """
    if max_gap < 0 or max_request_bytes < 1:
        raise ValueError(f"max_gap {max_gap} or max_request_bytes {max_request_bytes} out of range")
    if first_request_bytes is not None and first_request_bytes < 1:
        raise ValueError(f"first_request_bytes {first_request_bytes} out of range")
    ordered = sorted(one for one in ranges if one.size)
    if not ordered:
        return ()
    wanted = tuple(_union(ordered))
    requests: list[ByteRange] = []
    if first_request_bytes is not None:
        start = ordered[0].start
        stop = min(ordered[0].stop, start + first_request_bytes, start + max_request_bytes)
        requests.append(ByteRange(start, stop))
        ordered = [ByteRange(max(one.start, stop), one.stop) for one in ordered if one.stop > stop]
    for run in _runs(ordered, max_gap):
        requests.extend(_parts(run, max_request_bytes))
    return tuple(_with_wanted(requests, wanted))


def _union(ordered: Iterable[ByteRange]) -> Iterator[ByteRange]:
    """The ranges without overlaps and borders between touching ones."""
    current: ByteRange | None = None
    for one in ordered:
        if current is None:
            current = one
        elif one.start <= current.stop:
            current = ByteRange(current.start, max(current.stop, one.stop))
        else:
            yield current
            current = one
    if current is not None:
        yield current


def _runs(ordered: Iterable[ByteRange], max_gap: int) -> Iterator[list[ByteRange]]:
    """Neighbours that are fetched together; overlaps are cut off, borders stay."""
    run: list[ByteRange] = []
    for one in sorted(ordered):
        if run and one.start - run[-1].stop > max_gap:
            yield run
            run = []
        if run and one.start < run[-1].stop:
            if one.stop > run[-1].stop:
                run.append(ByteRange(run[-1].stop, one.stop))
        else:
            run.append(one)
    if run:
        yield run


def _parts(run: Sequence[ByteRange], max_bytes: int) -> Iterator[ByteRange]:
    """Nearly equal parts of a run, none longer than allowed, cut at borders where possible."""
    stops = [one.stop for one in run]
    start, end = run[0].start, stops[-1]
    while end - start > max_bytes:
        left = end - start
        nominal = start + -(-left // -(-left // max_bytes))
        # Borders in (start, start + max_bytes]: the one nearest to an equal share.
        last = bisect_right(stops, start + max_bytes)
        first = bisect_right(stops, start)
        near = bisect_right(stops, nominal)
        candidates = [stops[at] for at in (near - 1, near) if first <= at < last]
        if candidates:
            stop = min(candidates, key=lambda border: abs(border - nominal))
            yield ByteRange(start, stop)
            start = max(stop, run[bisect_right(stops, stop)].start)
        else:
            # Longer than a request: cut inside, as if it stood alone.
            inside = run[first]
            left = min(inside.stop, end) - start
            stop = start + -(-left // -(-left // max_bytes))
            yield ByteRange(start, stop)
            start = stop
    yield ByteRange(start, end)


def _with_wanted(requests: Iterable[ByteRange], wanted: Sequence[ByteRange]) -> Iterator[Request]:
    at = 0
    for request in requests:
        inside = []
        while at < len(wanted) and wanted[at].start < request.stop:
            one = wanted[at]
            inside.append(ByteRange(max(one.start, request.start), min(one.stop, request.stop)))
            if one.stop > request.stop:
                break
            at += 1
        yield Request(request, tuple(inside))
