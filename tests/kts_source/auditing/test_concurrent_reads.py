"""Tests that an audit reads with several threads, and how it writes its state file.

Also tests that the garbage collector is disabled during an audit.
"""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING

import pytest

import kts_source
from benchmarks.simulated import TOPIC, SimulatedTier
from kts_source.layout.aiven import AivenLayout
from kts_source.planning.segment_catalog import PLANNING_THREADS
from tests.quick import examples_source, only

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kts_source.auditing.report import AuditReport

_NOW_MS = 1 << 41
_manifest = AivenLayout.manifest


def run_audit(tier: SimulatedTier, state: Path | None = None) -> AuditReport:
    return kts_source.audit(
        {"path": "/", "subscribe": TOPIC},
        store=tier,
        now_ms=_NOW_MS,
        state=None if state is None else str(state),
    )


def call_on_manifests(monkeypatch: pytest.MonkeyPatch, note: Callable[[], object]) -> None:
    """Patches the Aiven layout so that each thread calls `note` before it reads a manifest."""

    def manifest(self: AivenLayout, *arguments: object) -> object:
        note()
        return _manifest(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(AivenLayout, "manifest", manifest)


@pytest.mark.parametrize("partitions", only(3, [1, 2, 8, 96]))
def test_audit_reads_with_all_threads_concurrently(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = 2 * PLANNING_THREADS
    barrier, lock = threading.Barrier(PLANNING_THREADS, timeout=30), threading.Lock()
    first = [PLANNING_THREADS]

    def wait() -> None:
        with lock:
            first[0] -= 1
            is_first = first[0] >= 0
        if is_first:
            barrier.wait()

    call_on_manifests(monkeypatch, wait)
    tier = SimulatedTier(partitions, segments, latency_seconds=0)
    assert not run_audit(tier).findings


def test_all_threads_read_one_large_partition_concurrently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = SimulatedTier(60, 2 * PLANNING_THREADS, latency_seconds=0)
    tier.listed_segments[1:] = [1] * 59
    threads: set[str] = set()
    barrier = threading.Barrier(PLANNING_THREADS, timeout=30)

    def wait() -> None:
        name = threading.current_thread().name
        if name not in threads:
            threads.add(name)
            barrier.wait()

    call_on_manifests(monkeypatch, wait)
    assert not run_audit(tier).findings


def test_audit_writes_state_lines_in_groups_and_next_audit_repeats_no_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []
    write = os.write

    def counted(file: int, data: bytes) -> int:
        writes.append(bytes(data))
        return write(file, data)

    monkeypatch.setattr(os, "write", counted)
    tier = SimulatedTier(20, 160, latency_seconds=0)
    report = run_audit(tier, tmp_path / "state")
    lines = (tmp_path / "state").read_text().splitlines()
    assert len(lines) == 1 + 20 * 160 + 20
    # One write for the header and, per partition, about ten for segments and one for the result.
    assert len(writes) <= 1 + 20 * (160 // 10 + 1)
    assert all(data.endswith(b"\n") for data in writes)
    same_tier = SimulatedTier(20, 160, latency_seconds=0)
    assert run_audit(same_tier, tmp_path / "state") == report
    assert not same_tier.counters.requests


def test_audit_with_truncated_state_file_repeats_only_missing_reads(tmp_path: Path) -> None:
    state = tmp_path / "state"
    expected = run_audit(SimulatedTier(3, 40, latency_seconds=0), state)
    content = state.read_bytes()
    first = examples_source(__name__).randrange(4) * 997  # each run truncates at other bytes
    for size in range(len(content) // 2 + first, len(content), 4 * 997):
        state.write_bytes(content[:size])
        kept = {line.split(b"\t")[3] for line in content[:size].split(b"\n")[1:-1]} - {b""}
        tier = SimulatedTier(3, 40, latency_seconds=0)
        assert run_audit(tier, state) == expected
        assert tier.counters.requests == 2 * (3 * 40 - len(kept))


def test_garbage_collection_is_disabled_during_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[bool] = set()
    call_on_manifests(monkeypatch, lambda: seen.add(gc.isenabled()))
    assert gc.isenabled()
    run_audit(SimulatedTier(2, 20, latency_seconds=0))
    assert seen == {False}
    assert gc.isenabled()
