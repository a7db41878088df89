"""Layout of the frames that Python and the kernels share.

A frame is an int64 array with a named slot for each value. The record kernel gets three arguments:
the window, the payload of a batch that Python decompressed (or an empty array), and the frame. The
kernel stores its whole state in the frame and returns a status, so the next call continues where
the last call stopped. A call stops at the end of a window. It also stops in the middle of a batch
if the columns are full, so that Python can take the columns.

The frame contains the addresses of the column buffers, and their capacities in entries. The owner
of the frame must keep the buffers alive. For each buffer, it must allocate `COPY_SLACK` more bytes
than the capacity.

Slots named OFFSET contain Kafka offsets. Positions and sizes are in bytes, unless a name says rows.
Slots are grouped by the side that writes them.
"""

from __future__ import annotations

from typing import Final

# --- Set once by the owner: the selection --------------------------------------------------------
WANTED: Final = 0  # bits WANT_…, see below
START_OFFSET: Final = 1
STOP_OFFSET: Final = 2
CHECK_CRCS: Final = 3
MAX_ROWS: Final = 4
MAX_BYTES: Final = 5  # of the variable-size columns together
MAX_BATCH_BYTES: Final = 6
ABORTED_COUNT: Final = 7
ABORTED_PRODUCER_IDS: Final = 8  # addresses of int64 arrays
ABORTED_FIRST_OFFSETS: Final = 9
ABORTED_LAST_OFFSETS: Final = 10
LINEAGE_COUNT: Final = 11
LINEAGE_EPOCHS: Final = 12  # addresses of int64 arrays
LINEAGE_START_OFFSETS: Final = 13
OFFSETS_STOP: Final = 14  # with ORDERED: offsets of all entries are below this one
ORDERED: Final = 15  # 1: entries ascend and stay between NEXT_OFFSET and OFFSETS_STOP

# --- Position in the window ----------------------------------------------------------------------
POSITION: Final = 16  # of the next entry
DONE: Final = 17  # 1: an entry at or after STOP_OFFSET was read
NEEDED: Final = 18  # with NEED_MORE: bytes needed from POSITION on, 0 if unknown
NEXT_OFFSET: Final = 19  # with ORDERED: lowest possible first offset of the next entry
STOPPING: Final = 20  # with NEED_MORE: 1 if the entry at POSITION ends the decoding anyway
STOPPING_NEXT: Final = (
    21  # with STOPPING: lowest possible offset of the entry after the one at POSITION
)

# --- The last entry that was skipped because it ends before START_OFFSET -------------------------
SKIPPED_SIZE: Final = 22  # 0: its checksum is irrelevant, or was compared
SKIPPED_IS_BROKEN: Final = 23  # 1: its checksum is wrong

# --- The current batch ---------------------------------------------------------------------------
RECORDS_LEFT: Final = 24
IN_BATCH: Final = 25  # 1: records, or the check that nothing follows them, are left
LOCATION: Final = 26  # location of the records, see LOCATION_…
RECORD_POSITION: Final = 27
RECORDS_STOP: Final = 28
BATCH_POSITION: Final = 29  # in the window
BATCH_SIZE: Final = 30
BASE_OFFSET: Final = 31
BASE_TIMESTAMP: Final = 32
MAX_TIMESTAMP: Final = 33
TIMESTAMP_TYPE: Final = 34
LEADER_EPOCH: Final = 35
PRODUCER_ID: Final = 36
PRODUCER_EPOCH: Final = 37
BASE_SEQUENCE: Final = 38
TRANSACTIONAL: Final = 39
CODEC: Final = 40
BATCH_BASE_OFFSET: Final = 41  # for the column; records count from BASE_OFFSET
LAST_OFFSET: Final = 126  # highest possible offset of the batch's records
LEAST_OFFSET: Final = 127  # lowest possible offset of the next record

SCRATCH: Final = 42  # address of a byte buffer, by the owner
SCRATCH_CAPACITY: Final = 43
SCRATCH_NEEDED: Final = 44  # with GROW_SCRATCH
PAYLOAD_BOUND: Final = 47  # with COMPRESSED: maximum decompressed bytes, -1 if unknown
ZSTD_FUNCTION: Final = 77  # address of `ZSTD_decompressDCtx`, by the owner; 0 if not available
ZSTD_CONTEXT: Final = 78  # address of a context of libzstd that only the owner uses

