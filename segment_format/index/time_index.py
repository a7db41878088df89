"""The time index (`.timeindex`): greatest timestamps so far and where they are.

12 bytes an entry, big-endian:

| position | size | field |
|---:|---:|---|
| 0 | 8 | i64 timestamp, milliseconds |
| 8 | 4 | i32 offset − base offset of the segment |

No file header. Entry `(T, o)`: the greatest timestamp up to here is `T`, and it is in the batch
whose last offset is `o`. Timestamps increase strictly, offsets never decrease. The last entry holds
the segment's maximum. Empty when no record has a timestamp.

Source: `org.apache.kafka.storage.internals.log.TimeIndex`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from segment_format._array_value import ArrayValue
from segment_format._cursor import whole_entries
from segment_format.errors import CorruptIndexError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segment_format._cursor import BytesLike

ENTRY_SIZE: Final = 12
"""Bytes of one entry."""
_ENTRY = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])


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
        """The index in `data`; memory is less than twice the size of `data`.

        Args:
            data: The whole file.
            base_offset: Base offset of the segment, which the file does not state.

        Raises:
            CorruptIndexError: The size is not a multiple of 12, timestamps do not increase, or
                offsets are negative, decrease, or pass 2^63 − 1.
        """
        view = whole_entries(data, ENTRY_SIZE, "time index")
        entries = np.frombuffer(view, dtype=_ENTRY)
        timestamps = entries["timestamp"].astype(np.int64)
        relative = entries["offset"].astype(np.int64)
        # Compared, not subtracted: differences of 64-bit timestamps can overflow.
        bad = np.flatnonzero((timestamps[1:] <= timestamps[:-1]) | (relative[1:] < relative[:-1]))
        if len(bad):
            at = int(bad[0]) + 1
            raise CorruptIndexError(
                f"time index entry ({int(timestamps[at])}, {int(relative[at])}) follows"
                f" ({int(timestamps[at - 1])}, {int(relative[at - 1])})",
                position=at * ENTRY_SIZE,
            )
        if len(relative) and not (
            relative[0] >= 0 and 0 <= base_offset <= 2**63 - 1 - int(relative[-1])
        ):
            raise CorruptIndexError(
                f"impossible offsets: base {base_offset}, first entry {int(relative[0])}",
                position=0,
            )
        return cls(base_offset, timestamps, base_offset + relative)

    def to_bytes(self) -> bytes:
        """The file that `from_bytes` reads back as this index."""
        entries = np.empty(len(self.offsets), dtype=_ENTRY)
        entries["timestamp"] = self.timestamps
        entries["offset"] = self.offsets - self.base_offset
        return entries.tobytes()

    def __len__(self) -> int:
        return len(self.offsets)

    def offsets_before(self, timestamp: int) -> NDArray[np.int64]:
        """Offsets of the entries that prove that all records up to them are dated before.

        Timestamps of 0 and below prove nothing: some clients do not set the header field that
        brokers index.
        """
        return self.offsets[(self.timestamps > 0) & (self.timestamps < timestamp)]

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry at or below `timestamp`, else `(-1, base_offset)`.

        Every record with a timestamp above the entry's, and at or above `timestamp`, has an offset
        at or beyond the entry's batch: start scanning there.
        """
        index = int(np.searchsorted(self.timestamps, timestamp, side="right")) - 1
        if index < 0:
            return TimestampOffset(-1, self.base_offset)
        return TimestampOffset(int(self.timestamps[index]), int(self.offsets[index]))
