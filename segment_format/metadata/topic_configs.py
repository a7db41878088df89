"""Parses the configurations of topics in the metadata log of a KRaft cluster: records of the topic
`__cluster_metadata`.

    uvarint 1 (frame version), uvarint record type, uvarint record version, body

    type 2 topic          name compact string, id uuid, tagged fields
    type 4 configuration  resource type i8 (2: topic), resource name compact string, name compact
                          string, value compact string or null (deletes it), tagged fields
    type 9 removed topic  id uuid, tagged fields
    type 23, 24, 25       a transaction of the metadata begins, commits, aborts

Records of other types are skipped. Record keys are empty. A snapshot of the log has records of the
same types.

Source: `MetadataRecordSerde`, message definitions under `metadata/src/main/resources` in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from segment_format._cursor import MessageReader
from segment_format.errors import InvalidMetadataError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable

    from segment_format.record.records import DecodedBatch

_FRAME_VERSION: Final = 1
_TOPIC, _CONFIG, _REMOVED_TOPIC = 2, 4, 9
_BEGIN, _COMMIT, _ABORT = 23, 24, 25
_TOPIC_RESOURCE: Final = 2


def topic_configs(batches: Iterable[DecodedBatch]) -> dict[uuid.UUID, dict[str, str]]:
    """Returns the configurations that were set for each topic, by topic id. Defaults of brokers are
    not included.

    Records of a metadata transaction that has not committed are dropped.

    Args:
        batches: Batches of a snapshot, if there is one, and of the log after it.

    Raises:
        InvalidMetadataError: A record is malformed or has an unknown version.
    """
    topics = _Topics()
    pending: list[_Record] | None = None  # records of the open transaction
    for batch in batches:
        if batch.is_control_batch:
            continue
        for data in batch.records:
            record = _Record.of(data.value or b"")
            if record.kind in (_BEGIN, _ABORT):
                pending = [] if record.kind == _BEGIN else None
            elif record.kind == _COMMIT:
                for each in pending or ():
                    topics.apply(each)
                pending = None
            elif pending is None:
                topics.apply(record)
            else:
                pending.append(record)
    return {topic_id: topics.configs.get(name, {}) for topic_id, name in topics.names.items()}


class _Record(NamedTuple):
    kind: int
    version: int
    body: MessageReader

    @classmethod
    def of(cls, value: bytes) -> _Record:
        reader = MessageReader(value, InvalidMetadataError)
        frame = reader.uvarint("frame version")
        if frame != _FRAME_VERSION:
            raise reader.fail(f"frame version {frame} is not supported; supported: 1")
        return cls(reader.uvarint("record type"), reader.uvarint("record version"), reader)


class _Topics:
    """Topics and their configurations, as of the last applied record."""

    def __init__(self) -> None:
        self.names: dict[uuid.UUID, str] = {}
        self.configs: dict[str, dict[str, str]] = {}

    def apply(self, record: _Record) -> None:
        if record.kind not in (_TOPIC, _CONFIG, _REMOVED_TOPIC):
            return
        body = record.body
        if record.version != 0:
            raise body.fail(
                f"version {record.version} of record type {record.kind} is not supported;"
                " supported: 0"
            )
        if record.kind == _TOPIC:
            name = body.compact_string("topic")
            self.names[body.uuid("topic id")] = name
        elif record.kind == _REMOVED_TOPIC:
            name = self.names.pop(body.uuid("topic id"), "")
            self.configs.pop(name, None)
        elif body.i8("resource type") == _TOPIC_RESOURCE:
            configs = self.configs.setdefault(body.compact_string("resource name"), {})
            name = body.compact_string("configuration")
            value = body.compact_bytes("value")
            if value is None:
                configs.pop(name, None)
            else:
                configs[name] = value.decode(errors="replace")
