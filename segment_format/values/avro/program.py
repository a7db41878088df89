"""Compiles a writer's and a reader's schema to a program for the kernel.

Schema resolution follows the Avro specification. Records, enums and fixed types match if their
unqualified names are equal, or if the reader's type has the writer's name as an alias. Different
logical types (milliseconds and microseconds, decimals of another scale) do not match, because
values would change their meaning. If the reader has a union, the branch with exactly the writer's
type is used. Otherwise the first branch that matches is used.

If the reader's type cannot represent one branch of a writer's union, only values of that branch are
bad. If it cannot represent any branch, compilation fails.

Defaults of the reader's fields are encoded as Avro, so the kernel decodes them like values. The
default of a union is encoded as the first branch that has a matching type. In the JSON of a schema,
a default of type bytes or fixed is a string. Each code point of this string is one byte, so it must
not exceed 255.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from segment_format._cursor import write_varlong
from segment_format.values.avro import columns as k
from segment_format.values.avro import opcodes as o
from segment_format.values.avro import schema as s
from segment_format.values.avro.columns import schema_logical
from segment_format.values.avro.schema import AvroSchemaError, simple_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from segment_format.values.avro.columns import Column
    from segment_format.values.avro.schema import Schema

T = TypeVar("T")

_PROMOTIONS: Final = {
    s.INT: (s.LONG, s.FLOAT, s.DOUBLE),
    s.LONG: (s.FLOAT, s.DOUBLE),
    s.FLOAT: (s.DOUBLE,),
    s.STRING: (s.BYTES,),
    s.BYTES: (s.STRING,),
}


def mismatch(writer: Schema, reader: Schema) -> str | None:
    """Returns the reason why a reader's type does not match a writer's type; `None` if they match.
    Neither type may be a union. Does not compare nested types.
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
            return f"{writer} cannot be read as {reader}: the names differ, and no alias matches"
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
    """Returns whether a writer's name equals the reader's name or one of the reader's aliases,
    ignoring namespaces.
    """
    return simple_name(writer) in map(simple_name, (reader, *aliases))


def branch_for(writer: Schema, reader: s.Union) -> Schema | None:
    """Returns the branch of a reader's union that is used for a writer's type; `None` if no branch
    matches. The writer's type must not be a union.
    """
    fitting = [branch for branch in reader.branches if mismatch(writer, branch) is None]
    for branch in fitting:
        if _is_own(writer, branch):
            return branch
    return fitting[0] if fitting else None


def _is_own(writer: Schema, reader: Schema) -> bool:
    """Returns whether two matching types (see `mismatch`) are of one kind and, if they have names,
    of one name.
    """
    if isinstance(writer, s.Primitive) and isinstance(reader, s.Primitive):
        return writer.kind == reader.kind
    if isinstance(writer, s.Record | s.Enum | s.Fixed):
        assert isinstance(reader, s.Record | s.Enum | s.Fixed)
        return writer.name == reader.name
    return True


def writer_fields(writer: s.Record, reader: s.Record) -> dict[str, s.Field]:
    """Returns a dict from the name of a writer's field to the matching field of the reader. Omits
    fields that only one of them has.
    """
    names = {field.name for field in writer.fields}
    writer_fields_by_name = {field.name: field for field in reader.fields if field.name in names}
    for field in reader.fields:
        if field.name not in names:
            alias = next(
                (name for name in field.aliases if name in names - writer_fields_by_name.keys()),
                None,
            )
            if alias is not None:
                writer_fields_by_name[alias] = field
    return writer_fields_by_name


def min_size(schema: Schema) -> int:
    """Returns the size of the smallest value of a writer's type, in bytes."""
    if isinstance(schema, s.Record):
        return min(sum(min_size(field.type) for field in schema.fields), 2**31)
    if isinstance(schema, s.Union):
        return 1 + min(map(min_size, schema.branches))
    if isinstance(schema, s.Fixed):
        return schema.size
    if isinstance(schema, s.Primitive):
        return _MIN_SIZES.get(schema.kind, 1)
    return 1


_MIN_SIZES: Final = {s.NULL: 0, s.FLOAT: 4, s.DOUBLE: 8}


