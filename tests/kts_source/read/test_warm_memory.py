"""A scan of local files reads where the processor's cache is warm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import kts_source
from kts_source.read import fetch
from kts_source.store import local_store
from segment_format.reused_memory import writable_bytes
from segment_format.testing.tiers import AivenTierWriter
from segment_format.testing.uniform import uniform_segment, write_uniform_batches

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_scan_reads_into_the_memory_that_it_has_just_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = write_uniform_batches(
        batch_count=28, records_per_batch=8, value_size=128 << 10, key_size=8
    )
    writer = AivenTierWriter(tmp_path, topic="t", chunk_size=1 << 20)
    writer.write_segment(uniform_segment(batches, log_start=0))
    taken: dict[int, set[int]] = {}

    def remembered(size: int) -> memoryview:
        memory = writable_bytes(size)
        taken.setdefault(size, set()).add(np.frombuffer(memory, np.uint8).ctypes.data)
        return memory

    # Whatever else the machine does meanwhile, it is this thread that reads.
    monkeypatch.setattr(fetch, "_FEW_WAITS", 1 << 30)
    monkeypatch.setattr(local_store, "writable_bytes", remembered)
    scan = kts_source.scan({"path": str(tmp_path), "subscribe": "t"})
    assert sum(batch.num_rows for batch in scan.batches()) == 28 * 8
    assert len(taken[8 << 20]) == 1
