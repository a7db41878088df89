"""The file `partition.metadata` of a partition's folder: the topic id. UTF-8 text.

```
version: 0
topic_id: LWgrMmVrT0a__7a4SasuPA
```

Source: `PartitionMetadataFile` in Kafka.

The leader epoch checkpoint: which leader epoch owns which offsets. UTF-8 text, one item a line.

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

The offset checkpoints of a log directory: one offset for each of its partitions. UTF-8 text.

```
0                 version
2                 number of entries
orders 0 4711     topic, partition, offset
orders 1 80
```

One file for each kind of offset: `replication-offset-checkpoint` (high watermarks),
`recovery-point-offset-checkpoint` (below: flushed to disk), `log-start-offset-checkpoint` (only
where it lies above the first segment).

Source: `CheckpointFile`, `OffsetCheckpointFile` in Kafka.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from segment_format._cursor import byte_view
from segment_format.errors import CorruptIndexError
from segment_format.kafka_uuid import uuid_from_text

if TYPE_CHECKING:
    import uuid

    from segment_format._cursor import BytesLike


LEADER_EPOCH_VERSION: Final = 0
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
        if version != LEADER_EPOCH_VERSION:
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
        lines = [str(LEADER_EPOCH_VERSION), str(len(self.entries))]
        lines += [f"{entry.epoch} {entry.start_offset}" for entry in self.entries]
        return "".join(f"{line}\n" for line in lines).encode("ascii")

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch that owns `offset`; None below the first entry."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[index].epoch if index >= 0 else None


OFFSET_VERSION: Final = b"0"
_ENTRY: Final = re.compile(rb"([a-zA-Z0-9._-]{1,249})\s+([0-9]{1,10})\s+([0-9]{1,19})\s*")


def parse_offset_checkpoint(data: BytesLike) -> dict[tuple[str, int], int]:
    """Topic and partition to offset; memory is proportional to the size of `data`.

    Raises:
        CorruptIndexError: Not the text described above, or a partition stands there twice.
    """
    lines = byte_view(data).tobytes().splitlines(keepends=True)
    if len(lines) < 2 or lines[0].strip() != OFFSET_VERSION or not lines[1].strip().isdigit():
        raise CorruptIndexError("offset checkpoint: no version 0 and count in front", position=0)
    if int(lines[1]) != len(lines) - 2:
        raise CorruptIndexError(
            f"offset checkpoint: {int(lines[1])} entries stated, {len(lines) - 2} lines found",
            position=len(lines[0]),
        )
    found: dict[tuple[str, int], int] = {}
    position = len(lines[0]) + len(lines[1])
    for line in lines[2:]:
        match = _ENTRY.fullmatch(line)
        place = (match[1].decode(), int(match[2])) if match else None
        if match is None or place is None or place in found or int(match[3]) > _MAX_OFFSET:
            raise CorruptIndexError(
                f"offset checkpoint: {line[:80]!r} is not a topic, a partition and its offset, or"
                " comes twice",
                position=position,
            )
        found[place] = int(match[3])
        position += len(line)
    return found


_TEXT: Final = re.compile(rb"version: 0\s+topic_id: ([A-Za-z0-9_-]{22})\s*")


def parse_partition_metadata(data: BytesLike) -> uuid.UUID:
    """The topic id.

    Raises:
        CorruptIndexError: Not the text described above.
    """
    match = _TEXT.fullmatch(byte_view(data).tobytes())
    if match is None:
        raise CorruptIndexError("partition.metadata: no version 0 with a topic id", position=0)
    return uuid_from_text(match[1].decode())
