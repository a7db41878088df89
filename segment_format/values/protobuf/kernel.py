"""The loop over the bytes of values: fields to columns, by a program.

Fields come in any order and more than once. So numbers are stored where their entry stands, and
what comes later replaces them; a message that comes again goes on where it was; elements are
appended. What a value has not is zero, as all columns are before. Offsets are written when an entry
ends. A value that is bad, and the member of a oneof that another one replaces, are cleared, back to
where their elements began.

When there is no room, the kernel returns before it has touched the field, and goes on there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.memory import load_u8, load_u32_native, load_word, store_u8
from segment_format.kernels.utf8 import utf8_size
from segment_format.values.frames import get, put
from segment_format.values.protobuf import contract as c
from segment_format.values.protobuf.fill_kernel import (
    ENTRY_BYTES,
    at_i32,
    clear_entries,
    end_entry,
    find_entry,
    has_number,
    has_room,
    node_at,
    store_number,
    take_place,
)
from segment_format.values.protobuf.wire import BYTES, END_GROUP, FIXED64, VARINT
from segment_format.values.protobuf.wire_kernel import (
    EIGHT,
    FOUR,
    NOWHERE,
    ONE,
    copy_text,
    count_varints,
    low_32,
    read_size,
    read_u32,
    read_u64,
    skip_field,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_FRAME_BYTES = np.uint64(8 * c.FRAME_SIZE)
_SEVEN = np.uint64(7)
_THREE = np.uint64(3)
_UNKNOWN = np.int64(-1)


@inlined
def _read_number(wire: Value, at: Address, stop: Address) -> Value:
    if wire == VARINT:
        return read_u64(at, stop)
    if wire == FIXED64:
        if stop - at < EIGHT:
            return NOWHERE, NOWHERE
        return load_word(at), at + EIGHT
    if stop - at < FOUR:
        return NOWHERE, NOWHERE
    return load_u32_native(at), at + FOUR


@helper
def _packed(state: Address, entry: Address, at: Address, stop: Address) -> Value:
    """(reason, next address) of a packed field whose tag was read."""
    size, at = read_size(at, stop)
    if at == NOWHERE:
        return c.BAD_LENGTH, NOWHERE
    stop = at + size
    wire = get(entry, c.WIRE)
    level = get(entry, c.LEVEL)
    op = get(entry, c.OP)
    width = np.uint64(get(entry, c.WIDTH))
    if wire == VARINT:
        count = count_varints(at, stop)
    elif wire == FIXED64:
        count = np.int64(size >> _THREE)
    else:
        count = np.int64(size >> np.uint64(2))
    if not has_room(state, level, count):
        return c.GROW, NOWHERE
    counts = np.uint64(get(state, c.COUNTS))
    index = get(counts, level)
    base = np.uint64(get(np.uint64(get(state, c.BASES)), get(entry, c.COLUMN)))
    target = base + np.uint64(index) * width
    while at < stop:
        raw, at = _read_number(wire, at, stop)
        if at == NOWHERE:
            return c.BAD_PACKED, NOWHERE
        if op != c.CLOSED_ENUM or has_number(state, entry, low_32(raw)):
            store_number(op, target, raw)
            target += width
            index += 1
            put(counts, level, index)
    return c.DONE, at


@inlined
def _text(state: Address, entry: Address, at: Address, stop: Address, readable: Address) -> Value:
    """(reason, next address) of a text whose tag was read; it replaces the one before."""
    size, at = read_size(at, stop)
    if at == NOWHERE:
        return c.BAD_LENGTH, NOWHERE
    level = get(entry, c.LEVEL)
    data = get(entry, c.TEXT_LEVEL)
    counts = np.uint64(get(state, c.COUNTS))
    offsets = np.uint64(get(np.uint64(get(state, c.OFFSETS)), data))
    start = at_i32(offsets, get(counts, level))
    wanted = start + np.int64(size)
    if wanted > get(np.uint64(get(state, c.ROOMS)), data):
        put(state, c.LEVEL_WANTED, data)
        put(state, c.ROOM_WANTED, wanted)
        return c.GROW, NOWHERE
    target = np.uint64(get(np.uint64(get(state, c.BYTES)), data)) + np.uint64(start)
    if not copy_text(target, at, size, readable) and get(entry, c.OP) == c.TEXT:
        _, malformed = utf8_size(at, size)
        if malformed > 0:
            return c.BAD_TEXT, NOWHERE
    put(counts, data, wanted)
    return c.DONE, at + size


@inlined
def _begin_message(
    state: Address, index: Value, entry: Address, at: Address, stop: Address, depth: Value
) -> Value:
    """(reason, next address) of a message or group whose tag was read; its frame is pushed."""
    op = get(entry, c.OP)
    group = np.int64(0)
    if op == c.MESSAGE:
        size, at = read_size(at, stop)
        if at == NOWHERE:
            return c.BAD_LENGTH, NOWHERE
        stop = at + size
    else:
        group = get(entry, c.NUMBER)
    if depth + 1 > c.MOST_DEPTH:
        return c.TOO_DEEP, NOWHERE
    frame = np.uint64(get(state, c.STACK)) + _FRAME_BYTES * np.uint64(depth + 1)
    put(frame, c.FRAME_NODE, get(entry, c.NODE))
    put(frame, c.FRAME_STOP, np.int64(stop))
    put(frame, c.FRAME_GROUP, group)
    put(frame, c.FRAME_ENTRY, index)
    put(frame, c.FRAME_DROPPED, 0)
    return c.DONE, at


@inlined
def _end_message(state: Address, frame: Address) -> None:
    """The message of a frame is over."""
    index = get(frame, c.FRAME_ENTRY)
    if index < 0:
        end_entry(state, np.int64(0))
        return
    entry = np.uint64(get(state, c.ENTRIES)) + ENTRY_BYTES * np.uint64(index)
    if get(frame, c.FRAME_DROPPED) != 0:
        clear_entries(
            state,
            get(entry, c.FIRST_COLUMN),
            get(entry, c.STOP_COLUMN),
            get(entry, c.FIRST_LEVEL),
            get(entry, c.STOP_LEVEL),
        )
    elif get(entry, c.REPEATED) != 0:
        end_entry(state, get(entry, c.LEVEL))


@inlined
def _begin_value(state: Address, row: Value) -> Value:
    """(whether there is one, reason, its first byte); the frame of one is set."""
    valid = np.uint64(get(state, c.VALID))
    if valid != NOWHERE:
        bit = np.uint64(row + get(state, c.VALID_SHIFT))
        if load_u8(valid + (bit >> _THREE)) >> (bit & _SEVEN) & ONE == NOWHERE:
            return False, c.DONE, NOWHERE
    ends = np.uint64(get(state, c.ENDS))
    data = np.uint64(get(state, c.DATA))
    at = data + np.uint64(at_i32(ends, row))
    stop = data + np.uint64(at_i32(ends, row + 1))
    reason = np.int64(c.DONE)
    starts = np.uint64(get(state, c.STARTS))
    if starts != NOWHERE:
        start = at_i32(starts, row)
        if np.uint64(start) > stop - at:  # −1 is more than any size
            reason = np.int64(c.BAD_START)
        else:
            at += np.uint64(start)
    frame = np.uint64(get(state, c.STACK))
    put(frame, c.FRAME_NODE, 0)
    put(frame, c.FRAME_STOP, np.int64(stop))
    put(frame, c.FRAME_GROUP, 0)
    put(frame, c.FRAME_ENTRY, -1)
    put(frame, c.FRAME_DROPPED, 0)
    store_u8(np.uint64(get(np.uint64(get(state, c.BASES)), 0)) + np.uint64(row), np.int64(1))
    return True, reason, at


@inlined
def _read_field(
    state: Address,
    index: Value,
    wire: Value,
    at: Address,
    stop: Address,
    readable: Address,
    depth: Value,
) -> Value:
    """(reason, next address, depth) behind a known field whose tag was read.

    The depth is one more where a message begins, and −1 where the field is an unknown one since its
    wire type is not its own.
    """
    entry = np.uint64(get(state, c.ENTRIES)) + ENTRY_BYTES * np.uint64(index)
    op = get(entry, c.OP)
    repeated = get(entry, c.REPEATED) != 0
    if wire != get(entry, c.WIRE):
        if wire == BYTES and repeated and op < c.TEXT:
            reason, at = _packed(state, entry, at, stop)
            return reason, at, depth
        return np.int64(c.DONE), at, _UNKNOWN
    level = get(entry, c.LEVEL)
    if repeated and not has_room(state, level, 1):
        return np.int64(c.GROW), NOWHERE, depth
    level_index = get(np.uint64(get(state, c.COUNTS)), level)
    if op < c.TEXT:
        raw, at = _read_number(wire, at, stop)
        if at == NOWHERE:
            return np.int64(c.BAD_NUMBER), NOWHERE, depth
        if op == c.CLOSED_ENUM and not has_number(state, entry, low_32(raw)):
            if get(entry, c.DROPS) != 0:
                frame = np.uint64(get(state, c.STACK)) + _FRAME_BYTES * np.uint64(depth)
                put(frame, c.FRAME_DROPPED, 1)
            return np.int64(c.DONE), at, depth
        if not repeated:
            take_place(state, entry, index, level_index)
        base = np.uint64(get(np.uint64(get(state, c.BASES)), get(entry, c.COLUMN)))
        store_number(op, base + np.uint64(level_index) * np.uint64(get(entry, c.WIDTH)), raw)
        if repeated:
            end_entry(state, level)
        return np.int64(c.DONE), at, depth
    if not repeated:
        take_place(state, entry, index, level_index)
    if op < c.MESSAGE:
        reason, at = _text(state, entry, at, stop, readable)
        if repeated and reason == c.DONE:
            end_entry(state, level)
        return np.int64(reason), at, depth
    reason, at = _begin_message(state, index, entry, at, stop, depth)
    return np.int64(reason), at, depth + 1


@kernel("int64(uint64)")
def decode_values(state: Address) -> Value:
    """Decodes values from where the state says on, until all are done (`DONE`), there is no room
    (`GROW`), or one is bad: the reason. Called again, it goes on.

    Args:
        state: Address of the numbers that `contract` names.
    """
    counts = np.uint64(get(state, c.COUNTS))
    stack = np.uint64(get(state, c.STACK))
    rows = get(state, c.ROWS)
    readable = np.uint64(get(state, c.DATA))
    if rows > 0:
        readable += np.uint64(at_i32(np.uint64(get(state, c.ENDS)), rows))
    depth = get(state, c.DEPTH)
    at = np.uint64(get(state, c.POSITION))
    row = get(counts, 0)
    while row < rows:
        reason = np.int64(c.DONE)
        index = np.int64(-1)
        if depth < 0:
            is_there, reason, at = _begin_value(state, row)
            if not is_there:
                end_entry(state, np.int64(0))
                row += 1
                continue
            depth = np.int64(0)
        elif get(state, c.FAIL) != 0:
            reason = get(state, c.FAIL)
            index = get(state, c.BAD_ENTRY)
            put(state, c.FAIL, 0)
        frame = stack + _FRAME_BYTES * np.uint64(depth)
        stop = np.uint64(get(frame, c.FRAME_STOP))
        group = get(frame, c.FRAME_GROUP)
        node = node_at(state, get(frame, c.FRAME_NODE))
        while reason == c.DONE:
            index = np.int64(-1)
            if at == stop:
                if group != 0:
                    reason = np.int64(c.BAD_GROUP)
                    break
                ended = True
            else:
                field = at
                tag, at = read_u32(at, stop)
                if at == NOWHERE or tag < EIGHT:
                    reason = np.int64(c.BAD_TAG)
                    break
                wire = np.int64(tag & _SEVEN)
                number = np.int64(tag >> _THREE)
                ended = wire == END_GROUP
                if ended and number != group:
                    reason = np.int64(c.BAD_GROUP)
                    break
            if ended:
                _end_message(state, frame)
                depth -= 1
                if depth < 0:
                    break
            else:
                index = find_entry(state, node, number)
                inner = np.int64(-1)
                if index >= 0:
                    reason, following, inner = _read_field(
                        state, index, wire, at, stop, readable, depth
                    )
                    if reason != c.DONE:
                        if reason == c.GROW:
                            put(state, c.BAD_ENTRY, index)
                            put(state, c.POSITION, np.int64(field))
                            put(state, c.DEPTH, depth)
                            return reason
                        break
                    at = following
                if inner < 0:
                    reason, following = skip_field(number, wire, at, stop, stack, depth)
                    if reason != c.DONE:
                        break
                    at = following
                    continue
                if inner == depth:
                    continue
                depth = inner
            frame = stack + _FRAME_BYTES * np.uint64(depth)
            stop = np.uint64(get(frame, c.FRAME_STOP))
            group = get(frame, c.FRAME_GROUP)
            node = node_at(state, get(frame, c.FRAME_NODE))
        row += 1
        if reason != c.DONE:
            clear_entries(
                state, np.int64(0), get(state, c.COLUMN_COUNT), np.int64(1),
                get(state, c.LEVEL_COUNT),
            )  # fmt: skip
            end_entry(state, np.int64(0))
            put(state, c.BAD_ROW, row - 1)
            put(state, c.BAD_ENTRY, index)
            put(state, c.BAD_DEPTH, depth)
            put(state, c.DEPTH, -1)
            return reason
    return np.int64(c.DONE)
