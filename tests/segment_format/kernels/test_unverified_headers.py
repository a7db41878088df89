"""Checks that a read skips a batch, or ends, only if the batch header is confirmed by the checksum
of the batch or by the header of the next batch.
"""

from __future__ import annotations

from typing import Any

import pytest

from segment_format.arrow import RecordDecoder
from segment_format.errors import CorruptRecordError, CrcMismatchError, SegmentFormatError
from segment_format.key_set import KeySet
from segment_format.record.framing import iter_entries
from segment_format.record.records import iter_batches, iter_record_times
from segment_format.testing import SimpleRecord, frame_batch, write_batch
from segment_format.testing.batches import write_message_set, write_record
from tests.quick import only
from tests.segment_format.kernels.yardstick import decode_pieces, pieces

FIRST, STOP = 64, 88
COLUMNS = {
    "bodies": ("offset", "key", "value"),
    "times": ("offset", "timestamp"),
    "offsets": ("offset",),
}
HEADER_BYTES = {0: 18, 1: 26, 2: 61}


def make_log(magic: int, codec: str) -> bytes:
    """Returns six batches of four records each, without gaps."""
    records = [SimpleRecord(b"v", key=b"k")] * 4
    if magic == 2:
        batches = [
            write_batch(records, base_offset=base, codec=codec) for base in range(FIRST, STOP, 4)
        ]
    else:
        batches = [
            write_message_set(records, base_offset=base, magic=magic, codec=codec)
            for base in range(FIRST, STOP, 4)
        ]
    return b"".join(batches)


def offsets_of(
    data: bytes, start: int, stop: int, cut: int = 1 << 20, columns: str = "offsets"
) -> list[int]:
    decoder = RecordDecoder(
        columns=COLUMNS[columns],
        start_offset=start,
        stop_offset=stop,
        offset_bounds=(FIRST, STOP),
    )
    batches = decode_pieces(decoder, pieces(data, [cut]))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("cut", only(1, [1 << 20, 100]))
