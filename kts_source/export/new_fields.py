"""Finds fields that keys and values have, but that the schema of an export lacks.

For Avro with a registry, the writer's schema of every value is compared with the schema of the
export. For JSON, values are parsed: all of them if the export adds new fields to the table,
otherwise a sample.

With `on_new_fields="add"`, each task reports the schemas of the new fields that it found. The
driver adds these fields to the schema of the export and runs the tasks of the wave again. So no row
is committed without them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from kts_source.columns import PARTITION, TOPIC
from kts_source.errors import ErrorLocation, SchemaChangedError
from kts_source.export.task import OFFSET
from kts_source.export.topic_fields import TopicFields
from kts_source.options.value_formats import (
    AVRO_APICURIO,
    AVRO_CONFLUENT,
    AVRO_GLUE,
    JSON,
    JSON_CONFLUENT,
)
from kts_source.read.value_decoders import framed, needed_columns, value_decoder
from segment_format.values.avro.extension import extended, non_null, print_avro
from segment_format.values.avro.schema import (
    Array,
    AvroSchemaError,
    Map,
    Record,
    Union,
    parse_avro,
)
from segment_format.values.json.ddl import TypeInference, parse_ddl, parse_json, print_ddl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.options.value_formats import ColumnFormat
    from segment_format.values.avro.schema import Schema

_FRAMED_AVRO: Final = (AVRO_APICURIO, AVRO_CONFLUENT, AVRO_GLUE)
_SAMPLED_ROWS: Final = 16
"""Random values that are parsed per batch."""
_MAX_FIELDS: Final = 100
"""Maximum number of fields that a task reports or adds, because names may be data, such as ids."""
_SHOWN_FIELDS: Final = 5
"""Maximum number of new fields whose first records an error names."""
_VALUE: Final = "v"
_VALUE_START: Final = b'{"v":'
_VALUE_STOP: Final = b"}"
_VALUE_BORDER: Final = _VALUE_STOP + b"\n" + _VALUE_START
_HEADER_SIZES: Final = {b"\0": 5, b"\1": 17}
"""Bytes of Confluent's header, by its first byte."""


