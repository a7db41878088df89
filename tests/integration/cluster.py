"""Runs a KRaft cluster of Kafka with tiered storage, in one folder and on free local ports.

Node 1 is broker and controller and has the internal topics. A cluster with `replicas` > 1 has
additional brokers for user topics, so tests can stop any of them.
"""

from __future__ import annotations

import base64
import os
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from confluent_kafka import KafkaException

from tests.integration.admin import Admin
from tests.integration.kafka_jars import KAFKA_VERSION, kafka_class_path
from tests.integration.nodes import Node
from tests.servers import free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.integration.certificates import Certificates

START_SECONDS = 90
BUSY = {"broker.session.timeout.ms": "18000"}
"""Settings for tests in which no broker dies: brokers that respond late on a slow machine must not
count as dead. A killed broker can only restart after this timeout.
"""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Settings of a cluster.

    Attributes:
        replicas: Number of brokers that have user topics: 1 (node 1) or 2 (nodes 2 and 3).
        version: Kafka version.
        certificates: If set, the brokers also listen on SASL_SSL (SCRAM and PLAIN) and SSL.
        passwords: Passwords of the users that may log in with SASL mechanism PLAIN.
            `Admin.add_scram_user` creates users for SCRAM.
        has_acls: If true, users that log in need permissions (ACLs). Clients of the plaintext
            listener never need them.
        has_racks: If true, node n is in rack `rack-n`, and consumers may fetch from the replica in
            their own rack.
        interval_ms: Interval of the brokers' tiering and retention tasks, in milliseconds.
        settings: Additional broker settings.
        classes: Folder with additional Java classes for the brokers' class path.
    """

    replicas: int = 1
    version: str = KAFKA_VERSION
    certificates: Certificates | None = None
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    has_acls: bool = False
    has_racks: bool = False
    interval_ms: int = 300
    settings: Mapping[str, str] = field(default_factory=dict)
    classes: Path | None = None


class Cluster:
    """A cluster that runs during a `with` block.

    Args:
        folder: Folder of the cluster. Subfolder `tier` contains the tier; subfolders `node-1`, …
            contain the disks of the nodes.
        spec: Settings of the cluster.

    Attributes:
        tier: Folder of the storage plugin; it remains after the brokers stop.
        nodes: Nodes by `node.id`.
        admin: Administers the cluster.
    """

    def __init__(self, folder: Path, spec: ClusterSpec | None = None) -> None:
        self.spec = spec or ClusterSpec()
        self.folder = folder
        self.tier = folder / "tier"
        self.class_path = kafka_class_path(self.spec.version)
        if self.spec.classes is not None:
            self.class_path += f"{os.pathsep}{self.spec.classes}"
        self.nodes = {number: self._node(number) for number in self._numbers()}
        self.admin = Admin(
            {n: node.bootstrap for n, node in self.nodes.items()},
            self.class_path,
            folder,
            tuple(self.replica_nodes()),
            self.spec.version,
        )

    @property
    def bootstrap(self) -> str:
        """Returns the plaintext addresses of all nodes."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def address(self, listener: str) -> str:
        """Returns the addresses of all nodes for a listener: `PLAINTEXT`, `SASL_SSL` or `SSL`."""
        return ",".join(f"127.0.0.1:{node.ports[listener]}" for node in self.nodes.values())

    def replica_nodes(self) -> list[int]:
        """Returns the ids of the nodes that have user topics."""
        return [number for number in self.nodes if number > 1] or [1]

    def __enter__(self) -> Self:
        """Formats new disks, starts all nodes and waits until they are ready."""
        self.tier.mkdir(parents=True, exist_ok=True)
        cluster_id = base64.urlsafe_b64encode(b"\x00" + secrets.token_bytes(15)).decode()
        for node in self.nodes.values():
            port = self.nodes[1].ports["CONTROLLER"]
            node.configure(self.tier, port, self.spec.interval_ms, self._settings(node.number))
        new = [node for node in self.nodes.values() if not node.logs.exists()]
        formats = [node.begin_format(cluster_id) for node in new]
        try:
            for node, process in zip(new, formats, strict=True):
                if process.wait(60) != 0:
                    raise RuntimeError(f"the disk was not formatted:\n{node.last_log_lines()}")
            # Start node 1 first, so that Kafka creates the internal topics on it.
            self.start_node(1)
            for number in self.nodes:
                if number > 1:
                    self.nodes[number].start()
                elif new:
                    self.admin.create_internal_topics()
            self.wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def start_node(self, number: int) -> None:
        """Starts a stopped or killed node and waits until it is ready."""
        self.nodes[number].start()
        self.wait_ready()

    def restart_node(self, number: int, *, is_clean: bool = True) -> None:
        """Stops a node and starts it again. If `is_clean` is false, kills the node instead of
        stopping it.
        """
        self.nodes[number].stop() if is_clean else self.nodes[number].kill()
        self.start_node(number)

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Waits until every running node responds and knows all other running nodes.

        Raises:
            RuntimeError: A node ended, or the nodes are not ready after `seconds`. The message
                contains the last lines of their logs.
        """
        deadline = time.monotonic() + seconds
        running = [node for node in self.nodes.values() if node.is_running]
        expected = {node.number for node in running}
        while not all(self._knows(node, expected) for node in running):
            dead = [node.number for node in running if not node.is_running]
            if dead or time.monotonic() > deadline:
                logs = "\n".join(node.last_log_lines() for node in running)
                raise RuntimeError(f"the cluster is not ready; nodes that ended: {dead}\n{logs}")
            time.sleep(0.1)

    def last_log_lines(self) -> str:
        """Returns the last lines of every node's log file, for error messages."""
        return "\n".join(node.last_log_lines() for node in self.nodes.values())

    def _knows(self, node: Node, expected: set[int]) -> bool:
        try:
            return set(self.admin.brokers_known_to(node.number)) >= expected
        except KafkaException:
            return False

    def _numbers(self) -> range:
        return range(1, 2 if self.spec.replicas == 1 else self.spec.replicas + 2)

    def _node(self, number: int) -> Node:
        names = ["PLAINTEXT"]
        if self.spec.certificates:
            names += ["SASL_SSL", "SSL"]
        if number == 1:
            names.append("CONTROLLER")
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        return Node(number, self.folder / f"node-{number}", self.class_path, ports)

    def _settings(self, number: int) -> dict[str, str]:
        spec = self.spec
        settings: dict[str, str] = {}
        if spec.certificates:
            settings |= spec.certificates.broker_settings(spec.passwords)
        if spec.has_acls:
            settings["authorizer.class.name"] = (
                "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
            )
            settings["super.users"] = "User:ANONYMOUS"
        if spec.has_racks:
            settings["broker.rack"] = f"rack-{number}"
            settings["replica.selector.class"] = (
                "org.apache.kafka.common.replica.RackAwareReplicaSelector"
            )
        return settings | dict(spec.settings)

    def _stop(self) -> None:
        # The controller stops last, because a broker's clean shutdown needs it.
        for number in sorted(self.nodes, reverse=True):
            self.nodes[number].stop()
