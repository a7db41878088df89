"""Batches checked all at once against batches checked one by one: equal reports."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
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
    audited,
    healthy_segments,
    write_tier,
)
from tests.kts_source.auditing.test_audit_histories import audited as audited_history
from tests.kts_source.auditing.test_state import CountingStore, store_of
from tests.kts_source.planning.history import World, random_history

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from kts_source.auditing.batch_checks import LogCheck, SegmentIndexes
    from kts_source.auditing.report import AuditReport
    from segment_format.testing import SegmentFiles
    from segment_format.testing.log_builder import BuiltLog


def one_by_one(table: BatchTable, check: LogCheck, indexes: SegmentIndexes) -> None:
    for batch in rows_of(table):
        check.see(batch)
        indexes.see(batch)


def test_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    histories = [random_history(random.Random(f"at once {seed}")) for seed in range(20)]
    fast = [audited_history(World(history)) for history in histories]
    monkeypatch.setattr(proof, "check_table", one_by_one)
    assert fast == [audited_history(World(history)) for history in histories]


def test_flipped_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    tier = write_tier(tmp_path, healthy_segments())
    # Heads of batches and entries of indexes, where nearly every bit counts.
    places = [(number, "log", at) for number in range(5) for at in tier.positions(number)]
    places = [(n, suffix, at + rng.randrange(61)) for n, suffix, at in rng.sample(places, 9)]
    places += [(rng.randrange(5), "indexes", rng.randrange(100)) for _ in range(6)]
    fast = []
    for place in places:
        tier.flip(*place)
        fast.append(audited(tier))
        tier.flip(*place)
    monkeypatch.setattr(proof, "check_table", one_by_one)
    for place, report in zip(places, fast, strict=True):
        tier.flip(*place)
        assert audited(tier) == report
        tier.flip(*place)
    assert sum(bool(report.errors) for report in fast) > 5


def batches_of(log: bytes) -> list[bytearray]:
    found, at = [], 0
    while at < len(log):
        size = 12 + int.from_bytes(log[at + 8 : at + 12], "big")
        found.append(bytearray(log[at : at + size]))
        at += size
    return found


def damaged(rng: random.Random) -> list[SegmentFiles]:
    """The healthy segments with one to three faults, most of them under checksums that fit."""
    segments = healthy_segments()
    for _ in range(rng.randint(1, 3)):
        number = rng.randrange(len(segments))
        one = segments[number]
        batches = batches_of(one.log)
        at, other = (rng.randrange(len(batches)) for _ in range(2))
        batch, what = batches[at], rng.randrange(8)
        if what == 0:
            batches[at], batches[other] = batches[other], batch
        elif what == 1:
            batches.insert(other, bytearray(batch))
        elif what == 2 and len(batches) > 1:
            del batches[at]
        elif what == 3:  # of another segment
            batches.insert(at, rng.choice(batches_of(rng.choice(segments).log)))
        elif what == 4:  # an entry of an index
            offsets, times = bytearray(one.index), bytearray(one.timeindex)
            data = rng.choice([offsets, times])
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                segments[number] = replace(one, index=bytes(offsets), timeindex=bytes(times))
            continue
        else:
            # Base offset, epoch, attributes, last offset, largest time, producer, count.
            first, size = rng.choice(
                [(0, 8), (12, 4), (21, 2), (23, 4), (35, 8), (43, 8), (57, 4), (17, 4)]
            )
            place = first + size - 1 - rng.choice([0, 0, 0, size - 1])
            batch[place] ^= 1 << rng.randrange(8)
            if first != 17:
                batch[17:21] = google_crc32c.value(bytes(batch[21:])).to_bytes(4, "big")
        segments[number] = replace(segments[number], log=b"".join(batches))
    return segments


def check_damage(seed: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The kinds of faults that both ways have found."""
    rng = random.Random(seed)
    store = store_of(damaged(rng))
    with monkeypatch.context() as patched:
        patched.setattr(batch_scanner, "_ROOM", rng.choice([1, 2, 3, 4096]))
        fast = audited_store(store)
    with monkeypatch.context() as patched:
        patched.setattr(proof, "check_table", one_by_one)
        assert audited_store(store) == fast, seed
    return {one.name for one in fast.errors}


def audited_store(store: CountingStore) -> AuditReport:
    options = {"path": "memory://", "subscribe": TOPIC}
    return kts_source.audit(options, level="bytes", store=store, now_ms=NOW_MS)


def test_batches_that_are_moved_and_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = set[str]()
    for seed in range(40):
        kinds |= check_damage(f"batches {seed}", monkeypatch)
    assert kinds >= {
        *("crc", "offset-order", "out-of-bounds", "epoch"),
        *("offset-index-disagrees", "time-index-disagrees"),
    }


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(log=strategies.logs(max_steps=30))
def test_transactions(log: BuiltLog) -> None:
    opened: Mapping[int, int] = {}
    for segment in log.segments:
        at_once, single = Transactions(opened), Transactions(opened)
        scanner = BatchScanner(len(segment.log), max_batch_bytes=1 << 20)
        assert not list(scanner.feed(segment.log))
        table = scanner.rest()
        wanted = np.random.default_rng(len(table)).random(len(table)) < 0.9
        at_once.see(table, wanted)
        for row in range(len(table)):
            single.see(part_of(table, row), wanted[row : row + 1])
        assert vars(at_once) == vars(single)
        opened = single.open


def part_of(table: BatchTable, row: int) -> BatchTable:
    columns = {
        name: getattr(table, name)[row : row + 1]
        for name in BatchTable.__dataclass_fields__
        if name != "markers"
    }
    marker = table.markers.get(row)
    return BatchTable(**columns, markers={} if marker is None else {0: marker})
