"""A writer's and a reader's schema, compiled to a program for the kernel.

What of a writer's union the reader cannot take fails the values that have it, and no others; what
cannot be taken in any value is an error here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from segment_format.values.avro import columns as k
from segment_format.values.avro import opcodes as o
from segment_format.values.avro import schema as s
from segment_format.values.avro.columns import schema_logical
from segment_format.values.avro.defaults import default_bytes
from segment_format.values.avro.resolution import (
    branch_for,
    least_size,
    mismatch,
    writer_fields,
)
from segment_format.values.avro.schema import AvroSchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from segment_format.values.avro.columns import Column
    from segment_format.values.avro.schema import Schema

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
