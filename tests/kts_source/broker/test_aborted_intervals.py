"""Tests that a fetch drops incomplete batches and aborted rows.

The tests truncate responses at random positions.
"""

from __future__ import annotations

import random

import pytest

from kts_source.broker.fetch_range import aborted_intervals, whole_batches
from segment_format.record.batch_header import RecordBatchHeader
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_log import FakeLog, fake_log


def _random_log(source: random.Random) -> tuple[FakeLog, set[int]]:
    """Returns two values: a log without open transactions, and offsets of its committed rows."""
    builder = LogBuilder()
    for _ in range(source.randint(1, 60)):
        producer = source.randrange(4)
        records = [SimpleRecord(b"x")] * source.randint(1, 3)
        match source.randrange(6):
            case 0:
                builder.append(records)
            case 1 | 2 | 3:
                builder.send(producer, records)
            case 4:
                builder.abort(producer)
            case _:
                builder.commit(producer)
    for producer in range(4):
        builder.abort(producer)
    log = builder.build()
    return fake_log(log), {row.offset for row in log.rows("read_committed")}


@pytest.mark.parametrize("seed", range(200))
def test_committed_rows_are_kept_for_any_size_of_fetch_responses(seed: int) -> None:
    source = random.Random(seed)
    log, committed = _random_log(source)
    log.reach = source.choice((0, 5, 1000))
    kept_offsets: set[int] = set()
    offset = 0
    while offset < log.end:
        data, listed = log.read(offset, source.randint(1, 600), committed=True)
        size, next_offset = whole_batches(memoryview(data))
        complete = [batch for batch in log.batches if offset < batch.stop <= next_offset]
        assert size == sum(len(batch.data) for batch in complete)
        assert next_offset == complete[-1].stop
        aborted = aborted_intervals(frozenset(listed or ()), memoryview(data)[:size], next_offset)
        for batch in complete:
            header = RecordBatchHeader.from_bytes(batch.data)
            if header.is_control_batch:
                continue
            is_aborted = header.is_transactional and aborted.is_aborted(
                header.producer_id, header.base_offset
            )
            if not is_aborted:
                kept_offsets |= set(range(batch.base, batch.stop))
        offset = next_offset
    assert kept_offsets == committed


@pytest.mark.parametrize("seed", range(5))
def test_whole_batches_returns_only_complete_batches_of_truncated_data(seed: int) -> None:
    log, _ = _random_log(random.Random(seed))
    batches = log.batches[:8]
    data = b"".join(batch.data for batch in batches)
    for cut in range(len(data) + 1):
        size = stop = 0
        for batch in batches:
            if size + len(batch.data) > cut:
                break
            size, stop = size + len(batch.data), batch.stop
        complete_size, next_offset = whole_batches(memoryview(data)[:cut])
        assert complete_size == size
        assert size == 0 or next_offset == stop
