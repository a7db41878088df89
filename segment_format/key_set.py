"""A set of record keys, in the memory that kernels look keys up in.

    h       = seed xor length * M                                all numbers have 64 bits
    h       = (h xor word) * M;  h = h xor (h >> 32)              for each word, see below
    h       = (h xor (h >> 29)) * M
    bucket  = h >> shift,  bit = h >> (shift - 3),  tag = low 32 bits of h

Words are little-endian, 8 bytes each; the last one ends where the key ends, and may overlap the one
before. A key of 4 to 7 bytes is one word: its first four and its last four bytes. One of 1 to 3
bytes is its first, middle and last byte. Keys of one bucket stand side by side, so a look-up
compares the tags between two borders, and then all bytes. Most keys that are not there have no bit,
in memory that is small enough for a cache. A hash only ever says "perhaps".
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
"""Odd, so that multiplying loses nothing; the bits of the golden ratio."""
MOST_KEYS: Final = 1 << 28
LONG: Final = 63
"""Bit of `lengths` for keys of so many bytes or more."""
_WORD: Final = 8
_M: Final = np.uint64(MULTIPLIER)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KeySet:
    """Keys of records that somebody looks for; see `of`.

    The arrays are for kernels; nobody may change them.

    Attributes:
        has_null: Whether records without a key are looked for, too.
        lengths: Bit n: some key has n bytes; bit `LONG`: or at least so many.
        seed: Of the hash; by chance, so that nobody can choose keys that collide.
        shift: How many low bits of a hash name no bucket.
        bits: uint8, which hashes there are, eight bits a bucket; bit 0 of a byte comes first.
        borders: uint32, first key of each bucket, and behind the last one the number of keys.
        tags: uint32, one a key.
        starts: int64, first byte of each key, and behind the last one the number of bytes.
        data: uint8, the keys, one after the other.
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
        """The set of these keys; the same key twice is there once.

        Args:
            keys: Bytes of keys; `None` stands for records without a key.
            seed: Of the hash, 64 bits; by chance when not given.

        Raises:
            ValueError: More keys than `MOST_KEYS`.
        """
        distinct = set(keys)
        has_null = None in distinct
        found = sorted((key for key in distinct if key is not None), key=len)
        if len(found) > MOST_KEYS:
            raise ValueError(f"{len(found)} keys; at most {MOST_KEYS}")
        seed = secrets.randbits(64) if seed is None else seed
        hashes = np.concatenate(
            [np.empty(0, np.uint64), *(_hashes(group, seed) for group in _by_length(found))]
        )
        bits = max(4, (2 * len(found) - 1).bit_length())
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        buckets = (hashes >> np.uint64(64 - bits)).astype(np.int64)
        places = np.zeros(8 << bits, np.bool_)
        places[(hashes >> np.uint64(61 - bits)).astype(np.int64)] = True
        borders = np.searchsorted(buckets, np.arange((1 << bits) + 1)).astype(np.uint32)
        in_order = [found[number] for number in order]
        starts = np.zeros(len(found) + 1, np.int64)
        np.cumsum([len(key) for key in in_order], out=starts[1:])
        lengths = 0
        for length in {len(key) for key in found}:
            lengths |= 1 << min(length, LONG)
        data = np.frombuffer(b"".join(in_order), np.uint8)
        tags = hashes.astype(np.uint32)
        packed = np.packbits(places, bitorder="little")
        return cls(has_null, lengths, seed, 64 - bits, packed, borders, tags, starts, data)

    def tell(self, slots: memoryview) -> None:
        """Write into a frame which keys are looked for; the set must outlive it."""
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
        """The keys, without `None`, in an order of the set's own."""
        data, starts = self.data.tobytes(), self.starts.tolist()
        return (data[start:stop] for start, stop in pairwise(starts))

    def __len__(self) -> int:
        return len(self.tags) + self.has_null

    def __repr__(self) -> str:
        return f"KeySet({len(self)} keys)"


def _signed(bits: int) -> int:
    """The number with a sign that has these 64 bits."""
    return bits - (1 << 64) if bits >> 63 else bits


def _by_length(keys: list[bytes]) -> Iterable[list[bytes]]:
    """Runs of keys of one length, of keys that are ordered by it."""
    first = 0
    for number in range(1, len(keys) + 1):
        if number == len(keys) or len(keys[number]) != len(keys[first]):
            yield keys[first:number]
            first = number


def _hashes(keys: list[bytes], seed: int) -> NDArray[np.uint64]:
    """The hashes of keys of one length."""
    size = len(keys[0])
    table = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), size)
    found = np.full(len(keys), (seed ^ size * MULTIPLIER) & (1 << 64) - 1, np.uint64)
    for word in _words(table, size):
        found = (found ^ word) * _M
        found ^= found >> np.uint64(32)
    return (found ^ found >> np.uint64(29)) * _M


def _words(table: NDArray[np.uint8], size: int) -> Iterable[NDArray[np.uint64]]:
    if size >= _WORD:
        for start in (*range(0, size - _WORD, _WORD), size - _WORD):
            yield _number(table[:, start : start + _WORD])
    elif size >= 4:
        yield _number(table[:, :4]) | _number(table[:, size - 4 :]) << np.uint64(32)
    elif size:
        yield _number(table[:, [0, size // 2, size - 1]])


def _number(columns: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Little-endian numbers of up to 8 bytes a row."""
    wide = np.zeros((len(columns), _WORD), np.uint8)
    wide[:, : columns.shape[1]] = columns
    return wide.view("<u8").astype(np.uint64)[:, 0]
