from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from segment_format.errors import CorruptRecordError
from segment_format.record.batch_header import CompressionType, TimestampType
from segment_format.record.records import DecodedBatch, iter_batches
from tests.segment_format.codec_exceptions import CODEC_EXCEPTIONS
from tests.segment_format.record.vectors import (
    CODEC_NUMBERS,
    batch_with_payload,
    kafka_vectors,
    record_set,
)

TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
    "NoTimestampType": TimestampType.NO_TIMESTAMP_TYPE,
}
# Maps Kafka's name of a codec case to its entry in the table of deliberate differences.
EXCEPTIONS = {
    ("lz4", "linked-block flag"): "lz4 linked blocks",
    ("lz4", "wrong content checksum"): "lz4 wrong content checksum",
    ("gzip", "count 0"): "gzip batch without records",
}


def as_vector(batch: DecodedBatch) -> dict[str, Any]:
    """Converts a decoded batch to the form of the vectors file."""

    def text(value: bytes | None) -> str | None:
        return None if value is None else value.hex()

    return {
        "base": batch.base_offset,
        "last": batch.last_offset,
        "magic": batch.magic,
        "max_ts": batch.max_timestamp,
        "ts_type": next(
            name for name, kind in TIMESTAMP_TYPES.items() if kind is batch.timestamp_type
        ),
        "control": batch.is_control_batch,
        "transactional": batch.is_transactional,
        "producer_id": batch.producer_id,
        "crc": batch.crc,
        "leader_epoch": batch.leader_epoch,
        "delete_horizon": batch.delete_horizon,
        "records": [
            {
                "offset": record.offset,
                "ts": record.timestamp,
                "key": text(record.key),
                "value": text(record.value),
                "headers": [[key, text(value)] for key, value in record.headers],
                "seq": record.sequence,
            }
            for record in batch.records
        ],
    }


@pytest.mark.parametrize("vector", kafka_vectors()["batches"], ids=lambda vector: vector["name"])
def test_record_sets_decode_as_in_kafka(vector: dict[str, Any]) -> None:
    decoded = list(iter_batches(bytes.fromhex(vector["hex"])))

    assert [as_vector(batch) for batch in decoded] == vector["batches"]
    for batch in decoded:
        for record in batch.records:
            assert record.timestamp_type is batch.timestamp_type
            assert record.leader_epoch == (None if batch.leader_epoch < 0 else batch.leader_epoch)


def test_record_sets_in_one_log_have_their_positions_in_the_log() -> None:
    sets = [bytes.fromhex(vector["hex"]) for vector in kafka_vectors()["batches"]]
    expected = [batch for vector in kafka_vectors()["batches"] for batch in vector["batches"]]

    decoded = list(iter_batches(b"".join(sets)))

    assert [as_vector(batch) for batch in decoded] == expected
    assert [batch.position for batch in decoded] == np.cumsum(
        [0, *(batch.size for batch in decoded[:-1])]
    ).tolist()


@pytest.mark.parametrize(
    "convert",
    [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)],
    ids=["bytes", "bytearray", "memoryview", "numpy"],
)
@pytest.mark.parametrize("vector", kafka_vectors()["batches"], ids=lambda vector: vector["name"])
def test_log_may_be_any_buffer(vector: dict[str, Any], convert: Any) -> None:  # noqa: ANN401
    decoded = list(iter_batches(convert(bytes.fromhex(vector["hex"]))))

    assert [as_vector(batch) for batch in decoded] == vector["batches"]


@pytest.mark.parametrize(
    "case", kafka_vectors()["codec"], ids=lambda case: f"{case['codec']}-{case['case']}"
)
def test_codec_cases_match_kafka(case: dict[str, Any]) -> None:
    batch = batch_with_payload(
        bytes.fromhex(case["payload"]),
        codec=CODEC_NUMBERS[case["codec"]],
        count=case["declared_count"],
    )
    kafka_accepts = case["kafka"] == "OK"
    exception = EXCEPTIONS.get((case["codec"], case["case"]))
    if exception is None:
        accepted = kafka_accepts
    else:
        entry = CODEC_EXCEPTIONS[exception]
        assert entry.kafka_accepts == kafka_accepts
        accepted = entry.accepted

    if not accepted:
        with pytest.raises(CorruptRecordError) as caught:
            list(iter_batches(batch))
        assert caught.value.position is not None
        return
    (decoded,) = iter_batches(batch)
    (reference,) = iter_batches(record_set("v2-none-createtime"))
    assert decoded.compression_type is CompressionType(CODEC_NUMBERS[case["codec"]])
    assert decoded.records == reference.records[: case["declared_count"]]


def test_all_codec_differences_are_documented() -> None:
    names = {(case["codec"], case["case"]) for case in kafka_vectors()["codec"]}

    assert set(EXCEPTIONS) <= names
    assert set(EXCEPTIONS.values()) == set(CODEC_EXCEPTIONS)
    for entry in CODEC_EXCEPTIONS.values():
        assert entry.accepted != entry.kafka_accepts
        assert entry.reason
