"""Compiles the type of the result to a program. `contract` defines the layout of programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.values.json import contract as c
from segment_format.values.json.contract import name_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


_SCALARS: Final[dict[pa.DataType, tuple[int, int]]] = {
    pa.bool_(): (c.BOOL, 1),
    pa.int32(): (c.INT32, 4),
    pa.int64(): (c.INT64, 8),
    pa.float32(): (c.SINGLE, 4),
    pa.float64(): (c.DOUBLE, 8),
    pa.string(): (c.TEXT, 8),
    pa.binary(): (c.BINARY, 8),
    pa.date32(): (c.DATE, 4),
    pa.timestamp("us", "UTC"): (c.TIMESTAMP, 8),
    pa.timestamp("us"): (c.TIMESTAMP_NTZ, 8),
}
"""Type -> op and bytes of a value."""
_MAX_TYPE_DEPTH: Final = 100


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a program: the type of the result, or a type nested in it.

    Attributes:
        number: Number of the node in preorder, from 0.
        path: Path of the field: names joined by dots.
        level: Number of the node's level, see `contract`.
        required: True if null is an error.
        op: Kind of value, see `contract`.
        width: Size of a value in bytes.
        children: A struct's fields, a list's item, or a map's key and value.
        items: Number of the level of the items, if it is a list or map; 0 for other types.
    """

    number: int
    type: pa.DataType
    path: str
    level: int
    required: bool
    op: int
    width: int
    children: tuple[Node, ...] = ()
    items: int = 0

    def walk(self) -> Iterator[Node]:
        """Yields the node and all nodes below it, in preorder."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The compiled type of the result.

    Attributes:
        root: Node of the whole type.
        nodes: All nodes, by number.
        depth: Maximum number of nested objects and arrays.
        code: The nodes in the layout of `contract`, without addresses.
        tables: Hash tables by which the kernel finds the fields of structs.
        names: Bytes of the names of all fields, with padding at the end.
        structs: Number of struct nodes. The kernel remembers keys for each of them.
    """

    root: Node
    nodes: tuple[Node, ...]
    levels: int
    depth: int
    code: NDArray[np.int64]
    tables: NDArray[np.int64]
    names: NDArray[np.uint8]
    structs: int


class _Builder:
    """Builds the nodes of a type, and assigns numbers to nodes and levels."""

    def __init__(self) -> None:
        self.levels = 1
        self.depth = 0
        self._number = -1

    def node(self, kind: pa.DataType, path: str, level: int, required: bool, depth: int) -> Node:
        self.depth = max(self.depth, depth)
        if depth > _MAX_TYPE_DEPTH:
            raise ValueError(
                f"types nested more than {_MAX_TYPE_DEPTH} levels deep are not decoded from JSON"
            )
        self._number += 1
        number = self._number
        if kind in _SCALARS:
            op, width = _SCALARS[kind]
            return Node(number, kind, path, level, required, op, width)
        if pa.types.is_decimal128(kind):
            if not 0 <= kind.scale <= kind.precision:
                raise ValueError(f"{_where(path)}{kind}: its scale must be in [0, precision]")
            return Node(number, kind, path, level, required, c.DECIMAL, 16)
        if pa.types.is_struct(kind):
            names = [field.name for field in kind]
            if len(set(names)) < len(names):
                raise ValueError(
                    f"{_where(path)}two fields of a struct have the same name: {names}"
                )
            fields = tuple(
                self.node(field.type, _join(path, field.name), level, not field.nullable, depth + 1)
                for field in kind
            )
            return Node(number, kind, path, level, required, c.STRUCT, 0, fields)
        if pa.types.is_list(kind):
            items = self._level()
            item = kind.value_field
            child = self.node(item.type, path, items, not item.nullable, depth + 1)
            return Node(number, kind, path, level, required, c.LIST, 8, (child,), items)
        if pa.types.is_map(kind) and pa.types.is_string(kind.key_type) and not kind.keys_sorted:
            items = self._level()
            item = kind.item_field
            key = self.node(kind.key_type, path, items, True, depth + 1)
            value = self.node(item.type, path, items, not item.nullable, depth + 1)
            return Node(number, kind, path, level, required, c.MAP, 8, (key, value), items)
        raise ValueError(
            f"{_where(path)}{kind} is not decoded from JSON; supported are bool, int32, int64,"
            " float, double, string, binary, decimal128, date32, timestamp[us],"
            " timestamp[us, tz=UTC], struct, list, and map with string keys"
        )

    def _level(self) -> int:
        self.levels += 1
        return self.levels - 1


