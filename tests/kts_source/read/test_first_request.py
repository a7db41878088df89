"""Checks that the first request of a task is small, so that queries with LIMIT return soon.

The size of the first request must not change the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read import segment_source, slice_boundaries
from kts_source.read.read_task import run_task
from kts_source.store.local_store import LocalStore
from kts_source.tier import Tier
from segment_format.record.framing import ENTRY_PREFIX_SIZE
from tests.golden_data import CHUNK_SIZE, TIER, tier_options
from tests.kts_source.planning.scanning import run, scan

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.store.object_store import Data


class Far(LocalStore):
    """A folder that behaves like a remote store and records the reads of segments."""

    is_near = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: list[tuple[int, int]] = []

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        if key.endswith(".log"):
            self.reads.append((start, stop))
        return super().get_range(key, start, stop, version=version)


@pytest.mark.parametrize("first", [1, 17, 1000, CHUNK_SIZE, 3 * CHUNK_SIZE + 5])
@pytest.mark.parametrize("target", ["300k", "1g"])
def test_first_request_of_uncompressed_chunks_is_small(
    monkeypatch: pytest.MonkeyPatch, first: int, target: str
) -> None:
    options = {**tier_options("codecs"), "targetPartitionBytes": target}
    expected = scan(options)
    plan = plan_scan(parse_options(options))
    for module in (segment_source, slice_boundaries):
        monkeypatch.setattr(module, "FIRST_REQUEST_BYTES", first)
    store = Far(TIER)
    assert run(plan, options, Tier(store)).equals(expected)
    assert store.reads[0] == (0, first)
    read = sum(stop - start for start, stop in store.reads)
    # No byte is read twice, except the few bytes that confirm the border between two slices.
    cuts = sum(len(task.slices) for task in plan.tasks)
    assert read <= plan.nominal_bytes + cuts * ENTRY_PREFIX_SIZE


def test_first_request_reads_a_full_compressed_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**tier_options("crashed"), "targetPartitionBytes": "1g"}
    plan = plan_scan(parse_options(options))
    expected = scan(options)
    for module in (segment_source, slice_boundaries):
        monkeypatch.setattr(module, "FIRST_REQUEST_BYTES", 100)
    store = Far(TIER)
    assert run(plan, options, Tier(store)).equals(expected)
    index = plan.tasks[0].slices[0].objects.chunk_index
    assert store.reads[0] == (0, index.chunk(0).transformed_stop)


@pytest.mark.parametrize("is_whole", [True, False])
def test_first_request_is_small_even_if_the_whole_task_is_read(
    monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    """A small first request returns sooner than a full chunk, and later requests run
    concurrently.
    """
    options = parse_options({**tier_options("codecs"), "targetPartitionBytes": "1g"})
    for module in (segment_source, slice_boundaries):
        monkeypatch.setattr(module, "FIRST_REQUEST_BYTES", 17)
    store = Far(TIER)
    plan = plan_scan(options)
    rows = [
        list(run_task(task, options, whole=is_whole, opened=Tier(store))) for task in plan.tasks
    ]
    expected = scan({**tier_options("codecs")}).num_rows
    assert sum(batch.num_rows for batches in rows for batch in batches) == expected
    assert min(store.reads) == (0, 17)
