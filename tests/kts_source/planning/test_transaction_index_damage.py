"""Checks that scans with a damaged transaction index return the right rows or raise an error."""

from __future__ import annotations

import itertools
import os
import random
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import CorruptSegmentError, TieredKafkaError
from segment_format.record.batch_header import RecordBatchHeader
from segment_format.record.framing import iter_entries
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.planning.transaction_damage import (
    Damage,
    build_log,
    read,
    read_damaged_hybrid_tiers,
    read_damaged_tiers,
)
from tests.kts_source.planning.written_logs import write_log
from tests.quick import examples_source, only

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from segment_format.testing import BuiltLog
    from tests.kts_source.planning.transaction_damage import Outcome

SHARE = 6


def flip_bits(
    log: BuiltLog, objects: dict[str, bytes], *, local: bool
) -> Iterator[tuple[int, int, int, dict[str, bytes]]]:
    """Flips each bit of each transaction index. Yields the base offset of the segment, the byte
    position in the index, the bit number, and the objects of the tier with this bit flipped.
    """
    for files in log.segments:
        if not files.txnindex:
            continue
        key = next(
            key
            for key in objects
            if key.endswith(".txnindex" if local else ".indexes")
            and f"/{files.base_offset:020d}-" in key
        )
        original = objects[key]
        start = original.index(files.txnindex)
        for position in range(len(files.txnindex)):
            for bit in range(8):
                damaged = bytearray(original)
                damaged[start + position] ^= 1 << bit
                yield files.base_offset, position, bit, {**objects, key: bytes(damaged)}


def count_errors(
    seed: int,
    *,
    local: bool,
    options: dict[str, str],
    start: int,
    stop: int,
    max_flips: int | None = None,
) -> int:
    """Reads a tier once for each flipped bit, and returns how many reads raised an error. The other
    reads must return the committed rows of [start, stop).

    If `max_flips` is set, flips at most this number of bits, all in the low bytes of producer ids
    and offsets. If it is `None`, flips one of `SHARE` bits in the entire index; each run chooses
    other bits.
    """
    log = build_log(seed)
    objects = write_log(log, local=local)
    expected = [row.offset for row in log.rows("read_committed", start=start, stop=stop)]
    assert read(objects, local, options) == expected
    error_count = 0
    wrong = []
    damages = list(flip_bits(log, objects, local=local))
    if max_flips is None:
        first = examples_source(f"{__name__} {seed} {local}").randrange(SHARE)
        damages = damages[first::SHARE]
    else:
        low = [damage for damage in damages if damage[1] % 34 in (9, 17, 25)]
        damages = random.Random(seed).sample(low, min(max_flips, len(low)))
    for base, position, bit, damaged in damages:
        # All bits of a high byte of a producer id have the same effect, so only bit 0 is flipped.
        if position % 34 in range(3, 7) and bit:
            continue
        try:
            rows = read(damaged, local, options)
        except TieredKafkaError as error:
            error_count += (error.topic, error.partition) == ("t", 0)
        else:
            if rows != expected:
                wrong.append((base, position, bit))
    assert wrong == []
    return error_count


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("seed", only(1, range(3)))
def test_flipped_bit_of_transaction_index_changes_no_row(seed: int, local: bool) -> None:
    assert count_errors(seed, local=local, options={}, start=0, stop=1 << 40) > 8


@pytest.mark.parametrize("seed", only(1, range(3)))
def test_flipped_bit_of_transaction_index_changes_no_row_with_small_slices(seed: int) -> None:
    options = {"targetPartitionBytes": "1"}
    error_count = count_errors(
        seed, local=seed % 2 == 0, options=options, start=0, stop=1 << 40, max_flips=60
    )
    assert error_count > 10


def check(outcomes: Iterable[Outcome]) -> None:
    """Checks that every read returned the right rows or raised an error, and that each of the two
    happened at least once.
    """
    results = list(outcomes)
    assert any(result.rows is None for result in results)
    assert any(result.rows == result.expected for result in results)
    assert [str(result) for result in results if result.is_silently_wrong] == []


@pytest.mark.parametrize("seed", range(2))
def test_scan_with_damaged_index_returns_rows_of_undamaged_tier_or_raises(seed: int) -> None:
    check(read_damaged_tiers(seed, local=seed == 0, flips=1, damage=Damage(), share=0.3))


