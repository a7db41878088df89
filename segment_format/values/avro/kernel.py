"""The one kernel that runs any program over the bytes of many values, straight into column buffers.

A row that fails leaves no trace but a null: what it has written is written again by the next one,
because all that was counted is counted back. Where a buffer is too small, the row is undone as
well, and run again when there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba.core import types

from segment_format.kernels.compiled import kernel
from segment_format.kernels.memory import (
    load_i64_native,
    load_u8,
    load_u32_native,
    load_word,
    store_i64,
)
from segment_format.values.avro import opcodes as o
from segment_format.values.avro.run_value import (
    INSTRUCTION,
    fill_null,
    level_at,
    run_value,
)
from segment_format.values.frames import get, put

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Frame, Value

_HALF = np.uint64(4)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)

_FRAME = types.Array(types.int64, 1, "C")


@kernel(types.int64(_FRAME))
def run_avro(frame: Frame) -> Value:
    """Decodes rows until something needs Python: a status of `opcodes`.

    A row with an error is null when it returns, and ROW is still its number; a row that needs room
    is undone.
    """
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
        at = start + load_u32_native(entry) + prefix
        stop = start + load_u32_native(entry + _HALF)
        status, here, argument, needed = run_value(
            program, at, stop, limit, slots, levels, loops
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
