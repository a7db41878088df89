"""Runs fake brokers in threads. They use Kafka's protocol on real sockets.

kafka-python encodes the messages. Tests inject failures: `faults[kind]` is a queue of faults for
the next requests of the kind `kind`; see the class `Fault`.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin.configs import DescribeConfigsResponse, IncrementalAlterConfigsResponse
from kafka.protocol.admin.groups import ListGroupsResponse
from kafka.protocol.consumer import (
    FetchResponse,
    ListOffsetsResponse,
    OffsetFetchResponse,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.consumer.group import OffsetCommitResponse
from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)
from kafka.protocol.producer.produce import ProduceResponse
from kafka.protocol.producer.transaction import InitProducerIdResponse

from kts_source.broker.settings import BrokerSettings, Security
from kts_source.secret import Secret
from segment_format.kafka_uuid import uuid_to_text
from tests.kts_source.broker.fake_node import (
    KINDS,
    FakeNode,
    Fault,
)

if TYPE_CHECKING:
    from types import TracebackType

    from tests.kts_source.broker.fake_log import FakeLog

_NO_SUCH_TOPIC, _NOT_LEADER, _OUT_OF_RANGE = 3, 6, 1
_KAFKA_3_9 = {"ListOffsets": 9}
_FENCED, _UNKNOWN_EPOCH, _UNKNOWN_TOPIC_ID = 74, 75, 100
_TOPIC_DENIED, _GROUP_DENIED, _CLUSTER_DENIED, _INVALID_REQUEST = 29, 30, 31, 42
_READ, _DESCRIBE, _IDEMPOTENT_WRITE = 3, 8, 12  # codes of operations (AclOperation)
_TOPIC_OPERATIONS: Final = {3, 4, 5, 6, 7, 8, 10, 11}


@dataclass(slots=True)
class FakePartition:
    """A partition and its leader.

    Attributes:
        followers: Maps a client's rack to the id of the node that the leader recommends to the
            client as preferred read replica.
        replicas: Ids of the nodes with a replica, in the metadata.
        reports_log_start: True if OFFSET_OUT_OF_RANGE responses contain the log start. Real brokers
            return −1 instead (`ReplicaManager.createLogReadResult`).
    """

    log: FakeLog
    leader: int = 0
    epoch: int = 0
    followers: dict[str, int] = field(default_factory=dict)
    reports_log_start: bool = False
    replicas: tuple[int, ...] = (0,)


class FakeCluster:
    """Context manager that runs fake brokers with their topics.

    Attributes:
        topics: Maps a topic name to its id and partitions.
        faults: Maps a request kind to a queue with the faults of the next requests.
        asked: Kind of each received request, and id of the node that received it.
        versions: Maps a request kind to the maximum version that the brokers support. Kinds that
            are not listed have the default maximum.
        opened: Number of accepted connections.
        configs: Config values by name, the same for every topic.
        groups: Maps a group to the id of its coordinator, and the offset of each topic and
            partition.
        old_nodes: Ids of the nodes that behave like Kafka 3.9.
        producer_ids: Next producer id of each node.
        committed: Committed offsets by group, topic and partition.
        denied: Codes of the operations that the user may not perform, by topic, group or `cluster`.
        fetches: Node id, fetch offset, isolation level and rack of each fetch request.
    """

    def __init__(self, nodes: int = 1, *, versions: dict[str, int] | None = None) -> None:
        self.topics: dict[str, tuple[uuid.UUID, list[FakePartition]]] = {}
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.asked: list[tuple[str, int]] = []
        self.fetches: list[tuple[int, int, int, str]] = []
        self.configs: dict[str, str] = {}
        self.groups: dict[str, tuple[int, dict[tuple[str, int], int]]] = {}
        self.old_nodes: set[int] = set()
        self.producer_ids: dict[int, int] = defaultdict(int)
        self.committed: dict[tuple[str, str, int], int] = {}
        self.denied: dict[str, set[int]] = {}
        self.opened = 0
        self.versions = versions or {}
        self._nodes = [FakeNode(self, number) for number in range(nodes)]
        self.lock = threading.RLock()

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in self._nodes:
            node.stop()

    def create(
        self, topic: str, partitions: list[FakePartition], topic_id: uuid.UUID | None = None
    ) -> str:
        """Creates the topic, or replaces it if it exists. Returns the topic id."""
        created_id = topic_id or uuid.uuid4()
        self.topics[topic] = created_id, partitions
        return uuid_to_text(created_id)

    @property
    def bootstrap(self) -> str:
        """Returns the value for `kafka.bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)

    def settings(self, **changes: Any) -> BrokerSettings:  # noqa: ANN401
        """Returns client settings for these brokers, with short timeouts.

        `changes` replaces settings.
        """
        defaults: dict[str, Any] = {
            "bootstrap": tuple(("127.0.0.1", node.port) for node in self._nodes),
            "security": Secret(Security()),
            "request_timeout_seconds": 2.0,
            "connect_timeout_seconds": 1.0,
            "fetch_max_wait_ms": 10,
        }
        return BrokerSettings(**{**defaults, **changes})

    def stop_node(self, number: int) -> None:
        """Stops a broker."""
        self._nodes[number].stop()

    def fail(self, kind: str, *faults: Fault, times: int = 1) -> None:
        """Adds `faults` to the queue of the request kind `kind`. Repeats this `times` times."""
        with self.lock:
            self.faults[kind].extend(faults * times)

    def of_kind(self, kind: str) -> int:
        """Returns how many requests of kind `kind` the brokers received."""
        return sum(request_kind == kind for request_kind, _ in self.asked)

    def _next_fault(self, kind: str, node: int) -> Fault:
        waiting = self.faults[kind]
        if waiting and waiting[0].node in (-1, node):
            return waiting.popleft()
        return Fault()

    def answer(self, kind: str, node: int, request: Any) -> tuple[Any, Fault]:  # noqa: ANN401
        """Returns two values: the response to a request, and the fault to apply to the response."""
        with self.lock:
            self.asked.append((kind, node))
            fault = self._next_fault(kind, node)
            if fault.change is not None:
                fault.change()
            response = getattr(self, f"_{kind.lower()}")(node, request, fault.code)
            if fault.edit is not None:
                fault.edit(response)
            return response, fault

    def _apiversions(self, node: int, _request: Any, code: int) -> Any:  # noqa: ANN401
        versions = {**self.versions, **(_KAFKA_3_9 if node in self.old_nodes else {})}
        keys = [
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=low, max_version=versions.get(kind, high)
            )
            for key, (kind, _, (low, high)) in KINDS.items()
        ]
        return ApiVersionsResponse(error_code=code, api_keys=keys, throttle_time_ms=0)

    def _metadata(self, _node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        topic_type = MetadataResponse.MetadataResponseTopic
        asked = request.topics
        names = list(self.topics) if asked is None else [topic.name for topic in asked]
        topics = []
        for name in names:
            denied = self.denied.get(name, set())
            if name not in self.topics or _DESCRIBE in denied:
                missing = topic_type(
                    error_code=_TOPIC_DENIED if denied else _NO_SUCH_TOPIC,
                    name=name,
                    topic_id=uuid.UUID(int=0),
                    is_internal=False,
                    partitions=[],
                )
                topics.append(missing)
                continue
            topic_id, partitions = self.topics[name]
            partition_responses = [
                topic_type.MetadataResponsePartition(
                    error_code=0 if partition.leader >= 0 else 5,
                    partition_index=number,
                    leader_id=partition.leader,
                    leader_epoch=partition.epoch,
                    replica_nodes=list(partition.replicas),
                    isr_nodes=[0],
                    offline_replicas=[],
                )
                for number, partition in enumerate(partitions)
            ]
            topics.append(
                topic_type(
                    error_code=code,
                    name=name,
                    topic_id=topic_id,
                    is_internal=name.startswith("__"),
                    partitions=[] if code else partition_responses,
                    authorized_operations=_TOPIC_OPERATIONS - denied
                    if request.include_topic_authorized_operations
                    else None,
                )
            )
        brokers = [
            MetadataResponse.MetadataResponseBroker(
                node_id=node.number, host="127.0.0.1", port=node.port, rack=None
            )
            for node in self._nodes
        ]
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=brokers,
            cluster_id="fake",
            controller_id=0,
            topics=topics,
            error_code=0,
        )

    def _describeconfigs(self, _node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        result = DescribeConfigsResponse.DescribeConfigsResult
        results = [
            result(
                error_code=code,
                error_message=None,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
                configs=[
                    result.DescribeConfigsResourceResult(
                        name=name,
                        value=value,
                        read_only=False,
                        config_source=1,
                        is_sensitive=False,
                        synonyms=[],
                        config_type=0,
                        documentation=None,
                    )
                    for name, value in self.configs.items()
                    if not code and name in asked.configuration_keys
                ],
            )
            for asked in request.resources
        ]
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    def _incrementalalterconfigs(self, _node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        for resource in request.resources:
            if not code:
                self.configs |= {config.name: config.value for config in resource.configs}
        responses = [
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code,
                error_message="invalid" if code else None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ]
        return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=responses)

    def _initproducerid(self, node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        if _IDEMPOTENT_WRITE in self.denied.get("cluster", ()):
            code = _CLUSTER_DENIED
        elif (request.producer_id < 0) != (request.producer_epoch < 0):
            code = _INVALID_REQUEST
        producer_id = -1
        if not code:
            producer_id = self.producer_ids[node]
            self.producer_ids[node] += 1
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=code, producer_id=producer_id, producer_epoch=0
        )

    def _produce(self, node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        topic_type = ProduceResponse.TopicProduceResponse
        topics = []
        for topic in request.topic_data:
            responses = []
            for asked in topic.partition_data:
                partition = self._partition(topic.name, asked.index)
                error = code or self._code_of(partition, node, -1)
                if not error and partition is not None:
                    partition.log.append(bytes(asked.records), partition.epoch)
                responses.append(
                    topic_type.PartitionProduceResponse(index=asked.index, error_code=error)
                )
            topics.append(topic_type(name=topic.name, partition_responses=responses))
        return ProduceResponse(responses=topics, throttle_time_ms=0)

    def _findcoordinator(self, node: int, _request: Any, code: int) -> Any:  # noqa: ANN401
        return FindCoordinatorResponse(
            throttle_time_ms=0,
            error_code=code,
            error_message=None,
            node_id=node,
            host="127.0.0.1",
            port=self._nodes[node].port,
        )

    def _offsetcommit(self, _node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        topic_type = OffsetCommitResponse.OffsetCommitResponseTopic
        topics = []
        if _READ in self.denied.get(request.group_id, ()):
            code = _GROUP_DENIED
        for topic in request.topics:
            parts = []
            for asked in topic.partitions:
                is_known = self._partition(topic.name, asked.partition_index) is not None
                error = code or (0 if is_known else _NO_SUCH_TOPIC)
                if not error:
                    key = request.group_id, topic.name, asked.partition_index
                    self.committed[key] = asked.committed_offset
                parts.append(
                    topic_type.OffsetCommitResponsePartition(
                        partition_index=asked.partition_index, error_code=error
                    )
                )
            topics.append(topic_type(name=topic.name, partitions=parts))
        return OffsetCommitResponse(throttle_time_ms=0, topics=topics)

    def _listgroups(self, node: int, _request: Any, code: int) -> Any:  # noqa: ANN401
        groups = [
            ListGroupsResponse.ListedGroup(
                group_id=group,
                protocol_type="consumer",
                group_state="Empty",
                group_type="classic",
            )
            for group, (coordinator, _) in self.groups.items()
            if coordinator == node
        ]
        return ListGroupsResponse(throttle_time_ms=0, error_code=code, groups=groups)

    def _offsetfetch(self, _node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        group_type = OffsetFetchResponse.OffsetFetchResponseGroup
        topic_type = group_type.OffsetFetchResponseTopics
        (asked,) = request.groups
        topics = [
            topic_type(
                name=topic,
                topic_id=uuid.UUID(int=0),
                partitions=[
                    topic_type.OffsetFetchResponsePartitions(
                        partition_index=number,
                        committed_offset=offset,
                        committed_leader_epoch=-1,
                        metadata="",
                        error_code=0,
                    )
                ],
            )
            for (topic, number), offset in self.groups[asked.group_id][1].items()
        ]
        group = group_type(group_id=asked.group_id, topics=[] if code else topics, error_code=code)
        return OffsetFetchResponse(throttle_time_ms=0, groups=[group])

    def _code_of(self, partition: FakePartition | None, node: int, epoch: int) -> int:
        if partition is None:
            return _NO_SUCH_TOPIC
        if partition.leader != node:
            return _NOT_LEADER
        if epoch >= 0 and epoch != partition.epoch:
            return _FENCED if epoch < partition.epoch else _UNKNOWN_EPOCH
        return 0

    def _partition(self, name: str, number: int) -> FakePartition | None:
        _, partitions = self.topics.get(name, (None, []))
        return partitions[number] if number < len(partitions) else None

    def _listoffsets(self, node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        topic_type = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for topic in request.topics:
            responses = []
            for asked in topic.partitions:
                partition = self._partition(topic.name, asked.partition_index)
                error = code or self._code_of(partition, node, asked.current_leader_epoch)
                offset = -1
                if not error and partition is not None:
                    log = partition.log
                    match asked.timestamp:
                        case -1:
                            offset = log.stable if request.isolation_level else log.end
                        case -2:
                            offset = log.log_start
                        case -4:
                            offset = max(log.log_start, log.local_start)
                        case time_ms:
                            offset = log.first_dated(time_ms)
                responses.append(
                    topic_type.ListOffsetsPartitionResponse(
                        partition_index=asked.partition_index,
                        error_code=error,
                        timestamp=-1,
                        offset=offset,
                        leader_epoch=-1,
                    )
                )
            topics.append(topic_type(name=topic.name, partitions=responses))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def _offsetforleaderepoch(self, node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        topic_type = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        topics = []
        for topic in request.topics:
            responses = []
            for asked in topic.partitions:
                partition = self._partition(topic.topic, asked.partition)
                error = code or self._code_of(partition, node, asked.current_leader_epoch)
                epoch, end = -1, -1
                if not error and partition is not None:
                    epoch, end = partition.log.epoch_end(asked.leader_epoch)
                responses.append(
                    topic_type.EpochEndOffset(
                        error_code=error,
                        partition=asked.partition,
                        leader_epoch=epoch,
                        end_offset=end,
                    )
                )
            topics.append(topic_type(topic=topic.topic, partitions=responses))
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)

    def _fetch(self, node: int, request: Any, code: int) -> Any:  # noqa: ANN401
        (topic,) = request.topics
        (asked,) = topic.partitions
        self.fetches.append((node, asked.fetch_offset, request.isolation_level, request.rack_id))
        partition: FakePartition | None = None
        for topic_id, partitions in self.topics.values():
            # A client with old metadata may request a partition that the recreated topic lacks.
            if topic_id == topic.topic_id and asked.partition < len(partitions):
                partition = partitions[asked.partition]
                break
        data, listed, preferred = b"", None, -1
        error = code
        if not error and partition is None:
            error = _UNKNOWN_TOPIC_ID
        elif not error and node not in (partition.followers.values() if partition else ()):
            error = self._code_of(partition, node, asked.current_leader_epoch)
        log = partition.log if partition is not None else None
        if not error and partition is not None and log is not None:
            offset = asked.fetch_offset
            preferred = (
                partition.followers.get(request.rack_id, -1) if node == partition.leader else -1
            )
            if preferred < 0 and not log.serves(offset):
                error = _OUT_OF_RANGE
            elif preferred < 0:
                max_bytes = min(asked.partition_max_bytes, request.max_bytes)
                data, listed = log.read(offset, max_bytes, committed=request.isolation_level == 1)
                is_old = self.versions or node in self.old_nodes
                if listed and is_old and offset < log.local_start:
                    listed = []  # KAFKA-17801
        reports_log_start = (
            log is not None and partition is not None and (not error or partition.reports_log_start)
        )
        topic_type = FetchResponse.FetchableTopicResponse
        response = topic_type.PartitionData(
            partition_index=asked.partition,
            error_code=error,
            high_watermark=log.end if log is not None and not error else -1,
            last_stable_offset=log.stable if log is not None and not error else -1,
            log_start_offset=log.log_start if log is not None and reports_log_start else -1,
            aborted_transactions=None
            if listed is None
            else [
                topic_type.PartitionData.AbortedTransaction(
                    producer_id=producer, first_offset=first
                )
                for producer, first in listed
            ],
            preferred_read_replica=preferred,
            records=data,
        )
        topics = [topic_type(topic_id=topic.topic_id, partitions=[response])]
        return FetchResponse(
            throttle_time_ms=0, error_code=0, session_id=0, responses=topics, node_endpoints=[]
        )
