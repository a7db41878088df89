"""Defines the memory layout that Python and the JSON kernels share.

The type of the result is compiled to a program. The program has a node for the type and for each
type nested in it, in preorder. A node consists of `NODE_SIZE` int64 numbers. The children of a node
follow it: a struct's fields, a list's item, or a map's key and value. The slot `STOP` of a node is
the number of the first node after its children.

A level is a group of nodes with equal numbers of values. Level 0 has one entry per row. The items
of each list or map have a separate level, with one entry per item in any row. An entry is added
when an item is read. Each node has a presence byte and a value for each entry of its level:

    bool                1 byte
    int32, date, float  4 bytes
    int64, timestamp,   8 bytes
    double
    decimal             16 bytes
    string, binary      8 bytes: position << 32 | size << 1 | source, where source is 0 for the
                        input and 1 for the arena. Binary is still base64.
    list, map           8 bytes: entry of the first item << 32 | number of items
    struct              only the presence byte

All bytes are zero until they are written, so nothing is written for missing fields. A repeated
field overwrites its earlier value. When the Arrow column is built, two kinds of items are dropped:
the items of overwritten lists and maps, and map entries whose key is repeated later in the same
map. The arena is a buffer for strings that had to be unescaped.

The hash function for field names is in this module, so that types can be checked without importing
numba. The module also contains a table of powers of ten:

    20 x uint64          10^0 … 10^19
    23 x double          10^0 … 10^22, all exact
    651 x 2 x uint64     for q from -342 to 308: the upper, then the lower half of the 128 most
                         significant bits of 5^q; truncated for q >= 0, rounded up for q < 0

The last part of the table is for the algorithm of Eisel and Lemire: D. Lemire, "Number parsing at a
gigabyte per second", Software: Practice and Experience 51 (2021).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


# --- The frame -----------------------------------------------------------------------------------
NODES: Final = 0  # address of the program
NODE_COUNT: Final = 1
TABLES: Final = 2  # address of hash tables: offset of a name, its size, the field's node
NAMES: Final = 3  # address of the fields' names
POWERS: Final = 4  # address of `powers`
MEMORY: Final = 5  # address of remembered keys, see `keys`
STACK: Final = 6  # address of open containers, `STACK_SIZE` int64 each
SKIP_STACK: Final = 7  # address of `MAX_DEPTH` bytes
COUNTS: Final = 8  # address: entries in each level
CAPACITIES: Final = 9  # address: capacity of each level, in entries
SAVED: Final = 10  # address: entries before the current row
ARENA: Final = 11  # address
ARENA_SIZE: Final = 12
ARENA_CAPACITY: Final = 13
OPEN: Final = 14  # address of undecided numbers, `OPEN_SIZE` int64 each
OPEN_COUNT: Final = 15
OPEN_CAPACITY: Final = 16
BASE: Final = 17  # address that positions count from
ENDS: Final = 18  # address of the rows' positions, int32
VALID: Final = 19  # address of the rows' validity bits, 0 if all are
VALID_FIRST: Final = 20  # bit of row 0
ROW: Final = 21
ROW_STOP: Final = 22
BAD: Final = 23  # address of bad rows, `BAD_SIZE` int64 each; large enough for all rows
BAD_COUNT: Final = 24
WANTED: Final = 25  # with GROW_…: capacity needed
WANTED_LEVEL: Final = 26
ERROR_NODE: Final = 27
ERROR_AT: Final = 28  # address
KEY_FIELD: Final = 29  # set by `next_key`: address of a node, 0 for an unwanted field
KEY_NEXT: Final = 30  # number of remembered keys up to that field
LEVELS: Final = 31
CURRENT_ROW: Final = 32
FRAME_SIZE: Final = 33

# --- Nodes ---------------------------------------------------------------------------------------
OP: Final = 0
LEVEL: Final = 1
PRESENT: Final = 2  # address of a byte for each entry
DATA: Final = 3  # address of the values
ITEMS: Final = 4  # level of a list's or a map's items
STOP: Final = 5  # node after this one and its children
TABLE: Final = 6  # of a struct: first entry of its hash table
TABLE_MASK: Final = 7  # entries − 1
KEYS: Final = 8  # of a struct: its first remembered key
SCALE: Final = 9  # of a decimal
PRECISION: Final = 10
REQUIRED: Final = 11  # 1: may not be null
HAS_REQUIRED: Final = 12  # of a struct: 1 if it has required fields
NUMBER: Final = 13  # of the node
WIDTH: Final = 14  # bytes of a value
NODE_SHIFT: Final = 7
NODE_SIZE: Final = (1 << NODE_SHIFT) // 8

TABLE_SIZE: Final = 3
STACK_SIZE: Final = 4
OPEN_SIZE: Final = 5  # node, entry, position, size, row
BAD_SIZE: Final = 4  # row, code, node, position in the row
KEY_SIZE: Final = 3  # address of the token, its size, address of the node
MAX_KEYS: Final = 64
"""Maximum number of remembered keys of a struct. One more entry stays empty."""

# --- Ops: kinds of values ------------------------------------------------------------------------
TEXT: Final = 1
INT64: Final = 2  # the numbers
DOUBLE: Final = 3
INT32: Final = 4
SINGLE: Final = 5
DECIMAL: Final = 6
BOOL: Final = 7
BINARY: Final = 8
DATE: Final = 9
TIMESTAMP: Final = 10
TIMESTAMP_NTZ: Final = 11
STRUCT: Final = 12
LIST: Final = 13
MAP: Final = 14

# --- Statuses ------------------------------------------------------------------------------------
DONE: Final = 0
GROW_LEVEL: Final = 1
GROW_ARENA: Final = 2
GROW_OPEN: Final = 3
FIRST_ERROR: Final = 8
BAD_END: Final = 8
BAD_TOKEN: Final = 9
BAD_KEY: Final = 10
BAD_COLON: Final = 11
BAD_NEXT: Final = 12
BAD_REST: Final = 13
BAD_DEPTH: Final = 14
BAD_STRING_END: Final = 15
BAD_CONTROL: Final = 16
BAD_ESCAPE: Final = 17
BAD_SURROGATE: Final = 18
BAD_UTF8: Final = 19
BAD_NUMBER: Final = 20
WRONG_TYPE: Final = 21
OUT_OF_RANGE: Final = 22
NOT_EXACT: Final = 23
BAD_BASE64: Final = 24
BAD_DATE: Final = 25
BAD_TIME: Final = 26
MISSING: Final = 27
NULL: Final = 28
TOO_MANY_ITEMS: Final = 29
BAD_ZONE: Final = 30
LAST_CODE: Final = 63
"""Largest error code. Functions that return an address return a code if they fail. Every address is
larger.
"""

MAX_DEPTH: Final = 512
"""Maximum nesting of objects and arrays, including those that are skipped."""
READ_AHEAD: Final = 64
"""Bytes that may be read after every input, and written after every output."""


FACTOR: Final = 0x9E3779B97F4A7C15


def name_hash(name: bytes) -> int:
    """Returns the 64-bit hash of a field name. The kernels find fields by this hash."""
    value = len(name) * FACTOR % (1 << 64)
    for start in range(0, len(name), 8):
        word = int.from_bytes(name[start : start + 8], "little")
        value = (value ^ word) * FACTOR % (1 << 64)
        value ^= value >> 32
    return value


MIN_POWER: Final = -342
MAX_POWER: Final = 308
DOUBLES_AT: Final = 20 * 8
FIVES_AT: Final = DOUBLES_AT + 23 * 8


@functools.cache
def powers() -> NDArray[Any]:
    """Returns the table of powers of ten as uint64 numbers. A double in it is stored as its 64
    bits.
    """
    tens = [10**n for n in range(20)]
    doubles = np.array([float(10**n) for n in range(23)]).view(np.uint64).tolist()
    fives = [half for q in range(MIN_POWER, MAX_POWER + 1) for half in divmod(_five(q), 1 << 64)]
    return np.array(tens + doubles + fives, np.uint64)


def _five(q: int) -> int:
    power: int = 5 ** abs(q)
    if q >= 0:
        return power << 127 >> (power.bit_length() - 1)
    z = (power - 1).bit_length()
    if q >= -27:
        return (1 << z + 127) // power + 1
    value = (1 << 2 * z + 128) // power + 1
    return value >> max(value.bit_length() - 128, 0)
