"""Compares the index and snapshot files that the test writer and a real broker wrote for the same
logs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from segment_format.testing import IndexBuilder, ProducerEntry
from segment_format.testing.segment import SEQUENCE_LIMIT, BatchFacts, ProducerStates
from tests.golden_data import LOCAL_TIER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTITIONS = sorted((LOCAL_TIER / "tier" / "kafka-tiered-storage").iterdir())
INDEX_INTERVAL_BYTES = {"codecs": 4096, "txn": 1024}  # configuration of the topics
HEADER = struct.Struct(">qiibIhiqqqhii")


class Batch:
    """Parses the header of a batch (magic 2) and, in control batches, the type of the marker."""

    def __init__(self, log: bytes, position: int) -> None:
        (
            self.base,
            length,
            self.leader_epoch,
            magic,
            _crc,
            self.attributes,
            last_delta,
            _base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = HEADER.unpack_from(log, position)
        assert magic == 2
        self.size = 12 + length
        self.last = self.base + last_delta
        self.transactional = bool(self.attributes & 0x10)
        self.control = bool(self.attributes & 0x20)
        # The key starts 6 bytes into the record: length, attributes, two deltas of one byte, key
        # length.
        self.marker_type = (
            int.from_bytes(log[position + 68 : position + 70], "big") if self.control else -1
        )
        self.coordinator_epoch = int.from_bytes(log[position + 73 : position + 77], "big")


def batches_of(log: bytes) -> Iterator[Batch]:
    position = 0
    while position < len(log):
        batch = Batch(log, position)
        yield batch
        position += batch.size


def parse_snapshot(data: bytes) -> set[ProducerEntry]:
    (count,) = struct.unpack_from(">i", data, 6)
    entries = struct.iter_unpack(">qhiqiqiq", data[10:])
    parsed = {ProducerEntry(*entry) for entry in entries}
    assert len(parsed) == count
    return parsed


@pytest.mark.parametrize("folder", PARTITIONS, ids=lambda folder: folder.name[:-23])
def test_indexes_and_snapshots_match_broker(folder: Path) -> None:
    states = ProducerStates()
    logs = sorted(folder.glob("*.log"))
    assert logs
    interval = INDEX_INTERVAL_BYTES[folder.name.partition("-")[0]]
    producers = 0
    for path in logs:
        builder = IndexBuilder(int(path.name[:20]), interval)
        for batch in batches_of(path.read_bytes()):
            builder.add_append([BatchFacts(batch.size, batch.last, batch.max_timestamp)])
            if batch.control:
                aborted = states.add_marker(
                    producer_id=batch.producer_id,
                    producer_epoch=batch.producer_epoch,
                    coordinator_epoch=batch.coordinator_epoch,
                    offset=batch.base,
                    timestamp=batch.max_timestamp,
                    committed=batch.marker_type == 1,
                )
                if aborted is not None:
                    builder.add_aborted(aborted)
            elif batch.producer_id >= 0:
                states.add_data(
                    producer_id=batch.producer_id,
                    producer_epoch=batch.producer_epoch,
                    last_sequence=(batch.base_sequence + batch.last - batch.base) % SEQUENCE_LIMIT,
                    base_offset=batch.base,
                    last_offset=batch.last,
                    max_timestamp=batch.max_timestamp,
                    transactional=batch.transactional,
                )
        index, timeindex, txnindex = builder.close()
        assert index == path.with_suffix(".index").read_bytes(), path.name
        assert timeindex == path.with_suffix(".timeindex").read_bytes(), path.name
        stored = path.with_suffix(".txnindex")
        assert txnindex == (stored.read_bytes() if stored.exists() else None), path.name
        snapshot = parse_snapshot(path.with_suffix(".snapshot").read_bytes())
        assert set(states.snapshot()) == snapshot, path.name
        producers += len(snapshot)
    assert producers
