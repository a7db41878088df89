"""Values in Confluent's wire format: a zero byte, a schema id (4 bytes, big-endian), the payload.
Byte 1 and a schema's GUID (16 bytes) may stand in place of the id.

Avro and JSON are decoded as options `value.format` = `avro-confluent` and `json-confluent` have it.
Of what those decoders refuse, and of Protobuf, each row is decided by itself by kept libraries, as
tables begun by earlier versions know it.

Avro and JSON Schema payloads follow at once; Protobuf has the path of the message type in front, as
zigzag varints: their number, then indexes into nested types, where a lone 0 means the first type.

Schemas come from a registry's URL, or from a folder: see `kts_source.registry`.
"""

from __future__ import annotations

import importlib
import io
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.export.transforms.row_transform import (
    DEFAULT_KEPT,
    Rejected,
    Transformed,
    assemble,
    check_columns,
    column_of,
    decode_rows,
    schema_text,
)
from kts_source.export.transforms.wire_batches import avro_together, json_together
from kts_source.libraries import require
from kts_source.registry.by_id import ById, RegistryAccess, RegistryPlace
from kts_source.registry.schema_registry import (
    AVRO,
    EXTRA,
    JSON,
    check_registry,
    find_schema,
)
from kts_source.secret import Secret
from segment_format.values.avro.decoder import JSON_TEXT, is_json_object
from segment_format.values.confluent_header import read_header, read_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from segment_format.values.decoded import ValueDecoder

Decoder: TypeAlias = "Callable[[bytes], dict[str, Any]]"


class _Writer(NamedTuple):
    """What decodes the values of one schema.

    Attributes:
        decode: One value, without its header.
        together: Values of a batch, with their headers; `None` where columns or schema are such
            that it could give other rows.
    """

    decode: Decoder
    together: ValueDecoder | None = None


@dataclass
class WireFormatColumns:
    """The members of Avro, JSON or Protobuf values as columns, by the schema id in every value.

    It is what option `value.format` decodes, without a struct around it, of all three in one topic.

    A value without the header, of an unknown schema, or that does not decode, is rejected; a
    registry that does not answer fails the task. What is asked of a registry is bounded: behind
    1,000 unknown ids in five minutes, an id that was not asked for before fails the task, too.

    Attributes:
        schema: Columns to make; members it does not name are left out, missing ones are null.
        registry: URL of a schema registry, or a folder of schemas.
        auth: User and password of the registry.
        column: `value` or `key`.
        keep: Columns of the record to keep, in front.
        subject: Subject of the schemas, such as `:.staging:orders-value` in a context of the
            registry; ids are looked up with it. Empty for ids of the default context.
    """

    schema: pa.Schema
    registry: str
    auth: Secret[tuple[str, str]] | None = None
    column: str = "value"
    keep: tuple[str, ...] = DEFAULT_KEPT
    subject: str = ""

    def __post_init__(self) -> None:
        check_columns(self.schema, self.keep)
        check_registry(self.registry)

    @property
    def _place(self) -> RegistryPlace:
        place = RegistryPlace(self.registry, subject=self.subject)
        if self.auth is None:
            return place
        return replace(place, access=Secret(RegistryAccess(*self.auth.reveal())))

    @cached_property
    def _writers(self) -> ById[int | str, _Writer]:
        return ById(self._writer)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_writers"}

    @property
    def fingerprint(self) -> str:
        """See `RowTransform.fingerprint`. The registry may move; ids keep their meaning."""
        subject = f";subject={self.subject}" if self.subject else ""
        return (
            f"wire({self.column}->{schema_text(self.schema)};keep={','.join(self.keep)}{subject})"
        )

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        """See `RowTransform.apply`.

        Raises:
            RegistryError: The registry does not answer.
            InvalidOptionError: The library for a schema's kind is not installed here.
        """
        values = column_of(batch, self.column).cast(pa.binary())
        return assemble(batch, self.keep, *self._decoded(values))

    def _decoded(self, values: pa.Array) -> tuple[pa.Table, list[Rejected]]:
        """As `decode_rows`: what a writer's batch decoder does not take is looked at row by row."""
        tables: list[pa.Table] = []
        places: list[NDArray[np.intp]] = []
        left = np.ones(len(values), np.bool_)
        for schema_id, rows in _by_id(values):
            together = self._together(schema_id)
            if together is not None:
                decoded = together.decode(values.take(pa.array(rows))).array
                good = decoded.is_valid()
                tables.append(_members(decoded.filter(good), self.schema))
                places.append(rows[good.to_numpy(zero_copy_only=False)])
                left[places[-1]] = False
        others = np.flatnonzero(left)
        made, rejected = decode_rows(values.take(pa.array(others)), self.schema, self._decode)
        places.append(np.delete(others, [found.row for found in rejected]))
        table = pa.concat_tables([*tables, made]).take(pa.array(np.argsort(np.concatenate(places))))
        return table, [Rejected(int(others[found.row]), found.reason) for found in rejected]

    def _together(self, schema_id: int | str) -> ValueDecoder | None:
        try:
            return self._writers.get(schema_id).together
        except LookupError:  # each of its rows will say so
            return None

    def _decode(self, value: bytes) -> dict[str, Any]:
        try:
            schema_id, size = read_header(value)
        except ValueError as error:
            raise ValueError(f"not in the wire format: {error}") from None
        return self._writers.get(schema_id).decode(value[size:])

    def _writer(self, schema_id: int | str) -> _Writer:
        found = find_schema(self._place, schema_id)
        if found.kind == AVRO:
            decode = _avro([json.loads(text) for _, text in found.parts])
            return _Writer(decode, avro_together(found.parts, self.schema))
        if found.kind == JSON:
            return _Writer(_json, json_together(self.schema))
        return _Writer(_protobuf(found.parts))