def compiled(kind: pa.DataType) -> Program:
    """Compiles a type.

    Raises:
        ValueError: JSON cannot be decoded to the type, or to a type nested in it.
    """
    builder = _Builder()
    root = builder.node(kind, "", 0, False, 0)
    nodes = tuple(root.walk())
    code = np.zeros((len(nodes), c.NODE_SIZE), np.int64)
    tables: list[tuple[int, int, int]] = []
    names = bytearray()
    structs = 0
    for node, row in zip(nodes, code, strict=True):
        row[c.OP] = node.op
        row[c.LEVEL] = node.level
        row[c.ITEMS] = node.items
        row[c.STOP] = node.number + sum(1 for _ in node.walk())
        row[c.REQUIRED] = node.required
        row[c.NUMBER] = node.number
        row[c.WIDTH] = node.width
        if node.op == c.DECIMAL:
            row[c.SCALE] = node.type.scale
            row[c.PRECISION] = node.type.precision
        if node.op == c.STRUCT:
            table = _table(node, names)
            row[c.TABLE] = len(tables)
            row[c.TABLE_MASK] = len(table) - 1
            row[c.KEYS] = structs * (c.MAX_KEYS + 1)
            row[c.HAS_REQUIRED] = any(child.required for child in node.children)
            tables += table
            structs += 1
    return Program(
        *(root, nodes, builder.levels, builder.depth),
        *(code, np.array(tables or [(0, 0, 0)], np.int64)),
        np.frombuffer(bytes(names) + bytes(c.READ_AHEAD), np.uint8),
        structs,
    )


def _table(node: Node, names: bytearray) -> list[tuple[int, int, int]]:
    """Returns a hash table of the fields of a struct. At most half of its entries are used. Appends
    the names of the fields to `names`.
    """
    size = 2
    while size < 2 * len(node.children):
        size *= 2
    table = [(0, 0, 0)] * size
    for child, field in zip(node.children, node.type, strict=True):
        name = field.name.encode()
        index = name_hash(name) % size
        while table[index][2]:
            index = (index + 1) % size
        table[index] = (len(names), len(name), child.number)
        names += name
    return table


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _where(path: str) -> str:
    return f"{path}: " if path else ""


def projected(kind: pa.DataType, columns: Sequence[str]) -> pa.DataType:
    """Returns the type with only the fields that `columns` select. The fields keep their order.

    Args:
        kind: A struct.
        columns: Paths of fields: names joined by dots. The path of a struct selects all its fields.
            Names may contain dots.

    Raises:
        ValueError: A path does not name a field, or selects a field inside a type that is not a
            struct.
    """
    return _projected(kind, tuple(columns), "")


def _projected(kind: pa.DataType, columns: tuple[str, ...], above: str) -> pa.DataType:
    if not pa.types.is_struct(kind):
        where = f"field {above!r}" if above else "the value"
        raise ValueError(f"{where} is a {kind}, so it has no field {columns[0]!r}")
    names = [field.name for field in kind]
    below: dict[str, list[str | None]] = {}
    for column in columns:
        # The longest matching name wins: names may contain dots.
        fitting = [name for name in names if column == name or column.startswith(f"{name}.")]
        if not fitting:
            wrong = f"{above}.{column}" if above else column
            raise ValueError(f"there is no field {wrong!r}; the fields are {', '.join(names)}")
        name = max(fitting, key=len)
        rest = None if column == name else column[len(name) + 1 :]
        below.setdefault(name, []).append(rest)
    fields = []
    for field in kind:
        wanted = below.get(field.name, [])
        if None in wanted:
            fields.append(field)
        elif wanted:
            path = f"{above}.{field.name}" if above else field.name
            inner = tuple(rest for rest in wanted if rest is not None)
            fields.append(field.with_type(_projected(field.type, inner, path)))
    return pa.struct(fields)
