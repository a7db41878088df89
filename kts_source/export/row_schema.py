"""The columns of the rows that an export writes, where they are known before a row is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.columns import PARTITION, SEGMENT_ID, TOPIC
from kts_source.export.job import TOPIC_ID
from kts_source.export.transforms.row_transform import RowTransform
from segment_format.arrow import record_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.export.settings import ExportSettings
    from kts_source.options import ScanOptions

_PLACE_TYPES: Final = {TOPIC: pa.string(), PARTITION: pa.int32(), SEGMENT_ID: pa.string()}


def read_schema(columns: Sequence[str]) -> pa.Schema:
    """Of the rows as tasks read them."""
    of_records = record_schema([name for name in columns if name not in _PLACE_TYPES])
    fields = [
        pa.field(name, _PLACE_TYPES[name]) if name in _PLACE_TYPES else of_records.field(name)
        for name in columns
    ]
    return pa.schema(fields)


def compacted_schema(columns: Sequence[str]) -> pa.Schema:
    """Of the rows as compactions merge and write them."""
    return read_schema(columns).append(pa.field(TOPIC_ID, pa.string()))


def schema_without_rows(options: ScanOptions, settings: ExportSettings) -> pa.Schema | None:
    """Of the rows an export would write; `None` where only a row can tell.

    A function is not asked: what it makes of no rows may have other types than what it makes of
    some.
    """
    if settings.compaction is not None:
        return compacted_schema(options.columns)
    schema = read_schema(options.columns)
    transform = settings.transform
    if transform is None:
        return schema
    if isinstance(transform, RowTransform):
        none = pa.RecordBatch.from_pylist([], schema)
        rows = transform.apply(none).rows
        return None if rows is None else rows.schema.remove_metadata()
    return None
