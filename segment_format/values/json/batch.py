"""The memory of one decoding: what the kernel writes to, see `contract`.

What becomes a column is Arrow's own memory, which any thread may release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.kernels.pool_memory import allocate
from segment_format.values.json import contract as c
from segment_format.values.json.powers import powers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from segment_format.values.json.program import Node, Program

_MAX_ITEM_BYTES: Final = 1 << 30
"""Most bytes for the items of all lists and maps of a batch, as they are kept while it is read."""
_FIRST_OPEN: Final = 64
_FIRST_ITEMS: Final = 4096


@dataclass(slots=True)
class _Place:
    """Where the values of a node stand."""

    places: pa.Buffer
    data: pa.Buffer


def _zeroed(size: int) -> pa.Buffer:
    buffer = allocate(size)
    np.frombuffer(buffer, np.uint8)[:] = 0
    return buffer


class Batch:
    """The places of a program's nodes for so many rows.

    Args:
        program: Of the target type.
        rows: How many.
    """

    def __init__(self, program: Program, rows: int) -> None:
        self._program = program
        self._rows = rows
        self._code = program.code.copy()
        self._places: list[_Place] = []
        self._rooms = np.full(program.levels, min(rows, _FIRST_ITEMS), np.int64)
        self._counts = np.zeros(program.levels, np.int64)
        self._arena = allocate(c.EMPTY_BEHIND)
        self._open = np.zeros((_FIRST_OPEN, c.OPEN_SIZE), np.int64)
        self._bad = np.empty((rows, c.BAD_SIZE), np.int64)
        others = (
            np.zeros(program.levels, np.int64),
            np.zeros((program.structs * (c.KEYS_MOST + 1) + 1, c.KEY_SIZE), np.int64),
            np.zeros((program.depth + 1, c.STACK_SIZE), np.int64),
            np.zeros(c.MAX_DEPTH, np.uint8),
        )
        self._others = others  # the frame has their addresses
        self.frame: NDArray[np.int64] = np.zeros(c.FRAME_SIZE, np.int64)
        frame = self.frame
        frame[c.NODE_COUNT] = len(program.nodes)
        frame[c.LEVELS] = program.levels
        frame[c.OPEN_ROOM] = _FIRST_OPEN
        for slot, array in (
            (c.NODES, self._code),
            (c.TABLES, program.tables),
            (c.NAMES, program.names),
            (c.POWERS, powers()),
            (c.SAVED, others[0]),
            (c.MEMORY, others[1]),
            (c.STACK, others[2]),
            (c.SKIP_STACK, others[3]),
            (c.COUNTS, self._counts),
            (c.ROOMS, self._rooms),
            (c.BAD, self._bad),
            (c.OPEN, self._open),
        ):
            frame[slot] = array.ctypes.data
        frame[c.ARENA] = self._arena.address
        for node in program.nodes:
            room = int(self._rooms[node.level]) if node.level else rows
            size = room * node.width + c.EMPTY_BEHIND
            self._set(node, _Place(_zeroed(room + c.EMPTY_BEHIND), _zeroed(size)))

    def _set(self, node: Node, place: _Place) -> None:
        if node.number == len(self._places):
            self._places.append(place)
        self._places[node.number] = place
        self._code[node.number, c.PLACES] = place.places.address
        self._code[node.number, c.DATA] = place.data.address

    @property
    def bad(self) -> list[list[int]]:
        """Row, code, node and position of each bad row, as far as the kernel has found them."""
        bad: list[list[int]] = self._bad[: self.frame[c.BAD_COUNT]].tolist()
        return bad

    def add_bad(self, row: int, code: int, node: int) -> None:
        """Names one more bad row."""
        count = self.frame[c.BAD_COUNT]
        self._bad[count] = row, code, node, 0
        self.frame[c.BAD_COUNT] = count + 1

    def grow(self, status: int) -> bool:
        """Makes room as the kernel has asked for; False if that is beyond all bounds."""
        wanted = int(self.frame[c.WANTED])
        if status == c.GROW_LEVEL:
            return self._grow_level(int(self.frame[c.WANTED_LEVEL]), wanted)
        if status == c.GROW_ARENA:
            size, room = int(self.frame[c.ARENA_SIZE]), int(self.frame[c.ARENA_ROOM])
            room = max(wanted, 2 * room, 4096)
            arena = allocate(room + c.EMPTY_BEHIND)
            np.frombuffer(arena, np.uint8)[:size] = np.frombuffer(self._arena, np.uint8)[:size]
            self._arena = arena
            self.frame[c.ARENA] = arena.address
            self.frame[c.ARENA_ROOM] = room
        else:
            numbers = np.zeros((max(wanted, 2 * len(self._open)), c.OPEN_SIZE), np.int64)
            numbers[: len(self._open)] = self._open
            self._open = numbers
            self.frame[c.OPEN] = numbers.ctypes.data
            self.frame[c.OPEN_ROOM] = len(numbers)
        return True

    def _grow_level(self, level: int, wanted: int) -> bool:
        count = int(self._counts[level])
        room = max(wanted, 2 * int(self._rooms[level]), 64)
        nodes = [node for node in self._program.nodes if node.level == level]
        if self._item_bytes(level, room) > _MAX_ITEM_BYTES:
            room = wanted
            if self._item_bytes(level, room) > _MAX_ITEM_BYTES:
                return False
        self._rooms[level] = room
        for node in nodes:
            old = self._places[node.number]
            places = _zeroed(room + c.EMPTY_BEHIND)
            data = _zeroed(room * node.width + c.EMPTY_BEHIND)
            for to, source, size in (
                (places, old.places, count),
                (data, old.data, count * node.width),
            ):
                np.frombuffer(to, np.uint8)[:size] = np.frombuffer(source, np.uint8)[:size]
            self._set(node, _Place(places, data))
        return True

    def _item_bytes(self, level: int, room: int) -> int:
        """Bytes of all items if a level has room for so many."""
        return sum(
            (1 + node.width) * (room if node.level == level else int(self._rooms[node.level]))
            for node in self._program.nodes
            if node.level
        )

    @property
    def open_numbers(self) -> list[list[int]]:
        """Node, entry, position, size and row of the numbers that are left open."""
        numbers: list[list[int]] = self._open[: self.frame[c.OPEN_COUNT]].tolist()
        return numbers

    def places(self, node: Node) -> NDArray[np.uint8]:
        """A byte for each entry of a node: whether it has a value."""
        count = self.count(node)
        return np.frombuffer(self._places[node.number].places, np.uint8)[:count]

    def data(self, node: Node) -> pa.Buffer:
        """The values of a node."""
        return self._places[node.number].data

    def count(self, node: Node) -> int:
        """How many entries a node has."""
        return int(self._counts[node.level]) if node.level else self._rows

    @property
    def arena(self) -> pa.Buffer:
        """Strings unescaped."""
        return self._arena
