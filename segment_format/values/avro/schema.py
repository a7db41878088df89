"""Avro schemas as values: what a JSON text of one says, checked.

Names are full names (`namespace.name`). A named type that is referred to again is the same object
again. A type that contains itself is refused: no Arrow type is that deep. An unknown or impossible
logical type is ignored, as Avro has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias


class AvroSchemaError(ValueError):
    """A schema that is not valid or not supported, or two that do not resolve."""


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
    """What a base type stands for.

    Attributes:
        name: One of the constants of this module.
        precision: Of a decimal, in digits; else 0.
        scale: Of a decimal; else 0.
    """

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.precision else self.name


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts.

    Attributes:
        kind: `NULL` to `STRING`.
        logical: What it stands for.
    """

    kind: str
    logical: Logical | None = None

    def __str__(self) -> str:
        return f"{self.kind} ({self.logical})" if self.logical else self.kind


@dataclass(frozen=True, slots=True)
class Fixed:
    """Bytes of one length.

    Attributes:
        name: Full name.
        aliases: Full names that a writer may have used.
        size: In bytes.
        logical: What it stands for.
    """

    name: str
    aliases: tuple[str, ...]
    size: int
    logical: Logical | None = None

    def __str__(self) -> str:
        return f"fixed {self.name}"


@dataclass(frozen=True, slots=True)
class Enum:
    """One of some symbols.

    Attributes:
        name: Full name.
        aliases: Full names that a writer may have used.
        symbols: In order.
        default: What a reader takes for a symbol that it does not know.
    """

    name: str
    aliases: tuple[str, ...]
    symbols: tuple[str, ...]
    default: str | None = None

    def __str__(self) -> str:
        return f"enum {self.name}"


@dataclass(frozen=True, slots=True)
class Array:
    """Items of one type, in order."""

    items: Schema

    def __str__(self) -> str:
        return "array"


@dataclass(frozen=True, slots=True)
class Map:
    """Values of one type, by strings."""

    values: Schema

    def __str__(self) -> str:
        return "map"


@dataclass(frozen=True, slots=True)
class Union:
    """One of some types."""

    branches: tuple[Schema, ...]

    def __str__(self) -> str:
        return f"union of {', '.join(map(str, self.branches))}"


@dataclass(frozen=True, slots=True)
class Default:
    """What a reader takes for a field that the writer does not have.

    Attributes:
        value: As JSON has it.
    """

    value: object


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record.

    Attributes:
        name: Its name.
        aliases: Names that a writer may have used.
        type: Its type.
        default: `None` where there is none.
    """

    name: str
    aliases: tuple[str, ...]
    type: Schema
    default: Default | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Fields of types of their own, in order.

    Attributes:
        name: Full name.
        aliases: Full names that a writer may have used.
        fields: In the order in which they are written.
    """

    name: str
    aliases: tuple[str, ...]
    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"record {self.name}"


Schema: TypeAlias = Primitive | Fixed | Enum | Array | Map | Union | Record


def simple_name(name: str) -> str:
    """A full name without its namespace."""
    return name.rpartition(".")[2]
