"""Checks reads of overlapping segments with damaged transaction indexes.

A read raises an error or returns the right rows. Segments overlap if two leaders rolled their
segments at different offsets and copied the same records. A read then uses only a part of some
segments. The producer snapshot of such a segment describes the end of the segment, not of this
part.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import CorruptSegmentError, TieredKafkaError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.scan_plan import ScanPlan
from kts_source.planning.slicing import narrowed
from kts_source.tier import Tier
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run
from tests.kts_source.planning.transaction_damage import PRODUCERS, damage_index

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from segment_format.testing import BuiltLog, SegmentFiles

READS = ("plan", "stored plan", "narrowed plan", "plan from an offset")


def plain(count: int) -> Callable[[LogBuilder], object]:
    """Returns a step that appends `count` records outside a transaction."""
    return lambda builder: builder.append([SimpleRecord(b"plain")] * count)


def aborted(count: int) -> Callable[[LogBuilder], object]:
    """Returns a step that appends `count` records to a transaction. A later step aborts it."""
    return lambda builder: builder.send(1, [SimpleRecord(b"aborted")] * count)


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
        _, wrong = wrong_reads(seed, 20)
        assert wrong == [], f"KTS_FUZZ_SEED={seed}"
        if time.monotonic() > end:
            break
