"""Tests that configurations of topics are parsed from a metadata log as Kafka's controllers write
it.
"""

from __future__ import annotations

import json
import struct
import uuid

import pytest

from segment_format import iter_batches
from segment_format.errors import InvalidMetadataError
from segment_format.kafka_uuid import uuid_to_text
from segment_format.metadata.topic_configs import topic_configs
from segment_format.testing import LogBuilder, SimpleRecord
from tests.golden_data import GOLDEN

DISK = GOLDEN / "metadata-log" / "disk" / "__cluster_metadata-0"
ORDERS, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
BEGIN, COMMIT, ABORT = b"\x01\x17\x00\x00\x00", b"\x01\x18\x00\x00", b"\x01\x19\x00\x00\x00"
NO_OP = b"\x01\x14\x00\x00"


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def topic(name: str, topic_id: uuid.UUID) -> bytes:
    return b"\x01\x02\x00" + text(name) + topic_id.bytes + b"\0"


def removed(topic_id: uuid.UUID) -> bytes:
    return b"\x01\x09\x00" + topic_id.bytes + b"\0"


def config(name: str, value: str | None, *, of: str = "orders", resource: int = 2) -> bytes:
    return (
        b"\x01\x04\x00" + struct.pack(">b", resource) + text(of) + text(name) + text(value) + b"\0"
    )


def configs(*values: bytes) -> dict[uuid.UUID, dict[str, str]]:
    """Returns the configurations after a log with these records."""
    builder = LogBuilder()
    for value in values:
        builder.append([SimpleRecord(value, None)])
    log = b"".join(files.log for files in builder.build().segments)
    return topic_configs(iter_batches(log))


def test_snapshot_and_log_have_the_configurations_that_the_broker_reported() -> None:
    (snapshot,) = DISK.glob("*.checkpoint")
    end = int(snapshot.name[:20])
    logs = b"".join(path.read_bytes() for path in sorted(DISK.glob("*.log")))
    batches = [
        *iter_batches(snapshot.read_bytes()),
        *(batch for batch in iter_batches(logs) if batch.base_offset >= end),
    ]
    found = {uuid_to_text(topic_id): values for topic_id, values in topic_configs(batches).items()}
    assert found == json.loads((DISK.parents[1] / "configs.json").read_text())
    assert topic_configs(iter_batches(logs)) == topic_configs(batches)  # the log is whole, too


def test_last_value_of_a_configuration_counts() -> None:
    records = [
        config("retention.ms", "1"),
        topic("orders", ORDERS),
        NO_OP,
        config("cleanup.policy", "compact"),
        config("retention.ms", "2"),
        config("segment.bytes", "3"),
        config("segment.bytes", None),
        config("retention.ms", "4", of="1", resource=4),
        config("retention.ms", "5", of="other"),
        topic("other", OTHER),
    ]
    assert configs(*records) == {
        ORDERS: {"retention.ms": "2", "cleanup.policy": "compact"},
        OTHER: {"retention.ms": "5"},
    }


def test_topic_that_was_created_again_has_only_its_own_configurations() -> None:
    records = [
        topic("orders", ORDERS),
        config("retention.ms", "1"),
        removed(ORDERS),
        topic("orders", OTHER),
        config("segment.bytes", "2"),
    ]
    assert configs(*records) == {OTHER: {"segment.bytes": "2"}}


def test_records_of_a_metadata_transaction_count_if_it_commits() -> None:
    start = [topic("orders", ORDERS), BEGIN, config("retention.ms", "1")]
    assert configs(*start) == {ORDERS: {}}
    assert configs(*start, ABORT, config("a", "2")) == {ORDERS: {"a": "2"}}
    assert configs(*start, COMMIT, config("a", "2")) == {ORDERS: {"retention.ms": "1", "a": "2"}}


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (b"", "frame version"),
        (b"\x02\x02\x00", "frame version 2"),
        (b"\x01\x04\x01" + config("a", "1")[3:], "version 1 of record type 4"),
        (topic("orders", ORDERS)[:12], "topic id"),
        (config("a", "1")[:-3], "value length"),
    ],
)
def test_malformed_record_is_an_error(record: bytes, problem: str) -> None:
    with pytest.raises(InvalidMetadataError, match=problem):
        configs(record)
