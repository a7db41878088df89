"""How keys and values are decoded: options `key.…` and `value.…`, named as those of Flink's Kafka
tables.

The schema of the reader is part of the options, so it is fixed when they are parsed and travels
with them; schemas of writers are looked up where values are read.

Fields of decoded keys and values that conditions name, wanted in the table or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kts_source.columns import ERROR_COLUMNS, RAW_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import Option, parse_choice, parse_names, parse_text
from kts_source.options.registry_options import (
    FURTHER,
    URL,
    USE_ID,
    registry_options,
    registry_place,
)
from kts_source.options.schema_options import (
    ReaderSchema,
    ddl_text,
    file_content,
    known_subject,
    latest_of,
    schema_text,
    subject_of,
)
from kts_source.predicate.model import find_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from kts_source.cache.caches import CacheSettings
    from kts_source.options.selection import Selection
    from kts_source.predicate.model import FindField
    from kts_source.registry.by_id import RegistryPlace
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
_JSON: Final = (JSON, JSON_CONFLUENT)
_ALLOWED: Final = {
    RAW: (),
    UTF8: ("mode",),
    JSON: ("mode", "schema", "columns"),
    JSON_CONFLUENT: ("mode", "schema", "columns", "subject", URL, *FURTHER),
    AVRO: ("mode", "schema", "columns"),
    AVRO_CONFLUENT: ("mode", "schema", "columns", "subject", URL, *FURTHER),
    AVRO_GLUE: ("mode", "schema", "columns", URL),
    AVRO_APICURIO: ("mode", "schema", "columns", URL, USE_ID, *FURTHER),
    PROTOBUF: ("mode", "schema", "message", "columns"),
    PROTOBUF_CONFLUENT: ("mode", "schema", "message", "columns", "subject", URL, *FURTHER),
}
"""Format -> the column's options that mean something with it."""
_KINDS: Final = {AVRO_CONFLUENT: "AVRO", JSON_CONFLUENT: "JSON", PROTOBUF_CONFLUENT: "PROTOBUF"}
"""What registries call the schemas of a format."""
_EVERY: Final = frozenset(name for names in _ALLOWED.values() for name in names)

FAILFAST: Final = "failfast"
PERMISSIVE: Final = "permissive"
DROP_MALFORMED: Final = "dropmalformed"
_MODES: Final = (FAILFAST, PERMISSIVE, DROP_MALFORMED)


@dataclass(frozen=True, slots=True)
class ColumnFormat:
    """How one of the columns `key` and `value` is decoded.

    Attributes:
        column: `key` or `value`.
        format: One of those that are not `RAW`.
        mode: What becomes of a row whose column cannot be decoded.
        schema: The reader's schema as text; empty for `UTF8` and Protobuf, and for JSON as long as
            nothing is known of it.
        descriptors: Those of Protobuf, a `FileDescriptorSet`.
        message: Full name of its message.
        fields: Paths of the fields that are wanted; `None` = all.
        references: Schemas of Avro that `schema` names, dependencies first.
        registry: Where schemas of writers are; `None` where none is asked.
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

    @property
    def error_column(self) -> str | None:
        """The column that says why this one is null; `None` where there is none."""
        return ERROR_COLUMNS[self.column] if self.mode == PERMISSIVE else None

    @property
    def raw_column(self) -> str:
        """The column that has the bytes."""
        return RAW_COLUMNS[self.column]

    @property
    def needs_type(self) -> bool:
        """Whether a sample has to tell what it is, see `planning.infer_types`."""
        return self.format in _JSON and not self.schema

    @property
    def reader_schema(self) -> Schema:
        """The schema of Avro, parsed.

        Raises:
            AvroSchemaError: It is not one.
        """
        from segment_format.values.avro.schema import parse_avro

        return parse_avro(self.schema, self.references)

    @property
    def type(self) -> pa.DataType:
        """Of the decoded column.

        Raises:
            ValueError: The schema is not one, or lacks a field that is wanted.
        """
        return _TYPES[self.format](self)


def _text_type(_: ColumnFormat) -> pa.DataType:
    import pyarrow as pa

    return pa.string()


def _json_type(form: ColumnFormat) -> pa.DataType:
    from segment_format.values.json.ddl import parse_ddl
    from segment_format.values.json.program import compiled

    if form.needs_type:
        raise ValueError(
            f"'{form.column}.format' = {form.format} needs '{form.column}.schema' here"
        )
    from segment_format.values.json.program import projected

    kind = parse_ddl(form.schema)
    return compiled(kind if form.fields is None else projected(kind, form.fields)).root.type


def _avro_type(form: ColumnFormat) -> pa.DataType:
    from segment_format.values.avro.columns import columns_of as avro_columns
    from segment_format.values.avro.columns import projected
    from segment_format.values.avro.program import check_defaults

    schema = form.reader_schema
    check_defaults(schema)  # where no writer is known yet that needs them
    return avro_columns(schema if form.fields is None else projected(schema, form.fields)).type


def _protobuf_type(form: ColumnFormat) -> pa.DataType:
    from segment_format.values.protobuf.program import compile_message, selection_of
    from segment_format.values.protobuf.schema import read_schema as read_descriptors

    selection = None if form.fields is None else selection_of(form.fields)
    return compile_message(read_descriptors(form.descriptors), form.message, selection).root.type


# As the decoders find them, but without the compiler: options are parsed where nothing is decoded.
_TYPES: Final[dict[str, Callable[[ColumnFormat], pa.DataType]]] = {
    UTF8: _text_type,
    JSON: _json_type,
    JSON_CONFLUENT: _json_type,
    AVRO: _avro_type,
    AVRO_CONFLUENT: _avro_type,
    AVRO_GLUE: _avro_type,
    AVRO_APICURIO: _avro_type,
    PROTOBUF: _protobuf_type,
    PROTOBUF_CONFLUENT: _protobuf_type,
}


def column_types(formats: Iterable[ColumnFormat]) -> dict[str, pa.DataType]:
    """The types of the columns that are decoded, of their bytes, and of what says why not."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {}
    for one in formats:
        types[one.column] = one.type
        types[one.raw_column] = pa.binary()
        if one.error_column is not None:
            types[one.error_column] = pa.string()
    return types


