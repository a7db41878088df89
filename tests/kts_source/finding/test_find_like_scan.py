"""Checks that a search returns the same rows as a filtered scan, for logs with all kinds of
batches.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import kts_source
from segment_format.testing import LogBuilder, SimpleRecord
from tests.golden_data import rows
from tests.kts_source.auditing.damaged_tier import TOPIC, write_tier

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.finding.query import Conditions

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
START_MS = 1_600_000_000_000


def random_keys(chance: random.Random) -> list[bytes | None]:
    """Returns `None`, keys of all lengths for which the hash function has separate code, and copies
    of these keys with one changed bit.
    """
    lengths = [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 62, 63, 64, 65, 1 << 16]
    keys = [b"abcdefgh"[: n % 8] + b"k" * (n - n % 8) for n in lengths]
    keys += [b"\0", b"\0\0", *(chance.randbytes(chance.randrange(20)) for _ in range(8))]
    keys += [key[:-1] + bytes([key[-1] ^ 1]) for key in keys if key]
    keys += [bytes([key[0] ^ 1]) + key[1:] for key in keys if key]
    return [None, *keys]


def random_log(chance: random.Random, keys: list[bytes | None]) -> LogBuilder:
    """Returns a log of random batches with several formats and codecs, transactions and offset
    gaps. The keys of the records are chosen from `keys`.
    """
    builder = LogBuilder(index_interval_bytes=chance.choice([100, 1000, 4096]))

    def records() -> list[SimpleRecord]:
        return [
            SimpleRecord(
                chance.choice([None, b"", chance.randbytes(chance.randrange(30))]),
                chance.choice(keys if chance.random() < 0.7 else keys[:8]),
                timestamp=START_MS + chance.randrange(10**6),
            )
            for _ in range(chance.randint(1, 12))
        ]

    if chance.random() < 0.2:
        builder.append_message_set(records(), magic=chance.choice([0, 1]))
    builder.append(records())
    is_open = False
    for _ in range(chance.randint(1, 20)):
        kind = chance.random()
        if kind < 0.6:
            builder.append(records(), codec=chance.choice(CODECS))
        elif kind < 0.75:
            builder.send(7, records())
            is_open = True
        elif kind < 0.85 and is_open:
            chance.choice([builder.commit, builder.abort])(7)
            is_open = False
        elif kind < 0.92:
            builder.skip_offsets(chance.randint(1, 30))
        else:
            builder.roll()
    builder.roll()
    return builder


@pytest.mark.parametrize("seed", range(40))
def test_find_returns_the_same_rows_as_a_filtered_scan(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    keys = random_keys(chance)
    segments = list(random_log(chance, keys).build().segments)
    tier = write_tier(tmp_path / "tier", segments, compression=chance.random() < 0.5)
    tier_location = {"path": str(tier.root), "subscribe": TOPIC}
    options = {
        **tier_location,
        "columns": "key,partition,offset,value,timestamp",
        "isolationLevel": chance.choice(["read_committed", "read_uncommitted"]),
        "targetPartitionBytes": chance.choice(["1", "200", "5000", "1m"]),
    }
    if chance.random() < 0.3:
        options["where"] = chance.choice(["offset > 10", "key is null or value is not null"])
    all_rows = rows(kts_source.scan(options).to_table())
    index: dict[str, str] = {}
    if chance.random() < 0.5:
        kts_source.index_keys(tier_location, str(tmp_path / "index"))
        index = {"key_index": str(tmp_path / "index")}
    for count in (1, 2, 12, len(keys)):
        search_keys = set(chance.sample(keys, count))
        expected = [row for row in all_rows if row[0] in search_keys]
        conditions: Conditions = {"keys": search_keys, **index}  # type: ignore[typeddict-item]
        search = kts_source.find(options, **conditions)
        assert rows(search.to_table(threads=chance.choice([1, 3]))) == expected
        certificate = search.certificate
        assert certificate.matches == len(expected)
        assert certificate.complete == (not certificate.partitions[0].undecided)
        if not index and "where" not in options:
            assert certificate.records == len(all_rows)
