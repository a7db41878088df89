"""Columns that are no part of a record."""

from __future__ import annotations

import pyarrow as pa
import pytest

from segment_format.arrow import RecordDecoder
from segment_format.testing import SimpleRecord, write_batch

ROWS = 23
DATA = b"".join(
    write_batch([SimpleRecord(b"v%d" % row)], base_offset=100 + row) for row in range(ROWS)
)
PLACE: dict[str, str | int] = {"topic": "orders-ü", "partition": 7, "unused": "x"}


def decoded(*columns: str, max_rows: int = 5) -> pa.Table:
    decoder = RecordDecoder(columns=columns, constants=PLACE, max_rows=max_rows)
    return pa.Table.from_batches([*decoder.feed(DATA), *decoder.finish()])


def test_they_stand_where_they_were_asked_for() -> None:
    table = decoded("partition", "offset", "topic", "value")
    assert table.schema.names == ["partition", "offset", "topic", "value"]
    assert table.schema.types == [pa.int32(), pa.int64(), pa.string(), pa.binary()]
    assert table.column("partition").to_pylist() == [7] * ROWS
    assert table.column("topic").to_pylist() == ["orders-ü"] * ROWS
    assert table.column("offset").to_pylist() == list(range(100, 100 + ROWS))
    assert table.column("value").to_pylist() == [b"v%d" % row for row in range(ROWS)]


def test_alone_they_have_as_many_rows_as_there_are_records() -> None:
    table = decoded("topic")
    assert table.column("topic").to_pylist() == ["orders-ü"] * ROWS
    assert [chunk.num_rows for chunk in table.to_batches()] == [5, 5, 5, 5, 3]


def test_batches_may_grow() -> None:
    """The last batch of one window is smaller than those of the next."""
    decoder = RecordDecoder(columns=("topic",), constants=PLACE, max_rows=15)
    sizes = [batch.num_rows for batch in (*decoder.feed(DATA[:300]), *decoder.flush())]
    rest = list(decoder.feed(DATA[300:]))
    assert sizes
    assert rest[0].num_rows == 15 > sizes[0]
    rest[0].validate(full=True)
    assert rest[0].column("topic").to_pylist() == ["orders-ü"] * 15


@pytest.mark.parametrize("columns", [("topic", "topic"), ("topic", "offset", "place")])
def test_unknown_and_repeated_columns(columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="distinct"):
        decoded(*columns)
