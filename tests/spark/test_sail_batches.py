"""Tests that Sail receives only a few batches per task."""

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
def test_joined_batches_contain_same_rows(sizes: list[int]) -> None:
    numbers = iter(range(1000))
    batches = [
        pa.record_batch({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())})
        for size in sizes
    ]
    joined = list(join_last(batches))
    assert len(joined) <= MAX_BATCHES
    assert [row for batch in joined for row in batch.column("n").to_pylist()] == [
        row for batch in batches for row in batch.column("n").to_pylist()
    ]


def test_rows_too_large_for_batches_raise_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sail would wait forever for a task that returns more than `MAX_BATCHES` batches."""
    monkeypatch.setattr(sail, "_MAX_COLUMN_BYTES", 100)
    batch = pa.record_batch({"n": pa.array(range(5), pa.int64()), "s": pa.array(["x"] * 5)})
    batches = [batch] * (MAX_BATCHES + 1)
    assert sum(joined.num_rows for joined in join_last(batches)) == 5 * len(batches)
    with pytest.raises(InvalidOptionError, match="targetPartitionBytes"):
        list(join_last([*batches, batch]))