# --- Wanted timestamps, in milliseconds and inclusive: set once by the owner ---------------------
FIRST_TIMESTAMP: Final = 45
LAST_TIMESTAMP: Final = 46

# --- Columns: addresses and capacities, set by the owner -----------------------------------------
OFFSETS: Final = 48  # int64 per row
TIMESTAMPS: Final = 49  # int64 per row, microseconds
TIMESTAMP_TYPES: Final = 50  # int32 per row
KEY_ENDS: Final = 51  # int32 per row, after a leading 0
KEY_BYTES: Final = 52
KEY_VALID: Final = 53  # bitmap
VALUE_ENDS: Final = 54
VALUE_BYTES: Final = 55
VALUE_VALID: Final = 56
HEADER_ENDS: Final = 57  # int32 per row, in headers
HEADER_KEY_ENDS: Final = 58  # int32 per header
HEADER_KEY_BYTES: Final = 59
HEADER_VALUE_ENDS: Final = 60
HEADER_VALUE_BYTES: Final = 61
HEADER_VALUE_VALID: Final = 62
LEADER_EPOCHS: Final = 63  # int32 per row, -1 for none, like all columns below unless noted
PRODUCER_IDS: Final = 64  # int64 per row
PRODUCER_EPOCHS: Final = 65
SEQUENCES: Final = 66
TRANSACTIONALS: Final = 67  # uint8 per row
BASE_OFFSETS: Final = 68  # int64 per row
CODECS: Final = 69  # int32 per row
TRANSACTIONS: Final = 70  # address of TXN_… slots, by the owner; 0 to ignore markers
KEY_CAPACITY: Final = 72
VALUE_CAPACITY: Final = 73
HEADER_CAPACITY: Final = 74  # in headers
HEADER_KEY_CAPACITY: Final = 75
HEADER_VALUE_CAPACITY: Final = 76

# --- Columns: number of filled rows and bytes ----------------------------------------------------
ROWS: Final = 80
KEY_SIZE: Final = 81
VALUE_SIZE: Final = 82
HEADERS: Final = 83
HEADER_KEY_SIZE: Final = 84
HEADER_VALUE_SIZE: Final = 85
KEY_NULLS: Final = 86
VALUE_NULLS: Final = 87
HEADER_VALUE_NULLS: Final = 88
NEW_KEY_SIZE: Final = 89  # with GROW: capacity needed for the next record, in slots
NEW_VALUE_SIZE: Final = 90  # ordered as the fill slots
NEW_HEADERS: Final = 91
NEW_HEADER_KEY_SIZE: Final = 92
NEW_HEADER_VALUE_SIZE: Final = 93

# --- Counters, never reset -----------------------------------------------------------------------
BATCHES: Final = 96
RECORDS: Final = 97
BYTES: Final = 98
BATCHES_SKIPPED_CONTROL: Final = 99
BATCHES_SKIPPED_ABORTED: Final = 100
BATCHES_SKIPPED_OFFSET: Final = 101
RECORDS_SKIPPED_OFFSET: Final = 102
BATCHES_SKIPPED_TIMESTAMP: Final = 103
RECORDS_SKIPPED_KEY: Final = 104

# --- Details of an error: set if the status is negative ------------------------------------------
ERROR_POSITION: Final = 105  # of the entry, in the window
ERROR_OFFSET: Final = 106
ERROR_FOUND: Final = 107  # actual value
ERROR_EXPECTED: Final = 108  # expected value
SKIPPED_POSITION: Final = 109  # see SKIPPED_SIZE; relative to the window, below 0 in an earlier one
SKIPPED_OFFSET: Final = 110
SKIPPED_STORED_CRC: Final = 111  # -1: an entry of magic 0 or 1; the decoder has the error
SKIPPED_COMPUTED_CRC: Final = 125

