"""Options `key.…` and `value.…`: the formats of keys and values, named as in Flink's Kafka tables.

The reader's schema is determined when options are parsed. Writers' schemas are requested when
values are decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kts_source.columns import ERROR_COLUMNS, RAW_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import Option, parse_choice, parse_names, parse_text
from kts_source.options.schema_options import (
    ACCESS_NAMES,
    URL,
    USE_ID,
    ReaderSchema,
    ddl_text,
    file_content,
    known_subject,
    latest_of,
    registry_options,
    registry_place,
    schema_text,
)
from kts_source.predicate.model import find_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from kts_source.cache.caches import CacheSettings
    from kts_source.options.selection import Selection
    from kts_source.predicate.model import FindField
    from kts_source.registry.client import RegistryPlace
    from segment_format.values.avro.schema import Schema


RAW: Final = "raw"
UTF8: Final = "utf8"
AVRO: Final = "avro"
AVRO_CONFLUENT: Final = "avro-confluent"
AVRO_GLUE: Final = "avro-glue"
AVRO_APICURIO: Final = "avro-apicurio"
JSON: Final = "json"
PROTOBUF: Final = "protobuf"
JSON_CONFLUENT: Final = "json-confluent"
PROTOBUF_CONFLUENT: Final = "protobuf-confluent"
FAILFAST: Final = "failfast"
PERMISSIVE: Final = "permissive"
DROP_MALFORMED: Final = "dropmalformed"
_MODES: Final = (FAILFAST, PERMISSIVE, DROP_MALFORMED)


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """Describes how column `key` or `value` is decoded.

    Attributes:
        column: `key` or `value`.
        format: A format other than `RAW`.
        mode: Handling of rows whose key or value cannot be decoded.
        schema: The reader's schema as text. It is empty for `UTF8` and Protobuf, and for JSON whose
            type is not inferred yet.
        descriptors: With Protobuf, a `FileDescriptorSet`.
        message: With Protobuf, the full name of the message.
        fields: Paths of the fields to decode; `None` for all fields.
        references: Avro schemas that `schema` refers to, dependencies first.
        registry: Location of writers' schemas, or `None`.
        topic: The topic whose records have this format; empty for all topics.
    """

    column: str
    format: str
    mode: str
    schema: str = field(default="", repr=False)
    descriptors: bytes = field(default=b"", repr=False)
    message: str = ""
    fields: tuple[str, ...] | None = None
    references: tuple[str, ...] = field(default=(), repr=False)
    registry: RegistryPlace | None = None
    topic: str = ""

    def is_of(self, topic: str) -> bool:
        """Returns True if records of `topic` have this format."""
        return self.topic in ("", topic)

    @property
    def label(self) -> str:
        """Distinguishes the formats of a scan: the column, with the topic if it has one."""
        return f"{self.topic}:{self.column}" if self.topic else self.column

    @property
    def error_column(self) -> str | None:
        """Name of the column with decoding errors; `None` if the mode is not PERMISSIVE."""
        return ERROR_COLUMNS[self.column] if self.mode == PERMISSIVE else None

    @property
    def raw_column(self) -> str:
        """Name of the column with the encoded bytes."""
        return RAW_COLUMNS[self.column]

    @property
    def needs_type(self) -> bool:
        """True if the type must be inferred from a sample; see `planning.infer_types`."""
        return self.format in (JSON, JSON_CONFLUENT) and not self.schema

    @property
    def reader_schema(self) -> Schema:
        """The parsed Avro schema; raises AvroSchemaError if it is invalid."""
        from segment_format.values.avro.schema import parse_avro

        return parse_avro(self.schema, self.references)

    @property
    def type(self) -> pa.DataType:
        """Type of the decoded column.

        Raises:
            ValueError: The schema is invalid, or lacks one of `fields`.
        """
        return _FORMATS[self.format].find_type(self)


def _text_type(_: ColumnFormat) -> pa.DataType:
    import pyarrow as pa

    return pa.string()


def _json_type(form: ColumnFormat) -> pa.DataType:
    from segment_format.values.json.ddl import parse_ddl
    from segment_format.values.json.program import compiled

    if form.needs_type:
        raise ValueError(
            f"'{form.column}.format' = {form.format} needs '{form.column}.schema': only scans,"
            " streams and searches infer the type from a sample"
        )
    from segment_format.values.json.program import projected

    kind = parse_ddl(form.schema)
    return compiled(kind if form.fields is None else projected(kind, form.fields)).root.type


def _avro_type(form: ColumnFormat) -> pa.DataType:
    from segment_format.values.avro.columns import columns_of as avro_columns
    from segment_format.values.avro.columns import projected
    from segment_format.values.avro.program import check_defaults

    schema = form.reader_schema
    check_defaults(schema)  # even if no known writer needs them yet
    return avro_columns(schema if form.fields is None else projected(schema, form.fields)).type


def _protobuf_type(form: ColumnFormat) -> pa.DataType:
    from segment_format.values.protobuf.program import compile_message, selection_of
    from segment_format.values.protobuf.schema import read_schema as read_descriptors

    selection = None if form.fields is None else selection_of(form.fields)
    return compile_message(read_descriptors(form.descriptors), form.message, selection).root.type


@dataclass(frozen=True, slots=True)
class _Format:
    """A format of keys and values.

    Attributes:
        find_type: Returns the type of the column that the decoder produces. Does not load the
            compiler of the decoder's kernels.
        options: Options of the column that the format uses.
        required: Options that must be set. `schema` and `message` may be missing if a registry
            supplies the latest schema.
        registry_kind: Name of the kind of schema in registries; empty if the latest schema is never
            requested.
    """

    find_type: Callable[[ColumnFormat], pa.DataType]
    options: tuple[str, ...]
    required: tuple[str, ...] = ()
    registry_kind: str = ""


_REGISTRY: Final = ("subject", URL, *ACCESS_NAMES)
_TYPED: Final = ("mode", "schema", "columns")
_FORMATS: Final[Mapping[str, _Format]] = {
    UTF8: _Format(_text_type, ("mode",)),
    JSON: _Format(_json_type, _TYPED),
    JSON_CONFLUENT: _Format(_json_type, (*_TYPED, *_REGISTRY), (), "JSON"),
    AVRO: _Format(_avro_type, _TYPED, ("schema",)),
    AVRO_CONFLUENT: _Format(_avro_type, (*_TYPED, *_REGISTRY), ("schema", URL), "AVRO"),
    AVRO_GLUE: _Format(_avro_type, (*_TYPED, URL), ("schema", URL)),
    AVRO_APICURIO: _Format(_avro_type, (*_TYPED, URL, USE_ID, *ACCESS_NAMES), ("schema", URL)),
    PROTOBUF: _Format(_protobuf_type, (*_TYPED, "message"), ("schema", "message")),
    PROTOBUF_CONFLUENT: _Format(
        _protobuf_type, (*_TYPED, "message", *_REGISTRY), ("schema", "message"), "PROTOBUF"
    ),
}
_FORMAT_OPTIONS: Final = sorted({name for form in _FORMATS.values() for name in form.options})


FORMAT_COLUMNS: Final = ("key", "value")
"""Columns that can be decoded."""


def usable_options(form: str) -> tuple[str, ...]:
    """Returns the names of the options that a format of keys or values uses, without the name of
    the column. `format` is always one of them.
    """
    found = _FORMATS.get(form.strip().lower())
    return ("format", *(() if found is None else found.options))


def column_types(formats: Iterable[ColumnFormat]) -> dict[str, pa.DataType]:
    """Returns the types of decoded columns, and of the columns with their encoded bytes and
    decoding errors, by column name.
    """
    import pyarrow as pa

    types: dict[str, pa.DataType] = {}
    for form in formats:
        types[form.column] = form.type
        types[form.raw_column] = pa.binary()
        if form.error_column is not None:
            types[form.error_column] = pa.string()
    return types


def error_columns(formats: Iterable[ColumnFormat]) -> tuple[str, ...]:
    """Returns the names of the columns with decoding errors."""
    return tuple(form.error_column for form in formats if form.error_column is not None)


def further_columns(formats: Iterable[ColumnFormat]) -> tuple[str, ...]:
    """Returns the names of the columns that decoding adds: encoded bytes and decoding errors."""
    formats = tuple(formats)
    return (*error_columns(formats), *(form.raw_column for form in formats))


def _options(column: str) -> Iterator[Option]:
    yield Option(
        f"{column}.format",
        partial(parse_choice, choices=(RAW, *_FORMATS)),
        f"Format of `{column}`: `raw` bytes, `utf8` text, `json`, `avro`, `protobuf`, or one of"
        " `json-confluent`, `avro-confluent`, `protobuf-confluent` (a zero byte and the id of the"
        " writer's schema first), `avro-glue` (AWS Glue's header), or `avro-apicurio` (the record's"
        " headers, or 8 bytes of an id, of Apicurio's serializers). All but `raw` return a typed"
        " column.",
        default=RAW,
    )
    yield Option(
        f"{column}.schema",
        parse_text,
        f"The reader's schema of `{column}`, or a file with it that the driver reads. With JSON, a"
        " DDL of Spark (`country string, amount bigint`) or a JSON Schema; default: inferred from a"
        " sample. With Avro, the schema in JSON; with `avro`, it is the writer's, too. With"
        " Protobuf, a file with a descriptor set, which"
        " `protoc --include_imports --descriptor_set_out` writes.",
    )
    yield Option(
        f"{column}.message",
        parse_text,
        "With Protobuf: the full name of the message, such as `shop.Order`.",
    )
    yield from registry_options(column)
    yield Option(
        f"{column}.subject",
        parse_text,
        f"With a registry: the subject of the `{column}`, such as `:.staging:orders-{column}` in a"
        f" context of the registry. Ids are looked up with it. Without `{column}.schema`, its"
        " latest version when the query is planned is the reader's schema. Default: the topic, if"
        f" there is only one, and `-{column}`.",
    )
    yield Option(
        f"{column}.columns",
        parse_names,
        "With formats that have a schema: only these fields, in the schema's order, such as"
        " `amount,user.id`; other fields are not decoded.",
    )
    yield Option(
        f"{column}.mode",
        partial(parse_choice, choices=_MODES),
        f"Handling of a `{column}` that cannot be decoded: `FAILFAST` fails the query and names it,"
        f" `PERMISSIVE` returns null and the reason in column `{ERROR_COLUMNS[column]}`,"
        " `DROPMALFORMED` drops the row and counts it.",
        default="FAILFAST",
    )


VALUE_OPTIONS: Final = (*_options("value"), *_options("key"))


def column_formats(
    values: Mapping[str, Any],
    set_options: Iterable[str],
    selection: Selection,
    cache: CacheSettings,
) -> tuple[ColumnFormat, ...]:
    """Returns the formats of the decoded columns, from the parsed options `values`. `set_options`
    are the names of the options that the user set, in lower case.

    Raises:
        InvalidOptionError: Options contradict each other, or a schema is missing or invalid.
        RegistryError: A registry that must supply the schema does not answer.
    """
    set_options = frozenset(set_options)
    formats = []
    for column in FORMAT_COLUMNS:
        form = values[f"{column}.format"]
        allowed = () if form == RAW else _FORMATS[form].options
        for name in _FORMAT_OPTIONS:
            if f"{column}.{name}" in set_options and name not in allowed:
                raise InvalidOptionError(
                    f"option '{column}.{name}' has no effect with '{column}.format' = {form}"
                )
        if form != RAW:
            formats.append(_column_format(column, form, values, selection, cache))
    return tuple(formats)


def _column_format(
    column: str, form: str, values: Mapping[str, Any], selection: Selection, cache: CacheSettings
) -> ColumnFormat:
    registry, subject = _registry(column, form, values, selection, cache)
    asks_registry = subject is not None and values[f"{column}.schema"] is None
    for name in _FORMATS[form].required:
        is_replaced = asks_registry and name in ("schema", "message")
        if values[f"{column}.{name}"] is None and not is_replaced:
            raise InvalidOptionError(
                f"option '{column}.format' = {form} needs option '{column}.{name}'"
            )
    mode = values[f"{column}.mode"]
    if form == UTF8:
        return ColumnFormat(column, form, mode)
    if asks_registry:
        assert registry is not None
        assert subject is not None
        schema = latest_of(column, _FORMATS[form].registry_kind, registry, subject)
    else:
        schema = _given_schema(column, form, values)
    decoded = ColumnFormat(
        column,
        form,
        mode,
        schema=schema.schema,
        references=schema.references,
        descriptors=schema.descriptors,
        message=values[f"{column}.message"] or schema.message,
        fields=values[f"{column}.columns"],
        # Writers' schemas are not needed to decode JSON.
        registry=None if form in (JSON, JSON_CONFLUENT) else registry,
    )
    has_schema = asks_registry or values[f"{column}.schema"] is not None
    if decoded.needs_type and not has_schema:
        return decoded  # its type is inferred from a sample
    try:
        _ = decoded.type
    except ValueError as error:
        wrong = [name for name in ("schema", "message", "columns") if values[f"{column}.{name}"]]
        named = " or ".join(f"'{column}.{name}'" for name in wrong or ["subject"])
        raise InvalidOptionError(f"option {named}: {error}") from None
    return decoded


def _registry(
    column: str, form: str, values: Mapping[str, Any], selection: Selection, cache: CacheSettings
) -> tuple[RegistryPlace | None, str | None]:
    """Returns two values: the registry or folder with the schemas of a column (`None` if no option
    names a location), and the subject (`None` if the format or the location has no subjects).
    """
    registry = registry_place(column, values, cache)
    if form == AVRO_GLUE and registry is not None and registry.is_url:
        raise InvalidOptionError(
            f"option '{column}.{URL}' is a URL, but {form} reads schemas only from a folder: set it"
            " to the path of a folder"
        )
    if form == AVRO_APICURIO and registry is not None:
        registry = replace(registry, ids=values[f"{column}.{USE_ID}"])
    requested = values[f"{column}.subject"]
    if not _FORMATS[form].registry_kind or registry is None or not registry.is_url:
        if requested is not None:
            raise InvalidOptionError(
                f"option '{column}.subject' needs a registry's URL in '{column}.{URL}'"
            )
        return registry, None
    if requested is not None and form == JSON_CONFLUENT and values[f"{column}.schema"] is not None:
        raise InvalidOptionError(
            f"option '{column}.subject' has no effect with {form} and '{column}.schema': the"
            " registry is not used"
        )
    subject = known_subject(column, requested, selection)
    return replace(registry, subject=subject), subject


def _given_schema(column: str, form: str, values: Mapping[str, Any]) -> ReaderSchema:
    name = f"{column}.schema"
    if values[name] is None:
        return ReaderSchema()
    if form in (PROTOBUF, PROTOBUF_CONFLUENT):
        return ReaderSchema(
            descriptors=file_content(name, values[name], "not a file that can be read")
        )
    read_text = ddl_text if form in (JSON, JSON_CONFLUENT) else schema_text
    return ReaderSchema(schema=read_text(name, values[name]))


def fields_of_formats(formats: Iterable[ColumnFormat]) -> Mapping[str, FindField]:
    """Returns a function for each decoded column that finds a field by its path. Columns of format
    `UTF8` are not included, because they have no fields.
    """
    return {form.column: partial(_field, form) for form in formats if form.format != UTF8}


def only_fields(form: ColumnFormat, paths: Iterable[tuple[str, ...]]) -> ColumnFormat:
    """Returns the format of a column, reduced to the fields in `paths`. The names in `paths` must
    be spelled exactly as in the schema.
    """
    needed = {_selectable_prefix(form, path) for path in paths}
    fields = tuple(sorted(".".join(path) for path in needed))
    return replace(form, fields=None if () in needed else fields)


def _field(form: ColumnFormat, path: tuple[str, ...]) -> tuple[tuple[str, ...], pa.DataType]:
    if form.needs_type:
        raise ValueError(
            f"needs option '{form.column}.schema', because the type of a field in a condition is"
            " not inferred from a sample: `kts schema` prints the schema of a sample"
        )
    try:
        all_fields = replace(form, fields=None).type
    except ValueError:
        # Other fields may have no Arrow type, for example recursive fields.
        if not path:
            raise
        all_fields = replace(form, fields=(".".join(path),)).type
    return find_field(all_fields, path)


def _selectable_prefix(form: ColumnFormat, path: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the longest prefix of a field's path that option `columns` can name; empty if there
    is none. The option cannot name members of unions, and field names that contain dots may be
    ambiguous.
    """
    for length in range(len(path), 0, -1):
        prefix = path[:length]
        try:
            exact, _ = find_field(replace(form, fields=(".".join(prefix),)).type, path)
        except ValueError:
            continue
        if exact == path:
            return prefix
    return ()
