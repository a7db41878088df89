"""Protobuf files of a registry as one descriptor set, and the messages in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segment_format.values.protobuf.schema import read_schema

if TYPE_CHECKING:
    from kts_source.registry.schema_registry import RegisteredSchema

_FILE = b"\x0a"
"""Tag of a file in a FileDescriptorSet, and of the name in a FileDescriptorProto."""


def descriptor_set(found: RegisteredSchema) -> bytes:
    """A FileDescriptorSet of a schema's files, each by the name that others refer to it by."""
    return b"".join(
        _FILE + _length(named) + named
        for name, file in found.parts
        # Of a field that is there twice, the last counts.
        for named in [file + _FILE + _length(name.encode()) + name.encode()]
    )


def messages_of(found: RegisteredSchema) -> dict[tuple[int, ...], str]:
    """Full names of the messages of the schema's own file, by message index, see
    `segment_format.values.protobuf.message_index`.

    Args:
        found: A schema of Protobuf.

    Raises:
        ValueError: The files cannot be read.
    """
    name, _ = found.parts[-1]
    every = read_schema(descriptor_set(found)).messages.values()
    return {message.path: message.name for message in every if message.file == name}


def _length(data: bytes) -> bytes:
    size, out = len(data), bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)
