"""Runs a consumer that receives every record of a topic before retention deletes it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.integration.admin import wait_until
from tests.integration.oracle import to_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.integration.hybrid import Rows

PartitionKey = tuple[str, int]


class FollowingConsumer:
    """Reads partitions from offset 0 during a `with` block.

    It keeps reading if the broker deletes records or restarts.

    Args:
        bootstrap: Address of the cluster.
        partition_keys: Topics and numbers of the partitions to read; they must still be empty.
        isolation: `read_committed` or `read_uncommitted`.

    Attributes:
        rows: All rows that the consumer received, by partition and in offset order.
    """

    def __init__(
        self, bootstrap: str, partition_keys: Sequence[PartitionKey], isolation: str
    ) -> None:
        self.rows: Rows = {key: [] for key in partition_keys}
        self._reached = dict.fromkeys(partition_keys, 0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=isolation, daemon=True)
        self._refused: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "never-committed",
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "allow.auto.create.topics": "false",
                "log_level": 0,
            }
        )

    def __enter__(self) -> Self:
        self._consumer.assign([TopicPartition(*key, 0) for key in self.rows])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(60)
        self._consumer.close()

    def wait_for(self, ends: Mapping[PartitionKey, int]) -> None:
        """Waits until the consumer has read all offsets below `ends`, by partition.

        Raises:
            AssertionError: The broker deleted records before the consumer read them. In this case,
                `rows` is not complete.
        """
        wait_until(
            lambda: bool(self._refused) or all(self._reached[key] >= ends[key] for key in ends)
        )
        assert not self._refused, self._refused

    def _run(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(10_000, 0.2):
                error, offset = message.error(), message.offset()
                topic, partition = message.topic(), message.partition()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    assert topic is not None
                    assert partition is not None
                    assert offset is not None
                    self._reached[topic, partition] = max(self._reached[topic, partition], offset)
                elif error is None:
                    assert topic is not None
                    assert partition is not None
                    row = to_row(message)
                    self.rows[topic, partition].append(row)
                    self._reached[topic, partition] = row.offset + 1
                elif error.code() in (
                    KafkaError.OFFSET_OUT_OF_RANGE,
                    KafkaError._AUTO_OFFSET_RESET,
                ):
                    self._refused.append(str(error))
