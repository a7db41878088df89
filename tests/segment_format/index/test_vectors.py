"""Tests parsing of side files that Kafka's own classes wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import (
    ProducerStateEntry,
    parse_producer_snapshot,
    write_producer_snapshot,
)
from segment_format.index.sparse_indexes import OffsetIndex, TimeIndex
from segment_format.index.transaction_index import (
    AbortedTxn,
    parse_transaction_index,
    write_transaction_index,
)
from tests.segment_format.record.vectors import kafka_vectors

TIME = 1_700_000_000_000


def file(name: str) -> bytes:
    return bytes.fromhex(kafka_vectors()["files"][name])


@pytest.fixture(
    params=[bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)],
    ids=["bytes", "bytearray", "memoryview", "numpy"],
)
def convert(request: pytest.FixtureRequest) -> Any:  # noqa: ANN401
    return request.param


def test_offset_index_of_kafka_parses(convert: Any) -> None:  # noqa: ANN401
    data = file("offsetindex base100")

    index = OffsetIndex.from_bytes(convert(data), base_offset=100)

    assert index.offsets.tolist() == [137, 190]
    assert index.positions.tolist() == [4096, 8300]
    assert [index.lookup(offset).position for offset in (136, 137, 189, 190, 500)] == [
        0,
        4096,
        4096,
        8300,
        8300,
    ]
    assert index.lookup(136) == (100, 0)
    assert index.to_bytes() == data


def test_time_index_of_kafka_parses(convert: Any) -> None:  # noqa: ANN401
    data = file("timeindex base100")

    index = TimeIndex.from_bytes(convert(data), base_offset=100)

    assert index.timestamps.tolist() == [TIME, TIME + 500]
    assert index.offsets.tolist() == [137, 190]
    assert index.lookup(TIME - 1) == (-1, 100)
    assert index.lookup(TIME) == (TIME, 137)
    assert index.lookup(TIME + 499) == (TIME, 137)
    assert index.lookup(TIME + 500) == (TIME + 500, 190)
    assert index.to_bytes() == data


def test_transaction_index_of_kafka_parses(convert: Any) -> None:  # noqa: ANN401
    data = file("txnindex")

    txns = parse_transaction_index(convert(data))

    assert txns == (AbortedTxn(4242, 200, 201, 202), AbortedTxn(7, 150, 230, 210))
    assert write_transaction_index(txns) == data
    assert parse_transaction_index(convert(b"")) == ()


def test_producer_snapshot_of_kafka_parses(convert: Any) -> None:  # noqa: ANN401
    data = file("snapshot")

    entries = parse_producer_snapshot(convert(data))

    assert entries == (
        ProducerStateEntry(4242, 3, 10, 200, 0, TIME, 5, 200),
        ProducerStateEntry(7, 0, 41, 321, 2, TIME + 100, -1, -1),
    )
    assert write_producer_snapshot(entries) == data


def test_producer_snapshot_of_producer_with_only_a_marker_parses() -> None:
    data = file("snapshot-marker-only")

    entries = parse_producer_snapshot(data)

    assert entries == (ProducerStateEntry(7, 1, -1, -1, 0, TIME + 100, 9, -1),)
    assert write_producer_snapshot(entries) == data


def test_empty_producer_snapshot_parses() -> None:
    assert parse_producer_snapshot(file("snapshot-empty")) == ()
    assert write_producer_snapshot(()) == file("snapshot-empty")


def test_leader_epoch_checkpoint_of_kafka_parses(convert: Any) -> None:  # noqa: ANN401
    data = file("leader-epoch")

    checkpoint = LeaderEpochCheckpoint.from_bytes(convert(data))

    assert checkpoint.entries == (EpochEntry(0, 0), EpochEntry(2, 80))
    assert [checkpoint.epoch_for_offset(offset) for offset in (-1, 0, 79, 80, 10**12)] == [
        None,
        0,
        0,
        2,
        2,
    ]
    assert checkpoint.to_bytes() == data
