"""What a consumer gets from a broker that was started again on somebody's disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from tests.integration.broker import Broker

Row = tuple[str, int, int, int, bytes | None, bytes | None]


def served(broker: Broker, level: str, ends: dict[tuple[str, int], int]) -> list[Row]:
    """What a consumer gets, up to offsets."""
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
    left = set(ends)
    try:
        while left:
            message = consumer.poll(30)
            if (
                message is None
            ):  # librdkafka tells no end where the log start is the last stable one
                left -= _nothing_left(consumer, broker, left, ends, level)
                continue
            pair = (str(message.topic()), int(message.partition() or 0))
            error = message.error()
            if error is not None:
                assert error.code() == -191, error  # _PARTITION_EOF
                left.discard(pair)
                continue
            offset = int(message.offset() or 0)
            if offset < ends[pair]:
                key, value = message.key(), message.value()
                stamp = message.timestamp()[1]
                rows.append((*pair, offset, stamp, _bytes(key), _bytes(value)))
    finally:
        consumer.close()
    return sorted(rows, key=lambda row: row[:3])


def _nothing_left(
    consumer: Consumer,
    broker: Broker,
    silent: set[tuple[str, int]],
    ends: dict[tuple[str, int], int],
    level: str,
) -> set[tuple[str, int]]:
    """Partitions that are silent because the broker has no more for this consumer.

    The consumer does not count what it is not given, such as markers and what compaction left
    empty, so where it seems to be too early, Kafka's own consumer is asked.
    """
    stable = broker.last_stable_offsets(sorted(silent))
    at = {
        (one.topic, one.partition): one.offset
        for one in consumer.position([TopicPartition(*pair) for pair in silent])
    }
    for (topic, number), last in at.items():
        end = min(stable[topic, number], ends[topic, number])
        if max(last, 0) < end:
            more = broker.console_offsets(topic, number, max(last, 0), level)
            missed = [offset for offset in more if offset < end]
            assert not missed, f"{topic}-{number} is silent from {last} on, but has {missed}"
    return silent


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
