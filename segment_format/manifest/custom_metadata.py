"""Parses custom metadata, which the broker keeps for the plugin in `__remote_log_metadata`.

One section of Kafka's tagged fields and nothing else:

    uvarint count, then per field, tags ascending: uvarint tag, uvarint byte length, value
    tag 0  remote size     zig-zag varlong        sum of the bytes of the three objects
    tag 1  object prefix   compact string         key prefix in force at upload
    tag 2  object key      compact string         name without prefix and suffix

Source: `io.aiven.kafka.tieredstorage.metadata.SegmentCustomMetadataSerde`.
"""

from __future__ import annotations

from dataclasses import dataclass

from segment_format._cursor import MessageReader
from segment_format.errors import InvalidManifestError

_REMOTE_SIZE, _OBJECT_PREFIX, _OBJECT_KEY = range(3)


@dataclass(frozen=True, slots=True)
class CustomMetadata:
    """Fields that the plugin was configured to record; `None` for others.

    Attributes:
        remote_size: Bytes of the three objects together.
        object_prefix: Key prefix in force at upload.
        object_key: Name of the objects without prefix and suffix.
    """

    remote_size: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None


def parse_custom_metadata(data: bytes | None) -> CustomMetadata:
    """Parses the custom metadata of a segment; unknown fields are skipped.

    Args:
        data: Bytes from the metadata record; `None` and empty mean no fields.

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
