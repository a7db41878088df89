"""What the broker of the differential test is filled with: small topics, each with its own trait.

plain          3 partitions; every codec, null and empty keys and values, headers, create times out
               of order
plain-sparse   2; partition 1 has records, but nothing that may be tiered yet
txn            2; aborts over several segments. 0: a marker that is not tiered; 1: a transaction
               that nobody ended
append         1; LogAppendTime
trimmed        1; DeleteRecords moved the log start into a tiered segment

and topics that have no tier at all:

empty          1; never written
gone           2. 0: DeleteRecords took everything; 1: never written
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
    """What the broker says about the tier after everything has settled.

    Attributes:
        bootstrap: Where the broker was.
        starts: Log start of every partition.
        latest: End of every partition, tiered or not.
        stable: The same for a read_committed consumer.
        tier_ends: One past the last tiered offset; 0 where nothing is tiered.
        tier_stable: Where a read_committed read of the tier must end.
    """

    bootstrap: str
    starts: PartitionOffsets
    latest: PartitionOffsets
    stable: PartitionOffsets
    tier_ends: PartitionOffsets
    tier_stable: PartitionOffsets

    def limit(self, isolation_level: str) -> PartitionOffsets:
        """Where a reader of the tier ends, per partition."""
        return self.tier_stable if isolation_level == "read_committed" else self.tier_ends


def fill(broker: Broker) -> TierFacts:
    """Creates and fills the topics, waits until the tier has settled, asks the broker for facts."""
    created = {name: TOPICS[name] for name in TOPICS if name != "append"}
    broker.create_topics({**created, **UNTIERED})
    broker.create_topics({"append": 1}, message_timestamp_type="LogAppendTime")
    filler = Filler(broker.bootstrap, 20240601)
    for codec in (*CODECS, *CODECS):
        for partition in range(3):
            # Uneven, so that partitions are told apart by their offsets.
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
    # The segments that close after this carry the new log start in their epoch checkpoint.
    broker.delete_records({("trimmed", 0): TRIM_TO})
    filler.send(filler.plain("none"), "trimmed", 0, 500)
    broker.wait_until_tiered(partitions)
    return _facts(broker)


def _transactions(filler: Filler) -> None:
    one, two = filler.transactional("one"), filler.transactional("two")
    plain = filler.plain("none")
    for round_number in range(12):
        for partition in range(2):
            one.begin_transaction()
            two.begin_transaction()
            # Interleaved, and now and then longer than a segment.
            filler.send(one, "txn", partition, 15)
            filler.send(two, "txn", partition, 200 if round_number % 5 == 3 else 20)
            filler.send(plain, "txn", partition, 10)
            filler.send(one, "txn", partition, 15)
            (one.abort_transaction if round_number % 3 == 1 else one.commit_transaction)(30)
            (two.abort_transaction if round_number % 2 else two.commit_transaction)(30)
    # Partition 0: data in segments that will close, the marker in the active one.
    one.begin_transaction()
    two.begin_transaction()
    filler.send(one, "txn", 0, 20)
    filler.send(two, "txn", 0, 20)
    filler.send(plain, "txn", 0, 500)
    one.abort_transaction(30)
    two.commit_transaction(30)
    # Partition 1: never ended, which holds the closed segments behind it back from the tier.
    one.begin_transaction()
    filler.send(one, "txn", 1, 20)
    filler.send(plain, "txn", 1, 500)


def _facts(broker: Broker) -> TierFacts:
    starts, latest = broker.offsets("earliest"), broker.offsets("latest")
    tiered = broker.offsets("latest-tiered")
    tier_ends = {pair: tiered.get(pair, -1) + 1 for pair in latest}
    tier_stable = broker.tier_stable_offsets(tier_ends)
    stable = broker.last_stable_offsets(latest)
    return TierFacts(broker.bootstrap, starts, latest, stable, tier_ends, tier_stable)
