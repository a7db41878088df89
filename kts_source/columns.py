"""The columns of the table: Spark's Kafka source's, in its order, and those that say where a record
came from.
"""

from __future__ import annotations

from typing import Final

TOPIC: Final = "topic"
PARTITION: Final = "partition"
HEADERS: Final = "headers"
DEFAULT_COLUMNS: Final = ("key", "value", TOPIC, PARTITION, "offset", "timestamp", "timestampType")
SEGMENT_ID: Final = "segmentId"
LINEAGE_COLUMNS: Final = (
    "leaderEpoch",
    "producerId",
    "producerEpoch",
    "sequence",
    "isTransactional",
    "batchBaseOffset",
    "codec",
    SEGMENT_ID,
)
"""Where a record came from: facts of its batch, and the segment it was read from."""
ALL_COLUMNS: Final = (*DEFAULT_COLUMNS, HEADERS, *LINEAGE_COLUMNS)
PLACE_COLUMNS: Final = (TOPIC, PARTITION, SEGMENT_ID)
"""Known from the plan, the same for all rows of a slice."""
ERROR_COLUMNS: Final = {"key": "keyError", "value": "valueError"}
"""Why a key or a value is null that could not be decoded; there with mode PERMISSIVE alone."""
RAW_COLUMNS: Final = {"key": "keyRaw", "value": "valueRaw"}
"""The bytes of a key or a value that is decoded; there where it is named."""
