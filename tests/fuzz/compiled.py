"""Defines fuzz targets that compare the compiled kernels with the pure Python decoder.

Each input is stored directly before or directly after a memory page without access rights. If a
kernel reads a byte of this page, the process crashes.
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
    """A buffer for one input between two pages without access rights.

    Args:
        size: Maximum size of an input in bytes.

    Attributes:
        stop_address: Address of the first byte after the buffer; reading it crashes the process.
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
        self._buffer = memoryview(view).cast("B")[page : page + self._size]

    def at_end(self, data: bytes) -> memoryview:
        """Copies `data` to the end of the buffer and returns a view of the copy."""
        copy = self._buffer[self._size - len(data) :]
        copy[:] = data
        return copy.toreadonly()

    def at_start(self, data: bytes) -> memoryview:
        """Copies `data` to the start of the buffer and returns a view of the copy."""
        copy = self._buffer[: len(data)]
        copy[:] = data
        return copy.toreadonly()


_guarded = GuardedMemory(MAX_OUTPUT)


def _compare(data: bytes, mode: int) -> str:
    """Asserts that the kernels and the pure Python decoder return the same rows of the log `data`,
    or raise the same error class.

    The bits of `mode` select the options of the decoders and the location of the input.
    """
    start, stop = _BOUNDS[(mode >> 2) % len(_BOUNDS)]
    cut = _CUTS[(mode >> 4) % len(_CUTS)]
    options = {
        "start_offset": start,
        "stop_offset": stop,
        "check_crcs": not mode & 2,
        "max_batch_bytes": MAX_OUTPUT,
    }
    aborted = _ABORTED if mode & 8 else NO_ABORTED
    expected = yardstick.expected(data, aborted=aborted, **options)  # type: ignore[arg-type]
    copy = _guarded.at_start(data) if mode & 1 else _guarded.at_end(data)
    actual = yardstick.actual(copy, cut=cut, aborted=aborted, **options)
    assert actual == expected, (
        f"kernels {str(actual)[:300]}, readable decoder {str(expected)[:300]}"
    )
    return expected if isinstance(expected, str) else VALUE


def _kernels(data: bytes) -> str:
    if len(data) < 2:
        return VALUE
    rest = data[2:]
    return _compare(repaired_batches(rest) if data[1] & 1 else rest, data[0])


def _payloads(data: bytes) -> str:
    """Compares both decoders for a batch with a valid header.

    The first four bytes of `data` select the mode, the codec, the number of records and the
    attributes. The other bytes are the payload of the batch.
    """
    if len(data) < 4:
        return VALUE
    mode, codec, count, attributes = data[:4]
    flags = (attributes & 0x0E) << 3
    batch = batch_around(data[4:], codec=codec % 6, count=count % 64, attributes=flags)
    all_columns = yardstick.expected(batch, max_batch_bytes=MAX_OUTPUT)
    for column in ("offset", "timestamp"):
        _compare_narrow(batch, column, all_columns)
    return _compare(batch, mode & 0xF3)


def _narrow_columns(data: bytes) -> str:
    if len(data) < 2:
        return VALUE
    rest = repaired_batches(data[2:]) if data[1] & 1 else data[2:]
    all_columns = yardstick.expected(rest, max_batch_bytes=MAX_OUTPUT)
    return _compare_narrow(
        rest, yardstick.ALL_COLUMNS[data[0] % len(yardstick.ALL_COLUMNS)], all_columns
    )


def _compare_narrow(rest: bytes, column: str, all_columns: yardstick.Outcome) -> str:
    """Asserts that decoding only `column` of the log `rest` returns the same values as decoding all
    columns, whose result is `all_columns`.

    Decoding one column may succeed although decoding all columns fails, because errors in other
    columns are not detected.
    """
    index = yardstick.ALL_COLUMNS.index(column)
    decoder = RecordDecoder(
        columns=(column,), start_offset=yardstick.START, max_batch_bytes=MAX_OUTPUT
    )
    try:
        rows = yardstick.rows_of(yardstick.decode_pieces(decoder, [_guarded.at_end(rest)]))
    except SegmentFormatError as error:
        if not isinstance(all_columns, str):
            raise AssertionError(f"only decoding without other columns fails: {column}") from error
        return type(error).__name__
    if isinstance(all_columns, str):
        return "stepped over"
    assert rows == [(row[index],) for row in all_columns]
    return VALUE


COMPILED: Final = (
    Target("kernels", _kernels, weight=6, compiled=True),
    Target("kernel-payloads", _payloads, weight=5, compiled=True),
    Target("kernel-columns", _narrow_columns, weight=2, compiled=True),
)
