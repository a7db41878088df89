"""Names in a broker's log directory.

    <topic>-<partition>/                              a partition
    <topic>-<partition>.<32 hex digits>-<state>/      future, delete, stray: no partition any more,
                                                      or not yet
        <offset, 20 digits>.<kind>                    log, index, timeindex, txnindex, snapshot
        <offset, 20 digits>.<kind>.<state>            deleted, cleaned, swap: a change under way

Offsets are the segment's base; that of a snapshot is one past the last offset it covers.

Source: `UnifiedLog.parseTopicPartitionName`, `LogFileUtils`, `LocalLog` in Kafka.

Names of the plugin's objects.

    <key prefix><topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>.<suffix>

    suffix   log, indexes, rsm-manifest
    ids      22 characters of base64url; they, like topic names, can contain "-": names are parsed
             from the right
    prefix   stands directly before the topic: no separator is added

The 20 digits come from a locale-dependent formatter: a broker under `ar_EG` writes Arabic-Indic
ones. They are accepted, because a segment that is not recognised would be missing silently; an
`ObjectKey` remembers such digits, so that its siblings are found under the name they really have.

Source: `io.aiven.kafka.tieredstorage.ObjectKeyFactory`, `org.apache.kafka.common.internals.Topic`.

Names of files that `LocalTieredStorage`, the storage manager of Kafka's own tests, writes.

    kafka-tiered-storage/<topic>-<partition>-<topic id>/
        <start offset, 20 digits>-<segment id>.<suffix>

    suffix   log, index, timeindex, txnindex (only if the broker had one), leader_epoch_checkpoint,
             snapshot

Files are copied in that order, so a complete segment has its `snapshot`, which is named after the
segment's *start* offset but holds the state at its end. There is no manifest: files are plain
copies.

Source: `org.apache.kafka.server.log.remote.storage.RemoteLogSegmentFileset`,
`RemoteTopicPartitionDirectory`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import UUID_TEXT_LENGTH, uuid_from_text, uuid_to_text
from segment_format.metadata.model import TopicIdPartition

if TYPE_CHECKING:
    import uuid


SUFFIXES = ("log", "indexes", "rsm-manifest")

_OFFSET_DIGITS = 20
_MAX_OFFSET = 2**63 - 1
_MAX_PARTITION = 2**31 - 1
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The parts of an object's name.

    Attributes:
        prefix: Key prefix, verbatim; often ends with "/".
        topic: Name of the topic.
        topic_id: Id of the topic.
        partition: Number of the partition.
        base_offset: First offset of the segment.
        segment_id: Id of the copy.
        suffix: `log`, `indexes` or `rsm-manifest`.
        offset_text: The 20 digits as they stand in the name when they are not ASCII ones; else
            None.
    """

    prefix: str
    topic: str
    topic_id: uuid.UUID
    partition: int
    base_offset: int
    segment_id: uuid.UUID
    suffix: str
    offset_text: str | None = field(default=None, compare=False)

    def with_suffix(self, suffix: str) -> ObjectKey:
        """The sibling object with another suffix."""
        return replace(self, suffix=suffix)

    @property
    def stem(self) -> str:
        """The name without prefix and suffix, as custom metadata records it."""
        digits = self.offset_text or f"{self.base_offset:0{_OFFSET_DIGITS}d}"
        directory = format_topic_directory(self.topic, self.topic_id)
        return f"{directory}/{self.partition}/{digits}-{uuid_to_text(self.segment_id)}"

    @property
    def text(self) -> str:
        """The whole name."""
        return f"{self.prefix}{self.stem}.{self.suffix}"


