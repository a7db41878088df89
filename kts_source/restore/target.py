"""Queries the new cluster about the topics that a restore will fill, and checks that they are
ready.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.broker.cluster import EARLIEST, LATEST, Cluster, topic_configs
from kts_source.broker.kafka_options import broker_settings
from kts_source.errors import InvalidOptionError
from kts_source.planning.metadata_topic import REMOTE_LOG_METADATA
from kts_source.restore.permissions import (
    ALTER_CONFIGS,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    WRITE,
    may_get_producer_ids,
    missing_on_topics,
    permission_refusals,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from kts_source.broker.cluster import ClusterTopic, TopicConfigs
    from kts_source.broker.settings import BrokerSettings
    from kts_source.restore.restore_plan import PartitionRestore

REQUIRED_CONFIGS: Final[Mapping[str, tuple[str, ...]]] = {
    "cleanup.policy": ("delete",),
    "retention.ms": ("-1",),
    "retention.bytes": ("-1",),
    "remote.storage.enable": ("false",),
}
"""Allowed values of topic configurations during a restore. With other values, brokers would delete,
compact or upload restored records before they are verified.
"""
ZERO_COPY_CONFIGS: Final[Mapping[str, tuple[str, ...]]] = {
    **REQUIRED_CONFIGS,
    "remote.storage.enable": ("true",),
    "local.retention.ms": ("-2", "-1"),
    "local.retention.bytes": ("-2", "-1"),
}
"""The same for a restore with zero copy. New replicas copy the local log of the seed, so it must
not be deleted. The value −2 stands for the value of `retention.ms` or `retention.bytes`.
"""
_TOPIC_OPERATIONS: Final = (READ, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
"""Operations on the topics that all steps of a restore need together."""
_EVENT_OPERATIONS: Final = (READ, WRITE, DESCRIBE)


@dataclass(frozen=True, slots=True)
class Target:
    """Facts about the new cluster.

    Attributes:
        node_id: Id of the broker that has all replicas; −1 if there is no such broker.
        topic_ids: Topic id of each existing target topic.
        refusals: Reasons why the topics cannot be restored now.
        notes: Facts that the operator should know.
    """

    cluster_id: str
    node_id: int
    topic_ids: dict[str, str]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]


def target_settings(kafka_options: Mapping[str, str]) -> BrokerSettings:
    """Returns the settings of connections to the new cluster.

    Args:
        kafka_options: Options `kafka.*` of the new cluster.

    Raises:
        InvalidOptionError: `kafka.bootstrap.servers` is missing, or an option is invalid.
    """
    if wrong := sorted(name for name in kafka_options if not name.lower().startswith("kafka.")):
        raise InvalidOptionError(f"option {wrong[0]!r} of the new cluster must begin with kafka.")
    settings, _ = broker_settings({name.lower(): text for name, text in kafka_options.items()})
    if settings is None:
        raise InvalidOptionError(
            "the address of the new cluster is missing: set kafka.bootstrap.servers"
        )
    return settings


def describe_target(
    settings: BrokerSettings,
    partitions: Sequence[PartitionRestore],
    assigned: Mapping[str, Collection[int]],
    *,
    zero_copy: bool,
) -> Target:
    """Describes the target topics. Reads no records and changes nothing.

    `assigned` has the selected partitions by topic in the tier; by default, all are selected.
    Others may have records, because another plan may restore them.

    Raises:
        BrokerError: The cluster refuses a request.
        BrokerUnavailableError: No broker answers.
    """
    from kafka.protocol.metadata import MetadataRequest

    wanted: dict[str, list[PartitionRestore]] = {}
    for each in partitions:
        wanted.setdefault(each.target_topic, []).append(each)
    needed: dict[str, tuple[str, ...]] = dict.fromkeys(wanted, _TOPIC_OPERATIONS)
    if zero_copy:
        needed[REMOTE_LOG_METADATA] = _EVENT_OPERATIONS
    with closing(Cluster(settings)) as cluster:
        missing = missing_on_topics(cluster, needed)
        refusals = permission_refusals(
            cluster, missing, needs_producer_ids=not may_get_producer_ids(cluster)
        )
        if any(DESCRIBE in operations for operations in missing.values()):
            return Target("", -1, {}, tuple(refusals), ())  # brokers return no other facts
        topics = cluster.topics(wanted)
        topic_type = MetadataRequest.MetadataRequestTopic
        names = [topic_type(name=name) for name in topics]
        answer = cluster.ask_any(MetadataRequest(topics=names, allow_auto_topic_creation=False))
        refusals += _managed_refusals(answer)
        refusals += [
            f"topic {name} does not exist in the new cluster: create it"
            for name in sorted(wanted.keys() - topics.keys())
        ]
        node_id, more = _seed(answer)
        refusals += more
        notes: list[str] = []
        pairs: list[tuple[str, int]] = []
        for name, topic in sorted(topics.items()):
            refusals += _partition_refusals(topic, wanted[name])
            chosen = assigned.get(wanted[name][0].topic, topic.leaders)
            selected = {n: leader for n, leader in topic.leaders.items() if n in chosen}
            notes += _empty_note(name, selected.keys() - {e.partition for e in wanted[name]})
            pairs += [(name, n) for n, leader in selected.items() if leader.node >= 0]
        refusals += _non_empty(cluster, pairs)
        required = ZERO_COPY_CONFIGS if zero_copy else REQUIRED_CONFIGS
        readable = [name for name in topics if DESCRIBE_CONFIGS not in missing.get(name, ())]
        for name, configs in topic_configs(cluster, readable, list(required)).items():
            refusals += _config_refusals(name, configs, required)
        if zero_copy:
            refusals += _event_refusals(cluster, node_id)
    ids = {name: topic.topic_id for name, topic in sorted(topics.items())}
    return Target(str(answer.cluster_id), node_id, ids, tuple(refusals), tuple(notes))


def _seed(metadata: Any) -> tuple[int, list[str]]:  # noqa: ANN401  # kafka-python's message
    """Returns the id of the broker that has all replicas, or −1, and refusals for partitions with
    other replicas.
    """
    replicas = {
        f"{topic.name}-{partition.partition_index}": tuple(partition.replica_nodes)
        for topic in metadata.topics
        for partition in topic.partitions
    }
    seeds = {nodes[0] for nodes in replicas.values() if len(nodes) == 1}
    node_id = min(seeds) if len(seeds) == 1 else -1
    return node_id, [
        # Another replica would become leader while the seed is stopped. Then the seed would
        # truncate its log to that of the leader, which is empty.
        f"{name} of the new cluster has replicas on brokers {list(nodes)}: assign all partitions to"
        " one broker and no other, until the restore is verified"
        for name, nodes in sorted(replicas.items())
        if nodes != (node_id,)
    ]


_MANAGED: Final = {
    "Aiven": r"\.aivencloud\.com",
    "Alibaba Cloud": r"\.alikafka\.aliyuncs\.com",
    "Amazon MSK": r"\.kafka(-serverless)?\.[a-z0-9-]+\.amazonaws\.com(\.cn)?",
    "Azure Event Hubs": r"\.servicebus\.(windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)",
    "Confluent Cloud": r"\.confluent\.cloud",
    "DigitalOcean": r"\.db\.ondigitalocean\.com",
    "Google Cloud": r"\.managedkafka\..*\.cloud\.goog",
    "IBM Event Streams": r"\.eventstreams\.cloud\.ibm\.com",
    "Instaclustr": r"\.cnodes\.io",
    "Oracle Cloud": r"\.(kafka|streaming)\.[a-z0-9-]+\.oci\.oraclecloud\.com",
    "Redpanda Cloud": r"\.cloud\.redpanda\.com",
    "StreamNative Cloud": r"\.snio\.cloud",
    "WarpStream": r"\.warpstream\.com",
    "Yandex Cloud": r"\.mdb\.yandexcloud\.net",
}
"""Patterns of the end of the host names of managed brokers, whose disks users cannot reach."""


def _managed_refusals(metadata: Any) -> Iterator[str]:  # noqa: ANN401  # kafka-python's message
    hosts = sorted({broker.host.lower().rstrip(".") for broker in metadata.brokers})
    for service, pattern in _MANAGED.items():
        if found := [host for host in hosts if re.search(f"{pattern}$", host)]:
            yield (
                f"broker {found[0]} is managed by {service}, but a restore writes to the log"
                " directory of a stopped broker. Restore into brokers whose disks you can reach;"
                " kts export, kts find and scans read the tier without them"
            )


def _partition_refusals(
    topic: ClusterTopic, partitions: Iterable[PartitionRestore]
) -> Iterator[str]:
    for each in partitions:
        leader = topic.leaders.get(each.partition)
        if leader is None:
            yield (
                f"{each.name} does not exist in the new cluster, which has {len(topic.leaders)}"
                " partitions: create the topic with the original number of partitions"
            )
        elif leader.epoch <= each.max_epoch:
            # A broker truncates epochs that are not below its own. Consumers with a committed epoch
            # above the broker's epoch would wait without an error.
            yield (
                f"{each.name}: leader epoch {leader.epoch} of the new cluster is not above leader"
                f" epoch {each.max_epoch} of the tier: raise it by electing leaders or restarting"
                " the broker, and plan again"
            )


def _empty_note(topic: str, numbers: Collection[int]) -> Iterator[str]:
    if numbers:
        yield f"{topic}: the tier has no data of partitions {sorted(numbers)}; they stay empty"


def _non_empty(cluster: Cluster, pairs: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yields a refusal for each partition that has or had records."""
    if not pairs:
        return
    starts = cluster.offsets(pairs, EARLIEST, read_committed=False)
    for (topic, number), end in cluster.offsets(pairs, LATEST, read_committed=False).items():
        if (starts[topic, number], end) != (0, 0):
            yield (
                f"{topic}-{number} of the new cluster is not empty: it has offsets"
                f" [{starts[topic, number]}, {end}). Restore into a new topic"
            )


def _config_refusals(
    topic: str, configs: TopicConfigs, required: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    if configs.refusal:
        yield f"{topic}: its configurations cannot be read: {configs.refusal}"
        return
    for name, allowed in required.items():
        # Brokers without tiered storage do not report `remote.storage.enable`.
        value = configs.values.get(name, "false")
        if value not in allowed:
            yield f"{topic}: set {name}={allowed[-1]} until the restore is verified; it is {value}"


def _event_refusals(cluster: Cluster, node_id: int) -> Iterator[str]:
    """Yields a refusal if no events can be published while broker `node_id` is stopped."""
    topic = cluster.topics([REMOTE_LOG_METADATA]).get(REMOTE_LOG_METADATA)
    if topic is None:
        yield (
            f"the new cluster has no topic {REMOTE_LOG_METADATA}: create any topic with"
            " remote.storage.enable=true"
        )
    elif numbers := [n for n, leader in topic.leaders.items() if leader.node == node_id]:
        yield (
            f"partitions {numbers} of {REMOTE_LOG_METADATA} are on broker {node_id}, but zero copy"
            " writes to them while this broker is stopped: move them to other brokers"
        )
