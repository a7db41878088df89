"""Parses custom metadata: bytes that the broker stores for the plugin in `__remote_log_metadata`.

Custom metadata consists of one section of Kafka's tagged fields:

    uvarint count, then per field, tags ascending: uvarint tag, uvarint byte length, value
    tag 0  remote size     zig-zag varlong        sum of the bytes of the three objects
    tag 1  object prefix   compact string         key prefix configured at upload
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
