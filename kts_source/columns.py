"""Names of the table's columns. The columns of Spark's Kafka source come first."""

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
"""Facts of a record's batch, and the segment it was read from."""
ALL_COLUMNS: Final = (*DEFAULT_COLUMNS, HEADERS, *LINEAGE_COLUMNS)
LOCATION_COLUMNS: Final = (TOPIC, PARTITION, SEGMENT_ID)
"""Columns whose values the plan has, the same for all rows of a slice."""
ERROR_COLUMNS: Final = {"key": "keyError", "value": "valueError"}
"""Reasons why keys or values could not be decoded; only with mode PERMISSIVE."""
RAW_COLUMNS: Final = {"key": "keyRaw", "value": "valueRaw"}
"""Bytes of decoded keys and values; only if a query names them."""
