"""Checks reads of overlapping segments with damaged transaction indexes.

A read raises an error or returns the right rows. Segments overlap if two leaders rolled their
segments at different offsets and copied the same records. A read then uses only a part of some
segments. The producer snapshot of such a segment describes the end of the segment, not of this
part.
"""

from __future__ import annotations

import itertools
import json
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

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from segment_format.testing import BuiltLog, SegmentFiles

OLD_BROKERS = {"ListOffsets": 9}
READS = ("plan", "stored plan", "narrowed plan", "plan from an offset")


def plain(count: int) -> Callable[[LogBuilder], object]:
    """Returns a step that appends `count` records outside a transaction."""
    return lambda builder: builder.append([SimpleRecord(b"plain")] * count)


def aborted(count: int) -> Callable[[LogBuilder], object]:
    """Returns a step that appends `count` records to a transaction. A later step aborts it."""
    return lambda builder: builder.send(1, [SimpleRecord(b"aborted")] * count)


def abort(builder: LogBuilder) -> object:
    """Appends the abort marker of the transaction of `aborted`."""
    return builder.abort(1)


def commit(builder: LogBuilder) -> object:
    """Appends a commit marker for the records of `aborted`."""
    return builder.commit(1)


def pick(log: BuiltLog, start: int, stop: int) -> SegmentFiles:
    """Returns the segment of a log with offsets [start, stop)."""
    ranges = {(files.base_offset, files.next_offset): files for files in log.segments}
    return ranges[start, stop]


def rolled(
    steps: Sequence[Callable[[LogBuilder], object]], rolls: Container[int], interval: int = 4096
) -> BuiltLog:
    """Builds a log with `steps`. A new segment begins after each step with a number in `rolls`."""
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
    """Writes segments to a tier, and reads them with the kind of plan `read` (one of `READS`).

    Returns the offsets of the rows.
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
    steps = [aborted(2), plain(2), plain(2), lambda builder: builder.abort(1), plain(1)]
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
        aborted(1),
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
def test_lost_marker_of_transaction_below_log_start_skips_no_other_rows(local: bool) -> None:
    steps = [aborted(2), aborted(1), plain(2), plain(2), plain(2), abort, plain(2)]
    first, second = rolled(steps, {0, 3, 4, 5}), rolled(steps, {0, 2, 4, 5})
    # The log starts at 2, inside the transaction. Its marker at 9 is lost.
    segments = [pick(first, 2, 7), pick(second, 5, 9), pick(second, 10, 12)]
    rows = offsets(segments, "plan", local=local, stop=12, failOnDataLoss="false")
    assert rows == [3, 4, 5, 6, 7, 8, 10, 11]


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("stop", [12, 13])
def test_transaction_across_hole_before_partly_read_segment_is_committed(
    stop: int, local: bool
) -> None:
    steps = [plain(1), aborted(1), plain(2), plain(1), plain(2), plain(2), plain(2), commit]
    steps.append(plain(1))
    first, second = rolled(steps, {2, 3, 6}), rolled(steps, {2, 3, 4, 5})
    segments = [pick(first, 0, 4), pick(first, 5, 11), pick(second, 7, 9), pick(second, 9, 13)]
    more = {"endingOffsets": json.dumps({"t": {"0": stop}}), "failOnDataLoss": "false"}
    rows = offsets(segments, "plan", local=local, stop=13, **more)
    assert rows == [n for n in range(stop) if n not in (4, 11)]


def with_two_transactions_around_a_hole(end: Callable[[LogBuilder], object]) -> BuiltLog:
    """Builds segments [0, 2), [2, 5), [5, 6), [6, 7), [7, 8) and [8, 10).

    A transaction begins at 0 and ends at 2. The next one of its producer begins at 3 and ends at 8
    with the marker of `end`.
    """
    steps = [
        aborted(1),
        plain(1),
        commit,
        aborted(2),
        aborted(1),
        plain(1),
        plain(1),
        end,
        plain(1),
    ]
    return rolled(steps, {1, 3, 4, 5, 6})


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("stop", [6, 7, 8, 10])
def test_transaction_that_begins_in_hole_is_committed_if_another_one_ends_there(
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


def check_reads_with_holes(seed: int) -> None:
    """Reads overlapping segments without one or two of them. No read may return aborted records or
    raise an error.
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
    for stop in {end, *source.sample(range(1, end), min(5, end - 1))}:
        more = {"endingOffsets": json.dumps({"t": {"0": stop}}), "failOnDataLoss": "false"}
        remaining = [segments[each] for each in sorted(segments)]
        rows = offsets(remaining, "plan", local=source.random() < 0.5, stop=end, **more)
        assert set(rows) <= committed, (seed, stop)


