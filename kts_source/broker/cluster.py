"""Asks a Kafka cluster for metadata and configurations of topics, and asks the leaders of
partitions for offsets and leader epochs.

Requests about partitions contain the leader epoch from the metadata. Therefore a broker that is no
longer the leader returns an error instead of old data.

Brokers before Kafka 4.0 report all aborted transactions of records on their own disks, but not of
records that they read from their tier (KAFKA-17801).

A login takes as long as a small read, so tasks reuse connections: a task borrows a `Cluster` and
returns it at the task's end. Two tasks never use one `Cluster` at the same time, because responses
arrive in the order of requests.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.broker.connection import (
    NEW_LEADER,
    PASSING,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
    Connection,
    LostConnectionError,
    error_name,
    refusal,
)
from kts_source.errors import BrokerError, BrokerUnavailableError, LeaderChangedError
from kts_source.texts import some
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from kts_source.broker.settings import BrokerSettings, FirstResponseTimeouts


TopicPartition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition: the id of the broker (−1 = no leader), and the leader epoch."""

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic, as described by the metadata of the cluster.

    Attributes:
        topic_id: Id of the topic as text of 22 characters. A topic that is created again has a new
            id.
        leaders: Maps every partition number, in ascending order, to the leader of the partition.
    """

    topic: str
    topic_id: str
    leaders: Mapping[int, Leader]


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """A leader's response to the question where a leader epoch ends.

    Attributes:
        epoch: Largest epoch in the leader's log that is not above the requested epoch; −1 if there
            is no such epoch.
        end_offset: One past the last offset of `epoch`; −1 if `epoch` is −1.
    """

    epoch: int
    end_offset: int


def by_topic(topic_partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Groups partition numbers by topic, as requests contain them."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in topic_partitions:
        numbers[topic].append(number)
    return list(numbers.items())


_TOPIC: Final = 2


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """Some configurations of a topic.

    Attributes:
        values: Maps the name of a configuration to its text. Contains the broker's defaults, too.
        refusal: The broker's error if it returned no configuration; otherwise empty.
    """

    values: Mapping[str, str]
    refusal: str = ""


def topic_configs(
    cluster: Cluster, topics: Iterable[str], names: Sequence[str]
) -> dict[str, TopicConfigs]:
    """Requests some configurations of topics (DescribeConfigs, KIP-133) and returns them by topic.
    The user needs the permission DescribeConfigs on the topics.

    Raises:
        BrokerError: A broker refuses the request or does not support it.
        BrokerUnavailableError: No broker answers.
    """
    from kafka.protocol.admin.configs import DescribeConfigsRequest

    wanted = sorted(set(topics))
    resource = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(resource_type=_TOPIC, resource_name=topic, configuration_keys=list(names))
        for topic in wanted
    ]
    if not resources:
        return {}
    request = DescribeConfigsRequest(
        resources=resources, include_synonyms=False, include_documentation=False
    )
    configs = dict.fromkeys(wanted, TopicConfigs({}, "the broker returned no response for it"))
    for result in cluster.ask_any(request).results:
        refusal = error_name(result.error_code) if result.error_code else ""
        values = {config.name: config.value for config in result.configs}
        values = {name: value for name, value in values.items() if value is not None}
        if result.resource_name in configs:
            configs[result.resource_name] = TopicConfigs({} if refusal else values, refusal)
    return configs


LEAK: Final = (
    "brokers before Kafka 4.0 may return aborted records where they read their tier (KAFKA-17801)"
)
_KAFKA_3_5: Final = 8
"""First version of ListOffsets that can return the first offset on the leader's disk."""
_KAFKA_4_0: Final = 10
"""First version of ListOffsets whose brokers report all aborted transactions."""


def reports_local_start(cluster: Cluster, topic_partition: TopicPartition) -> bool:
    """Returns True if the leader can report the first offset on its disk. Leaders before Kafka 3.6
    cannot, but they have no tier, so all their records are on disk.

    Raises:
        LeaderChangedError: The leader does not answer, so there may be a new leader.
    """
    from kafka.protocol.consumer import ListOffsetsRequest

    return cluster.leader_supports(topic_partition, ListOffsetsRequest, _KAFKA_3_5)


