"""Contains the kernel that reads JSON values, one per row, and the kernels that copy strings to
Arrow buffers.

The reader is one loop without recursion. Each step reads a value and then the comma or bracket
after it. Wanted objects and arrays are pushed onto a stack. Unwanted objects and arrays are skipped
as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.primitives import (
    address_in,
    copy_32,
    copy_long,
    get,
    load_u8,
    load_u32_native,
    load_word,
    put,
    store_i32,
    store_i64,
    store_u8,
)
from segment_format.values.json import contract as c
from segment_format.values.json.keys import (
    ARRAY,
    ARRAY_END,
    COLON,
    COMMA,
    NO_FIELD,
    NULL_WORD,
    OBJECT,
    OBJECT_DONE,
    OBJECT_END,
    TRUE_WORD,
    begins_number,
    is_bracket,
    is_token,
    next_key,
    skip_false,
    skip_scalar,
    skip_unwanted,
    skip_value,
)
from segment_format.values.json.tokens import (
    LAST_CODE,
    ONE,
    QUOTE,
    SPACE,
    is_word,
    scan_string,
    skip_space,
    take_number,
)
from segment_format.values.json.values import (
    clear_row,
    clear_value,
    decode_base64,
    put_number,
    put_quoted,
    put_text,
    save_counts,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value


_SIZE_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_STEP = np.uint64(32)
_SHORT = np.uint64(512)
_TWO = np.uint64(2)
_PADDING = np.uint64(ord("="))


@inlined
def _address_of(packed: Value, base: Address, arena: Address) -> Value:
    return (arena if packed & ONE else base) + (packed >> _SHIFT)


@inlined
def _size(packed: Value) -> Value:
    return (packed & _SIZE_MASK) >> ONE


@kernel
def texts_size(data: Address, count: Value) -> Value:
    """Returns the total size of strings in bytes. `data` is the address of `count` locations of
    strings, see `contract`.
    """
    total = np.uint64(0)
    for entry in range(count):
        total += _size(load_word(data + np.uint64(8 * entry)))
    return np.int64(total)


@kernel
def gather_texts(
    data: Address,
    count: Value,
    base: Address,
    stop: Address,
    arena: Address,
    ends: Address,
    to: Address,
) -> None:
    """Copies strings to the buffers of an Arrow array: the concatenated bytes of the strings to
    `to`, and int32 offsets (0, then the end of each string) to `ends`. `data` is the address of the
    locations of the strings, see `contract`. Reads nothing at or after `stop`, but up to 32 bytes
    after the strings in `arena`. Up to 32 bytes after the target may be overwritten.
    """
    start = to
    store_i32(ends, 0)
    for entry in range(count):
        packed = load_word(data + np.uint64(8 * entry))
        size = _size(packed)
        address = _address_of(packed, base, arena)
        if size <= _SHORT and (packed & ONE or address + size + _STEP <= stop):
            copy_32(to, address)  # nearly always enough, so the branch is predictable
            copied = _STEP
            while copied < size:
                copy_32(to + copied, address + copied)
                copied += _STEP
        else:
            copy_long(to, address, size)
        to += size
        store_i32(ends + np.uint64(4 * entry + 4), np.int64(to - start))


@kernel
def gather_base64(
    data: Address, count: Value, base: Address, arena: Address, ends: Address, to: Address
) -> None:
    """Decodes base64 strings. Writes the decoded bytes and their offsets to the same buffers as
    `gather_texts`. A decoded string is never longer than the base64 string.
    """
    start = to
    store_i32(ends, 0)
    for entry in range(count):
        packed = load_word(data + np.uint64(8 * entry))
        size = np.int64(_size(packed))
        if size > 0:
            address = _address_of(packed, base, arena)
            behind = address + np.uint64(size)
            size = (size >> 2) * 3
            if load_u8(behind - ONE) == _PADDING:
                size -= 1
                if load_u8(behind - _TWO) == _PADDING:
                    size -= 1
            decode_base64(address, size, to)
            to += np.uint64(size)
        store_i32(ends + np.uint64(4 * entry + 4), np.int64(to - start))


_FOUR = np.uint64(4)
_KEY_BYTES = np.uint64(8 * c.KEY_SIZE)
_STACK_BYTES = np.uint64(8 * c.STACK_SIZE)
_NODE_BYTES = np.uint64(8 * c.NODE_SIZE)
_NONE = np.uint64(0)
_LETTER_N = np.uint64(ord("n"))
_LETTER_T = np.uint64(ord("t"))


@inlined
def _wrong(frame: Address, code: Value, node: Address, address: Address) -> Value:
    put(frame, c.ERROR_NODE, np.int64(node))
    put(frame, c.ERROR_AT, np.int64(address))
    return np.int64(code)


@helper
def _missing(frame: Address, struct: Address, entry: Value) -> Value:
    """Returns the node of the first field of a struct that is required but null in `entry`;
    `NO_FIELD` if there is none.
    """
    nodes = address_in(frame, c.NODES)
    stop = nodes + address_in(struct, c.STOP) * _NODE_BYTES
    node = struct + _NODE_BYTES
    while node < stop:
        if get(node, c.REQUIRED) and not load_u8(address_in(node, c.PRESENT) + np.uint64(entry)):
            return node
        node = nodes + address_in(node, c.STOP) * _NODE_BYTES
    return NO_FIELD


@inlined
def _new_item(frame: Address, container: Address) -> Value:
    """Adds an entry for the next item of a list or map. Returns the number of the entry, or a
    negative number if the level is full.
    """
    level = get(container, c.ITEMS)
    counts = address_in(frame, c.COUNTS)
    entry = get(counts, level)
    if entry >= get(address_in(frame, c.CAPACITIES), level):
        put(frame, c.WANTED, entry + 1)
        put(frame, c.WANTED_LEVEL, level)
        return np.int64(-1)
    put(counts, level, entry + 1)
    return entry


@helper
def _map_key(frame: Address, key: Address, entry: Value, address: Address, stop: Address) -> Value:
    """Reads the key of entry `entry` of a map. Returns (address of its value or an error code,
    address of the error).
    """
    if address >= stop:
        return np.uint64(c.BAD_END), address
    if load_u8(address) != QUOTE:
        return np.uint64(c.BAD_KEY), address
    end, escaped = scan_string(address + ONE, stop)
    if end <= LAST_CODE:
        return end, address
    status = put_text(frame, key, entry, address + ONE, end, escaped)
    if status != c.DONE:
        return np.uint64(status), address
    address = skip_space(end + ONE, stop)
    if address >= stop:
        return np.uint64(c.BAD_END), address
    if load_u8(address) != COLON:
        return np.uint64(c.BAD_COLON), address
    return skip_space(address + ONE, stop), address


@helper
def _read_row(frame: Address, address: Address, stop: Address, row: Value) -> Value:
    """Reads the JSON value of a row. Returns a status. On an error, sets `ERROR_NODE` and
    `ERROR_AT` in the frame.
    """
    nodes = address_in(frame, c.NODES)
    table = address_in(frame, c.POWERS)
    stack = address_in(frame, c.STACK)
    skip_stack = address_in(frame, c.SKIP_STACK)
    memory = address_in(frame, c.MEMORY)
    node = nodes
    entry = np.int64(row)
    container = _NONE
    around = np.int64(0)  # entry of the container
    state = np.int64(0)  # of an object: keys up to here; else first item
    keys = _NONE
    kind = np.int64(0)
    depth = np.int64(0)
    address = skip_space(address, stop)
    while True:
        # --- A value ------------------------------------------------------------------------------
        if address >= stop:
            return _wrong(frame, c.BAD_END, node if node != NO_FIELD else container, address)
        byte = load_u8(address)
        if byte <= SPACE:  # more white space than when the key was remembered
            address = skip_space(address, stop)
            if address >= stop:
                return _wrong(frame, c.BAD_END, node if node != NO_FIELD else container, address)
            byte = load_u8(address)
        if node == NO_FIELD:
            if byte == QUOTE:
                end, _ = scan_string(address + ONE, stop)
                if end <= LAST_CODE:
                    return _wrong(frame, np.int64(end), container, address)
                address = end + ONE
            elif is_bracket(byte):
                end, where = skip_value(address, stop, depth, skip_stack)
                if end <= LAST_CODE:
                    return _wrong(frame, np.int64(end), container, where)
                address = end
            else:
                end = skip_scalar(address, stop)
                if end <= LAST_CODE:
                    return _wrong(frame, np.int64(end), container, address)
                address = end
        elif byte == _LETTER_N:
            if not is_word(address, stop, NULL_WORD):
                return _wrong(frame, c.BAD_TOKEN, node, address)
            if get(node, c.REQUIRED):
                return _wrong(frame, c.NULL, node, address)
            if load_u8(address_in(node, c.PRESENT) + np.uint64(entry)):
                clear_value(frame, node, entry)
            address += _FOUR
        else:
            op = get(node, c.OP)
            present = address_in(node, c.PRESENT) + np.uint64(entry)
            if op == c.TEXT:
                if byte != QUOTE:
                    return _wrong(frame, c.WRONG_TYPE, node, address)
                end, escaped = scan_string(address + ONE, stop)
                if end <= LAST_CODE:
                    return _wrong(frame, np.int64(end), node, address)
                status = put_text(frame, node, entry, address + ONE, end, escaped)
                if status != c.DONE:
                    return status
                address = end + ONE
            elif op <= c.DECIMAL:
                if not begins_number(byte):
                    return _wrong(frame, c.WRONG_TYPE, node, address)
                value, count, exponent, end = take_number(address, stop, table)
                if end <= LAST_CODE:
                    return _wrong(frame, np.int64(end), node, address)
                status = put_number(frame, node, entry, address, end, value, count, exponent, table)
                if status != c.DONE:
                    return _wrong(frame, status, node, address)
                store_u8(present, 1)
                address = end
            elif op == c.BOOL:
                data = address_in(node, c.DATA) + np.uint64(entry)
                if byte == _LETTER_T:
                    if not is_word(address, stop, TRUE_WORD):
                        return _wrong(frame, c.BAD_TOKEN, node, address)
                    store_u8(data, 1)
                    address += _FOUR
                elif byte == np.uint64(ord("f")):
                    end = skip_false(address, stop)
                    if end <= LAST_CODE:
                        return _wrong(frame, np.int64(end), node, address)
                    store_u8(data, 0)
                    address = end
                else:
                    return _wrong(frame, c.WRONG_TYPE, node, address)
                store_u8(present, 1)
            elif op < c.STRUCT:
                if byte != QUOTE:
                    return _wrong(frame, c.WRONG_TYPE, node, address)
                end, escaped = scan_string(address + ONE, stop)
                if end <= LAST_CODE:
                    return _wrong(frame, np.int64(end), node, address)
                status = put_quoted(frame, node, entry, address + ONE, end, escaped)
                if status != c.DONE:
                    return _wrong(frame, status, node, address)
                address = end + ONE
            else:
                if byte != (ARRAY if op == c.LIST else OBJECT):
                    return _wrong(frame, c.WRONG_TYPE, node, address)
                if load_u8(present):  # repeated key
                    clear_value(frame, node, entry)
                store_u8(present, 1)
                frame_of = stack + np.uint64(depth) * _STACK_BYTES
                put(frame_of, 0, np.int64(container))
                put(frame_of, 1, around)
                put(frame_of, 2, state)
                depth += 1
                container = node
                around = entry
                kind = op
                if op == c.STRUCT:
                    keys = memory + address_in(node, c.KEYS) * _KEY_BYTES
                    state = np.int64(0)
                else:
                    state = get(address_in(frame, c.COUNTS), get(node, c.ITEMS))
                    address = skip_space(address + ONE, stop)
                    if address >= stop:
                        return _wrong(frame, c.BAD_END, node, address)
                    byte = load_u8(address)
                    node = container + _NODE_BYTES
                    if byte != (ARRAY_END if op == c.LIST else OBJECT_END):
                        entry = _new_item(frame, container)
                        if entry < 0:
                            return np.int64(c.GROW_LEVEL)
                        if op == c.MAP:
                            end, where = _map_key(frame, node, entry, address, stop)
                            if end <= LAST_CODE:
                                return _wrong(frame, np.int64(end), container, where)
                            address = end
                            node += _NODE_BYTES
                        continue

        # --- The comma or bracket after it --------------------------------------------------------
        while True:
            if container == _NONE:
                address = skip_space(address, stop)
                if address < stop:
                    return _wrong(frame, c.BAD_REST, nodes, address)
                return np.int64(c.DONE)
            if kind == c.STRUCT:
                token = keys + np.uint64(state) * _KEY_BYTES
                if address_in(token, 2) == NO_FIELD:
                    address, state = skip_unwanted(keys, state, address, stop)
                    token = keys + np.uint64(state) * _KEY_BYTES
                if is_token(token, address, stop):
                    address += address_in(token, 1)
                    node = address_in(token, 2)
                    state += 1
                    entry = around
                    break
                if state > 0 and address < stop and load_u8(address) == OBJECT_END:
                    address += ONE
                elif state < c.MAX_KEYS and is_token(token + _KEY_BYTES, address, stop):
                    # A key that was expected before this one is missing in this object.
                    address += address_in(token + _KEY_BYTES, 1)
                    node = address_in(token + _KEY_BYTES, 2)
                    state += 2
                    entry = around
                    break
                else:
                    end, where = next_key(frame, container, keys, state, address, stop)
                    if end == np.uint64(c.GROW_ARENA):
                        return np.int64(c.GROW_ARENA)
                    if end <= LAST_CODE:
                        return _wrong(frame, np.int64(end), container, where)
                    address = end
                    node = address_in(frame, c.KEY_FIELD)
                    if node != OBJECT_DONE:
                        state = get(frame, c.KEY_NEXT)
                        entry = around
                        break
                if get(container, c.HAS_REQUIRED):
                    node = _missing(frame, container, around)
                    if node != NO_FIELD:
                        return _wrong(frame, c.MISSING, node, address)
            else:
                address = skip_space(address, stop)
                if address >= stop:
                    return _wrong(frame, c.BAD_END, container, address)
                byte = load_u8(address)
                if byte == COMMA:
                    address = skip_space(address + ONE, stop)
                    entry = _new_item(frame, container)
                    if entry < 0:
                        return np.int64(c.GROW_LEVEL)
                    node = container + _NODE_BYTES
                    if kind == c.MAP:
                        end, where = _map_key(frame, node, entry, address, stop)
                        if end <= LAST_CODE:
                            return _wrong(frame, np.int64(end), container, where)
                        address = end
                        node += _NODE_BYTES
                    break
                if byte != (ARRAY_END if kind == c.LIST else OBJECT_END):
                    return _wrong(frame, c.BAD_NEXT, container, address)
                address += ONE
                level = get(container, c.ITEMS)
                count = get(address_in(frame, c.COUNTS), level) - state
                data = address_in(container, c.DATA) + np.uint64(8 * around)
                store_i64(data, state << 32 | count)
            # The container is complete, and is itself a value.
            depth -= 1
            frame_of = stack + np.uint64(depth) * _STACK_BYTES
            container = address_in(frame_of, 0)
            around = get(frame_of, 1)
            state = get(frame_of, 2)
            if container != _NONE:
                kind = get(container, c.OP)
                if kind == c.STRUCT:
                    keys = memory + address_in(container, c.KEYS) * _KEY_BYTES


@inlined
def _is_null(frame: Address, row: Value) -> Value:
    bits = address_in(frame, c.VALID)
    if bits == _NONE:
        return False
    bit = np.uint64(row + get(frame, c.VALID_FIRST))
    return not load_u8(bits + (bit >> np.uint64(3))) >> (bit & np.uint64(7)) & ONE


@kernel
def read_rows(frame: Address) -> Value:
    """Reads rows from `ROW` to `ROW_STOP`, exclusive. Returns `DONE` after the last row, or a
    status `GROW_...` that requests more memory.

    Before the kernel requests memory, it clears everything that it has written for row `ROW`, so
    the next call reads this row from its start.
    """
    base = address_in(frame, c.BASE)
    ends = address_in(frame, c.ENDS)
    stop = get(frame, c.ROW_STOP)
    levels = get(frame, c.LEVELS)
    row = get(frame, c.ROW)
    status = np.int64(c.DONE)
    while row < stop:
        if not _is_null(frame, row):
            entry_address = ends + np.uint64(4 * row)
            first = base + load_u32_native(entry_address)
            behind = base + load_u32_native(entry_address + _FOUR)
            save_counts(frame, levels)
            put(frame, c.CURRENT_ROW, row)
            arena_size = get(frame, c.ARENA_SIZE)
            open_count = get(frame, c.OPEN_COUNT)
            status = _read_row(frame, first, behind, row)
            if status != c.DONE:
                clear_row(frame, row)
                put(frame, c.ARENA_SIZE, arena_size)
                put(frame, c.OPEN_COUNT, open_count)
                if status < c.FIRST_ERROR:
                    break
                count = get(frame, c.BAD_COUNT)
                bad = address_in(frame, c.BAD) + np.uint64(8 * c.BAD_SIZE * count)
                put(bad, 0, row)
                put(bad, 1, status)
                node = address_in(frame, c.ERROR_NODE)
                put(bad, 2, get(node, c.NUMBER))
                put(bad, 3, np.int64(address_in(frame, c.ERROR_AT) - first))
                put(frame, c.BAD_COUNT, count + 1)
                status = np.int64(c.DONE)
        row += 1
    put(frame, c.ROW, row)
    return status
