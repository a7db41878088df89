"""Tests that `LogBuilder` follows rules of brokers that the golden logs do not show."""

from __future__ import annotations

import json
import random
import struct
from typing import TYPE_CHECKING

import pytest

from segment_format.testing import (
    LOG_APPEND_TIME,
    READ_UNCOMMITTED,
    AivenTierWriter,
    EncryptionKey,
    LogBuilder,
    SimpleRecord,
    Transaction,
    compress,
    write_batch,
    write_message_set,
)
from tests.golden_data import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable

ONE = [SimpleRecord(b"value")]
SIZE = len(write_batch(ONE, base_offset=0))


def offset_entries(index: bytes) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(">ii", index))


def test_index_entry_is_added_when_bytes_exceed_the_interval() -> None:
    def entries(interval: int) -> list[tuple[int, int]]:
        builder = LogBuilder(index_interval_bytes=interval)
        for _ in range(5):
            builder.append(ONE)
        return offset_entries(builder.build().segments[0].index)

    assert entries(2 * SIZE - 1) == [(2, 2 * SIZE), (4, 4 * SIZE)]
    assert entries(2 * SIZE) == [(3, 3 * SIZE)]


def test_time_index_contains_first_batch_with_largest_timestamp() -> None:
    builder = LogBuilder()
    for time in (5, 9, 9, 7):
        builder.append([SimpleRecord(b"", timestamp=time)])
    (segment,) = builder.build().segments
    assert list(struct.iter_unpack(">qi", segment.timeindex)) == [(9, 1)]
    assert segment.max_timestamp_ms == 9


def test_batches_of_one_append_have_one_index_entry() -> None:
    builder = LogBuilder(index_interval_bytes=0)
    builder.append(ONE)
    with builder.one_append():
        builder.append(ONE)
        builder.append(ONE)
    builder.append(ONE)
    assert offset_entries(builder.build().segments[0].index) == [(2, SIZE), (3, 3 * SIZE)]


def test_offset_gap_before_roll_belongs_to_previous_segment() -> None:
    builder = LogBuilder(start_offset=10)
    builder.append(ONE)
    builder.skip_offsets(4)
    builder.roll()
    builder.append(ONE)
    assert [(segment.base_offset, segment.next_offset) for segment in builder.build().segments] == [
        (10, 15),
        (15, 16),
    ]


def test_leader_epoch_without_records_is_omitted_in_checkpoint() -> None:
    builder = LogBuilder(leader_epoch=1)
    builder.append(ONE)
    builder.set_leader_epoch(2)
    builder.set_leader_epoch(5)
    builder.append(ONE)
    (segment,) = builder.build().segments
    assert segment.leader_epoch_checkpoint == b"0\n2\n1 0\n5 1\n"
    assert segment.epochs == ((1, 0), (5, 1))


def test_checkpoint_contains_lineage_up_to_its_segment() -> None:
    builder = LogBuilder(leader_epoch=1)
    builder.append(ONE * 3)
    builder.set_leader_epoch(2)
    builder.roll()
    builder.append(ONE * 3)
    first, second = builder.build().segments
    assert first.leader_epoch_checkpoint == b"0\n1\n1 0\n"
    assert second.leader_epoch_checkpoint == b"0\n2\n1 0\n2 3\n"
    assert second.epochs == ((2, 3),)


def test_legacy_messages_add_no_leader_epoch() -> None:
    builder = LogBuilder(leader_epoch=4)
    builder.append_message_set(ONE * 2, magic=1)
    builder.append(ONE)
    (segment,) = builder.build().segments
    assert segment.epochs == ((4, 2),)


def test_moved_log_start_changes_checkpoints_and_rows() -> None:
    builder = LogBuilder(leader_epoch=1)
    builder.append(ONE * 4)
    builder.roll()
    builder.delete_records_before(3)
    builder.append(ONE)
    log = builder.build()
    assert log.segments[1].leader_epoch_checkpoint == b"0\n1\n1 3\n"
    assert [row.offset for row in log.rows()] == [3, 4]
    assert [row.offset for row in log.rows(segment_count=1)] == [0, 1, 2, 3]
    assert [row.offset for row in log.rows(start=1, stop=4)] == [3]


def test_marker_after_tier_leaves_transaction_undecided() -> None:
    builder = LogBuilder()
    builder.append(ONE)
    builder.send(7, ONE)
    builder.append(ONE)
    builder.roll()
    marker = builder.commit(7)
    log = builder.build()
    assert marker == log.end_offset(1)
    assert log.transactions == (Transaction(7, 1, marker, committed=True),)
    assert log.last_stable_offset(1) == 1
    assert [row.offset for row in log.rows(segment_count=1)] == [0]
    assert [row.offset for row in log.rows()] == [0, 1, 2]


def test_aborted_rows_are_expected_only_with_read_uncommitted() -> None:
    builder = LogBuilder()
    builder.send(7, ONE)
    builder.append(ONE, producer_id=8)
    builder.abort(7)
    builder.send(7, ONE)
    builder.commit(7)
    log = builder.build()
    assert [row.offset for row in log.rows()] == [1, 3]
    assert [row.offset for row in log.rows(READ_UNCOMMITTED)] == [0, 1, 3]
    with pytest.raises(ValueError, match="isolation"):
        log.rows("snapshot")


