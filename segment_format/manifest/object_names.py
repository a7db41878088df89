"""Parses names of directories, objects and files in tiers and in brokers' log directories.

The plugin's objects (`ObjectKeyFactory`, `io.aiven.kafka.tieredstorage`):

    <key prefix><topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>.<suffix>

    suffix   log, indexes, rsm-manifest
    ids      22 characters of base64url. Ids and topic names can contain "-", so names are parsed
             from the right.
    prefix   directly precedes the topic: no separator is added

Files of `LocalTieredStorage`, the storage manager of Kafka's own tests (`RemoteLogSegmentFileset`,
`RemoteTopicPartitionDirectory`):

    kafka-tiered-storage/<topic>-<partition>-<topic id>/
        <base offset, 20 digits>-<segment id>.<suffix>

    suffix   log, index, timeindex, txnindex (only if the broker had one), leader_epoch_checkpoint,
             snapshot: copied in this order, so a complete segment has its `snapshot`. It is named
             after the segment's base offset but has the state at the segment's end.

A broker's log directory (`UnifiedLog.parseTopicPartitionName`, `LogFileUtils`, `LocalLog`):

    <topic>-<partition>/                              a partition
    <topic>-<partition>.<32 hex digits>-<state>/      future, delete, stray: not in use
        <offset, 20 digits>.<kind>                    log, index, timeindex, txnindex, snapshot
        <offset, 20 digits>.<kind>.<state>            deleted, cleaned, swap: a change under way

The offset is the segment's base offset. For a snapshot it is the last offset that the snapshot
covers, plus 1. Brokers format the 20 digits by their locale (Arabic-Indic digits under `ar_EG`).
The parser accepts the digits of every script, because an unrecognized name would mean that rows are
missing without an error.

Custom metadata is stored by the broker for the plugin in `__remote_log_metadata`. It consists of
one section of Kafka's tagged fields:

    uvarint count, then per field, tags ascending: uvarint tag, uvarint byte length, value
    tag 0  remote size     zig-zag varlong        sum of the bytes of the three objects
    tag 1  object prefix   compact string         key prefix configured at upload
    tag 2  object key      compact string         name without prefix and suffix

Source: `io.aiven.kafka.tieredstorage.metadata.SegmentCustomMetadataSerde`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from segment_format._cursor import MessageReader, write_uvarint, write_varlong
from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import UUID_TEXT_LENGTH, uuid_from_text
from segment_format.metadata.model import TopicIdPartition

if TYPE_CHECKING:
    import uuid


SUFFIXES: Final = ("log", "indexes", "rsm-manifest")
"""Suffixes of the plugin's objects, in the order of their uploads."""
ROOT_DIRECTORY: Final = "kafka-tiered-storage"
LOCAL_SUFFIXES: Final = (
    "log",
    "index",
    "timeindex",
    "txnindex",
    "leader_epoch_checkpoint",
    "snapshot",
)
FILE_KINDS: Final = ("log", "index", "timeindex", "txnindex", "snapshot")

_MAX_OFFSET: Final = 2**63 - 1
_MAX_PARTITION: Final = 2**31 - 1
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_DIRECTORY: Final = re.compile(r"(.+)-([0-9]+)(?:\.[0-9a-f]{1,32}-(future|delete|stray))?")
_FILE: Final = re.compile(rf"(\d{{20}})\.({'|'.join(FILE_KINDS)})(?:\.(deleted|cleaned|swap))?")


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """Parts of the name of a partition's directory in a broker's log directory.

    Attributes:
        state: Empty if the broker uses the directory; else `future`, `delete` or `stray`.
    """

    topic: str
    partition: int
    state: str


@dataclass(frozen=True, slots=True)
class LogFileName:
    """Parts of the name of a file in a partition's directory.

    Attributes:
        offset: Base offset of the segment. For a snapshot, one past the last offset that it covers.
        kind: One of `FILE_KINDS`.
        state: Empty if the broker uses the file; else `deleted`, `cleaned` or `swap`.
    """

    offset: int
    kind: str
    state: str


def parse_topic_directory(name: str) -> tuple[str, uuid.UUID] | None:
    """Parses the name of a directory of the plugin, `<topic>-<topic id>`. Returns the topic name
    and the topic id; `None` if the name has another form.
    """
    name_and_id = _split_topic_id(name)
    return name_and_id if name_and_id is not None and _is_topic_name(name_and_id[0]) else None