# --- Wanted keys, a `segment_format.key_set.KeySet`: set once by the owner -----------------------
SOUGHT: Final = 112  # 1: records with other keys are skipped
SOUGHT_NULL: Final = 113  # 1: records without a key are wanted
SOUGHT_COUNT: Final = 114  # keys in the set
SOUGHT_LENGTHS: Final = 115  # bits
SOUGHT_SEED: Final = 116
SOUGHT_SHIFT: Final = 117
SOUGHT_BORDERS: Final = 118  # addresses, see the attributes of `KeySet`
SOUGHT_TAGS: Final = 119
SOUGHT_STARTS: Final = 120
SOUGHT_DATA: Final = 121
SOUGHT_BITS: Final = 122
SOUGHT_FIRST_SIZE: Final = 123  # bytes of the first key
SOUGHT_STOP: Final = 124  # by the kernel: end of the record that was found

FRAME_SIZE: Final = 128

COPY_SLACK: Final = 32
"""Number of bytes after the end of each byte buffer that kernels may overwrite."""

# --- Bits of WANTED ------------------------------------------------------------------------------
WANT_OFFSET: Final = 1
WANT_TIMESTAMP: Final = 2
WANT_TIMESTAMP_TYPE: Final = 4
WANT_KEY: Final = 8
WANT_VALUE: Final = 16
WANT_HEADERS: Final = 32
WANT_LEADER_EPOCH: Final = 64
WANT_PRODUCER_ID: Final = 128
WANT_PRODUCER_EPOCH: Final = 256
WANT_SEQUENCE: Final = 512
WANT_TRANSACTIONAL: Final = 1024
WANT_BASE_OFFSET: Final = 2048
WANT_CODEC: Final = 4096
NEEDS_BODY: Final = WANT_KEY | WANT_VALUE | WANT_HEADERS | WANT_SEQUENCE
WANT_ORIGIN: Final = (  # columns that need a batch's producer, epoch or base offset
    WANT_LEADER_EPOCH
    | WANT_PRODUCER_ID
    | WANT_PRODUCER_EPOCH
    | WANT_SEQUENCE
    | WANT_TRANSACTIONAL
    | WANT_BASE_OFFSET
)
WANT_OF_BATCH: Final = (  # columns except the timestamp type that are the same for a batch
    WANT_LEADER_EPOCH
    | WANT_PRODUCER_ID
    | WANT_PRODUCER_EPOCH
    | WANT_TRANSACTIONAL
    | WANT_BASE_OFFSET
    | WANT_CODEC
)

# --- Values of LOCATION --------------------------------------------------------------------------
LOCATION_WINDOW: Final = 0
LOCATION_COMPRESSED: Final = 1  # compressed in the window
LOCATION_PAYLOAD: Final = 2  # in the payload array
LOCATION_SCRATCH: Final = 3  # in the scratch buffer

# --- Statuses ------------------------------------------------------------------------------------
NEED_MORE: Final = 0  # the window ends before the end of the next entry
FULL: Final = 1  # the columns are full: hand them out, then call again
GROW: Final = 2  # the next record needs more capacity: see NEW_…
COMPRESSED: Final = 3  # decompress BATCH_POSITION + 61 … and call again with the payload
LEGACY: Final = 4  # an entry of magic 0 or 1, BATCH_SIZE bytes at POSITION
FINISHED: Final = 5  # an entry at or after STOP_OFFSET was reached
GROW_SCRATCH: Final = 6  # decompression needs SCRATCH_NEEDED bytes
CONTINUE: Final = 7  # internal: continue
CHECKED: Final = 8  # internal: the batch has a valid checksum
FOUND: Final = 9  # internal: a record with a wanted key
GROW_PRODUCERS: Final = 10  # the table of TRANSACTIONS has no free entry

ERROR_LENGTH: Final = -1
ERROR_MAGIC: Final = -2
ERROR_TOO_LARGE: Final = -3
ERROR_HEADER: Final = -4
ERROR_CRC: Final = -5
ERROR_CODEC: Final = -6
ERROR_EPOCH: Final = -7
ERROR_ORDER: Final = -8
ERROR_RECORD: Final = -9
ERROR_RECORD_LENGTH: Final = -10
ERROR_KEY: Final = -11
ERROR_VALUE: Final = -12
ERROR_HEADER_COUNT: Final = -13
ERROR_RECORD_HEADERS: Final = -14
ERROR_RECORD_REST: Final = -15
ERROR_BATCH_REST: Final = -16
ERROR_TIMESTAMP: Final = -17
ERROR_RECORD_SIZE: Final = -18
ERROR_RECORD_COUNT: Final = -19
ERROR_RECORD_OFFSET: Final = -20
ERROR_SKIPPED: Final = -21  # the last skipped batch has a wrong checksum
ERROR_TRANSACTION: Final = -22  # a batch or marker contradicts the aborted intervals

