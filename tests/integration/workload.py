"""Creates and fills the topics of the differential test.

Topics with tiered segments, and their numbers of partitions:

plain          3  every codec, null and empty keys and values, headers, unordered create times
plain-sparse   2  partition 1 has only an active segment, which cannot be tiered
txn            2  aborted transactions over several segments. In partition 0, the last markers are
                  not tiered. In partition 1, a transaction stays open.
append         1  LogAppendTime
trimmed        1  DeleteRecords moved the log start into a tiered segment

Topics without tiered segments:

empty          1  never written
gone           2  DeleteRecords removed all records of partition 0; partition 1 was never written

"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.integration.filler import CODECS, Filler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.integration.broker import Broker, PartitionOffsets

PLAIN_RECORDS = 1500
TRIM_TO = 777

TOPICS: Mapping[str, int] = {"plain": 3, "plain-sparse": 2, "txn": 2, "append": 1, "trimmed": 1}
UNTIERED: Mapping[str, int] = {"empty": 1, "gone": 2}
GONE_RECORDS = 40


@dataclass(frozen=True)
class TierFacts:
    """Offsets of each partition, as the broker reports them after all closed segments are tiered.

    Attributes:
        bootstrap: Address of the broker.
        starts: Log start of each partition.
        latest: High watermark of each partition.
        stable: Last stable offset of each partition.
        tier_ends: Offset after the last tiered offset of each partition; 0 if nothing is tiered.
        tier_stable: For each partition, the offset at which read_committed reads of the tier end.
    """

    bootstrap: str
    starts: PartitionOffsets
    latest: PartitionOffsets
    stable: PartitionOffsets
    tier_ends: PartitionOffsets
    tier_stable: PartitionOffsets

    def limit(self, isolation_level: str) -> PartitionOffsets:
        """Returns the offset of each partition at which reads of the tier with this isolation level
        end.
        """
        return self.tier_stable if isolation_level == "read_committed" else self.tier_ends


def fill(broker: Broker) -> TierFacts:
    """Creates and fills the topics. Waits until their closed segments are tiered."""
    created = {name: TOPICS[name] for name in TOPICS if name != "append"}
    broker.create_topics({**created, **UNTIERED})
    broker.create_topics({"append": 1}, message_timestamp_type="LogAppendTime")
    filler = Filler(broker.bootstrap, 20240601)
    for codec in (*CODECS, *CODECS):
        for partition in range(3):
            # Send different counts, so that the partitions end at different offsets.
            count = PLAIN_RECORDS // 10 - 40 * partition
            filler.send(filler.plain(codec), "plain", partition, count)
        filler.send(filler.plain(codec), "append", 0, 60)
        filler.send(filler.plain(codec), "trimmed", 0, 150)
    filler.send(filler.plain("none"), "plain-sparse", 0, 400)
    filler.send(filler.plain("none"), "plain-sparse", 1, 20)
    filler.send(filler.plain("none"), "gone", 0, GONE_RECORDS)
    broker.delete_records({("gone", 0): GONE_RECORDS})
    _transactions(filler)
    partitions = [(topic, number) for topic, count in TOPICS.items() for number in range(count)]
    broker.wait_until_tiered(partitions)
    # Checkpoints of segments that close from now on contain the new log start.
    broker.delete_records({("trimmed", 0): TRIM_TO})
    filler.send(filler.plain("none"), "trimmed", 0, 500)
    broker.wait_until_tiered(partitions)
    return _facts(broker)


def _transactions(filler: Filler) -> None:
    first, second = filler.transactional("one"), filler.transactional("two")
    plain = filler.plain("none")
    for round_number in range(12):
        for partition in range(2):
            first.begin_transaction()
            second.begin_transaction()
            # Interleave both transactions; some are longer than a segment.
            filler.send(first, "txn", partition, 15)
            filler.send(second, "txn", partition, 200 if round_number % 5 == 3 else 20)
            filler.send(plain, "txn", partition, 10)
            filler.send(first, "txn", partition, 15)
            (first.abort_transaction if round_number % 3 == 1 else first.commit_transaction)(30)
            (second.abort_transaction if round_number % 2 else second.commit_transaction)(30)
    # Partition 0: the records are in segments that close, the markers in the active segment.
    first.begin_transaction()
    second.begin_transaction()
    filler.send(first, "txn", 0, 20)
    filler.send(second, "txn", 0, 20)
    filler.send(plain, "txn", 0, 500)
    first.abort_transaction(30)
    second.commit_transaction(30)
    # Partition 1: a transaction stays open, so later closed segments are not tiered.
    first.begin_transaction()
    filler.send(first, "txn", 1, 20)
    filler.send(plain, "txn", 1, 500)


def _facts(broker: Broker) -> TierFacts:
    starts, latest = broker.offsets("earliest"), broker.offsets("latest")
    tiered = broker.offsets("latest-tiered")
    tier_ends = {pair: tiered.get(pair, -1) + 1 for pair in latest}
    tier_stable = broker.tier_stable_offsets(tier_ends)
    stable = broker.last_stable_offsets(latest)
    return TierFacts(broker.bootstrap, starts, latest, stable, tier_ends, tier_stable)
