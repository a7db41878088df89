"""Compares the columns of the rows that an export writes with the columns of the table.

A table keeps the columns with which it was created. There are three cases for the fields of a
decoded key or value:

* Fields that the table lacks are added to it if schema evolution is on. They are added after the
  existing fields and are nullable.
* Fields that the rows lack become null in the new rows if schema evolution is on.
* Every other difference is an error, because types of columns never change.

If topics in one table have formats of their own, a decoded column has the fields of all topics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.errors import ExportError, InvalidOptionError, SchemaChangedError, TieredKafkaError
from kts_source.export.partitioning import type_at
from kts_source.export.settings import ADD, DELTA, ICEBERG, NO_EVOLUTION
from kts_source.export.task import TOPIC_ID
from kts_source.export.transforms import RowTransform
from kts_source.options.value_formats import PROTOBUF, PROTOBUF_CONFLUENT
from kts_source.planning.topic_options import TABLE_PER_TOPIC
from kts_source.read.read_settings import read_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kts_source.export.partitioning import ValuesIn
    from kts_source.export.settings import ExportSettings
    from kts_source.options import ScanOptions


_NAME: Final = re.compile(r"[^ ,;{}()\n\t=.]+")
_NOT_IN_NAMES: Final = "space, tab, line break, . , ; = { } ( )"


def compacted_schema(columns: Sequence[str]) -> pa.Schema:
    """Returns the schema of the rows that a compaction reads from the table and writes."""
    return read_schema(columns).append(pa.field(TOPIC_ID, pa.string()))


def check_typed(options: ScanOptions, settings: ExportSettings) -> None:
    """Checks that the formats of keys and values fit the settings of an export.

    Raises:
        InvalidOptionError: A format needs a schema that the options lack; keys or values are
            decoded although the export compacts or uses a `RowTransform`; tables cannot store a
            field; or the settings contradict each other.
    """
    if settings.on_new_fields == ADD:
        _check_adds(options)
    if not options.formats:
        if settings.schema_evolution != NO_EVOLUTION:
            raise InvalidOptionError(
                "schema_evolution needs decoded keys or values: set option value.format or"
                " key.format"
            )
        return
    for column_format in options.formats:
        if column_format.needs_type:
            # A type that is inferred from a sample may differ from run to run, but a table keeps
            # its fields.
            raise InvalidOptionError(
                f"an export needs option '{column_format.column}.schema'"
                f"{f' of topic {column_format.topic}' if column_format.topic else ''}: `kts schema`"
                " prints the schema of a sample"
            )
    if settings.compaction is not None:
        raise InvalidOptionError(
            "compact=True merges keys and values as bytes: remove the options key.format and"
            " value.format"
        )
    if isinstance(settings.transform, RowTransform):
        raise InvalidOptionError(
            f"{type(settings.transform).__name__} is a RowTransform, which gets keys and values as"
            " bytes: remove it, or the options key.format and value.format"
        )
    if settings.transform is not None and settings.schema_evolution != NO_EVOLUTION:
        raise InvalidOptionError(
            "schema_evolution cannot be combined with a transform: remove one of them"
        )
    schema = decoded_schema(options)
    for name in typed_columns(options):
        if settings.transform is None:
            _check_writable(name, schema.field(name).type, settings)


def _check_adds(options: ScanOptions) -> None:
    """Raises `InvalidOptionError` if new fields of a key or value cannot be added to a table."""
    if not options.formats:
        raise InvalidOptionError(
            "on_new_fields='add' needs decoded keys or values: set option value.format or"
            " key.format"
        )
    for form in options.formats:
        if form.format in (PROTOBUF, PROTOBUF_CONFLUENT):
            raise InvalidOptionError(
                f"on_new_fields='add' finds new fields of JSON and of Avro with schema ids, but"
                f" option '{form.column}.format' is {form.format}. Remove on_new_fields, and set"
                f" '{form.column}.schema' to a newer file and schema_evolution='add' instead"
            )
        if form.fields is not None:
            raise InvalidOptionError(
                f"on_new_fields='add' adds all fields, but option '{form.column}.columns' selects"
                " some: remove one of these options"
            )


def typed_columns(options: ScanOptions) -> tuple[str, ...]:
    """Returns the names of the columns that are decoded from bytes to other types: `key`, `value`,
    both or none.
    """
    decoded = dict.fromkeys(form.column for form in options.formats)
    return tuple(name for name in decoded if name in options.columns)


def decoded_schema(options: ScanOptions) -> pa.Schema:
    """Returns the columns of the rows that a transform gets or, without a transform, of a table. If
    topics have formats of their own, a decoded column has the fields of all topics. They are null
    in rows of topics that lack them.

    Raises:
        InvalidOptionError: A field has different types in two topics.
    """
    topics = dict.fromkeys(form.topic for form in options.formats)
    schemas = {
        topic: read_schema(options.columns, [f for f in options.formats if f.topic == topic])
        for topic in topics
    }
    if not schemas:
        return read_schema(options.columns)
    (_, united), *others = schemas.items()
    for name in typed_columns(options):
        kind = united.field(name).type
        for topic, schema in others:
            try:
                kind = _united(kind, schema.field(name).type, name, _Sides("", "", relaxes=True))
            except _ContradictionError:
                raise _topics_error(name, schemas, topic) from None
        united = united.set(united.get_field_index(name), pa.field(name, kind))
    return united


def _topics_error(name: str, schemas: Mapping[str, pa.Schema], topic: str) -> InvalidOptionError:
    """Returns the error for a decoded column of `topic` that contradicts another topic."""
    texts = []
    for other, schema in schemas.items():
        sides = _Sides(f"topic {other}", f"topic {topic}", relaxes=True)
        try:
            _united(schema.field(name).type, schemas[topic].field(name).type, name, sides)
        except _ContradictionError as error:
            texts.append(f"topics {other} and {topic} cannot be in one table: {error}")
    return InvalidOptionError(
        f"{texts[0]}. Use the same type in '{name}.schema' of both, or {TABLE_PER_TOPIC}"
    )


def _check_writable(path: str, kind: pa.DataType, settings: ExportSettings) -> None:
    """Raises `InvalidOptionError` if a table cannot store a decoded column. Called before any
    record is read.
    """
    advice = f"drop it with option '{path.partition('.')[0]}.columns', or export bytes"
    if settings.on_new_fields == ADD:  # refuses this option
        advice = (
            "set on_new_fields='warn' to export without new fields; if the field is in option"
            f" '{path}.schema', remove it there"
        )
    for inner, inner_kind in _nested_types(path, kind):
        reason = type_fault(inner_kind, settings.table_format)
        if pa.types.is_null(inner_kind):
            reason = "is always null"
        if reason:
            raise InvalidOptionError(f"{inner} {reason}, so a table cannot store it: {advice}")
        for field in inner_kind if pa.types.is_struct(inner_kind) else ():
            if not _NAME.fullmatch(field.name):
                raise InvalidOptionError(
                    f"a field of {inner} has the name {field.name!r}, and names in tables must"
                    f" not contain {_NOT_IN_NAMES}: {advice}"
                )


def _check_types(schema: pa.Schema, table_format: str) -> None:
    """Raises `ExportError` if a table cannot store a column unchanged."""
    if fault := _names_fault(schema.names, table_format):
        raise ExportError(f"the rows have {fault}: rename one of them in the transform")
    for field in schema:
        for path, kind in _nested_types(field.name, field.type):
            if reason := type_fault(kind, table_format):
                raise ExportError(
                    f"column {path} {reason}: cast it to another type in the transform, or drop it"
                )


def _nested_types(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yields `path` and `kind`, and then recursively the path and type of everything inside the
    type.
    """
    yield path, kind
    if isinstance(kind, pa.BaseExtensionType):
        yield from _nested_types(path, kind.storage_type)
        return
    if pa.types.is_dictionary(kind):
        yield from _nested_types(path, kind.value_type)
    for number in range(kind.num_fields):
        field = kind.field(number)
        yield from _nested_types(f"{path}.{field.name}", field.type)


