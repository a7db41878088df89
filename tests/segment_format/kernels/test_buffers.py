from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from segment_format.arrow import RecordDecoder
from segment_format.testing import SimpleRecord, write_batch
from tests.segment_format.kernels.yardstick import ALL_COLUMNS, Row, actual, expected, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format.kernels.buffers import BufferPool


def a_log(batches: int, records: int = 10) -> bytes:
    """Batches of which no two rows are equal."""
    return b"".join(
        write_batch(
            [a_record(batch, record) for record in range(records)], base_offset=batch * records
        )
        for batch in range(batches)
    )


def a_record(batch: int, record: int) -> SimpleRecord:
    name = str(batch).encode()
    return SimpleRecord(
        value=None if record % 5 == 4 else f"{batch:04}{record:04}".encode() * 5,
        key=name if record % 3 else None,
        headers=((f"h{record}", name), ("n", None)) if record % 4 == 0 else (),
    )


@pytest.fixture
def pool() -> Iterator[BufferPool]:
    """A pool of its own, of the shape that the tests here use."""
    from segment_format.kernels.buffers import BufferPool

    yield BufferPool(("offset", "key", "value", "headers"), max_rows=8, max_bytes=4096)
    gc.collect()


def test_batches_that_are_held_never_change() -> None:
    data = a_log(200)
    decoder = RecordDecoder(columns=ALL_COLUMNS, max_rows=16)
    held: list[tuple[pa.RecordBatch, list[Row]]] = []
    for number, batch in enumerate(decoder.feed(data)):
        if number % 3 != 1:
            held.append((batch, rows_of([batch])))
    rest = list(decoder.finish())
    list(RecordDecoder(columns=ALL_COLUMNS, max_rows=16).feed(data))
    assert len(held) > 50
    assert rest
    for batch, rows in held:
        assert rows_of([batch]) == rows


@pytest.mark.parametrize("column", ALL_COLUMNS)
def test_a_single_column_that_is_held_never_changes(column: str) -> None:
    decoder = RecordDecoder(columns=ALL_COLUMNS, max_rows=16)
    held = [
        (batch.column(column), batch.column(column).to_pylist())
        for batch in decoder.feed(a_log(60))
    ]
    assert len(held) > 20
    for array, values in held:
        assert array.to_pylist() == values


def test_buffers_are_used_again_once_nobody_holds_them() -> None:
    decoder = RecordDecoder(columns=("offset", "value"), max_rows=16)
    addresses = set()
    for batch in decoder.feed(a_log(200)):  # which holds a batch until it has the next one
        addresses.add(batch.column(1).buffers()[2].address)
    assert len(addresses) == 2


def test_a_slice_keeps_its_buffers() -> None:
    decoder = RecordDecoder(columns=("value",), max_rows=16)
    kept = [
        (batch.slice(3, 2), batch.slice(3, 2).to_pylist()) for batch in decoder.feed(a_log(100))
    ]
    for part, rows in kept:
        assert part.to_pylist() == rows


def test_a_pool_hands_out_a_set_only_when_it_is_free(pool: BufferPool) -> None:
    first = pool.acquire()
    assert first.is_free()
    view = pa.py_buffer(first._arena)
    assert not first.is_free()
    second = pool.acquire()
    assert second is not first
    del view
    assert pool.acquire() in (first, second)


def test_a_pool_keeps_at_most_four_sets(pool: BufferPool) -> None:
    views = [pa.py_buffer(pool.acquire()._arena) for _ in range(20)]
    assert len(views) == 20
    assert len(pool._sets) == 4


def test_a_record_beyond_max_bytes_is_a_batch_of_its_own() -> None:
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
def test_bounds_do_not_change_the_rows(max_rows: int, max_bytes: int) -> None:
    data = a_log(15)
    assert actual(data, max_rows=max_rows, max_bytes=max_bytes) == expected(data)


def test_many_small_headers_are_bounded_too() -> None:
    """Headers without bytes still cost room."""
    data = write_batch([SimpleRecord(b"", headers=(("", b""),) * 500)] * 40, base_offset=0)
    decoder = RecordDecoder(columns=("headers",), max_bytes=10_000)
    batches = [*decoder.feed(data), *decoder.finish()]
    assert [batch.num_rows for batch in batches] == [2] * 20
    assert rows_of(batches) == [([("", b"")] * 500,)] * 40


def test_nulls_across_words_of_the_bitmap() -> None:
    records = [
        SimpleRecord(value=None if row % 7 == 0 else b"%d" % row, key=None if row > 100 else b"k")
        for row in range(200)
    ]
    data = b"".join(
        write_batch(records[start : start + 9], base_offset=start) for start in range(0, 200, 9)
    )
    assert actual(data) == expected(data)
    assert actual(data, max_rows=70) == expected(data)
