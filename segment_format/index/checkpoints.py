"""Reads Kafka's text files: leader epoch checkpoints, offset checkpoints, `partition.metadata`.

A checkpoint has a version line, a line with the number of entries, and one line per entry:

    0                 version
    2                 number of entries
    0 0               leader epoch checkpoint: epoch, start offset
    2 80
    orders 0 4711     offset checkpoint: topic, partition, offset

In a leader epoch checkpoint, epoch `e` owns the offsets from its start to the start of the next
entry. Both columns increase strictly; epochs without records are omitted. If the log start is above
the real start of the first epoch, Kafka writes the log start instead.

A log directory has one offset checkpoint for each kind of offset: `replication-offset-checkpoint`
(high watermarks), `recovery-point-offset-checkpoint` (offsets below it are flushed to disk) and
`log-start-offset-checkpoint` (log starts, only if they are above the base offset of the first
segment).

    version: 0                              partition.metadata
    topic_id: LWgrMmVrT0a__7a4SasuPA

Source: `CheckpointFile`, `LeaderEpochCheckpointFile`, `LeaderEpochFileCache` (KIP-101),
`OffsetCheckpointFile`, `PartitionMetadataFile` in Kafka.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from segment_format._cursor import byte_view
from segment_format.errors import CorruptIndexError
from segment_format.kafka_uuid import uuid_from_text

if TYPE_CHECKING:
    import uuid

    from segment_format._cursor import BytesLike

_MAX_EPOCH: Final = 2**31 - 1
_MAX_OFFSET: Final = 2**63 - 1
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")
_OFFSET_ENTRY: Final = re.compile(rb"([a-zA-Z0-9._-]{1,249})\s+([0-9]{1,10})\s+([0-9]{1,19})\s*")
_TOPIC_ID: Final = re.compile(rb"version: 0\s+topic_id: ([A-Za-z0-9_-]{22})\s*")


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """A leader epoch and its first offset."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpochCheckpoint:
    """The lineage of a partition's log: the leader epochs and their offsets.

    Attributes:
        entries: Epochs and start offsets, both strictly increasing.
    """

    entries: tuple[EpochEntry, ...]

    @classmethod
    def from_bytes(cls, data: BytesLike) -> LeaderEpochCheckpoint:
        """Parses a leader epoch checkpoint. Uses memory in proportion to the size of `data`.

        Raises:
            CorruptIndexError: The version, the count, a number or the order of the entries is
                invalid.
        """
        body, position = _read_entries(data, "leader epoch checkpoint")
        entries: list[EpochEntry] = []
        for line in body:
            words = line.split()
            if len(words) != 2 or not all(_NUMBER.fullmatch(word) for word in words):
                problem = f"{line[:40]!r} is not a line of 2 numbers"
                raise CorruptIndexError(f"leader epoch checkpoint: {problem}", position=position)
            entry = EpochEntry(int(words[0]), int(words[1]))
            if entry.epoch > _MAX_EPOCH or entry.start_offset > _MAX_OFFSET:
                problem = f"{entry} is out of range"
                raise CorruptIndexError(f"leader epoch checkpoint: {problem}", position=position)
            if entries and not (
                entry.epoch > entries[-1].epoch and entry.start_offset > entries[-1].start_offset
            ):
                problem = f"{entry} follows {entries[-1]}, but epochs and offsets must increase"
                raise CorruptIndexError(f"leader epoch checkpoint: {problem}", position=position)
            entries.append(entry)
            position += len(line)
        return cls(tuple(entries))

    def to_bytes(self) -> bytes:
        """Returns the content of the file."""
        lines = ["0", str(len(self.entries))]
        lines += [f"{entry.epoch} {entry.start_offset}" for entry in self.entries]
        return "".join(f"{line}\n" for line in lines).encode("ascii")

    def epoch_for_offset(self, offset: int) -> int | None:
        """Returns the epoch that owns `offset`; `None` if `offset` is below the first entry."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[index].epoch if index >= 0 else None


def parse_offset_checkpoint(data: BytesLike) -> dict[tuple[str, int], int]:
    """Parses an offset checkpoint. Returns the offset of each topic and partition. Uses memory in
    proportion to the size of `data`.

    Raises:
        CorruptIndexError: The version, the count or an entry is invalid, or a partition appears
            twice.
    """
    body, position = _read_entries(data, "offset checkpoint")
    offsets: dict[tuple[str, int], int] = {}
    for line in body:
        match = _OFFSET_ENTRY.fullmatch(line)
        partition = (match[1].decode(), int(match[2])) if match else None
        if (
            match is None
            or partition is None
            or partition in offsets
            or int(match[3]) > _MAX_OFFSET
        ):
            raise CorruptIndexError(
                f"offset checkpoint: {line[:80]!r} is not a topic, a partition and its offset, or"
                " repeats a partition",
                position=position,
            )
        offsets[partition] = int(match[3])
        position += len(line)
    return offsets


def parse_partition_metadata(data: BytesLike) -> uuid.UUID:
    """Returns the topic id in a `partition.metadata` file.

    Raises:
        CorruptIndexError: The version is not 0, or there is no topic id.
    """
    match = _TOPIC_ID.fullmatch(byte_view(data).tobytes())
    if match is None:
        raise CorruptIndexError(
            "partition.metadata: the file does not have version 0 and a topic id", position=0
        )
    return uuid_from_text(match[1].decode())


def _read_entries(data: BytesLike, name: str) -> tuple[list[bytes], int]:
    """Checks the version and the count of a checkpoint, which errors call `name`. Returns the lines
    of the entries, and the byte position of the first entry.
    """
    lines = byte_view(data).tobytes().splitlines(keepends=True)
    position = 0

    def read_number(line: bytes) -> int:
        words = line.split()
        if len(words) != 1 or not _NUMBER.fullmatch(words[0]):
            problem = f"{line[:40]!r} is not a line of 1 number"
            raise CorruptIndexError(f"{name}: {problem}", position=position)
        return int(words[0])

    if len(lines) < 2:
        raise CorruptIndexError(f"{name}: it has fewer than two lines", position=position)
    if (version := read_number(lines[0])) != 0:
        raise CorruptIndexError(f"{name}: unknown version {version}", position=position)
    position += len(lines[0])
    if (count := read_number(lines[1])) != len(lines) - 2:
        raise CorruptIndexError(
            f"{name}: {count} entries are stated, but the file has {len(lines) - 2}",
            position=position,
        )
    return lines[2:], position + len(lines[1])
