"""Reads the sparse indexes of a segment: offset index (`.index`) and time index (`.timeindex`).

Both files have big-endian entries and no file header:

| | size | entry |
|---|---:|---|
| `.index` | 8 | i32 offset − base offset, i32 position in the log |
| `.timeindex` | 12 | i64 timestamp in milliseconds, i32 offset − base offset |

Both columns of the offset index increase strictly. An entry has the **last** offset of an append
(one or more batches) and the position where the append begins. So the batch at the position begins
with a lower offset, unless the append is a single record. The index of a small segment is empty,
and no entry has position 0.

In an entry `(T, o)` of the time index, `T` is the largest timestamp of the segment up to this
entry, and `o` is the last offset of the batch that contains the record with this timestamp.
Timestamps increase strictly, offsets never decrease. The last entry has the largest timestamp of
the segment. The index is empty if no record has a timestamp.

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
    """An entry of an offset index: an offset and a position in the log."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex(ArrayValue):
    """A parsed offset index.

    Attributes:
        offsets: Absolute offsets, int64, strictly increasing.
        positions: Positions in the log in bytes, int64, strictly increasing. Same length as
            `offsets`.
    """

    base_offset: int
    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]

    @classmethod
    def from_bytes(cls, data: BytesLike, *, base_offset: int) -> OffsetIndex:
        """Parses an offset index. Uses memory of twice the size of `data`.

        Args:
            data: Content of the file.
            base_offset: Base offset of the segment, which the file does not contain.

        Raises:
            CorruptIndexError: The size is not a multiple of 8, a number is negative, a column does
                not increase (for example because the file is in use and ends with zeros), or an
                offset exceeds 2^63 − 1.
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
        """Returns the last entry whose offset is at or below `offset`. Returns `(base_offset, 0)`
        if there is none.

        A scan that starts at the returned position reads every batch whose last offset is at or
        above `offset`.
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
    """An entry of a time index: a timestamp in milliseconds and an offset."""

    timestamp: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex(ArrayValue):
    """A parsed time index.

    Attributes:
        timestamps: Timestamps in milliseconds, int64, strictly increasing.
        offsets: Absolute offsets, int64, never decreasing. Same length as `timestamps`.
    """

    base_offset: int
    timestamps: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def from_bytes(cls, data: BytesLike, *, base_offset: int) -> TimeIndex:
        """Parses a time index. Uses memory of less than twice the size of `data`.

        Args:
            data: Content of the file.
            base_offset: Base offset of the segment, which the file does not contain.

        Raises:
            CorruptIndexError: The size is not a multiple of 12, timestamps do not increase, or
                offsets are negative, decrease, or exceed 2^63 − 1.
        """
        view = whole_entries(data, _TIME_ENTRY.itemsize, "time index")
        entries = np.frombuffer(view, dtype=_TIME_ENTRY)
        timestamps = entries["timestamp"].astype(np.int64)
        relative = entries["offset"].astype(np.int64)
        # Compare neighbors instead of computing differences, which may overflow 64 bits.
        bad = np.flatnonzero((timestamps[1:] <= timestamps[:-1]) | (relative[1:] < relative[:-1]))
        if len(bad):
            entry = int(bad[0]) + 1
            raise CorruptIndexError(
                f"time index: (timestamp, relative offset)"
                f" ({int(timestamps[entry])}, {int(relative[entry])}) follows"
                f" ({int(timestamps[entry - 1])}, {int(relative[entry - 1])}):"
                " timestamps must increase, and offsets must not decrease",
                position=entry * _TIME_ENTRY.itemsize,
            )
        if len(relative) and not (
            relative[0] >= 0 and 0 <= base_offset <= 2**63 - 1 - int(relative[-1])
        ):
            raise CorruptIndexError(
                f"time index: offsets are negative or above 2^63−1 with base offset {base_offset}",
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
        """Returns the last entry whose timestamp is at or below `timestamp`. Returns `(-1,
        base_offset)` if there is none.

        All records with a timestamp above `timestamp` are in the batch of the returned entry or in
        later batches. Records with the timestamp `timestamp` may also be in earlier batches, but
        only if the returned entry has this timestamp.
        """
        index = int(np.searchsorted(self.timestamps, timestamp, side="right")) - 1
        if index < 0:
            return TimestampOffset(-1, self.base_offset)
        return TimestampOffset(int(self.timestamps[index]), int(self.offsets[index]))