def type_fault(kind: pa.DataType, table_format: str) -> str | None:
    """Returns the reason why a table cannot store a type. Returns `None` if the table can store it.
    Does not check the types of fields and items inside the type.

    Files are written without an Arrow schema, so a duration would become a number without a unit.
    The libraries of Delta and Iceberg reject some types only after all rows were written, and they
    read unsigned numbers as signed numbers.
    """
    if fault := _parquet_fault(kind):
        return fault
    if pa.types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        if fault := _names_fault(names, table_format):
            return f"has {fault}"
    if table_format == DELTA:
        return _delta_fault(kind) or _table_fault(kind, DELTA.capitalize())
    if table_format == ICEBERG:
        return _iceberg_fault(kind) or _table_fault(kind, ICEBERG.capitalize())
    return None


def _names_fault(names: Sequence[str], table_format: str) -> str | None:
    """Returns a text about two of the `names` that a table cannot distinguish. Returns `None` if it
    can distinguish all of them. `names` are column names, or the field names of a struct.
    """
    before: dict[str, str] = {}
    for name in names:
        same = name.lower() if table_format == DELTA else name
        if same not in before:
            before[same] = name
        elif before[same] == name:
            return f"several columns or fields named {name!r}"
        else:
            return f"the names {before[same]!r} and {name!r}, which are equal for Delta"
    return None


