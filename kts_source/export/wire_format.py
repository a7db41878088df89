"""Values in Confluent's wire format: a zero byte, a schema id (4 bytes, big-endian), the payload.

Avro and JSON Schema payloads follow at once; Protobuf has the path of the message type in front, as
zigzag varints: their number, then indexes into nested types, where a lone 0 means the first type.

Schemas come from a registry's URL, or from a folder: `<id>.avsc`, `<id>.json` (JSON Schema), or
`<id>.desc` (a FileDescriptorSet of protoc with --include_imports, whose last file is the schema's).
"""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import InvalidOptionError
from kts_source.export.errors import ExportError
from kts_source.export.transforms import (
    DEFAULT_KEPT,
    Transformed,
    assemble,
    check_columns,
    decode_rows,
    schema_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from kts_source.secret import Secret

MAGIC: Final = 0
_HEADER: Final = 5
_MAX_SCHEMA_BYTES: Final = 16 << 20
_TIMEOUT_SECONDS: Final = 10.0


@dataclass
class WireFormatColumns:
    """The members of Avro, JSON or Protobuf values as columns, by the schema id in every value.

    A value without the header, of an unknown schema, or that does not decode, is rejected; a
    registry that does not answer fails the task.

    Attributes:
        schema: Columns to make; members it does not name are left out, missing ones are null.
        registry: URL of a schema registry, or a folder of schemas.
        auth: User and password of the registry.
        column: `value` or `key`.
        keep: Columns of the record to keep, in front.
    """

    schema: pa.Schema
    registry: str
    auth: Secret[tuple[str, str]] | None = None
    column: str = "value"
    keep: tuple[str, ...] = DEFAULT_KEPT
    _decoders: dict[int, Callable[[bytes], dict[str, Any]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_columns(self.schema, self.keep)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoders": {}}

    @property
    def fingerprint(self) -> str:
        """See `RowTransform.fingerprint`. The registry may move; ids keep their meaning."""
        return f"wire({self.column}->{schema_text(self.schema)};keep={','.join(self.keep)})"

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        """See `RowTransform.apply`.

        Raises:
            ExportError: The registry does not answer.
        """
        return assemble(
            batch, self.keep, decode_rows(batch, self.column, self.schema, self._decode)
        )

    def _decode(self, value: bytes) -> dict[str, Any]:
        if len(value) < _HEADER or value[0] != MAGIC:
            raise ValueError("not in the wire format: no zero byte and schema id in front")
        schema_id = int.from_bytes(value[1:_HEADER], "big")
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            decoder = self._decoders[schema_id] = self._decoder(schema_id)
        return decoder(value[_HEADER:])

    def _decoder(self, schema_id: int) -> Callable[[bytes], dict[str, Any]]:
        if self.registry.startswith(("http://", "https://")):
            kind, text = self._fetch(schema_id)
        else:
            kind, text = _read(Path(self.registry), schema_id)
        if kind == "AVRO":
            return _avro(json.loads(text))
        if kind == "JSON":
            return _json
        if kind == "DESCRIPTORS":
            return _protobuf(base64.b64decode(text))
        raise InvalidOptionError(
            f"schema {schema_id} is of type {kind}: give Protobuf schemas as a folder of"
            " FileDescriptorSets"
        )

    def _fetch(self, schema_id: int) -> tuple[str, str]:
        url = f"{self.registry.rstrip('/')}/schemas/ids/{schema_id}"
        request = urllib.request.Request(url)
        if self.auth is not None:
            token = base64.b64encode(":".join(self.auth.reveal()).encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                document = json.loads(answer.read(_MAX_SCHEMA_BYTES))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise LookupError(f"the registry does not know schema {schema_id}") from None
            raise RegistryError(f"the registry answers {error.code} for {schema_id}") from None
        except (OSError, ValueError) as error:
            raise RegistryError(f"the registry does not answer: {type(error).__name__}") from None
        return document.get("schemaType", "AVRO"), document["schema"]


class RegistryError(ExportError):
    """A schema registry that does not answer; the rows are not to blame."""


def _read(folder: Path, schema_id: int) -> tuple[str, str]:
    for suffix, kind in ((".avsc", "AVRO"), (".json", "JSON")):
        path = folder / f"{schema_id}{suffix}"
        if path.is_file():
            return kind, path.read_text()
    path = folder / f"{schema_id}.desc"
    if path.is_file():
        return "DESCRIPTORS", base64.b64encode(path.read_bytes()).decode()
    raise LookupError(f"the folder has no schema {schema_id}")


def _avro(schema: Any) -> Callable[[bytes], dict[str, Any]]:  # noqa: ANN401  # JSON
    import fastavro

    parsed = fastavro.parse_schema(schema)

    def decode(payload: bytes) -> dict[str, Any]:
        stream = io.BytesIO(payload)
        value = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(payload):
            raise ValueError(f"{len(payload) - stream.tell()} bytes left over")
        if not isinstance(value, dict):
            raise TypeError("the Avro value is not a record")
        return value

    return decode


def _json(payload: bytes) -> dict[str, Any]:
    value = json.loads(payload)
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _protobuf(descriptors: bytes) -> Callable[[bytes], dict[str, Any]]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    main = pool.FindFileByName(files.file[-1].name)
    top = [main.message_types_by_name[message.name] for message in files.file[-1].message_type]

    def decode(payload: bytes) -> dict[str, Any]:
        path, position = _message_path(payload)
        kind = top[path[0]]
        for index in path[1:]:
            kind = kind.nested_types[index]
        message = message_factory.GetMessageClass(kind)()
        message.ParseFromString(payload[position:])
        return {
            member.name: _plain(getattr(message, member.name))
            for member in kind.fields
            if not member.has_presence or message.HasField(member.name)
        }

    return decode


def _plain(value: Any) -> Any:  # noqa: ANN401  # any Protobuf value
    if hasattr(value, "DESCRIPTOR"):
        return {member.name: _plain(content) for member, content in value.ListFields()}
    if isinstance(value, str | bytes | bool | int | float):
        return value
    if hasattr(value, "items"):
        return [(key, _plain(content)) for key, content in value.items()]
    return [_plain(item) for item in value]


def _message_path(payload: bytes) -> tuple[list[int], int]:
    """The indexes of the message type, and where the message begins."""
    count, position = _zigzag(payload, 0)
    if count == 0:
        return [0], position
    if not 0 < count <= 64:
        raise ValueError(f"{count} message indexes")
    path = []
    for _ in range(count):
        index, position = _zigzag(payload, position)
        if index < 0:
            raise ValueError(f"message index {index}")
        path.append(index)
    return path, position


def _zigzag(payload: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(payload) or shift > 28:
            raise ValueError("the message indexes end too early")
        byte = payload[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
