"""Checks that a search of a damaged tier lists all unread records in its certificate, which is the
report of the offsets that `kts_source.find` has searched.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import TieredKafkaError
from tests.kts_source.auditing.damaged_tier import BASES, TOPIC, healthy_segments, write_tier

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from kts_source.finding.certificate import Certificate
    from kts_source.finding.query import Conditions
    from tests.kts_source.auditing.damaged_tier import DamagedTier

COLUMNS = "partition,offset,value"


def run_search(
    tier: DamagedTier, index: Path | None = None, **options: str
) -> tuple[pa.Table, Certificate]:
    conditions: Conditions = {"keys": [None]}
    if index is not None:
        conditions["key_index"] = str(index)
    search = kts_source.find(
        {"path": str(tier.root), "subscribe": TOPIC, "columns": COLUMNS, **options}, **conditions
    )
    return search.to_table(threads=2), search.certificate


def test_segment_with_changed_byte_is_reported_as_unread(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    full_table, certificate = run_search(tier)
    assert certificate.complete
    tier.flip(2, "log", 100)
    table, certificate = run_search(tier)
    assert not certificate.complete
    (unread,) = certificate.partitions[0].unread
    assert (unread.start, unread.stop) == (82, 123)
    assert unread.object is not None
    assert unread.object.endswith(tier.key(2, "log"))
    assert "CRC" in unread.reason
    offsets = full_table["offset"].to_pylist()
    expected = [offset for offset in offsets if not 82 <= offset < 123]
    assert table["offset"].to_pylist() == expected
    assert certificate.matches == len(expected)


def test_segment_deleted_after_planning_is_reported_as_unread(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    search = kts_source.find({"path": str(tmp_path), "subscribe": TOPIC}, keys=[None])
    batches = search.batches(threads=1)
    next(batches)
    batches.close()
    tier.lose(3, "log")
    assert search.to_table()["offset"].to_pylist()[-1] >= BASES[4]
    (unread,) = search.certificate.partitions[0].unread
    assert (unread.start, unread.stop) == (BASES[3], BASES[4])
    assert not search.certificate.complete


def test_offsets_missing_in_the_tier_are_reported_as_unread(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(1, "log", "indexes", "rsm-manifest")
    table, certificate = run_search(tier)
    (unread,) = certificate.partitions[0].unread
    assert (unread.start, unread.stop, unread.object) == (40, 82, None)
    assert certificate.faults == ()  # each problem is listed once
    assert not certificate.complete
    assert min(table["offset"].to_pylist()) == 0


def test_missing_manifest_of_newest_segment_is_reported_as_fault(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.path(4, "rsm-manifest").write_bytes(b"{}")
    _, certificate = run_search(tier)
    assert not certificate.complete
    assert len(certificate.faults) == 1


def test_read_committed_search_ends_at_undecided_transaction(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments()[:1])
    table, certificate = run_search(tier, isolationLevel="read_committed")
    (partition,) = certificate.partitions
    (transaction,) = partition.undecided
    assert (transaction.producer_id, transaction.first_offset) == (7, partition.stop)
    (unread,) = partition.unread
    assert (unread.start, unread.stop) == (partition.stop, 40)
    assert not certificate.complete
    assert max(table["offset"].to_pylist()) < partition.stop
    table, certificate = run_search(tier)
    assert certificate.complete
    assert table.num_rows == 40


@pytest.mark.parametrize("seed", range(60))
def test_certificate_lists_all_missing_records_after_random_damage(
    tmp_path: Path, seed: int
) -> None:
    """The certificate explains each missing record of a search that succeeds: the record is in an
    unread range, or the certificate lists a fault of the tier or an object that does not belong
    to the log (`unserved`).
    """
    chance = random.Random(seed)
    tier = write_tier(tmp_path / "t", healthy_segments(), compression=chance.random() < 0.5)
    level = chance.choice(["read_committed", "read_uncommitted"])
    options = {"isolationLevel": level, "targetPartitionBytes": chance.choice(["1", "500", "1m"])}
    full_table, certificate = run_search(tier, None, **options)
    assert certificate.complete
    index = None
    if chance.random() < 0.5:
        index = tmp_path / "index"
        kts_source.index_keys({"path": str(tier.root), "subscribe": TOPIC}, str(index))
    for _ in range(chance.randint(1, 3)):
        damage(tier, chance, level)
    try:
        table, certificate = run_search(tier, index, **options)
    except TieredKafkaError:
        return
    expected = _values_by_offset(full_table)
    values = _values_by_offset(table)
    assert values.items() <= expected.items()
    missing = expected.keys() - values.keys()
    unread = [span for partition in certificate.partitions for span in partition.unread]
    unserved = [span for partition in certificate.partitions for span in partition.unserved]
    unexplained = [
        offset for offset in missing if not any(span.start <= offset < span.stop for span in unread)
    ]
    assert not unexplained or certificate.faults or unserved
    assert certificate.complete == (not unread and not certificate.faults)
    assert not (missing and certificate.exhaustive)


def _values_by_offset(table: pa.Table) -> dict[int, bytes | None]:
    return dict(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def damage(tier: DamagedTier, chance: random.Random, level: str) -> None:
    number, suffix = chance.randrange(5), chance.choice(["log", "log", "indexes", "rsm-manifest"])
    if level == "read_committed" and suffix == "indexes":
        suffix = "log"  # transaction indexes have no checksum, as the certificate states
    try:
        path = tier.path(number, suffix)
    except ValueError:  # the object was deleted before
        return
    size = path.stat().st_size
    kind = chance.choice(["flip", "flip", "cut", "lose", "swap"])
    if kind == "flip" and size:
        tier.flip(number, suffix, chance.randrange(size), 1 << chance.randrange(8))
    elif kind == "cut" and size > 1:
        tier.resize(number, suffix, -chance.randrange(1, size))
    elif kind == "swap":
        with suppress(ValueError):  # the other object was deleted before
            tier.swap(number, chance.randrange(5), suffix)
    else:
        tier.lose(number, suffix)
