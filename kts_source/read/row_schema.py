"""The Arrow schema of the rows that tasks give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.columns import PARTITION, SEGMENT_ID, TOPIC
from segment_format.arrow import record_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLACE_TYPES: Final = {TOPIC: pa.string(), PARTITION: pa.int32(), SEGMENT_ID: pa.string()}


def read_schema(columns: Iterable[str]) -> pa.Schema:
    """Of the rows as tasks read them, in the order of `columns`; every column may be null."""
    names = tuple(columns)
    of_records = record_schema([name for name in names if name not in _PLACE_TYPES])
    fields = [
        pa.field(name, _PLACE_TYPES[name]) if name in _PLACE_TYPES else of_records.field(name)
        for name in names
    ]
    return pa.schema(fields)