class NewFields:
    """Collects the fields that keys and values have, but that the schema of the export lacks.

    Args:
        formats: Formats of keys and values.
        base: With `adds`, the formats without the fields that this run has added.
        adds: True to determine the types of the new fields for `schemas`.

    Attributes:
        columns: Columns that `add_unknown` needs in a batch.
        found: The new fields, with the place of the first record that has them. A field is named
            by its path, such as `value.discount`; for Avro, with the first schema id.
        topics: Without `adds`, fields of the JSON keys and values, by column and topic.
    """

    def __init__(
        self, formats: Sequence[ColumnFormat], base: Sequence[ColumnFormat] = (), *, adds: bool
    ) -> None:
        self._formats = [
            form for form in formats if form.format in (JSON, JSON_CONFLUENT, *_FRAMED_AVRO)
        ]
        raw = tuple(form.raw_column for form in self._formats)
        self.columns = (*raw, *needed_columns(self._formats))
        self._types = {
            form.label: parse_ddl(form.schema)
            for form in self._formats
            if form.format not in _FRAMED_AVRO
        }
        self._adds = adds
        self._base = {form.label: form for form in base}
        self._inferences = {label: TypeInference() for label in self._types}
        self._avro_writers: dict[str, list[Schema]] = {form.label: [] for form in self._formats}
        self._avro_texts: dict[str, str] = {}
        self.found: dict[str, str] = {}
        self.topics: dict[tuple[str, str], TopicFields] = {}
        self._paths: set[str] = set()
        self._known_ids: set[tuple[str, int | str]] = set()

    def add_unknown(self, batch: pa.RecordBatch) -> None:
        """Adds the new fields in a batch to `found`.

        Raises:
            SchemaChangedError: With `adds`, there are too many new fields, or one of them has
                different types.
        """
        topic = batch.column(TOPIC)[0].as_py()
        for form in self._formats:
            if not form.is_of(topic):
                continue
            is_avro = form.format in _FRAMED_AVRO
            rows = batch
            if not is_avro and not self._adds:
                rows = batch.take(_sample(batch))
            place = partial(_place, rows)
            columns = {name: rows.column(name) for name in needed_columns((form,))}
            values = framed(
                pa.RecordBatch.from_pydict({**columns, form.column: rows.column(form.raw_column)}),
                form,
            )
            if not is_avro and not self._adds:
                self._add_names(form, batch, values)
            fields = self._avro(form, values, place) if is_avro else self._json(form, values, place)
            suffix = f" (topic {form.topic})" if form.topic else ""
            for path, text, row in fields:
                if path + suffix in self._paths:
                    continue
                if len(self._paths) < _MAX_FIELDS:
                    self._paths.add(path + suffix)
                    self.found[text + suffix] = (
                        "topic {topic}, partition {partition}, offset {offset}".format(**place(row))
                    )
                elif self._adds:
                    raise SchemaChangedError(
                        f"the records of {form.column} have more than {_MAX_FIELDS} fields that the"
                        f" schema lacks, such as {text}. If their names are data, declare a map in"
                        f" option '{form.column}.schema'; otherwise add the fields there",
                        **place(row),
                    )

    def schemas(self) -> dict[str, str]:
        """Returns a schema for each format with new fields, as `add_fields` needs it. For Avro, it
        is the export's schema with the new fields; for JSON, a DDL with only the new fields.
        """
        texts = dict(self._avro_texts)
        for label, inference in self._inferences.items():
            if (kind := inference.type) is not None:
                texts[label] = print_ddl(kind)
        return texts

    def _add_names(self, form: ColumnFormat, batch: pa.RecordBatch, sample: pa.Array) -> None:
        """Adds the keys or values of a batch to `topics`, until one has a field of the schema."""
        key = form.column, batch.column(TOPIC)[0].as_py()
        before = self.topics.get(key)
        kind = self._types[form.label]
        if form.column not in batch.schema.names or not pa.types.is_struct(kind):
            return
        if before is not None and before.has_known:
            return
        documents = [each for _, each in _documents(form, sample) if isinstance(each, dict)]
        names = tuple(dict.fromkeys(name for document in documents for name in document))
        # Rare fields may not be in the sample.
        decoded = batch.column(form.column)
        has_known = any(kind.get_field_index(name) >= 0 for name in names) or any(
            field.null_count < len(field) for field in decoded.flatten()
        )
        more = TopicFields(*key, len(decoded) - decoded.null_count, has_known, names)
        self.topics[key] = more if before is None else before + more

    def _avro(
        self, form: ColumnFormat, values: pa.Array, place: Callable[[int], ErrorLocation]
    ) -> Iterator[tuple[str, str, int]]:
        """Yields the path, the text for `found` and the row of each new field."""
        decoder: Any = value_decoder(form)
        for row, schema_id, schema in decoder.writers_of(values):
            if (form.label, schema_id) in self._known_ids:
                continue
            self._known_ids.add((form.label, schema_id))
            paths = list(_new_avro_fields(schema, form.reader_schema, form.column))
            if self._adds:
                try:
                    paths += self._add_writer(form, schema, has_new=bool(paths))
                except SchemaChangedError as error:
                    raise error.located(**place(row)) from None
            yield from ((path, f"{path} (schema id {schema_id})", row) for path in paths)

    def _add_writer(self, form: ColumnFormat, writer: Schema, *, has_new: bool) -> list[str]:
        """Adds a writer's schema to the result of `schemas` if the schema of the export must change
        for it. Returns the paths of fields that this run has added and whose type must change.
        """
        base = self._base[form.label]
        if not has_new and form == base:
            return []
        writers = [*self._avro_writers[form.label], writer]
        text = _extended_text(form, base, writers)
        changed = list(_changed_fields(form.reader_schema, parse_avro(text), form.column))
        if has_new or changed:
            self._avro_writers[form.label] = writers
            self._avro_texts[form.label] = text
        return changed

    def _json(
        self, form: ColumnFormat, values: pa.Array, place: Callable[[int], ErrorLocation]
    ) -> Iterator[tuple[str, str, int]]:
        """Yields the path, the text for `found` and the row of each new field."""
        kind = self._types[form.label]
        if self._adds and form.format == JSON and not may_have_new_fields(values, kind):
            return
        for row, document in _documents(form, values):
            paths = list(_new_json_fields(document, kind, form.column))
            if paths and self._adds:
                try:
                    self._inferences[form.label].add(_new_part(document, kind))
                except ValueError as error:
                    raise SchemaChangedError(
                        f"the new fields of {form.column} have no common type: {error} in option"
                        f" '{form.column}.schema', or set on_new_fields='warn' to export without"
                        " these fields",
                        **place(row),
                    ) from None
            yield from ((path, path, row) for path in paths)


