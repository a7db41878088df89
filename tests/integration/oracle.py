"""Reads ranges of offsets with librdkafka's consumer, as reference for the product's reads."""

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
        offset: Offset in its partition.
        timestamp: Milliseconds since 1970.
        timestamp_type: 0: CreateTime, 1: LogAppendTime.
        key: None for null.
        value: None for null.
        headers: In order; an empty tuple if there are none.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str | bytes | None, ...], ...]


def to_row(message: Message) -> Row:
    """Converts a message without error to a row."""
    offset = message.offset()
    assert offset is not None
    kind, timestamp = message.timestamp()
    headers = tuple(tuple(header) for header in message.headers() or ())
    return Row(offset, timestamp, kind - 1, message.key(), message.value(), headers)


def _open_consumer(
    bootstrap: str, isolation: str, settings: Mapping[str, str | int], errors: list[str]
) -> Consumer:
    """Opens a consumer that commits no offsets and appends its errors to a list."""
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
    """Reads [start, stop) even if more is produced in the meantime.

    Args:
        bootstrap: Address of the cluster.
        topic: Its name.
        partition: Its number.
        start: First offset, inclusive, not below the log start.
        stop: Last offset, exclusive, not above the end that `isolation` can read.
        isolation: `read_committed` or `read_uncommitted`.
        seconds: Timeout.
        settings: Additional librdkafka settings, such as those of security.

    Raises:
        TimeoutError: `stop` was not reached; contains the progress.
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
                # The consumer does not return control batches and aborted records. A later record,
                # or the end of the partition, shows that it has passed them.
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    # This consumer uses no group, but librdkafka looks for the group's coordinator.
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
