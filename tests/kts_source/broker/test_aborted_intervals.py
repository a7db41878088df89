"""Answers cut anywhere: their whole batches, and the rows that their aborted transactions leave."""

from __future__ import annotations

import random

import pytest

from kts_source.broker.fetch_range import aborted_intervals, whole_batches
from segment_format.record.batch_header import RecordBatchHeader
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_log import FakeLog, fake_log


def _random_log(source: random.Random) -> tuple[FakeLog, set[int]]:
    """A log without open transactions, and the offsets of its committed rows."""
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
def test_rows_are_the_committed_ones_whatever_the_cuts(seed: int) -> None:
    source = random.Random(seed)
    log, committed = _random_log(source)
    log.reach = source.choice((0, 5, 1000))
    found: set[int] = set()
    at = 0
    while at < log.end:
        data, listed = log.read(at, source.randint(1, 600), committed=True)
        size, next_offset = whole_batches(memoryview(data))
        whole = [batch for batch in log.batches if at < batch.stop <= next_offset]
        # A readable walk of the same bytes.
        assert size == sum(len(batch.data) for batch in whole)
        assert next_offset == whole[-1].stop
        aborted = aborted_intervals(frozenset(listed or ()), memoryview(data)[:size], next_offset)
        for batch in whole:
            header = RecordBatchHeader.from_bytes(batch.data)
            if header.is_control_batch:
                continue
            is_left_out = header.is_transactional and aborted.is_aborted(
                header.producer_id, header.base_offset
            )
            if not is_left_out:
                found |= set(range(batch.base, batch.stop))
        at = next_offset
    assert found == committed


@pytest.mark.parametrize("seed", range(5))
def test_whole_batches_of_bytes_cut_anywhere(seed: int) -> None:
    log, _ = _random_log(random.Random(seed))
    batches = log.batches[:8]
    data = b"".join(batch.data for batch in batches)
    for cut in range(len(data) + 1):
        size = stop = 0
        for batch in batches:
            if size + len(batch.data) > cut:
                break
            size, stop = size + len(batch.data), batch.stop
        found, next_offset = whole_batches(memoryview(data)[:cut])
        assert found == size
        assert size == 0 or next_offset == stop
