"""Tests constant columns, whose values come from the reader's arguments instead of the records."""

from __future__ import annotations

import pyarrow as pa
import pytest

from segment_format.arrow import RecordDecoder
from segment_format.testing import SimpleRecord, write_batch

ROWS = 23
DATA = b"".join(
    write_batch([SimpleRecord(b"v%d" % row)], base_offset=100 + row) for row in range(ROWS)
)
LOCATION: dict[str, str | int] = {"topic": "orders-ü", "partition": 7, "unused": "x"}


def decoded(*columns: str, max_rows: int = 5) -> pa.Table:
    decoder = RecordDecoder(columns=columns, constants=LOCATION, max_rows=max_rows)
    return pa.Table.from_batches([*decoder.feed(DATA), *decoder.finish()])


def test_constant_columns_keep_the_requested_order() -> None:
    table = decoded("partition", "offset", "topic", "value")
    assert table.schema.names == ["partition", "offset", "topic", "value"]
    assert table.schema.types == [pa.int32(), pa.int64(), pa.string(), pa.binary()]
    assert table.column("partition").to_pylist() == [7] * ROWS
    assert table.column("topic").to_pylist() == ["orders-ü"] * ROWS
    assert table.column("offset").to_pylist() == list(range(100, 100 + ROWS))
    assert table.column("value").to_pylist() == [b"v%d" % row for row in range(ROWS)]


def test_single_constant_column_has_a_row_per_record() -> None:
    table = decoded("topic")
    assert table.column("topic").to_pylist() == ["orders-ü"] * ROWS
    assert [chunk.num_rows for chunk in table.to_batches()] == [5, 5, 5, 5, 3]


def test_constant_column_grows_for_a_larger_batch() -> None:
    """The last batch of the first window is smaller than the batches of the second window."""
    decoder = RecordDecoder(columns=("topic",), constants=LOCATION, max_rows=15)
    sizes = [batch.num_rows for batch in (*decoder.feed(DATA[:300]), *decoder.flush())]
    remaining = list(decoder.feed(DATA[300:]))
    assert sizes
    assert remaining[0].num_rows == 15 > sizes[0]
    remaining[0].validate(full=True)
    assert remaining[0].column("topic").to_pylist() == ["orders-ü"] * 15


@pytest.mark.parametrize("columns", [("topic", "topic"), ("topic", "offset", "place")])
def test_invalid_columns_raise(columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="distinct"):
        decoded(*columns)
