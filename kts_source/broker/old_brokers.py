"""What brokers before Kafka 4.0 do not tell: all aborted transactions of what they read from their
own tier (KAFKA-17801). What is on their disks they tell exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.broker.cluster import EARLIEST_LOCAL

if TYPE_CHECKING:
    from kts_source.broker.cluster import Cluster
    from kts_source.broker.topics import TopicPartition

LEAK: Final = (
    "brokers before Kafka 4.0 may return aborted records where they read their tier (KAFKA-17801)"
)
_KAFKA_3_5: Final = 8
"""Version of ListOffsets that can ask for the first local offset."""
_KAFKA_4_0: Final = 10
"""The one that came with the brokers that tell all."""


def knows_local_start(cluster: Cluster, place: TopicPartition) -> bool:
    """Whether the leader of a partition can tell where its own disk begins; before Kafka 3.6 there
    was no tier, and everything is on it.

    Raises:
        LeaderChangedError: It does not answer any more.
    """
    from kafka.protocol.consumer import ListOffsetsRequest

    return cluster.knows(place, ListOffsetsRequest, _KAFKA_3_5)


def told_from(cluster: Cluster, place: TopicPartition) -> int:
    """The first offset from which on the leader of a partition tells all aborted transactions; 0
    where it always does. It only grows: what was fetched from above it before was told exactly.

    Raises:
        LeaderChangedError: Another one leads.
        BrokerError: Brokers refuse, or do not answer.
    """
    if tells_all(cluster, place):
        return 0
    return cluster.offsets([place], EARLIEST_LOCAL, read_committed=False)[place]


def tells_all(cluster: Cluster, place: TopicPartition) -> bool:
    """Whether the leader of a partition tells all aborted transactions wherever it reads.

    Raises:
        LeaderChangedError: It does not answer any more.
    """
    from kafka.protocol.consumer import ListOffsetsRequest

    is_new = cluster.knows(place, ListOffsetsRequest, _KAFKA_4_0)
    return is_new or not knows_local_start(cluster, place)


def node_tells_all(cluster: Cluster, node: int) -> bool:
    """Whether a broker, leader or follower, reports all aborted transactions wherever it reads.

    During a rolling upgrade the leader's version says nothing about its followers.

    Raises:
        LostConnectionError: The broker cannot be reached.
    """
    from kafka.protocol.consumer import ListOffsetsRequest

    is_new = cluster.node_knows(node, ListOffsetsRequest, _KAFKA_4_0)
    return is_new or not cluster.node_knows(node, ListOffsetsRequest, _KAFKA_3_5)
