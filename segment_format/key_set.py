"""Stores a set of record keys in arrays, in which kernels look up keys.

    h       = seed xor length * M                                all numbers have 64 bits
    h       = (h xor word) * M;  h = h xor (h >> 32)              for each word, see below
    h       = (h xor (h >> 29)) * M
    bucket  = h >> shift,  bit = h >> (shift - 3),  tag = low 32 bits of h

Words are little-endian and have 8 bytes each. The last word ends at the end of the key, so it may
overlap the previous word. A key of 4 to 7 bytes is hashed as one word: its first four bytes, and
then its last four bytes. A key of 1 to 3 bytes is hashed as one word, too: its first, its middle
and its last byte.

The keys of a bucket are stored next to each other. An array has one bit for each value of `bit`,
which is 1 if the set contains a key with this value. A lookup has three steps:

1. Check the bit of the key. This rejects most keys that are not in the set, and the array is small
   enough for the CPU's cache.
2. Compare the tags of the bucket's keys.
3. Compare the bytes of the keys that have the same tag.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.kernels import contract as c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

MULTIPLIER: Final = 0x9E3779B97F4A7C15
"""Bits of the golden ratio; odd, so that multiplication is invertible."""
MAX_KEYS: Final = 1 << 28
LONG: Final = 63
"""Bit of `lengths` for keys of at least this many bytes."""
_WORD: Final = 8
_M: Final = np.uint64(MULTIPLIER)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeySet:
    """A set of record keys. `KeySet.of` builds it. Kernels read the arrays, so the arrays must not
    be changed.

    Attributes:
        has_null: True if the set contains the null key.
        lengths: Bit n is set if a key has n bytes. Bit `LONG` is set if a key has at least `LONG`
            bytes.
        seed: Seed of the hash. It is random, so that producers cannot choose keys whose hashes
            collide.
        shift: Number of low bits of a hash that do not select the bucket.
        bits: uint8; one byte per bucket, so one bit for each value of `bit`.
        borders: uint32; index of the first key of each bucket. The last entry is the number of
            keys.
        tags: uint32; the tag of each key.
        starts: int64; position of the first byte of each key in `data`. The last entry is the
            number of bytes.
        data: uint8; the bytes of all keys, concatenated.
    """

    has_null: bool
    lengths: int
    seed: int
    shift: int
    bits: NDArray[np.uint8]
    borders: NDArray[np.uint32]
    tags: NDArray[np.uint32]
    starts: NDArray[np.int64]
    data: NDArray[np.uint8]

    @classmethod
    def of(cls, keys: Iterable[bytes | None], *, seed: int | None = None) -> KeySet:
        """Builds a set of keys. Repeated keys are stored once.

        Args:
            keys: Bytes of keys; `None` is the null key.
            seed: Seed of the hash (64 bits). It is random by default.

        Raises:
            ValueError: There are more keys than `MAX_KEYS`.
        """
        distinct = set(keys)
        has_null = None in distinct
        by_length = sorted((key for key in distinct if key is not None), key=len)
        if len(by_length) > MAX_KEYS:
            raise ValueError(
                f"the set has {len(by_length)} keys, but at most {MAX_KEYS} are supported"
            )
        seed = secrets.randbits(64) if seed is None else seed
        hashes = np.concatenate(
            [np.empty(0, np.uint64), *(_hashes(group, seed) for group in _by_length(by_length))]
        )
        bits = max(4, (2 * len(by_length) - 1).bit_length())
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        buckets = (hashes >> np.uint64(64 - bits)).astype(np.int64)
        has_hash = np.zeros(8 << bits, np.bool_)
        has_hash[(hashes >> np.uint64(61 - bits)).astype(np.int64)] = True
        borders = np.searchsorted(buckets, np.arange((1 << bits) + 1)).astype(np.uint32)
        in_order = [by_length[number] for number in order]
        starts = np.zeros(len(by_length) + 1, np.int64)
        np.cumsum([len(key) for key in in_order], out=starts[1:])
        lengths = 0
        for length in {len(key) for key in by_length}:
            lengths |= 1 << min(length, LONG)
        data = np.frombuffer(b"".join(in_order), np.uint8)
        tags = hashes.astype(np.uint32)
        packed = np.packbits(has_hash, bitorder="little")
        return cls(has_null, lengths, seed, 64 - bits, packed, borders, tags, starts, data)

    def write_addresses(self, slots: memoryview) -> None:
        """Writes the addresses of the arrays into a kernel's frame. The caller must keep the set
        alive while the kernel uses the frame.
        """
        slots[c.SOUGHT] = 1
        slots[c.SOUGHT_NULL] = self.has_null
        slots[c.SOUGHT_COUNT] = len(self.tags)
        slots[c.SOUGHT_FIRST_SIZE] = int(self.starts[1]) if len(self.tags) else 0
        slots[c.SOUGHT_LENGTHS] = _signed(self.lengths)
        slots[c.SOUGHT_SEED] = _signed(self.seed)
        slots[c.SOUGHT_SHIFT] = self.shift
        slots[c.SOUGHT_BITS] = self.bits.ctypes.data
        slots[c.SOUGHT_BORDERS] = self.borders.ctypes.data
        slots[c.SOUGHT_TAGS] = self.tags.ctypes.data
        slots[c.SOUGHT_STARTS] = self.starts.ctypes.data
        slots[c.SOUGHT_DATA] = self.data.ctypes.data

    def __iter__(self) -> Iterator[bytes]:
        """Yields the keys in no particular order. Omits the null key."""
        data, starts = self.data.tobytes(), self.starts.tolist()
        return (data[start:stop] for start, stop in pairwise(starts))

    def __len__(self) -> int:
        return len(self.tags) + self.has_null

    def __repr__(self) -> str:
        return f"KeySet({len(self)} keys)"


def _signed(bits: int) -> int:
    """Returns the signed 64-bit number that has the same bits as `bits`."""
    return bits - (1 << 64) if bits >> 63 else bits


def _by_length(keys: list[bytes]) -> Iterable[list[bytes]]:
    """Yields one list for each length of a key, with all keys of this length. `keys` must be sorted
    by length.
    """
    first = 0
    for number in range(1, len(keys) + 1):
        if number == len(keys) or len(keys[number]) != len(keys[first]):
            yield keys[first:number]
            first = number


def _hashes(keys: list[bytes], seed: int) -> NDArray[np.uint64]:
    """Returns the hashes of keys that all have the same length."""
    size = len(keys[0])
    table = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), size)
    hashes = np.full(len(keys), (seed ^ size * MULTIPLIER) & (1 << 64) - 1, np.uint64)
    for word in _words(table, size):
        hashes = (hashes ^ word) * _M
        hashes ^= hashes >> np.uint64(32)
    return (hashes ^ hashes >> np.uint64(29)) * _M


def _words(table: NDArray[np.uint8], size: int) -> Iterable[NDArray[np.uint64]]:
    if size >= _WORD:
        for start in (*range(0, size - _WORD, _WORD), size - _WORD):
            yield _number(table[:, start : start + _WORD])
    elif size >= 4:
        yield _number(table[:, :4]) | _number(table[:, size - 4 :]) << np.uint64(32)
    elif size:
        yield _number(table[:, [0, size // 2, size - 1]])


def _number(columns: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Returns one number for each row. The columns, at most 8, are the bytes of the number, the
    least significant byte first.
    """
    wide = np.zeros((len(columns), _WORD), np.uint8)
    wide[:, : columns.shape[1]] = columns
    return wide.view("<u8").astype(np.uint64)[:, 0]
