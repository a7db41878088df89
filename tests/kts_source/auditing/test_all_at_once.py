"""Batches checked all at once against batches checked one by one: equal reports."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, given, settings

from kts_source.auditing import proof
from kts_source.auditing.batches import rows_of
from kts_source.auditing.transactions import Transactions
from segment_format.kernels.batch_scanner import BatchScanner, BatchTable
from segment_format.testing import strategies
from tests.kts_source.auditing.damaged_tier import audited, healthy_segments, write_tier
from tests.kts_source.auditing.test_audit_histories import audited as audited_history
from tests.kts_source.planning.history import World, random_history

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

    from kts_source.auditing.index_checks import SegmentIndexes
    from kts_source.auditing.proof import LogCheck
    from segment_format.testing.rows import BuiltLog


def one_by_one(table: BatchTable, check: LogCheck, indexes: SegmentIndexes) -> None:
    for batch in rows_of(table):
        check.see(batch)
        indexes.see(batch)


def test_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    histories = [random_history(random.Random(f"at once {seed}")) for seed in range(20)]
    fast = [audited_history(World(history)) for history in histories]
    monkeypatch.setattr(proof, "see_all", one_by_one)
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
    monkeypatch.setattr(proof, "see_all", one_by_one)
    for place, report in zip(places, fast, strict=True):
        tier.flip(*place)
        assert audited(tier) == report
        tier.flip(*place)
    assert sum(bool(report.errors) for report in fast) > 5


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
