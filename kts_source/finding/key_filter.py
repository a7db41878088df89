"""Which keys a segment may hold: hashes of 64 bits, of which it keeps enough that a key that is not
there is taken for one that is about once in 67 million look-ups.

    borders  uint32 × (2^bits + 1)   first key of each bucket; the last one is the number of keys
    lows     uint32 × keys           ascending within a bucket

    bucket = the first `bits` bits of a hash,  low = the 32 bits behind them

Numbers are little-endian. With 64 keys a bucket, about, that is four bytes a key. Why no library:
`rbloom` takes 4.2 bytes a key for one in 10 million, and a call of Python for each key;
`pyfusefilter` has no wheels for aarch64.

Hashes are BLAKE2b of eight bytes, with a salt of the index and, if the user has one, with a secret
as the key: without it nobody can tell which keys there are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

MOST_KEYS: Final = 1 << 26
"""In a segment; one with more has no filter."""
_KEYS_OF_A_BUCKET: Final = 64
_MOST_BITS: Final = 24
_LOW_BITS: Final = 32
_AT_A_TIME: Final = 1 << 14
"""Keys that are looked up together: with each come all keys of its bucket."""
SALT_SIZE: Final = 16
MOST_SECRET_BYTES: Final = 64


def hashes_of(keys: Iterable[bytes], *, salt: bytes, secret: bytes) -> Hashes:
    """A hash for each key, in order.

    Args:
        keys: Bytes.
        salt: `SALT_SIZE` bytes.
        secret: Up to `MOST_SECRET_BYTES`; empty = none.
    """
    start = hashlib.blake2b(digest_size=8, salt=salt, key=secret)
    found = bytearray()
    for key in keys:
        one = start.copy()
        one.update(key)
        found += one.digest()
    return np.frombuffer(bytes(found), "<u8").astype(np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class KeyFilter:
    """The keys of one segment.

    Attributes:
        bits: Of a hash that name its bucket.
        borders: See above.
        lows: See above.
    """

    bits: int
    borders: NDArray[np.uint32]
    lows: NDArray[np.uint32]

    @classmethod
    def of(cls, hashes: Hashes) -> KeyFilter:
        """The filter of these hashes.

        Raises:
            ValueError: More than `MOST_KEYS` of them.
        """
        distinct = np.unique(hashes)
        if len(distinct) > MOST_KEYS:
            raise ValueError(f"{len(distinct)} keys in a segment; at most {MOST_KEYS}")
        bits = max(0, min((len(distinct) // _KEYS_OF_A_BUCKET).bit_length(), _MOST_BITS))
        buckets, lows = _split(distinct, bits)
        borders = np.searchsorted(buckets, np.arange((1 << bits) + 1)).astype(np.uint32)
        return cls(bits, borders, lows)

    @classmethod
    def from_bytes(cls, data: bytes, bits: int) -> KeyFilter:
        """What `to_bytes` wrote.

        Raises:
            ValueError: It is not a filter of so many bits.
        """
        numbers = np.frombuffer(data, "<u4")
        count = (1 << bits) + 1
        if not 0 <= bits <= _MOST_BITS or len(numbers) < count:
            raise ValueError("a filter without all of its borders")
        borders, lows = numbers[:count], numbers[count:]
        if borders[0] != 0 or borders[-1] != len(lows) or (borders[1:] < borders[:-1]).any():
            raise ValueError("borders of a filter that are in no order")
        return cls(bits, borders, lows)

    def to_bytes(self) -> bytes:
        """Borders and lows."""
        return self.borders.astype("<u4").tobytes() + self.lows.astype("<u4").tobytes()

    def may_hold(self, hashes: Hashes) -> bool:
        """Whether the segment may have one of these keys; false only if it has none."""
        return any(
            self._may_hold(hashes[start : start + _AT_A_TIME])
            for start in range(0, len(hashes), _AT_A_TIME)
        )

    def _may_hold(self, hashes: Hashes) -> bool:
        buckets, lows = _split(hashes, self.bits)
        starts = self.borders[buckets].astype(np.int64)
        sizes = self.borders[buckets + 1].astype(np.int64) - starts
        # The keys of all those buckets, one bucket after the other.
        before = np.cumsum(sizes) - sizes
        places = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
        return bool((self.lows[places] == np.repeat(lows, sizes)).any())


def _split(hashes: Hashes, bits: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Bucket and low of each hash."""
    buckets = (
        (hashes >> np.uint64(64 - bits)).astype(np.int64)
        if bits
        else np.zeros(len(hashes), np.int64)
    )
    lows = (hashes >> np.uint64(64 - bits - _LOW_BITS)).astype(np.uint32)
    return buckets, lows
