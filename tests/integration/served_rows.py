"""Reads all records that a broker returns to a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from tests.integration.broker import Broker

Row = tuple[str, int, int, int, bytes | None, bytes | None]


def consume_until(broker: Broker, level: str, ends: dict[tuple[str, int], int]) -> list[Row]:
    """Consumes each partition in `ends` from its log start to its end offset, which is exclusive.
    Returns the rows of all partitions, sorted by topic, partition and offset.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "x",
            "enable.auto.commit": False,
            "isolation.level": level,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(*pair, 0) for pair in ends])
    rows: list[Row] = []
    pending = set(ends)
    try:
        while pending:
            message = consumer.poll(30)
            if (
                message is None
            ):  # librdkafka reports no EOF if the log start is the last stable offset
                pending -= _assert_all_received(consumer, broker, pending, ends, level)
                continue
            pair = (str(message.topic()), int(message.partition() or 0))
            error = message.error()
            if error is not None:
                assert error.code() == -191, error  # _PARTITION_EOF
                pending.discard(pair)
                continue
            offset = int(message.offset() or 0)
            if offset < ends[pair]:
                key, value = message.key(), message.value()
                stamp = message.timestamp()[1]
                rows.append((*pair, offset, stamp, _bytes(key), _bytes(value)))
    finally:
        consumer.close()
    return sorted(rows, key=lambda row: row[:3])


def _assert_all_received(
    consumer: Consumer,
    broker: Broker,
    silent: set[tuple[str, int]],
    ends: dict[tuple[str, int], int],
    level: str,
) -> set[tuple[str, int]]:
    """Asserts that the consumer has received all rows of the partitions in `silent`; returns
    `silent`.

    `consumer` receives no records of these partitions anymore. If its position is below the
    expected end, rows may be missing, or the remaining records are never returned, such as markers.
    In this case, Kafka's console consumer reads the remaining offsets.
    """
    stable = broker.last_stable_offsets(sorted(silent))
    positions = {
        (position.topic, position.partition): position.offset
        for position in consumer.position([TopicPartition(*pair) for pair in silent])
    }
    for (topic, number), last in positions.items():
        end = min(stable[topic, number], ends[topic, number])
        if max(last, 0) < end:
            more = broker.console_offsets(topic, number, max(last, 0), level)
            missed = [offset for offset in more if offset < end]
            assert not missed, f"{topic}-{number} is silent from {last} on, but has {missed}"
    return silent


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