# --- Slots of TRANSACTIONS, a `segment_format.transaction_check.TransactionCheck` ----------------
TXN_TABLE: Final = 0  # address of entries: producer id, a state below, offset of a stray abort
TXN_MASK: Final = 1  # entries of the table, a power of two, less 1
TXN_FREE: Final = 2  # free entries
TXN_MET: Final = 3  # address of an int64 per interval; 1: its ABORT marker was read
TXN_STATE_SIZE: Final = 4
TXN_ENTRY_SIZE: Final = 3
TXN_MULTIPLIER: Final = 0x9E3779B97F4A7C15  # of the hash of producer ids

TXN_NO_ENTRY: Final = 0
TXN_UNSEEN: Final = 1  # no batch of the producer was read
TXN_KEPT: Final = 2  # its records since the last marker are returned
TXN_LEFT_OUT: Final = 3  # its records since the last marker are skipped as aborted
TXN_ENDED: Final = 4  # its last batch was a marker

# --- Frame of `scan_batches`, written by the caller ----------------------------------------------
SCAN_WINDOW: Final = 0  # address
SCAN_WINDOW_SIZE: Final = 1  # bytes
SCAN_WINDOW_POSITION: Final = 2  # position of the window in the log
SCAN_LOG_SIZE: Final = 3  # bytes of the log
SCAN_MAX_BATCH_BYTES: Final = 4
SCAN_TABLE: Final = 5  # address
SCAN_CAPACITY: Final = 6  # rows of the table

# --- `scan_batches`: progress --------------------------------------------------------------------
SCAN_POSITION: Final = 7  # of the next entry, in the window
SCAN_ROWS: Final = 8  # filled so far
SCAN_NEEDED: Final = 9  # with NEED_MORE: bytes needed from POSITION on
SCAN_FRAME_SIZE: Final = 10

# --- `scan_batches`: statuses --------------------------------------------------------------------
SCAN_NEED_MORE: Final = 0
SCAN_FULL: Final = 1
SCAN_OTHER: Final = 2  # an entry of another magic, or an invalid one: the caller handles it

# --- `scan_batches`: int64 columns of the table, one row per batch -------------------------------
SCAN_LOG_POSITION: Final = 0
SCAN_BASE_OFFSET: Final = 1
SCAN_LAST_OFFSET: Final = 2
SCAN_LEADER_EPOCH: Final = 3
SCAN_CRC: Final = 4
SCAN_IS_SOUND: Final = 5
SCAN_MAX_TIMESTAMP: Final = 6
SCAN_RECORDS: Final = 7
SCAN_PRODUCER_ID: Final = 8
SCAN_ATTRIBUTES: Final = 9
SCAN_COLUMNS: Final = 10

# --- Frame of `mark_repeated` --------------------------------------------------------------------
KEY_SLOT_ENDS: Final = 0  # address of int32: ends of the maps' entries, after a leading one
KEY_SLOT_MAPS: Final = 1  # number of maps
KEY_SLOT_KEYS: Final = 2  # address of int32 ends of texts, after a leading one, or of numbers
KEY_SLOT_WIDTH: Final = 3  # bytes of a number; 0 for texts
KEY_SLOT_DATA: Final = 4  # address of the texts' bytes, or of the numbers
KEY_SLOT_KEPT: Final = 5  # address of a byte per entry, 0: the entry is dropped
KEY_SLOT_TABLE: Final = 6  # address of int64: a power of 2, at least twice the largest map
KEY_SLOT_SEED: Final = 7  # of hashes; random, so that no producer can choose colliding keys
KEY_FRAME_SIZE: Final = 8
FEW_KEYS: Final = 8
"""Maps with at most this number of entries compare all pairs of keys. Larger maps use a hash table.
"""
