"""Finds fields of keys and values that producers have added and the schema of an export lacks. The
export does not write these fields.

For Avro with a registry, the writer's schema of every value is compared with the schema of the
export. For JSON, a sample of the values is parsed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kts_source.options.value_formats import (
    AVRO_APICURIO,
    AVRO_CONFLUENT,
    AVRO_GLUE,
    JSON,
    JSON_CONFLUENT,
)
from kts_source.read.value_decoders import framed, needed_columns, value_decoder
from segment_format.values.avro.schema import Array, Map, Record, Union
from segment_format.values.json.ddl import parse_ddl

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.options.value_formats import ColumnFormat
    from segment_format.values.avro.schema import Schema

_FRAMED_AVRO: Final = (AVRO_APICURIO, AVRO_CONFLUENT, AVRO_GLUE)
_SAMPLED_ROWS: Final = 16
"""Values that are parsed per batch."""
_MAX_FIELDS: Final = 100
"""Maximum number of fields that a task reports, because names may be data, such as ids."""
_HEADER_SIZES: Final = {0: 5, 1: 17}
"""Bytes of Confluent's header, by its first byte."""


class NewFields:
    """Collects the fields of values that the schema lacks.

    Attributes:
        columns: Columns that batches must have.
        found: Descriptions of the fields, such as `value.discount`.
    """

    def __init__(self, formats: Sequence[ColumnFormat]) -> None:
        self._formats = [
            form for form in formats if form.format in (JSON, JSON_CONFLUENT, *_FRAMED_AVRO)
        ]
        raw = tuple(form.raw_column for form in self._formats)
        self.columns = (*raw, *needed_columns(self._formats))
        self._types = {
            form.column: parse_ddl(form.schema)
            for form in self._formats
            if form.format not in _FRAMED_AVRO
        }
        self.found: dict[str, None] = {}
        self._known_ids: set[int | str] = set()

    def add_unknown(self, batch: pa.RecordBatch) -> None:
        """Adds the unknown fields in the values of `batch` to `found`. `batch` must have the
        columns in `columns`.
        """
        for form in self._formats:
            is_avro = form.format in _FRAMED_AVRO
            rows = batch
            if not is_avro:
                step = max(1, batch.num_rows // _SAMPLED_ROWS)
                rows = batch.take(pa.array(range(0, batch.num_rows, step), pa.int64()))
            columns = {name: rows.column(name) for name in needed_columns((form,))}
            values = framed(
                pa.RecordBatch.from_pydict({**columns, form.column: rows.column(form.raw_column)}),
                form,
            )
            texts = self._avro(form, values) if is_avro else self._json(form, values)
            for text in texts:
                if len(self.found) < _MAX_FIELDS:
                    self.found[text] = None

    def _avro(self, form: ColumnFormat, values: pa.Array) -> Iterator[str]:
        decoder: Any = value_decoder(form)
        for schema_id, schema in decoder.writers_of(values):
            if schema_id not in self._known_ids:
                self._known_ids.add(schema_id)
                for path in _new_avro_fields(schema, form.reader_schema, form.column):
                    yield f"{path} (schema id {schema_id})"

    def _json(self, form: ColumnFormat, values: pa.Array) -> Iterator[str]:
        for value in values.to_pylist():
            if value is None:
                continue
            start = 0
            if form.format == JSON_CONFLUENT:
                start = _HEADER_SIZES.get(value[0], 0)
            try:
                document = json.loads(value[start:])
            except (ValueError, RecursionError):
                continue
            yield from _new_json_fields(document, self._types[form.column], form.column)


def _new_json_fields(value: object, kind: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for name, item in value.items():
            index = kind.get_field_index(name)
            if index < 0:
                yield f"{path}.{name}"
            else:
                yield from _new_json_fields(item, kind.field(index).type, f"{path}.{name}")
    elif pa.types.is_list(kind) and isinstance(value, list):
        for item in value:
            yield from _new_json_fields(item, kind.value_type, path)
    elif pa.types.is_map(kind) and isinstance(value, dict):
        for item in value.values():
            yield from _new_json_fields(item, kind.item_type, path)


def _new_avro_fields(writer: Schema, reader: Schema, path: str) -> Iterator[str]:
    if isinstance(writer, Union) or isinstance(reader, Union):
        # Only the usual case, a union of null and one type, is compared.
        one, other = _without_null(writer), _without_null(reader)
        if one is not None and other is not None:
            yield from _new_avro_fields(one, other, path)
    elif isinstance(writer, Record) and isinstance(reader, Record):
        fields = {name: each for each in reader.fields for name in (each.name, *each.aliases)}
        for field in writer.fields:
            if field.name not in fields:
                yield f"{path}.{field.name}"
            else:
                inner = fields[field.name].type
                yield from _new_avro_fields(field.type, inner, f"{path}.{field.name}")
    elif isinstance(writer, Array) and isinstance(reader, Array):
        yield from _new_avro_fields(writer.items, reader.items, path)
    elif isinstance(writer, Map) and isinstance(reader, Map):
        yield from _new_avro_fields(writer.values, reader.values, path)


def _without_null(schema: Schema) -> Schema | None:
    if not isinstance(schema, Union):
        return schema
    branches = [each for each in schema.branches if getattr(each, "kind", "") != "null"]
    return branches[0] if len(branches) == 1 else None
