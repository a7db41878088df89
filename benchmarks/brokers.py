"""Runs a real broker on loopback, from which this library and other readers read the same topics.

The closed segments of topics `small` and `large` are only in the tier. The tier is the folder of
`LocalTieredStorage`, which this library reads. Topics `small-hot` and `large-hot` have the same
records on the broker's disk and in the page cache. In topic `aborts`, 5 % of the records belong to
aborted transactions. The timestamps of the records are spread over 30 days. A quick run has only
the small topics.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from benchmarks.log_bytes import json_text
from benchmarks.session import Query
from tests.integration.broker import Broker, running_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

PARTITIONS: Final = 2
FIRST_MS: Final = 1_750_000_000_000
SPAN_MS: Final = 30 * 86_400_000
KEY_BYTES: Final = 8
_TXN_RECORDS: Final = 5000
_POOL_BYTES: Final = 16 << 20
_SETTINGS: Final[Mapping[str, str]] = {
    "internal_segment_bytes": str(64 << 20),
    "index_interval_bytes": "4096",
    "segment_ms": str(10 * SPAN_MS),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """A filled topic.

    Attributes:
        value_bytes: Size of every value.
        stops: For each partition, the exclusive end of its offsets in the tier, at which all
            readers stop.
        first_ms: Timestamp of each partition's first record.
        step_ms: Time between records of a partition.
    """

    name: str
    value_bytes: int
    stops: Mapping[int, int]
    step_ms: float

    @property
    def records(self) -> int:
        """Returns the number of records that readers return."""
        return sum(self.stops.values())

    @property
    def ends(self) -> str:
        """Returns the value of option `endingOffsets` with which reads end at `stops`."""
        return json.dumps({self.name: {str(number): stop for number, stop in self.stops.items()}})

    def date_ms(self, share: float) -> int:
        """Returns the timestamp at the relative position `share` between the first record of each
        partition (0) and the last one (1).
        """
        return FIRST_MS + int(share * min(self.stops.values()) * self.step_ms)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A topic to fill.

    Attributes:
        count: Number of records.
    """

    name: str
    value_bytes: int
    count: int


_QUICK: Final = (_Kind("small", 100, 600_000),)
_FULL: Final = (
    _Kind("small", 100, 12_000_000),
    _Kind("large", 1000, 3_000_000),
)


@dataclass(frozen=True, slots=True)
class FilledBroker:
    """A running broker with its topics.

    Attributes:
        topics: Topics by name.
    """

    broker: Broker
    topics: Mapping[str, Topic]

    def through_broker(self, topic: str, **changes: object) -> Query:
        """Returns the query that reads a topic with Spark's own Kafka source. `changes` replaces
        fields of the query, except that its `options` are added to the query's options.
        """
        options = {
            "kafka.bootstrap.servers": self.broker.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "endingOffsets": self.topics[topic].ends,
        }
        return _query("kafka", options, changes)

    def from_tier(self, topic: str, **changes: object) -> Query:
        """Returns the query with which this library reads the rows of `through_broker` from the
        tier.
        """
        options = {
            "path": str(self.broker.tier),
            "layout": "local-tiered-storage",
            "subscribe": topic,
        }
        return _query("tiered-kafka", options, changes)

    def from_brokers(self, topic: str, **changes: object) -> Query:
        """Returns the query with which this library reads the rows of `through_broker` from the
        same broker.
        """
        options = {
            "kafka.bootstrap.servers": self.broker.bootstrap,
            "subscribe": topic,
            "endingOffsets": self.topics[topic].ends,
        }
        return _query("tiered-kafka", options, changes)

    def logs(self, topic: str) -> str:
        """Returns a glob pattern that matches the log files of a topic in the tier."""
        return f"{self.broker.tier}/kafka-tiered-storage/{topic}-[0-9]-*/*.log"


def _query(source: str, options: dict[str, str], changes: dict[str, object]) -> Query:
    more = changes.pop("options", {})
    assert isinstance(more, dict)
    return Query(source, {**options, **more}, **changes)  # type: ignore[arg-type]


