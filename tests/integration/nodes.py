"""Configures, starts and stops one process of a Kafka cluster."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from segment_format.index.checkpoints import parse_offset_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

STOP_SECONDS = 40
LOG_CHARS = 4000

_PROPERTIES = """
node.id={node}
process.roles={roles}
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={folder}/logs
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=4
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.check.interval.ms={interval_ms}
log.initial.task.delay.ms=500
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=3000
replica.fetch.wait.max.ms=100
remote.log.storage.system.enable=true
remote.log.metadata.manager.class.name=org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.listener.name=PLAINTEXT
remote.log.metadata.manager.impl.prefix=rlmm.config.
rlmm.config.remote.log.metadata.topic.replication.factor=1
rlmm.config.remote.log.metadata.topic.num.partitions=1
remote.log.manager.task.interval.ms={interval_ms}
remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage
remote.log.storage.manager.impl.prefix=rsm.config.
rsm.config.dir={tier}
"""

_LOG4J2 = """
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1}: %m%n
"""


@dataclass(slots=True)
class Node:
    """A Kafka process that can be stopped, killed and restarted with the same folder and ports.

    Attributes:
        number: Value of `node.id`.
        folder: Folder with settings, log file and the log directory `logs`.
        class_path: Java class path with Kafka's broker.
        ports: Ports by name of the listener.
    """

    number: int
    folder: Path
    class_path: str
    ports: Mapping[str, int]
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def logs(self) -> Path:
        """Returns the node's only log directory (`log.dirs`)."""
        return self.folder / "logs"

    @property
    def bootstrap(self) -> str:
        """Returns `host:port` of the plaintext listener."""
        return f"127.0.0.1:{self.ports['PLAINTEXT']}"

    @property
    def is_running(self) -> bool:
        """Returns whether the process is running; it may still be starting."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"node {self.number} has not been started")
        return self._process.pid

    def configure(
        self, tier: Path, controller_port: int, interval_ms: int, settings: Mapping[str, str]
    ) -> None:
        """Writes two files to the node's folder: broker settings and log settings.

        Args:
            tier: Folder of the tier, which all nodes share.
            controller_port: Port of the controller on node 1.
            interval_ms: Interval of the node's tiering and retention tasks, in milliseconds.
            settings: Additional settings, which override the defaults of this class.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        is_controller = "CONTROLLER" in self.ports
        clients = {name: port for name, port in self.ports.items() if name != "CONTROLLER"}
        text = _PROPERTIES.format(
            node=self.number,
            roles="broker,controller" if is_controller else "broker",
            listeners=_listeners(self.ports),
            advertised=_listeners(clients),
            controller_port=controller_port,
            interval_ms=interval_ms,
            folder=self.folder,
            tier=tier,
        )
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        self._properties.write_text(text + "".join(lines))
        (self.folder / "log4j2.properties").write_text(_LOG4J2)

    def begin_format(self, cluster_id: str) -> subprocess.Popen[bytes]:
        """Starts a process that formats the disk, and returns it.

        Before you call `start`, wait until the process has ended with exit code 0.
        """
        command = ("kafka.tools.StorageTool", "format", "-t", cluster_id.rstrip("="))
        return self._java("-Xmx128m", *command, "-c", str(self._properties))

    def start(self) -> None:
        """Starts the process without waiting until it is ready."""
        if self.is_running:
            raise RuntimeError(f"node {self.number} is already running")
        self._process = self._java("-Xmx512m", "kafka.Kafka", str(self._properties))

    def stop(self) -> None:
        """Stops the process cleanly; kills it after `STOP_SECONDS`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the process, like a crash."""
        self._end(signal.SIGKILL)

    def checkpoint(self, name: str) -> dict[tuple[str, int], int]:
        """Returns the offsets in the checkpoint file `name`, by topic and partition.

        An example of a name is `replication-offset-checkpoint`. The broker writes these files
        periodically. Returns an empty map if the file does not exist yet.
        """
        path = self.logs / name
        return parse_offset_checkpoint(path.read_bytes()) if path.exists() else {}

    def last_log_lines(self) -> str:
        """Returns the last lines of the node's log file, for error messages."""
        return f"node {self.number}:\n{self._log.read_text(errors='replace')[-LOG_CHARS:]}"

    @property
    def _log(self) -> Path:
        return self.folder / "broker.log"

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, heap: str, *command: str) -> subprocess.Popen[bytes]:
        # With these options, a JVM starts in two thirds of the time.
        quick = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
        log4j = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        with self._log.open("ab") as output:
            return subprocess.Popen(
                ["java", heap, *quick, log4j, "-cp", self.class_path, *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
