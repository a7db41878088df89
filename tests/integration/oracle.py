"""Reads ranges of offsets with librdkafka's consumer.

Tests compare the rows of scans with the rows of this consumer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message


class Row(NamedTuple):
    """A record with the fields of Spark's Kafka source.

    Attributes:
        offset: Offset of the record in its partition.
        timestamp: Milliseconds since 1970-01-01 UTC.
        timestamp_type: 0 for CreateTime, 1 for LogAppendTime.
        key: Bytes of the key; None if the key is null.
        value: Bytes of the value; None if the value is null.
        headers: Pairs of name and value in the order of the record; may be empty.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str | bytes | None, ...], ...]


def to_row(message: Message) -> Row:
    """Converts a received message to a row. The message must not be an error."""
    offset = message.offset()
    assert offset is not None
    kind, timestamp = message.timestamp()
    headers = tuple(tuple(header) for header in message.headers() or ())
    return Row(offset, timestamp, kind - 1, message.key(), message.value(), headers)


def _open_consumer(
    bootstrap: str, isolation: str, settings: Mapping[str, str | int], errors: list[str]
) -> Consumer:
    """Opens a consumer that commits no offsets and appends error messages to `errors`."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "never-committed",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "check.crcs": "true",
            "fetch.wait.max.ms": 20,
            "allow.auto.create.topics": "false",
            "log_level": 0,
            "error_cb": lambda error: errors.append(str(error)),
            **settings,
        }
    )


def consume_range(
    bootstrap: str,
    topic: str,
    partition: int,
    start: int,
    stop: int,
    *,
    isolation: str = "read_uncommitted",
    seconds: float = 60,
    settings: Mapping[str, str | int] | None = None,
) -> list[Row]:
    """Reads the offsets [start, stop), even if producers write more records concurrently.

    Args:
        bootstrap: Address of the cluster.
        topic: Name of the topic.
        partition: Number of the partition.
        start: First offset, at least the log start.
        stop: Offset after the last one. At most the high watermark for read_uncommitted, or the
            last stable offset for read_committed.
        isolation: `read_committed` or `read_uncommitted`.
        seconds: Timeout.
        settings: Additional librdkafka settings, for example for authentication.

    Raises:
        TimeoutError: The consumer did not reach `stop`. The message contains the last offset.
        KafkaException: The broker returned an error, for example because `start` is out of range.
    """
    rows: list[Row] = []
    if start >= stop:
        return rows
    errors: list[str] = []
    consumer = _open_consumer(bootstrap, isolation, settings or {}, errors)
    deadline = time.monotonic() + seconds
    reached = start
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        while reached < stop:
            if time.monotonic() > deadline:
                position = f"{topic}-{partition} [{start}, {stop})"
                progress = f"at {reached} after {seconds} s, {len(rows)} rows, {errors[-1:]}"
                raise TimeoutError(f"{position}: {progress}")
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                # The consumer does not return control batches and aborted records. It has passed
                # them when it returns a later record or the end of the partition.
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    # librdkafka looks for a group coordinator, although no group is used here.
                    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                        continue
                    raise KafkaException(error)
                offset = message.offset()
                assert offset is not None
                reached = max(reached, offset if error else offset + 1)
                if error is None and offset < stop:
                    rows.append(to_row(message))
    finally:
        consumer.close()
    return rows
