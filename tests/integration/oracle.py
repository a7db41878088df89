"""What a consumer of librdkafka is given of one range of offsets: the truth for our own reads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import Message


class Row(NamedTuple):
    """One record, as Spark's Kafka source shows it.

    Attributes:
        offset: In its partition.
        timestamp: Milliseconds since 1970.
        timestamp_type: 0: CreateTime, 1: LogAppendTime.
        key: Null is None.
        value: Null is None.
        headers: In their order; none at all is an empty tuple.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str | bytes | None, ...], ...]


def row_of(message: Message) -> Row:
    """The record of a message that is no error."""
    at = message.offset()
    assert at is not None
    kind, timestamp = message.timestamp()
    headers = tuple(tuple(header) for header in message.headers() or ())
    return Row(at, timestamp, kind - 1, message.key(), message.value(), headers)


def consumed(
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
    """Reads [start, stop) and nothing more, whatever is produced meanwhile.

    Args:
        bootstrap: Address of the cluster.
        topic: Its name.
        partition: Its number.
        start: First offset, inclusive, not below the log start.
        stop: Last offset, exclusive, not above the end that `isolation` lets a reader see.
        isolation: `read_committed` or `read_uncommitted`.
        seconds: How long this may take.
        settings: More of librdkafka's settings, such as those of security.

    Raises:
        TimeoutError: `stop` was not reached; says how far it came.
        KafkaException: The broker refuses, for example because `start` is out of range.
    """
    rows: list[Row] = []
    if start >= stop:
        return rows
    heard: list[str] = []
    consumer = Consumer(
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
            "error_cb": lambda error: heard.append(str(error)),
            **(settings or {}),
        }
    )
    deadline = time.monotonic() + seconds
    reached = start
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        while reached < stop:
            if time.monotonic() > deadline:
                where = f"{topic}-{partition} [{start}, {stop})"
                told = f"at {reached} after {seconds} s, {len(rows)} rows, {heard[-1:]}"
                raise TimeoutError(f"{where}: {told}")
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                # Control batches and aborted records are never seen; they were passed when a
                # later record comes, or the end of what may be read.
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    # No group is used, but librdkafka looks for its coordinator.
                    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                        continue
                    raise KafkaException(error)
                at = message.offset()
                assert at is not None
                reached = max(reached, at if error else at + 1)
                if error is None and at < stop:
                    rows.append(row_of(message))
    finally:
        consumer.close()
    return rows
