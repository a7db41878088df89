"""A flipped bit of a transaction index gives the right rows or an error."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import TieredKafkaError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.tier import Tier
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format.testing import BuiltLog

PRODUCERS = (1, 2, 3, 2**40)


def built(seed: int) -> BuiltLog:
    """Segments with interleaved, long, empty, fenced and plain transactions of four producers."""
    source = random.Random(seed)
    builder = LogBuilder(index_interval_bytes=source.choice((0, 150, 4096)))
    open_now: set[int] = set()
    epoch = dict.fromkeys(PRODUCERS, 0)
    for _ in range(3):
        for _ in range(14):
            producer = source.choice(PRODUCERS)
            action = source.random()
            if producer in open_now and action < 0.45:
                if source.random() < 0.3:  # a fenced producer's transaction ends at a new epoch
                    epoch[producer] += 1
                end = builder.abort if source.random() < 0.6 else builder.commit
                end(producer, producer_epoch=epoch[producer])
                open_now.discard(producer)
            elif action < 0.85:
                count = source.randint(1, 3)
                records = [SimpleRecord(b"v" * source.randint(1, 30)) for _ in range(count)]
                builder.send(producer, records, producer_epoch=epoch[producer])
                open_now.add(producer)
            elif action < 0.92:
                builder.append([SimpleRecord(b"plain")])
            elif producer not in open_now:
                builder.abort(producer, producer_epoch=epoch[producer])  # without data
        builder.roll()
    for producer in sorted(open_now):
        builder.abort(producer, producer_epoch=epoch[producer])
    builder.append([SimpleRecord(b"last")])
    builder.roll()
    return builder.build()


def written(log: BuiltLog, *, local: bool) -> dict[str, bytes]:
    objects: dict[str, bytes] = {}
    writer = LocalTierWriter(objects, topic="t") if local else AivenTierWriter(objects, topic="t")
    for files in log.segments:
        if files.log:
            writer.write_segment(files)
    return objects


def read(objects: dict[str, bytes], local: bool, more: dict[str, str]) -> list[int]:
    layout = {"layout": "local-tiered-storage"} if local else {}
    given = {"path": "/", "subscribe": "t", "isolationLevel": "read_committed", **layout, **more}
    tier = Tier(MemoryStore(objects))
    rows = run(plan_scan(parse_options(given), tier), given, tier)
    return [int(offset) for offset in rows["offset"].to_pylist()]


def flips(
    log: BuiltLog, objects: dict[str, bytes], *, local: bool
) -> Iterator[tuple[int, int, int, dict[str, bytes]]]:
    """Segment, byte and bit of its index, and the tier with that bit flipped."""
    for files in log.segments:
        if not files.txnindex:
            continue
        key = next(
            key
            for key in objects
            if key.endswith(".txnindex" if local else ".indexes")
            and f"/{files.base_offset:020d}-" in key
        )
        whole = objects[key]
        start = whole.index(files.txnindex)
        for at in range(len(files.txnindex)):
            for bit in range(8):
                damaged = bytearray(whole)
                damaged[start + at] ^= 1 << bit
                yield files.base_offset, at, bit, {**objects, key: bytes(damaged)}


def outcomes(
    seed: int, *, local: bool, more: dict[str, str], start: int, stop: int, most: int = 1 << 20
) -> int:
    """Reads the tier with each bit flipped, or `most` of those that keep the index plausible;
    returns how many flips were refused.
    """
    log = built(seed)
    objects = written(log, local=local)
    expected = [row.offset for row in log.rows("read_committed", start=start, stop=stop)]
    assert read(objects, local, more) == expected
    refused = 0
    wrong = []
    damages = list(flips(log, objects, local=local))
    if most < len(damages):
        low = [damage for damage in damages if damage[1] % 34 in (9, 17, 25)]
        damages = random.Random(seed).sample(low, min(most, len(low)))
    for base, at, bit, damaged in damages:
        if at % 34 in range(3, 7) and bit:  # high bytes of a producer id are alike
            continue
        try:
            rows = read(damaged, local, more)
        except TieredKafkaError as error:
            refused += (error.topic, error.partition) == ("t", 0)
        else:
            if rows != expected:
                wrong.append((base, at, bit))
    assert wrong == []
    return refused


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_flipped_bit_of_a_transaction_index_changes_no_row(seed: int, local: bool) -> None:
    assert outcomes(seed, local=local, more={}, start=0, stop=1 << 40) > 50


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bit_changes_no_row_of_small_slices(seed: int) -> None:
    more = {"targetPartitionBytes": "1"}
    refused = outcomes(seed, local=seed % 2 == 0, more=more, start=0, stop=1 << 40, most=60)
    assert refused > 10
