"""Checks the permissions (ACLs) that a restore needs in the new cluster, before the first change.

The checks change nothing:

* Topics: brokers return the allowed operations with the metadata (KIP-430).
* Groups: a commit for a partition number that no topic has. Brokers check the permission first, and
  then respond that the partition does not exist (`KafkaApis.handleOffsetCommitRequest`).
* Producer ids: a request with an epoch but without an id. Brokers check the permission first, and
  then reject it as invalid (`KafkaApis.handleInitProducerIdRequest`).
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from kts_source.errors import BrokerAccessError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from kts_source.broker.cluster import Cluster

READ, WRITE, DESCRIBE = "Read", "Write", "Describe"
DESCRIBE_CONFIGS, ALTER_CONFIGS = "DescribeConfigs", "AlterConfigs"
_IDEMPOTENT_WRITE: Final = "IdempotentWrite"
_CODES: Final = {READ: 3, WRITE: 4, DESCRIBE: 8, DESCRIBE_CONFIGS: 10, ALTER_CONFIGS: 11}
"""Codes of operations (`AclOperation`), by their names in `kafka-acls.sh`."""
_TOPIC_DENIED, _GROUP_DENIED, _CLUSTER_DENIED = 29, 30, 31
_NO_PARTITION: Final = 2**31 - 1
_TO_ALLOW: Final = "Run it as an administrator, and replace NAME by the user that kts logs in with"


def missing_on_topics(
    cluster: Cluster, needed: Mapping[str, Collection[str]]
) -> dict[str, list[str]]:
    """Returns the operations that the user may not perform, by topic. Topics that do not exist are
    skipped, and also topics for which the brokers do not report the allowed operations.

    Args:
        cluster: Connections to the new cluster.
        needed: Names of the operations by topic.

    Raises:
        BrokerUnavailableError: No broker answers.
    """
    from kafka.protocol.metadata import MetadataRequest

    topic_type = MetadataRequest.MetadataRequestTopic
    answer = cluster.ask_any(
        MetadataRequest(
            topics=[topic_type(name=topic) for topic in needed],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
    )
    missing = {}
    for topic in answer.topics:
        allowed = topic.authorized_operations
        if topic.error_code == _TOPIC_DENIED:
            missing[topic.name] = [*needed[topic.name]]
        elif allowed:
            lacking = [name for name in needed[topic.name] if _CODES[name] not in allowed]
            missing[topic.name] = lacking
    return {topic: names for topic, names in missing.items() if names}


def may_get_producer_ids(cluster: Cluster) -> bool:
    """Returns whether the user may write with idempotence: IdempotentWrite on the cluster, or Write
    on any topic.

    Raises:
        BrokerUnavailableError: No broker answers.
    """
    from kafka.protocol.producer.transaction import InitProducerIdRequest

    request = InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=0,
        version=4,
    )
    return int(cluster.ask_any(request).error_code) != _CLUSTER_DENIED


def denied_groups(cluster: Cluster, groups: Iterable[str], topic: str) -> list[str]:
    """Returns the groups whose offsets the user may not commit.

    Args:
        cluster: Connections to the new cluster.
        groups: Names of groups.
        topic: A topic that exists.

    Raises:
        BrokerUnavailableError: No broker answers.
    """
    return [group for group in groups if _commit_nothing(cluster, group, topic) == _GROUP_DENIED]


def _commit_nothing(cluster: Cluster, group: str, topic: str) -> int:
    """Commits an offset of a partition that does not exist, and returns the error code."""
    from kafka.protocol.consumer.group import OffsetCommitRequest

    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic_type.OffsetCommitRequestPartition(
        partition_index=_NO_PARTITION,
        committed_offset=0,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[topic_type(name=topic, partitions=[partition])],
        version=8,
    )
    (answered,) = cluster.ask_any(request).topics
    return int(answered.partitions[0].error_code)


def acl_commands(
    cluster: Cluster,
    topics: Mapping[str, Collection[str]],
    *,
    groups: Collection[str] = (),
    needs_producer_ids: bool = False,
) -> list[str]:
    """Returns commands that allow operations: a command for all topics that need the same
    operations, for all groups, and for the cluster.

    Args:
        cluster: Connections to the new cluster.
        topics: Operations to allow, by topic.
        groups: Groups whose offsets the user must commit.
        needs_producer_ids: True if the user must get producer ids.
    """
    by_operations: dict[tuple[str, ...], list[str]] = {}
    for topic, names in sorted(topics.items()):
        by_operations.setdefault(tuple(names), []).append(topic)
    wanted = [(names, "--topic", found) for names, found in by_operations.items()]
    if groups:
        wanted.append(((READ,), "--group", sorted(groups)))
    lines = [[*_flags("--operation", names), *_flags(flag, to)] for names, flag, to in wanted]
    if needs_producer_ids:
        lines.append(["--operation", _IDEMPOTENT_WRITE, "--cluster"])
    servers = ",".join(f"{host}:{port}" for host, port in cluster.settings.bootstrap)
    head = ["kafka-acls.sh", "--bootstrap-server", servers, "--add"]
    return [shlex.join([*head, "--allow-principal", "User:NAME", *line]) for line in lines]


def _flags(name: str, values: Iterable[str]) -> Iterator[str]:
    for value in values:
        yield from (name, value)


def permission_refusals(
    cluster: Cluster, topics: Mapping[str, Collection[str]], *, needs_producer_ids: bool
) -> list[str]:
    """Returns a refusal for each command that `acl_commands` returns."""
    commands = acl_commands(cluster, topics, needs_producer_ids=needs_producer_ids)
    return [f"permissions are missing: {command}. {_TO_ALLOW}" for command in commands]


def check_commit(
    cluster: Cluster,
    topics: Collection[str],
    groups: Collection[str],
    *,
    sets_configs: bool,
    needs_producer_ids: bool,
) -> None:
    """Checks that the user has all permissions that the commit of a restore needs.

    Raises:
        BrokerAccessError: Permissions are missing. The message has the commands that add them.
        BrokerUnavailableError: No broker answers.
    """
    needed = [READ, DESCRIBE]
    if sets_configs:
        needed += [DESCRIBE_CONFIGS, ALTER_CONFIGS]
    missing = missing_on_topics(cluster, dict.fromkeys(sorted(topics), needed))
    commands = acl_commands(
        cluster,
        missing,
        groups=denied_groups(cluster, groups, min(topics)) if topics else (),
        needs_producer_ids=needs_producer_ids and not may_get_producer_ids(cluster),
    )
    if commands:
        raise BrokerAccessError(
            f"permissions are missing, so this run changed nothing: {' && '.join(commands)}."
            f" {_TO_ALLOW}. Then run kts restore commit again"
        )
