"""Parquet files as an Iceberg table is told of them.

As PyIceberg's `Transaction.add_files`, with bounds of fields of structs, too: without them no file
is left out by a condition on one, and PyIceberg takes partition values from bounds.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from kts_source.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction
    from pyiceberg.types import NestedField, StructType

_THREADS: Final = 16
_METRICS: Final = "write.metadata.metrics."
_ALONE: Final = "column"
_FIRST_SURROGATE: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000


def add_files(
    table: Table, transaction: Transaction, paths: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Adds a snapshot with files of the table's columns, even with none.

    Args:
        table: As it was loaded.
        transaction: Of the table; what it has changed of the columns counts.
        paths: None of them is in the table.
        properties: Of the snapshot.

    Raises:
        ValueError: A file does not fit the table.
    """
    from pyiceberg.table import TableProperties

    if transaction.table_metadata.name_mapping() is None:
        mapping = transaction.table_metadata.schema().name_mapping
        transaction.set_properties(
            {TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()}
        )
    with ThreadPoolExecutor(_THREADS, "kts-iceberg") as pool:
        found = list(pool.map(lambda path: _data_file(table, transaction, path), paths))
    with transaction.update_snapshot(dict(properties)).fast_append() as append:
        for file in found:
            append.append_data_file(file)


def _data_file(table: Table, transaction: Transaction, path: str) -> DataFile:
    from pyarrow.parquet import read_metadata
    from pyiceberg.io import pyarrow as files
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    metadata = transaction.table_metadata
    schema, spec = metadata.schema(), metadata.spec()
    file = table.io.new_input(path)
    with file.open() as stream:
        parquet = read_metadata(stream)
    files._check_pyarrow_schema_compatible(  # noqa: SLF001  # add_files of PyIceberg asks it, too
        schema, parquet.schema.to_arrow_schema(), format_version=metadata.format_version
    )
    columns = files.parquet_path_to_id_mapping(schema)
    statistics = files.data_file_statistics_from_parquet_metadata(
        parquet_metadata=parquet,
        stats_columns=_plan(schema, metadata.properties),
        parquet_column_mapping=columns,
    )
    for field_id in _without_bounds(parquet, columns):
        statistics.column_aggregates.pop(field_id, None)
    for field in spec.fields:
        nulls = statistics.null_value_counts.get(field.source_id)
        if field.source_id not in statistics.column_aggregates and nulls != parquet.num_rows:
            raise ExportError(
                f"a file has no bounds of {schema.find_column_name(field.source_id)}, and partition"
                " values are taken from them",
                uri=path,
            )
    partition = statistics.partition(spec, schema)  # of the whole texts
    for aggregate in statistics.column_aggregates.values():
        if isinstance(aggregate.current_max, str):
            aggregate.current_max = upper_bound(aggregate.current_max, aggregate.trunc_length)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(file),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _without_bounds(parquet: pq.FileMetaData, columns: Mapping[str, int]) -> Iterator[int]:
    """Yields the fields that have values, but no bounds, in at least one row group.

    Arrow writes no bounds of long texts. PyIceberg skips such a row group, so its bounds would not
    cover the values there, and readers would skip files that hold matching rows.
    """
    for group in range(parquet.num_row_groups):
        row_group = parquet.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            bounds = column.statistics
            if bounds is None or bounds.has_min_max:
                continue
            if not bounds.has_null_count or bounds.null_count < column.num_values:
                yield columns[column.path_in_schema]


def upper_bound(text: str, length: int | None) -> str | None:
    """Returns a text of at most `length` characters that is not below `text`; `None` if none is.

    PyIceberg counts the last character up by one, which makes a surrogate of U+D7FF: no UTF-8 text
    can hold it. Java's Iceberg skips the surrogates, and so does this.
    """
    if length is None or len(text) <= length:
        return text
    for end in range(length, 0, -1):
        code = ord(text[end - 1]) + 1
        if code == _FIRST_SURROGATE:
            code = _AFTER_SURROGATES
        if code <= sys.maxunicode:
            return text[: end - 1] + chr(code)
    return None


def _plan(schema: Schema, properties: Mapping[str, str]) -> dict[int, Any]:
    """What is kept of each column: of fields of structs as much as of columns.

    PyIceberg keeps only counts of whatever is in something. Of items of lists and maps that is
    right: a row has many.
    """
    from pyiceberg.io import pyarrow as files
    from pyiceberg.schema import Schema as OneColumn

    plan: dict[int, Any] = files.compute_statistics_plan(schema, dict(properties))
    for path, field in _fields(schema.as_struct(), ""):
        # What PyIceberg says of a column of this type, by the properties of the field's path.
        alone = OneColumn(field.model_copy(update={"name": _ALONE}))
        own = {name: text for name, text in properties.items() if name == f"{_METRICS}default"}
        if (mode := properties.get(f"{_METRICS}column.{path}")) is not None:
            own[f"{_METRICS}column.{_ALONE}"] = mode
        found = files.compute_statistics_plan(alone, own)[field.field_id]
        plan[field.field_id] = replace(plan[field.field_id], mode=found.mode)
    return plan


def _fields(struct: StructType, outer: str) -> Iterator[tuple[str, NestedField]]:
    """Fields of structs in a struct that hold one value, and their paths."""
    for field in struct.fields:
        kind = field.field_type
        if kind.is_struct:
            yield from _fields(cast("StructType", kind), f"{outer}{field.name}.")
        elif outer and kind.is_primitive:
            yield f"{outer}{field.name}", field
