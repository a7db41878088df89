"""Mutates fuzz inputs at random and adds inputs that have a new outcome to the corpus."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

MAX_INPUT: Final = 6000
_MAX_CORPUS: Final = 4000
_NUMBERS: Final = re.compile(r"[0-9a-fA-F]{4,}|\d+|b?'.*'|b?\".*\"")

_HOSTILE: Final = tuple(
    value.to_bytes(size, order, signed=value < 0)
    for size in (1, 2, 4, 8)
    for value in (0, 1, -1, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1)), 2**7 - 2, 61, 17)
    for order in ("big", "little")
)
_TOKENS: Final = (
    b"\x82SNAPPY\0\0\0\0\1\0\0\0\1",
    b"\x28\xb5\x2f\xfd",
    b"\x04\x22\x4d\x18\x60\x40\x82",
    b"\x1f\x8b\x08\0\0\0\0\0\0\0",
    b"\x50\x2a\x4d\x18",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x00",
    b"null",
    b"-1",
    b"1e400",
    b"9223372036854775808",
    b"{",
    b"[[",
    b'"":',
    b"\xc3\x28",
    b"\xed\xa0\x80",
)


class Mutator:
    """Creates new inputs by mutating existing inputs.

    Args:
        seeds: The initial corpus; not empty.
        source: Source of all random choices.
    """

    def __init__(self, seeds: Sequence[bytes], source: random.Random) -> None:
        self._corpus = list(seeds)
        self._random = source
        self._seen: set[str] = set()

    @property
    def corpus_size(self) -> int:
        """Returns the number of inputs in the corpus."""
        return len(self._corpus)

    def mutated(self) -> bytes:
        """Returns a mutated copy of an input of the corpus."""
        source = self._random
        data = bytearray(self._corpus[int(source.random() * len(self._corpus))])
        for _ in range(1 + int(source.random() ** 2 * 6)):
            self._change(data)
        return bytes(data[:MAX_INPUT])

    def learn(self, data: bytes, outcome: str) -> None:
        """Adds `data` to the corpus if no earlier input had the same `outcome` and the corpus is
        not full.

        The worker passes outcomes through `without_numbers` first. Error messages that differ only
        in numbers or quoted values are then equal.
        """
        if outcome in self._seen:
            return
        self._seen.add(outcome)
        if len(self._corpus) < _MAX_CORPUS:
            self._corpus.append(data)

    def _change(self, data: bytearray) -> None:
        source = self._random
        size = len(data)
        position = int(source.random() * size)
        kind = int(source.random() * 10)
        if size == 0 or kind == 0:
            data[position:position] = source.randbytes(1 + int(source.random() * 8))
        elif kind in (1, 2):
            data[position] ^= 1 << int(source.random() * 8)
        elif kind == 3:
            data[position] = int(source.random() * 256)
        elif kind in (4, 5):
            value = _HOSTILE[int(source.random() * len(_HOSTILE))]
            data[position : position + len(value)] = value
        elif kind == 6:
            del data[position : position + 1 + int(source.random() ** 3 * 40)]
        elif kind == 7:
            stop = position + 1 + int(source.random() ** 3 * 80)
            data[position:position] = data[position:stop] * (1 + int(source.random() ** 6 * 30))
        elif kind == 8:
            token = _TOKENS[int(source.random() * len(_TOKENS))]
            data[position : position + (len(token) if source.random() < 0.5 else 0)] = token
        else:
            other = self._corpus[int(source.random() * len(self._corpus))]
            data[position:] = other[int(source.random() * (len(other) + 1)) :]


def without_numbers(text: str) -> str:
    """Replaces numbers and quoted values in an error message with placeholders."""
    return _NUMBERS.sub("#", text)
