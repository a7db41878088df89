"""Translates conditions of engines to conditions of option `where`.

The text of a `pyarrow.compute.Expression` is ambiguous, because it escapes neither names nor
literals. Therefore this module parses the pickled form of expressions (see `_tree`).

Of the terms that the outermost AND combines, it translates:

* comparisons of offset, partition and timestamp with a literal
* `topic = 'name'`
* comparisons that `field_comparison` supports

The caller applies the whole expression to the returned rows, so an untranslated term does not
change the result.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kts_source.columns import PARTITION, TOPIC
from kts_source.planning.slicing import conjunction
from kts_source.predicate.model import (
    MAX_INT64,
    MIN_INT64,
    Column,
    Compare,
    Field,
    Kind,
    Op,
    find_field,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow.compute as pc

    from kts_source.predicate.model import Predicate

_OPS: Final = {
    "equal": Op.EQ,
    "less": Op.LT,
    "less_equal": Op.LE,
    "greater": Op.GT,
    "greater_equal": Op.GE,
}
_ANDS: Final = ("and_kleene", "and")
_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1000, "us": 1}


@dataclass(frozen=True, slots=True)
class _Reference:
    """A reference to a column or to a nested field. `names` contains the name of the column and
    then the names of the nested fields.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Literal:
    """A literal, as an Arrow scalar."""

    scalar: Any


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an Arrow compute function."""

    function: str
    arguments: tuple[_Node, ...]
    has_options: bool


_Node = _Reference | _Literal | _Call


def implied_condition(expression: pc.Expression, schema: pa.Schema) -> Predicate | None:
    """Translates the supported terms of an expression to one condition. If the expression is true
    for a row, the condition is also true for this row.

    Args:
        expression: A boolean expression over the rows.
        schema: Schema of the rows.

    Returns:
        The condition; `None` if no term could be translated.
    """
    tree = _tree(expression)
    if tree is None:
        return None
    return conjunction(*(_translated(term, schema) for term in _terms(tree)))


def columns_in(expression: pc.Expression, columns: Iterable[str]) -> tuple[str, ...]:
    """Returns those of `columns` that an expression uses, or all columns if the expression refers
    to columns by number or cannot be parsed.
    """
    tree = _tree(expression)
    if tree is None:
        return tuple(columns)
    names = set()
    pending: list[_Node] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _Reference):
            names.add(node.names[0])
        elif isinstance(node, _Call):
            pending.extend(node.arguments)
    return tuple(name for name in columns if name in names)


# --- The serialized form -------------------------------------------------------------------------


def _tree(expression: pc.Expression) -> _Node | None:
    """Returns the expression as a tree. Returns `None` if the expression cannot be parsed.

    A pickled expression contains an Arrow file with one record batch of one row. The columns of
    this batch contain the literals and options. The metadata of the file's schema is a list of
    pairs (key, value), which are the nodes in prefix order:

    * A call: `call` with the function's name, the nodes of the arguments, and `end` with the
      function's name. If the call has options, a pair `options` with the number of the column with
      the options is before `end`.
    * A literal: `literal` with the number of the column that contains it.
    * A column: `field_ref` with its name.
    * A nested field: `nested_field_ref` with the number of names, and a `field_ref` for each name.

    pyarrow cannot pickle an expression that refers to columns by number.
    """
    try:
        _, (data, *_) = expression.__reduce__()
        batch = pa.ipc.open_file(data).get_batch(0)
        return _parsed(_metadata(batch.schema), batch)
    except (pa.ArrowException, ValueError, TypeError, IndexError):
        return None


def _parsed(pairs: list[tuple[str, str]], batch: pa.RecordBatch) -> _Node:
    calls: list[tuple[str, list[_Node]]] = [("", [])]
    with_options: set[int] = set()
    entries = iter(pairs)
    for key, text in entries:
        _, siblings = calls[-1]
        if key == "call":
            calls.append((text, []))
        elif key == "end" and len(calls) > 1 and text == calls[-1][0]:
            has_options = len(calls) in with_options
            with_options.discard(len(calls))
            function, arguments = calls.pop()
            calls[-1][1].append(_Call(function, tuple(arguments), has_options))
        elif key == "options" and len(calls) > 1:
            with_options.add(len(calls))
        elif key == "literal":
            siblings.append(_Literal(batch.column(int(text))[0]))
        elif key == "field_ref":
            siblings.append(_Reference((text,)))
        elif key == "nested_field_ref" and int(text) > 0:
            siblings.append(_Reference(tuple(_names(entries, int(text)))))
        else:
            raise ValueError(f"a pickled expression has the unknown entry {key}, {text!r}")
    ((_, roots),) = calls
    (root,) = roots
    return root


def _names(entries: Iterator[tuple[str, str]], count: int) -> Iterator[str]:
    for _ in range(count):
        key, name = next(entries, ("", ""))
        if key != "field_ref":
            raise ValueError("a field reference does not consist of names")
        yield name


class _ArrowSchema(ctypes.Structure):
    """The first members of the struct `ArrowSchema` in Arrow's C data interface."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Returns the metadata of a schema as pairs in order. `Schema.metadata` cannot be used, because
    it is a dict and drops repeated keys.
    """
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = schema.__arrow_c_schema__()  # owns the memory
    position = _ArrowSchema.from_address(pointer(capsule, b"arrow_schema")).metadata
    if not position:
        raise ValueError("a pickled expression has no metadata")

    def number() -> int:
        nonlocal position
        position += 4
        return ctypes.c_int32.from_address(position - 4).value

    def text() -> str:
        nonlocal position
        size = number()
        position += size
        return ctypes.string_at(position - size, size).decode()

    return [(text(), text()) for _ in range(number())]


# --- Translation ---------------------------------------------------------------------------------


def _terms(tree: _Node) -> Iterator[_Node]:
    """Yields the terms that the outermost ANDs of an expression combine. If the expression is no
    AND, yields the expression.
    """
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _Call) and node.function in _ANDS and not node.has_options:
            pending.extend(reversed(node.arguments))
        else:
            yield node


def _translated(term: _Node, schema: pa.Schema) -> Predicate | None:
    if not isinstance(term, _Call) or term.has_options:
        return None
    op = _OPS.get(term.function)
    match op, term.arguments:
        case Op(), (_Reference(names), _Literal(scalar)):
            return _comparison(names, op, scalar, schema)
        case Op(), (_Literal(scalar), _Reference(names)):
            return _comparison(names, op.flipped, scalar, schema)
    return None


def _comparison(
    names: tuple[str, ...],
    op: Op,
    scalar: Any,  # noqa: ANN401  # pyarrow ships no types
    schema: pa.Schema,
) -> Predicate | None:
    if not scalar.is_valid or schema.names.count(names[0]) != 1:
        return None
    number, text = _whole_number(scalar), _text(scalar)
    if len(names) > 1:
        literal = text if number is None else number
        return None if literal is None else field_comparison(schema, names, op, literal)
    (name,) = names
    if name in ("offset", PARTITION):
        return None if number is None else Compare(op, Column(name), number)
    if name == "timestamp":
        micros = _instant(scalar)
        return None if micros is None else Compare(op, Column(name), micros)
    if name == TOPIC and op is Op.EQ and text is not None:
        return Compare(op, Column(name), text.encode())
    return None


def _whole_number(scalar: Any) -> int | None:  # noqa: ANN401
    """Returns the value of an integer scalar; `None` for other types. Also returns `None` for
    uint64, because Arrow casts it before a comparison.
    """
    if not pa.types.is_integer(scalar.type) or scalar.type == pa.uint64():
        return None
    return int(scalar.as_py())


def _text(scalar: Any) -> str | None:  # noqa: ANN401
    """Returns the value of a string scalar; `None` for other types and for invalid UTF-8."""
    if not (pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type)):
        return None
    try:
        return str(scalar.as_py())
    except UnicodeDecodeError:
        return None


def _instant(scalar: Any) -> int | None:  # noqa: ANN401
    """Returns the value of a timestamp scalar with time zone, in microseconds since 1970. Returns
    `None` for other types and for units that cannot be converted exactly.
    """
    kind = scalar.type
    if not pa.types.is_timestamp(kind) or kind.tz is None or kind.unit not in _MICROSECONDS:
        return None
    micros = int(scalar.value) * _MICROSECONDS[kind.unit]
    return micros if MIN_INT64 <= micros <= MAX_INT64 else None


def field_comparison(
    schema: pa.Schema, names: Sequence[str], op: Op, literal: int | str
) -> Predicate | None:
    """Returns the comparison of a decoded field with a literal. Returns `None` if engines may
    evaluate it differently.

    Supports integer fields with integer literals in the range of the field, because all engines
    compare them exactly. Supports text fields only for equality. If the field is null, the
    comparison is not true, as in all engines.
    """
    source, *path = names
    if not path or source not in ("key", "value") or source not in schema.names:
        return None
    try:
        exact, kind = find_field(schema.field(source).type, path)
    except ValueError:
        return None
    if exact != tuple(path):
        return None
    if isinstance(literal, str):
        if op is not Op.EQ or not pa.types.is_string(kind):
            return None
        return Compare(op, Field(source, exact, Kind.BYTES), literal.encode())
    if not pa.types.is_signed_integer(kind):
        return None
    limit = 1 << (kind.bit_width - 1)
    if not -limit <= literal < limit:
        return None
    return Compare(op, Field(source, exact, Kind.NUMBER), literal)
