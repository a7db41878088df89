"""Defines the layout of compiled programs, and of the frame that the kernel and Python share.

A program is a table with `WIDTH` int64 numbers per row. Each row is an instruction. It consists of
an operation, the slot that it writes to, the level of that slot, and arguments. An argument can be
the address of a constant, which the program owns.
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

# --- Operations, which read at the current position in the value ----------------------------------
END: Final = 0  # end of the value
STRING: Final = 1
LONG: Final = 2
INT: Final = 3
DOUBLE: Final = 4
NULLABLE: Final = 5  # A: index of null, B: slot after those to null, C: next instruction then
BOOLEAN: Final = 6
FLOAT: Final = 7
RAW: Final = 8  # bytes
SKIP_VARINT: Final = 9  # A: number of varints
SKIP_BYTES: Final = 10  # A: number of strings or bytes
SKIP_FIXED: Final = 11  # A: bytes
VALID: Final = 12  # the slot is not null
NULL: Final = 13  # B: slot after those to null
ITEMS: Final = (
    14  # a block's count. A: level of items, B: minimum bytes of an item, C: end, D: loop
)
NEXT: Final = 15  # A: level of the items, C: their ITEMS, D: loop
SKIP_ITEMS: Final = 16  # as ITEMS
SKIP_NEXT: Final = 17  # as NEXT
UNION: Final = 18  # A: number of branches; as many JUMPs follow
JUMP: Final = 19  # C: target
ENUM: Final = 20  # A: symbols, B: address of pairs: address and size of the text, size -1 for none
FIXED: Final = 21  # A: bytes
NUMBER: Final = 22  # A: FROM_…, B: TO_…
DECIMAL: Final = 23  # A: bytes, -1 if a length precedes it; B, C: 10**precision, high and low
CONSTANT: Final = 24  # continue in a default. A: address, B: size
RESUME: Final = 25  # continue after CONSTANT
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
VALUES: Final = 4  # address of values, or of int32 ends after a leading 0
DATA: Final = 5  # address of bytes, with SLACK bytes after the end
CAPACITY: Final = 6  # bytes
SLACK: Final = 32

# --- Levels: rows of LEVEL_WIDTH int64 ------------------------------------------------------------
LEVEL_WIDTH: Final = 4
COUNT: Final = 0  # complete values
LEVEL_CAPACITY: Final = 1
AT_ROW: Final = 2  # COUNT when the row began

# --- Loops: rows of LOOP_WIDTH int64 --------------------------------------------------------------
LOOP_WIDTH: Final = 2
LEFT: Final = 0  # items of the block
BLOCK_STOP: Final = 1  # address after the block; 0 if unknown

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
ROW: Final = 14  # the next row
FAILED_AT: Final = 15  # instruction
FAILED_ARGUMENT: Final = 16  # of SKIP_…: steps or bytes done
NEEDED: Final = 17  # capacity for FAILED_ARGUMENT
FRAME_SIZE: Final = 18

# --- Statuses of a run ----------------------------------------------------------------------------
DONE: Final = 0
GROW_BYTES: Final = 1  # slot FAILED_ARGUMENT needs NEEDED bytes
GROW_LEVEL: Final = 2  # level FAILED_ARGUMENT needs NEEDED values
# Statuses for errors in row ROW, which becomes null.
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
    ERROR_VARINT: "a number has more than 64 bits",
    ERROR_INT: "an int has more than 32 bits",
    ERROR_BOOLEAN: "a boolean is neither 0 nor 1",
    ERROR_LENGTH: "a length is negative or exceeds the value",
    ERROR_UTF8: "text that is not UTF-8",
    ERROR_BRANCH: "a union has no such branch",
    ERROR_SYMBOL: "an enum has no such symbol",
    ERROR_UNKNOWN_SYMBOL: "the reader's enum does not have the symbol",
    ERROR_COUNT: "there are more items than the value has bytes for",
    ERROR_BLOCK: "a block of items does not have its stated size",
    ERROR_DECIMAL: "a decimal has more digits than its precision",
    ERROR_TIME: "a timestamp does not fit 64 bits of microseconds",
    ERROR_REST: "bytes follow after the end of the value",
    ERROR_TOO_MUCH: "its column would exceed 2 GiB or 2**31 items in one batch",
}
MAX_EMPTY: Final = 4096
"""Maximum number of items without bytes, over all arrays of one level in one value."""
LARGEST: Final = 2**31 - 1