def _documents(form: ColumnFormat, values: pa.Array) -> Iterator[tuple[int, object]]:
    """Yields the row and the document of each valid JSON value."""
    for row, value in enumerate(values.to_pylist()):
        if value is None:
            continue
        start = _HEADER_SIZES.get(value[:1], 0) if form.format == JSON_CONFLUENT else 0
        try:
            document = parse_json(value[start:])
        except ValueError:
            continue
        yield row, document


def _sample(batch: pa.RecordBatch) -> pa.Array:
    """Returns the numbers of up to `_SAMPLED_ROWS` random rows, in order.

    Rows at a fixed distance would miss a field that, for example, only every second record has.
    The first offset is the seed, so a retried task examines the same rows.
    """
    if batch.num_rows <= _SAMPLED_ROWS:
        return pa.array(range(batch.num_rows), pa.int64())
    chosen = np.random.default_rng(batch.column(OFFSET)[0].as_py()).choice(
        batch.num_rows, _SAMPLED_ROWS, replace=False
    )
    return pa.array(np.sort(chosen))


def _place(rows: pa.RecordBatch, row: int) -> ErrorLocation:
    return ErrorLocation(
        topic=rows.column(TOPIC)[row].as_py(),
        partition=rows.column(PARTITION)[row].as_py(),
        offset=rows.column(OFFSET)[row].as_py(),
    )


def _extended_text(form: ColumnFormat, base: ColumnFormat, writers: Sequence[Schema]) -> str:
    """Returns the text of an Avro format's schema with the new fields of `writers`.

    Args:
        form: The format, with the fields that this run has added.
        base: The format without these fields. Their types are determined again, because other
            writers may have other types.
        writers: Schemas of writers.

    Raises:
        SchemaChangedError: The new fields have no common type.
    """
    try:
        return print_avro(extended(base.reader_schema, [form.reader_schema, *writers], form.column))
    except AvroSchemaError as error:
        raise SchemaChangedError(
            f"new fields of {form.column} cannot be added: {error}. Set option"
            f" '{form.column}.schema' to a schema that has them, or on_new_fields='warn' to export"
            " without them"
        ) from None


def add_fields(
    formats: Sequence[ColumnFormat],
    base: Sequence[ColumnFormat],
    schemas: Sequence[Mapping[str, str]],
) -> tuple[ColumnFormat, ...]:
    """Returns the formats with the new fields in their schemas.

    Args:
        formats: Formats of keys and values.
        base: The formats without the fields that this run has added.
        schemas: Results of `NewFields.schemas`, one per task.

    Raises:
        SchemaChangedError: Two tasks found different types of a field.
    """
    return tuple(
        _with_fields(form, first, [texts[form.label] for texts in schemas if form.label in texts])
        for form, first in zip(formats, base, strict=True)
    )


def first_places(found: Mapping[str, str], message: str) -> str:
    """Returns a text with the first records of the new fields `found`, for the end of an error's
    `message`. Fields that the message names come first.
    """

    def is_other(name: str) -> bool:
        return name.partition(" (")[0].rpartition(".")[2] not in message

    shown = sorted(found, key=is_other)[:_SHOWN_FIELDS]
    return f". First records: {'; '.join(f'{name} in {found[name]}' for name in shown)}"


def _with_fields(form: ColumnFormat, base: ColumnFormat, texts: Sequence[str]) -> ColumnFormat:
    if not texts:
        return form
    if form.format not in _FRAMED_AVRO:
        new = parse_ddl(texts[0])
        for text in texts[1:]:
            new = _merged(new, parse_ddl(text), form.column)
        return with_json_fields(form, new)
    text = _extended_text(form, base, [parse_avro(text) for text in texts])
    return replace(form, schema=text, references=())


def with_json_fields(form: ColumnFormat, kind: pa.DataType) -> ColumnFormat:
    """Returns a JSON format with the fields of `kind` added to its schema."""
    return replace(form, schema=print_ddl(_extended_type(parse_ddl(form.schema), kind)))


def _extended_type(kind: pa.DataType, more: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind) and pa.types.is_struct(more):
        fields = [
            field
            if (index := more.get_field_index(field.name)) < 0
            else field.with_type(_extended_type(field.type, more.field(index).type))
            for field in kind
        ]
        fields += [f.with_nullable(True) for f in more if kind.get_field_index(f.name) < 0]
        return pa.struct(fields)
    if pa.types.is_list(kind) and pa.types.is_list(more):
        return pa.list_(_extended_type(kind.value_type, more.value_type))
    if pa.types.is_map(kind) and pa.types.is_map(more):
        return pa.map_(kind.key_type, _extended_type(kind.item_type, more.item_type))
    if pa.types.is_map(kind) and pa.types.is_list(more):  # see `_new_part`
        return pa.map_(kind.key_type, _extended_type(kind.item_type, more.value_type))
    return kind