def _parquet_fault(kind: pa.DataType) -> str | None:
    if pa.types.is_duration(kind):
        return f"is a duration ({kind}), and Parquet has none"
    if pa.types.is_interval(kind) or pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return f"is {kind}, and Parquet has no such type"
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return "is a struct without fields"
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        return f"is {kind}, and Parquet has scales from 0 to the precision only"
    return None


def _table_fault(kind: pa.DataType, name: str) -> str | None:
    """Returns the reason why a table cannot store a type that neither Delta nor Iceberg supports.
    Returns `None` for other types. The reason calls the table format `name`.
    """
    if pa.types.is_unsigned_integer(kind):
        return f"is {kind}, and tables have signed numbers only"
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return f"is {kind}, and {name} tables have microseconds only"
    is_other_decimal = pa.types.is_decimal(kind) and not pa.types.is_decimal128(kind)
    if is_other_decimal or pa.types.is_float16(kind):
        return f"is {kind}, and {name} has no such type"
    return None


def _delta_fault(kind: pa.DataType) -> str | None:
    if pa.types.is_time(kind):
        return f"is {kind}, and Delta has no times of day"
    if pa.types.is_timestamp(kind):
        if kind.unit == "s":
            return f"is {kind}, and Delta tables need microseconds"
        if kind.tz not in (None, "UTC", "utc"):
            return f"is {kind}, and Delta tables have the time zone UTC only"
    if isinstance(kind, pa.BaseExtensionType) and not pa.types.is_string(kind.storage_type):
        return f"is {kind}, and Delta has no such type"
    return None


def _iceberg_fault(kind: pa.DataType) -> str | None:
    if pa.types.is_time(kind) and kind.unit != "us":
        return f"is {kind}, and Iceberg tables need time64 in microseconds"
    if pa.types.is_date64(kind):
        return f"is {kind}, and Iceberg tables need date32"
    if pa.types.is_timestamp(kind) and kind.tz not in (None, "UTC", "+00:00", "Etc/UTC", "Z"):
        return f"is {kind}, and Iceberg tables have the time zone UTC only"
    if pa.types.is_null(kind):
        return "is always null"
    is_extension = isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType)
    if is_extension or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return f"is {kind}, and Iceberg has no such type"
    return None


def schema_without_rows(options: ScanOptions, settings: ExportSettings) -> pa.Schema | None:
    """Returns the columns that an export would write. Returns `None` if they cannot be determined
    without a row.

    A `RowTransform` is called with zero rows. If it fails or returns a column of nulls only, the
    result is `None`. A transform that is a function is not called, because it may return other
    types for zero rows than for real rows.
    """
    if settings.compaction is not None:
        return compacted_schema(options.columns)
    schema = decoded_schema(options)
    transform = settings.transform
    if transform is None:
        return schema
    if isinstance(transform, RowTransform):
        empty = pa.RecordBatch.from_pylist([], schema)
        try:
            rows = transform.apply(empty).rows
        except TieredKafkaError:
            raise
        except Exception:  # noqa: BLE001  # the first row shows the columns
            return None
        if rows is not None and all(_is_typed(field.type) for field in rows.schema):
            return rows.schema.remove_metadata()
    return None


