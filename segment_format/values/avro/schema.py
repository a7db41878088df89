"""Parses and checks Avro schemas.

Names are full names (`namespace.name`). If a schema uses a named type several times, all uses refer
to the same object. A type that contains itself is rejected, because no Arrow type has unlimited
depth. As the Avro specification requires, an unknown or invalid logical type is ignored. The number
of types is limited: types can refer to each other, so a short schema can describe more columns than
fit into memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeGuard


class AvroSchemaError(ValueError):
    """A schema is invalid or not supported, or a reader's schema cannot be used to read a writer's
    values.
    """


NULL: Final = "null"
BOOLEAN: Final = "boolean"
INT: Final = "int"
LONG: Final = "long"
FLOAT: Final = "float"
DOUBLE: Final = "double"
BYTES: Final = "bytes"
STRING: Final = "string"

DECIMAL: Final = "decimal"
UUID: Final = "uuid"
DATE: Final = "date"
TIME_MILLIS: Final = "time-millis"
TIME_MICROS: Final = "time-micros"
TIMESTAMP_MILLIS: Final = "timestamp-millis"
TIMESTAMP_MICROS: Final = "timestamp-micros"
TIMESTAMP_NANOS: Final = "timestamp-nanos"
LOCAL_MILLIS: Final = "local-timestamp-millis"
LOCAL_MICROS: Final = "local-timestamp-micros"
LOCAL_NANOS: Final = "local-timestamp-nanos"
DURATION: Final = "duration"


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type.

    Attributes:
        precision: Maximum number of digits of a decimal; 0 for other types.
        scale: Scale of a decimal; 0 for other types.
    """

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.precision else self.name


@dataclass(frozen=True, slots=True)
class Primitive:
    """A primitive type.

    Attributes:
        kind: Name of the type: one of the constants `NULL` to `STRING`.
        logical: Logical type; `None` if it has none.
    """

    kind: str
    logical: Logical | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({self.logical})" if self.logical else self.kind


@dataclass(frozen=True, slots=True)
class Fixed:
    """The type fixed: values of a constant number of bytes.

    Attributes:
        name: Full name.
        aliases: Other full names that a writer may use.
        size: Size in bytes.
    """

    name: str
    aliases: tuple[str, ...]
    size: int
    logical: Logical | None = None

    def __str__(self) -> str:
        return f"fixed {self.name}"


@dataclass(frozen=True, slots=True)
class Enum:
    """The type enum: a value is one of several symbols.

    Attributes:
        name: Full name.
        aliases: Other full names that a writer may use.
        symbols: Symbols in the order of the schema.
        default: Symbol that a reader uses in place of unknown symbols; `None` if the schema has no
            default.
    """

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None = None

    def __str__(self) -> str:
        return f"enum {self.name}"


@dataclass(frozen=True, slots=True)
class Array:
    """The type array: a value is a list of items of one type."""

    items: Schema

    def __str__(self) -> str:
        return "array"


@dataclass(frozen=True, slots=True)
class Map:
    """The type map: a value maps strings to values of one type."""

    values: Schema

    def __str__(self) -> str:
        return "map"


@dataclass(frozen=True, slots=True)
class Union:
    """The type union: a value has one of several types."""

    branches: tuple[Schema, ...]

    def __str__(self) -> str:
        return f"union of {', '.join(map(str, self.branches))}"


