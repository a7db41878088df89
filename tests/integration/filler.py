"""Sends random records with idempotent, compressing and transactional producers."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator

BASE_MS = 1_700_000_000_000
STEP_MS = 1_000
"""Time between records in ms: record n of a partition has the create time `BASE_MS + n * STEP_MS`.
Some records have an earlier time.
"""
LATE_MS = 90_000

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Filler:
    """Sends random records to partitions of a cluster.

    Two fillers with the same seed and the same calls send the same records.

    Args:
        bootstrap: Address of the cluster.
        seed: Seed of keys, values and headers.
    """

    def __init__(self, bootstrap: str, seed: int) -> None:
        self._bootstrap = bootstrap
        self._random = random.Random(seed)
        self._sent: dict[tuple[str, int], Iterator[int]] = {}
        self._producers: dict[str, Producer] = {}

    def producer(self, name: str, **settings: str | int) -> Producer:
        """Returns the producer with this name; the first call creates it with these settings."""
        if name not in self._producers:
            config: dict[str, str | int] = {
                "bootstrap.servers": self._bootstrap,
                "log_level": 0,
                "linger.ms": 20,
                "batch.num.messages": 40,
                "enable.idempotence": "true",
                **settings,
            }
            self._producers[name] = Producer(config)
        return self._producers[name]

    def transactional(self, name: str) -> Producer:
        """Returns the producer with the transactional id `name`; it can begin a transaction."""
        is_new = name not in self._producers
        settings: dict[str, str | int] = {
            "transactional.id": name,
            "transaction.timeout.ms": 900_000,
        }
        producer = self.producer(name, **settings)
        if is_new:
            producer.init_transactions(30)
        return producer

    def plain(self, codec: str) -> Producer:
        """Returns a producer without transactions that compresses with `codec`."""
        return self.producer(f"codec {codec}", **{"compression.type": codec})

    def send(self, producer: Producer, topic: str, partition: int, count: int) -> None:
        """Sends `count` records and waits until the broker acknowledged them."""
        numbers = self._sent.setdefault((topic, partition), itertools.count())
        for number in itertools.islice(numbers, count):
            late = LATE_MS if number % 13 == 5 else 0
            producer.produce(
                topic,
                partition=partition,
                timestamp=BASE_MS + number * STEP_MS - late,
                key=self._random.choice((None, b"", b"key %d" % number)),
                value=self._value(),
                headers=self._headers(number),
            )
            if number % 25 == 0:
                producer.poll(0)
        if producer.flush(60):
            raise TimeoutError(f"records of {topic}-{partition} are not acknowledged after 60 s")

    def _value(self) -> bytes | None:
        kind = self._random.random()
        if kind < 0.03:
            return None
        if kind < 0.06:
            return b""
        return self._random.randbytes(self._random.randint(1, 40)) * self._random.randint(1, 5)

    def _headers(self, number: int) -> list[tuple[str, str | bytes | None]]:
        if number % 3:
            return []
        headers: list[tuple[str, str | bytes | None]] = [
            ("n", str(number).encode()),
            ("n", None),
            ("ключ", b""),
        ]
        return headers[: number % 4 + 1]
