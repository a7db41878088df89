"""Asks the brokers of a cluster for consumer groups and the offsets that they committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.broker.cluster import LATEST
from kts_source.broker.connection import LostConnectionError, error_name
from kts_source.errors import BrokerAccessError, BrokerError, BrokerUnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from kts_source.broker.cluster import Cluster, TopicPartition

_WITH_NAMES: Final = 9
"""Last version of OffsetFetch whose responses contain names of topics instead of ids."""
_GROUP_AUTHORIZATION_FAILED: Final = 30
_COORDINATOR: Final = frozenset({14, 15, 16})
"""Error codes which mean that the coordinator of a group loads or has moved."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """An offset that a group committed.

    Attributes:
        state: State of the group, such as `Stable` or `Empty`.
        offset: Next offset that the group reads.
        metadata: Text of the consumer.
        end: High watermark of the partition; `None` if the topic does not exist.
    """

    group: str
    state: str
    topic: str
    partition: int
    offset: int
    metadata: str
    end: int | None

    @property
    def lag(self) -> int | None:
        """Number of offsets that the group has not read; `None` if the topic does not exist."""
        return None if self.end is None else max(0, self.end - self.offset)


def group_offsets(cluster: Cluster, topics: Collection[str] | None = None) -> list[GroupOffset]:
    """Returns the committed offsets of all groups that the user may describe, sorted by group,
    topic and partition. If `topics` is set, returns only the offsets of these topics.

    Raises:
        BrokerError: A broker refuses a request.
        BrokerUnavailableError: A broker does not answer.
        LeaderChangedError: A partition has another leader now.
    """
    cluster.topics(())  # the response names all brokers
    found = [offset for node in cluster.nodes for offset in _offsets_of_coordinator(cluster, node)]
    if topics is not None:
        found = [each for each in found if each[2] in topics]
    ends = _ends(cluster, {(topic, partition) for _, _, topic, partition, *_ in found})
    return [
        GroupOffset(*each, end=ends.get((each[2], each[3])))
        for each in sorted(found, key=lambda each: (each[0], each[2], each[3]))
    ]


def _offsets_of_coordinator(
    cluster: Cluster, node: int
) -> Iterator[tuple[str, str, str, int, int, str]]:
    """Yields group, state, topic, partition, offset and metadata of each committed offset of the
    groups whose coordinator is this broker.
    """
    from kafka.protocol.admin.groups import ListGroupsRequest
    from kafka.protocol.consumer import OffsetFetchRequest

    listed = _ask(cluster, node, ListGroupsRequest(states_filter=[], types_filter=[]))
    _check(listed.error_code, "groups")
    states = {group.group_id: group.group_state or "" for group in listed.groups}
    for group, state in states.items():
        wanted = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=group, member_id=None, member_epoch=-1, topics=None
        )
        request = OffsetFetchRequest(groups=[wanted], require_stable=False)
        request.API_VERSION = min(_WITH_NAMES, cluster.connection(node).version(request))
        for result in _ask(cluster, node, request).groups:
            _check(result.error_code, f"group {group!r}")
            for topic in result.topics:
                for partition in topic.partitions:
                    _check(partition.error_code, f"group {group!r}")
                    if partition.committed_offset >= 0:
                        yield (
                            group,
                            state,
                            topic.name,
                            partition.partition_index,
                            partition.committed_offset,
                            partition.metadata or "",
                        )


def _ask(cluster: Cluster, node: int, request: Any) -> Any:  # noqa: ANN401  # kafka-python's
    try:
        return cluster.ask(node, request)
    except LostConnectionError as error:
        raise BrokerUnavailableError(f"groups cannot be listed: {error}") from None


def _check(code: int, what: str) -> None:
    if code == _GROUP_AUTHORIZATION_FAILED:
        raise BrokerAccessError(f"not allowed to read {what}: the user needs Describe on it")
    if code in _COORDINATOR:
        raise BrokerUnavailableError(
            f"{what} cannot be read: its coordinator is moving to another broker. Try again"
        )
    if code:
        raise BrokerError(f"a broker refuses to describe {what}: {error_name(code)}")


def _ends(cluster: Cluster, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
    existing = cluster.topics({topic for topic, _ in partitions})
    known = [
        each for each in partitions if each[0] in existing and each[1] in existing[each[0]].leaders
    ]
    return cluster.offsets(known, LATEST, read_committed=False)
