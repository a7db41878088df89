"""Files of rows that all hold one topic: written by another way, the same to every reader."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kts_source.export.parquet_file import ParquetFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROWS = 10_000


class _Kept(io.BytesIO):
    """A sink whose bytes outlive its end."""

    def close(self) -> None:
        """Stays open."""


def _batches() -> list[pa.RecordBatch]:
    columns = {
        "topic": pa.array(["orders-ö"] * _ROWS),
        "offset": pa.array(range(_ROWS), pa.int64()),
        "value": pa.array([str(n).encode() if n % 3 else None for n in range(_ROWS)], pa.binary()),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    return [batch.slice(start, 999) for start in range(0, _ROWS, 999)]


def _written(constants: Mapping[str, str], sort_by: Sequence[str] = ()) -> pq.ParquetFile:
    sink = _Kept()
    file = ParquetFile(
        sink,
        _batches()[0].schema,
        compression="zstd",
        row_group_rows=3000,
        sort_by=sort_by,
        bounded={"topic"},
        constants=constants,
    )
    for batch in _batches():
        file.add(batch)
    file.close()
    return pq.ParquetFile(pa.BufferReader(sink.getvalue()))


def test_a_constant_text_reads_as_if_every_row_had_been_written() -> None:
    plain, constant = _written({}), _written({"topic": "orders-ö"})
    assert constant.read().equals(plain.read())
    assert constant.schema_arrow.equals(plain.schema_arrow)
    assert constant.metadata.num_row_groups == plain.metadata.num_row_groups > 3
    for group in range(plain.metadata.num_row_groups):
        found = [file.metadata.row_group(group).column(0) for file in (plain, constant)]
        assert found[0].statistics == found[1].statistics
        assert found[1].statistics.min == found[1].statistics.max == "orders-ö"
        assert found[0].encodings == found[1].encodings


def test_sorted_rows_keep_the_texts_they_came_with() -> None:
    file = _written({"topic": "orders-ö"}, sort_by=["value"])
    assert file.read().column("topic").to_pylist() == ["orders-ö"] * _ROWS