def _merged(first: pa.DataType, other: pa.DataType, path: str) -> pa.DataType:
    """Returns a type with the new fields of two tasks. Raises `SchemaChangedError` if the tasks
    found different types of a field.
    """
    if pa.types.is_struct(first) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in first}
        for field in other:
            before = fields.get(field.name, field.type)
            fields[field.name] = _merged(before, field.type, f"{path}.{field.name}")
        return pa.struct(list(fields.items()))
    if pa.types.is_list(first) and pa.types.is_list(other):
        return pa.list_(_merged(first.value_type, other.value_type, path))
    if {first, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if first != other:
        raise SchemaChangedError(
            f"the new field {path} is {first} in some records and {other} in others. Add it to"
            f" option '{path.partition('.')[0]}.schema', or set on_new_fields='warn' to export"
            " without it"
        )
    return first


def _new_part(value: object, kind: pa.DataType) -> Any:  # noqa: ANN401  # any JSON
    """Returns a JSON value without the fields that the type `kind` has, so that only new fields
    are left. Maps become lists of their values. Returns `None` if no field is new.
    """
    if pa.types.is_struct(kind) and isinstance(value, dict):
        parts = {}
        for name, item in value.items():
            index = kind.get_field_index(name)
            parts[name] = item if index < 0 else _new_part(item, kind.field(index).type)
        return {name: part for name, part in parts.items() if part is not None} or None
    if pa.types.is_list(kind) and isinstance(value, list):
        items, inner = value, kind.value_type
    elif pa.types.is_map(kind) and isinstance(value, dict):
        items, inner = list(value.values()), kind.item_type
    else:
        return None
    new = [_new_part(item, inner) for item in items]
    return [part for part in new if part is not None] or None


def may_have_new_fields(values: pa.Array, kind: pa.DataType) -> bool:
    """Returns False only if no JSON value has a field that the type lacks.

    Parses all values at once with Arrow's parser. This is 15 times faster than Python's parser. If
    Arrow's parser rejects the values, the result is True.
    """
    texts = values.filter(pc.greater(pc.binary_length(values), 0))
    if not len(texts):
        return False
    # Each value becomes a field. Otherwise, an invalid value might end inside a later value, and
    # hide fields of the values in between.
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), _VALUE_BORDER)
    data = _VALUE_START + joined[0].as_py() + _VALUE_STOP
    try:
        table = pa.json.read_json(
            pa.BufferReader(data),
            pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pa.json.ParseOptions(newlines_in_values=True),
        )
        return _has_more(table.schema.field(_VALUE).type, kind)
    except (pa.ArrowException, ValueError):  # ValueError: a name is not UTF-8
        return True


def _has_more(parsed: pa.DataType, kind: pa.DataType) -> bool:
    if pa.types.is_struct(parsed) and pa.types.is_struct(kind):
        return any(
            (index := kind.get_field_index(field.name)) < 0
            or _has_more(field.type, kind.field(index).type)
            for field in parsed
        )
    if pa.types.is_struct(parsed) and pa.types.is_map(kind):
        return any(_has_more(field.type, kind.item_type) for field in parsed)
    if pa.types.is_list(parsed) and pa.types.is_list(kind):
        return _has_more(parsed.value_type, kind.value_type)
    return False


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
        one, other = non_null(writer), non_null(reader)
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


def _changed_fields(before: Schema, after: Schema, path: str) -> Iterator[str]:
    """Yields the paths of fields with another type. `after` has all fields of `before`."""
    one, other = non_null(before), non_null(after)
    if isinstance(before, Union) != isinstance(after, Union):
        yield path
    elif isinstance(one, Record) and isinstance(other, Record):
        types = {field.name: field.type for field in other.fields}
        for field in one.fields:
            yield from _changed_fields(field.type, types[field.name], f"{path}.{field.name}")
    elif isinstance(one, Array) and isinstance(other, Array):
        yield from _changed_fields(one.items, other.items, path)
    elif isinstance(one, Map) and isinstance(other, Map):
        yield from _changed_fields(one.values, other.values, path)
    elif before != after:
        yield path