def check_columns(schema: pa.Schema, settings: ExportSettings, values_in: ValuesIn) -> None:
    """Checks that the columns of the rows fit the settings of the export.

    Raises:
        InvalidOptionError: The rows cannot be sorted or partitioned according to the settings.
        ExportError: The table cannot store the type of a column.
    """
    _check_types(schema, settings.table_format)
    kinds = {name: type_at(schema, name) for name in settings.sort_within_files}
    if missing := [name for name, kind in kinds.items() if kind is None]:
        raise InvalidOptionError(
            f"sort_within_files names {', '.join(sorted(missing))}, which the rows do not have:"
            " use columns of the rows"
        )
    for name, kind in kinds.items():
        if pa.types.is_nested(kind):
            raise InvalidOptionError(
                f"sort_within_files names {name}, which is {kind}: name a field of it"
            )
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
    for field in settings.partition_by:
        field.values(empty)
    names = {field.name for field in settings.partition_by}
    if values_in != "file" and names >= set(schema.names):
        raise InvalidOptionError(
            "partition_by contains all columns of the rows, so files would have no column: remove"
            " one of them"
        )


def _is_typed(kind: pa.DataType) -> bool:
    """Returns False if the type is the null type, or contains the null type at any depth."""
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return not pa.types.is_null(kind) and all(_is_typed(inner_type) for inner_type in inner)


_MAX_SHOWN: Final = 4000
_TEXTS: Final = (pa.types.is_large_string, pa.types.is_string_view)
_BYTES: Final = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)


class _ContradictionError(Exception):
    """Two types cannot be merged."""


@dataclass(frozen=True, slots=True)
class _Sides:
    """Owners of two types that are merged, for messages.

    Attributes:
        relaxes: True to make a field nullable if it is nullable or missing on one side. False if
            the type of the first side cannot change.
    """

    first: str
    other: str
    relaxes: bool


_TABLE_AND_ROWS: Final = _Sides("the table", "the rows", relaxes=False)


def unite_schemas(
    table: pa.Schema, rows: pa.Schema, typed: Iterable[str], uri: str, *, evolves: bool
) -> pa.Schema:
    """Merges the columns of a table with the columns of new rows.

    Only the columns in `typed` are compared and merged. If `evolves` is True, the table or the rows
    may lack fields.

    Returns:
        The columns of the rows. The columns in `typed` have all fields of the table and of the
        rows.

    Raises:
        SchemaChangedError: A type differs, or the fields differ and `evolves` is False.
    """
    for name in typed:
        if name not in table.names or name not in rows.names:
            continue
        in_table, in_rows = table.field(name).type, rows.field(name).type
        try:
            kind = _united(in_table, in_rows, name)
        except _ContradictionError as error:
            raise _changed(name, in_table, in_rows, str(error), uri) from None
        if not evolves and not (
            _has_same_fields(kind, in_table) and _has_same_fields(kind, in_rows)
        ):
            raise _other_fields(name, kind, in_table, in_rows, uri)
        rows = rows.set(rows.get_field_index(name), rows.field(name).with_type(kind))
    return rows


def _other_fields(
    name: str, united: pa.DataType, in_table: pa.DataType, in_rows: pa.DataType, uri: str
) -> SchemaChangedError:
    """Returns the error for fields that only the table or only the rows have."""
    texts = []
    if not _has_same_fields(united, in_rows):
        lacking = ", ".join(_lacking(united, in_rows, name)) or "nested fields"
        texts.append(
            f"the rows lack {lacking}, which the table has. Add them to '{name}.schema', or set"
            " on_new_fields='add' as in the run that added them. With schema_evolution='add' they"
            " would be null in the new rows"
        )
    if not _has_same_fields(united, in_table):
        lacking = ", ".join(_lacking(united, in_table, name)) or "nested fields"
        texts.append(
            f"the table lacks {lacking}: schema_evolution='add' adds the new fields to the table."
            " Otherwise read with the schema of the first run, or export into another table"
        )
    return SchemaChangedError(f"the fields of column {name} changed: {'. '.join(texts)}", uri=uri)


def _lacking(whole: pa.DataType, part: pa.DataType, name: str) -> Iterator[str]:
    """Yields the paths of the fields of `whole` that `part` lacks. Does not look into lists."""
    if not (pa.types.is_struct(whole) and pa.types.is_struct(part)):
        return
    for field in whole:
        index = part.get_field_index(field.name)
        if index < 0:
            yield f"{name}.{field.name}"
        else:
            yield from _lacking(field.type, part.field(index).type, f"{name}.{field.name}")


def lacks_fields(table: pa.Schema, columns: pa.Schema, typed: Iterable[str]) -> bool:
    """Returns True if `columns` have a field that the table lacks. `columns` are a result of
    `unite_schemas`. Only the columns in `typed` are compared.
    """
    types = [
        (table.field(name).type, columns.field(name).type, name)
        for name in typed
        if name in table.names and name in columns.names
    ]
    return any(
        not _has_same_fields(_united(in_table, in_rows, name), in_table)
        for in_table, in_rows, name in types
    )