def reports_aborted_from(cluster: Cluster, topic_partition: TopicPartition) -> int:
    """Returns the first offset from which on the leader reports all aborted transactions; 0 if the
    leader reports them for all its records.

    The returned offset never decreases. So if a record is at or above it, earlier responses about
    the record were complete, too.

    Raises:
        LeaderChangedError: Another broker is the leader now.
        BrokerError: Brokers refuse the request, or do not answer.
    """
    if reports_all_aborted(cluster, topic_partition):
        return 0
    return cluster.offsets([topic_partition], EARLIEST_LOCAL, read_committed=False)[topic_partition]


def reports_all_aborted(cluster: Cluster, topic_partition: TopicPartition) -> bool:
    """Returns whether the leader reports all aborted transactions for all its records.

    Raises:
        LeaderChangedError: The leader does not answer, so there may be a new leader.
    """
    from kafka.protocol.consumer import ListOffsetsRequest

    is_new = cluster.leader_supports(topic_partition, ListOffsetsRequest, _KAFKA_4_0)
    return is_new or not reports_local_start(cluster, topic_partition)


def node_reports_all_aborted(cluster: Cluster, node: int) -> bool:
    """Returns True if a broker reports all aborted transactions for all its records. Call it for
    each broker, because brokers may have different versions during a rolling upgrade.

    Raises:
        LostConnectionError: The broker cannot be reached.
    """
    from kafka.protocol.consumer import ListOffsetsRequest

    is_new = cluster.node_supports(node, ListOffsetsRequest, _KAFKA_4_0)
    return is_new or not cluster.node_supports(node, ListOffsetsRequest, _KAFKA_3_5)


LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4

_PATIENCE_SECONDS: Final = 60.0
"""Seconds for which a request is retried after transient errors."""
_INCOMPLETE_SECONDS: Final = 10.0
"""Seconds for which a request is retried while metadata lack partitions."""
_FIRST_PAUSE_SECONDS: Final = 0.05
_MAX_PAUSE_SECONDS: Final = 1.0
_EXPIRES_EARLY_SECONDS: Final = 30.0
_LEAST_SHARE_SECONDS: Final = 1.0
"""Minimum connect timeout, because operating systems repeat a lost packet after 1 s."""
_REPLICA_ID: Final = -1  # a consumer
_NO_LEADER: Final = -1


