"""Topics of the differential test's broker. They are small, and each has a special property.

plain          3 partitions; every codec, null and empty keys and values, headers, unordered create
               times
plain-sparse   2; partition 1 has records, but none that can be tiered yet
txn            2; aborts over several segments. 0: a marker that is not tiered; 1: a transaction
               that stays open
append         1; LogAppendTime
trimmed        1; DeleteRecords moved the log start into a tiered segment

Topics without a tier:

empty          1; never written
gone           2. 0: DeleteRecords removed everything; 1: never written
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
    """Offsets of the broker after all closed segments are tiered.

    Attributes:
        bootstrap: Address of the broker.
        starts: Log start of every partition.
        latest: End of every partition.
        stable: Last stable offset of every partition.
        tier_ends: Offset after the last tiered one; 0 if nothing is tiered.
        tier_stable: End of read_committed reads of the tier.
    """

    bootstrap: str
    starts: PartitionOffsets
    latest: PartitionOffsets
    stable: PartitionOffsets
    tier_ends: PartitionOffsets
    tier_stable: PartitionOffsets

    def limit(self, isolation_level: str) -> PartitionOffsets:
        """Returns the end of a read of the tier, by partition."""
        return self.tier_stable if isolation_level == "read_committed" else self.tier_ends


def fill(broker: Broker) -> TierFacts:
    """Creates and fills the topics, waits until they are tiered and returns their offsets."""
    created = {name: TOPICS[name] for name in TOPICS if name != "append"}
    broker.create_topics({**created, **UNTIERED})
    broker.create_topics({"append": 1}, message_timestamp_type="LogAppendTime")
    filler = Filler(broker.bootstrap, 20240601)
    for codec in (*CODECS, *CODECS):
        for partition in range(3):
            # Different counts, so that the end offsets of partitions differ.
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
    # Segments that close after this contain the new log start in their leader epoch checkpoint.
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
            # Interleaved, and sometimes longer than a segment.
            filler.send(first, "txn", partition, 15)
            filler.send(second, "txn", partition, 200 if round_number % 5 == 3 else 20)
            filler.send(plain, "txn", partition, 10)
            filler.send(first, "txn", partition, 15)
            (first.abort_transaction if round_number % 3 == 1 else first.commit_transaction)(30)
            (second.abort_transaction if round_number % 2 else second.commit_transaction)(30)
    # Partition 0: records in segments that will close, the marker in the active one.
    first.begin_transaction()
    second.begin_transaction()
    filler.send(first, "txn", 0, 20)
    filler.send(second, "txn", 0, 20)
    filler.send(plain, "txn", 0, 500)
    first.abort_transaction(30)
    second.commit_transaction(30)
    # Partition 1: the transaction stays open, so closed segments after it are not tiered.
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