def error_columns(formats: Iterable[ColumnFormat]) -> tuple[str, ...]:
    """Names of the columns that say why others are null."""
    return tuple(one.error_column for one in formats if one.error_column is not None)


def further_columns(formats: Iterable[ColumnFormat]) -> tuple[str, ...]:
    """Names of the columns that are there beside those of the table."""
    found = tuple(formats)
    return (*error_columns(found), *(one.raw_column for one in found))


def _parse_format(name: str, text: str) -> str:
    return parse_choice(name, text, choices=tuple(_ALLOWED))


def _parse_mode(name: str, text: str) -> str:
    return parse_choice(name, text, choices=_MODES)


def _options(column: str) -> Iterator[Option]:
    yield Option(
        f"{column}.format",
        _parse_format,
        f"What `{column}` holds: `raw` bytes, `utf8` text, `json`, `avro`, `protobuf`, or one of"
        " `json-confluent`, `avro-confluent`, `protobuf-confluent` (a zero byte and the id of the"
        " writer's schema in front), `avro-glue` (AWS Glue's header), or `avro-apicurio` (the"
        " record's headers, or 8 bytes of an id, of Apicurio's serializers). All but `raw` make it"
        " a typed column.",
        default=RAW,
    )
    yield Option(
        f"{column}.schema",
        parse_text,
        f"What `{column}` is read as, or a file of it that the driver reads. With JSON, a DDL as"
        " Spark writes it (`country string, amount bigint`) or a JSON Schema; without one, a sample"
        " tells it. With Avro, the schema in JSON; with `avro`, it is the writer's, too. With"
        " Protobuf, a file of a descriptor set, which"
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
        " latest version is read, as it is when the query is planned. Default: the topic, if there"
        f" is only one, and `-{column}`.",
    )
    yield Option(
        f"{column}.columns",
        parse_names,
        "With formats that have a schema: only these fields, in the schema's order, such as"
        " `amount,user.id`; the others are stepped over.",
    )
    yield Option(
        f"{column}.mode",
        _parse_mode,
        f"What a `{column}` does that cannot be decoded: `FAILFAST` fails the query and names it,"
        f" `PERMISSIVE` gives null and the reason in column `{ERROR_COLUMNS[column]}`,"
        " `DROPMALFORMED` leaves the row out and counts it.",
        default="FAILFAST",
    )


VALUE_OPTIONS: Final = (*_options("value"), *_options("key"))


def column_formats(
    values: Mapping[str, Any], given: Iterable[str], selection: Selection, cache: CacheSettings
) -> tuple[ColumnFormat, ...]:
    """The columns that are decoded.

    Args:
        values: Parsed options by name.
        given: Names of the options that the user gave, in lower case.
        selection: Which topics are read.
        cache: What is kept on this machine's disk.

    Raises:
        InvalidOptionError: Options that contradict each other, or no schema where one is needed.
        RegistryError: A registry that has to say the schema does not answer.
    """
    return tuple(
        found
        for column in ("key", "value")
        if (found := _column_format(column, values, frozenset(given), selection, cache)) is not None
    )


