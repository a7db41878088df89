"""Checks which transactional batches a `read_committed` read of tier files returns.

Kafka's own classes wrote the logs and their side files and returned the expected offsets. The tests
also read tiers that contain only the first segments of a log.
"""

from __future__ import annotations

import base64
import functools
import json
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segment_format.index.producer_snapshot import ProducerStateEntry, parse_producer_snapshot
from segment_format.index.transaction_index import AbortedTxn, parse_transaction_index
from segment_format.isolation import NO_ABORTED, AbortedIntervals
from segment_format.record.control_record import ControlRecordType, batch_control_type
from segment_format.record.records import iter_batches
from tests.golden_data import VECTORS
from tests.segment_format.undecided import last_stable_offset, open_transactions

if TYPE_CHECKING:
    from segment_format.record.records import DecodedBatch


@dataclass(frozen=True)
class Segment:
    base_offset: int
    next_offset: int
    batches: tuple[DecodedBatch, ...]
    aborted: tuple[AbortedTxn, ...]
    state_at_end: tuple[ProducerStateEntry, ...]


@dataclass(frozen=True)
class Log:
    seed: int
    segments: tuple[Segment, ...]
    read_committed_offsets: tuple[int, ...]


@functools.cache
def golden_logs() -> tuple[Log, ...]:
    document: dict[str, Any] = json.loads((VECTORS / "kafka-txn-goldens.json").read_text())
    return tuple(read_log(log) for log in document["logs"])


def read_log(log: dict[str, Any]) -> Log:
    files = {name: base64.b64decode(data) for name, data in log["files"].items()}
    bases = sorted(int(name[:20]) for name in files if name.endswith(".log"))
    ends = sorted(int(name[:20]) for name in files if name.endswith(".snapshot"))
    stops = [*bases[1:], ends[-1]]
    return Log(
        log["seed"],
        tuple(
            Segment(
                base,
                stop,
                tuple(iter_batches(files[f"{base:020d}.log"])),
                parse_transaction_index(files.get(f"{base:020d}.txnindex", b"")),
                parse_producer_snapshot(files[f"{stop:020d}.snapshot"]),
            )
            for base, stop in zip(bases, stops, strict=True)
        ),
        tuple(log["read_committed_offsets"]),
    )


every_log = pytest.mark.parametrize("log", golden_logs(), ids=lambda log: str(log.seed))


def read_committed(tier: tuple[Segment, ...], start: int, stop: int) -> tuple[list[int], int]:
    """Returns the `read_committed` offsets in [start, stop), and the offset at which the read ends.
    Uses snapshots to find out how far to search for markers, and transaction indexes to find out
    which transactions were aborted.
    """
    needed = [segment for segment in tier if segment.next_offset > start]
    last = next(index for index, segment in enumerate(needed) if segment.next_offset >= stop)
    undecided = open_transactions(needed[last].state_at_end, below=stop)
    while undecided and last + 1 < len(needed):
        last += 1
        undecided = open_transactions(needed[last].state_at_end, below=stop)
    end = last_stable_offset(undecided, end_offset=stop)
    aborted = AbortedIntervals.from_txns(
        (txn for segment in needed[: last + 1] for txn in segment.aborted),
        start_offset=start,
        stop_offset=stop,
    )
    return [
        record.offset
        for segment in needed
        for batch in segment.batches
        if not batch.is_control_batch
        and not (
            batch.is_transactional and aborted.is_aborted(batch.producer_id, batch.base_offset)
        )
        for record in batch.records
        if start <= record.offset < end
    ], end


@every_log
def test_read_committed_of_full_log_matches_kafka_consumer(log: Log) -> None:
    tier = log.segments

    delivered, end = read_committed(tier, tier[0].base_offset, tier[-1].next_offset)

    assert delivered == list(log.read_committed_offsets)
    assert end == tier[-1].next_offset


def first_undecided(log: Log, tier_end: int) -> int:
    """Returns the first offset of the oldest transaction without a marker below `tier_end`. Reads
    the batches instead of side files.
    """
    open_since: dict[int, int] = {}
    for segment in log.segments:
        for batch in segment.batches:
            if batch.base_offset >= tier_end:
                continue
            kind = batch_control_type(batch)
            if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
                open_since.pop(batch.producer_id, None)
            elif batch.is_transactional and not batch.is_control_batch:
                open_since.setdefault(batch.producer_id, batch.base_offset)
    return min(open_since.values(), default=tier_end)


@every_log
def test_read_committed_of_first_segments_stops_at_last_stable_offset(log: Log) -> None:
    stopped_early = 0
    for count in range(1, len(log.segments) + 1):
        tier = log.segments[:count]
        tier_end = tier[-1].next_offset

        delivered, end = read_committed(tier, tier[0].base_offset, tier_end)

        assert end == first_undecided(log, tier_end)
        assert delivered == [offset for offset in log.read_committed_offsets if offset < end]
        stopped_early += end < tier_end
    assert stopped_early or log.seed == 2073


