"""Contains the kernel that runs programs over the bytes of many values. It writes the decoded
values to column buffers.

A bad row becomes null, and all counts are reset to their values before the row, so the next row
overwrites the data of the bad row. If a buffer is too small, the counts are also reset, and the row
is decoded again after the buffer has grown.

Avro's numbers are zig-zag varints of at most 10 bytes and 64 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.primitives import (
    address_in,
    copy_text,
    frame_at,
    get,
    is_utf8,
    load_f32,
    load_i64_native,
    load_u8,
    load_u32_native,
    load_word,
    put,
    store_as_f32,
    store_f64,
    store_i32,
    store_i64,
    store_u8,
    zigzag,
)
from segment_format.values.avro import kinds as k
from segment_format.values.avro import opcodes as o

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value


TRUNCATED = np.uint64(0)
"""Returned instead of the next address if the value ends inside the number."""
TOO_LONG = np.uint64(1)
"""Returned instead of the next address if the number has more than 64 bits."""
_ONE = np.uint64(1)
_SEVEN = np.uint64(7)
_EIGHT = np.uint64(8)
_TOP = np.uint64(63)
_LOW = np.uint64(0x7F)
_MORE = np.uint64(0x80)
_FF = np.uint64(0xFF)
_ZERO = np.uint64(0)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_LAST_BYTE = np.uint64(56)


@helper
def _long_number(address: Address, stop: Address) -> Value:
    raw = _ZERO
    shift = _ZERO
    while address < stop:
        byte = load_u8(address)
        address += _ONE
        if shift == _TOP and byte > _ONE:
            return np.int64(0), TOO_LONG
        raw |= (byte & _LOW) << shift
        if byte < _MORE:
            return zigzag(raw), address
        shift += _SEVEN
    return np.int64(0), TRUNCATED


@inlined
def read_long(address: Address, stop: Address) -> Value:
    """Reads the varint at `address`. Returns `(number, next address)`. On failure, the next address
    is `TRUNCATED` or `TOO_LONG`.
    """
    if stop - address >= np.uint64(2) and address < stop:
        first = load_u8(address)
        if first < _MORE:
            return zigzag(first), address + _ONE
        second = load_u8(address + _ONE)
        if second < _MORE:
            return zigzag((first & _LOW) | second << _SEVEN), address + np.uint64(2)
    return _long_number(address, stop)


@helper
def copy_decimal(target: Address, address: Address, size: Value, high: Value, low: Value) -> Value:
    """Converts a big-endian two's complement number of `size` bytes (int64; 0 bytes are 0) to 16
    bytes, little-endian. Returns True if the absolute value is below the limit, whose upper and
    lower 64 bits (uint64) are `high` and `low`.
    """
    negative = size > 0 and load_u8(address) >= _MORE
    fill = _FF if negative else _ZERO
    while size > 16:
        if load_u8(address) != fill:
            return False
        address += _ONE
        size -= 1
    upper = _ALL if negative else _ZERO
    lower = upper
    for _ in range(size):
        upper = upper << _EIGHT | lower >> _LAST_BYTE
        lower = lower << _EIGHT | load_u8(address)
        address += _ONE
    if (upper >> _TOP != _ZERO) != negative:
        return False
    store_i64(target, np.int64(lower))
    store_i64(target + _EIGHT, np.int64(upper))
    if negative:
        lower = ~lower + _ONE
        upper = ~upper
        if lower == _ZERO:
            upper += _ONE
    return upper < high or (upper == high and lower < low)


_WORD = np.uint64(8)
_HALF = np.uint64(4)
INSTRUCTION = np.uint64(8 * o.WIDTH)
_SLACK = np.uint64(o.SLACK)
_MAX_INT = 2**31 - 1
_MIN_INT = -(2**31)
_MIN_LONG = -(2**63)
_MAX_MILLIS = (2**63 - 1) // 1000
_MIN_MILLIS = -_MAX_MILLIS


@inlined
def _slot(slots: Address, number: Value) -> Value:
    return slots + np.uint64(8 * o.SLOT_WIDTH * number)


@inlined
def level_at(levels: Address, number: Value) -> Value:
    """Returns the address of row `number` in the table of levels."""
    return levels + np.uint64(8 * o.LEVEL_WIDTH * number)


@inlined
def _entry(slot: Address, index: Value) -> Value:
    """Returns the address of an int32 number: the start of entry `index` of a slot. The next int32
    number is the end of this entry.
    """
    return address_in(slot, o.VALUES) + np.uint64(4 * index)


@helper
def fill_null(slots: Address, first: Value, stop: Value, level: Value, index: Value) -> None:
    """Writes null to row `index` of the slots from `first` to `stop` (exclusive) that have level
    `level`. Their values become zero or empty.
    """
    for number in range(first, stop):
        slot = _slot(slots, number)
        if get(slot, o.SLOT_LEVEL) != level:
            continue
        validity = address_in(slot, o.VALIDITY)
        if validity != _ZERO:
            store_u8(validity + np.uint64(index), np.int64(0))
        kind = get(slot, o.KIND)
        if kind == k.FIXED:
            size = get(slot, o.SIZE)
            value = address_in(slot, o.VALUES) + np.uint64(index * size)
            for byte in range(size):
                store_u8(value + np.uint64(byte), np.int64(0))
        if kind in (k.BYTES, k.ITEMS):
            entry = _entry(slot, index)
            store_i32(entry + _HALF, np.int64(load_u32_native(entry)))


@helper
def run_value(
    program: Address,
    address: Address,
    stop: Address,
    limit: Address,
    slots: Address,
    levels: Address,
    loops: Address,
) -> Value:
    """Runs a program over one value. Returns `(status, instruction, argument, needed capacity)`.
    The last three describe an error, or the request of a larger buffer. They have no meaning if
    the status is `DONE`.
    """
    here = program
    before_at = address
    before_stop = stop
    before_limit = limit
    none = np.int64(0)
    while True:
        op = load_i64_native(here)
        slot = _slot(slots, get(here, o.SLOT))
        index = load_i64_native(level_at(levels, get(here, o.LEVEL)))
        if op == o.STRING or op == o.RAW or op == o.FIXED or op == o.ENUM:
            if op == o.FIXED:
                size = get(here, o.A)
                source = address
            else:
                size, source = read_long(address, stop)
                if source <= TOO_LONG:
                    return np.int64(o.ERROR_TRUNCATED) + np.int64(source), here, none, none
            if op == o.ENUM:
                address = source
                if size < 0 or size >= get(here, o.A):
                    return np.int64(o.ERROR_SYMBOL), here, none, none
                symbol = address_in(here, o.B) + np.uint64(16 * size)
                source = load_word(symbol)
                size = load_i64_native(symbol + _WORD)
                if size < 0:
                    return np.int64(o.ERROR_UNKNOWN_SYMBOL), here, none, none
                readable = source + np.uint64(size) + _SLACK
            else:
                if size < 0 or size > np.int64(stop - source):
                    error = o.ERROR_TRUNCATED if op == o.FIXED else o.ERROR_LENGTH
                    return np.int64(error), here, none, none
                address = source + np.uint64(size)
                readable = limit
            entry = _entry(slot, index)
            begin = np.int64(load_u32_native(entry))
            end = begin + size
            if end > get(slot, o.CAPACITY):
                if end > o.LARGEST:
                    return np.int64(o.ERROR_TOO_MUCH), here, none, none
                return np.int64(o.GROW_BYTES), here, get(here, o.SLOT), end
            target = address_in(slot, o.DATA) + np.uint64(begin)
            suspect = copy_text(target, source, size, readable)
            if op == o.STRING and suspect and not is_utf8(target, size):
                return np.int64(o.ERROR_UTF8), here, none, none
            store_i32(entry + _HALF, end)
            here += INSTRUCTION
        elif op == o.LONG or op == o.INT:
            value, address = read_long(address, stop)
            if address <= TOO_LONG:
                return np.int64(o.ERROR_TRUNCATED) + np.int64(address), here, none, none
            if op == o.LONG:
                store_i64(address_in(slot, o.VALUES) + np.uint64(8 * index), value)
            else:
                if value > _MAX_INT or value < _MIN_INT:
                    return np.int64(o.ERROR_INT), here, none, none
                store_i32(address_in(slot, o.VALUES) + np.uint64(4 * index), value)
            here += INSTRUCTION
        elif op == o.DOUBLE:
            if stop - address < _WORD:
                return np.int64(o.ERROR_TRUNCATED), here, none, none
            store_i64(address_in(slot, o.VALUES) + np.uint64(8 * index), load_i64_native(address))
            address += _WORD
            here += INSTRUCTION
        elif op == o.NULLABLE:
            value, address = read_long(address, stop)
            if address <= TOO_LONG:
                return np.int64(o.ERROR_TRUNCATED) + np.int64(address), here, none, none
            if np.uint64(value) > _ONE:
                return np.int64(o.ERROR_BRANCH), here, none, none
            if value == get(here, o.A):
                first = get(here, o.SLOT)
                fill_null(slots, first, get(here, o.B), get(here, o.LEVEL), index)
                here = program + np.uint64(get(here, o.C)) * INSTRUCTION
            else:
                store_u8(address_in(slot, o.VALIDITY) + np.uint64(index), np.int64(1))
                here += INSTRUCTION
        elif op == o.BOOLEAN:
            if address == stop:
                return np.int64(o.ERROR_TRUNCATED), here, none, none
            byte = load_u8(address)
            if byte > _ONE:
                return np.int64(o.ERROR_BOOLEAN), here, none, none
            store_u8(address_in(slot, o.VALUES) + np.uint64(index), np.int64(byte))
            address += _ONE
            here += INSTRUCTION
        elif op == o.END:
            if address != stop:
                return np.int64(o.ERROR_REST), here, none, none
            return np.int64(o.DONE), here, none, none
        elif op == o.SKIP_BYTES:
            for step in range(get(here, o.A)):
                size, address = read_long(address, stop)
                if address <= TOO_LONG:
                    return np.int64(o.ERROR_TRUNCATED) + np.int64(address), here, step, none
                if size < 0 or size > np.int64(stop - address):
                    return np.int64(o.ERROR_LENGTH), here, step, none
                address += np.uint64(size)
            here += INSTRUCTION
        elif op == o.SKIP_VARINT:
            for step in range(get(here, o.A)):
                value, address = read_long(address, stop)
                if address <= TOO_LONG:
                    return np.int64(o.ERROR_TRUNCATED) + np.int64(address), here, step, none
            here += INSTRUCTION
        elif op == o.SKIP_FIXED:
            size = get(here, o.A)
            if size > np.int64(stop - address):
                return np.int64(o.ERROR_TRUNCATED), here, np.int64(stop - address), none
            address += np.uint64(size)
            here += INSTRUCTION
        elif op == o.FLOAT:
            if stop - address < _HALF:
                return np.int64(o.ERROR_TRUNCATED), here, none, none
            bits = np.int64(load_u32_native(address))
            store_i32(address_in(slot, o.VALUES) + np.uint64(4 * index), bits)
            address += _HALF
            here += INSTRUCTION
        elif op == o.VALID:
            store_u8(address_in(slot, o.VALIDITY) + np.uint64(index), np.int64(1))
            here += INSTRUCTION
        elif op == o.NULL:
            first = get(here, o.SLOT)
            fill_null(slots, first, get(here, o.B), get(here, o.LEVEL), index)
            here += INSTRUCTION
        elif op == o.ITEMS or op == o.SKIP_ITEMS:
            count, address = read_long(address, stop)
            if address <= TOO_LONG:
                return np.int64(o.ERROR_TRUNCATED) + np.int64(address), here, none, none
            child = level_at(levels, get(here, o.A))
            if count == 0:
                if op == o.ITEMS:
                    store_i32(_entry(slot, index) + _HALF, get(child, o.COUNT))
                here = program + np.uint64(get(here, o.C)) * INSTRUCTION
                continue
            block_stop = np.int64(0)
            if count < 0:
                size, address = read_long(address, stop)
                if address <= TOO_LONG:
                    return np.int64(o.ERROR_TRUNCATED) + np.int64(address), here, none, none
                if size < 0 or size > np.int64(stop - address):
                    return np.int64(o.ERROR_LENGTH), here, none, none
                if count == _MIN_LONG:
                    return np.int64(o.ERROR_COUNT), here, none, none
                count = -count
                block_stop = np.int64(address + np.uint64(size))
            least = get(here, o.B)
            left = np.int64(stop - address)
            if least > 0:
                # The product does not exceed 64 bits, because a value has less than 2**31 bytes.
                if count > left or count * least > left:
                    return np.int64(o.ERROR_COUNT), here, none, none
            elif count > o.MAX_EMPTY:
                return np.int64(o.ERROR_COUNT), here, none, none
            if op == o.SKIP_ITEMS:
                if block_stop != 0:
                    address = np.uint64(block_stop)
                    continue
                if least == 0:  # items without bytes: counting them may take seconds
                    continue
            else:
                total = get(child, o.COUNT) + count
                if least == 0 and total - get(child, o.AT_ROW) > o.MAX_EMPTY:
                    return np.int64(o.ERROR_COUNT), here, none, none
                if total > get(child, o.LEVEL_CAPACITY):
                    if total >= o.LARGEST:
                        return np.int64(o.ERROR_TOO_MUCH), here, none, none
                    return np.int64(o.GROW_LEVEL), here, get(here, o.A), total
            loop = loops + np.uint64(8 * o.LOOP_WIDTH * get(here, o.D))
            put(loop, o.LEFT, count)
            put(loop, o.BLOCK_STOP, block_stop)
            here += INSTRUCTION
        elif op == o.NEXT or op == o.SKIP_NEXT:
            if op == o.NEXT:
                child = level_at(levels, get(here, o.A))
                put(child, o.COUNT, get(child, o.COUNT) + 1)
            loop = loops + np.uint64(8 * o.LOOP_WIDTH * get(here, o.D))
            left = get(loop, o.LEFT) - 1
            begin_of_loop = program + np.uint64(get(here, o.C)) * INSTRUCTION
            if left > 0:
                put(loop, o.LEFT, left)
                here = begin_of_loop + INSTRUCTION
            else:
                block_stop = get(loop, o.BLOCK_STOP)
                if block_stop != 0 and np.uint64(block_stop) != address:
                    return np.int64(o.ERROR_BLOCK), here, none, none
                here = begin_of_loop
        elif op == o.UNION:
            value, address = read_long(address, stop)
            if address <= TOO_LONG:
                return np.int64(o.ERROR_TRUNCATED) + np.int64(address), here, none, none
            if value < 0 or value >= get(here, o.A):
                return np.int64(o.ERROR_BRANCH), here, none, none
            here += np.uint64(value + 1) * INSTRUCTION
        elif op == o.JUMP:
            here = program + np.uint64(get(here, o.C)) * INSTRUCTION
        elif op == o.NUMBER:
            target = address_in(slot, o.VALUES)
            kind = get(here, o.B)
            if get(here, o.A) == o.FROM_FLOAT:
                if stop - address < _HALF:
                    return np.int64(o.ERROR_TRUNCATED), here, none, none
                store_f64(target + np.uint64(8 * index), load_f32(address))
                address += _HALF
            else:
                value, address = read_long(address, stop)
                if address <= TOO_LONG:
                    return np.int64(o.ERROR_TRUNCATED) + np.int64(address), here, none, none
                if get(here, o.A) == o.FROM_INT and (value > _MAX_INT or value < _MIN_INT):
                    return np.int64(o.ERROR_INT), here, none, none
                if kind == o.TO_FLOAT:
                    store_as_f32(target + np.uint64(4 * index), value)
                elif kind == o.TO_DOUBLE:
                    store_f64(target + np.uint64(8 * index), np.float64(value))
                else:
                    if kind == o.TO_MICROS:
                        if value > _MAX_MILLIS or value < _MIN_MILLIS:
                            return np.int64(o.ERROR_TIME), here, none, none
                        value *= 1000
                    store_i64(target + np.uint64(8 * index), value)
            here += INSTRUCTION
        elif op == o.DECIMAL:
            size = get(here, o.A)
            if size < 0:
                size, address = read_long(address, stop)
                if address <= TOO_LONG:
                    return np.int64(o.ERROR_TRUNCATED) + np.int64(address), here, none, none
            if size < 0 or size > np.int64(stop - address):
                return np.int64(o.ERROR_LENGTH), here, none, none
            target = address_in(slot, o.VALUES) + np.uint64(16 * index)
            if not copy_decimal(
                target, address, size, address_in(here, o.B), address_in(here, o.C)
            ):
                return np.int64(o.ERROR_DECIMAL), here, none, none
            address += np.uint64(size)
            here += INSTRUCTION
        elif op == o.CONSTANT:
            before_at = address
            before_stop = stop
            before_limit = limit
            address = address_in(here, o.A)
            stop = address + address_in(here, o.B)
            limit = stop + _SLACK
            here += INSTRUCTION
        elif op == o.RESUME:
            address = before_at
            stop = before_stop
            limit = before_limit
            here += INSTRUCTION
        else:
            return np.int64(o.ERROR_MESSAGE), here, get(here, o.A), none


@kernel
def run_avro(state: Address) -> Value:
    """Decodes rows, beginning with row ROW. Returns `DONE` after the last row. Otherwise the caller
    must act, and the status says why: row ROW is bad, or it needs a larger buffer.

    A bad row is already null. If a row needs a larger buffer, the caller must grow the buffer and
    call again. The kernel then decodes this row from its start.

    Args:
        state: Address of a frame with `FRAME_SIZE` slots.
    """
    frame = frame_at(state, o.FRAME_SIZE)
    slots = np.uint64(frame[o.SLOTS])
    levels = np.uint64(frame[o.LEVELS])
    loops = np.uint64(frame[o.LOOPS])
    offsets = np.uint64(frame[o.OFFSETS])
    programs = np.uint64(frame[o.PROGRAMS])
    program_of = np.uint64(frame[o.PROGRAM_OF])
    start = np.uint64(frame[o.INPUT])
    limit = start + np.uint64(frame[o.INPUT_SIZE])
    validity = np.uint64(frame[o.INPUT_VALIDITY])
    prefix = np.uint64(frame[o.PREFIX])
    level_count = frame[o.LEVEL_COUNT]
    rows = frame[o.ROWS]
    row = frame[o.ROW]
    while row < rows:
        store_i64(levels, row)
        wanted = True
        if validity != _ZERO:
            bit = np.uint64(frame[o.INPUT_FIRST_BIT] + row)
            byte = load_u8(validity + (bit >> np.uint64(3)))
            wanted = byte >> (bit & np.uint64(7)) & _ONE != _ZERO
        program = load_word(programs)
        if program_of != _ZERO:
            number = load_i64_native(program_of + np.uint64(8 * row))
            if number < 0:
                wanted = False
            else:
                program = load_word(programs + np.uint64(8 * number))
        if not wanted:
            fill_null(slots, np.int64(0), frame[o.SLOT_COUNT], np.int64(0), row)
            row += 1
            continue
        for number in range(1, level_count):
            level = level_at(levels, number)
            put(level, o.AT_ROW, get(level, o.COUNT))
        entry = offsets + np.uint64(4 * row)
        address = start + load_u32_native(entry) + prefix
        stop = start + load_u32_native(entry + _HALF)
        status, here, argument, needed = run_value(
            program, address, stop, limit, slots, levels, loops
        )  # fmt: skip
        if status != o.DONE:
            for number in range(1, level_count):
                level = level_at(levels, number)
                put(level, o.COUNT, get(level, o.AT_ROW))
            if status >= o.ERROR_TRUNCATED:
                fill_null(slots, np.int64(0), frame[o.SLOT_COUNT], np.int64(0), row)
            frame[o.ROW] = row
            frame[o.FAILED_AT] = np.int64((here - program) // INSTRUCTION)
            frame[o.FAILED_ARGUMENT] = argument
            frame[o.NEEDED] = needed
            return status
        row += 1
    frame[o.ROW] = row
    return np.int64(o.DONE)