@dataclass(frozen=True, slots=True)
class Default:
    """Default of a field. It is used if the reader's schema has the field, but the writer's schema
    does not.

    Attributes:
        value: The value as parsed JSON.
    """

    value: object


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record.

    Attributes:
        aliases: Other names that a writer may use.
        default: Default of the field; `None` if it has none.
    """

    name: str
    aliases: tuple[str, ...]
    type: Schema
    default: Default | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """The type record: a value has named fields in a fixed order.

    Attributes:
        name: Full name.
        aliases: Other full names that a writer may use.
        fields: Fields in the order in which they are encoded.
    """

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"record {self.name}"


Schema: TypeAlias = Primitive | Fixed | Enum | Array | Map | Union | Record


def simple_name(name: str) -> str:
    """Returns the part of a full name after the namespace."""
    return name.rpartition(".")[2]


_PRIMITIVES: Final = frozenset((NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, STRING))
_NAMED: Final = frozenset(("record", "error", "enum", "fixed"))
_LOGICAL_BASES: Final = {
    UUID: STRING,
    DATE: INT,
    TIME_MILLIS: INT,
    TIME_MICROS: LONG,
    TIMESTAMP_MILLIS: LONG,
    TIMESTAMP_MICROS: LONG,
    TIMESTAMP_NANOS: LONG,
    LOCAL_MILLIS: LONG,
    LOCAL_MICROS: LONG,
    LOCAL_NANOS: LONG,
}
_LOGICAL_SIZES: Final = {UUID: 16, DURATION: 12}
_MAX_DIGITS: Final = 38
_MAX_FIXED: Final = 1 << 30
MAX_TYPES: Final = 1 << 13
"""Maximum number of types of a schema, each counted as often as it is used."""
MAX_LEVELS: Final = 64
"""Maximum nesting of types."""


def parse_avro(text: str | bytes, references: tuple[str | bytes, ...] = ()) -> Schema:
    """Parses a schema.

    Args:
        text: JSON text of the schema.
        references: JSON texts of schemas that define named types. `text` may use these types, and
            each reference may use the types of earlier references.

    Raises:
        AvroSchemaError: The schema is not valid, contains itself or is too large.
    """
    parser = _Parser()
    for reference in references:
        parser.parsed(reference)
    return parser.parsed(text)


class _Parser:
    def __init__(self) -> None:
        self._known: dict[str, Schema] = {}
        self._open: set[str] = set()
        self._parts = 0
        self._sizes: dict[str, int] = {}
        self._heights: dict[str, int] = {}
        self._depth = 0
        self._deepest = 0

    def parsed(self, text: str | bytes) -> Schema:
        try:
            document = json.loads(text)
            # Refuses lone surrogates, which JSON can contain: names and symbols are encoded as
            # UTF-8, which cannot represent them.
            json.dumps(document, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise AvroSchemaError(f"not an Avro schema: {type(error).__name__}: {error}") from None
        self._parts = 0
        return self._schema(document, "")

    def _count(self, count: int, levels: int) -> None:
        """Adds `count` types, which have `levels` nested levels, to the number of types in the
        schema. Raises `AvroSchemaError` if the schema has too many types or levels. Called before
        memory is allocated for the types.
        """
        self._parts += count
        self._deepest = max(self._deepest, self._depth + levels)
        if self._parts > MAX_TYPES:
            raise AvroSchemaError(f"the schema has more than {MAX_TYPES:,} types")
        if self._deepest > MAX_LEVELS:
            raise AvroSchemaError(f"the schema has more than {MAX_LEVELS} levels")

    def _schema(self, document: Any, namespace: str) -> Schema:  # noqa: ANN401  # any JSON
        self._depth += 1
        try:
            return self._parse_document(document, namespace)
        finally:
            self._depth -= 1

    def _parse_document(self, document: Any, namespace: str) -> Schema:  # noqa: ANN401
        if isinstance(document, str):
            return self._type_by_name(document, namespace)
        self._count(1, 0)
        if isinstance(document, list):
            return self._union(document, namespace)
        if not isinstance(document, dict):
            raise AvroSchemaError(f"not an Avro schema: {_shown(document)}")
        kind = document.get("type")
        if isinstance(kind, dict | list):
            return self._schema(kind, namespace)
        if not isinstance(kind, str):
            raise AvroSchemaError(f"the schema has no type: {_shown(document)}")
        if kind == "array":
            return Array(self._schema(_required_member(document, "items"), namespace))
        if kind == "map":
            return Map(self._schema(_required_member(document, "values"), namespace))
        if kind in _NAMED:
            return self._named(kind, document, namespace)
        if kind in _PRIMITIVES:
            return Primitive(kind, _logical(document, kind, None))
        return self._type_by_name(kind, namespace)

    def _type_by_name(self, name: str, namespace: str) -> Schema:
        if name in _PRIMITIVES:
            self._count(1, 0)
            return Primitive(name)
        full = _full_name(name, namespace)
        if full not in self._known and full not in self._open and "." not in name:
            full = name  # a type without a namespace
        if full in self._open:
            raise AvroSchemaError(f"type {full} contains itself, which columns cannot represent")
        if full not in self._known:
            raise AvroSchemaError(f"the schema uses {full}, which it does not define")
        self._count(self._sizes[full], self._heights[full])
        return self._known[full]

    def _union(self, document: list[Any], namespace: str) -> Union:
        branches = tuple(self._schema(branch, namespace) for branch in document)
        if not branches:
            raise AvroSchemaError("a union has no types")
        names: list[str] = []
        for branch in branches:
            if isinstance(branch, Union):
                raise AvroSchemaError("a union is nested in a union")
            names.append(branch.kind if isinstance(branch, Primitive) else str(branch))
        if len(set(names)) < len(names):
            raise AvroSchemaError(
                f"a union contains the same type twice; its types are {', '.join(names)}"
            )
        return Union(branches)

    def _named(self, kind: str, document: dict[str, Any], namespace: str) -> Schema:
        name, inner = _name_of(document, namespace)
        if name in self._known or name in self._open:
            raise AvroSchemaError(f"the schema defines {name} twice")
        aliases = tuple(_full_name(alias, inner) for alias in _texts(document, "aliases"))
        before, deepest = self._parts, self._deepest
        self._open.add(name)
        self._deepest = self._depth
        schema: Schema
        if kind == "enum":
            schema = _enum(name, aliases, document)
        elif kind == "fixed":
            schema = _fixed(name, aliases, document)
        else:
            schema = self._record(name, aliases, document, inner)
        self._open.discard(name)
        self._known[name] = schema
        self._sizes[name] = 1 + self._parts - before
        self._heights[name] = self._deepest - self._depth
        self._deepest = max(self._deepest, deepest)
        return schema

    def _record(
        self, name: str, aliases: tuple[str, ...], document: dict[str, Any], namespace: str
    ) -> Record:
        fields: list[Field] = []
        entries = _required_member(document, "fields")
        if not isinstance(entries, list):
            raise AvroSchemaError(f"the fields of {name} are not a list")
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise AvroSchemaError(f"a field of {name} has no name")
            default = Default(entry["default"]) if "default" in entry else None
            fields.append(
                Field(
                    entry["name"],
                    _texts(entry, "aliases"),
                    self._schema(_required_member(entry, "type"), namespace),
                    default,
                )
            )
        names = [field.name for field in fields]
        if twice := {field_name for field_name in names if names.count(field_name) > 1}:
            raise AvroSchemaError(f"{name} has repeated fields: {', '.join(sorted(twice))}")
        return Record(name, aliases, tuple(fields))


def _enum(name: str, aliases: tuple[str, ...], document: dict[str, Any]) -> Enum:
    symbols = _texts(document, "symbols")
    if not symbols or len(set(symbols)) < len(symbols):
        raise AvroSchemaError(f"enum {name} has no symbols, or has a symbol twice")
    default = document.get("default")
    if default is not None and default not in symbols:
        raise AvroSchemaError(f"the default of enum {name} is not one of its symbols")
    return Enum(name, aliases, symbols, default)


def _fixed(name: str, aliases: tuple[str, ...], document: dict[str, Any]) -> Fixed:
    size = document.get("size")
    if not _is_int(size) or not 0 <= size <= _MAX_FIXED:
        raise AvroSchemaError(f"fixed {name} needs a size from 0 to {_MAX_FIXED:,}")
    return Fixed(name, aliases, size, _logical(document, None, size))


def _logical(document: dict[str, Any], kind: str | None, size: int | None) -> Logical | None:
    """Returns the logical type of a primitive or fixed type. Returns `None` if it has no logical
    type, or if the logical type is unknown or invalid for this type.
    """
    name = document.get("logicalType")
    if not isinstance(name, str):
        return None
    if name == DECIMAL and kind in (None, BYTES):
        return _decimal(document, size)
    if kind is not None and _LOGICAL_BASES.get(name) == kind:
        return Logical(name)
    if size is not None and _LOGICAL_SIZES.get(name) == size:
        return Logical(name)
    return None


def _decimal(document: dict[str, Any], size: int | None) -> Logical | None:
    precision, scale = document.get("precision"), document.get("scale", 0)
    if not _is_int(precision) or not _is_int(scale):
        return None
    if not precision > 0 or not 0 <= scale <= precision:
        return None
    if size is not None and 10 ** min(precision, 4 * size + 8) > 1 << max(8 * size - 1, 0):
        return None
    if precision > _MAX_DIGITS:
        raise AvroSchemaError(
            f"a decimal with {precision} digits is not supported; the maximum is {_MAX_DIGITS}"
        )
    return Logical(DECIMAL, precision, scale)


def _is_int(value: Any) -> TypeGuard[int]:  # noqa: ANN401
    return isinstance(value, int) and not isinstance(value, bool)


def _name_of(document: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Returns the full name of a type, and the namespace of types that are nested in it."""
    name = document.get("name")
    if not isinstance(name, str) or not name or name in _PRIMITIVES:
        raise AvroSchemaError(f"a {document['type']} has no valid name: {_shown(name)}")
    own_namespace = document.get("namespace")
    full = _full_name(name, own_namespace if isinstance(own_namespace, str) else namespace)
    return full, full.rpartition(".")[0]


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _required_member(document: dict[str, Any], member: str) -> Any:  # noqa: ANN401
    if member not in document:
        raise AvroSchemaError(f"the schema has no member {member!r}: {_shown(document)}")
    return document[member]


def _texts(document: dict[str, Any], member: str) -> tuple[str, ...]:
    texts = document.get(member) or ()
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise AvroSchemaError(f"{member!r} is not a list of strings: {_shown(document)}")
    return tuple(texts)


def _shown(document: object) -> str:
    text = json.dumps(document)
    return text if len(text) <= 100 else f"{text[:100]}…"
