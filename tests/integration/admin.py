"""What a test asks of a cluster and changes in it, as an administrator."""

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
"""Closed segments move to the tier, and small ones so that there are many."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """What the leader of a partition says; offsets are exclusive ends or first offsets.

    Attributes:
        earliest: Log start.
        latest: High watermark.
        last_stable: Below it no transaction is open.
        earliest_local: First offset on the leader's disk.
        tiered: One past the last tiered offset that the leader remembers; 0 for none.
    """

    earliest: int
    latest: int
    last_stable: int
    earliest_local: int
    tiered: int


class Admin:
    """Administrator of one cluster, over plaintext.

    Args:
        bootstraps: `node.id` to its plaintext address.
        class_path: Of Kafka's tools.
        folder: Holds the nodes' folders.
        replica_nodes: Where user topics live.
        version: Of Kafka.
    """

    def __init__(
        self,
        bootstraps: Mapping[int, str],
        class_path: str,
        folder: Path,
        replica_nodes: tuple[int, ...],
        version: str,
    ) -> None:
        self._tiered = _tiered(version)
        self._bootstraps = bootstraps
        self._class_path = class_path
        self._folder = folder
        self._replica_nodes = replica_nodes
        # Futures fail when their client is gone, so each is kept.
        self._clients: dict[str, AdminClient] = {}

    def client(self, node: int | None = None) -> AdminClient:
        """The client of the whole cluster, or of one node."""
        address = ",".join(self._bootstraps.values()) if node is None else self._bootstraps[node]
        if address not in self._clients:
            settings: dict[str, str | int | float | bool] = {
                "bootstrap.servers": address,
                "log_level": 0,
            }
            self._clients[address] = AdminClient(settings)
        return self._clients[address]

    def brokers_known_to(self, node: int) -> list[int]:
        """Ids of the brokers that are alive, as a node says that was asked itself."""
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self._bootstraps[node],
            "log_level": 0,
        }
        return sorted(AdminClient(settings).list_topics(timeout=2).brokers)

    def create_internal_topics(self) -> None:
        """Creates the topics of groups and transactions, and waits for the one of the tier.

        They come to live on the nodes that run now.
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
        """Creates a tiered topic and waits until its partitions have leaders.

        Args:
            name: Of the topic.
            partitions: How many.
            replicas: Nodes that hold every partition, the preferred leader first; None: the first
                one that user topics live on.
            settings: Topic settings with `_` for `.`, on top of `TIERED`.

        Returns:
            The topic id, as Kafka prints it.
        """
        config = {**self._tiered, **{k.replace("_", "."): v for k, v in settings.items()}}
        nodes = list(replicas or self._replica_nodes[:1])
        topic = NewTopic(name, partitions, replica_assignment=[nodes] * partitions, config=config)
        self._settle(self.client().create_topics([topic]))
        wait_until(lambda: all(self._leader(name, n) > 0 for n in range(partitions)))
        return self.topic_id(name)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and waits until it is not listed; its tier goes later."""
        self._settle(self.client().delete_topics([name]))
        wait_until(lambda: name not in self.client().list_topics(timeout=5).topics)

    def topic_id(self, name: str) -> str:
        """The topic id, as Kafka prints it: 22 characters."""
        found: list[str] = []

        def described() -> bool:
            futures = self.client().describe_topics(TopicCollection([name]))
            try:
                found.append(str(futures[name].result(WAIT_SECONDS).topic_id))
            except KafkaException as error:
                # A node that has not heard of it yet.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            return bool(found)

        wait_until(described)
        # librdkafka prints the other base64 alphabet.
        return found[0].translate(str.maketrans("+/", "-_"))

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition; -1 while none does."""
        return self._leader(topic, partition)

    def in_sync(self, topic: str, partition: int = 0) -> list[int]:
        """The nodes whose replicas are in sync."""
        return sorted(self._partition(topic, partition).isrs)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Moves the log start up to an offset; -1 means the high watermark."""
        self._settle(self.client().delete_records([TopicPartition(topic, partition, before)]))

    def alter_topic(self, topic: str, **settings: str) -> None:
        """Changes settings of a topic, with `_` for `.`."""
        self._alter(ConfigResource(ConfigResource.Type.TOPIC, topic), settings)

    def alter_brokers(self, **settings: str) -> None:
        """Changes dynamic settings of all brokers, with `_` for `.`."""
        # librdkafka refuses the empty name that stands for all.
        for number in self._bootstraps:
            self._alter(ConfigResource(ConfigResource.Type.BROKER, str(number)), settings)

    def set_client_quota(self, client_id: str, consumer_bytes_per_second: int) -> None:
        """Bounds what one client may fetch, with Kafka's own tool (some seconds)."""
        quota = f"consumer_byte_rate={consumer_bytes_per_second}"
        self.run_tool(
            *("kafka.admin.ConfigCommand", "--bootstrap-server", self._bootstraps[1], "--alter"),
            *("--add-config", quota, "--entity-type", "clients", "--entity-name", client_id),
        )

    def add_scram_user(self, user: str, password: str) -> None:
        """Creates a user for SCRAM-SHA-256 and SCRAM-SHA-512."""
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion(user, info, password.encode())
            self._settle(self.client().alter_user_scram_credentials([change]))

    def allow(self, user: str, topic: str, *operations: str) -> None:
        """Allows a user some operations on a topic, such as `READ` and `DESCRIBE`."""
        bindings = [
            AclBinding(
                *(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*"),
                *(AclOperation[operation], AclPermissionType.ALLOW),
            )
            for operation in operations
        ]
        self._settle(self.client().create_acls(bindings))

    def elect_unclean(self, topic: str, partition: int = 0) -> None:
        """Lets a replica lead that is not in sync: what only the others have is lost."""
        wanted = [TopicPartition(topic, partition)]
        future = self.client().elect_leaders(ElectionType.UNCLEAN, wanted)
        for at, error in future.result(WAIT_SECONDS).items():
            if error is not None:
                raise KafkaException(error, at)

    def offsets(self, topic: str, partition: int = 0) -> Offsets:
        """All that the leader says of a partition's offsets, once there is one."""
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
            earliest_local=self._told(topic, partition, EARLIEST_LOCAL),
            tiered=self._told(topic, partition, LATEST_TIERED) + 1,
        )

    def wait_tiered(self, topic: str, partition: int, until: int) -> Offsets:
        """Waits until the tier has all below an offset; the active segment never goes there."""
        return self._wait_offsets(topic, partition, lambda found: found.tiered >= until)

    def wait_local_deleted(self, topic: str, partition: int, before: int) -> Offsets:
        """Waits until the leader's disk begins at an offset or later."""
        return self._wait_offsets(topic, partition, lambda found: found.earliest_local >= before)

    def wait_stable(self, topic: str, partition: int = 0) -> Offsets:
        """Waits until no transaction is open; markers are written after a commit has returned."""
        return self._wait_offsets(topic, partition, lambda found: found.last_stable == found.latest)

    def local_bases(self, node: int, topic: str, partition: int = 0) -> list[int]:
        """Base offsets of the segments on a node's disk."""
        folder = self._folder / f"node-{node}" / "logs" / f"{topic}-{partition}"
        return sorted(int(path.stem) for path in folder.glob("*.log"))

    def run_tool(self, *command: str) -> str:
        """Runs one of Kafka's tools.

        Raises:
            RuntimeError: It fails; with what it printed.
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
        self, topic: str, partition: int, is_there: Callable[[Offsets], bool]
    ) -> Offsets:
        last: list[Offsets] = []

        def look() -> bool:
            last[:] = [self.offsets(topic, partition)]
            return is_there(last[0])

        wait_until(look, lambda: f"{topic}-{partition} is at {last}")
        return last[0]

    def _told(self, topic: str, partition: int, timestamp: int) -> int:
        """What the leader answers to a question that librdkafka does not ask."""
        found: list[int] = []

        def ask() -> bool:
            address = self._bootstraps.get(self._leader(topic, partition))
            try:
                found[:] = (
                    [] if address is None else [list_offset(address, topic, partition, timestamp)]
                )
            except ListOffsetsError as error:  # of a leader that changes, or is new
                if error.code not in _UNSETTLED:
                    raise
            return bool(found)

        wait_until(ask, lambda: f"{topic}-{partition} has no leader that answers")
        return found[0]

    def _list(
        self,
        topic: str,
        partition: int,
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> int:
        at = TopicPartition(topic, partition)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            future = self.client().list_offsets({at: spec}, isolation_level=isolation)[at]
            try:
                return int(future.result(WAIT_SECONDS).offset)
            except KafkaException as error:  # of a leader that changes, or is new
                if error.args[0].code() not in _UNSETTLED or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _partition(self, topic: str, partition: int) -> Any:  # noqa: ANN401 - has no public type
        return self.client().list_topics(topic, timeout=10).topics[topic].partitions[partition]

    def _leader(self, topic: str, partition: int) -> int:
        found = self.client().list_topics(topic, timeout=10).topics[topic].partitions
        return int(found[partition].leader) if partition in found else -1

    def _alter(self, resource: ConfigResource, settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            entry = ConfigEntry(
                name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET
            )
            resource.add_incremental_config(entry)
        self._settle(self.client().incremental_alter_configs([resource]))

    def _settle(self, futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(WAIT_SECONDS)


def _tiered(version: str) -> dict[str, str]:
    """`TIERED` in the names of a version: before 4.0 `segment.bytes` itself may be small."""
    if not version.startswith("3."):
        return dict(TIERED)
    return {name.removeprefix("internal."): value for name, value in TIERED.items()}


def wait_until(
    is_there: Callable[[], bool],
    told: Callable[[], str] = lambda: "",
    seconds: float = WAIT_SECONDS,
) -> None:
    """Waits until something is so.

    Args:
        is_there: Asked ten times a second.
        told: What the error says.
        seconds: How long to wait.

    Raises:
        TimeoutError: It never became so.
    """
    deadline = time.monotonic() + seconds
    while not is_there():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {seconds} s: {told()}")
        time.sleep(0.1)
