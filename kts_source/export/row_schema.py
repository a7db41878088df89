"""The columns of the rows that an export writes, where they are known before a row is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.export.fields import type_at
from kts_source.export.job import TOPIC_ID
from kts_source.export.settings import NO_EVOLUTION
from kts_source.export.transforms.row_transform import RowTransform
from kts_source.read.row_schema import read_schema

_NAME: Final = re.compile(r"[^ ,;{}()\n\t=.]+")
_NOT_IN_NAMES: Final = "space, tab, line break, . , ; = { } ( )"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.export.partitioning import ValuesIn
    from kts_source.export.settings import ExportSettings
    from kts_source.options import ScanOptions


def compacted_schema(columns: Sequence[str]) -> pa.Schema:
    """Of the rows as compactions merge and write them."""
    return read_schema(columns).append(pa.field(TOPIC_ID, pa.string()))


def check_typed(options: ScanOptions, settings: ExportSettings) -> None:
    """Refuses what an export of decoded keys and values cannot do.

    Raises:
        InvalidOptionError: It is of JSON without a schema, is compacted, goes through a transform
            that decodes, or has fields that tables cannot hold.
    """
    if not options.formats:
        if settings.schema_evolution != NO_EVOLUTION:
            raise InvalidOptionError(
                "schema_evolution needs typed columns: option value.format or key.format"
            )
        return
    for one in options.formats:
        if one.needs_type:
            # A sample of each run would tell something else, and a table goes on with its fields.
            raise InvalidOptionError(
                f"an export needs option '{one.column}.schema': `kts schema` prints what a sample"
                " shows"
            )
    if settings.compaction is not None:
        raise InvalidOptionError(
            "compact=True merges keys and values as bytes: leave options key.format and"
            " value.format out"
        )
    if isinstance(settings.transform, RowTransform):
        raise InvalidOptionError(
            f"{type(settings.transform).__name__} decodes bytes, and options key.format and"
            " value.format have decoded them: leave one of them out"
        )
    if settings.transform is not None and settings.schema_evolution != NO_EVOLUTION:
        raise InvalidOptionError(
            "schema_evolution goes with no transform: only columns as they are decoded are compared"
        )
    schema = read_schema(options.columns, options.formats)
    for name in typed_columns(options):
        if settings.transform is None:
            _check_writable(name, schema.field(name).type)


def typed_columns(options: ScanOptions) -> tuple[str, ...]:
    """Those of the columns that are decoded."""
    return tuple(form.column for form in options.formats if form.column in options.columns)


def _check_writable(path: str, kind: pa.DataType) -> None:
    reason = ""
    if pa.types.is_duration(kind):
        reason = "is a duration, which Parquet has not"
    elif pa.types.is_null(kind):
        reason = "is always null"
    elif pa.types.is_struct(kind) and kind.num_fields == 0:
        reason = "is a struct without fields"
    if reason:
        raise InvalidOptionError(
            f"{path} {reason}, and tables cannot hold it: leave it out with option"
            f" '{path.partition('.')[0]}.columns', or export bytes"
        )
    for number in range(kind.num_fields):
        field = kind.field(number)
        if pa.types.is_struct(kind) and not _NAME.fullmatch(field.name):
            raise InvalidOptionError(
                f"a field of {path} has the name {field.name!r}, and names in tables hold none of"
                f" {_NOT_IN_NAMES}: leave it out with option '{path.partition('.')[0]}.columns', or"
                " export bytes"
            )
        _check_writable(f"{path}.{field.name}", field.type)


def schema_without_rows(options: ScanOptions, settings: ExportSettings) -> pa.Schema | None:
    """Of the rows an export would write; `None` where only a row can tell.

    A function is not asked: what it makes of no rows may have other types than what it makes of
    some. Where a `RowTransform` fails on no rows, or makes columns without a type of them, it does
    not tell either.
    """
    if settings.compaction is not None:
        return compacted_schema(options.columns)
    schema = read_schema(options.columns, options.formats)
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
    kinds = {name: type_at(schema, name) for name in settings.sort_within_files}
    if missing := [name for name, kind in kinds.items() if kind is None]:
        raise InvalidOptionError(
            f"sort_within_files names {', '.join(sorted(missing))}, which the rows written do not"
            " have"
        )
    for name, kind in kinds.items():
        if pa.types.is_nested(kind):
            raise InvalidOptionError(
                f"sort_within_files names {name}, which is {kind}: name a field of it"
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
