"""Starts a broker with hot topics, whose tiered segments are still on the broker's disk.

Topics `plain` and `zstd` have the same records of 100 B. All closed segments of `plain` are also in
the tier. Topic `many` has 300 partitions with one or two segments in the tier. In a third of these
partitions, a transaction is open at the end of the tier. The broker also has a listener with TLS
and SCRAM.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

from benchmarks.brokers import PARTITIONS, fill
from benchmarks.session import Query
from tests.integration.certificates import make_certificates
from tests.integration.cluster import Cluster, ClusterSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

PLAIN: Final = "plain"
ZSTD: Final = "zstd"
MANY: Final = "many"
VALUE_BYTES: Final = 100
_USER, _PASSWORD = "alice", "benchmarks-only"
_HELD: Final[Mapping[str, Any]] = {"local_retention_bytes": "-2", "segment_ms": "100000000000"}
_SEGMENT: Final = 20_000
_RECORD: Final = 500
# Records of `plain` and of `zstd`, partitions of `many`, segment bytes of `plain` and `zstd`.
_QUICK: Final = (400_000, 30, 2 << 20)
_FULL: Final = (12_000_000, 300, 32 << 20)


@dataclass(frozen=True, slots=True)
class HotCluster:
    """A running broker.

    Attributes:
        cluster: The broker and its tier.
        authority: Certificate that clients of the TLS listener trust.
        stops: Maps a topic to the offset at which a read of each partition ends. For `plain`, this
            is the end of the tier.
        many: Number of partitions of topic `many`.
    """

    cluster: Cluster
    authority: Path
    stops: dict[str, dict[int, int]]
    many: int

    @property
    def pid(self) -> int:
        """Returns the process id of the broker."""
        return self.cluster.nodes[1].pid

    def records(self, topic: str) -> int:
        """Returns the number of records of the topic before its stops."""
        return sum(self.stops[topic].values())

    def spark_kafka(self, topic: str) -> Query:
        """Returns the query that reads the topic with Spark's own source."""
        return Query("kafka", {**self._asked(topic), "startingOffsets": "earliest"})

    def ours(self, topic: str, **more: str) -> Query:
        """Returns the query that reads the topic with this library: from brokers and, if `more`
        contains the option `path`, also from a tier.
        """
        return Query("tiered-kafka", {**self._asked(topic), **more})

    def logs(self, topic: str) -> str:
        """Returns a glob pattern that matches the log files of a topic on the broker's disk."""
        return f"{self.cluster.nodes[1].logs}/{topic}-[0-9]/*.log"

    def tier(self, path: Path | None = None) -> dict[str, str]:
        """Returns the options that read the tier, or the copy of the tier at `path`."""
        return {"path": str(path or self.cluster.tier), "layout": "local-tiered-storage"}

    def scram(self) -> dict[str, str]:
        """Returns the options of a login with a password over TLS."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            "kafka.bootstrap.servers": self.cluster.address("SASL_SSL"),
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": (
                f'{module} required username="{_USER}" password="{_PASSWORD}";'
            ),
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(self.authority),
        }

    def tier_without_newest(self, topic: str, share: float, folder: Path) -> tuple[Path, float]:
        """Copies the tier without the newest segments of each partition of a topic.

        Args:
            topic: Name of the topic.
            share: Approximate share of the topic's segments to omit, from 0 to 1.
            folder: Folder for the copy, which consists of links.

        Returns:
            The path of the copy, and the share of the topic's bytes that the copy lacks.
        """
        copy = folder / "tier"
        shutil.copytree(self.cluster.tier, copy, copy_function=os.link)
        everything = left_out = 0
        for partition_folder in sorted(copy.glob(f"kafka-tiered-storage/{topic}-[0-9]-*")):
            logs = sorted(partition_folder.glob("*.log"))
            everything += sum(log.stat().st_size for log in logs)
            for log in logs[len(logs) - max(1, round(share * len(logs))) :]:
                left_out += log.stat().st_size
                for file in partition_folder.glob(f"{log.stem}.*"):
                    file.unlink()
        return copy, left_out / everything

    def _asked(self, topic: str) -> dict[str, str]:
        stops = {str(number): stop for number, stop in self.stops[topic].items()}
        return {
            "kafka.bootstrap.servers": self.cluster.bootstrap,
            "subscribe": topic,
            "endingOffsets": json.dumps({topic: stops}),
        }


@contextlib.contextmanager
def hot_cluster(folder: Path, *, quick: bool, say: Callable[[str], object]) -> Iterator[HotCluster]:
    """Starts a broker, fills it, and waits for its tier.

    Args:
        folder: An empty folder for all files.
        quick: True to write less data.
        say: Called with progress messages.
    """
    count, many, segment_bytes = _QUICK if quick else _FULL
    certificates = make_certificates(folder / "certificates")
    with Cluster(folder / "broker", ClusterSpec(certificates=certificates)) as cluster:
        cluster.admin.add_scram_user(_USER, _PASSWORD)
        settings = {
            **_HELD,
            "internal_segment_bytes": str(segment_bytes),
            "index_interval_bytes": "4096",
        }
        cluster.admin.create_topic(PLAIN, PARTITIONS, **settings)
        cluster.admin.create_topic(ZSTD, PARTITIONS, **settings, remote_storage_enable="false")
        cluster.admin.create_topic(MANY, many, **_HELD, internal_segment_bytes=str(_SEGMENT))
        fill(cluster.bootstrap, PLAIN, count, VALUE_BYTES)
        fill(cluster.bootstrap, ZSTD, count, VALUE_BYTES, compression_type="zstd")
        say("hot broker: records are written")
        _write_across_tier_end(cluster.bootstrap, many)
        stops = {ZSTD: dict.fromkeys(range(PARTITIONS), count // PARTITIONS)}
        stops[PLAIN] = {
            number: _wait_tiered(cluster, PLAIN, number) for number in range(PARTITIONS)
        }
        for number in range(many):
            _wait_tiered(cluster, MANY, number)
        say("hot broker: closed segments are in the tier")
        yield HotCluster(cluster, certificates.authority, stops, many)


def _wait_tiered(cluster: Cluster, topic: str, number: int) -> int:
    """Waits until all closed segments of a partition are in the tier. Returns the end offset of the
    tier.
    """
    bases = cluster.admin.local_bases(1, topic, number)
    cluster.admin.wait_tiered(topic, number, bases[-1])
    return bases[-1]


def _write_across_tier_end(bootstrap: str, partitions: int) -> None:
    """Writes records to all partitions of topic `many`, so that some transactions begin before the
    end of the tier and end after it.

    In every third partition, all records belong to one transaction, which begins before the last
    segment and ends in it. Half of these transactions are aborted. Records of the remaining
    partitions belong to no transaction.
    """
    ids = f"bench-{os.getpid()}-{time.time_ns()}"
    transactions = []
    for name in ("commit", "abort"):
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{ids}-{name}",
            "transaction.timeout.ms": 600_000,  # a busy machine is slow
            "log_level": 0,
        }
        transactions.append(Producer(settings))
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    value = bytes(_RECORD)
    for producer in transactions:
        producer.init_transactions(60)
        producer.begin_transaction()
    for _ in range(int(1.5 * _SEGMENT / _RECORD) // 10):
        for number in range(partitions):
            producer = transactions[number % 2] if number % 3 == 0 else plain
            for _ in range(10):
                producer.produce(MANY, value, partition=number)
        # Sends a separate batch, so that the segment rolls within the transaction.
        for producer in (plain, *transactions):
            if producer.flush(120):
                raise TimeoutError("the broker did not acknowledge all records")
    commit, abort = transactions
    commit.commit_transaction(60)
    abort.abort_transaction(60)
