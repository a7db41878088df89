"""What the kernel and Python tell each other: rows of int64 numbers.

A *level* counts what is repeated: level 0 the values, one for each list or map its elements, and
one for each text its bytes. All columns of a level have an entry per count, so a message inside a
message that is not repeated has its columns on the same level. Each level but 0 has offsets: where
the entries of each entry of its parent begin.

A *node* is a place where messages stand; its fields are *entries*, ascending by number.
"""

from __future__ import annotations

from typing import Final

# Where the parts of a program and of a decoding are, and how far it is: the state.
NODES: Final = 0
DENSE: Final = 1
ENTRIES: Final = 2
COLUMNS: Final = 3
COLUMN_COUNT: Final = 4
LEVELS: Final = 5
LEVEL_COUNT: Final = 6
KIDS: Final = 7
ENUMS: Final = 8
BASES: Final = 9  # of columns
OFFSETS: Final = 10  # of levels
BYTES: Final = 11  # of levels of text
COUNTS: Final = 12  # of levels: entries so far
ROOMS: Final = 13  # of levels
BEFORE: Final = 14  # of levels: for `clear`
STACK: Final = 15
DATA: Final = 16  # the bytes of all values
ENDS: Final = 17  # int32: where each begins, then where the last ends
VALID: Final = 18  # a bitmap, or 0
VALID_SHIFT: Final = 19  # its bit of row 0
STARTS: Final = 20  # int32: bytes to leave out in front, −1 for bad ones; or 0
ROWS: Final = 21
POSITION: Final = 22  # address of the next field
DEPTH: Final = 23  # −1 between values
FAIL: Final = 24  # the reason for which the value under way is to be given up; 0 for none
LEVEL_WANTED: Final = 25
ROOM_WANTED: Final = 26
BAD_ROW: Final = 27
BAD_ENTRY: Final = 28  # where it went wrong, −1 for no known field
BAD_DEPTH: Final = 29
STATE_SIZE: Final = 30

# Of a node.
NODE_DENSE: Final = 0  # its first place in the table from numbers to entries
NODE_DENSE_SIZE: Final = 1
NODE_ENTRY: Final = 2  # its first entry
NODE_ENTRY_COUNT: Final = 3
NODE_SIZE: Final = 4

# Of an entry.
NUMBER: Final = 0
OP: Final = 1
WIRE: Final = 2
COLUMN: Final = 3
WIDTH: Final = 4  # bytes
PRESENT: Final = 5  # the column that says whether it is there; −1
LEVEL: Final = 6  # where its values stand; of a repeated one, that of its elements
REPEATED: Final = 7
NODE: Final = 8  # of a message
ONEOF: Final = 9  # the column that says which member is set; −1
TEXT_LEVEL: Final = 10
FIRST_COLUMN: Final = 11  # what is cleared with it
STOP_COLUMN: Final = 12
FIRST_LEVEL: Final = 13
STOP_LEVEL: Final = 14
ENUM: Final = 15
ENUM_SIZE: Final = 16
DROPS: Final = 17  # a number that its enum does not have drops the entry of the map
ENTRY_SIZE: Final = 18

# Of a column: bytes of an entry, and its level.
COLUMN_SIZE: Final = 2
# Of a level: its parent, and where its children are.
PARENT: Final = 0
KID: Final = 1
KID_COUNT: Final = 2
LEVEL_SIZE: Final = 3

# Of a message under way.
FRAME_NODE: Final = 0
FRAME_STOP: Final = 1
FRAME_GROUP: Final = 2  # the number that ends it; 0
FRAME_ENTRY: Final = 3  # −1 for the value itself
FRAME_DROPPED: Final = 4
FRAME_SIZE: Final = 5
MOST_DEPTH: Final = 100

# Ops: those of numbers, which may be packed, first.
INT32: Final = 0
INT64: Final = 1
UINT32: Final = 2
UINT64: Final = 3
SINT32: Final = 4
SINT64: Final = 5
BOOL: Final = 6
CLOSED_ENUM: Final = 7
RAW32: Final = 8
FIXED32: Final = 9
RAW64: Final = 10
FIXED64: Final = 11
TEXT: Final = 12
BINARY: Final = 13
MESSAGE: Final = 14
GROUP: Final = 15

# What the kernel returns: what it needs, or why a value is bad.
DONE: Final = 0
GROW: Final = 1
BAD_TAG: Final = 2
BAD_NUMBER: Final = 3
BAD_LENGTH: Final = 4
BAD_GROUP: Final = 5
BAD_TEXT: Final = 6
BAD_PACKED: Final = 7
TOO_DEEP: Final = 8
TOO_LARGE: Final = 9
BAD_START: Final = 10
REASONS: Final = {
    BAD_TAG: "no valid tag: a field number of 0, an unknown wire type, or too long",
    BAD_NUMBER: "a number that does not end in time",
    BAD_LENGTH: "a length that goes beyond the end, or is none",
    BAD_GROUP: "a group without its begin or end",
    BAD_TEXT: "not valid UTF-8",
    BAD_PACKED: "packed numbers that do not end with their length",
    TOO_DEEP: f"messages and groups more than {MOST_DEPTH} deep",
    TOO_LARGE: "values decoded together take too much memory",
    BAD_START: "no message begins there",
}