@contextlib.contextmanager
def filled_broker(
    folder: Path, *, quick: bool, say: Callable[[str], object]
) -> Iterator[FilledBroker]:
    """Starts a broker, fills it, and waits until the tier is complete.

    Args:
        folder: An empty folder for all files.
        quick: True to write less data.
        say: Called with progress messages.
    """
    kinds = _QUICK if quick else _FULL
    segment = str((16 if quick else 64) << 20)
    settings = {**_SETTINGS, "internal_segment_bytes": segment}
    with running_broker(folder / "broker") as broker:
        names = [kind.name for kind in kinds]
        broker.create_topics(dict.fromkeys((*names, "aborts"), PARTITIONS), **settings)
        local = {**settings, "remote_storage_enable": "false", "local_retention_bytes": "-2"}
        hot = {f"{kind.name}-hot": PARTITIONS for kind in kinds}
        broker.create_topics(hot, **local)
        for kind in kinds:
            for topic in (kind.name, f"{kind.name}-hot"):
                fill(broker.bootstrap, topic, kind.count, kind.value_bytes)
                say(f"broker: {topic} is filled")
        _fill_with_aborts(broker.bootstrap, kinds[0].count // 2)
        say("broker: transactions are filled")
        tiered = [(name, n) for name in (*names, "aborts") for n in range(PARTITIONS)]
        broker.wait_until_tiered(tiered)
        say("broker: closed segments are in the tier")
        ends = broker.offsets("latest-tiered")
        topics = {}
        for kind in (*kinds, replace(kinds[0], name="aborts")):
            stops = {number: ends[kind.name, number] + 1 for number in range(PARTITIONS)}
            step = SPAN_MS / (kind.count / PARTITIONS)
            for name in (kind.name, f"{kind.name}-hot"):
                topics[name] = Topic(name, kind.value_bytes, stops, step)
        yield FilledBroker(broker, topics)


class _Values:
    """Generates JSON-like texts by copying random parts of a long text, because generating each
    text separately would be slower.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._random = random.Random(size)
        self._pool = b"".join(json_text(self._random, 1000) for _ in range(_POOL_BYTES // 1000))

    def next(self) -> bytes:
        """Returns the next value."""
        position = int(self._random.random() * (len(self._pool) - self._size))
        return self._pool[position : position + self._size]


def _producer(bootstrap: str, **settings: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "linger.ms": 50,
            "batch.size": 16 << 10,  # the Java client's default
            "queue.buffering.max.messages": 400_000,
            "queue.buffering.max.kbytes": 400_000,
            **settings,
        }
    )


def _send(
    producer: Producer, topic: str, partition: int, number: int, value: bytes, ms: int
) -> None:
    key = number.to_bytes(KEY_BYTES, "big")
    while True:
        try:
            producer.produce(topic, value, key, partition, timestamp=ms)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def fill(bootstrap: str, topic: str, count: int, value_bytes: int, **settings: str) -> None:
    """Writes records to all partitions of a topic in turns.

    Args:
        bootstrap: Address of the brokers.
        topic: A topic with `PARTITIONS` partitions.
        count: Number of records in all partitions.
        value_bytes: Size of each value.
        settings: Settings of the producer, with `_` for `.`.
    """
    fill_with(bootstrap, topic, count, _Values(value_bytes).next, **settings)


def fill_with(
    bootstrap: str, topic: str, count: int, next_value: Callable[[], bytes], **settings: str
) -> None:
    """Writes records like `fill`, with values from a function."""
    client_settings = {name.replace("_", "."): text for name, text in settings.items()}
    producer = _producer(bootstrap, **client_settings)
    partition_records = count // PARTITIONS
    step = SPAN_MS / partition_records
    for number in range(partition_records):
        ms = FIRST_MS + int(number * step)
        for partition in range(PARTITIONS):
            _send(producer, topic, partition, number, next_value(), ms)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(300):
        raise TimeoutError(f"the broker did not acknowledge all records of {topic}")


def _fill_with_aborts(bootstrap: str, count: int) -> None:
    producer = _producer(bootstrap, **{"transactional.id": f"bench-{os.getpid()}-{time.time_ns()}"})
    producer.init_transactions(30)
    values = _Values(100)
    for start in range(0, count, _TXN_RECORDS):
        producer.begin_transaction()
        for number in range(start, start + _TXN_RECORDS):
            ms = FIRST_MS + number
            _send(producer, "aborts", number % PARTITIONS, number, values.next(), ms)
        if start // _TXN_RECORDS % 20 == 7:
            producer.flush(60)  # leaves records to abort
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def some_key(topic: Topic) -> bytes:
    """Returns a key that each partition of the topic contains once."""
    return (min(topic.stops.values()) // 2).to_bytes(KEY_BYTES, "big")