def _column_format(
    column: str,
    values: Mapping[str, Any],
    given: frozenset[str],
    selection: Selection,
    cache: CacheSettings,
) -> ColumnFormat | None:
    form = values[f"{column}.format"]
    allowed = _ALLOWED[form]
    for name in sorted(_EVERY):
        if f"{column}.{name}" in given and name not in allowed:
            raise InvalidOptionError(
                f"option '{column}.{name}' means nothing with '{column}.format' = {form}"
            )
    if form == RAW:
        return None
    registry = registry_place(column, values, cache)
    if form == AVRO_GLUE and registry is not None and registry.is_url:
        raise InvalidOptionError(f"option '{column}.{URL}' must be a folder with {form}")
    if form == AVRO_APICURIO and registry is not None:
        registry = replace(registry, ids=values[f"{column}.{USE_ID}"])
    name = f"{column}.schema"
    has_registry = form in _KINDS and registry is not None and registry.is_url
    asked = values[name] is None and has_registry
    if values[f"{column}.subject"] is not None:
        if not has_registry:
            raise InvalidOptionError(
                f"option '{column}.subject' needs a registry's URL in '{column}.{URL}'"
            )
        if form == JSON_CONFLUENT and not asked:
            raise InvalidOptionError(
                f"option '{column}.subject' means nothing with {form} and '{column}.schema': the"
                " registry is not asked"
            )
    if registry is not None and has_registry:
        subject = known_subject(column, values[f"{column}.subject"], selection)
        registry = replace(registry, subject=subject)
    for one in _needed(form, asked):
        if values[f"{column}.{one}"] is None:
            raise InvalidOptionError(
                f"option '{column}.format' = {form} needs option '{column}.{one}'"
            )
    mode = values[f"{column}.mode"]
    if form == UTF8:
        return ColumnFormat(column, form, mode)
    fields = values[f"{column}.columns"]
    if asked:
        assert registry is not None
        subject = subject_of(column, values[f"{column}.subject"], selection)
        schema = latest_of(column, _KINDS[form], registry, subject)
    elif form in _JSON and values[name] is None:
        return ColumnFormat(column, form, mode, fields=fields)
    elif form in (PROTOBUF, PROTOBUF_CONFLUENT):
        content = file_content(name, values[name], "no file that can be read")
        schema = ReaderSchema(descriptors=content)
    else:
        read_text = ddl_text if form in _JSON else schema_text
        schema = ReaderSchema(schema=read_text(name, values[name]))
    found = ColumnFormat(
        column,
        form,
        mode,
        schema=schema.schema,
        references=schema.references,
        descriptors=schema.descriptors,
        message=values[f"{column}.message"] or schema.message,
        fields=fields,
        registry=None if form == JSON_CONFLUENT else registry,  # nobody is asked for its writers
    )
    try:
        _ = found.type
    except ValueError as error:
        wrong = [one for one in ("schema", "message", "columns") if values[f"{column}.{one}"]]
        named = " or ".join(f"'{column}.{one}'" for one in wrong or ["subject"])
        raise InvalidOptionError(f"option {named}: {error}") from None
    return found


def _needed(form: str, asked: bool) -> tuple[str, ...]:
    """What has to be given, whether or not the registry is asked for the schema."""
    schema = () if asked or form in _JSON else ("schema",)
    message = () if asked or form not in (PROTOBUF, PROTOBUF_CONFLUENT) else ("message",)
    url = (URL,) if form in (AVRO_CONFLUENT, AVRO_GLUE, AVRO_APICURIO) else ()
    return () if form == UTF8 else (*schema, *message, *url)


def fields_of_formats(formats: Iterable[ColumnFormat]) -> Mapping[str, FindField]:
    """What finds fields, by column. Text is none: conditions look at its bytes."""
    return {one.column: partial(_field, one) for one in formats if one.format != UTF8}


def only_fields(form: ColumnFormat, paths: Iterable[tuple[str, ...]]) -> ColumnFormat:
    """The format with what is needed to read some fields, as `fields_of_formats` found them."""
    needed = {_needed_by_field(form, path) for path in paths}
    fields = tuple(sorted(".".join(path) for path in needed))
    return replace(form, fields=None if () in needed else fields)


def _field(form: ColumnFormat, path: tuple[str, ...]) -> tuple[tuple[str, ...], pa.DataType]:
    if form.needs_type:
        raise ValueError(f"needs option '{form.column}.schema': no sample is read for a condition")
    try:
        whole = replace(form, fields=None).type
    except ValueError:
        # It may have parts that are no column, such as a type that contains itself.
        if not path:
            raise
        whole = replace(form, fields=(".".join(path),)).type
    return find_field(whole, path)


def _needed_by_field(form: ColumnFormat, path: tuple[str, ...]) -> tuple[str, ...]:
    """The longest part of the path that can be asked for: option `columns` has no names for members
    of unions, and takes a name with dots for another where there are both.
    """
    for length in range(len(path), 0, -1):
        part = path[:length]
        try:
            exact, _ = find_field(replace(form, fields=(".".join(part),)).type, path)
        except ValueError:
            continue
        if exact == path:
            return part
    return ()