def test_scan_with_damaged_index_and_lost_snapshots_returns_expected_rows_or_raises() -> None:
    damage = Damage(lost_snapshots=True)
    check(read_damaged_tiers(2, local=True, flips=1, damage=damage, share=0.3))


def test_scan_with_damaged_index_and_hole_returns_expected_rows_or_raises() -> None:
    damage = Damage(lost_segment=1)
    check(read_damaged_tiers(1, local=False, flips=1, damage=damage, share=0.3))


def test_scan_of_brokers_and_damaged_tier_returns_expected_rows_or_raises() -> None:
    results = list(read_damaged_hybrid_tiers(0, flips=1, share=0.06))
    assert any(result.rows == result.expected for result in results)
    assert [str(result) for result in results if result.is_silently_wrong] == []


@pytest.mark.parametrize("first_offset", [0, 1, 2, 3])
def test_too_high_first_offset_of_index_entry_raises_error_with_any_slice_size(
    first_offset: int,
) -> None:
    builder = LogBuilder(index_interval_bytes=0)
    builder.send(2, [SimpleRecord(b"aborted")])
    for _ in range(3):
        builder.append([SimpleRecord(b"plain")])
    builder.abort(2)
    builder.roll()
    (files,) = builder.build().segments
    index = bytearray(files.txnindex or b"")
    index[10:18] = first_offset.to_bytes(8, "big")
    log = replace(builder.build(), segments=(replace(files, txnindex=bytes(index)),))
    for count in range(1, 6):
        options = {"maxRecordsPerPartition": str(count)}
        if first_offset == 0:
            assert read(write_log(log, local=True), True, options) == [1, 2, 3]
        else:
            with pytest.raises(CorruptSegmentError):
                read(write_log(log, local=True), True, options)


def test_lost_index_entry_is_detected_by_task_that_reads_the_marker() -> None:
    builder = LogBuilder()
    builder.send(1, [SimpleRecord(b"aborted")])
    builder.append([SimpleRecord(b"plain")])
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.abort(1)
    builder.roll()
    builder.append([SimpleRecord(b"not tiered")])
    builder.roll()
    log = builder.build()
    topic_id = uuid.UUID(int=7)
    objects: dict[str, bytes] = {}
    writer = LocalTierWriter(objects, topic="t", partition=0, topic_id=topic_id)
    writer.write_segment(log.segments[0])
    writer.write_segment(replace(log.segments[1], txnindex=None))
    with FakeCluster(versions={"ListOffsets": 9}) as brokers:
        partition = FakePartition(fake_log(log))
        partition.log.local_start = log.segments[1].base_offset
        brokers.create("t", [partition], topic_id)
        options = {"kafka.bootstrap.servers": brokers.bootstrap, "brokerFallback": "false"}
        assert read(objects, True, {**options, "where": "offset < 2"}) == [1]
        with pytest.raises(CorruptSegmentError):  # the task that reads the marker raises
            read(objects, True, options)


def test_aborted_records_are_skipped_without_producer_snapshots_if_brokers_are_old() -> None:
    builder = LogBuilder()
    builder.send(1, [SimpleRecord(b"aborted")])
    builder.send(2, [SimpleRecord(b"committed")])
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.roll()
    builder.abort(1)
    builder.commit(2)
    builder.roll()
    log = builder.build()
    topic_id = uuid.UUID(int=7)
    objects: dict[str, bytes] = {}
    writer = LocalTierWriter(objects, topic="t", partition=0, topic_id=topic_id)
    for files in log.segments[:2]:
        writer.write_segment(replace(files, snapshot=b""))
    with FakeCluster(versions={"ListOffsets": 9}) as brokers:
        partition = FakePartition(fake_log(log))
        partition.log.local_start = log.segments[1].base_offset
        brokers.create("t", [partition], topic_id)
        assert read(objects, True, {"kafka.bootstrap.servers": brokers.bootstrap}) == [1, 2]