def parse_local_partition_directory(name: str) -> TopicIdPartition | None:
    """Parses the name of a directory of `LocalTieredStorage`, `<topic>-<partition>-<topic id>`.
    Returns the partition; `None` if the name has another form.
    """
    name_and_id = _split_topic_id(name)
    if name_and_id is None:
        return None
    topic, _, digits = name_and_id[0].rpartition("-")
    partition = _parse_partition(digits)
    if partition is None or not _is_topic_name(topic):
        return None
    return TopicIdPartition(topic, name_and_id[1], partition)


def parse_partition_directory(name: str) -> PartitionDirectory | None:
    """Parses the name of a partition's directory in a broker's log directory. Returns `None` if the
    name has another form.
    """
    match = _DIRECTORY.fullmatch(name)
    partition = None if match is None else _parse_partition(match[2])
    if match is None or partition is None or not _is_topic_name(match[1]):
        return None
    return PartitionDirectory(match[1], partition, match[3] or "")


def parse_log_file_name(name: str) -> LogFileName | None:
    """Parses the name of a file in a partition's directory. Returns `None` if the name has another
    form.
    """
    match = _FILE.fullmatch(name)
    if match is None or int(match[1]) > _MAX_OFFSET:
        return None
    return LogFileName(int(match[1]), match[2], match[3] or "")


def _split_topic_id(name: str) -> tuple[str, uuid.UUID] | None:
    """Splits `<text>-<topic id>` before the id. Returns the text and the id; `None` if `name` has
    another form.
    """
    before, dash = name[: -UUID_TEXT_LENGTH - 1], name[-UUID_TEXT_LENGTH - 1 : -UUID_TEXT_LENGTH]
    try:
        topic_id = uuid_from_text(name[-UUID_TEXT_LENGTH:])
    except InvalidManifestError:
        return None
    return (before, topic_id) if dash == "-" else None


def _parse_partition(text: str) -> int | None:
    return int(text) if _PARTITION.fullmatch(text) and int(text) <= _MAX_PARTITION else None


def _is_topic_name(name: str) -> bool:
    """Returns whether Kafka allows `name` as the name of a topic. The rules are those of Kafka's
    `org.apache.kafka.common.internals.Topic`.
    """
    return bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = range(3)


@dataclass(frozen=True, slots=True)
class CustomMetadata:
    """Fields of the custom metadata. A field is `None` if it is missing, because the plugin was not
    configured to write it.

    Attributes:
        remote_size: Total size of the segment's three objects in bytes.
        object_prefix: Key prefix that was configured at the time of the upload.
        object_key: Name that the three objects share, without the key prefix and the suffix.
    """

    remote_size: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None

    def to_bytes(self) -> bytes | None:
        """Returns the custom metadata as the plugin writes it; `None` if no field is set."""
        size = None if self.remote_size is None else write_varlong(self.remote_size)
        texts = (
            None if text is None else write_uvarint(len(text.encode()) + 1) + text.encode()
            for text in (self.object_prefix, self.object_key)
        )
        fields = [(tag, data) for tag, data in enumerate((size, *texts)) if data is not None]
        if not fields:
            return None
        encoded = (bytes((tag, *write_uvarint(len(data)))) + data for tag, data in fields)
        return b"".join((write_uvarint(len(fields)), *encoded))


def parse_custom_metadata(data: bytes | None) -> CustomMetadata:
    """Parses the custom metadata of a segment. `None` or no bytes mean that it has no fields.
    Ignores unknown fields.

    Raises:
        InvalidManifestError: The bytes are not a section of tagged fields, or a field is invalid.
    """
    if not data:
        return CustomMetadata()
    reader = MessageReader(bytes(data), InvalidManifestError)
    remote_size: int | None = None
    texts: dict[int, str] = {}
    for position, field in reader.located_tagged_fields():
        value = MessageReader(field.data, InvalidManifestError, origin=position)
        if field.tag == _REMOTE_SIZE:
            remote_size = value.varlong("remote size")
        elif field.tag in (_OBJECT_PREFIX, _OBJECT_KEY):
            texts[field.tag] = value.compact_string("object name")
        else:
            continue
        value.expect_end()
    reader.expect_end()
    return CustomMetadata(remote_size, texts.get(_OBJECT_PREFIX), texts.get(_OBJECT_KEY))
