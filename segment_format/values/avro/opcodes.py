"""What a compiled program and the kernel that runs it agree on.

A program is rows of `WIDTH` int64: an operation, the slot it writes to (-1: none), the level of
the slot, and arguments. Addresses in it are of the program's own constants.
"""

from __future__ import annotations

from typing import Final

WIDTH: Final = 8
OP: Final = 0
SLOT: Final = 1
LEVEL: Final = 2
A: Final = 3
B: Final = 4
C: Final = 5
D: Final = 6

# --- Operations; wire values are read at the place where the run stands ---------------------------
END: Final = 0  # of the value: nothing may follow
STRING: Final = 1
LONG: Final = 2
INT: Final = 3
DOUBLE: Final = 4
NULLABLE: Final = 5  # A: index of null, B: slot behind those to null, C: where to go on then
BOOLEAN: Final = 6
FLOAT: Final = 7
RAW: Final = 8  # bytes
SKIP_VARINT: Final = 9  # A: how many
SKIP_BYTES: Final = 10  # A: how many strings or bytes
SKIP_FIXED: Final = 11  # A: bytes
VALID: Final = 12  # the slot is not null
NULL: Final = 13  # B: slot behind those to null
ITEMS: Final = 14  # a block's count. A: level of the items, B: bytes of the least, C: end, D: loop
NEXT: Final = 15  # A: level of the items, C: their ITEMS, D: loop
SKIP_ITEMS: Final = 16  # as ITEMS
SKIP_NEXT: Final = 17  # as NEXT
UNION: Final = 18  # A: how many branches; so many JUMPs follow
JUMP: Final = 19  # C: where to
ENUM: Final = 20  # A: symbols, B: address of pairs: the text's address, -1 for none, and its size
FIXED: Final = 21  # A: bytes
NUMBER: Final = 22  # A: FROM_…, B: TO_…
DECIMAL: Final = 23  # A: bytes, -1 if a length is in front; B, C: 10**precision, high and low
CONSTANT: Final = 24  # go on in a default. A: address, B: size
RESUME: Final = 25  # where it was left
FAIL: Final = 26  # A: number of a message of the program

FROM_INT: Final = 0
FROM_LONG: Final = 1
FROM_FLOAT: Final = 2
TO_LONG: Final = 0
TO_FLOAT: Final = 1
TO_DOUBLE: Final = 2
TO_MICROS: Final = 3  # of milliseconds

# --- Slots: rows of SLOT_WIDTH int64 --------------------------------------------------------------
SLOT_WIDTH: Final = 8
KIND: Final = 0  # see `columns`
SIZE: Final = 1  # bytes of a value
SLOT_LEVEL: Final = 2
VALIDITY: Final = 3  # address of a byte per value; 0 for none
VALUES: Final = 4  # address of values, or of int32 ends behind a leading 0
DATA: Final = 5  # address of bytes, with SLACK bytes behind the room
ROOM: Final = 6  # bytes
SLACK: Final = 32

# --- Levels: rows of LEVEL_WIDTH int64 ------------------------------------------------------------
LEVEL_WIDTH: Final = 4
COUNT: Final = 0  # values that are complete
LEVEL_ROOM: Final = 1
AT_ROW: Final = 2  # COUNT when the row began

# --- Loops: rows of LOOP_WIDTH int64 --------------------------------------------------------------
LOOP_WIDTH: Final = 2
LEFT: Final = 0  # items of the block
BLOCK_STOP: Final = 1  # address behind the block; 0 if it is not said

# --- Frame ----------------------------------------------------------------------------------------
PROGRAMS: Final = 0  # address of addresses of programs
PROGRAM_OF: Final = 1  # address of int64 per row, -1: the row is bad; 0: all have the first one
SLOTS: Final = 2
SLOT_COUNT: Final = 3
LEVELS: Final = 4
LEVEL_COUNT: Final = 5
LOOPS: Final = 6
OFFSETS: Final = 7  # address of int32, of the first row
INPUT: Final = 8  # address of the bytes
INPUT_SIZE: Final = 9
INPUT_VALIDITY: Final = 10  # address of bits, 0 for none
INPUT_FIRST_BIT: Final = 11
PREFIX: Final = 12  # bytes in front of each value
ROWS: Final = 13
ROW: Final = 14  # the next one
FAILED_AT: Final = 15  # instruction
FAILED_ARGUMENT: Final = 16  # of SKIP_…: steps, or bytes, that there were
NEEDED: Final = 17  # room, of FAILED_ARGUMENT
FRAME_SIZE: Final = 18

# --- What a run returns ---------------------------------------------------------------------------
DONE: Final = 0
GROW_BYTES: Final = 1  # slot FAILED_ARGUMENT needs NEEDED bytes
GROW_LEVEL: Final = 2  # level FAILED_ARGUMENT needs NEEDED values
# Errors of row ROW, which is null then.
ERROR_TRUNCATED: Final = 10
ERROR_VARINT: Final = 11
ERROR_INT: Final = 12
ERROR_BOOLEAN: Final = 13
ERROR_LENGTH: Final = 14
ERROR_UTF8: Final = 15
ERROR_BRANCH: Final = 16
ERROR_SYMBOL: Final = 17
ERROR_UNKNOWN_SYMBOL: Final = 18
ERROR_COUNT: Final = 19
ERROR_BLOCK: Final = 20
ERROR_DECIMAL: Final = 21
ERROR_TIME: Final = 22
ERROR_REST: Final = 23
ERROR_TOO_MUCH: Final = 24
ERROR_MESSAGE: Final = 25

MESSAGES: Final = {
    ERROR_TRUNCATED: "the value ends too early",
    ERROR_VARINT: "a number of more than 64 bits",
    ERROR_INT: "an int of more than 32 bits",
    ERROR_BOOLEAN: "a boolean that is neither 0 nor 1",
    ERROR_LENGTH: "a length below 0 or beyond the end of the value",
    ERROR_UTF8: "text that is not UTF-8",
    ERROR_BRANCH: "a union has no such branch",
    ERROR_SYMBOL: "an enum has no such symbol",
    ERROR_UNKNOWN_SYMBOL: "a symbol that the reader's enum does not have",
    ERROR_COUNT: "more items than the value has bytes for",
    ERROR_BLOCK: "a block of items that is not as long as it says",
    ERROR_DECIMAL: "a decimal of more digits than its precision",
    ERROR_TIME: "a timestamp beyond what microseconds can say",
    ERROR_REST: "bytes behind the end of the value",
    ERROR_TOO_MUCH: "its column would hold more than 2 GiB, or 2**31 items, of one batch",
}
MOST_EMPTY: Final = 4096
"""Items without a byte that the arrays of one type in one value may have."""
LARGEST: Final = 2**31 - 1