@pytest.mark.parametrize(
    ("magic", "codec"),
    [(0, "none"), (1, "none"), (0, "gzip"), (1, "gzip"), (2, "none"), (2, "lz4")],
)
@pytest.mark.parametrize("bounds", only(1, [(70, 82), (72, 80), (70, 71)]))
def test_header_bit_flip_returns_same_rows_or_raises(
    magic: int, codec: str, bounds: tuple[int, int], cut: int
) -> None:
    start, stop = bounds
    data = make_log(magic, codec)
    expected = list(range(start, stop))
    assert offsets_of(data, start, stop, cut) == expected
    refused = 0
    for entry in iter_entries(data):
        for bit in range(8 * HEADER_BYTES[magic]):
            flipped = bytearray(data)
            flipped[entry.position + bit // 8] ^= 1 << bit % 8
            try:
                assert offsets_of(bytes(flipped), start, stop, cut) == expected, (entry, bit)
            except SegmentFormatError:
                refused += 1
    assert refused


def flip_bits(data: bytes, number: int, position: int, bits: int) -> bytes:
    """Returns `data` after flipping `bits` in the byte at `position` of entry `number`."""
    entry = list(iter_entries(data))[number]
    flipped = bytearray(data)
    flipped[entry.position + position] ^= bits
    return bytes(flipped)


@pytest.mark.parametrize("cut", [1 << 20, 50])
def test_skipped_batch_with_wrong_checksum_before_gap_raises(
    cut: int,
) -> None:
    data = flip_bits(
        flip_bits(make_log(2, "none"), 1, 26, 2), 1, 60, 6
    )  # offsets 68 and 69, two records
    with pytest.raises(CrcMismatchError) as caught:
        offsets_of(data, 70, STOP, cut)
    assert (caught.value.position, caught.value.offset) == (len(data) // 6, 68)


def test_skipped_batch_with_wrong_checksum_without_gap_is_ignored() -> None:
    data = flip_bits(make_log(2, "none"), 0, 30, 1)
    assert offsets_of(data, 68, STOP) == list(range(68, STOP))


def test_skipped_last_batch_with_wrong_checksum_raises() -> None:
    data = flip_bits(flip_bits(make_log(2, "none"), 5, 26, 2), 5, 60, 6)
    with pytest.raises(CrcMismatchError):
        offsets_of(data, 86, STOP)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_last_batch_beyond_segment_end_raises(magic: int) -> None:
    data = make_log(magic, "gzip")
    with pytest.raises(CorruptRecordError, match=r"an entry has offsets|the last message of"):
        offsets_of(flip_bits(data, 5, 7, 2), 64, 86)


@pytest.mark.parametrize("stop", [66, 70])
def test_gap_before_stop_offset_does_not_raise(stop: int) -> None:
    batches = [write_batch([SimpleRecord(b"v")] * 2, base_offset=base) for base in (FIRST, 72, 80)]
    assert offsets_of(b"".join(batches), FIRST, stop) == [64, 65]
    assert offsets_of(b"".join(batches[:2]), 68, stop) == []


def batch_of(base: int, deltas: list[int], last_offset_delta: int) -> bytes:
    records = b"".join(write_record(SimpleRecord(b"v", key=b"k"), delta, 0) for delta in deltas)
    return frame_batch(
        records,
        base_offset=base,
        record_count=len(deltas),
        last_offset_delta=last_offset_delta,
        base_timestamp=1,
        max_timestamp=1,
    )


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(
    ("deltas", "last_offset_delta", "text"),
    [
        ([0, 1, 2], 0, "3 records in a batch that ends at offset 68"),
        (
            [0, 3],
            2,
            r"a record has offset 71, but the next records of the batch must be in \[69, 70\]",
        ),
        (
            [1, 1],
            2,
            r"a record has offset 69, but the next records of the batch must be in \[70, 70\]",
        ),
        (
            [1, 0],
            2,
            r"a record has offset 68, but the next records of the batch must be in \[70, 70\]",
        ),
        (
            [-1, 0],
            2,
            r"a record has offset 67, but the next records of the batch must be in \[68, 70\]",
        ),
    ],
)
def test_impossible_record_offsets_raise(
    deltas: list[int], last_offset_delta: int, text: str, columns: str
) -> None:
    data = batch_of(64, [0, 1, 2, 3], 3) + batch_of(68, deltas, last_offset_delta)
    data += batch_of(71, [0, 1, 2], 2)
    for start in (FIRST, 68):
        with pytest.raises(CorruptRecordError, match=text):
            offsets_of(data, start, STOP, columns=columns)
    assert offsets_of(data, FIRST, 68, columns=columns) == [64, 65, 66, 67]
    assert offsets_of(data, 71, STOP, columns=columns) == [71, 72, 73]
    with pytest.raises(CorruptRecordError, match=text):
        list(iter_batches(data))
    with pytest.raises(CorruptRecordError, match=text):
        [list(entry.times) for entry in iter_record_times(data, dated_from_ms=0)]


def test_impossible_record_offsets_raise_even_if_key_filter_matches_no_record() -> None:
    decoder = RecordDecoder(columns=("offset",), keys=KeySet.of([b"other"]))
    with pytest.raises(CorruptRecordError, match="a record has offset 71"):
        decode_pieces(decoder, [batch_of(68, [0, 3], 2)])


def test_impossible_record_offsets_raise_even_if_no_column_is_selected() -> None:
    decoder = RecordDecoder(columns=())
    with pytest.raises(CorruptRecordError, match="a record has offset 71"):
        decode_pieces(decoder, [batch_of(68, [0, 3], 2)])


def test_skipped_batch_with_more_records_than_offsets_raises() -> None:
    data = batch_of(64, [0, 1, 2], 0) + batch_of(65, [0, 1, 2], 2) + batch_of(68, [0], 0)
    with pytest.raises(CorruptRecordError, match="3 records in a batch that ends at offset 64"):
        offsets_of(data, 66, STOP)
    assert offsets_of(data, 67, STOP) == [67, 68]


@pytest.mark.parametrize(
    ("max_timestamp", "options", "is_read"),
    [
        (-1, {}, True),
        (0, {}, True),
        (999, {}, True),
        (1000, {}, False),
        (1500, {}, False),
        (2000, {}, True),
        (0, {"delete_horizon": 1000}, False),
        (0, {"timestamp_type": 1}, False),
    ],
)
def test_batch_is_skipped_only_if_its_max_timestamp_is_plausible(
    max_timestamp: int, options: dict[str, Any], is_read: bool
) -> None:
    records = [SimpleRecord(b"v", timestamp=1000), SimpleRecord(b"v", timestamp=2000)]
    data = write_batch(records, base_offset=64, max_timestamp=max_timestamp, **options)
    decoder = RecordDecoder(columns=("offset",), first_timestamp=1700)
    assert bool(decode_pieces(decoder, [data])) is is_read
    (entry,) = iter_record_times(data, dated_from_ms=1700)
    assert bool(list(entry.times)) is is_read


def test_inner_message_offsets_contradicting_the_wrapper_raise() -> None:
    data = bytearray(
        write_message_set([SimpleRecord(b"v")] * 3, base_offset=5, magic=0, codec="gzip")
    )
    assert [record.offset for record in next(iter_batches(bytes(data))).records] == [5, 6, 7]
    data[7] = 8
    with pytest.raises(CorruptRecordError, match="has offset 7, but the compressed message"):
        list(iter_batches(bytes(data)))
