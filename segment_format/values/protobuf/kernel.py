"""Contains the kernel that decodes messages into columns.

The fields of a message may have any order and may occur several times. The kernel stores the values
of fields as follows:

* A number is stored at the current entry of its level. It replaces an earlier number of the same
  field.
* A message is merged into an earlier message of the same field.
* Elements of lists and maps are appended.
* Absent fields are zero, because all columns are zero at first.

The Arrow list offsets of an entry are written when the entry ends. If a value is bad, all data
written for it is cleared, including its elements. A member of a oneof that another member replaces
is cleared, too. If a buffer is full, the kernel returns before it changes anything for the current
field, and the next call continues with this field.

Functions named `read_…` never read at or after `stop`. They return the value and the next address,
which is 0 on failure. The limits are those of Google's upb: five bytes for tags and lengths, ten
bytes for numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.primitives import (
    copy_text,
    fill_bytes,
    get,
    is_utf8,
    load_u8,
    load_u32_native,
    load_word,
    long_varint,
    put,
    store_i32,
    store_i64,
    store_u8,
    zigzag,
)
from segment_format.values.protobuf import contract as c
from segment_format.values.protobuf.schema import BYTES, END_GROUP, FIXED32, FIXED64, GROUP, VARINT

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value


NOWHERE = np.uint64(0)
ONE = np.uint64(1)
FOUR = np.uint64(4)
EIGHT = np.uint64(8)
_CONTINUED = np.uint64(0x80)
_SEVEN = np.uint64(7)
_MAX_U32 = np.uint64(0xFFFFFFFF)
_MAX_SIZE = np.uint64(0x7FFFFFFF)


@inlined
def read_u64(address: Address, stop: Address) -> Value:
    """Reads a varint of up to ten bytes as a number of 64 bits. Drops higher bits."""
    if address < stop:
        first = load_u8(address)
        if first < _CONTINUED:
            return first, address + ONE
    return long_varint(address, stop, np.uint64(10))


@inlined
def read_u32(address: Address, stop: Address) -> Value:
    """Reads a tag or a length: a varint of up to 32 bits."""
    if address < stop:
        first = load_u8(address)
        if first < _CONTINUED:
            return first, address + ONE
    raw, following = long_varint(address, stop, np.uint64(5))
    if raw > _MAX_U32:
        return raw, NOWHERE
    return raw, following


@inlined
def read_size(address: Address, stop: Address) -> Value:
    """Reads a length. Returns the length and the address of the content, which follows the length.
    Fails if the content would end after `stop`.
    """
    size, start = read_u32(address, stop)
    if start == NOWHERE or size > _MAX_SIZE or size > stop - start:
        return size, NOWHERE
    return size, start


@inlined
def low_32(raw: Value) -> Value:
    """Returns the low 32 bits of `raw` as a signed number."""
    return np.int64(np.int32(raw & _MAX_U32))


@helper
def count_varints(address: Address, stop: Address) -> Value:
    """Counts the complete varints between two addresses."""
    count = np.int64(0)
    while address < stop:
        count += np.int64(load_u8(address) < _CONTINUED)
        address += ONE
    return count


@inlined
def _skip_plain(wire: Value, address: Address, stop: Address) -> Value:
    """Skips the value of an unknown field that is not a group. Returns (status, next address). The
    status is `DONE` or the reason why the value is malformed.
    """
    if wire == BYTES:
        size, start = read_size(address, stop)
        if start == NOWHERE:
            return c.BAD_LENGTH, NOWHERE
        return c.DONE, start + size
    if wire == VARINT:
        _, following = read_u64(address, stop)
        if following == NOWHERE:
            return c.BAD_NUMBER, NOWHERE
        return c.DONE, following
    size = EIGHT
    if wire == FIXED32:
        size = FOUR
    elif wire != FIXED64:
        return c.BAD_TAG, NOWHERE
    if size > stop - address:
        return c.BAD_LENGTH, NOWHERE
    return c.DONE, address + size


@helper
def _skip_group(
    number: Value, address: Address, stop: Address, stack: Address, depth: Value
) -> Value:
    top = depth + 1
    if top > c.MAX_DEPTH:
        return c.TOO_DEEP, NOWHERE
    put(stack, top * c.FRAME_SIZE + c.FRAME_GROUP, number)
    while address < stop:
        tag, address = read_u32(address, stop)
        if address == NOWHERE:
            return c.BAD_TAG, NOWHERE
        inner = np.int64(tag >> np.uint64(3))
        kind = np.int64(tag & _SEVEN)
        if kind == GROUP:
            top += 1
            if top > c.MAX_DEPTH:
                return c.TOO_DEEP, NOWHERE
            put(stack, top * c.FRAME_SIZE + c.FRAME_GROUP, inner)
        elif kind == END_GROUP:
            if inner != get(stack, top * c.FRAME_SIZE + c.FRAME_GROUP):
                return c.BAD_GROUP, NOWHERE
            top -= 1
            if top == depth:
                return c.DONE, address
        else:
            reason, address = _skip_plain(kind, address, stop)
            if reason != c.DONE:
                return reason, NOWHERE
    return c.BAD_GROUP, NOWHERE


@inlined
def skip_field(
    number: Value, wire: Value, address: Address, stop: Address, stack: Address, depth: Value
) -> Value:
    """Skips the value of an unknown field, from the address after its tag. Returns (status, next
    address). The status is `DONE` or the reason why the value is malformed. Groups are pushed onto
    the stack above frame `depth`.

    As in upb, the invalid field number 0 is accepted inside groups.
    """
    if wire == GROUP:
        return _skip_group(number, address, stop, stack, depth)
    return _skip_plain(wire, address, stop)


ENTRY_BYTES = np.uint64(8 * c.ENTRY_SIZE)
_MASK_32 = np.uint64(0xFFFFFFFF)


@inlined
def at_i32(base: Address, index: Value) -> Value:
    """Returns element `index` of the int32 array at address `base`."""
    return np.int64(load_u32_native(base + (np.uint64(index) << np.uint64(2))))


@inlined
def end_entry(state: Address, level: Value) -> None:
    """Ends the current entry of a level. Writes the end of the entry's elements to the offsets of
    each child level.
    """
    counts = np.uint64(get(state, c.COUNTS))
    index = get(counts, level) + 1
    row = np.uint64(get(state, c.LEVELS)) + np.uint64(8 * c.LEVEL_SIZE) * np.uint64(level)
    kids = get(row, c.KID_COUNT)
    if kids > 0:
        kid = np.uint64(get(state, c.KIDS)) + EIGHT * np.uint64(get(row, c.KID))
        offsets = np.uint64(get(state, c.OFFSETS))
        for each in range(kids):
            child = get(kid, each)
            target = np.uint64(get(offsets, child)) + FOUR * np.uint64(index)
            store_i32(target, get(counts, child))
    put(counts, level, index)


@helper
def clear_entries(
    state: Address, column: Value, stop_column: Value, first_level: Value, stop_level: Value
) -> None:
    """Clears all data that was written for the current entry to a range of columns and to a range
    of levels.

    If a level is in the range, it loses all entries that belong to the current entry of its parent
    level. If the level of a column is not in the range, the column is cleared only at the current
    entry of its level.
    """
    counts = np.uint64(get(state, c.COUNTS))
    before = np.uint64(get(state, c.BEFORE))
    capacities = np.uint64(get(state, c.CAPACITIES))
    offsets = np.uint64(get(state, c.OFFSETS))
    levels = np.uint64(get(state, c.LEVELS))
    for level in range(first_level, stop_level):  # parents come first
        parent = get(levels, level * c.LEVEL_SIZE + c.PARENT)
        put(before, level, get(counts, level))
        put(counts, level, at_i32(np.uint64(get(offsets, level)), get(counts, parent)))
    columns = np.uint64(get(state, c.COLUMNS))
    bases = np.uint64(get(state, c.BASES))
    for each in range(column, stop_column):
        width = get(columns, each * c.COLUMN_SIZE)
        level = get(columns, each * c.COLUMN_SIZE + 1)
        first = get(counts, level)
        stop = first + 1
        if level >= first_level and level < stop_level:  # the current entry may have been started
            stop = min(get(before, level) + 1, get(capacities, level))
        if stop > first:
            start = np.uint64(get(bases, each)) + np.uint64(first * width)
            fill_bytes(start, np.int64(0), np.uint64((stop - first) * width))


@helper
def has_number(state: Address, entry: Address, number: Value) -> Value:
    """Returns whether the closed enum of a field has a value with the number `number`."""
    low = get(entry, c.ENUM)
    high = low + get(entry, c.ENUM_SIZE)
    enums = np.uint64(get(state, c.ENUMS))
    while low < high:
        middle = (low + high) >> 1
        middle_number = get(enums, middle)
        if middle_number == number:
            return True
        if middle_number < number:
            low = middle + 1
        else:
            high = middle
    return False


@helper
def _search(state: Address, first: Value, count: Value, number: Value) -> Value:
    low = first
    high = first + count
    entries = np.uint64(get(state, c.ENTRIES))
    while low < high:
        middle = (low + high) >> 1
        middle_number = get(entries, middle * c.ENTRY_SIZE + c.NUMBER)
        if middle_number == number:
            return middle
        if middle_number < number:
            low = middle + 1
        else:
            high = middle
    return np.int64(-1)


@inlined
def find_entry(state: Address, node: Address, number: Value) -> Value:
    """Returns the row number of a field in the table of entries. Returns -1 if the node does not
    have a field with this number.
    """
    if number < get(node, c.NODE_DENSE_SIZE):
        return get(np.uint64(get(state, c.DENSE)), get(node, c.NODE_DENSE) + number)
    if get(node, c.NODE_DENSE_SIZE) > 0:
        return np.int64(-1)
    return _search(state, get(node, c.NODE_ENTRY), get(node, c.NODE_ENTRY_COUNT), number)


@inlined
def node_at(state: Address, index: Value) -> Address:
    """Returns the address of node `index`."""
    return np.uint64(get(state, c.NODES)) + np.uint64(8 * c.NODE_SIZE) * np.uint64(index)


@inlined
def store_number(op: Value, target: Address, raw: Value) -> None:
    """Converts a number as operation `op` requires, and stores it at `target`."""
    if op == c.INT64 or op == c.RAW64:
        store_i64(target, np.int64(raw))
    elif op == c.INT32 or op == c.RAW32 or op == c.CLOSED_ENUM:
        store_i32(target, np.int64(raw))
    elif op == c.BOOL:
        store_u8(target, np.int64(raw != NOWHERE))
    elif op == c.SINT64:
        store_i64(target, zigzag(raw))
    elif op == c.SINT32:
        store_i32(target, zigzag(raw & _MASK_32))
    elif op == c.UINT32 or op == c.FIXED32:
        store_i64(target, np.int64(raw & _MASK_32))
    else:
        store_i64(target, np.int64(raw))
        store_i64(target + EIGHT, np.int64(0))


@inlined
def has_capacity(state: Address, level: Value, more: Value) -> Value:
    """Returns whether `more` more entries fit into a level. If they do not fit, writes a request
    for memory to the state.
    """
    wanted = get(np.uint64(get(state, c.COUNTS)), level) + more
    if wanted <= get(np.uint64(get(state, c.CAPACITIES)), level):
        return True
    put(state, c.LEVEL_WANTED, level)
    put(state, c.CAPACITY_WANTED, wanted)
    return False


@helper
def _replace_member(state: Address, base: Address, index: Value, level_index: Value) -> None:
    address = base + FOUR * np.uint64(level_index)
    other = np.int64(load_u32_native(address)) - 1
    if other >= 0 and other != index:
        row = np.uint64(get(state, c.ENTRIES)) + ENTRY_BYTES * np.uint64(other)
        clear_entries(
            state,
            get(row, c.FIRST_COLUMN),
            get(row, c.STOP_COLUMN),
            get(row, c.FIRST_LEVEL),
            get(row, c.STOP_LEVEL),
        )
    store_i32(address, index + 1)


@inlined
def mark_present(state: Address, entry: Address, index: Value, level_index: Value) -> None:
    """Marks a field that is not repeated as present. If the field is in a oneof, clears the other
    members.
    """
    bases = np.uint64(get(state, c.BASES))
    present = get(entry, c.PRESENT)
    oneof = get(entry, c.ONEOF)
    if oneof >= 0:
        _replace_member(state, np.uint64(get(bases, oneof)), index, level_index)
    if present >= 0:
        store_u8(np.uint64(get(bases, present)) + np.uint64(level_index), np.int64(1))


_FRAME_BYTES = np.uint64(8 * c.FRAME_SIZE)
_THREE = np.uint64(3)
_UNKNOWN = np.int64(-1)


@inlined
def _read_number(wire: Value, address: Address, stop: Address) -> Value:
    if wire == VARINT:
        return read_u64(address, stop)
    if wire == FIXED64:
        if stop - address < EIGHT:
            return NOWHERE, NOWHERE
        return load_word(address), address + EIGHT
    if stop - address < FOUR:
        return NOWHERE, NOWHERE
    return load_u32_native(address), address + FOUR


@helper
def _packed(state: Address, entry: Address, address: Address, stop: Address) -> Value:
    """Reads the value of a packed field. Returns (status, next address). The status is `DONE`,
    `GROW`, or the reason why the value is malformed.
    """
    size, address = read_size(address, stop)
    if address == NOWHERE:
        return c.BAD_LENGTH, NOWHERE
    stop = address + size
    wire = get(entry, c.WIRE)
    level = get(entry, c.LEVEL)
    op = get(entry, c.OP)
    width = np.uint64(get(entry, c.WIDTH))
    if wire == VARINT:
        count = count_varints(address, stop)
    elif wire == FIXED64:
        count = np.int64(size >> _THREE)
    else:
        count = np.int64(size >> np.uint64(2))
    if not has_capacity(state, level, count):
        return c.GROW, NOWHERE
    counts = np.uint64(get(state, c.COUNTS))
    index = get(counts, level)
    base = np.uint64(get(np.uint64(get(state, c.BASES)), get(entry, c.COLUMN)))
    target = base + np.uint64(index) * width
    while address < stop:
        raw, address = _read_number(wire, address, stop)
        if address == NOWHERE:
            return c.BAD_PACKED, NOWHERE
        if op != c.CLOSED_ENUM or has_number(state, entry, low_32(raw)):
            store_number(op, target, raw)
            target += width
            index += 1
            put(counts, level, index)
    return c.DONE, address


@inlined
def _text(
    state: Address, entry: Address, address: Address, stop: Address, readable: Address
) -> Value:
    """Reads the value of a text field. The value replaces an earlier value of the field. Returns
    (status, next address). The status is `DONE`, `GROW`, or the reason why the value is
    malformed.
    """
    size, address = read_size(address, stop)
    if address == NOWHERE:
        return c.BAD_LENGTH, NOWHERE
    level = get(entry, c.LEVEL)
    data = get(entry, c.TEXT_LEVEL)
    counts = np.uint64(get(state, c.COUNTS))
    offsets = np.uint64(get(np.uint64(get(state, c.OFFSETS)), data))
    start = at_i32(offsets, get(counts, level))
    wanted = start + np.int64(size)
    if wanted > get(np.uint64(get(state, c.CAPACITIES)), data):
        put(state, c.LEVEL_WANTED, data)
        put(state, c.CAPACITY_WANTED, wanted)
        return c.GROW, NOWHERE
    target = np.uint64(get(np.uint64(get(state, c.BYTES)), data)) + np.uint64(start)
    suspect = copy_text(target, address, np.int64(size), readable)
    if suspect and get(entry, c.OP) == c.TEXT and not is_utf8(address, np.int64(size)):
        return c.BAD_TEXT, NOWHERE
    put(counts, data, wanted)
    return c.DONE, address + size


@inlined
def _begin_message(
    state: Address, index: Value, entry: Address, address: Address, stop: Address, depth: Value
) -> Value:
    """Begins to decode the value of a message field or group field: pushes a frame onto the stack.
    Returns (status, address of the first field in the value). The status is `DONE` or the reason
    why the value is malformed.
    """
    op = get(entry, c.OP)
    group = np.int64(0)
    if op == c.MESSAGE:
        size, address = read_size(address, stop)
        if address == NOWHERE:
            return c.BAD_LENGTH, NOWHERE
        stop = address + size
    else:
        group = get(entry, c.NUMBER)
    if depth + 1 > c.MAX_DEPTH:
        return c.TOO_DEEP, NOWHERE
    frame = np.uint64(get(state, c.STACK)) + _FRAME_BYTES * np.uint64(depth + 1)
    put(frame, c.FRAME_NODE, get(entry, c.NODE))
    put(frame, c.FRAME_STOP, np.int64(stop))
    put(frame, c.FRAME_GROUP, group)
    put(frame, c.FRAME_ENTRY, index)
    put(frame, c.FRAME_DROPPED, 0)
    return c.DONE, address


@inlined
def _end_message(state: Address, frame: Address) -> None:
    """Ends the message that `frame` describes. All of its fields must have been decoded."""
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
    """Begins to decode the value of a row: pushes its frame onto the stack. Returns (whether the
    value is not null, status, address of the message). The status is `DONE` or the reason why the
    value is bad.
    """
    valid = np.uint64(get(state, c.VALID))
    if valid != NOWHERE:
        bit = np.uint64(row + get(state, c.VALID_SHIFT))
        if load_u8(valid + (bit >> _THREE)) >> (bit & _SEVEN) & ONE == NOWHERE:
            return False, c.DONE, NOWHERE
    ends = np.uint64(get(state, c.ENDS))
    data = np.uint64(get(state, c.DATA))
    address = data + np.uint64(at_i32(ends, row))
    stop = data + np.uint64(at_i32(ends, row + 1))
    reason = np.int64(c.DONE)
    starts = np.uint64(get(state, c.STARTS))
    if starts != NOWHERE:
        start = at_i32(starts, row)
        if np.uint64(start) > stop - address:  # -1 exceeds any size
            reason = np.int64(c.BAD_START)
        else:
            address += np.uint64(start)
    frame = np.uint64(get(state, c.STACK))
    put(frame, c.FRAME_NODE, 0)
    put(frame, c.FRAME_STOP, np.int64(stop))
    put(frame, c.FRAME_GROUP, 0)
    put(frame, c.FRAME_ENTRY, -1)
    put(frame, c.FRAME_DROPPED, 0)
    store_u8(np.uint64(get(np.uint64(get(state, c.BASES)), 0)) + np.uint64(row), np.int64(1))
    return True, reason, address


@inlined
def _read_field(
    state: Address,
    index: Value,
    wire: Value,
    address: Address,
    stop: Address,
    readable: Address,
    depth: Value,
) -> Value:
    """Reads the value of a known field. Returns (status, next address, depth).

    The status is `DONE`, `GROW`, or the reason why the value is malformed.

    The returned depth is `depth` if the value was read completely; `depth + 1` if the field is a
    message or group, whose fields must be read next; and -1 if the field has an unexpected wire
    type, so that the caller must skip it like an unknown field.
    """
    entry = np.uint64(get(state, c.ENTRIES)) + ENTRY_BYTES * np.uint64(index)
    op = get(entry, c.OP)
    repeated = get(entry, c.REPEATED) != 0
    if wire != get(entry, c.WIRE):
        if wire == BYTES and repeated and op < c.TEXT:
            reason, address = _packed(state, entry, address, stop)
            return reason, address, depth
        return np.int64(c.DONE), address, _UNKNOWN
    level = get(entry, c.LEVEL)
    if repeated and not has_capacity(state, level, 1):
        return np.int64(c.GROW), NOWHERE, depth
    level_index = get(np.uint64(get(state, c.COUNTS)), level)
    if op < c.TEXT:
        raw, address = _read_number(wire, address, stop)
        if address == NOWHERE:
            return np.int64(c.BAD_NUMBER), NOWHERE, depth
        if op == c.CLOSED_ENUM and not has_number(state, entry, low_32(raw)):
            if get(entry, c.DROPS) != 0:
                frame = np.uint64(get(state, c.STACK)) + _FRAME_BYTES * np.uint64(depth)
                put(frame, c.FRAME_DROPPED, 1)
            return np.int64(c.DONE), address, depth
        if not repeated:
            mark_present(state, entry, index, level_index)
        base = np.uint64(get(np.uint64(get(state, c.BASES)), get(entry, c.COLUMN)))
        store_number(op, base + np.uint64(level_index) * np.uint64(get(entry, c.WIDTH)), raw)
        if repeated:
            end_entry(state, level)
        return np.int64(c.DONE), address, depth
    if not repeated:
        mark_present(state, entry, index, level_index)
    if op < c.MESSAGE:
        reason, address = _text(state, entry, address, stop, readable)
        if repeated and reason == c.DONE:
            end_entry(state, level)
        return np.int64(reason), address, depth
    reason, address = _begin_message(state, index, entry, address, stop, depth)
    return np.int64(reason), address, depth + 1


@kernel
def decode_values(state: Address) -> Value:
    """Decodes values. Returns `DONE` after the last value, `GROW` if a buffer is full, or the
    reason why a value is bad. The next call continues: after `GROW` with the current field, and
    after a bad value with the next value.

    Args:
        state: Address of the state, see `contract`.
    """
    counts = np.uint64(get(state, c.COUNTS))
    stack = np.uint64(get(state, c.STACK))
    rows = get(state, c.ROWS)
    readable = np.uint64(get(state, c.DATA))
    if rows > 0:
        readable += np.uint64(at_i32(np.uint64(get(state, c.ENDS)), rows))
    depth = get(state, c.DEPTH)
    address = np.uint64(get(state, c.POSITION))
    row = get(counts, 0)
    while row < rows:
        reason = np.int64(c.DONE)
        index = np.int64(-1)
        if depth < 0:
            is_there, reason, address = _begin_value(state, row)
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
            if address == stop:
                if group != 0:
                    reason = np.int64(c.BAD_GROUP)
                    break
                ended = True
            else:
                field = address
                tag, address = read_u32(address, stop)
                if address == NOWHERE or tag < EIGHT:
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
                        state, index, wire, address, stop, readable, depth
                    )
                    if reason != c.DONE:
                        if reason == c.GROW:
                            put(state, c.BAD_ENTRY, index)
                            put(state, c.POSITION, np.int64(field))
                            put(state, c.DEPTH, depth)
                            return reason
                        break
                    address = following
                if inner < 0:
                    reason, following = skip_field(number, wire, address, stop, stack, depth)
                    if reason != c.DONE:
                        break
                    address = following
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