def test_random_reads_with_holes_return_no_aborted_records() -> None:
    for seed in (*range(30), 317, 525):  # in the last two, a transaction begins in a hole
        check_reads_with_holes(seed)


def hybrid_offsets(
    log: BuiltLog,
    segments: Sequence[SegmentFiles],
    versions: dict[str, int],
    *,
    local_start: int,
    stop: int,
) -> list[int]:
    """Writes segments to a tier, and reads offsets [0, stop) from the tier and from brokers.

    Args:
        log: The log of the brokers.
        segments: Segments of the tier.
        versions: Max versions of requests that brokers support, by name.
        local_start: First offset that brokers have on their disks.
        stop: End of the read, exclusive.
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
            "endingOffsets": json.dumps({"t": {"0": stop}}),
        }
        return written_logs.read(objects, True, isolationLevel="read_committed", **more)


@pytest.mark.parametrize("versions", [{}, OLD_BROKERS])
@pytest.mark.parametrize("stop", [2, 4, 12])
def test_marker_after_the_end_of_a_partly_read_segment_aborts_its_transaction(
    stop: int, versions: dict[str, int]
) -> None:
    steps = [aborted(2), plain(2), plain(2), abort, plain(1), plain(2), plain(2)]
    first, second = rolled(steps, {1, 4, 5}), rolled(steps, {1, 2, 5})
    ranges = [(first, 0, 4), (first, 4, 8), (second, 6, 10), (first, 10, 12)]
    segments = [pick(*each) for each in ranges]
    rows = hybrid_offsets(first, segments, versions, local_start=10, stop=stop)
    assert rows == [n for n in range(2, stop) if n != 6]


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
        try:
            rows = hybrid_offsets(first, segments, versions, local_start=local_start, stop=stop)
        except OldBrokerError:
            assert versions
            continue
        returned = True
        expected = [row.offset for row in first.rows("read_committed", start=0, stop=stop)]
        assert rows == expected, (seed, stop)
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
    """Reads a tier of overlapping segments with different damages of a transaction index.

    Returns:
        Two values: the number of reads that raised an error, and one text for each read that
        returned wrong rows without an error.
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


def test_randomly_damaged_overlapping_segments_return_right_rows_or_raise() -> None:
    results = [wrong_reads(seed, 6) for seed in range(25)]
    assert sum(refused for refused, _ in results) > 10
    assert [text for _, wrong in results for text in wrong] == []


@pytest.mark.fuzz
def test_overlapping_segments_damaged_with_new_seed_return_right_rows_or_raise() -> None:
    end = time.monotonic() + float(os.environ.get("KTS_FUZZ_SECONDS", "240")) / 12
    first = int(os.environ.get("KTS_FUZZ_SEED", random.SystemRandom().randrange(1 << 32)))
    for seed in itertools.count(first):
        check_hybrid_read(seed)
        check_reads_with_holes(seed)
        _, wrong = wrong_reads(seed, 20)
        assert wrong == [], f"KTS_FUZZ_SEED={seed}"
        if time.monotonic() > end:
            break
