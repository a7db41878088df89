"""What `scan_batches` and its caller agree on: one int64 array, the frame, and a table of int64
columns, one row a batch.
"""

from __future__ import annotations

from typing import Final

# --- Slots of the frame, written by the caller ---------------------------------------------------
WINDOW: Final = 0  # address
WINDOW_SIZE: Final = 1  # bytes
WINDOW_POSITION: Final = 2  # where the window begins in the log
LOG_SIZE: Final = 3  # bytes; no entry reaches beyond
MAX_BATCH_BYTES: Final = 4
TABLE: Final = 5  # address
ROOM: Final = 6  # rows of a column

# --- Where the walk stands -----------------------------------------------------------------------
POSITION: Final = 7  # of the next entry, in the window
ROWS: Final = 8  # filled so far
NEEDED: Final = 9  # with NEED_MORE: bytes from POSITION on that the next step takes
FRAME_SIZE: Final = 10

# --- Statuses ------------------------------------------------------------------------------------
NEED_MORE: Final = 0
FULL: Final = 1
OTHER: Final = 2  # an entry that is none of magic 2, or not valid: the caller looks at it

# --- Columns of the table ------------------------------------------------------------------------
LOG_POSITION: Final = 0
BASE_OFFSET: Final = 1
LAST_OFFSET: Final = 2
LEADER_EPOCH: Final = 3
CRC: Final = 4
IS_SOUND: Final = 5
MAX_TIMESTAMP: Final = 6
RECORDS: Final = 7
PRODUCER_ID: Final = 8
ATTRIBUTES: Final = 9
COLUMNS: Final = 10
