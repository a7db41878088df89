"""Sail gets few batches of each task."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.errors import InvalidOptionError
from kts_source.spark import sail
from kts_source.spark.sail import MAX_BATCHES, join_last


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 4), max_size=60))
def test_few_batches_have_the_same_rows(sizes: list[int]) -> None:
    numbers = iter(range(1000))
    batches = [
        pa.record_batch({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())})
        for size in sizes
    ]
    found = list(join_last(batches))
    assert len(found) <= MAX_BATCHES
    assert [row for batch in found for row in batch.column("n").to_pylist()] == [
        row for batch in batches for row in batch.column("n").to_pylist()
    ]


def test_rows_that_no_batch_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches more than the channel has room for would stop the server for ever."""
    monkeypatch.setattr(sail, "_MAX_COLUMN_BYTES", 100)
    batch = pa.record_batch({"n": pa.array(range(5), pa.int64()), "s": pa.array(["x"] * 5)})
    whole = [batch] * (MAX_BATCHES + 1)
    assert sum(found.num_rows for found in join_last(whole)) == 5 * len(whole)
    with pytest.raises(InvalidOptionError, match="targetPartitionBytes"):
        list(join_last([*whole, batch]))
