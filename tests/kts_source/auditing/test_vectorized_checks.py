"""Tests that vectorized checks of batches produce the same reports as checks of single batches."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import kts_source
from kts_source.auditing import proof
from kts_source.auditing.batch_checks import Transactions, rows_of
from segment_format.kernels import batch_scanner
from segment_format.kernels.batch_scanner import BatchScanner, BatchTable
from tests import log_strategies as strategies
from tests.kts_source.auditing.damaged_tier import (
    NOW_MS,
    TOPIC,
    healthy_segments,
    run_audit,
    write_tier,
)
from tests.kts_source.auditing.test_audit_histories import run_audit as audit_history
from tests.kts_source.auditing.test_state import CountingStore, write_store
from tests.kts_source.planning.history import World, random_history
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kts_source.auditing.batch_checks import LogCheck, SegmentIndexes
    from kts_source.auditing.report import AuditReport
    from segment_format.testing import SegmentFiles
    from segment_format.testing.log_builder import BuiltLog


def check_single_batches(table: BatchTable, check: LogCheck, indexes: SegmentIndexes) -> None:
    for batch in rows_of(table):
        check.check(batch)
        indexes.check(batch)


@pytest.mark.parametrize("seeds", only(1, [range(7), range(7, 20)]))
def test_vectorized_and_batch_by_batch_audits_of_random_histories_are_equal(
    monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    histories = [random_history(random.Random(f"at once {seed}")) for seed in seeds]
    fast = [audit_history(World(history)) for history in histories]
    monkeypatch.setattr(proof, "check_table", check_single_batches)
    assert fast == [audit_history(World(history)) for history in histories]


def test_vectorized_and_batch_by_batch_audits_of_flipped_bytes_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    tier = write_tier(tmp_path, healthy_segments())
    # Damages batch headers and index entries, because almost each of their bits matters.
    batches = [
        (number, "log", position) for number in range(5) for position in tier.positions(number)
    ]
    flips = [
        (number, suffix, position + rng.randrange(61))
        for number, suffix, position in rng.sample(batches, 9)
    ]
    flips += [(rng.randrange(5), "indexes", rng.randrange(100)) for _ in range(6)]
    fast = []
    for flip in flips:
        tier.flip(*flip)
        fast.append(run_audit(tier))
        tier.flip(*flip)
    monkeypatch.setattr(proof, "check_table", check_single_batches)
    for flip, report in zip(flips, fast, strict=True):
        tier.flip(*flip)
        assert run_audit(tier) == report
        tier.flip(*flip)
    assert sum(bool(report.errors) for report in fast) > 5


def split_batches(log: bytes) -> list[bytearray]:
    batches, position = [], 0
    while position < len(log):
        size = 12 + int.from_bytes(log[position + 8 : position + 12], "big")
        batches.append(bytearray(log[position : position + size]))
        position += size
    return batches


def damage_segments(rng: random.Random) -> list[SegmentFiles]:
    """Returns the healthy segments after one to three random faults.

    A fault swaps, repeats, deletes or inserts a batch, flips a bit in an index, or flips a bit in
    the header of a batch. If the bit is not in the checksum of the header, the checksum is computed
    again.
    """
    segments = healthy_segments()
    for _ in range(rng.randint(1, 3)):
        number = rng.randrange(len(segments))
        segment = segments[number]
        batches = split_batches(segment.log)
        target, other = (rng.randrange(len(batches)) for _ in range(2))
        batch, fault = batches[target], rng.randrange(8)
        if fault == 0:
            batches[target], batches[other] = batches[other], batch
        elif fault == 1:
            batches.insert(other, bytearray(batch))
        elif fault == 2 and len(batches) > 1:
            del batches[target]
        elif fault == 3:  # a batch of another segment
            batches.insert(target, rng.choice(split_batches(rng.choice(segments).log)))
        elif fault == 4:  # an index entry
            offsets, times = bytearray(segment.index), bytearray(segment.timeindex)
            data = rng.choice([offsets, times])
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                segments[number] = replace(segment, index=bytes(offsets), timeindex=bytes(times))
            continue
        else:
            # Base offset, epoch, attributes, last offset, max timestamp, producer, count, checksum.
            first, size = rng.choice(
                [(0, 8), (12, 4), (21, 2), (23, 4), (35, 8), (43, 8), (57, 4), (17, 4)]
            )
            position = first + size - 1 - rng.choice([0, 0, 0, size - 1])
            batch[position] ^= 1 << rng.randrange(8)
            if first != 17:
                batch[17:21] = google_crc32c.value(bytes(batch[21:])).to_bytes(4, "big")
        segments[number] = replace(segments[number], log=b"".join(batches))
    return segments


def check_damage(seed: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Asserts that vectorized checks and single-batch checks of damaged segments return the same
    report. Returns the names of the errors in the report.
    """
    rng = random.Random(seed)
    store = write_store(damage_segments(rng))
    with monkeypatch.context() as patched:
        patched.setattr(batch_scanner, "_CAPACITY", rng.choice([1, 2, 3, 4096]))
        fast = audit_store(store)
    with monkeypatch.context() as patched:
        patched.setattr(proof, "check_table", check_single_batches)
        assert audit_store(store) == fast, seed
    return {finding.name for finding in fast.errors}


def audit_store(store: CountingStore) -> AuditReport:
    options = {"path": "memory://", "subscribe": TOPIC}
    return kts_source.audit(options, level="bytes", store=store, now_ms=NOW_MS)


def test_vectorized_and_batch_by_batch_audits_of_damaged_batches_are_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = set[str]()
    for seed in range(40):
        kinds |= check_damage(f"batches {seed}", monkeypatch)
    assert kinds >= {
        *("crc", "offset-order", "out-of-bounds", "epoch"),
        *("offset-index-disagrees", "time-index-disagrees"),
    }


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(log=strategies.logs(max_steps=30))
def test_transaction_state_is_equal_for_vectorized_and_single_batches(log: BuiltLog) -> None:
    opened: Mapping[int, int] = {}
    for segment in log.segments:
        vectorized, single = Transactions(opened), Transactions(opened)
        scanner = BatchScanner(len(segment.log), max_batch_bytes=1 << 20)
        assert not list(scanner.feed(segment.log))
        table = scanner.rest()
        selected = np.random.default_rng(len(table)).random(len(table)) < 0.9
        vectorized.apply(table, selected)
        for row in range(len(table)):
            single.apply(single_row(table, row), selected[row : row + 1])
        assert vars(vectorized) == vars(single)
        opened = single.open


def single_row(table: BatchTable, row: int) -> BatchTable:
    columns = {
        name: getattr(table, name)[row : row + 1]
        for name in BatchTable.__dataclass_fields__
        if name != "markers"
    }
    marker = table.markers.get(row)
    return BatchTable(**columns, markers={} if marker is None else {0: marker})