def test_transaction_index_has_last_stable_offset_of_open_transaction() -> None:
    builder = LogBuilder()
    builder.send(1, ONE)
    builder.send(2, ONE)
    builder.send(3, ONE)
    builder.abort(1)
    builder.abort(3)
    builder.commit(2)
    builder.send(1, ONE)
    builder.abort(1)
    (segment,) = builder.build().segments
    assert segment.txnindex is not None
    entries = [entry[1:] for entry in struct.iter_unpack(">hqqqq", segment.txnindex)]
    assert entries == [(1, 0, 3, 1), (3, 2, 4, 1), (1, 6, 7, 8)]


def test_sequence_numbers_continue_across_segments_and_restart_with_new_epoch() -> None:
    builder = LogBuilder()
    builder.append(ONE * 3, producer_id=7)
    builder.roll()
    builder.append(ONE * 2, producer_id=7)
    builder.append(ONE, producer_id=7, producer_epoch=1)
    rows = builder.build().all_rows
    assert [row.sequence for row in rows] == [0, 1, 2, 3, 4, 0]


def test_segment_rolls_before_it_exceeds_its_size_limit() -> None:
    builder = LogBuilder(segment_bytes=2 * SIZE)
    for _ in range(5):
        builder.append(ONE)
    assert [len(segment.log) for segment in builder.build().segments] == [2 * SIZE, 2 * SIZE, SIZE]


def test_batches_of_one_append_are_stored_in_one_segment() -> None:
    builder = LogBuilder(segment_bytes=2 * SIZE)
    builder.append(ONE)
    with builder.one_append():
        builder.append(ONE)
        builder.append(ONE)
        with pytest.raises(ValueError, match="inside `one_append`"):
            builder.roll()
    assert [len(segment.log) for segment in builder.build().segments] == [3 * SIZE]


def test_log_append_time_replaces_record_times() -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(timestamp=5)], timestamp_type=LOG_APPEND_TIME, log_append_time=90)
    builder.append_message_set([SimpleRecord(timestamp=5)], magic=0)
    rows = builder.build().all_rows
    assert [(row.timestamp, row.timestamp_type) for row in rows] == [(90, 1), (-1, -1)]


def test_incompressible_lz4_blocks_are_stored() -> None:
    noise = random.Random(1).randbytes(1000)
    stored = compress("lz4", noise)
    assert stored[7:] == struct.pack("<I", 1000 | 1 << 31) + noise + bytes(4)


def test_snappy_streams_have_blocks_of_32_kib() -> None:
    noise = random.Random(1).randbytes((32 << 10) + 1)
    stored = compress("snappy", noise)
    (first,) = struct.unpack_from(">i", stored, 16)
    second = stored[20 + first :]
    # The last block is one byte: length 4, then its varint length 1, a literal tag, the byte.
    assert second == struct.pack(">i", 3) + b"\x01\x00" + noise[-1:]


def test_encrypted_empty_index_stays_empty() -> None:
    objects: dict[str, bytes] = {}
    key = EncryptionKey("key1", (KEYS / "key1.public.pem").read_bytes())
    builder = LogBuilder()
    builder.append(ONE)
    written = AivenTierWriter(objects, encryption=key).write_segment(builder.build().segments[0])
    indexes = json.loads(objects[written.keys[2]])["segmentIndexes"]
    assert indexes["offset"] == {"position": 0, "size": 0}
    assert indexes["timestamp"] == {"position": 0, "size": 12 + 28}
    assert indexes["transaction"] is None
    metadata = json.loads(objects[written.keys[2]])["remoteLogSegmentMetadata"]
    assert metadata["txnIdxEmpty"] is True


def backwards(builder: LogBuilder) -> object:
    return builder.append([SimpleRecord(offset=5), SimpleRecord(offset=5)])


def short_range(builder: LogBuilder) -> object:
    return builder.append(ONE * 3, last_offset_delta=1)


def old_epoch(builder: LogBuilder) -> object:
    builder.set_leader_epoch(3)
    builder.set_leader_epoch(3)
    return None


def plain_in_transaction(builder: LogBuilder) -> object:
    builder.send(7, ONE)
    return builder.append(ONE, producer_id=7)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (backwards, "must increase"),
        (short_range, "below the offset delta"),
        (old_epoch, "leader epoch 3 follows 3"),
        (plain_in_transaction, "has an open transaction"),
        (lambda builder: builder.append(ONE, codec="brotli"), "brotli"),
        (lambda builder: builder.append_message_set(ONE, magic=1, codec="zstd"), "zstd"),
        (lambda builder: builder.append_message_set(ONE, magic=2), "magic 0 or 1"),
        (
            lambda _: write_message_set(
                [SimpleRecord(headers=(("a", b""),))], base_offset=0, magic=1
            ),
            "no headers",
        ),
    ],
)
def test_log_builder_raises_for_content_that_brokers_never_write(
    mistake: Callable[[LogBuilder], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        mistake(LogBuilder())
