"""Targets that run the compiled kernels, held to the readable decoder.

Inputs lie in memory that ends, or begins, at a page nobody may touch, so that a read outside of
them kills the process.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

from segment_format.arrow import RecordDecoder
from segment_format.errors import SegmentFormatError
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import NO_ABORTED, AbortedIntervals
from tests.fuzz.repair import batch_around, repaired_batches
from tests.fuzz.targets import MAX_OUTPUT, VALUE, Target
from tests.segment_format.kernels import yardstick

_ABORTED: Final = AbortedIntervals.from_txns(
    [AbortedTxn(5, 100, 150, 151), AbortedTxn(4242, 0, 250, 251)],
    start_offset=0,
    stop_offset=1 << 40,
)
_CUTS: Final = ((), (1,), (7, 100), (61,), (4096,), (13, 1, 64))
_BOUNDS: Final = ((yardstick.START, yardstick.STOP), (101, 1 << 40), (0, 103), (102, 103))


class GuardedMemory:
    """Room for one input between two pages that cannot be read.

    Args:
        size: Most bytes of an input.

    Attributes:
        stop_address: Of the first byte behind the room, which must not be read.
    """

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self._size = -(-size // page) * page
        self._map = mmap.mmap(-1, self._size + 2 * page)
        view = (ctypes.c_char * len(self._map)).from_buffer(self._map)
        address = ctypes.addressof(view)
        self.stop_address = address + page + self._size
        libc = ctypes.CDLL(None, use_errno=True)
        for guard in (address, address + page + self._size):
            if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._room = memoryview(view).cast("B")[page : page + self._size]

    def at_end(self, data: bytes) -> memoryview:
        """A copy of `data` whose last byte is the last that can be read."""
        room = self._room[self._size - len(data) :]
        room[:] = data
        return room.toreadonly()

    def at_start(self, data: bytes) -> memoryview:
        """A copy of `data` whose first byte is the first that can be read."""
        room = self._room[: len(data)]
        room[:] = data
        return room.toreadonly()


_guarded = GuardedMemory(MAX_OUTPUT)


def _compare(data: bytes, mode: int) -> str:
    """Compare kernels and readable decoder on the same bytes: the same rows or class of error."""
    start, stop = _BOUNDS[(mode >> 2) % len(_BOUNDS)]
    cut = _CUTS[(mode >> 4) % len(_CUTS)]
    options = {
        "start_offset": start,
        "stop_offset": stop,
        "check_crcs": not mode & 2,
        "max_batch_bytes": MAX_OUTPUT,
    }
    aborted = _ABORTED if mode & 8 else NO_ABORTED
    wanted = yardstick.expected(data, aborted=aborted, **options)  # type: ignore[arg-type]
    copy = _guarded.at_start(data) if mode & 1 else _guarded.at_end(data)
    found = yardstick.actual(copy, cut=cut, aborted=aborted, **options)
    assert found == wanted, f"kernels {str(found)[:300]}, readable decoder {str(wanted)[:300]}"
    return wanted if isinstance(wanted, str) else VALUE


def _kernels(data: bytes) -> str:
    if len(data) < 2:
        return VALUE
    rest = data[2:]
    return _compare(repaired_batches(rest) if data[1] & 1 else rest, data[0])


def _payloads(data: bytes) -> str:
    """A payload of any codec behind a right header, and behind it another batch."""
    if len(data) < 4:
        return VALUE
    mode, codec, count, attributes = data[:4]
    flags = (attributes & 0x0E) << 3
    batch = batch_around(data[4:], codec=codec % 6, count=count % 64, attributes=flags)
    whole = yardstick.expected(batch, max_batch_bytes=MAX_OUTPUT)
    for column in ("offset", "timestamp"):
        _compare_narrow(batch, column, whole)
    return _compare(batch, mode & 0xF3)


def _narrow_columns(data: bytes) -> str:
    if len(data) < 2:
        return VALUE
    rest = repaired_batches(data[2:]) if data[1] & 1 else data[2:]
    whole = yardstick.expected(rest, max_batch_bytes=MAX_OUTPUT)
    return _compare_narrow(rest, yardstick.ALL_COLUMNS[data[0] % len(yardstick.ALL_COLUMNS)], whole)


def _compare_narrow(rest: bytes, column: str, whole: yardstick.Outcome) -> str:
    """Few columns step over what they do not need: what comes out must be what all would give."""
    where = yardstick.ALL_COLUMNS.index(column)
    decoder = RecordDecoder(
        columns=(column,), start_offset=yardstick.START, max_batch_bytes=MAX_OUTPUT
    )
    try:
        rows = yardstick.rows_of(yardstick.decode_pieces(decoder, [_guarded.at_end(rest)]))
    except SegmentFormatError as error:
        if not isinstance(whole, str):
            raise AssertionError(f"{column} fails where all columns do not") from error
        return type(error).__name__
    if isinstance(whole, str):
        return "stepped over"
    assert rows == [(row[where],) for row in whole]
    return VALUE


COMPILED: Final = (
    Target("kernels", _kernels, weight=6, compiled=True),
    Target("kernel-payloads", _payloads, weight=5, compiled=True),
    Target("kernel-columns", _narrow_columns, weight=2, compiled=True),
)
