"""Measures the usual way to read records in Python without this library: a consumer of
confluent-kafka that converts its messages to Arrow.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONSUMER = """
import json, sys, time
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
bootstrap, topic, starts, most = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "log_level": 0,
                     "enable.auto.commit": False, "auto.offset.reset": "earliest",
                     "queued.min.messages": 1000000})
consumer.assign([TopicPartition(topic, int(number), at) for number, at in starts.items()])
schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()),
                    ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64()),
                    ("timestampType", pa.int32())])
wall = processor = None
rows = 0
while rows < most:
    found = [m for m in consumer.consume(10_000, 30) if m.error() is None]
    if not found:
        raise SystemExit("the consumer received no records")
    if wall is None:  # connections and the first fetch are not what is measured
        wall, processor = time.perf_counter(), time.process_time()
        most -= len(found)
        continue
    columns = [[m.key() for m in found], [m.value() for m in found], [m.topic() for m in found],
               [m.partition() for m in found], [m.offset() for m in found],
               [m.timestamp()[1] * 1000 for m in found], [m.timestamp()[0] - 1 for m in found]]
    batch = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema)], schema=schema)
    rows += batch.num_rows
print(rows / (time.perf_counter() - wall), (time.process_time() - processor) / rows)
consumer.close()
"""


@dataclass(frozen=True, slots=True)
class Consumed:
    """One run of the consumer.

    Attributes:
        speed: Records per second.
        processor: Processor seconds per record, of all threads of the consumer.
    """

    speed: float
    processor: float


def consumed(bootstrap: str, topic: str, starts: Mapping[int, int], record_count: int) -> Consumed:
    """Reads records with a consumer in a new process. The measured time includes the client's
    prefetch of records after the last one.

    Args:
        bootstrap: Address of the brokers.
        topic: Name of the topic.
        starts: Maps a partition to its first offset.
        record_count: Number of records to read.
    """
    words = json.dumps({str(number): offset for number, offset in starts.items()})
    output = subprocess.run(
        [sys.executable, "-c", _CONSUMER, bootstrap, topic, words, str(record_count)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout
    speed, processor = (float(word) for word in output.split())
    return Consumed(speed, processor)
