"""The columns of the table: Spark's Kafka source's, in its order, and those that say where a record
came from.
"""

from __future__ import annotations

from typing import Final

TOPIC: Final = "topic"
PARTITION: Final = "partition"
HEADERS: Final = "headers"
DEFAULT_COLUMNS: Final = ("key", "value", TOPIC, PARTITION, "offset", "timestamp", "timestampType")
PLACE_COLUMNS: Final = (TOPIC, PARTITION)
"""Known from the plan, the same for all rows of a slice."""
ALL_COLUMNS: Final = (*DEFAULT_COLUMNS, HEADERS)
