"""The columns of the rows that an export writes, where they are known before a row is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.export.job import TOPIC_ID
from kts_source.export.transforms.row_transform import RowTransform
from kts_source.read.row_schema import read_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.export.partitioning import ValuesIn
    from kts_source.export.settings import ExportSettings
    from kts_source.options import ScanOptions


def compacted_schema(columns: Sequence[str]) -> pa.Schema:
    """Of the rows as compactions merge and write them."""
    return read_schema(columns).append(pa.field(TOPIC_ID, pa.string()))


def schema_without_rows(options: ScanOptions, settings: ExportSettings) -> pa.Schema | None:
    """Of the rows an export would write; `None` where only a row can tell.

    A function is not asked: what it makes of no rows may have other types than what it makes of
    some. Where a `RowTransform` fails on no rows, or makes columns without a type of them, it does
    not tell either.
    """
    if settings.compaction is not None:
        return compacted_schema(options.columns)
    schema = read_schema(options.columns)
    transform = settings.transform
    if transform is None:
        return schema
    if isinstance(transform, RowTransform):
        none = pa.RecordBatch.from_pylist([], schema)
        try:
            rows = transform.apply(none).rows
        except TieredKafkaError:
            raise
        except Exception:  # noqa: BLE001  # nothing is lost: a row will tell
            return None
        if rows is not None and all(_is_typed(field.type) for field in rows.schema):
            return rows.schema.remove_metadata()
    return None


def check_columns(schema: pa.Schema, settings: ExportSettings, values_in: ValuesIn) -> None:
    """Compares the columns of the rows with those that the settings name.

    Raises:
        InvalidOptionError: The rows cannot be sorted or partitioned so.
    """
    if missing := set(settings.sort_within_files) - set(schema.names):
        raise InvalidOptionError(
            f"sort_within_files names {', '.join(sorted(missing))}, which the rows written do not"
            " have"
        )
    none = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
    for field in settings.partition_by:
        field.values(none)
    names = {field.name for field in settings.partition_by}
    if values_in != "file" and names >= set(schema.names):
        raise InvalidOptionError(
            "partition_by names every column of the rows: their files would have none"
        )


def _is_typed(kind: pa.DataType) -> bool:
    """Whether no part of it was made of nothing."""
    parts = (kind.field(number).type for number in range(kind.num_fields))
    return not pa.types.is_null(kind) and all(_is_typed(part) for part in parts)