def format_object_key(key: ObjectKey) -> str:
    """The name of an object.

    Raises:
        InvalidManifestError: A part is not one that Kafka or the plugin uses.
    """
    if not is_topic_name(key.topic):
        raise InvalidManifestError(f"not a topic name: {key.topic[:80]!r}")
    if not 0 <= key.partition <= _MAX_PARTITION or not 0 <= key.base_offset <= _MAX_OFFSET:
        raise InvalidManifestError(f"partition {key.partition}, base offset {key.base_offset}")
    if key.suffix not in SUFFIXES:
        raise InvalidManifestError(f"suffix {key.suffix[:80]!r}; supported: {', '.join(SUFFIXES)}")
    return key.text


def parse_object_key(key: str, *, prefix: str) -> ObjectKey | None:
    """The parts of an object's name, or None for an object that is not of the plugin's making.

    Args:
        key: The whole name.
        prefix: Key prefix that the plugin was configured with, verbatim.
    """
    if not key.startswith(prefix):
        return None
    parts = key[len(prefix) :].split("/", 3)
    if len(parts) != 3:
        return None
    directory = parse_topic_directory(parts[0])
    partition = parse_partition(parts[1])
    file = parse_segment_file_name(parts[2])
    if directory is None or partition is None or file is None:
        return None
    digits = parts[2][:_OFFSET_DIGITS]
    offset_text = None if digits.isascii() else digits
    base_offset, segment_id, suffix = file
    return ObjectKey(prefix, *directory, partition, base_offset, segment_id, suffix, offset_text)


def parse_topic_directory(name: str) -> tuple[str, uuid.UUID] | None:
    """Topic name and id from `<topic>-<topic id>`, or None for another kind of name."""
    parts = split_topic_id(name)
    return parts if parts is not None and is_topic_name(parts[0]) else None


def split_topic_id(name: str) -> tuple[str, uuid.UUID] | None:
    """What stands before `-<topic id>` at the end of a name, and the id; None if there is none."""
    before, dash, id_text = (
        name[: -UUID_TEXT_LENGTH - 1],
        name[-UUID_TEXT_LENGTH - 1 : -UUID_TEXT_LENGTH],
        name[-UUID_TEXT_LENGTH:],
    )
    topic_id = parse_uuid(id_text)
    return None if dash != "-" or topic_id is None else (before, topic_id)


def parse_partition(text: str) -> int | None:
    """The number of a partition, or None where `text` is not one."""
    return int(text) if _PARTITION.fullmatch(text) and int(text) <= _MAX_PARTITION else None


def format_topic_directory(topic: str, topic_id: uuid.UUID) -> str:
    """The name `<topic>-<topic id>`."""
    return f"{topic}-{uuid_to_text(topic_id)}"


def parse_segment_file_name(
    name: str, suffixes: tuple[str, ...] = SUFFIXES
) -> tuple[int, uuid.UUID, str] | None:
    """Base offset, segment id and suffix from `<20 digits>-<22 characters>.<suffix>`.

    None for another kind of name, or a suffix that is not among `suffixes`.
    """
    digits, rest = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:]
    if len(digits) != _OFFSET_DIGITS or not digits.isdecimal() or rest[:1] != "-":
        return None
    segment_id = parse_uuid(rest[1 : 1 + UUID_TEXT_LENGTH])
    dot, suffix = rest[1 + UUID_TEXT_LENGTH : 2 + UUID_TEXT_LENGTH], rest[2 + UUID_TEXT_LENGTH :]
    base_offset = int(digits)
    if segment_id is None or dot != "." or suffix not in suffixes or base_offset > _MAX_OFFSET:
        return None
    return base_offset, segment_id, suffix


def parse_uuid(text: str) -> uuid.UUID | None:
    """The id that `text` stands for, or None when it is not one."""
    try:
        return uuid_from_text(text)
    except InvalidManifestError:
        return None


def is_topic_name(name: str) -> bool:
    """Whether Kafka admits `name` as the name of a topic."""
    return bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


ROOT_DIRECTORY = "kafka-tiered-storage"
LOCAL_SUFFIXES = ("log", "index", "timeindex", "txnindex", "leader_epoch_checkpoint", "snapshot")


