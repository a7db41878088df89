"""Which type of a reader's takes what a writer's type says: Avro's schema resolution.

Records, enums and fixed match by unqualified name, or by an alias of the reader's. Types that stand
for different things (milliseconds and microseconds, decimals of another scale) do not match: read
as each other they would be other values. Of a reader's union the branch that is the writer's own
type wins, then the first that can take it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from segment_format.values.avro import schema as s
from segment_format.values.avro.columns import schema_logical
from segment_format.values.avro.schema import simple_name

if TYPE_CHECKING:
    from segment_format.values.avro.schema import Schema

_PROMOTIONS: Final = {
    s.INT: (s.LONG, s.FLOAT, s.DOUBLE),
    s.LONG: (s.FLOAT, s.DOUBLE),
    s.FLOAT: (s.DOUBLE,),
    s.STRING: (s.BYTES,),
    s.BYTES: (s.STRING,),
}


def mismatch(writer: Schema, reader: Schema) -> str | None:
    """Why a reader's type cannot take a writer's; `None` if it can, as far as the types
    themselves go: not what is in them.

    Args:
        writer: No union.
        reader: No union.
    """
    if isinstance(writer, s.Primitive) and isinstance(reader, s.Primitive):
        same = writer.kind == reader.kind
        if not same and reader.kind not in _PROMOTIONS.get(writer.kind, ()):
            return f"{writer} cannot be read as {reader}"
        if not same and s.DECIMAL in (schema_logical(writer), schema_logical(reader)):
            return f"{writer} cannot be read as {reader}"
        return _logical_mismatch(writer, reader)
    if type(writer) is not type(reader):
        return f"{writer} cannot be read as {reader}"
    if isinstance(writer, s.Record | s.Enum | s.Fixed):
        assert isinstance(reader, s.Record | s.Enum | s.Fixed)
        if not same_name(writer.name, reader.name, reader.aliases):
            return f"{writer} cannot be read as {reader}: another name, and no alias"
    if isinstance(writer, s.Fixed) and isinstance(reader, s.Fixed):
        if writer.size != reader.size:
            return f"{writer} has {writer.size} bytes, not {reader.size}"
        return _logical_mismatch(writer, reader)
    return None


def _logical_mismatch(writer: s.Primitive | s.Fixed, reader: s.Primitive | s.Fixed) -> str | None:
    if writer.logical is None or reader.logical is None or writer.logical == reader.logical:
        return None
    return f"{writer.logical} cannot be read as {reader.logical}"


def same_name(writer: str, reader: str, aliases: tuple[str, ...]) -> bool:
    """Whether a writer's name is the reader's, or one of its aliases; namespaces do not count."""
    return simple_name(writer) in map(simple_name, (reader, *aliases))


def branch_for(writer: Schema, reader: s.Union) -> Schema | None:
    """The branch of a reader's union that takes a writer's type, which is no union."""
    fitting = [branch for branch in reader.branches if mismatch(writer, branch) is None]
    for branch in fitting:
        if _is_own(writer, branch):
            return branch
    return fitting[0] if fitting else None


def _is_own(writer: Schema, reader: Schema) -> bool:
    """Whether it is the same kind, or has the same full name: nothing is promoted or renamed."""
    if isinstance(writer, s.Primitive) and isinstance(reader, s.Primitive):
        return writer.kind == reader.kind
    if isinstance(writer, s.Record | s.Enum | s.Fixed):
        assert isinstance(reader, s.Record | s.Enum | s.Fixed)
        return writer.name == reader.name
    return True


def writer_fields(writer: s.Record, reader: s.Record) -> dict[str, s.Field]:
    """The reader's field for each of the writer's that has one, by the writer's name."""
    names = {field.name for field in writer.fields}
    found = {field.name: field for field in reader.fields if field.name in names}
    for field in reader.fields:
        if field.name not in names:
            alias = next((name for name in field.aliases if name in names - found.keys()), None)
            if alias is not None:
                found[alias] = field
    return found


def least_size(schema: Schema) -> int:
    """Bytes that a value of a writer's type has at least."""
    if isinstance(schema, s.Record):
        return min(sum(least_size(field.type) for field in schema.fields), 2**31)
    if isinstance(schema, s.Union):
        return 1 + min(map(least_size, schema.branches))
    if isinstance(schema, s.Fixed):
        return schema.size
    if isinstance(schema, s.Primitive):
        return _LEAST.get(schema.kind, 1)
    return 1


_LEAST: Final = {s.NULL: 0, s.FLOAT: 4, s.DOUBLE: 8}
