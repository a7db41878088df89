"""Administers a Kafka cluster for tests: topics, offsets, users and leader elections."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.integration.list_offsets import (
    EARLIEST_LOCAL,
    LATEST_TIERED,
    ListOffsetsError,
    list_offset,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

WAIT_SECONDS = 60
_UNSETTLED = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
_INTERNAL = ("__consumer_offsets", "__transaction_state", "__remote_log_metadata")

TIERED: Mapping[str, str] = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "internal.segment.bytes": "20000",
    "index.interval.bytes": "1000",
}
"""Settings of tiered topics with small segments. Brokers delete a segment from their disks after
they copied it to the tier.
"""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets of a partition, as its leader reports them.

    Attributes:
        earliest: Log start, which is the first existing offset.
        latest: High watermark, which is the offset after the last readable record.
        last_stable: First offset of the oldest open transaction; `latest` if none is open.
        earliest_local: First offset on the leader's disk.
        tiered: Offset after the last tiered offset; 0 if nothing is tiered.
    """

    earliest: int
    latest: int
    last_stable: int
    earliest_local: int
    tiered: int


class Admin:
    """Administers a cluster over its plaintext listeners.

    Args:
        bootstraps: Plaintext addresses by `node.id`.
        class_path: Class path of Kafka's tools.
        folder: Contains the folders of the nodes.
        replica_nodes: Nodes that may have replicas of user topics.
        version: Kafka version of the brokers.
    """

    def __init__(
        self,
        bootstraps: Mapping[int, str],
        class_path: str,
        folder: Path,
        replica_nodes: tuple[int, ...],
        version: str,
    ) -> None:
        self._tiered = _tiered_settings(version)
        self._bootstraps = bootstraps
        self._class_path = class_path
        self._folder = folder
        self._replica_nodes = replica_nodes
        # Keep all clients, because futures fail after their client was garbage-collected.
        self._clients: dict[str, AdminClient] = {}

    def client(self, node: int | None = None) -> AdminClient:
        """Returns a client for one node or, if `node` is None, for all nodes."""
        address = ",".join(self._bootstraps.values()) if node is None else self._bootstraps[node]
        if address not in self._clients:
            settings: dict[str, str | int | float | bool] = {
                "bootstrap.servers": address,
                "log_level": 0,
            }
            self._clients[address] = AdminClient(settings)
        return self._clients[address]

    def brokers_known_to(self, node: int) -> list[int]:
        """Returns the ids of the running brokers that a node knows."""
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self._bootstraps[node],
            "log_level": 0,
        }
        return sorted(AdminClient(settings).list_topics(timeout=2).brokers)

    def create_internal_topics(self) -> None:
        """Creates the topics for consumer groups, for transactions and for the metadata of the
        tier.

        Kafka places all three topics on the nodes that are currently running. Waits until the
        brokers have created the metadata topic.
        """
        compacted = {"cleanup.policy": "compact"}
        topics = [NewTopic(n, 1, 1, config=compacted) for n in _INTERNAL if n != _INTERNAL[2]]
        self._settle(self.client().create_topics(topics))
        wait_until(lambda: _INTERNAL[2] in self.client().list_topics(timeout=5).topics)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replicas: tuple[int, ...] | None = None,
        **settings: str,
    ) -> str:
        """Creates a tiered topic, waits until its partitions have leaders, and returns the topic id
        as Kafka prints it.

        `replicas` are the nodes that get a replica of every partition; the first one is the
        preferred leader. The default is the first of `replica_nodes`. `settings` are added to
        `TIERED`; their names contain `_` instead of `.`.
        """
        config = {**self._tiered, **{k.replace("_", "."): v for k, v in settings.items()}}
        nodes = list(replicas or self._replica_nodes[:1])
        topic = NewTopic(name, partitions, replica_assignment=[nodes] * partitions, config=config)
        self._settle(self.client().create_topics([topic]))
        wait_until(lambda: all(self._leader(name, n) > 0 for n in range(partitions)))
        return self.topic_id(name)

    def delete_topic(self, name: str, node: int | None = None) -> None:
        """Deletes a topic and waits until brokers no longer list it.

        Brokers delete its tiered segments later. If a node was stopped, `node` must be a running
        one, because older clients may wait for the stopped node as the controller."""
        self._settle(self.client(node).delete_topics([name]))
        wait_until(lambda: name not in self.client().list_topics(timeout=5).topics)

    def topic_id(self, name: str) -> str:
        """Returns the topic id as Kafka prints it: 22 characters."""
        ids: list[str] = []

        def is_described() -> bool:
            futures = self.client().describe_topics(TopicCollection([name]))
            try:
                ids.append(str(futures[name].result(WAIT_SECONDS).topic_id))
            except KafkaException as error:
                # The node has not received the topic's metadata yet.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            return bool(ids)

        wait_until(is_described)
        # librdkafka prints ids in base64 with + and /, Kafka with - and _.
        return ids[0].translate(str.maketrans("+/", "-_"))

    def leader(self, topic: str, partition: int = 0) -> int:
        """Returns the node id of a partition's leader, or -1 if it has no leader."""
        return self._leader(topic, partition)

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        """Returns the ids of the nodes whose replica of the partition is in sync."""
        return sorted(self._partition(topic, partition).isrs)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Moves the log start of a partition to the offset `before`; -1 moves it to the high
        watermark.
        """
        self._settle(self.client().delete_records([TopicPartition(topic, partition, before)]))

    def alter_topic(self, topic: str, node: int | None = None, /, **settings: str) -> None:
        """Changes settings of a topic. In the names of `settings`, `_` stands for a dot. If a node
        was stopped, `node` must be a running one, as for `delete_topic`.
        """
        self._alter(ConfigResource(ConfigResource.Type.TOPIC, topic), settings, node)

    def topic_config(self, topic: str, name: str) -> str:
        """Returns the value of a setting of a topic."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        return str(self.client().describe_configs([resource])[resource].result(60)[name].value)

    def alter_brokers(self, **settings: str) -> None:
        """Changes dynamic settings of all brokers. Names contain `_` instead of `.`."""
        # Kafka accepts an empty broker name for all brokers, but librdkafka rejects it.
        for number in self._bootstraps:
            self._alter(ConfigResource(ConfigResource.Type.BROKER, str(number)), settings)

    def set_client_quota(self, client_id: str, consumer_bytes_per_second: int) -> None:
        """Limits the fetch rate of a client. Takes seconds, because it starts a Kafka tool."""
        quota = f"consumer_byte_rate={consumer_bytes_per_second}"
        self.run_tool(
            *("kafka.admin.ConfigCommand", "--bootstrap-server", self._bootstraps[1], "--alter"),
            *("--add-config", quota, "--entity-type", "clients", "--entity-name", client_id),
        )

    def add_scram_user(self, user: str, password: str) -> None:
        """Creates a user that can log in with SCRAM-SHA-256 and SCRAM-SHA-512."""
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion(user, info, password.encode())
            self._settle(self.client().alter_user_scram_credentials([change]))

    def allow(self, user: str, topic: str, *operations: str) -> None:
        """Permits a user to perform operations, such as `READ` and `DESCRIBE`, on a topic."""
        bindings = [
            AclBinding(
                *(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*"),
                *(AclOperation[operation], AclPermissionType.ALLOW),
            )
            for operation in operations
        ]
        self._settle(self.client().create_acls(bindings))

    def elect_unclean(self, topic: str, partition: int = 0) -> None:
        """Elects an out-of-sync replica as leader. Records that this replica lacks are lost."""
        partitions = [TopicPartition(topic, partition)]
        future = self.client().elect_leaders(ElectionType.UNCLEAN, partitions)
        for topic_partition, error in future.result(WAIT_SECONDS).items():
            if error is not None:
                raise KafkaException(error, topic_partition)

    def offsets(self, topic: str, partition: int = 0) -> Offsets:
        """Waits until a partition has a leader and returns its offsets."""
        wait_until(
            lambda: self._leader(topic, partition) in self._bootstraps,
            lambda: f"{topic}-{partition} has no leader",
        )
        return Offsets(
            earliest=self._list(topic, partition, OffsetSpec.earliest()),
            latest=self._list(topic, partition, OffsetSpec.latest()),
            last_stable=self._list(
                topic, partition, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED
            ),
            earliest_local=self._list_by_protocol(topic, partition, EARLIEST_LOCAL),
            tiered=self._list_by_protocol(topic, partition, LATEST_TIERED) + 1,
        )

    def wait_tiered(self, topic: str, partition: int, until: int) -> Offsets:
        """Waits until the tier has all offsets below `until`.

        Brokers never copy the active segment, so `until` must not be inside it."""
        return self._wait_offsets(topic, partition, lambda offsets: offsets.tiered >= until)

    def wait_local_deleted(self, topic: str, partition: int, before: int) -> Offsets:
        """Waits until the first offset on the leader's disk is at least `before`."""
        return self._wait_offsets(
            topic, partition, lambda offsets: offsets.earliest_local >= before
        )

    def wait_stable(self, topic: str, partition: int = 0) -> Offsets:
        """Waits until no transaction is open.

        This can take longer than the commit, because brokers write the marker later."""
        return self._wait_offsets(
            topic, partition, lambda offsets: offsets.last_stable == offsets.latest
        )

    def local_bases(self, node: int, topic: str, partition: int = 0) -> list[int]:
        """Returns the base offsets of the segments on a node's disk."""
        folder = self._folder / f"node-{node}" / "logs" / f"{topic}-{partition}"
        return sorted(int(path.stem) for path in folder.glob("*.log"))

    def run_tool(self, *command: str) -> str:
        """Runs one of Kafka's tools.

        Raises:
            RuntimeError: The tool failed. The message contains its output.
        """
        run = subprocess.run(
            ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", self._class_path, *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(f"{command[0]} failed:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        return run.stdout

    def _wait_offsets(
        self, topic: str, partition: int, is_reached: Callable[[Offsets], bool]
    ) -> Offsets:
        last: list[Offsets] = []

        def check() -> bool:
            last[:] = [self.offsets(topic, partition)]
            return is_reached(last[0])

        wait_until(check, lambda: f"{topic}-{partition} is at {last}")
        return last[0]

    def _list_by_protocol(self, topic: str, partition: int, timestamp: int) -> int:
        """Returns the offset that a partition's leader reports for a special timestamp:
        `EARLIEST_LOCAL` or `LATEST_TIERED`.

        Sends the request without librdkafka, which rejects these timestamps. Retries until the
        partition has a leader that responds.
        """
        offsets: list[int] = []

        def ask() -> bool:
            address = self._bootstraps.get(self._leader(topic, partition))
            try:
                offsets[:] = (
                    [] if address is None else [list_offset(address, topic, partition, timestamp)]
                )
            except ListOffsetsError as error:  # the leader changes, or is new
                if error.code not in _UNSETTLED:
                    raise
            return bool(offsets)

        wait_until(ask, lambda: f"{topic}-{partition} has no leader that answers")
        return offsets[0]

    def _list(
        self,
        topic: str,
        partition: int,
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> int:
        topic_partition = TopicPartition(topic, partition)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            futures = self.client().list_offsets({topic_partition: spec}, isolation_level=isolation)
            future = futures[topic_partition]
            try:
                return int(future.result(WAIT_SECONDS).offset)
            except KafkaException as error:  # the leader changes, or is new
                if error.args[0].code() not in _UNSETTLED or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _partition(self, topic: str, partition: int) -> Any:  # noqa: ANN401 - has no public type
        return self.client().list_topics(topic, timeout=10).topics[topic].partitions[partition]

    def _leader(self, topic: str, partition: int) -> int:
        partitions = self.client().list_topics(topic, timeout=10).topics[topic].partitions
        return int(partitions[partition].leader) if partition in partitions else -1

    def _alter(
        self, resource: ConfigResource, settings: Mapping[str, str], node: int | None = None
    ) -> None:
        for name, value in settings.items():
            entry = ConfigEntry(
                name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET
            )
            resource.add_incremental_config(entry)
        self._settle(self.client(node).incremental_alter_configs([resource]))

    def _settle(self, futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(WAIT_SECONDS)


def _tiered_settings(version: str) -> dict[str, str]:
    """Returns the topic settings in `TIERED`, with the names that Kafka `version` uses.

    Before 4.0, Kafka has `segment.bytes` instead of `internal.segment.bytes`."""
    if not version.startswith("3."):
        return dict(TIERED)
    return {name.removeprefix("internal."): value for name, value in TIERED.items()}


def wait_until(
    is_reached: Callable[[], bool],
    describe: Callable[[], str] = lambda: "",
    seconds: float = WAIT_SECONDS,
) -> None:
    """Calls `is_reached` ten times per second until it returns true.

    Raises:
        TimeoutError: `is_reached` still returns false after `seconds`. The message contains the
            result of `describe`.
    """
    deadline = time.monotonic() + seconds
    while not is_reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"condition is still false after {seconds} s: {describe()}")
        time.sleep(0.1)
