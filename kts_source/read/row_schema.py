"""The Arrow schema of the rows that tasks give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.columns import PARTITION, SEGMENT_ID, TOPIC
from kts_source.options.value_formats import column_types
from segment_format.arrow import record_schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.options.value_formats import ColumnFormat

_PLACE_TYPES: Final = {TOPIC: pa.string(), PARTITION: pa.int32(), SEGMENT_ID: pa.string()}


def read_schema(columns: Iterable[str], formats: Iterable[ColumnFormat] = ()) -> pa.Schema:
    """Of the rows as tasks read them, in the order of `columns`; every column may be null.

    Args:
        columns: Names.
        formats: How keys and values are decoded.
    """
    names = tuple(columns)
    known = _PLACE_TYPES | column_types(formats)
    of_records = record_schema([name for name in names if name not in known])
    fields = [
        pa.field(name, known[name]) if name in known else of_records.field(name) for name in names
    ]
    return pa.schema(fields)
