"""Defines the memory layout of programs, and of the state that the kernel reads and changes. Both
are tables of int64 numbers.

A *level* is a set of columns that always have the same length. An *entry* of a level is one
position in these columns. Level 0 has an entry per value. Each list or map has a level with an
entry per element, and each text has a level with an entry per byte. The columns of a nested message
that is not repeated are in the level of the outer message, because they have the same length. Each
level except 0 has a parent level and offsets. For each entry of the parent level, the offsets (as
in Arrow lists) contain the index of its first entry in the child level.

A *node* is a message type at a position in the tree of fields. The table of entries (`ENTRIES`) has
a row for each field of each node. The rows of a node are in ascending order of field numbers.
"""

from __future__ import annotations

from typing import Final

# Slots of the state: addresses of the program and of the columns, and the progress of the kernel.
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
CAPACITIES: Final = 13  # of levels
BEFORE: Final = 14  # of levels: for `clear_entries`
STACK: Final = 15
DATA: Final = 16  # the bytes of all values
ENDS: Final = 17  # int32: start of each value, then the end of the last
VALID: Final = 18  # a bitmap, or 0
VALID_SHIFT: Final = 19  # its bit of row 0
STARTS: Final = 20  # int32: bytes to skip in front, -1 for bad values; or 0
ROWS: Final = 21
POSITION: Final = 22  # address of the next field
DEPTH: Final = 23  # -1 between values
FAIL: Final = 24  # reason to reject the current value; 0 for none
LEVEL_WANTED: Final = 25
CAPACITY_WANTED: Final = 26
BAD_ROW: Final = 27
BAD_ENTRY: Final = 28  # entry of the malformed field, -1 for an unknown one
BAD_DEPTH: Final = 29
STATE_SIZE: Final = 30

# Slots of a node.
NODE_DENSE: Final = 0  # its first index in the table from numbers to entries
NODE_DENSE_SIZE: Final = 1
NODE_ENTRY: Final = 2  # its first entry
NODE_ENTRY_COUNT: Final = 3
NODE_SIZE: Final = 4

# Slots of an entry, which describes a field.
NUMBER: Final = 0
OP: Final = 1
WIRE: Final = 2
COLUMN: Final = 3
WIDTH: Final = 4  # bytes
PRESENT: Final = 5  # column of presence; -1 for none
LEVEL: Final = 6  # level of its values; for a repeated field, of its elements
REPEATED: Final = 7
NODE: Final = 8  # of a message
ONEOF: Final = 9  # column of the member that is set; -1 for none
TEXT_LEVEL: Final = 10
FIRST_COLUMN: Final = 11  # cleared with it, up to STOP_LEVEL
STOP_COLUMN: Final = 12
FIRST_LEVEL: Final = 13
STOP_LEVEL: Final = 14
ENUM: Final = 15
ENUM_SIZE: Final = 16
DROPS: Final = 17  # 1: a number that its enum does not have drops the map entry
ENTRY_SIZE: Final = 18

# Slots of a column: bytes per entry, and its level.
COLUMN_SIZE: Final = 2
# Slots of a level: its parent level, and where the table of child levels lists its children.
PARENT: Final = 0
KID: Final = 1
KID_COUNT: Final = 2
LEVEL_SIZE: Final = 3

# Slots of the stack frame of a message that is being decoded.
FRAME_NODE: Final = 0
FRAME_STOP: Final = 1
FRAME_GROUP: Final = 2  # number of the group that ends it; 0 for none
FRAME_ENTRY: Final = 3  # -1 for the value itself
FRAME_DROPPED: Final = 4
FRAME_SIZE: Final = 5
MAX_DEPTH: Final = 100

# Operations that decode a field. Operations for numbers, which may be packed, come first.
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

# Statuses that the kernel returns: DONE, a request for memory, or the reason why a value is bad.
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
    BAD_TAG: "an invalid tag: field number 0, an unknown wire type, or too long",
    BAD_NUMBER: "a number is truncated or too long",
    BAD_LENGTH: "a length is invalid or exceeds the value",
    BAD_GROUP: "a group has no start or no end",
    BAD_TEXT: "not valid UTF-8",
    BAD_PACKED: "packed numbers do not end with their length",
    TOO_DEEP: f"messages and groups are nested more than {MAX_DEPTH} deep",
    TOO_LARGE: "values decoded together take too much memory",
    BAD_START: "no message begins there",
}