class Cluster:
    """A client of one cluster with one connection per broker. Several threads may use it, but not
    at the same time.

    Attributes:
        tier_failures: For each run of a scan, counts how often a read of the tier failed and the
            records were read from brokers instead.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self._nodes: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._connections: dict[int, Connection] = {}
        self._locks: dict[int, threading.Lock] = {}
        self._any: Connection | None = None
        self._any_lock = threading.RLock()
        self.tier_failures: dict[str, Counter[str]] = {}

    def close(self) -> None:
        """Closes all connections."""
        for connection in (self._any, *self._connections.values()):
            if connection is not None:
                connection.close()
        self._any = None
        self._connections.clear()

    def topics(
        self,
        names: Iterable[str] | None,
        *,
        counts: Mapping[str, int] | None = None,
        selects: Callable[[Iterable[str]], Collection[str]] | None = None,
    ) -> dict[str, ClusterTopic]:
        """Returns the existing topics by name.

        Args:
            names: Names of topics; `None` = all topics that the user may describe, except internal
                topics.
            counts: Minimum number of partitions by topic id. Kafka never removes partitions, so
                metadata with fewer partitions are incomplete and are requested again.
            selects: Called with names of topics that have incomplete metadata. Returns the names of
                the topics that are needed; the others are ignored. `None` = all topics are needed.

        Raises:
            BrokerError: The cluster refuses to describe a named topic.
            BrokerUnavailableError: No broker answers, or metadata are still incomplete after all
                retries.
        """
        wanted = None if names is None else sorted(set(names))
        began = time.monotonic()
        for pause in _pauses():
            topics, undecided, incomplete = self._request_metadata(wanted, counts or {})
            waiting = {**undecided, **incomplete}
            if selects is not None:
                waiting = {name: waiting[name] for name in selects(waiting)}
            if not waiting:
                return topics
            patience = _INCOMPLETE_SECONDS if waiting.keys() <= incomplete.keys() else None
            if time.monotonic() - began > (patience or _PATIENCE_SECONDS):
                raise BrokerUnavailableError(f"brokers do not describe {some(waiting.values())}")
            pause()
        raise AssertionError

    @property
    def nodes(self) -> tuple[int, ...]:
        """Ids of the brokers, according to the last metadata."""
        return tuple(self._nodes)

    def known_leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Returns the leader of a partition according to the last metadata; `None` if unknown."""
        return self._leaders.get(topic_partition)

    def renew_leader(self, topic_partition: TopicPartition, topic_id: str) -> ClusterTopic | None:
        """Requests the metadata of a partition's topic again. Afterwards, `known_leader` returns
        the new leader. Returns the topic, or `None` if the topic or the partition does not exist.
        """
        topic = self.topics([topic_partition[0]], counts={topic_id: topic_partition[1] + 1}).get(
            topic_partition[0]
        )
        return topic if topic is not None and topic_partition[1] in topic.leaders else None

    def offsets(
        self, topic_partitions: Iterable[TopicPartition], timestamp: int, *, read_committed: bool
    ) -> dict[TopicPartition, int]:
        """Requests one offset of each partition from its leader (ListOffsets).

        Args:
            topic_partitions: The partitions. `topics` must have been called for their topics
                before.
            timestamp: `LATEST`, `EARLIEST`, `EARLIEST_LOCAL`, or a time in ms since 1970. For a
                time, brokers return the first offset of a record with this or a later timestamp, or
                −1 if there is no such record.
            read_committed: If True, `LATEST` is the last stable offset; otherwise it is the high
                watermark.

        Raises:
            LeaderChangedError: A partition has another leader now.
            BrokerError: See `topics`.
        """
        from kafka.protocol.consumer import ListOffsetsRequest

        topic_type = ListOffsetsRequest.ListOffsetsTopic

        def request(names: Sequence[TopicPartition]) -> Any:  # noqa: ANN401
            topics = [
                topic_type(
                    name=topic,
                    partitions=[
                        topic_type.ListOffsetsPartition(
                            partition_index=number,
                            current_leader_epoch=self._leaders[topic, number].epoch,
                            timestamp=timestamp,
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(names)
            ]
            return ListOffsetsRequest(
                replica_id=_REPLICA_ID, isolation_level=int(read_committed), topics=topics
            )

        def parse(answer: Any) -> dict[TopicPartition, tuple[int, int]]:  # noqa: ANN401
            # Every log has a start and an end, so a response without an offset is an error.
            always = timestamp in (LATEST, EARLIEST)
            return {
                (topic.name, result.partition_index): (
                    UNKNOWN_SERVER_ERROR
                    if always and result.offset < 0 and not result.error_code
                    else result.error_code,
                    result.offset,
                )
                for topic in answer.topics
                for result in topic.partitions
            }

        return self._ask_leaders(topic_partitions, request, parse)

    def epoch_ends(
        self, wanted: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, list[EpochEnd]]:
        """Requests the ends of leader epochs from leaders (OffsetForLeaderEpoch, KIP-320).

        Args:
            wanted: Leader epochs by partition.

        Returns:
            For each partition, the ends of its epochs, in the order of `wanted`.

        Raises:
            LeaderChangedError: A partition has another leader now.
            BrokerError: See `topics`.
        """
        from kafka.protocol.consumer import OffsetForLeaderEpochRequest

        topic_type = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

        def request(topic_partitions: Sequence[TopicPartition]) -> Any:  # noqa: ANN401
            topics = [
                topic_type(
                    topic=topic,
                    partitions=[
                        topic_type.OffsetForLeaderPartition(
                            partition=number,
                            current_leader_epoch=self._leaders[topic, number].epoch,
                            leader_epoch=epoch,
                        )
                        for number in numbers
                        for epoch in wanted[topic, number]
                    ],
                )
                for topic, numbers in by_topic(topic_partitions)
            ]
            return OffsetForLeaderEpochRequest(replica_id=_REPLICA_ID, topics=topics)

        def parse(answer: Any) -> dict[TopicPartition, tuple[int, list[EpochEnd]]]:  # noqa: ANN401
            results = defaultdict(list)
            for topic in answer.topics:
                for result in topic.partitions:
                    results[topic.topic, result.partition].append(result)
            ends_of = {}
            for topic_partition, mine in results.items():
                code = next((result.error_code for result in mine if result.error_code), 0)
                ends = [EpochEnd(result.leader_epoch, result.end_offset) for result in mine]
                if not code and len(ends) != len(wanted[topic_partition]):
                    raise BrokerError(
                        f"requested {len(wanted[topic_partition])} epochs, got {len(ends)}"
                    )
                ends_of[topic_partition] = code, ends
            return ends_of

        answered: dict[TopicPartition, list[EpochEnd]] = self._ask_leaders(
            [topic_partition for topic_partition, epochs in wanted.items() if epochs],
            request,
            parse,
        )
        return {topic_partition: answered.get(topic_partition, []) for topic_partition in wanted}

    def last_epochs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """For each partition, returns the leader epoch of the last record before the offset in
        `ends`.

        The leader's current epoch cannot be used instead, because it may have no record yet.
        Followers do not store an epoch without records, so the next leader may not have it.

        Raises:
            LeaderChangedError: A partition has another leader now.
            BrokerError: See `topics`.
        """
        epochs = {topic_partition: self._leaders[topic_partition].epoch for topic_partition in ends}
        unsure = {
            topic_partition: epoch
            for topic_partition, epoch in epochs.items()
            if epoch > 0 and ends[topic_partition] > 0
        }
        while unsure:
            before = self.epoch_ends(
                {topic_partition: [epoch - 1] for topic_partition, epoch in unsure.items()}
            )
            unsure = {
                topic_partition: end.epoch
                for topic_partition, (end,) in before.items()
                # The end of the previous epoch is the start of this epoch. If the start is not
                # below the end of the range, the record belongs to an earlier epoch.
                if end.end_offset >= ends[topic_partition]
                and 0 <= end.epoch < unsure[topic_partition]
            }
            epochs |= unsure
        return epochs

    def ask(self, node: int, request: Any, *, patience_seconds: float = 0.0) -> Any:  # noqa: ANN401
        """Sends a request to a broker and returns the response.

        Raises:
            LostConnectionError: The broker did not answer.
            BrokerError: The broker refuses the request.
        """
        with self._locks.setdefault(node, threading.Lock()):
            return self.connection(node).ask(request, patience_seconds=patience_seconds)

    def connection(self, node: int) -> Connection:
        """Returns the connection to a broker. Opens a new connection if the existing one is not
        usable.

        Raises:
            LostConnectionError: The broker cannot be reached.
            BrokerError: The broker refuses the connection or the login.
        """
        connection = self._connections.get(node)
        if connection is not None and connection.is_usable(_EXPIRES_EARLY_SECONDS):
            return connection
        if connection is not None:
            connection.close()
            del self._connections[node]
        if node not in self._nodes:
            raise LostConnectionError(f"broker {node} is not in the cluster's metadata")
        opened = self._take_metadata_connection(node) or Connection(
            self.settings, *self._nodes[node]
        )
        self._connections[node] = opened
        return opened

    def _take_metadata_connection(self, node: int) -> Connection | None:
        """Returns the connection that was used for metadata, and removes it from `_any`. Returns
        `None` if it is not a usable connection to this broker. Reusing it saves a login.
        """
        with self._any_lock:
            connection = self._any
            if connection is None or connection.address != self._nodes[node]:
                return None
            self._any = None
        if connection.is_usable(_EXPIRES_EARLY_SECONDS):
            return connection
        connection.close()
        return None

    def leader_supports(self, topic_partition: TopicPartition, request: Any, version: int) -> bool:  # noqa: ANN401
        """Returns True if the leader of a partition supports version `version` of the request class
        `request`.

        Raises:
            LeaderChangedError: The leader does not answer, so there may be a new leader.
        """
        try:
            return self.node_supports(self._leaders[topic_partition].node, request, version)
        except LostConnectionError as error:
            topic, number = topic_partition
            raise LeaderChangedError(str(error), topic=topic, partition=number) from None

    def node_supports(self, node: int, request: Any, version: int) -> bool:  # noqa: ANN401
        """Returns True if a broker supports version `version` of the request class `request`.

        Raises:
            LostConnectionError: The broker cannot be reached.
        """
        with self._locks.setdefault(node, threading.Lock()):
            return self.connection(node).version(request) >= version

    def _ask_leaders(
        self,
        topic_partitions: Iterable[TopicPartition],
        request: Callable[[Sequence[TopicPartition]], Any],
        parse: Callable[[Any], Mapping[TopicPartition, tuple[int, Any]]],
    ) -> dict[TopicPartition, Any]:
        """Sends one request to each leader, with all its partitions. Retries after transient
        errors. Returns the result of each partition. `request` creates the request about some
        partitions. `parse` converts a response to the error code and the result of each partition.
        """
        waiting = dict.fromkeys(topic_partitions, "not asked yet")
        answered: dict[TopicPartition, Any] = {}
        began = time.monotonic()
        for pause in _pauses():
            by_node: dict[int, list[TopicPartition]] = defaultdict(list)
            for topic_partition in waiting:
                by_node[self._leaders[topic_partition].node].append(topic_partition)
            leaderless = by_node.pop(_NO_LEADER, ())
            waiting.update(dict.fromkeys(leaderless, "it has no leader"))
            for node, mine in by_node.items():
                try:
                    answers = parse(self.ask(node, request(mine)))
                except LostConnectionError as error:
                    waiting.update(dict.fromkeys(mine, str(error)))
                    continue
                for topic_partition in mine:
                    code, value = answers.get(topic_partition, (UNKNOWN_TOPIC_OR_PARTITION, None))
                    if code == 0:
                        answered[topic_partition] = value
                        del waiting[topic_partition]
                        continue
                    waiting[topic_partition] = error_name(code)
                    _raise_if_permanent(topic_partition, code)
            if not waiting:
                return answered
            if time.monotonic() - began > _PATIENCE_SECONDS:
                texts = [f"{topic}-{number}: {why}" for (topic, number), why in waiting.items()]
                raise BrokerUnavailableError(f"brokers return no result for {some(texts)}")
            pause()
            self._check_leaders(waiting)
        raise AssertionError

    def _check_leaders(self, waiting: Iterable[TopicPartition]) -> None:
        """Requests metadata again. Raises `LeaderChangedError` if a partition in `waiting` has
        another leader or leader epoch than before.
        """
        before = {topic_partition: self._leaders[topic_partition] for topic_partition in waiting}
        self.topics({topic for topic, _ in before})
        for topic_partition, leader in before.items():
            if self._leaders.get(topic_partition) != leader:
                topic, number = topic_partition
                raise LeaderChangedError(
                    f"the leader changed from epoch {leader.epoch} while the scan was planned",
                    topic=topic,
                    partition=number,
                )

    def _request_metadata(
        self, names: Sequence[str] | None, counts: Mapping[str, int]
    ) -> tuple[dict[str, ClusterTopic], dict[str, str], dict[str, str]]:
        """Requests metadata once. Returns three mappings by topic name: the described topics; an
        error text for each topic that brokers cannot describe yet; an error text for each topic
        with incomplete metadata.
        """
        from kafka.protocol.metadata import MetadataRequest

        topic_type = MetadataRequest.MetadataRequestTopic
        asked = None if names is None else [topic_type(name=name) for name in names]
        answer = self.ask_any(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
        self._nodes = {node.node_id: (node.host, node.port) for node in answer.brokers}
        topics: dict[str, ClusterTopic] = {}
        undecided: dict[str, str] = {}
        answered = {topic.name for topic in answer.topics}
        incomplete = {
            name: f"{name}: no response for it" for name in names or () if name not in answered
        }
        for topic in answer.topics:
            if topic.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if topic.error_code or (names is None and topic.is_internal):
                if topic.error_code in PASSING:
                    undecided[topic.name] = f"{topic.name}: {error_name(topic.error_code)}"
                elif topic.error_code and names is not None:
                    raise refusal(topic.error_code, topic=topic.name)
                continue
            leaders = {
                leader_data.partition_index: Leader(leader_data.leader_id, leader_data.leader_epoch)
                for leader_data in sorted(
                    topic.partitions, key=lambda leader_data: leader_data.partition_index
                )
            }
            described = ClusterTopic(topic.name, uuid_to_text(topic.topic_id), leaders)
            least = counts.get(described.topic_id, 1)
            if len(leaders) < least or [*leaders] != [*range(len(leaders))]:
                incomplete[topic.name] = (
                    f"{topic.name}: {len(leaders)} partitions of topic id {described.topic_id},"
                    f" which has at least {least}"
                )
                continue
            for number, leader in leaders.items():
                self._leaders[topic.name, number] = leader
            topics[topic.name] = described
        return topics, undecided, incomplete

    def ask_any(self, request: Any) -> Any:  # noqa: ANN401
        """Sends a request to any broker and returns the response. Prefers the broker of the last
        call, because the connection to it is still open.

        Raises:
            BrokerError: See `topics`.
            BrokerUnavailableError: No broker answers.
        """
        with self._any_lock:
            if self._any is not None and self._any.is_usable(_EXPIRES_EARLY_SECONDS):
                try:
                    return self._any.ask(request)
                except LostConnectionError:
                    self._any = None
            failures: list[str] = []
            began = time.monotonic()
            patience = self.settings.request_timeout_seconds
            timeouts: dict[str, float] = {}
            if (first := self.settings.first_response) is not None and not self._nodes:
                patience = first.seconds
                timeouts = _first_timeouts(self.settings, first)
            for pause in _pauses():
                pass_began = time.monotonic()
                for host, port in dict.fromkeys((*self.settings.bootstrap, *self._nodes.values())):
                    try:
                        connection = Connection(self.settings, host, port, **timeouts)
                        response = connection.ask(request)
                    except LostConnectionError as error:
                        failures.append(str(error))
                        continue
                    self._any = connection
                    return response
                now = time.monotonic()
                if now - began + (now - pass_began) >= patience:
                    break
                pause()
        raise BrokerUnavailableError(
            f"no broker of kafka.bootstrap.servers answers: {some(dict.fromkeys(failures))}."
            " Check the addresses and the network"
        ).advising(
            ". If the cluster no longer exists, a scan without this option reads only the tier; a"
            " stream with a checkpoint, and an export whose table has offsets of brokers, must keep"
            " the option"
        )


def _first_timeouts(settings: BrokerSettings, first: FirstResponseTimeouts) -> dict[str, float]:
    """Returns the timeouts of a `Connection` before any broker has answered. They are so short that
    all bootstrap brokers can be tried within `first.seconds`.
    """
    share = max(first.seconds / len(settings.bootstrap), _LEAST_SHARE_SECONDS)
    return {
        "connect_seconds": min(share, settings.connect_timeout_seconds),
        "answer_seconds": min(first.answer_seconds, settings.request_timeout_seconds),
    }


def _raise_if_permanent(topic_partition: TopicPartition, code: int) -> None:
    """Raises the exception for an error code that is not transient. Returns normally if a retry or
    a new leader may help.
    """
    if code in PASSING or code in NEW_LEADER:
        return
    topic, number = topic_partition
    raise refusal(code, topic=topic, partition=number)


def _pauses() -> Iterable[Callable[[], None]]:
    """Yields one function per pause between attempts. A call of the function sleeps. Each pause is
    longer than the one before it, up to `_MAX_PAUSE_SECONDS`.
    """
    seconds = _FIRST_PAUSE_SECONDS
    while True:
        yield lambda wait=seconds: time.sleep(wait)  # type: ignore[misc]
        seconds = min(2 * seconds, _MAX_PAUSE_SECONDS)


_MAX_IDLE: Final = 16
"""Maximum number of idle clusters per process. Each may have a connection per broker."""
_idle: list[Cluster] = []
_lock = threading.Lock()


@contextmanager
def borrowed_cluster(settings: BrokerSettings) -> Iterator[Cluster]:
    """Yields a `Cluster` that no other task uses at the same time. If possible, it is the `Cluster`
    of a finished task, whose connections are still open.
    """
    cluster = _take_idle_cluster(settings) or Cluster(settings)
    try:
        yield cluster
    finally:
        with _lock:
            _idle.append(cluster)
            too_many = _idle.pop(0) if len(_idle) > _MAX_IDLE else None
        if too_many is not None:
            too_many.close()


def _take_idle_cluster(settings: BrokerSettings) -> Cluster | None:
    """Removes an idle cluster with these settings from `_idle`, and returns it. If several have
    these settings, takes the one that was used last. Returns `None` if none has.
    """
    with _lock:
        for number in reversed(range(len(_idle))):
            if _idle[number].settings == settings:
                return _idle.pop(number)
    return None


@atexit.register
def _close_all() -> None:
    with _lock:
        for cluster in _idle:
            cluster.close()
        _idle.clear()


def _drop_idle_clusters() -> None:
    """Drops all idle clusters in a forked child process, because the parent process uses their
    sockets.
    """
    global _lock
    _lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_drop_idle_clusters)
