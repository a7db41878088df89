"""Reads the sparse indexes of a segment: offset index (`.index`) and time index (`.timeindex`).

Both are big-endian, without a file header:

| | size | entry |
|---|---:|---|
| `.index` | 8 | i32 offset − base offset, i32 position in the log |
| `.timeindex` | 12 | i64 timestamp in milliseconds, i32 offset − base offset |

Columns of the offset index increase strictly. An entry names the **last** offset of an append and
the position where that append begins: the position is a batch border, but the batch there begins
with a lower offset. The index of a small segment is empty, and no entry has position 0.

Entry `(T, o)` of the time index: `T` is the largest timestamp up to here, in the batch whose last
offset is `o`. Timestamps increase strictly, offsets never decrease. The last entry has the
segment's maximum; the index is empty if no record has a timestamp.

Source: `OffsetIndex`, `TimeIndex` in `org.apache.kafka.storage.internals.log`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from segment_format._cursor import ArrayValue, whole_entries
from segment_format.errors import CorruptIndexError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segment_format._cursor import BytesLike

OFFSET_ENTRY_SIZE: Final = 8
"""Bytes of one entry of the offset index."""
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


class OffsetPosition(NamedTuple):
    """An offset and the position in the log that the index pairs with it."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex(ArrayValue):
    """A parsed offset index.

    Attributes:
        base_offset: Base offset of the segment.
        offsets: Absolute offsets, int64, strictly increasing.
        positions: Positions in the log, int64, strictly increasing, same length.
    """

    base_offset: int
    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]

    @classmethod
    def from_bytes(cls, data: BytesLike, *, base_offset: int) -> OffsetIndex:
        """Parses an offset index; memory is twice the size of `data`.

        Args:
            data: The whole file.
            base_offset: Base offset of the segment, which the file does not state.

        Raises:
            CorruptIndexError: The size is not a multiple of 8, a column is negative or does not
                increase (as in a zero-filled tail of a file in use), or offsets pass 2^63 − 1.
        """
        view = whole_entries(data, OFFSET_ENTRY_SIZE, "offset index")
        entries = np.frombuffer(view, dtype=">i4").reshape(-1, 2).astype(np.int64)
        relative, positions = entries.T.copy()
        _check_increasing(relative, "offset")
        _check_increasing(positions, "position")
        if len(relative) and not 0 <= base_offset <= 2**63 - 1 - int(relative[-1]):
            raise CorruptIndexError(f"base offset {base_offset} is out of range", position=0)
        return cls(base_offset, base_offset + relative, positions)

    def to_bytes(self) -> bytes:
        """Returns the content of the file."""
        entries = np.empty((len(self.offsets), 2), dtype=">i4")
        entries[:, 0] = self.offsets - self.base_offset
        entries[:, 1] = self.positions
        return entries.tobytes()

    def __len__(self) -> int:
        return len(self.offsets)

    def lookup(self, offset: int) -> OffsetPosition:
        """Returns the last entry at or below `offset`, else `(base_offset, 0)`.

        A scan from its position meets every batch whose last offset is at or above `offset`.
        """
        index = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        if index < 0:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(int(self.offsets[index]), int(self.positions[index]))


def _check_increasing(column: NDArray[np.int64], name: str) -> None:
    if not len(column):
        return
    if column[0] < 0:
        raise CorruptIndexError(f"negative {name} {int(column[0])} in an index", position=0)
    bad = np.flatnonzero(np.diff(column) <= 0)
    if len(bad):
        entry = int(bad[0]) + 1
        raise CorruptIndexError(
            f"{name} {int(column[entry])} follows {int(column[entry - 1])} in an index, but must be"
            " higher",
            position=entry * OFFSET_ENTRY_SIZE,
        )


class TimestampOffset(NamedTuple):
    """A timestamp in milliseconds and the offset that the index pairs with it."""

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex(ArrayValue):
    """A parsed time index.

    Attributes:
        base_offset: Base offset of the segment.
        timestamps: Milliseconds, int64, strictly increasing.
        offsets: Absolute offsets, int64, never decreasing, same length.
    """

    base_offset: int
    timestamps: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def from_bytes(cls, data: BytesLike, *, base_offset: int) -> TimeIndex:
        """Parses a time index; memory is less than twice the size of `data`.

        Args:
            data: The whole file.
            base_offset: Base offset of the segment, which the file does not state.

        Raises:
            CorruptIndexError: The size is not a multiple of 12, timestamps do not increase, or
                offsets are negative, decrease, or pass 2^63 − 1.
        """
        view = whole_entries(data, _TIME_ENTRY.itemsize, "time index")
        entries = np.frombuffer(view, dtype=_TIME_ENTRY)
        timestamps = entries["timestamp"].astype(np.int64)
        relative = entries["offset"].astype(np.int64)
        # Compared, not subtracted: differences of 64-bit timestamps can overflow.
        bad = np.flatnonzero((timestamps[1:] <= timestamps[:-1]) | (relative[1:] < relative[:-1]))
        if len(bad):
            entry = int(bad[0]) + 1
            raise CorruptIndexError(
                f"time index entry ({int(timestamps[entry])}, {int(relative[entry])}) follows"
                f" ({int(timestamps[entry - 1])}, {int(relative[entry - 1])})",
                position=entry * _TIME_ENTRY.itemsize,
            )
        if len(relative) and not (
            relative[0] >= 0 and 0 <= base_offset <= 2**63 - 1 - int(relative[-1])
        ):
            raise CorruptIndexError(
                f"offsets out of range: base {base_offset}, first entry {int(relative[0])}",
                position=0,
            )
        return cls(base_offset, timestamps, base_offset + relative)

    def to_bytes(self) -> bytes:
        """Returns the content of the file."""
        entries = np.empty(len(self.offsets), dtype=_TIME_ENTRY)
        entries["timestamp"] = self.timestamps
        entries["offset"] = self.offsets - self.base_offset
        return entries.tobytes()

    def __len__(self) -> int:
        return len(self.offsets)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Returns the last entry at or below `timestamp`, else `(-1, base_offset)`.

        Records with a timestamp at or above `timestamp` that exceeds the entry's timestamp are in
        the entry's batch or after it.
        """
        index = int(np.searchsorted(self.timestamps, timestamp, side="right")) - 1
        if index < 0:
            return TimestampOffset(-1, self.base_offset)
        return TimestampOffset(int(self.timestamps[index]), int(self.offsets[index]))
