"""Checks that scans and audits reuse memory that is still in the processor's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import kts_source
from kts_source.read import fetch
from kts_source.store import local_store
from segment_format.manifest import transform
from segment_format.reused_memory import writable_bytes
from segment_format.testing.tiers import AivenTierWriter
from tests.uniform_batches import uniform_segment, write_uniform_batches

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Remembering:
    """Allocates memory and records the address of each allocation, by its size in bytes."""

    def __init__(self) -> None:
        self.taken: dict[int, set[int]] = {}

    def __call__(self, size: int) -> memoryview:
        memory = writable_bytes(size)
        self.taken.setdefault(size, set()).add(np.frombuffer(memory, np.uint8).ctypes.data)
        return memory


def test_scan_reuses_the_memory_of_decoded_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = write_uniform_batches(
        batch_count=28, records_per_batch=8, value_size=128 << 10, key_size=8
    )
    writer = AivenTierWriter(tmp_path, topic="t", chunk_size=1 << 20)
    writer.write_segment(uniform_segment(batches, log_start=0))
    remembering = Remembering()
    # Even if the reads are slow, this thread performs them itself and starts no other threads.
    monkeypatch.setattr(fetch, "_PATIENCE_SECONDS", 1e9)
    monkeypatch.setattr(local_store, "writable_bytes", remembering)
    scan = kts_source.scan({"path": str(tmp_path), "subscribe": "t"})
    assert sum(batch.num_rows for batch in scan.batches()) == 28 * 8
    assert len(remembering.taken[8 << 20]) == 1


def test_audit_reuses_the_memory_of_checked_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = write_uniform_batches(
        batch_count=28, records_per_batch=8, value_size=128 << 10, key_size=8
    )
    writer = AivenTierWriter(tmp_path, topic="t", chunk_size=1 << 20, compression=True)
    writer.write_segment(uniform_segment(batches, log_start=0))
    remembering = Remembering()
    monkeypatch.setattr(transform, "writable_bytes", remembering)
    report = kts_source.audit({"path": str(tmp_path), "subscribe": "t"}, level="bytes")
    assert report.records == 28 * 8
    assert len(remembering.taken[1 << 20]) == 1
