"""What cannot be read is in the certificate: a record that is not found lies in an unread range."""

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


def found(
    tier: DamagedTier, index: Path | None = None, **options: str
) -> tuple[pa.Table, Certificate]:
    conditions: Conditions = {"keys": [None]}
    if index is not None:
        conditions["key_index"] = str(index)
    search = kts_source.find(
        {"path": str(tier.root), "subscribe": TOPIC, "columns": COLUMNS, **options}, **conditions
    )
    return search.to_table(threads=2), search.certificate


def test_a_segment_with_a_wrong_byte(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    whole, proof = found(tier)
    assert proof.complete
    tier.flip(2, "log", 100)
    table, proof = found(tier)
    assert not proof.complete
    (unread,) = proof.partitions[0].unread
    assert (unread.start, unread.stop) == (82, 123)
    assert unread.object is not None
    assert unread.object.endswith(tier.key(2, "log"))
    assert "CRC" in unread.reason
    rest = [at for at in whole["offset"].to_pylist() if not 82 <= at < 123]
    assert table["offset"].to_pylist() == rest
    assert proof.matches == len(rest)


def test_a_segment_that_went_after_the_plan(tmp_path: Path) -> None:
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


def test_a_hole(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(1, "log", "indexes", "rsm-manifest")
    table, proof = found(tier)
    (unread,) = proof.partitions[0].unread
    assert (unread.start, unread.stop, unread.object) == (40, 82, None)
    (fault,) = proof.faults
    assert "[40, 82)" in fault
    assert not proof.complete
    assert min(table["offset"].to_pylist()) == 0


def test_a_lost_manifest_of_the_newest_segment_is_told(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.path(4, "rsm-manifest").write_bytes(b"{}")
    _, proof = found(tier)
    assert not proof.complete
    assert len(proof.faults) == 1


def test_an_undecided_transaction_ends_what_is_committed(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments()[:1])
    table, proof = found(tier, isolationLevel="read_committed")
    (part,) = proof.partitions
    assert [(one.producer_id, one.first_offset) for one in part.undecided] == [(7, part.stop)]
    assert [(one.start, one.stop) for one in part.unread] == [(part.stop, 40)]
    assert not proof.complete
    assert max(table["offset"].to_pylist()) < part.stop
    table, proof = found(tier)
    assert proof.complete
    assert table.num_rows == 40


@pytest.mark.parametrize("seed", range(60))
def test_no_record_is_missed_without_a_word(tmp_path: Path, seed: int) -> None:
    """Any harm to any object: a record is found, or an unread range has its offset, or the tier as
    a whole is at fault, or its object is named as not served, or the search fails.
    """
    chance = random.Random(seed)
    tier = write_tier(tmp_path / "t", healthy_segments(), compression=chance.random() < 0.5)
    level = chance.choice(["read_committed", "read_uncommitted"])
    options = {"isolationLevel": level, "targetPartitionBytes": chance.choice(["1", "500", "1m"])}
    whole, proof = found(tier, None, **options)
    assert proof.complete
    index = None
    if chance.random() < 0.5:
        index = tmp_path / "index"
        kts_source.index_keys({"path": str(tier.root), "subscribe": TOPIC}, str(index))
    for _ in range(chance.randint(1, 3)):
        harm(tier, chance, level)
    try:
        table, proof = found(tier, index, **options)
    except TieredKafkaError:
        return
    everything = dict(zip(whole["offset"].to_pylist(), whole["value"].to_pylist(), strict=True))
    got = dict(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert got.items() <= everything.items()
    missed = everything.keys() - got.keys()
    told = [one for part in proof.partitions for one in part.unread]
    unserved = [one for part in proof.partitions for one in part.unserved]
    untold = [at for at in missed if not any(one.start <= at < one.stop for one in told)]
    assert not untold or proof.faults or unserved
    assert proof.complete == (not told and not proof.faults)
    assert not (missed and proof.exhaustive)


def harm(tier: DamagedTier, chance: random.Random, level: str) -> None:
    number, suffix = chance.randrange(5), chance.choice(["log", "log", "indexes", "rsm-manifest"])
    if level == "read_committed" and suffix == "indexes":
        suffix = "log"  # transaction indexes have no checksum: the certificate says so
    try:
        path = tier.path(number, suffix)
    except ValueError:  # it has gone already
        return
    size = path.stat().st_size
    kind = chance.choice(["flip", "flip", "cut", "lose", "swap"])
    if kind == "flip" and size:
        tier.flip(number, suffix, chance.randrange(size), 1 << chance.randrange(8))
    elif kind == "cut" and size > 1:
        tier.resize(number, suffix, -chance.randrange(1, size))
    elif kind == "swap":
        with suppress(ValueError):  # the other one has gone
            tier.swap(number, chance.randrange(5), suffix)
    else:
        tier.lose(number, suffix)