def _by_id(values: pa.Array) -> Iterator[tuple[int | str, NDArray[np.intp]]]:
    """Ids and GUIDs, as they come first, and the rows of each; not of values that have none."""
    found = read_headers(values)
    headed = np.flatnonzero((found.sizes > 0) & values.is_valid().to_numpy(zero_copy_only=False))
    distinct, firsts = np.unique(found.number_of[headed], return_index=True)
    for number in distinct[np.argsort(firsts)].tolist():
        yield found.schemas[number], headed[found.number_of[headed] == number]


def _members(structs: pa.Array, schema: pa.Schema) -> pa.Table:
    """Fields as columns; nulls where there is no such field."""
    there = {field.name for field in structs.type}
    columns = [
        pc.struct_field(structs, field.name).cast(field.type)
        if field.name in there
        else pa.nulls(len(structs), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _avro(schemas: Sequence[Any]) -> Decoder:
    """Decodes by the last schema; those before it are what it refers to."""
    require("fastavro", EXTRA, "Avro")
    import fastavro

    named: dict[str, Any] = {}
    for schema in schemas:
        parsed = fastavro.parse_schema(schema, named_schemas=named)

    def decode(payload: bytes) -> dict[str, Any]:
        if is_json_object(payload):
            raise ValueError(JSON_TEXT)
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


def _protobuf(parts: Sequence[tuple[str, bytes]]) -> Decoder:
    """Decodes by the last file; those before it are what it imports, by the names it uses."""
    require("google.protobuf", EXTRA, "Protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    known = {name for name, _ in parts}
    for name, content in parts:
        file = descriptor_pb2.FileDescriptorProto.FromString(content)
        file.name = name
        for imported in file.dependency:
            if imported not in known and imported.startswith("google/protobuf/"):
                known.add(imported)
                pool.AddSerializedFile(_well_known(imported))
        pool.Add(file)
    main = pool.FindFileByName(name)
    top = [main.message_types_by_name[message.name] for message in file.message_type]

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


def _well_known(name: str) -> bytes:
    """A file that comes with Protobuf, such as `google/protobuf/timestamp.proto`."""
    module = importlib.import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    return bytes(module.DESCRIPTOR.serialized_pb)


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
