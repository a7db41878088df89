"""Tests schema, offset bounds, counters and errors of the public decoders.

`kernels/test_equal_to_reference` checks the rows.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import segment_format
from segment_format.arrow import (
    LINEAGE_COLUMNS,
    RECORD_COLUMNS,
    DecodeCounters,
    RecordDecoder,
    iter_arrow,
    record_schema,
)
from segment_format.errors import (
    CorruptRecordError,
    CrcMismatchError,
    DecompressionError,
    TruncatedBatchError,
    UnsupportedMagicError,
)
from segment_format.index.checkpoints import EpochEntry
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import AbortedIntervals
from segment_format.testing import (
    SimpleRecord,
    frame_batch,
    write_batch,
    write_control_batch,
)
from tests import log_strategies as strategies
from tests.golden_data import SPARK_SCHEMA
from tests.segment_format.kernels.yardstick import ALL_COLUMNS, actual, expected, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.testing.log_builder import BuiltLog


def offsets(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def three_batches(leader_epoch: int = 0) -> bytes:
    """Returns three batches with offsets 100–104, 105–109 and 110–114."""
    return b"".join(
        write_batch([SimpleRecord(b"v")] * 5, base_offset=base, leader_epoch=leader_epoch)
        for base in (100, 105, 110)
    )


def test_schema_matches_spark_kafka_source() -> None:
    schema = record_schema()
    assert tuple(schema.names) == RECORD_COLUMNS
    for field in schema:
        assert field.equals(SPARK_SCHEMA.field(field.name))
        assert field.nullable
    (batch,) = iter_arrow(three_batches())
    assert batch.schema.equals(schema, check_metadata=True)


def test_package_exports_both_decoders() -> None:
    assert segment_format.iter_arrow is iter_arrow
    data = three_batches()
    rows = [
        record.offset for batch in segment_format.iter_batches(data) for record in batch.records
    ]
    assert rows == offsets(list(segment_format.iter_arrow(data)))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        segment_format.nothing_like_it  # noqa: B018


def test_all_columns_contains_record_and_lineage_columns() -> None:
    assert (*RECORD_COLUMNS, *LINEAGE_COLUMNS) == ALL_COLUMNS
    (batch,) = iter_arrow(three_batches(), columns=ALL_COLUMNS)
    assert batch.schema.equals(record_schema(ALL_COLUMNS))


@settings(deadline=None)
@given(strategies.logs(max_steps=5), st.lists(st.sampled_from(ALL_COLUMNS), unique=True))
def test_columns_selected_in_any_order_match_full_rows(log: BuiltLog, columns: list[str]) -> None:
    data = b"".join(segment.log for segment in log.segments)
    batches = list(iter_arrow(data, columns=columns))
    full_rows = expected(data)
    assert isinstance(full_rows, list)
    assert sum(batch.num_rows for batch in batches) == len(full_rows)
    if columns:
        column_indexes = [ALL_COLUMNS.index(name) for name in columns]
        assert rows_of(batches) == [
            tuple(row[index] for index in column_indexes) for row in full_rows
        ]


@pytest.mark.parametrize("columns", [("offset", "offset"), ("topic",), ("Offset",)])
def test_invalid_columns_raise(columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="distinct"):
        record_schema(columns)
    with pytest.raises(ValueError, match="distinct"):
        RecordDecoder(columns=columns)


@pytest.mark.parametrize(
    ("start", "stop"), list(itertools.product((None, 99, 100, 103, 105, 114, 115), repeat=2))
)
def test_batches_contain_only_rows_within_offset_bounds(
    start: int | None, stop: int | None
) -> None:
    selected = range(100 if start is None else start, 115 if stop is None else stop)
    batches = list(iter_arrow(three_batches(), start_offset=start, stop_offset=stop))
    assert offsets(batches) == [offset for offset in range(100, 115) if offset in selected]


def test_bytes_after_stop_offset_are_not_read() -> None:
    data = three_batches()
    corrupt = data[:-3] + b"\xff\xff\xff"
    assert offsets(list(iter_arrow(corrupt, stop_offset=110))) == list(range(100, 110))
    assert offsets(list(iter_arrow(data[:-30], stop_offset=110))) == list(range(100, 110))
    with pytest.raises(CrcMismatchError):
        list(iter_arrow(corrupt, stop_offset=111))


def test_batch_below_start_offset_is_skipped_without_decoding() -> None:
    """A reader can continue after a corrupt batch if it starts at a later offset."""
    data = bytearray(three_batches())
    data[70] ^= 1
    assert offsets(list(iter_arrow(bytes(data), start_offset=105))) == list(range(105, 115))
    with pytest.raises(CrcMismatchError):
        list(iter_arrow(bytes(data), start_offset=104))


def test_flipped_control_bit_raises() -> None:
    data = bytearray(three_batches())
    data[22] |= 0x20
    with pytest.raises(CrcMismatchError):
        list(iter_arrow(bytes(data)))


def test_decoder_at_stop_offset_is_done_and_counts_batches() -> None:
    marker = write_control_batch("commit", base_offset=115, producer_id=7)
    aborted = write_batch(
        [SimpleRecord(b"a")], base_offset=116, producer_id=7, transactional=True, base_sequence=0
    )
    data = three_batches() + marker + aborted + three_batches()[:40]
    decoder = RecordDecoder(
        columns=("offset",),
        start_offset=107,
        stop_offset=114,
        aborted=AbortedIntervals.from_txns(
            [AbortedTxn(7, 116, 117, 116)], start_offset=0, stop_offset=200
        ),
    )
    assert list(decoder.feed(data[:200])) == []
    before = decoder.done
    (batch,) = [*decoder.feed(data[200:]), *decoder.finish()]
    assert batch.column("offset").to_pylist() == list(range(107, 114))
    assert (before, decoder.done) == (False, True)
    assert decoder.counters == DecodeCounters(
        batches=3,
        records=7,
        bytes=len(three_batches()),
        batches_skipped_control=0,
        batches_skipped_aborted=0,
        batches_skipped_offset=1,
        records_skipped_offset=3,
    )


def test_skipped_control_and_aborted_batches_are_counted() -> None:
    data = (
        write_batch([SimpleRecord(b"a")] * 2, base_offset=0, producer_id=7, transactional=True)
        + write_control_batch("abort", base_offset=2, producer_id=7)
        + write_batch([SimpleRecord(b"b")], base_offset=3, producer_id=7, transactional=True)
        + write_control_batch("commit", base_offset=4, producer_id=7)
    )
    transactions = [AbortedTxn(7, 0, 2, 0)]
    assert offsets(list(iter_arrow(data))) == [0, 1, 3]
    assert offsets(list(iter_arrow(data, aborted=transactions))) == [3]
    decoder = RecordDecoder(
        columns=("offset",),
        aborted=AbortedIntervals.from_txns(transactions, start_offset=0, stop_offset=9),
    )
    list(decoder.feed(data))
    assert decoder.counters.batches_skipped_control == 2
    assert decoder.counters.batches_skipped_aborted == 1
    assert decoder.counters.records == 1


@pytest.mark.parametrize("max_rows", [1, 4, 7, 15, 4096])
def test_batch_sizes_are_independent_of_window_sizes(max_rows: int) -> None:
    data = three_batches()
    expected_sizes = [batch.num_rows for batch in iter_arrow(data, max_rows=max_rows)]
    assert expected_sizes == [max_rows] * (15 // max_rows) + (
        [15 % max_rows] if 15 % max_rows else []
    )
    for cut in (1, 17, 61, 100):
        decoder = RecordDecoder(columns=("offset",), max_rows=max_rows)
        windows = [data[position : position + cut] for position in range(0, len(data), cut)]
        batches = [batch for window in windows for batch in decoder.feed(window)]
        assert [batch.num_rows for batch in [*batches, *decoder.finish()]] == expected_sizes


def test_windows_of_any_buffer_type_decode() -> None:
    data = three_batches()
    for window in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert offsets(list(iter_arrow(window))) == list(range(100, 115))


def test_window_bytes_may_change_after_feed_is_exhausted() -> None:
    data = bytearray(three_batches())
    decoder = RecordDecoder(columns=("offset", "value"))
    list(decoder.feed(data))
    data[:] = bytes(len(data))
    data.clear()
    (batch,) = decoder.finish()
    assert batch.column("value").to_pylist() == [b"v"] * 15


@pytest.mark.parametrize("partial_bytes", [1, 16, 17, 60, 61, 100])
def test_partial_last_batch_raises_with_position(partial_bytes: int) -> None:
    data = three_batches()
    size = len(data) // 3
    decoder = RecordDecoder(columns=("offset",), position=5000)
    assert list(decoder.feed(data[: size + partial_bytes])) == []
    remaining = decoder.finish()
    assert next(remaining).num_rows == 5
    with pytest.raises(TruncatedBatchError) as caught:
        next(remaining)
    assert caught.value.position == 5000 + size
    assert caught.value.offset == (105 if partial_bytes >= 8 else None)


def test_errors_contain_log_positions_and_offsets() -> None:
    data = bytearray(three_batches())
    size = len(data) // 3
    data[2 * size + 16] = 3
    decoder = RecordDecoder(columns=("offset",), position=1 << 40)
    list(decoder.feed(bytes(data[:30])))
    list(decoder.feed(bytes(data[30 : size + 5])))
    with pytest.raises(UnsupportedMagicError) as caught:
        list(decoder.feed(bytes(data[size + 5 :])))
    assert caught.value.position == (1 << 40) + 2 * size
    assert caught.value.offset == 110


def test_decompression_bomb_raises() -> None:
    data = write_batch([SimpleRecord(bytes(1 << 20))], base_offset=0, codec="zstd")
    assert len(data) < 1000
    decoder = RecordDecoder(columns=("offset",), max_batch_bytes=1 << 19)
    with pytest.raises(DecompressionError):
        list(decoder.feed(data))


def lineage_decoder(*entries: tuple[int, int], start_offset: int = 0) -> RecordDecoder:
    return RecordDecoder(
        columns=("offset",),
        start_offset=start_offset,
        lineage=[EpochEntry(epoch, start) for epoch, start in entries],
    )


def test_batches_with_the_epochs_of_the_lineage_decode() -> None:
    data = three_batches(leader_epoch=4)
    for entries in (((4, 0),), ((1, 0), (4, 100)), ((4, 100), (5, 115)), ((4, 103),), ()):
        decoder = lineage_decoder(*entries)
        assert offsets([*decoder.feed(data), *decoder.finish()]) == list(range(100, 115))


@pytest.mark.parametrize(
    ("entries", "expected_epoch"),
    [(((3, 0),), 3), (((4, 0), (5, 105)), 5), (((5, 103),), 5), (((3, 100), (4, 101)), 3)],
)
def test_batch_with_another_epoch_than_the_lineage_raises(
    entries: tuple[tuple[int, int], ...], expected_epoch: int
) -> None:
    decoder = lineage_decoder(*entries)
    with pytest.raises(CorruptRecordError, match=f"epoch 4, .* epoch {expected_epoch}"):
        list(decoder.feed(three_batches(leader_epoch=4)))


def test_epoch_of_batch_below_the_lineage_is_not_checked() -> None:
    decoder = lineage_decoder((5, 200))
    list(decoder.feed(three_batches(leader_epoch=4)))
    assert decoder.counters.records == 15


def test_missing_timestamp_is_minus_one_millisecond() -> None:
    data = write_batch([SimpleRecord(b"v", timestamp=-1)], base_offset=0)
    (batch,) = iter_arrow(data, columns=("timestamp",))
    assert batch.column(0).view(pa.int64()).to_pylist() == [-1000]


@pytest.mark.parametrize(
    "millis", [2**63 // 1000, -(2**63) // 1000, 2**63 - 1, -(2**63), 9_223_372_036_854_775]
)
def test_timestamp_beyond_microseconds_raises(millis: int) -> None:
    data = frame_batch(
        b"\x0c\x00\x00\x00\x01\x01\x00",
        base_offset=0,
        record_count=1,
        last_offset_delta=0,
        base_timestamp=millis,
        max_timestamp=millis,
    )
    fits = -(2**63) <= millis * 1000 < 2**63
    if fits:
        (batch,) = iter_arrow(data, columns=("timestamp",))
        assert batch.column(0).view(pa.int64()).to_pylist() == [millis * 1000]
    else:
        with pytest.raises(CorruptRecordError, match="microseconds"):
            list(iter_arrow(data))
    (batch,) = iter_arrow(data, columns=("offset",))
    assert batch.num_rows == 1


def test_batch_without_columns_has_one_row_per_record() -> None:
    (batch,) = iter_arrow(three_batches(), columns=())
    assert batch.num_rows == 15
    assert batch.num_columns == 0


def test_empty_buffer_has_no_rows() -> None:
    assert list(iter_arrow(b"")) == []


@pytest.mark.parametrize(
    "option",
    [
        {"max_rows": 0},
        {"max_rows": 1 << 40},
        {"max_bytes": 0},
        {"max_bytes": 1 << 31},
        {"max_batch_bytes": 1 << 31},
        {"start_offset": 1 << 63},
        {"stop_offset": 1 << 63},
    ],
)
def test_options_out_of_range_raise_value_error(option: dict[str, int]) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=name):
        RecordDecoder(columns=("offset",), **option)  # type: ignore[arg-type]


def test_negative_base_offset_raises() -> None:
    data = bytearray(three_batches())
    data[0] = 0x80
    with pytest.raises(CorruptRecordError, match="impossible"):
        list(iter_arrow(bytes(data)))


def test_corrupt_batch_decodes_without_crc_check() -> None:
    data = bytearray(three_batches())
    data[20] ^= 1
    assert len(actual(bytes(data), check_crcs=False)) == 15
    assert actual(bytes(data)) == "CrcMismatchError"
