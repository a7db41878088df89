from __future__ import annotations

import base64
import json
import uuid
from typing import Any

import pytest

from segment_format.kafka_uuid import uuid_from_text
from segment_format.metadata.model import RemoteLogSegmentMetadata
from segment_format.metadata.remote_log_segment_metadata import (
    DEFAULT_METADATA_PARTITIONS,
    metadata_partition,
    murmur2,
    parse_metadata_record,
)
from tests.golden_data import GOLDEN, VECTORS, summary

CASES: list[dict[str, Any]] = json.loads((VECTORS / "kafka-vectors.json").read_text())[
    "metadata_partition"
]


@pytest.mark.parametrize("case", CASES)
def test_metadata_partition_matches_kafka_vectors(case: dict[str, Any]) -> None:
    partitions = metadata_partition(
        uuid_from_text(case["topic_id"]), case["partition"], case["num_partitions"]
    )
    assert partitions == case["metadata_partition"]


def test_metadata_partition_matches_broker() -> None:
    count = summary()["metadata_topic_partitions"]
    partitions_seen = set()
    for line in (GOLDEN / "metadata-topic" / "records.jsonl").read_text().splitlines():
        document = json.loads(line)
        record = parse_metadata_record(base64.b64decode(document["value"]))
        if isinstance(record, RemoteLogSegmentMetadata):
            partition = record.segment_id.topic_id_partition
            partitions = metadata_partition(partition.topic_id, partition.partition, count)
            assert partitions == document["partition"]
            partitions_seen.add(partitions)
    assert partitions_seen == set(range(count))


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        # From Kafka's own UtilsTest, as signed numbers.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_matches_kafka(text: bytes, hashed: int) -> None:
    assert murmur2(text) == hashed % 2**32


def test_metadata_topic_has_50_partitions_by_default() -> None:
    topic_id = uuid_from_text("LWgrMmVrT0a__7a4SasuPA")
    assert DEFAULT_METADATA_PARTITIONS == 50
    assert [metadata_partition(topic_id, partition) for partition in (0, 1, 2, 17)] == [
        1,
        18,
        30,
        8,
    ]
    with pytest.raises(ValueError, match="must be at least 1"):
        metadata_partition(uuid.UUID(int=1), 0, 0)