def compact_twice(builder: LogBuilder) -> BuiltLog:
    """Removes the records and index entries of all transactions, but keeps their markers and the
    producer snapshots. The snapshots still list the transactions as open.
    """
    log = builder.build()
    segments = []
    for files in log.segments:
        kept = [
            files.log[entry.position : entry.stop]
            for entry in iter_entries(files.log)
            if (header := RecordBatchHeader.from_bytes(files.log, entry.position)).is_control_batch
            or not header.is_transactional
        ]
        segments.append(replace(files, log=b"".join(kept), txnindex=None))
    return replace(log, segments=tuple(segments))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"targetPartitionBytes": "1"},
        {"endingOffsets": '{"t": {"0": 3}}'},
        {"startingOffsets": '{"t": {"0": 2}}'},
        {"where": "offset < 4"},
    ],
)
def test_abort_marker_without_index_entry_is_accepted_if_records_were_compacted(
    options: dict[str, str], local: bool
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")])
    builder.send(1, [SimpleRecord(b"aborted")])
    builder.append([SimpleRecord(b"plain")])
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.abort(1)
    builder.append([SimpleRecord(b"plain")])
    builder.roll()
    log = compact_twice(builder)
    rows = read(write_log(log, local=local), local, options)
    low = 2 if "startingOffsets" in options else 0
    high = {"endingOffsets": 3, "where": 4}.get(next(iter(options), ""), 6)
    assert rows == [offset for offset in (0, 2, 3, 5) if low <= offset < high]


@pytest.mark.parametrize("options", [{}, {"endingOffsets": '{"t": {"0": 3}}'}])
@pytest.mark.parametrize("rolls", [1, 2])
def test_lost_index_entry_is_detected_if_records_are_in_an_earlier_segment(
    options: dict[str, str], rolls: int
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")])
    builder.send(1, [SimpleRecord(b"aborted")])
    for _ in range(rolls):
        builder.append([SimpleRecord(b"plain")])
        builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.abort(1)
    builder.append([SimpleRecord(b"plain")])
    log = builder.build()
    segments = tuple(replace(files, txnindex=None) for files in log.segments)
    objects = write_log(replace(log, segments=segments), local=False)
    with pytest.raises(CorruptSegmentError):
        read(objects, False, options)


def around_an_empty_segment() -> LogBuilder:
    """Builds a log whose aborted transaction begins in segment 1 and ends in segment 3."""
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")])
    builder.send(1, [SimpleRecord(b"aborted")])
    builder.append([SimpleRecord(b"plain")])
    builder.roll()
    builder.append([SimpleRecord(b"compacted")])
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.abort(1)
    return builder


def emptied(log: BuiltLog) -> dict[str, bytes]:
    """Returns the objects of a tier with this log, but with an empty second segment."""
    objects: dict[str, bytes] = {}
    writer = LocalTierWriter(objects, topic="t")
    for number, files in enumerate(log.segments):
        no_byte = replace(files, log=b"", index=b"", timeindex=b"")
        writer.write_segment(no_byte if number == 1 else files)
    return objects


@pytest.mark.parametrize("options", [{}, {"maxRecordsPerPartition": "1"}])
def test_compacted_transaction_around_an_empty_segment_is_accepted(
    options: dict[str, str],
) -> None:
    log = compact_twice(around_an_empty_segment())
    assert read(emptied(log), True, options) == [0, 2, 4]


@pytest.mark.parametrize("options", [{}, {"maxRecordsPerPartition": "1"}])
def test_lost_index_entry_is_detected_around_empty_segment_without_snapshots(
    options: dict[str, str],
) -> None:
    log = around_an_empty_segment().build()
    segments = [replace(files, txnindex=None, snapshot=b"") for files in log.segments]
    with pytest.raises(CorruptSegmentError, match="missing in the index"):
        read(emptied(replace(log, segments=tuple(segments))), True, options)


@pytest.mark.fuzz
def test_scans_with_random_index_damage_return_expected_rows_or_raise() -> None:
    seconds = float(os.environ.get("KTS_FUZZ_SECONDS", "120")) / 8
    end = time.monotonic() + seconds
    first = int(os.environ.get("KTS_FUZZ_SEED", random.SystemRandom().randrange(1 << 32)))
    for seed in itertools.count(first):
        damage = (Damage(), Damage(undecided=True), Damage(lost_segment=1))[seed % 3]
        results = itertools.chain(
            read_damaged_tiers(seed, local=seed % 2 == 0, flips=6, damage=damage),
            read_damaged_hybrid_tiers(seed, flips=2, share=0.1),
        )
        wrong = [str(result) for result in results if result.is_silently_wrong]
        assert wrong == [], f"KTS_FUZZ_SEED={seed}"
        if time.monotonic() > end:
            break