_MAX_BYTES: Final = 1 << 16
_BITS: Final = {s.INT: 31, s.LONG: 63}
_FORMATS: Final = {s.FLOAT: "<f", s.DOUBLE: "<d"}
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def default_bytes(schema: Schema, value: object) -> bytes:
    """Returns the default of a field, given as parsed JSON, in Avro's binary encoding.

    Raises:
        AvroSchemaError: The default does not have the type of the field, or takes more than 64 KiB.
            The size is limited because every row may have the default, and the size of nested lists
            of defaults can grow exponentially with their depth.
    """
    return _Encoder().encoded(schema, value)


def check_defaults(schema: Schema) -> None:
    """Raises `AvroSchemaError` if a field of a reader's schema has a default of a wrong type, or a
    default that is too large.
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
    """Encodes one default. Raises `AvroSchemaError` if the result has more than `_MAX_BYTES`
    bytes.
    """

    def __init__(self) -> None:
        self._left = _MAX_BYTES

    def encoded(self, schema: Schema, value: object) -> bytes:
        self._left -= 1  # also for values without bytes
        data = self._encoded(schema, value)
        if self._left < 0:
            raise AvroSchemaError(f"the default has more than {_MAX_BYTES:,} bytes")
        return data

    def _encoded(self, schema: Schema, value: object) -> bytes:
        if isinstance(schema, s.Union):
            for index, branch in enumerate(schema.branches):
                try:
                    return write_varlong(index) + self.encoded(branch, value)
                except AvroSchemaError:
                    if self._left < 0:
                        raise
        elif isinstance(schema, s.Array) and isinstance(value, list):
            items = b"".join(self.encoded(schema.items, item) for item in value)
            return (write_varlong(len(value)) + items if value else b"") + b"\0"
        elif isinstance(schema, s.Map) and isinstance(value, dict):
            entries = b"".join(
                self._count_bytes(_with_length(key.encode())) + self.encoded(schema.values, item)
                for key, item in value.items()
            )
            return (write_varlong(len(value)) + entries if value else b"") + b"\0"
        elif isinstance(schema, s.Record) and isinstance(value, dict):
            return b"".join(self._field(schema, field, value) for field in schema.fields)
        elif isinstance(schema, s.Enum) and isinstance(value, str) and value in schema.symbols:
            return write_varlong(schema.symbols.index(value))
        elif isinstance(schema, s.Fixed) and isinstance(value, str):
            data = _code_points(value)
            if len(data) == schema.size:
                return self._count_bytes(data)
        elif isinstance(schema, s.Primitive):
            return self._count_bytes(_primitive(schema.kind, value))
        raise _wrong(str(schema), value)

    def _count_bytes(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data

    def _field(self, record: s.Record, field: s.Field, value: dict[str, object]) -> bytes:
        if field.name in value:
            return self.encoded(field.type, value[field.name])
        if field.default is None:
            raise AvroSchemaError(f"the default of {record} has no field {field.name!r}")
        return self.encoded(field.type, field.default.value)


def _wrong(kind: str, value: object) -> AvroSchemaError:
    return AvroSchemaError(f"the default is not of type {kind}: {repr(value)[:100]}")


def _primitive(kind: str, value: object) -> bytes:
    if kind == s.NULL and value is None:
        return b""
    if kind == s.BOOLEAN and isinstance(value, bool):
        return b"\1" if value else b"\0"
    if kind == s.STRING and isinstance(value, str):
        try:
            return _with_length(value.encode())
        except UnicodeEncodeError:
            pass
    if kind == s.BYTES and isinstance(value, str):
        return _with_length(_code_points(value))
    if kind in _BITS and isinstance(value, int) and not isinstance(value, bool):
        limit = 1 << _BITS[kind]
        if -limit <= value < limit:
            return write_varlong(value)
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
        raise AvroSchemaError("the default of bytes has a code point above 255") from None


def _with_length(data: bytes) -> bytes:
    return write_varlong(len(data)) + data


_MAX_INSTRUCTIONS: Final = 1 << 17
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
"""Operation, and the arguments of `NUMBER`, by the kinds of writer and reader."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A program for the kernel.

    Attributes:
        code: Table of the instructions: `WIDTH` int64 numbers per instruction.
        paths: For each instruction, the path of the field that it decodes, as names.
        steps: Number of an instruction that skips fields -> `(end, path)` of each of these fields.
            `end` is the number of steps or bytes that are skipped up to the end of the field.
        messages: Error messages of `FAIL` instructions.
        loops: Number of loops over arrays and maps.
        constants: Arrays whose addresses are in `code`. The program keeps them alive.
    """

    code: NDArray[np.int64]
    paths: tuple[tuple[str, ...], ...]
    steps: Mapping[int, Sequence[tuple[int, tuple[str, ...]]]]
    messages: tuple[str, ...]
    loops: int
    constants: tuple[Any, ...]

    def path(self, instruction: int, argument: int) -> str:
        """Returns the path of the field that an instruction could not decode: names joined by dots.
        For instructions in `steps`, `argument` is the number of steps or bytes that were skipped
        before the failure.
        """
        names = self.paths[instruction]
        for end, path in self.steps.get(instruction, ()):
            if argument < end:
                names = path
                break
        return ".".join(names)


def compiled(writer: Schema, reader: Schema, column: Column) -> Program:
    """Compiles and returns the program that decodes a writer's values to a reader's columns.

    Raises:
        AvroSchemaError: The reader's schema cannot represent any value of the writer's schema.
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
        self._valid_slot = -1  # slot that is already marked valid
        self._target = 0  # a jump leads here, so later steps are not merged

    def emit(self, op: int, column: Column | None = None, **arguments: int) -> int:
        """Adds an instruction and returns its number."""
        if len(self.code) >= _MAX_INSTRUCTIONS:
            raise AvroSchemaError(f"the schemas need more than {_MAX_INSTRUCTIONS:,} instructions")
        row = [0] * o.WIDTH
        row[o.OP] = op
        if column is not None:
            row[o.SLOT], row[o.LEVEL] = column.slot, column.level
        for name, argument in arguments.items():
            row[getattr(o, name.upper())] = argument
        self.code.append(row)
        self.paths.append(self._path)
        return len(self.code) - 1

    def _mark_jump_target(self) -> int:
        """Returns the number of the next instruction, and marks it as the target of a jump, so that
        `_step` does not merge it with the previous instruction.
        """
        self._target = len(self.code)
        return self._target

    def _fail(self, message: str) -> None:
        self.messages.append(message)
        self.emit(o.FAIL, a=len(self.messages) - 1)

    def _refuse(self, message: str) -> AvroSchemaError:
        where = f"field {'.'.join(self._path)!r}: " if self._path else ""
        return AvroSchemaError(f"{where}{message}")

    def value(self, writer: Schema, reader: Schema, column: Column) -> None:
        """Adds the instructions that decode a value and write it to a column."""
        if isinstance(writer, s.Union):
            self._from_union(writer, reader, column)
        elif isinstance(reader, s.Union):
            self._into_union(writer, reader, column)
        else:
            if (reason := mismatch(writer, reader)) is not None:
                raise self._refuse(reason)
            self._mark_valid(column)
            self._plain(writer, reader, column)

    def _mark_valid(self, column: Column) -> None:
        if column.nullable and column.slot != self._valid_slot:
            self.emit(o.VALID, column)

    def _null(self, column: Column) -> None:
        self.emit(o.NULL, column, b=column.stop)

    def _from_union(self, writer: s.Union, reader: Schema, column: Column) -> None:
        null = s.Primitive(s.NULL)
        both = len(writer.branches) == 2 and null in writer.branches
        if both and isinstance(reader, s.Union) and null in reader.branches and column.nullable:
            index = writer.branches.index(null)
            instruction = self.emit(o.NULLABLE, column, a=index, b=column.stop)
            self._valid_slot = column.slot
            self._branch(writer.branches[1 - index], reader, column)
            self._valid_slot = -1
            self.code[instruction][o.C] = self._mark_jump_target()
            return
        readable = sum(self._branches(writer, lambda branch: self._branch(branch, reader, column)))
        if not readable:
            raise self._refuse(f"{writer} cannot be read as {reader}")

    def _branches(self, writer: s.Union, compile_branch: Callable[[Schema], T]) -> list[T]:
        """Adds the instructions that read the number of a union's branch and jump to the
        instructions of the branch. `compile_branch` is called for each branch, and must add the
        branch's instructions. Returns the results of these calls.
        """
        first = self.emit(o.UNION, a=len(writer.branches)) + 1
        for _ in writer.branches:
            self.emit(o.JUMP)
        ends = []
        results = []
        for number, branch in enumerate(writer.branches):
            self.code[first + number][o.C] = self._mark_jump_target()
            results.append(compile_branch(branch))
            ends.append(self.emit(o.JUMP))
        for end in ends:
            self.code[end][o.C] = self._mark_jump_target()
        return results

    def _branch(self, writer: Schema, reader: Schema, column: Column) -> bool:
        """Adds the instructions for one branch of the writer's union. If the reader's type cannot
        represent values of this branch, adds an instruction that reports such values as bad, and
        returns False.
        """
        before = len(self.code), len(self.messages), len(self.constants), self.loops, self._path
        try:
            self.value(writer, reader, column)
        except AvroSchemaError as error:
            size, messages, constants, self.loops, self._path = before
            del self.code[size:], self.paths[size:]
            self.steps = {number: steps for number, steps in self.steps.items() if number < size}
            del self.messages[messages:], self.constants[constants:]
            self._mark_jump_target()
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
        self._mark_valid(column)
        chosen = others.index(branch)
        for number, member in enumerate(column.children):
            if number != chosen:
                self._null(member)
        self.value(writer, branch, column.children[chosen])

    def _plain(self, writer: Schema, reader: Schema, column: Column) -> None:
        """Adds the instructions for a value whose types are not unions and match."""
        if isinstance(writer, s.Record):
            assert isinstance(reader, s.Record)
            self._record(writer, reader, column)
        elif isinstance(writer, s.Array):
            assert isinstance(reader, s.Array)
            (item,) = column.children
            begin = self._begin_items(o.ITEMS, min_size(writer.items), column)
            self.value(writer.items, reader.items, item)
            self._end_items(o.NEXT, begin)
        elif isinstance(writer, s.Map):
            assert isinstance(reader, s.Map)
            key, item = column.children
            begin = self._begin_items(o.ITEMS, 1 + min_size(writer.values), column)
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
        symbols = [default if text is None else text for text in texts]
        pool = self._constant(b"".join(text or b"" for text in symbols))
        table = np.empty((len(symbols), 2), np.int64)
        start = pool
        for number, text in enumerate(symbols):
            table[number] = start, -1 if text is None else len(text)
            start += len(text or b"")
        self.constants.append(table)
        self.emit(o.ENUM, column, a=len(symbols), b=table.ctypes.data)

    def _constant(self, data: bytes) -> int:
        """Copies bytes to memory that lives as long as the program, and returns the address of the
        copy. The copy is padded, because the kernel may read after the constant.
        """
        array = np.frombuffer(data + bytes(2 * o.SLACK), np.uint8)
        self.constants.append(array)
        return array.ctypes.data

    def _begin_items(self, op: int, least: int, column: Column | None) -> int:
        items = 0 if column is None else column.items
        self.loops += 1
        return self.emit(op, column, a=items, b=least, d=self.loops - 1)

    def _end_items(self, op: int, begin: int) -> None:
        self._mark_jump_target()
        row = self.code[begin]
        self.emit(op, a=row[o.A], c=begin, d=row[o.D])
        row[o.C] = self._mark_jump_target()

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
            raise self._refuse(
                "the writer's schema lacks the field, and the reader's has no default for it"
            )
        try:
            data = default_bytes(field.type, field.default.value)
        except AvroSchemaError as error:
            raise self._refuse(str(error)) from None
        self.emit(o.CONSTANT, a=self._constant(data), b=len(data))
        self.value(field.type, field.type, column)
        self.emit(o.RESUME)

    def _skip(self, writer: Schema) -> None:
        """Adds the instructions that skip a value. The instructions check lengths, but not the
        content of the value.
        """
        if isinstance(writer, s.Record):
            for field in writer.fields:
                self._skip(field.type)
        elif isinstance(writer, s.Union):
            self._branches(writer, self._skip)
        elif isinstance(writer, s.Array | s.Map):
            is_map = isinstance(writer, s.Map)
            inner = writer.values if isinstance(writer, s.Map) else writer.items
            begin = self._begin_items(o.SKIP_ITEMS, is_map + min_size(inner), None)
            self._mark_jump_target()
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
        """Adds an instruction that skips values, or bytes if `op` is `SKIP_FIXED`. If the previous
        instruction has the same operation, extends that instruction instead.
        """
        if len(self.code) > self._target and self.code[-1][o.OP] == op:
            self.code[-1][o.A] += argument
        else:
            self.emit(op, a=argument)
        steps = self.steps.setdefault(len(self.code) - 1, [])
        steps.append((self.code[-1][o.A], self._path))


_SIZES: Final = {s.BOOLEAN: 1, s.FLOAT: 4, s.DOUBLE: 8}
