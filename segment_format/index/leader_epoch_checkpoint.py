"""The leader epoch checkpoint: which leader epoch owns which offsets. UTF-8 text, one item a line.

```
0          version
2          number of entries
0 0        epoch, start offset
2 80
```

Epoch `e` owns the offsets from its start to the start of the next entry. Both columns increase
strictly; epochs without records do not appear. The first start offset is the partition's log start
at the time of writing whenever that had moved beyond the epoch's real start.

Source: `LeaderEpochCheckpointFile`, `CheckpointFile`, `LeaderEpochFileCache` in Kafka (KIP-101).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from segment_format._cursor import byte_view
from segment_format.errors import CorruptIndexError

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike

VERSION: Final = 0
_MAX_EPOCH: Final = 2**31 - 1
_MAX_OFFSET: Final = 2**63 - 1
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """A leader epoch and the first offset it owns."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpochCheckpoint:
    """The lineage of a partition's log.

    Attributes:
        entries: Epochs and start offsets, both strictly increasing.
    """

    entries: tuple[EpochEntry, ...]

    @classmethod
    def from_bytes(cls, data: BytesLike) -> LeaderEpochCheckpoint:
        """The checkpoint in `data`; memory is proportional to the size of `data`.

        Raises:
            CorruptIndexError: Not the text described above: version, count, numbers or order are
                wrong.
        """
        lines = byte_view(data).tobytes().splitlines(keepends=True)
        position = 0

        def fail(message: str) -> NoReturn:
            raise CorruptIndexError(f"leader epoch checkpoint: {message}", position=position)

        def numbers(line: bytes, count: int) -> list[int]:
            words = line.split()
            if len(words) != count or not all(_NUMBER.fullmatch(word) for word in words):
                fail(f"{line[:40]!r} is not a line of {count} numbers")
            return [int(word) for word in words]

        if len(lines) < 2:
            fail("fewer than two lines")
        (version,) = numbers(lines[0], 1)
        if version != VERSION:
            fail(f"unknown version {version}")
        position += len(lines[0])
        (count,) = numbers(lines[1], 1)
        body = lines[2:]
        if count != len(body):
            fail(f"{count} entries stated, {len(body)} lines found")
        position += len(lines[1])
        entries: list[EpochEntry] = []
        for line in body:
            entry = EpochEntry(*numbers(line, 2))
            if entry.epoch > _MAX_EPOCH or entry.start_offset > _MAX_OFFSET:
                fail(f"{entry} is out of range")
            if entries and not (
                entry.epoch > entries[-1].epoch and entry.start_offset > entries[-1].start_offset
            ):
                fail(f"{entry} follows {entries[-1]}")
            entries.append(entry)
            position += len(line)
        return cls(tuple(entries))

    def to_bytes(self) -> bytes:
        """The file that `from_bytes` reads back as this checkpoint."""
        lines = [str(VERSION), str(len(self.entries))]
        lines += [f"{entry.epoch} {entry.start_offset}" for entry in self.entries]
        return "".join(f"{line}\n" for line in lines).encode("ascii")

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch that owns `offset`; None below the first entry."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[index].epoch if index >= 0 else None
