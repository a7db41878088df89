"""A writer's and a reader's schema, compiled to a program for the kernel.

What of a writer's union the reader cannot take fails the values that have it, and no others; what
cannot be taken in any value is an error here.

Which type of a reader's takes what a writer's type says: Avro's schema resolution.

Records, enums and fixed match by unqualified name, or by an alias of the reader's. Types that stand
for different things (milliseconds and microseconds, decimals of another scale) do not match: read
as each other they would be other values. Of a reader's union the branch that is the writer's own
type wins, then the first that can take it.

Defaults of a reader's fields as Avro's bytes: the one kernel decodes them like any value.

A default of a union is of the first branch that it fits; bytes and fixed are texts of code points
up to 255, as Avro has it.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from segment_format.values.avro import columns as k
from segment_format.values.avro import opcodes as o
from segment_format.values.avro import schema as s
from segment_format.values.avro.columns import schema_logical
from segment_format.values.avro.schema import AvroSchemaError, simple_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from segment_format.values.avro.columns import Column
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


_MOST_BYTES: Final = 1 << 16
_BITS: Final = {s.INT: 31, s.LONG: 63}
_FORMATS: Final = {s.FLOAT: "<f", s.DOUBLE: "<d"}
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def default_bytes(schema: Schema, value: object) -> bytes:
    """A default in Avro's encoding.

    Args:
        schema: The field's type.
        value: The default as JSON has it.

    Raises:
        AvroSchemaError: It is none of the type, or takes more than 64 KiB: every row would have
            it, and lists of records that have lists as defaults grow with each level.
    """
    return _Encoder().encoded(schema, value)


def check_defaults(schema: Schema) -> None:
    """Checks the defaults of all fields of a reader's schema, whether writers have them or not.

    Raises:
        AvroSchemaError: One is none of its type or too large; the field is named.
    """
    _check(schema, "", set())


def _check(schema: Schema, path: str, seen: set[str]) -> None:
    if isinstance(schema, s.Union):
        for branch in schema.branches:
            _check(branch, path, seen)
    elif isinstance(schema, s.Array):
        _check(schema.items, path, seen)
    elif isinstance(schema, s.Map):
        _check(schema.values, path, seen)
    elif isinstance(schema, s.Record) and schema.name not in seen:
        seen.add(schema.name)
        for field in schema.fields:
            inner = f"{path}.{field.name}" if path else field.name
            if field.default is not None:
                try:
                    default_bytes(field.type, field.default.value)
                except AvroSchemaError as error:
                    raise AvroSchemaError(f"field {inner!r}: {error}") from None
            _check(field.type, inner, seen)


class _Encoder:
    """Encodes one default, and gives up where it grows too large."""

    def __init__(self) -> None:
        self._left = _MOST_BYTES

    def encoded(self, schema: Schema, value: object) -> bytes:
        self._left -= 1  # also for what has no byte
        data = self._encoded(schema, value)
        if self._left < 0:
            raise AvroSchemaError(f"a default of more than {_MOST_BYTES:,} bytes")
        return data

    def _encoded(self, schema: Schema, value: object) -> bytes:
        if isinstance(schema, s.Union):
            for index, branch in enumerate(schema.branches):
                try:
                    return _long(index) + self.encoded(branch, value)
                except AvroSchemaError:
                    if self._left < 0:
                        raise
        elif isinstance(schema, s.Array) and isinstance(value, list):
            items = b"".join(self.encoded(schema.items, item) for item in value)
            return (_long(len(value)) + items if value else b"") + b"\0"
        elif isinstance(schema, s.Map) and isinstance(value, dict):
            entries = b"".join(
                self._spent(_sized(key.encode())) + self.encoded(schema.values, item)
                for key, item in value.items()
            )
            return (_long(len(value)) + entries if value else b"") + b"\0"
        elif isinstance(schema, s.Record) and isinstance(value, dict):
            return b"".join(self._field(schema, field, value) for field in schema.fields)
        elif isinstance(schema, s.Enum) and isinstance(value, str) and value in schema.symbols:
            return _long(schema.symbols.index(value))
        elif isinstance(schema, s.Fixed) and isinstance(value, str):
            data = _code_points(value)
            if len(data) == schema.size:
                return self._spent(data)
        elif isinstance(schema, s.Primitive):
            return self._spent(_primitive(schema.kind, value))
        raise _wrong(str(schema), value)

    def _spent(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data

    def _field(self, record: s.Record, field: s.Field, value: dict[str, object]) -> bytes:
        if field.name in value:
            return self.encoded(field.type, value[field.name])
        if field.default is None:
            raise AvroSchemaError(f"a default of {record} without field {field.name!r}")
        return self.encoded(field.type, field.default.value)


def _wrong(kind: str, value: object) -> AvroSchemaError:
    return AvroSchemaError(f"a default that is no {kind}: {repr(value)[:100]}")


def _primitive(kind: str, value: object) -> bytes:
    if kind == s.NULL and value is None:
        return b""
    if kind == s.BOOLEAN and isinstance(value, bool):
        return b"\1" if value else b"\0"
    if kind == s.STRING and isinstance(value, str):
        try:
            return _sized(value.encode())
        except UnicodeEncodeError:
            pass
    if kind == s.BYTES and isinstance(value, str):
        return _sized(_code_points(value))
    if kind in _BITS and isinstance(value, int) and not isinstance(value, bool):
        limit = 1 << _BITS[kind]
        if -limit <= value < limit:
            return _long(value)
    if kind in _FORMATS:
        number = _WORDS.get(value) if isinstance(value, str) else value
        if isinstance(number, int | float) and not isinstance(number, bool):
            try:
                return struct.pack(_FORMATS[kind], number)
            except (OverflowError, struct.error):
                pass
    raise _wrong(kind, value)


def _code_points(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise AvroSchemaError("a default of bytes with a code point above 255") from None


def _sized(data: bytes) -> bytes:
    return _long(len(data)) + data


def _long(value: int) -> bytes:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


_MOST_INSTRUCTIONS: Final = 1 << 17
_MILLIS: Final = frozenset((s.TIMESTAMP_MILLIS, s.LOCAL_MILLIS))
_OPS: Final = {
    (s.BOOLEAN, s.BOOLEAN): (o.BOOLEAN, 0, 0),
    (s.INT, s.INT): (o.INT, 0, 0),
    (s.LONG, s.LONG): (o.LONG, 0, 0),
    (s.FLOAT, s.FLOAT): (o.FLOAT, 0, 0),
    (s.DOUBLE, s.DOUBLE): (o.DOUBLE, 0, 0),
    (s.STRING, s.STRING): (o.STRING, 0, 0),
    (s.BYTES, s.STRING): (o.STRING, 0, 0),
    (s.BYTES, s.BYTES): (o.RAW, 0, 0),
    (s.STRING, s.BYTES): (o.RAW, 0, 0),
    (s.INT, s.LONG): (o.NUMBER, o.FROM_INT, o.TO_LONG),
    (s.INT, s.FLOAT): (o.NUMBER, o.FROM_INT, o.TO_FLOAT),
    (s.INT, s.DOUBLE): (o.NUMBER, o.FROM_INT, o.TO_DOUBLE),
    (s.LONG, s.FLOAT): (o.NUMBER, o.FROM_LONG, o.TO_FLOAT),
    (s.LONG, s.DOUBLE): (o.NUMBER, o.FROM_LONG, o.TO_DOUBLE),
    (s.FLOAT, s.DOUBLE): (o.NUMBER, o.FROM_FLOAT, o.TO_DOUBLE),
}
"""Operation, and for `NUMBER` its arguments, by the kinds of writer and reader."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """What the kernel runs.

    Attributes:
        code: int64, rows of `WIDTH`.
        paths: Of each instruction, the names of the fields around it.
        steps: Of each instruction that steps over several fields, where each ends and its path.
        messages: What `FAIL` says.
        loops: How many loops it has.
        constants: What its addresses point into.
    """

    code: NDArray[np.int64]
    paths: tuple[tuple[str, ...], ...]
    steps: Mapping[int, Sequence[tuple[int, tuple[str, ...]]]]
    messages: tuple[str, ...]
    loops: int
    constants: tuple[Any, ...]

    def path(self, instruction: int, argument: int) -> str:
        """Names of the fields down to where an instruction failed, joined by dots.

        Args:
            instruction: Its number.
            argument: Steps or bytes that there were, where it is one of `steps`.
        """
        found = self.paths[instruction]
        for end, path in self.steps.get(instruction, ()):
            if argument < end:
                found = path
                break
        return ".".join(found)


def compiled(writer: Schema, reader: Schema, column: Column) -> Program:
    """The program that reads a writer's values into a reader's columns.

    Raises:
        AvroSchemaError: No value of the writer's can be read as one of the reader's.
    """
    compiler = _Compiler()
    compiler.value(writer, reader, column)
    compiler.emit(o.END)
    code = np.array(compiler.code, np.int64).reshape(-1, o.WIDTH)
    return Program(
        np.ascontiguousarray(code),
        tuple(compiler.paths),
        compiler.steps,
        tuple(compiler.messages),
        compiler.loops,
        tuple(compiler.constants),
    )


class _Compiler:
    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.paths: list[tuple[str, ...]] = []
        self.steps: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
        self.messages: list[str] = []
        self.constants: list[Any] = []
        self.loops = 0
        self._path: tuple[str, ...] = ()
        self._known = -1  # the slot that is known to be valid here
        self._target = 0  # nothing before it may be merged with what follows: jumps lead here

    def emit(self, op: int, column: Column | None = None, **arguments: int) -> int:
        """Adds an instruction; its number."""
        if len(self.code) >= _MOST_INSTRUCTIONS:
            raise AvroSchemaError(f"the schemas take more than {_MOST_INSTRUCTIONS:,} steps")
        row = [0] * o.WIDTH
        row[o.OP] = op
        if column is not None:
            row[o.SLOT], row[o.LEVEL] = column.slot, column.level
        for name, argument in arguments.items():
            row[getattr(o, name.upper())] = argument
        self.code.append(row)
        self.paths.append(self._path)
        return len(self.code) - 1

    def _here(self) -> int:
        """The next instruction's number, as a place to jump to."""
        self._target = len(self.code)
        return self._target

    def _fail(self, message: str) -> None:
        self.messages.append(message)
        self.emit(o.FAIL, a=len(self.messages) - 1)

    def _refuse(self, message: str) -> AvroSchemaError:
        where = f"field {'.'.join(self._path)!r}: " if self._path else ""
        return AvroSchemaError(f"{where}{message}")

    def value(self, writer: Schema, reader: Schema, column: Column) -> None:
        """Reads a value of the writer's type into a column."""
        if isinstance(writer, s.Union):
            self._from_union(writer, reader, column)
        elif isinstance(reader, s.Union):
            self._into_union(writer, reader, column)
        else:
            if (reason := mismatch(writer, reader)) is not None:
                raise self._refuse(reason)
            self._present(column)
            self._plain(writer, reader, column)

    def _present(self, column: Column) -> None:
        if column.nullable and column.slot != self._known:
            self.emit(o.VALID, column)

    def _null(self, column: Column) -> None:
        self.emit(o.NULL, column, b=column.stop)

    def _from_union(self, writer: s.Union, reader: Schema, column: Column) -> None:
        null = s.Primitive(s.NULL)
        both = len(writer.branches) == 2 and null in writer.branches
        if both and isinstance(reader, s.Union) and null in reader.branches and column.nullable:
            index = writer.branches.index(null)
            at = self.emit(o.NULLABLE, column, a=index, b=column.stop)
            self._known = column.slot
            self._branch(writer.branches[1 - index], reader, column)
            self._known = -1
            self.code[at][o.C] = self._here()
            return
        first = self.emit(o.UNION, a=len(writer.branches)) + 1
        for _ in writer.branches:
            self.emit(o.JUMP)
        ends = []
        readable = 0
        for number, branch in enumerate(writer.branches):
            self.code[first + number][o.C] = self._here()
            readable += self._branch(branch, reader, column)
            ends.append(self.emit(o.JUMP))
        for end in ends:
            self.code[end][o.C] = self._here()
        if not readable:
            raise self._refuse(f"{writer} cannot be read as {reader}")

    def _branch(self, writer: Schema, reader: Schema, column: Column) -> bool:
        """A branch of the writer's union, or what says that it cannot be read; whether it can."""
        before = len(self.code), len(self.messages), len(self.constants), self.loops, self._path
        try:
            self.value(writer, reader, column)
        except AvroSchemaError as error:
            size, messages, constants, self.loops, self._path = before
            del self.code[size:], self.paths[size:]
            self.steps = {number: one for number, one in self.steps.items() if number < size}
            del self.messages[messages:], self.constants[constants:]
            self._here()
            self._fail(str(error))
            return False
        return True

    def _into_union(self, writer: Schema, reader: s.Union, column: Column) -> None:
        branch = branch_for(writer, reader)
        if branch is None:
            raise self._refuse(f"{writer} cannot be read as {reader}")
        if branch == s.Primitive(s.NULL):
            self._null(column)
            return
        _, others = k.resolved_union(reader)
        if len(others) == 1:
            self.value(writer, others[0], column)
            return
        self._present(column)
        chosen = others.index(branch)
        for number, member in enumerate(column.children):
            if number != chosen:
                self._null(member)
        self.value(writer, branch, column.children[chosen])

    def _plain(self, writer: Schema, reader: Schema, column: Column) -> None:
        """Reads what matches, neither of which is a union."""
        if isinstance(writer, s.Record):
            assert isinstance(reader, s.Record)
            self._record(writer, reader, column)
        elif isinstance(writer, s.Array):
            assert isinstance(reader, s.Array)
            (item,) = column.children
            begin = self._begin_items(o.ITEMS, least_size(writer.items), column)
            self.value(writer.items, reader.items, item)
            self._end_items(o.NEXT, begin)
        elif isinstance(writer, s.Map):
            assert isinstance(reader, s.Map)
            key, item = column.children
            begin = self._begin_items(o.ITEMS, 1 + least_size(writer.values), column)
            self.emit(o.STRING, key)
            self.value(writer.values, reader.values, item)
            self._end_items(o.NEXT, begin)
        elif isinstance(writer, s.Enum):
            assert isinstance(reader, s.Enum)
            self._enum(writer, reader, column)
        elif isinstance(writer, s.Fixed):
            if schema_logical(reader) == s.DECIMAL:
                self._decimal(writer.size, column)
            else:
                self.emit(o.FIXED, column, a=writer.size)
        elif schema_logical(reader) == s.DECIMAL:
            self._decimal(-1, column)
        elif isinstance(writer, s.Primitive) and writer.kind != s.NULL:
            assert isinstance(reader, s.Primitive)
            self._number(writer, reader, column)

    def _number(self, writer: s.Primitive, reader: s.Primitive, column: Column) -> None:
        if schema_logical(reader) in _MILLIS:
            source = o.FROM_INT if writer.kind == s.INT else o.FROM_LONG
            self.emit(o.NUMBER, column, a=source, b=o.TO_MICROS)
            return
        op, source, target = _OPS[writer.kind, reader.kind]
        self.emit(op, column, a=source, b=target)

    def _decimal(self, size: int, column: Column) -> None:
        limit = 10**column.type.precision
        high, low = np.array([limit >> 64, limit & (1 << 64) - 1], np.uint64).view(np.int64)
        self.emit(o.DECIMAL, column, a=size, b=int(high), c=int(low))

    def _enum(self, writer: s.Enum, reader: s.Enum, column: Column) -> None:
        texts = [symbol.encode() if symbol in reader.symbols else None for symbol in writer.symbols]
        default = None if reader.default is None else reader.default.encode()
        found = [default if text is None else text for text in texts]
        pool = self._constant(b"".join(text or b"" for text in found))
        table = np.empty((len(found), 2), np.int64)
        at = pool
        for number, text in enumerate(found):
            table[number] = at, -1 if text is None else len(text)
            at += len(text or b"")
        self.constants.append(table)
        self.emit(o.ENUM, column, a=len(found), b=table.ctypes.data)

    def _constant(self, data: bytes) -> int:
        """Address of bytes, which live as long as the program, with slack behind them."""
        array = np.frombuffer(data + bytes(2 * o.SLACK), np.uint8)
        self.constants.append(array)
        return array.ctypes.data

    def _begin_items(self, op: int, least: int, column: Column | None) -> int:
        items = 0 if column is None else column.items
        self.loops += 1
        return self.emit(op, column, a=items, b=least, d=self.loops - 1)

    def _end_items(self, op: int, begin: int) -> None:
        self._here()
        row = self.code[begin]
        self.emit(op, a=row[o.A], c=begin, d=row[o.D])
        row[o.C] = self._here()

    def _record(self, writer: s.Record, reader: s.Record, column: Column) -> None:
        targets = writer_fields(writer, reader)
        columns = {
            field.name: child for field, child in zip(reader.fields, column.children, strict=True)
        }
        around = self._path
        for field in writer.fields:
            target = targets.get(field.name)
            self._path = (*around, field.name if target is None else target.name)
            if target is None:
                self._skip(field.type)
            else:
                self.value(field.type, target.type, columns[target.name])
        read = {field.name for field in targets.values()}
        for field in reader.fields:
            if field.name not in read:
                self._path = (*around, field.name)
                self._default(field, columns[field.name])
        self._path = around

    def _default(self, field: s.Field, column: Column) -> None:
        if field.default is None:
            raise self._refuse("the writer does not have it, and it has no default")
        try:
            data = default_bytes(field.type, field.default.value)
        except AvroSchemaError as error:
            raise self._refuse(str(error)) from None
        self.emit(o.CONSTANT, a=self._constant(data), b=len(data))
        self.value(field.type, field.type, column)
        self.emit(o.RESUME)

    def _skip(self, writer: Schema) -> None:
        """Steps over a value that nobody wants: its lengths are checked, its content is not."""
        if isinstance(writer, s.Record):
            for field in writer.fields:
                self._skip(field.type)
        elif isinstance(writer, s.Union):
            first = self.emit(o.UNION, a=len(writer.branches)) + 1
            for _ in writer.branches:
                self.emit(o.JUMP)
            ends = []
            for number, branch in enumerate(writer.branches):
                self.code[first + number][o.C] = self._here()
                self._skip(branch)
                ends.append(self.emit(o.JUMP))
            for end in ends:
                self.code[end][o.C] = self._here()
        elif isinstance(writer, s.Array | s.Map):
            is_map = isinstance(writer, s.Map)
            inner = writer.values if isinstance(writer, s.Map) else writer.items
            begin = self._begin_items(o.SKIP_ITEMS, is_map + least_size(inner), None)
            self._here()
            if is_map:
                self._step(o.SKIP_BYTES, 1)
            self._skip(inner)
            self._end_items(o.SKIP_NEXT, begin)
        elif isinstance(writer, s.Fixed):
            self._step(o.SKIP_FIXED, writer.size)
        elif isinstance(writer, s.Enum) or writer.kind in (s.INT, s.LONG):
            self._step(o.SKIP_VARINT, 1)
        elif writer.kind in (s.STRING, s.BYTES):
            self._step(o.SKIP_BYTES, 1)
        elif writer.kind != s.NULL:
            self._step(o.SKIP_FIXED, _SIZES[writer.kind])

    def _step(self, op: int, argument: int) -> None:
        """Steps further, in one with the instruction before where that does the same."""
        if len(self.code) > self._target and self.code[-1][o.OP] == op:
            self.code[-1][o.A] += argument
        else:
            self.emit(op, a=argument)
        steps = self.steps.setdefault(len(self.code) - 1, [])
        steps.append((self.code[-1][o.A], self._path))


_SIZES: Final = {s.BOOLEAN: 1, s.FLOAT: 4, s.DOUBLE: 8}
