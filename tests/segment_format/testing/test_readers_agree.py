"""Checks that the readers of `segment_format` return the rows that the test writer wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import parse_producer_snapshot
from segment_format.index.sparse_indexes import OffsetIndex, TimeIndex
from segment_format.index.transaction_index import parse_transaction_index
from segment_format.isolation import AbortedIntervals
from segment_format.record.records import iter_batches
from segment_format.testing import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BuiltLog,
    SimpleRecord,
    write_batch,
)
from tests.foreign_compressors import foreign_compressors
from tests.log_strategies import (
    BatchCase,
    batches,
    logs,
    message_sets,
    mutations,
    records,
)
from tests.quick import examples
from tests.segment_format.undecided import last_stable_offset, open_transactions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.record.records import DecodedBatch
    from segment_format.testing import ExpectedRow

# Drawing full logs takes a while on a busy machine.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read_facts(batch: DecodedBatch) -> list[tuple[object, ...]]:
    return [
        (
            record.offset,
            record.timestamp,
            int(record.timestamp_type),
            record.key,
            record.value,
            record.headers,
            -1 if record.leader_epoch is None else record.leader_epoch,
            record.sequence,
            batch.producer_id,
            batch.producer_epoch,
            batch.is_transactional,
            batch.compression_type.name.lower(),
        )
        for record in batch.records
        if not batch.is_control_batch
    ]


def meant_facts(rows: Sequence[ExpectedRow]) -> list[tuple[object, ...]]:
    return [
        (
            row.offset,
            row.timestamp,
            row.timestamp_type,
            row.key,
            row.value,
            row.headers,
            row.leader_epoch,
            row.sequence,
            row.producer_id,
            row.producer_epoch,
            row.transactional,
            row.codec,
        )
        for row in rows
    ]


@settings(UNHURRIED, max_examples=examples(200))
@given(batches() | message_sets())
def test_generated_entries_decode_to_expected_rows(case: BatchCase) -> None:
    decoded = list(iter_batches(case.data))
    assert [fact for batch in decoded for fact in read_facts(batch)] == meant_facts(case.rows)
    assert decoded[0].base_offset == case.base_offset
    assert decoded[-1].last_offset + 1 == case.next_offset


def read_offsets(log: BuiltLog, isolation: str, start: int, stop: int, count: int) -> list[int]:
    """Returns the offsets in [start, stop) that are read from the first `count` segments."""
    tier = log.segments[:count]
    end = min(stop, tier[-1].next_offset)
    aborted = AbortedIntervals.from_txns((), start_offset=0, stop_offset=0)
    if isolation == READ_COMMITTED:
        first_behind = next(
            (number for number, segment in enumerate(tier) if segment.next_offset >= end), 0
        )
        for segment in tier[first_behind:]:
            undecided = open_transactions(parse_producer_snapshot(segment.snapshot), below=end)
            if not undecided:
                break
        aborted = AbortedIntervals.from_txns(
            (txn for files in tier for txn in parse_transaction_index(files.txnindex or b"")),
            start_offset=start,
            stop_offset=end,
        )
        end = last_stable_offset(undecided, end_offset=end)
    return [
        record.offset
        for segment in tier
        for batch in iter_batches(segment.log)
        if not batch.is_control_batch
        and not (
            batch.is_transactional and aborted.is_aborted(batch.producer_id, batch.base_offset)
        )
        for record in batch.records
        if start <= record.offset < end
    ]


@settings(UNHURRIED, max_examples=examples(150))
@given(st.booleans().flatmap(lambda legacy: logs(legacy=legacy, codec=st.just("none"))), st.data())
def test_each_isolation_level_returns_expected_rows(log: BuiltLog, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(log.segments)))
    first, end = log.segments[0].base_offset, log.end_offset(count)
    start = data.draw(st.integers(first, end))
    stop = data.draw(st.integers(start, end))
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        read = read_offsets(log, isolation, start, stop, count)
        meant = log.rows(isolation, start=start, stop=stop, segment_count=count)
        assert read == [row.offset for row in meant]


@settings(UNHURRIED, max_examples=examples(100))
@given(logs())
def test_side_files_of_generated_log_match_its_batches(log: BuiltLog) -> None:
    following = log.segments[0].base_offset
    for segment in log.segments:
        assert segment.base_offset == following
        following = segment.next_offset
        decoded = list(iter_batches(segment.log))
        borders = {batch.position: batch.last_offset for batch in decoded}
        index = OffsetIndex.from_bytes(segment.index, base_offset=segment.base_offset)
        for offset, position in zip(index.offsets, index.positions, strict=True):
            assert borders[position] == offset
        times = TimeIndex.from_bytes(segment.timeindex, base_offset=segment.base_offset)
        newest = max(batch.max_timestamp for batch in decoded)
        assert segment.max_timestamp_ms == newest
        assert (int(times.timestamps[-1]) if len(times) else -1) == newest
        lineage = LeaderEpochCheckpoint.from_bytes(segment.leader_epoch_checkpoint)
        for batch in decoded:
            assert lineage.epoch_for_offset(batch.base_offset) == batch.leader_epoch
        assert segment.epochs[0][1] == segment.base_offset
        assert {batch.leader_epoch for batch in decoded} <= {epoch for epoch, _ in segment.epochs}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@settings(UNHURRIED, max_examples=30)
@given(produced=records(max_size=12))
def test_payloads_compressed_as_by_non_java_clients_decode(
    codec: str, produced: list[SimpleRecord]
) -> None:
    for compressor in foreign_compressors(codec).values():
        data = write_batch(produced, base_offset=5, codec=codec, compressor=compressor)
        (batch,) = iter_batches(data)
        assert [(record.key, record.value, record.headers) for record in batch.records] == [
            (record.key, record.value, record.headers) for record in produced
        ]


@settings(UNHURRIED, max_examples=examples(100))
@given(st.data())
def test_mutated_batches_decode_or_raise(data: st.DataObject) -> None:
    case = data.draw(batches())
    changed = data.draw(mutations(case.data))
    try:
        read = [fact for batch in iter_batches(changed) for fact in read_facts(batch)]
    except SegmentFormatError:
        return
    # Every decoded record has the payload that the checksum covers.
    assert {fact[3:5] for fact in read} <= {(row.key, row.value) for row in case.rows}
