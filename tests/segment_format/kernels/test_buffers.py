from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from segment_format.arrow import RecordDecoder
from segment_format.kernels.columns import ColumnBuffers
from segment_format.testing import SimpleRecord, write_batch
from tests.segment_format.kernels.yardstick import ALL_COLUMNS, Row, actual, expected, rows_of


def make_log(batches: int, records: int = 10) -> bytes:
    """Returns a log in which no two rows are equal."""
    return b"".join(
        write_batch(
            [make_record(batch, record) for record in range(records)], base_offset=batch * records
        )
        for batch in range(batches)
    )


def make_record(batch: int, record: int) -> SimpleRecord:
    name = str(batch).encode()
    return SimpleRecord(
        value=None if record % 5 == 4 else f"{batch:04}{record:04}".encode() * 5,
        key=name if record % 3 else None,
        headers=((f"h{record}", name), ("n", None)) if record % 4 == 0 else (),
    )


def test_returned_batches_are_not_changed_by_later_decoding() -> None:
    data = make_log(200)
    decoder = RecordDecoder(columns=ALL_COLUMNS, max_rows=16)
    kept: list[tuple[pa.RecordBatch, list[Row]]] = []
    for number, batch in enumerate(decoder.feed(data)):
        if number % 3 != 1:
            kept.append((batch, rows_of([batch])))
    remaining = list(decoder.finish())
    list(RecordDecoder(columns=ALL_COLUMNS, max_rows=16).feed(data))
    assert len(kept) > 50
    assert remaining
    for batch, rows in kept:
        assert rows_of([batch]) == rows


@pytest.mark.parametrize("column", ALL_COLUMNS)
def test_column_of_a_returned_batch_is_not_changed_by_later_decoding(column: str) -> None:
    decoder = RecordDecoder(columns=ALL_COLUMNS, max_rows=16)
    kept = [
        (batch.column(column), batch.column(column).to_pylist())
        for batch in decoder.feed(make_log(60))
    ]
    assert len(kept) > 20
    for array, values in kept:
        assert array.to_pylist() == values


def test_slice_of_a_returned_batch_is_not_changed_by_later_decoding() -> None:
    decoder = RecordDecoder(columns=("value",), max_rows=16)
    kept = [
        (batch.slice(3, 2), batch.slice(3, 2).to_pylist()) for batch in decoder.feed(make_log(100))
    ]
    for batch_slice, rows in kept:
        assert batch_slice.to_pylist() == rows


def test_memory_is_freed_with_the_last_batch() -> None:
    before = pa.total_allocated_bytes()
    decoder = RecordDecoder(columns=("offset", "value"), max_rows=16)
    batches = list(decoder.feed(make_log(100)))
    allocated = pa.total_allocated_bytes() - before
    shown = sum(batch.nbytes for batch in batches)
    assert allocated > shown
    del batches
    gc.collect()
    # The buffers that the decoder currently fills stay allocated.
    assert pa.total_allocated_bytes() - before <= allocated - shown


def test_batches_of_few_rows_use_little_memory() -> None:
    """The last batch of a segment often has few rows."""
    before = pa.total_allocated_bytes()
    batches = []
    for _ in range(50):
        decoder = RecordDecoder(columns=ALL_COLUMNS, max_rows=8192)
        batches += [*decoder.feed(make_log(1)), *decoder.finish()]
    del decoder
    gc.collect()
    assert pa.total_allocated_bytes() - before < 50 * (8 << 10)
    assert all(rows_of([batch]) == rows_of(batches[:1]) for batch in batches)


def test_last_rows_of_a_slice_are_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = b"".join(
        write_batch([SimpleRecord(b"v" * 100_000)] * 7, base_offset=7 * number)
        for number in range(3)
    )

    def read() -> list[int]:
        decoder = RecordDecoder(columns=("value",), max_rows=10)
        return [batch.num_rows for batch in (*decoder.feed(data), *decoder.finish())]

    assert read() == [10, 10, 1]
    grown: list[object] = []
    monkeypatch.setattr(ColumnBuffers, "grow", grown.append)
    assert read() == [10, 10, 1]
    assert grown == []


def test_batches_after_a_large_record_use_little_memory() -> None:
    data = write_batch([SimpleRecord(b"v" * (64 << 20))], base_offset=0) + b"".join(
        write_batch([SimpleRecord(b"v")], base_offset=base) for base in range(1, 12)
    )
    decoder = RecordDecoder(columns=("value",), max_rows=1, max_bytes=1 << 20)
    (_, *small) = decoder.feed(data)
    last = small[-1]
    del small
    gc.collect()
    before = pa.total_allocated_bytes()
    del last
    assert before - pa.total_allocated_bytes() < 2 << 20


def test_record_beyond_max_bytes_gets_its_own_batch() -> None:
    data = b"".join(
        write_batch(
            [
                SimpleRecord(b"small", key=b"a"),
                SimpleRecord(b"v" * 5000, key=b"k" * 3000, headers=(("h" * 700, b"x" * 900),) * 3),
                SimpleRecord(b"small", key=b"b"),
            ],
            base_offset=base,
        )
        for base in (0, 3, 6)
    )
    decoder = RecordDecoder(columns=ALL_COLUMNS, max_bytes=1000)
    batches = [*decoder.feed(data), *decoder.finish()]
    assert [batch.num_rows for batch in batches] == [1, 1, 2, 1, 2, 1, 1]
    assert rows_of(batches) == expected(data)


@pytest.mark.parametrize("max_bytes", [1, 50, 300, 4096])
@pytest.mark.parametrize("max_rows", [1, 3, 64, 65, 4096])
def test_batch_limits_do_not_change_rows(max_rows: int, max_bytes: int) -> None:
    data = make_log(15)
    assert actual(data, max_rows=max_rows, max_bytes=max_bytes) == expected(data)


def test_batches_of_records_with_empty_headers_are_limited() -> None:
    """Headers with empty keys and values use memory, too."""
    data = write_batch([SimpleRecord(b"", headers=(("", b""),) * 500)] * 40, base_offset=0)
    decoder = RecordDecoder(columns=("headers",), max_bytes=10_000)
    batches = [*decoder.feed(data), *decoder.finish()]
    assert [batch.num_rows for batch in batches] == [2] * 20
    assert rows_of(batches) == [([("", b"")] * 500,)] * 40


def test_decoder_matches_reference_on_nulls_in_several_bitmap_words() -> None:
    records = [
        SimpleRecord(value=None if row % 7 == 0 else b"%d" % row, key=None if row > 100 else b"k")
        for row in range(200)
    ]
    data = b"".join(
        write_batch(records[start : start + 9], base_offset=start) for start in range(0, 200, 9)
    )
    assert actual(data) == expected(data)
    assert actual(data, max_rows=70) == expected(data)