def conform_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Casts each column of `batch` to its type in `schema`. Fields of structs that the rows lack
    become null.
    """
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _has_same_fields(first: pa.DataType, other: pa.DataType) -> bool:
    """Returns True if two types have the same fields at every depth, in any order. Does not compare
    other properties, because `unite_schemas` has already merged the types.
    """
    if pa.types.is_struct(first):
        return {field.name for field in first} == {field.name for field in other} and all(
            _has_same_fields(field.type, other.field(field.name).type) for field in first
        )
    if pa.types.is_map(first):
        return _has_same_fields(first.item_type, other.item_type)
    if _is_list(first):
        return _has_same_fields(first.value_type, other.value_type)
    return True


def _united(
    in_table: pa.DataType, in_rows: pa.DataType, path: str, sides: _Sides = _TABLE_AND_ROWS
) -> pa.DataType:
    if pa.types.is_struct(in_table) and pa.types.is_struct(in_rows):
        return _united_struct(in_table, in_rows, path, sides)
    if pa.types.is_map(in_table) and pa.types.is_map(in_rows):
        key = _united(in_table.key_type, in_rows.key_type, f"{path}.key", sides)
        item = _field(in_table.item_field, in_rows.item_field, f"{path}.value", sides)
        return pa.map_(key, item)
    if _is_list(in_table) and _is_list(in_rows):
        element = _field(in_table.value_field, in_rows.value_field, f"{path}.element", sides)
        return pa.list_(element.with_name(in_rows.value_field.name))
    if _plain(in_table) != _plain(in_rows):
        raise _ContradictionError(
            f"{path} is {in_table} in {sides.first} and {in_rows} in {sides.other}"
        )
    return _plain(in_rows)


def _united_struct(
    in_table: pa.DataType, in_rows: pa.DataType, path: str, sides: _Sides
) -> pa.DataType:
    existing = {field.name: field for field in in_table}
    new = {field.name: field for field in in_rows}
    by_case = {name.lower(): name for name in existing}
    fields = [
        _field(field, new[name], f"{path}.{name}", sides)
        if name in new
        else field.with_type(canonical_type(field.type)).with_nullable(
            sides.relaxes or field.nullable
        )
        for name, field in existing.items()
    ]
    for name, field in new.items():
        if name in existing:
            continue
        if (other := by_case.setdefault(name.lower(), name)) != name:
            raise _ContradictionError(f"{path}.{name} and {path}.{other} differ only in case")
        fields.append(field.with_nullable(True))
    missing = [name for name, field in existing.items() if name not in new and not field.nullable]
    if missing and not sides.relaxes:
        raise _ContradictionError(
            f"{path}.{missing[0]} must not be null in the table, but the rows lack it"
        )
    return pa.struct(fields)


def _field(in_table: pa.Field, in_rows: pa.Field, path: str, sides: _Sides) -> pa.Field:
    if in_rows.nullable and not (in_table.nullable or sides.relaxes):
        raise _ContradictionError(
            f"{path} must not be null in the table, but may be null in the rows"
        )
    kind = _united(in_table.type, in_rows.type, path, sides)
    return pa.field(in_rows.name, kind, nullable=in_table.nullable or in_rows.nullable)


def canonical_type(kind: pa.DataType) -> pa.DataType:
    """Returns a type with `large_string` replaced by `string`, and other large types likewise.
    Decoders return the small types, but libraries of table formats return the large ones.
    """
    return _united(kind, kind, "")


def _plain(kind: pa.DataType) -> pa.DataType:
    if any(is_it(kind) for is_it in _TEXTS):
        return pa.string()
    if any(is_it(kind) for is_it in _BYTES):
        return pa.binary()
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _changed(
    name: str, in_table: pa.DataType, in_rows: pa.DataType, reason: str, uri: str
) -> SchemaChangedError:
    texts = [
        text if len(text := str(kind)) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
        for kind in (canonical_type(in_table), in_rows)
    ]
    return SchemaChangedError(
        f"column {name} of the rows differs from that of the table: {reason}. The table has"
        f" {texts[0]}, the rows have {texts[1]}. Read with the schema of the first run, or export"
        f" into another table; if the type differs among records, set '{name}.schema' to a schema"
        " that fits all of them",
        uri=uri,
    )