@dataclass(frozen=True, slots=True)
class LocalFileName:
    """The parts of a file's name.

    Attributes:
        base_offset: First offset of the segment.
        segment_id: Id of the copy.
        suffix: One of `LOCAL_SUFFIXES`.
    """

    base_offset: int
    segment_id: uuid.UUID
    suffix: str


def parse_local_partition_directory(name: str) -> TopicIdPartition | None:
    """The partition from `<topic>-<partition>-<topic id>`, or None for another kind of name."""
    parts = split_topic_id(name)
    if parts is None:
        return None
    topic, _, digits = parts[0].rpartition("-")
    partition = parse_partition(digits)
    if partition is None or not is_topic_name(topic):
        return None
    return TopicIdPartition(topic, parts[1], partition)


def format_local_partition_directory(partition: TopicIdPartition) -> str:
    """The name `<topic>-<partition>-<topic id>`.

    Raises:
        InvalidManifestError: Not a topic name, or not a partition number.
    """
    if not is_topic_name(partition.topic) or not 0 <= partition.partition <= _MAX_PARTITION:
        raise InvalidManifestError(f"partition {partition.topic[:80]!r}-{partition.partition}")
    return f"{partition.topic}-{partition.partition}-{uuid_to_text(partition.topic_id)}"


def parse_local_file_name(name: str) -> LocalFileName | None:
    """The parts of a segment file's name, or None for another kind of name.

    Non-ASCII digits are accepted as in `object_key`: such a file's siblings differ from it in the
    suffix alone.
    """
    parts = parse_segment_file_name(name, LOCAL_SUFFIXES)
    return None if parts is None else LocalFileName(*parts)


def format_local_file_name(name: LocalFileName) -> str:
    """The name `<start offset, 20 digits>-<segment id>.<suffix>`.

    Raises:
        InvalidManifestError: Not an offset, or not a suffix.
    """
    if not 0 <= name.base_offset <= _MAX_OFFSET or name.suffix not in LOCAL_SUFFIXES:
        raise InvalidManifestError(f"offset {name.base_offset}, suffix {name.suffix[:80]!r}")
    return f"{name.base_offset:020d}-{uuid_to_text(name.segment_id)}.{name.suffix}"


FILE_KINDS: Final = ("log", "index", "timeindex", "txnindex", "snapshot")
_DIRECTORY: Final = re.compile(r"(.+)-([0-9]+)(?:\.[0-9a-f]{1,32}-(future|delete|stray))?")
# `\d` takes the digits of every script: a broker's locale chooses them.
_FILE: Final = re.compile(rf"(\d{{20}})\.({'|'.join(FILE_KINDS)})(?:\.(deleted|cleaned|swap))?")
_MAX_LOG_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """The parts of a folder's name.

    Attributes:
        state: Empty for a partition in use; else `future`, `delete` or `stray`.
    """

    topic: str
    partition: int
    state: str


@dataclass(frozen=True, slots=True)
class LogFileName:
    """The parts of a file's name.

    Attributes:
        kind: One of `FILE_KINDS`.
        state: Empty for a file in use; else `deleted`, `cleaned` or `swap`.
    """

    offset: int
    kind: str
    state: str


def parse_partition_directory(name: str) -> PartitionDirectory | None:
    """The parts of a folder's name, or None for another kind of name."""
    match = _DIRECTORY.fullmatch(name)
    partition = None if match is None else parse_partition(match[2])
    if match is None or partition is None or not is_topic_name(match[1]):
        return None
    return PartitionDirectory(match[1], partition, match[3] or "")


def parse_log_file_name(name: str) -> LogFileName | None:
    """The parts of a file's name, or None for another kind of name."""
    match = _FILE.fullmatch(name)
    if match is None or int(match[1]) > _MAX_LOG_OFFSET:
        return None
    return LogFileName(int(match[1]), match[2], match[3] or "")
