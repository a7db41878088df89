"""Custom metadata: what the plugin lets the broker keep about a segment in `__remote_log_metadata`.

One section of Kafka tagged fields and nothing else:

    uvarint count, then per field, tags ascending: uvarint tag, uvarint byte length, value
    tag 0  remote size     zig-zag varlong        sum of the bytes of the three objects
    tag 1  object prefix   compact string         key prefix in force at upload
    tag 2  object key      compact string         name without prefix and suffix

Source: `io.aiven.kafka.tieredstorage.metadata.SegmentCustomMetadataSerde`,
`SegmentCustomMetadataField`.
"""

from __future__ import annotations

from dataclasses import dataclass

from segment_format.errors import InvalidManifestError
from segment_format.metadata.protocol import (
    MessageReader,
    TaggedField,
    write_compact_string,
    write_tagged_fields,
    write_varlong,
)

_REMOTE_SIZE_TAG = 0
_OBJECT_PREFIX_TAG = 1
_OBJECT_KEY_TAG = 2


@dataclass(frozen=True, slots=True)
class CustomMetadata:
    """The fields that the plugin was told to record; None for those it was not.

    Attributes:
        remote_size: Bytes of the three objects together.
        object_prefix: Key prefix in force at upload.
        object_key: Name of the objects without prefix and suffix.
        unknown: Fields this code does not know, kept for writing.
    """

    remote_size: int | None = None
    object_prefix: str | None = None
    object_key: str | None = None
    unknown: tuple[TaggedField, ...] = ()


def parse_custom_metadata(data: bytes | None) -> CustomMetadata:
    """The fields in the custom metadata of a segment.

    Args:
        data: Bytes from the metadata record; None and empty mean no fields.

    Raises:
        InvalidManifestError: Not a section of tagged fields, or a known field that does not parse.
    """
    if not data:
        return CustomMetadata()
    reader = MessageReader(bytes(data), InvalidManifestError)
    remote_size: int | None = None
    texts: dict[int, str] = {}
    unknown: list[TaggedField] = []
    for position, field in reader.located_tagged_fields():
        value = MessageReader(field.data, InvalidManifestError, origin=position)
        if field.tag == _REMOTE_SIZE_TAG:
            remote_size = value.varlong("remote size")
        elif field.tag in (_OBJECT_PREFIX_TAG, _OBJECT_KEY_TAG):
            texts[field.tag] = value.compact_string("object name")
        else:
            unknown.append(field)
            continue
        value.expect_end()
    reader.expect_end()
    return CustomMetadata(
        remote_size, texts.get(_OBJECT_PREFIX_TAG), texts.get(_OBJECT_KEY_TAG), tuple(unknown)
    )


def write_custom_metadata(metadata: CustomMetadata) -> bytes | None:
    """The bytes for the metadata record; None when no field is set, as the plugin does.

    Raises:
        InvalidManifestError: The remote size does not fit 64 bits.
    """
    fields = list(metadata.unknown)
    if metadata.remote_size is not None:
        if not -(2**63) <= metadata.remote_size < 2**63:
            raise InvalidManifestError("remote size that does not fit 64 bits")
        fields.append(TaggedField(_REMOTE_SIZE_TAG, write_varlong(metadata.remote_size)))
    if metadata.object_prefix is not None:
        fields.append(TaggedField(_OBJECT_PREFIX_TAG, write_compact_string(metadata.object_prefix)))
    if metadata.object_key is not None:
        fields.append(TaggedField(_OBJECT_KEY_TAG, write_compact_string(metadata.object_key)))
    return write_tagged_fields(tuple(fields)) if fields else None
