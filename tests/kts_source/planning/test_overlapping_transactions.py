"""Checks reads of overlapping segments with damaged transaction indexes: a read raises an error or
returns the right rows.

Segments overlap if two leaders rolled their segments at different offsets and copied the same
records. A read then uses only a part of some segments. The producer snapshot of such a segment
describes the end of the segment, not the end of the used part.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import CorruptSegmentError, OldBrokerError, TieredKafkaError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.scan_plan import ScanPlan
from kts_source.planning.slicing import narrowed
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.planning import written_logs
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run
from tests.kts_source.planning.transaction_damage import PRODUCERS, damage_index
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from segment_format.testing import BuiltLog, SegmentFiles

OLD_BROKERS = {"ListOffsets": 9}
READS = ("plan", "stored plan", "narrowed plan", "plan from an offset")


def plain(count: int) -> Callable[[LogBuilder], object]:
    """Returns a step that appends `count` records outside a transaction."""
    return lambda builder: builder.append([SimpleRecord(b"plain")] * count)


def transactional(count: int) -> Callable[[LogBuilder], object]:
    """Returns a step that appends `count` records to a transaction that a later step ends."""
    return lambda builder: builder.send(1, [SimpleRecord(b"transactional")] * count)


def abort(builder: LogBuilder) -> object:
    """Appends the abort marker of the transaction that `transactional` began."""
    return builder.abort(1)


def commit(builder: LogBuilder) -> object:
    """Appends the commit marker of the transaction that `transactional` began."""
    return builder.commit(1)


def pick(log: BuiltLog, start: int, stop: int) -> SegmentFiles:
    """Returns the segment with offsets [start, stop) of a log."""
    ranges = {(files.base_offset, files.next_offset): files for files in log.segments}
    return ranges[start, stop]


def rolled(
    steps: Sequence[Callable[[LogBuilder], object]], rolls: Container[int], interval: int = 4096
) -> BuiltLog:
    """Builds a log with `steps`. A new segment begins after each step whose number is in
    `rolls`.
    """
    builder = LogBuilder(index_interval_bytes=interval)
    for number, step in enumerate(steps):
        step(builder)
        if number in rolls:
            builder.roll()
    builder.roll()
    return builder.build()


def offsets(
    segments: Sequence[SegmentFiles], read: str, *, local: bool, stop: int, **more: str
) -> list[int]:
    """Writes segments to a tier, and returns the offsets that a read returns. `read` is the kind of
    plan, one of `READS`.
    """
    objects: dict[str, bytes] = {}
    writer = LocalTierWriter(objects, topic="t") if local else AivenTierWriter(objects, topic="t")
    for files in segments:
        writer.write_segment(files)
    layout = {"layout": "local-tiered-storage"} if local else {}
    given = {"path": "/", "subscribe": "t", "isolationLevel": "read_committed", **layout, **more}
    tier = Tier(MemoryStore(objects))
    plan = plan_scan(parse_options(given), tier)
    if read == "stored plan":
        plan = ScanPlan.from_json(plan.to_json())
    elif read == "narrowed plan":
        where = parse_options({**given, "where": f"offset >= 0 and offset < {stop}"}).where
        assert where is not None
        plan = narrowed(plan, where, where)
    elif read == "plan from an offset":
        plan = plan.from_offsets([part.start for part in plan.partitions])
    return [int(offset) for offset in run(plan, given, tier)["offset"].to_pylist()]


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("read", READS)
def test_lost_index_entry_after_partly_read_segment_raises_error(read: str, local: bool) -> None:
    steps = [transactional(2), plain(2), plain(2), lambda builder: builder.abort(1), plain(1)]
    first, second = rolled(steps, {0, 2}), rolled(steps, {1})
    segments = [*first.segments[:2], second.segments[1]]
    assert offsets(segments, read, local=local, stop=8) == [2, 3, 4, 5, 7]
    segments[2] = replace(segments[2], txnindex=None)
    with pytest.raises(CorruptSegmentError):
        offsets(segments, read, local=local, stop=8)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("read", READS)
def test_lost_index_entry_of_segment_that_contains_another_segment_raises_error(
    read: str, local: bool
) -> None:
    steps = [
        transactional(1),
        plain(3),
        plain(1),
        lambda builder: builder.abort(1),
        plain(2),
        plain(2),
    ]
    first, second = rolled(steps, {1}), rolled(steps, {3, 4})
    segments = [*first.segments, second.segments[1]]
    assert offsets(segments, read, local=local, stop=10) == [1, 2, 3, 4, 6, 7, 8, 9]
    segments[1] = replace(segments[1], txnindex=None)
    with pytest.raises(CorruptSegmentError):
        offsets(segments, read, local=local, stop=10)


@pytest.mark.parametrize("local", [False, True])
def test_lost_marker_of_transaction_open_at_log_start_skips_only_its_rows(local: bool) -> None:
    steps = [transactional(2), transactional(1), plain(2), plain(2), plain(2), abort, plain(2)]
    first, second = rolled(steps, {0, 3, 4, 5}), rolled(steps, {0, 2, 4, 5})
    # The log starts at 2, inside the transaction. Its marker at 9 is lost.
    segments = [pick(first, 2, 7), pick(second, 5, 9), pick(second, 10, 12)]
    rows = offsets(segments, "plan", local=local, stop=12, failOnDataLoss="false")
    assert rows == [3, 4, 5, 6, 7, 8, 10, 11]


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("stop", [12, 13])
def test_rows_of_committed_transaction_are_returned_if_hole_precedes_partly_read_segment(
    stop: int, local: bool
) -> None:
    steps = [plain(1), transactional(1), plain(2), plain(1), plain(2), plain(2), plain(2), commit]
    steps.append(plain(1))
    first, second = rolled(steps, {2, 3, 6}), rolled(steps, {2, 3, 4, 5})
    segments = [pick(first, 0, 4), pick(first, 5, 11), pick(second, 7, 9), pick(second, 9, 13)]
    more = {"endingOffsets": json.dumps({"t": {"0": stop}}), "failOnDataLoss": "false"}
    rows = offsets(segments, "plan", local=local, stop=13, **more)
    assert rows == [n for n in range(stop) if n not in (4, 11)]


def with_two_transactions_around_a_hole(end: Callable[[LogBuilder], object]) -> BuiltLog:
    """Builds segments [0, 2), [2, 5), [5, 6), [6, 7), [7, 8) and [8, 10).

    A transaction has offsets 0 to 2. A second transaction of its producer begins at 3 and ends at 8
    with the marker that `end` appends.
    """
    steps = [
        transactional(1),
        plain(1),
        commit,
        transactional(2),
        transactional(1),
        plain(1),
        plain(1),
        end,
        plain(1),
    ]
    return rolled(steps, {1, 3, 4, 5, 6})


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("stop", [6, 7, 8, 10])
def test_commit_after_hole_is_not_matched_with_transaction_before_the_hole(
    stop: int, local: bool
) -> None:
    log = with_two_transactions_around_a_hole(commit)
    segments = [files for files in log.segments if files.base_offset != 2]
    more = {"endingOffsets": json.dumps({"t": {"0": stop}}), "failOnDataLoss": "false"}
    rows = offsets(segments, "plan", local=local, stop=stop, **more)
    assert rows == [n for n in (1, 5, 6, 7, 9) if n < stop]


@pytest.mark.parametrize("local", [False, True])
def test_lost_index_entry_is_detected_after_two_holes(local: bool) -> None:
    segments = [
        replace(files, txnindex=None)
        for files in with_two_transactions_around_a_hole(abort).segments
        if files.base_offset not in (2, 6)
    ]
    more = {"endingOffsets": json.dumps({"t": {"0": 6}}), "failOnDataLoss": "false"}
    with pytest.raises(CorruptSegmentError, match="began at offset 3"):
        offsets(segments, "plan", local=local, stop=6, **more)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("stop", [1, 2, 5, 7, 9])
def test_lost_index_entry_is_detected_after_hole_and_partly_read_segment(
    stop: int, local: bool
) -> None:
    steps = [transactional(1), plain(1), plain(2), plain(1), plain(1), plain(1), abort, plain(1)]
    first, second = rolled(steps, {1, 2, 4, 5}), rolled(steps, {1, 2, 3, 5})
    # Offsets [2, 4) are missing, and the snapshot of [4, 6) describes another offset than 5.
    segments = [pick(first, 0, 2), pick(first, 4, 6), pick(second, 5, 7), pick(first, 7, 9)]
    more = {"endingOffsets": json.dumps({"t": {"0": stop}}), "failOnDataLoss": "false"}
    rows = offsets(segments, "plan", local=local, stop=stop, **more)
    assert rows == [n for n in (1, 4, 5, 6, 8) if n < stop]
    segments[3] = replace(segments[3], txnindex=None)
    with pytest.raises(CorruptSegmentError, match="began at offset 0"):
        offsets(segments, "plan", local=local, stop=stop, **more)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("stop", [5, 6, 7, 9])
def test_lost_index_entry_is_detected_if_partly_read_segment_follows_hole(
    stop: int, local: bool
) -> None:
    steps = [plain(2), plain(2), transactional(1), plain(1), plain(1), abort, plain(1)]
    first, second = rolled(steps, {0, 1, 3, 4}), rolled(steps, {0, 1, 2, 4})
    segments = [pick(first, 0, 2), pick(first, 4, 6), pick(second, 5, 7), pick(first, 7, 9)]
    more = {
        "startingOffsets": json.dumps({"t": {"0": 4}}),
        "endingOffsets": json.dumps({"t": {"0": stop}}),
    }
    rows = offsets(segments, "plan", local=local, stop=stop, **more)
    assert rows == [n for n in (5, 6, 8) if n < stop]
    segments[3] = replace(segments[3], txnindex=None)
    with pytest.raises(CorruptSegmentError, match="began at offset 4"):
        offsets(segments, "plan", local=local, stop=stop, **more)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("stop", [9, 10, 11, 12])
@pytest.mark.parametrize("end", [commit, abort])
def test_transaction_across_two_holes_and_invalid_snapshot_keeps_its_outcome(
    end: Callable[[LogBuilder], object], stop: int, local: bool
) -> None:
    steps = [
        transactional(1),
        plain(1),
        plain(2),
        plain(2),
        plain(2),
        transactional(1),
        plain(1),
        end,
    ]
    log = rolled([*steps, plain(1)], {1, 2, 3, 4, 6})
    segments = [pick(log, *each) for each in ((0, 2), (4, 6), (8, 10), (10, 12))]
    snapshot = segments[1].snapshot
    segments[1] = replace(segments[1], snapshot=snapshot[:-1] + bytes([snapshot[-1] ^ 1]))
    more = {"endingOffsets": json.dumps({"t": {"0": stop}}), "failOnDataLoss": "false"}
    rows = offsets(segments, "plan", local=local, stop=stop, **more)
    committed = (0, 1, 4, 5, 8, 9, 11) if end is commit else (1, 4, 5, 9, 11)
    assert rows == [n for n in committed if n < stop]


def check_reads_with_holes(seed: int) -> None:
    """Reads overlapping segments of which one or two are missing. No read may return aborted
    records. A read may raise an error only if a transaction index also lacks an entry.
    """
    source = random.Random(seed)
    steps = random_steps(source)
    first, second = (
        rolled(steps, {n for n in range(len(steps)) if source.random() < 0.3}) for _ in range(2)
    )
    others = [files for files in second.segments if source.random() < 0.5]
    segments = {(files.base_offset, files.next_offset): files for files in others}
    segments |= {(files.base_offset, files.next_offset): files for files in first.segments}
    inner = sorted(segments)[1:-1]
    for lost in source.sample(inner, min(2, len(inner))):
        del segments[lost]
    end = first.end_offset()
    committed = {row.offset for row in first.rows("read_committed")}
    remaining = [segments[each] for each in sorted(segments)]
    indexed = [number for number, files in enumerate(remaining) if files.txnindex]
    for stop in {end, *source.sample(range(1, end), min(5, end - 1))}:
        start = source.choice((0, source.randrange(stop)))
        more = {
            "startingOffsets": json.dumps({"t": {"0": start}}),
            "endingOffsets": json.dumps({"t": {"0": stop}}),
            "failOnDataLoss": "false",
        }
        local = source.random() < 0.5
        rows = offsets(remaining, "plan", local=local, stop=end, **more)
        assert set(rows) <= committed, (seed, start, stop)
        if indexed:
            damaged = [*remaining]
            number = source.choice(indexed)
            damaged[number] = replace(damaged[number], txnindex=None)
            try:
                rows = offsets(damaged, "plan", local=local, stop=end, **more)
            except CorruptSegmentError:
                continue
            assert set(rows) <= committed, (seed, start, stop, number)


# In the last two logs of the quick share, a transaction begins in a hole.
@pytest.mark.parametrize("seeds", only(1, [(*range(10), 317, 525), range(10, 30)]))
def test_random_reads_with_holes_return_no_aborted_records(seeds: Sequence[int]) -> None:
    for seed in seeds:
        check_reads_with_holes(seed)


def hybrid_offsets(
    log: BuiltLog,
    segments: Sequence[SegmentFiles],
    versions: dict[str, int],
    *,
    local_start: int,
    stop: int,
    start: int = 0,
) -> list[int]:
    """Writes segments to a tier, and reads offsets [start, stop) from the tier and from brokers
    with this log.

    `versions` maps each request to the maximum version that the brokers support. `local_start` is
    the first offset on the brokers' disks.
    """
    objects: dict[str, bytes] = {}
    writer = LocalTierWriter(objects, topic="t")
    for files in segments:
        writer.write_segment(files)
    with FakeCluster(versions=versions) as brokers:
        partition = FakePartition(fake_log(log))
        partition.log.local_start = local_start
        brokers.create("t", [partition], uuid_from_text(writer.topic_id))
        more = {
            "kafka.bootstrap.servers": brokers.bootstrap,
            "brokerFallback": "false",
            "startingOffsets": json.dumps({"t": {"0": start}}),
            "endingOffsets": json.dumps({"t": {"0": stop}}),
        }
        return written_logs.read(objects, True, isolationLevel="read_committed", **more)


@pytest.mark.parametrize("versions", [{}, OLD_BROKERS])
@pytest.mark.parametrize("stop", [2, 4, 12])
def test_marker_after_the_end_of_a_partly_read_segment_aborts_its_transaction(
    stop: int, versions: dict[str, int]
) -> None:
    steps = [transactional(2), plain(2), plain(2), abort, plain(1), plain(2), plain(2)]
    first, second = rolled(steps, {1, 4, 5}), rolled(steps, {1, 2, 5})
    ranges = [(first, 0, 4), (first, 4, 8), (second, 6, 10), (first, 10, 12)]
    segments = [pick(*each) for each in ranges]
    rows = hybrid_offsets(first, segments, versions, local_start=10, stop=stop)
    assert rows == [n for n in range(2, stop) if n != 6]


@pytest.mark.parametrize("versions", [{}, OLD_BROKERS])
@pytest.mark.parametrize("start", range(5))
def test_read_that_starts_in_partly_read_segment_uses_the_tier(
    start: int, versions: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    steps = [plain(2) for _ in range(6)]
    first, second = rolled(steps, {0, 2, 3, 4}), rolled(steps, {0, 1, 2, 3, 4})
    segments = [*first.segments, pick(second, 4, 6)]
    caplog.set_level(logging.INFO, "kts_source")
    rows = hybrid_offsets(first, segments, versions, local_start=10, start=start, stop=12)
    assert rows == list(range(start, 12))
    assert "is read from brokers" not in caplog.text


@pytest.mark.parametrize("stop", [1, 2])
def test_read_that_ends_before_a_transaction_returns_all_rows_with_old_brokers(stop: int) -> None:
    steps = [plain(2), transactional(2), commit, plain(1), plain(2), plain(2)]
    log = rolled(steps, {1, 3, 4})
    segments = [files for files in log.segments if files.base_offset != 4]
    rows = hybrid_offsets(log, segments, OLD_BROKERS, local_start=8, stop=stop)
    assert rows == list(range(stop))


def check_hybrid_read(seed: int) -> bool:
    """Compares reads of overlapping segments and brokers with the log.

    Returns whether a read returned rows. Old brokers may refuse a read.
    """
    source = random.Random(seed)
    steps = random_steps(source)
    first, second = (
        rolled(steps, {n for n in range(len(steps)) if source.random() < 0.3}) for _ in range(2)
    )
    others = [files for files in second.segments if source.random() < 0.5]
    ranges = {(files.base_offset, files.next_offset): files for files in others}
    ranges |= {(files.base_offset, files.next_offset): files for files in first.segments}
    segments = [ranges[each] for each in sorted(ranges)]
    end = first.end_offset()
    local_start = source.choice([files.base_offset for files in first.segments[-3:]])
    versions = source.choice(({}, OLD_BROKERS, OLD_BROKERS))
    returned = False
    for stop in {end, *source.sample(range(1, end), min(8, end - 1))}:
        start = source.choice((0, source.randrange(stop)))
        try:
            rows = hybrid_offsets(
                first, segments, versions, local_start=local_start, start=start, stop=stop
            )
        except OldBrokerError:
            assert versions
            continue
        returned = True
        expected = [row.offset for row in first.rows("read_committed", start=start, stop=stop)]
        assert rows == expected, (seed, start, stop)
    return returned


def test_random_reads_of_overlapping_segments_and_brokers_return_the_log() -> None:
    assert sum(check_hybrid_read(seed) for seed in range(100, 112)) > 6


def random_steps(source: random.Random) -> list[Callable[[LogBuilder], object]]:
    """Returns random steps with interleaved transactions. Each transaction ends with a marker."""
    steps: list[Callable[[LogBuilder], object]] = []
    open_producers: set[int] = set()

    def end(producer: int, outcome: str) -> Callable[[LogBuilder], object]:
        return lambda builder: getattr(builder, outcome)(producer)

    def send(producer: int, count: int) -> Callable[[LogBuilder], object]:
        return lambda builder: builder.send(producer, [SimpleRecord(b"value")] * count)

    for _ in range(source.randint(8, 50)):
        producer, action = source.choice(PRODUCERS), source.random()
        if producer in open_producers and action < 0.45:
            steps.append(end(producer, "abort" if source.random() < 0.6 else "commit"))
            open_producers.discard(producer)
        elif action < 0.8:
            steps.append(send(producer, source.randint(1, 3)))
            open_producers.add(producer)
        else:
            steps.append(plain(source.randint(1, 4)))
    steps += [end(producer, "abort") for producer in sorted(open_producers)]
    return [*steps, plain(1)]


def wrong_reads(seed: int, damages: int) -> tuple[int, list[str]]:
    """Reads a tier of overlapping segments once for each of many damages of a transaction index.
    Returns the number of reads that raised an error, and one text for each read that returned
    wrong rows without an error.
    """
    source = random.Random(seed)
    steps = random_steps(source)
    interval = source.choice((0, 100, 4096))
    first, second = (
        rolled(steps, {n for n in range(len(steps)) if source.random() < share}, interval)
        for share in (0.2, source.choice((0.1, 0.4)))
    )
    ranges = {(files.base_offset, files.next_offset) for files in first.segments}
    others = [
        files
        for files in second.segments
        if source.random() < 0.5 and (files.base_offset, files.next_offset) not in ranges
    ]
    segments = [*first.segments, *others]
    segments.sort(key=lambda files: (files.base_offset, files.next_offset))
    expected = [row.offset for row in first.rows("read_committed")]
    more = source.choice(
        ({}, {"targetPartitionBytes": "1"}, {"maxRecordsPerPartition": str(source.randint(1, 7))})
    )
    read, local, stop = source.choice(READS), source.random() < 0.5, first.end_offset()
    assert offsets(segments, read, local=local, stop=stop, **more) == expected, seed
    variants = [
        (number, index)
        for number, files in enumerate(segments)
        for index in damage_index(files.txnindex or b"", source, 2)
    ]
    refused = 0
    wrong = []
    for number, index in source.sample(variants, min(damages, len(variants))):
        damaged = [*segments]
        damaged[number] = replace(damaged[number], txnindex=index or None)
        try:
            rows = offsets(damaged, read, local=local, stop=stop, **more)
        except TieredKafkaError:
            refused += 1
        else:
            if rows != expected:
                wrong.append(f"seed {seed}, {read}, local {local}, {more}, segment {number}")
    return refused, wrong


@pytest.mark.parametrize("seeds", only(1, [range(8), range(8, 25)]))
def test_randomly_damaged_overlapping_segments_return_expected_rows_or_raise(
    seeds: range,
) -> None:
    results = [wrong_reads(seed, 6) for seed in seeds]
    assert sum(refused for refused, _ in results) > len(seeds) * 10 // 25
    assert [text for _, wrong in results for text in wrong] == []


@pytest.mark.fuzz
def test_overlapping_segments_damaged_with_new_seed_return_expected_rows_or_raise() -> None:
    end = time.monotonic() + float(os.environ.get("KTS_FUZZ_SECONDS", "120")) / 12
    first = int(os.environ.get("KTS_FUZZ_SEED", random.SystemRandom().randrange(1 << 32)))
    for seed in itertools.count(first):
        check_hybrid_read(seed)
        check_reads_with_holes(seed)
        _, wrong = wrong_reads(seed, 20)
        assert wrong == [], f"KTS_FUZZ_SEED={seed}"
        if time.monotonic() > end:
            break
