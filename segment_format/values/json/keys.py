"""Kernel functions that parse keys of objects and skip unwanted values.

Producers usually write equal keys in equal order. Therefore each struct remembers keys: for each
key, the bytes from the comma or brace before the key to the start of the value, and the field with
this name. If the next object has the same bytes, one comparison of 32 bytes finds the field.
Otherwise the key is parsed, looked up in the hash table of the struct's fields, and remembered.
Unwanted values are skipped, but must be valid JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.primitives import (
    VECTOR_SIZE,
    difference_mask,
    load_i64_native,
    load_u8,
    load_word,
    special_mask,
    store_i64,
    store_u8,
    trailing_zeros,
)
from segment_format.values.json import contract as c
from segment_format.values.json.contract import FACTOR
from segment_format.values.json.tokens import (
    LAST_CODE,
    MINUS,
    ONE,
    QUOTE,
    is_word,
    same_bytes,
    scan_string,
    skip_number,
    skip_space,
    unescape,
)

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value


_TWO = np.uint64(2)
_FOUR = np.uint64(4)
_CASE = np.uint64(0x20)
OBJECT = np.uint64(ord("{"))
OBJECT_END = np.uint64(ord("}"))
ARRAY = np.uint64(ord("["))
ARRAY_END = np.uint64(ord("]"))
COMMA = np.uint64(ord(","))
COLON = np.uint64(ord(":"))
_ZERO = np.uint64(ord("0"))
_NINE = np.uint64(ord("9"))
NULL_WORD = np.uint64(int.from_bytes(b"null", "big"))
TRUE_WORD = np.uint64(int.from_bytes(b"true", "big"))
FALSE_WORD = np.uint64(int.from_bytes(b"fals", "big"))
LETTER_E = np.uint64(ord("e"))


@inlined
def begins_number(byte: Value) -> Value:
    """Returns whether a number can begin with this byte: a digit or a minus sign."""
    return (byte >= _ZERO and byte <= _NINE) or byte == MINUS


@inlined
def is_bracket(byte: Value) -> Value:
    """Returns whether a byte is `{` or `[`. They differ in only one bit."""
    return byte | _CASE == OBJECT


@inlined
def skip_false(address: Address, stop: Address) -> Value:
    """Skips the word `false` at `address`. Returns the address after it, or an error code."""
    if (
        is_word(address, stop, FALSE_WORD)
        and stop - address > _FOUR
        and load_u8(address + _FOUR) == LETTER_E
    ):
        return address + np.uint64(5)
    return np.uint64(c.BAD_TOKEN)


@helper
def skip_scalar(address: Address, stop: Address) -> Value:
    """Skips a string, number, `true`, `false` or `null` at `address`. Returns the address after it,
    or an error code.
    """
    byte = load_u8(address)
    if byte == QUOTE:
        end, _ = scan_string(address + ONE, stop)
        if end > LAST_CODE:
            end += ONE
        return end
    if begins_number(byte):
        return skip_number(address, stop)
    if is_word(address, stop, NULL_WORD) or is_word(address, stop, TRUE_WORD):
        return address + _FOUR
    return skip_false(address, stop)


@helper
def skip_key(address: Address, stop: Address) -> Value:
    """Skips a key, its colon and the white space after it. Returns (next address or an error code,
    address of the error).
    """
    if address >= stop:
        return np.uint64(c.BAD_END), address
    if load_u8(address) != QUOTE:
        return np.uint64(c.BAD_KEY), address
    end, _ = scan_string(address + ONE, stop)
    if end <= LAST_CODE:
        return end, address
    address = skip_space(end + ONE, stop)
    if address >= stop:
        return np.uint64(c.BAD_END), address
    if load_u8(address) != COLON:
        return np.uint64(c.BAD_COLON), address
    address = skip_space(address + ONE, stop)
    return address, address


@helper
def skip_value(address: Address, stop: Address, depth: Value, stack: Address) -> Value:
    """Skips a value, and white space before it. Returns (next address or an error code, address of
    the error). `depth` is the number of containers around the value (int64), and `stack` has
    `MAX_DEPTH` bytes of memory.
    """
    outside = depth
    while True:
        address = skip_space(address, stop)
        if address >= stop:
            return np.uint64(c.BAD_END), address
        byte = load_u8(address)
        if is_bracket(byte):
            if depth >= c.MAX_DEPTH:
                return np.uint64(c.BAD_DEPTH), address
            store_u8(stack + np.uint64(depth), np.int64(byte))
            depth += 1
            address = skip_space(address + ONE, stop)
            if address >= stop:
                return np.uint64(c.BAD_END), address
            if load_u8(address) != byte + _TWO:  # the bracket that closes
                if byte == OBJECT:
                    key_status, address = skip_key(address, stop)
                    if key_status <= LAST_CODE:
                        return key_status, address
                continue
        else:
            key_status = skip_scalar(address, stop)
            if key_status <= LAST_CODE:
                return key_status, address
            address = key_status
        while depth > outside:
            address = skip_space(address, stop)
            if address >= stop:
                return np.uint64(c.BAD_END), address
            byte = load_u8(address)
            opened = load_u8(stack + np.uint64(depth - 1))
            if byte == opened + _TWO:
                address += ONE
                depth -= 1
                continue
            if byte != COMMA:
                return np.uint64(c.BAD_NEXT), address
            address += ONE
            if opened == OBJECT:
                key_status, address = skip_key(skip_space(address, stop), stop)
                if key_status <= LAST_CODE:
                    return key_status, address
            break
        if depth == outside:
            return address, address


_FACTOR = np.uint64(FACTOR)
_EIGHT = np.uint64(8)
_NOTHING = np.uint64(0)
_SHIFT = np.uint64(32)
_ALL = np.uint64(0xFFFFFFFF)
_STEP = np.uint64(VECTOR_SIZE)
_FEW_STEPS = np.uint64(256)
_KEY_BYTES = np.uint64(8 * c.KEY_SIZE)
NO_FIELD = np.uint64(0)
OBJECT_DONE = np.uint64(1)
"""Value of `KEY_FIELD` at the end of an object."""


@inlined
def _hash(address: Address, size: Value) -> Value:
    """Returns the hash of the `size` bytes at `address`. It equals the hash of
    `contract.name_hash`.
    """
    value = size * _FACTOR
    while size > _NOTHING:
        word = load_word(address)
        if size < _EIGHT:
            word &= (ONE << (size << np.uint64(3))) - ONE
            size = _EIGHT
        value = (value ^ word) * _FACTOR
        value ^= value >> _SHIFT
        address += _EIGHT
        size -= _EIGHT
    return value


@helper
def find_field(frame: Address, struct: Address, address: Address, size: Value) -> Value:
    """Looks up a field of a struct by its name, which consists of the `size` bytes at `address`.
    Returns the node of the field, or `NO_FIELD` if the struct has no such field.
    """
    mask = np.uint64(load_word(struct + np.uint64(8 * c.TABLE_MASK)))
    table = load_word(frame + np.uint64(8 * c.TABLES))
    table += load_word(struct + np.uint64(8 * c.TABLE)) * np.uint64(8 * c.TABLE_SIZE)
    names = load_word(frame + np.uint64(8 * c.NAMES))
    slot = _hash(address, size)
    while True:
        entry = table + (slot & mask) * np.uint64(8 * c.TABLE_SIZE)
        node = load_i64_native(entry + np.uint64(16))
        if node == 0:  # the root is not a field
            return NO_FIELD
        name_size = load_word(entry + _EIGHT)
        if name_size == size and same_bytes(names + load_word(entry), address, size):
            nodes = load_word(frame + np.uint64(8 * c.NODES))
            return nodes + (np.uint64(node) << np.uint64(c.NODE_SHIFT))
        slot += ONE


@inlined
def is_token(entry: Address, address: Address, stop: Address) -> Value:
    """Returns whether the input at `address` begins with the bytes of the remembered key
    `entry`.
    """
    size = load_word(entry + _EIGHT)
    if size == _NOTHING or size > stop - address:
        return False
    token = load_word(entry)
    if size <= _STEP:
        return difference_mask(token, address) & (_ALL >> (_STEP - size)) == _NOTHING
    return same_bytes(token, address, size)


@helper
def skip_unwanted(keys: Address, number: Value, address: Address, stop: Address) -> Value:
    """Skips unwanted fields. Stops at the first field that is wanted, whose key is not remembered,
    or whose value is not a number, `true`, `false`, `null` or a short string without escapes.

    Returns (address of the first field that was not skipped, number of the next remembered key).
    The caller reads that field. This code is a separate function, because inside the caller's loop
    it would take twice as long.
    """
    while True:
        entry = keys + np.uint64(number) * _KEY_BYTES
        if load_word(entry + np.uint64(16)) != NO_FIELD or not is_token(entry, address, stop):
            return address, number
        value = address + load_word(entry + _EIGHT)
        if value >= stop:
            return address, number
        byte = load_u8(value)
        if byte == QUOTE:
            mask = special_mask(value + ONE)
            end = value + ONE + trailing_zeros(mask)
            if mask == _NOTHING or end >= stop or load_u8(end) != QUOTE:
                return address, number
            end += ONE
        elif begins_number(byte):
            end = skip_number(value, stop)
        elif is_word(value, stop, NULL_WORD) or is_word(value, stop, TRUE_WORD):
            end = value + np.uint64(4)
        else:
            end = skip_false(value, stop)
        if end <= LAST_CODE:
            return address, number
        address = end
        number += 1


@helper
def _remember(keys: Address, number: Value, token: Address, size: Value, field: Address) -> None:
    if number == c.MAX_KEYS or size > _FEW_STEPS:
        return
    entry = keys + np.uint64(number) * _KEY_BYTES
    last = keys + np.uint64(c.MAX_KEYS - 1) * _KEY_BYTES
    # The new key is inserted before the key that was expected here, because both may follow each
    # other in the next object. Key 0 is replaced instead, because its bytes begin with the brace,
    # and only one key follows a brace.
    if number > 0 and load_word(last + _EIGHT) == _NOTHING:
        to = last
        while to > entry:
            for slot in range(c.KEY_SIZE):
                value = load_i64_native(to - _KEY_BYTES + np.uint64(8 * slot))
                store_i64(to + np.uint64(8 * slot), value)
            to -= _KEY_BYTES
    store_i64(entry, np.int64(token))
    store_i64(entry + _EIGHT, np.int64(size))
    store_i64(entry + np.uint64(16), np.int64(field))


@helper
def next_key(
    frame: Address, struct: Address, keys: Address, number: Value, address: Address, stop: Address
) -> Value:
    """Parses the next key of an object, and sets `KEY_FIELD` and `KEY_NEXT` in the frame. `keys` is
    the address of the keys that the struct remembers, and `number` the number of the key that is
    expected here. `address` is the address of the opening brace for the first key, and the address
    after the previous value for all other keys.

    Returns two numbers. The first is the address of the key's value; or the address after the
    object, if it has no further key; or an error code. The second is the address of the error.
    """
    token = address
    if number == 0:
        address = skip_space(address + ONE, stop)
        may_end = True
    else:
        address = skip_space(address, stop)
        may_end = address < stop and load_u8(address) == OBJECT_END
        if not may_end:
            if address >= stop:
                return np.uint64(c.BAD_END), address
            if load_u8(address) != COMMA:
                return np.uint64(c.BAD_NEXT), address
            address = skip_space(address + ONE, stop)
    if address >= stop:
        return np.uint64(c.BAD_END), address
    if may_end and load_u8(address) == OBJECT_END:
        store_i64(frame + np.uint64(8 * c.KEY_FIELD), np.int64(OBJECT_DONE))
        return address + ONE, address
    if load_u8(address) != QUOTE:
        return np.uint64(c.BAD_KEY), address
    end, escaped = scan_string(address + ONE, stop)
    if end <= LAST_CODE:
        return end, address
    first = address + ONE
    size = end - first
    if escaped:
        if not arena_has(frame, size):
            return np.uint64(c.GROW_ARENA), address
        to = arena_end(frame)
        size = unescape(first, end, to) - to
        first = to
    field = find_field(frame, struct, first, size)
    address = skip_space(end + ONE, stop)
    if address >= stop:
        return np.uint64(c.BAD_END), address
    if load_u8(address) != COLON:
        return np.uint64(c.BAD_COLON), address
    address = skip_space(address + ONE, stop)
    _remember(keys, number, token, address - token, field)
    store_i64(frame + np.uint64(8 * c.KEY_FIELD), np.int64(field))
    store_i64(frame + np.uint64(8 * c.KEY_NEXT), min(number + 1, np.int64(c.MAX_KEYS)))
    return address, address


@inlined
def arena_has(frame: Address, size: Value) -> Value:
    """Returns whether `size` (uint64) more bytes fit into the arena. If they do not fit, sets
    `WANTED` in the frame to request memory.
    """
    wanted = load_i64_native(frame + np.uint64(8 * c.ARENA_SIZE)) + np.int64(size)
    if wanted <= load_i64_native(frame + np.uint64(8 * c.ARENA_CAPACITY)):
        return True
    store_i64(frame + np.uint64(8 * c.WANTED), wanted)
    return False


@inlined
def arena_end(frame: Address) -> Value:
    """Returns the address of the next free byte of the arena."""
    arena = load_word(frame + np.uint64(8 * c.ARENA))
    return arena + load_word(frame + np.uint64(8 * c.ARENA_SIZE))