@every_log
def test_read_committed_range_equals_that_slice_of_all_committed_rows(log: Log) -> None:
    for count in range(1, len(log.segments) + 1, 3):
        tier = log.segments[:count]
        first, tier_end = tier[0].base_offset, tier[-1].next_offset
        undecided = first_undecided(log, tier_end)
        step = max(1, (tier_end - first) // 7)
        for start in range(first, tier_end, step):
            for stop in range(start + 1, tier_end + 1, step):
                delivered, end = read_committed(tier, start, stop)

                assert delivered == [
                    offset for offset in log.read_committed_offsets if start <= offset < end
                ]
                assert end == min(stop, undecided)


def test_transaction_index_of_one_segment_does_not_list_all_its_aborted_batches() -> None:
    """Kafka lists an aborted transaction only in the index of the segment that contains the abort
    marker. A reader therefore also needs the indexes of later segments.
    """
    leaked = 0
    for log in golden_logs():
        for segment in log.segments:
            own = AbortedIntervals.from_txns(
                segment.aborted, start_offset=segment.base_offset, stop_offset=segment.next_offset
            )
            leaked += sum(
                batch.is_transactional
                and not batch.is_control_batch
                and bool(batch.records)
                and not own.is_aborted(batch.producer_id, batch.base_offset)
                and batch.records[0].offset not in log.read_committed_offsets
                for batch in segment.batches
            )
    assert leaked > 50


def txn(producer_id: int, first: int, last: int) -> AbortedTxn:
    return AbortedTxn(producer_id, first, last, last + 1)


def test_aborted_intervals_begin_at_first_batch_and_end_at_marker() -> None:
    aborted = AbortedIntervals.from_txns(
        [txn(7, 10, 20), txn(7, 30, 40), txn(5, 15, 35)], start_offset=0, stop_offset=100
    )

    assert aborted.producer_ids.tolist() == [5, 7, 7]
    assert aborted.first_offsets.tolist() == [15, 10, 30]
    assert aborted.last_offsets.tolist() == [35, 20, 40]
    assert [offset for offset in range(50) if aborted.is_aborted(7, offset)] == [
        *range(10, 20),
        *range(30, 40),
    ]
    assert [offset for offset in range(50) if aborted.is_aborted(5, offset)] == [*range(15, 35)]
    assert not any(aborted.is_aborted(6, offset) for offset in range(50))


def test_aborted_intervals_outside_range_are_dropped() -> None:
    txns = [txn(1, 0, 9), txn(2, 0, 10), txn(3, 19, 50), txn(4, 20, 50)]

    aborted = AbortedIntervals.from_txns(txns, start_offset=10, stop_offset=20)

    assert aborted.producer_ids.tolist() == [2, 3]
    assert (
        AbortedIntervals.from_txns(txns, start_offset=0, stop_offset=99).overlapping(10, 20)
        == aborted
    )


def test_duplicate_entries_of_aborted_intervals_are_merged() -> None:
    twice = [AbortedTxn(1, 5, 9, 10), AbortedTxn(1, 5, 9, 7)]

    assert len(AbortedIntervals.from_txns(twice, start_offset=0, stop_offset=99)) == 1


def test_aborted_intervals_pickle_compactly() -> None:
    aborted = AbortedIntervals.from_txns([txn(1, 5, 9)], start_offset=0, stop_offset=99)

    assert pickle.loads(pickle.dumps(aborted)) == aborted
    assert len(pickle.dumps(aborted)) < 1000
    assert {array.dtype for array in (aborted.producer_ids, aborted.last_offsets)} == {
        np.dtype(np.int64)
    }
    assert len(NO_ABORTED) == 0
    assert not NO_ABORTED.is_aborted(1, 5)
    assert NO_ABORTED.overlapping(0, 5) == NO_ABORTED
    assert aborted != NO_ABORTED
    assert NO_ABORTED != "nothing"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 12)), max_size=12),
    st.integers(0, 40),
    st.integers(0, 20),
)
def test_aborted_lookup_matches_linear_search(
    entries: list[tuple[int, int, int]], start: int, size: int
) -> None:
    txns = [txn(producer, first, first + length) for producer, first, length in entries]
    stop = start + size
    aborted = AbortedIntervals.from_txns(txns, start_offset=start, stop_offset=stop)
    order = list(zip(aborted.producer_ids.tolist(), aborted.first_offsets.tolist(), strict=True))

    assert order == sorted(set(order))
    for intervals in (aborted, aborted.overlapping(start, stop)):
        for producer in range(4):
            for offset in range(start, stop):
                assert intervals.is_aborted(producer, offset) == any(
                    txn.producer_id == producer and txn.first_offset <= offset < txn.last_offset
                    for txn in txns
                )
