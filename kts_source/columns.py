"""Names of the columns that scans return. The columns of Spark's Kafka source come first."""

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
"""Columns with facts about a record's batch and the segment from which it was read."""
ALL_COLUMNS: Final = (*DEFAULT_COLUMNS, HEADERS, *LINEAGE_COLUMNS)
LOCATION_COLUMNS: Final = (TOPIC, PARTITION, SEGMENT_ID)
"""Columns whose value is the same for all rows of a slice. The plan contains the value."""
ERROR_COLUMNS: Final = {"key": "keyError", "value": "valueError"}
"""Columns with the reason why a key or value could not be decoded; only in mode PERMISSIVE."""
RAW_COLUMNS: Final = {"key": "keyRaw", "value": "valueRaw"}
"""Columns with the undecoded bytes of keys and values; only if a query names them."""
