"""Reads the data files of a table: their rows, and how many there are."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from kts_source.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.export.tables.export_table import BaseFile
    from kts_source.store.object_store import ObjectStore

_READ_AHEAD: Final = 1 << 20
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"


class ObjectFile(io.RawIOBase):
    """An object as a file that can be read at any position."""

    def __init__(self, store: ObjectStore, base: BaseFile) -> None:
        self._store = store
        self._base = base
        self._position = 0

    def readable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.RawIOBase`."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._base.size}
        self._position = origin[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  # anything that can be written to
        """See `io.RawIOBase`."""
        stop = max(self._position, min(self._position + len(buffer), self._base.size))
        data = self._store.get_range(self._base.key, self._position, stop)
        buffer[: len(data)] = data
        self._position = stop
        return len(data)


def open_parquet(store: ObjectStore, base: BaseFile) -> pq.ParquetFile:
    """Opens a data file of a table.

    Raises:
        ExportError: It is no Parquet file.
    """
    try:
        return pq.ParquetFile(io.BufferedReader(ObjectFile(store, base), _READ_AHEAD))
    except pa.ArrowInvalid as error:
        raise ExportError(
            f"a file of the table cannot be read as Parquet: {error}. Another writer replaced or"
            " damaged it; restore it from a backup, or export into another table",
            uri=store.uri(base.key),
        ) from None


def rows_of_file(store: ObjectStore, base: BaseFile) -> int:
    """Returns the number of rows that the footer of a data file records."""
    with open_parquet(store, base) as file:
        rows: int = file.metadata.num_rows
        return rows


def columns_of_file(
    store: ObjectStore, base: BaseFile, schema: pa.Schema, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yields some columns of a data file in batches; columns that it lacks, or has with values of
    another type, are null.

    Args:
        store: Has the file.
        base: The file and the partition values that are not in it.
        schema: The columns.
        rows: Of a batch, at most.
    """
    with open_parquet(store, base) as file:
        stored = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(rows, columns=stored, use_threads=False):
            arrays = []
            for field in schema:
                if field.name in stored:
                    values = batch.column(field.name)
                else:
                    value = pa.scalar(base.values.get(field.name), pa.string())
                    values = pa.repeat(value, batch.num_rows)
                arrays.append(_cast(values, field.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(values), kind)


def path_values(key: str) -> dict[str, str | None]:
    """Returns the partition values that the folders of a file's key name."""
    pairs = (folder.partition("=") for folder in key.split("/")[:-1] if "=" in folder)
    return {
        unquote(name): None if value == _NULL_FOLDER else unquote(value) for name, _, value in pairs
    }
