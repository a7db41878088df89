"""Provides a new cluster and the log directory of its stopped broker, for tests of restores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kts_source.planning.metadata_topic import REMOTE_LOG_METADATA, read_metadata_topic
from kts_source.restore.committing import status_restore
from kts_source.restore.restore_plan import plan_restore, read_plan
from kts_source.restore.writing import write_restore
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import TIER, tier_options
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import empty_log

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping
    from pathlib import Path

    from kts_source.restore.restore_plan import RestorePlan
    from segment_format.metadata.model import RemoteLogSegmentMetadata

READY = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "remote.storage.enable": "false",
}

# Lines of `kts restore status`.
AGAIN = (
    "next: run kts restore write again with the same arguments; do not start broker 0 before it is"
    " complete"
)
NOT_COMPARED = "the rows of the log directory are not compared with the tier"
WRITTEN = "the log directory has the rows of the tier"
START = "next: start broker 0, then kts restore verify"
VERIFIED = "verified: the brokers have the same rows, log starts and ends"


@dataclass(frozen=True, slots=True)
class NewCluster:
    """A cluster with empty topics, and the log directory of the broker that leads them.

    Attributes:
        brokers: The running brokers.
        log_dir: Log directory of a stopped broker. It is empty until `add_topic`.
        plan_file: Path for the plan.
    """

    brokers: FakeCluster
    log_dir: Path
    plan_file: Path

    @property
    def target(self) -> dict[str, str]:
        """Returns the options of the new cluster."""
        return {"kafka.bootstrap.servers": self.brokers.bootstrap}

    def add_topic(
        self,
        topic: str,
        partitions: int = 1,
        epoch: int = 100,
        topic_id: uuid.UUID | None = None,
    ) -> None:
        """Creates an empty topic whose leaders have the leader epoch `epoch`."""
        created = [FakePartition(empty_log(), epoch=epoch) for _ in range(partitions)]
        id_text = self.brokers.create(topic, created, topic_id)
        for number in range(partitions):
            folder = self.log_dir / f"{topic}-{number}"
            folder.mkdir()
            (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {id_text}")
            (folder / "leader-epoch-checkpoint").write_text("0\n0\n")
            for suffix in ("log", "index", "timeindex"):
                (folder / f"{0:020d}.{suffix}").touch()

    def plan(self, options: Mapping[str, str], **more: Any) -> RestorePlan:  # noqa: ANN401
        """Plans a restore and stores the plan."""
        plan = plan_restore(options, self.target, **more)
        self.plan_file.write_text(plan.to_json())
        return plan

    def write(self, options: Mapping[str, str], **more: Any) -> None:  # noqa: ANN401
        """Writes the stored plan."""
        write_restore(str(self.plan_file), options, str(self.log_dir), **more)

    def files(self) -> dict[str, bytes]:
        """Returns the content of all files below the log directory, by relative path."""
        paths = (path for path in self.log_dir.rglob("*") if path.is_file())
        return {str(path.relative_to(self.log_dir)): path.read_bytes() for path in paths}


def state_of(cluster: NewCluster) -> tuple[str, ...]:
    """Returns the status of the restore without the log directory, which is only in its first
    line.
    """
    lines = status_restore(str(cluster.plan_file))
    is_begun = lines[0] == f"log directory: {cluster.log_dir.resolve()}"
    return tuple(lines[1:] if is_begun else lines)


def states_after_each_step(cluster: NewCluster) -> list[tuple[str, ...]]:
    """Returns the status after each line of the journal, as if the process was killed there."""
    journal = cluster.plan_file.with_name("plan.json.journal")
    lines = journal.read_text().splitlines(keepends=True)
    states = []
    for count in range(len(lines) + 1):
        journal.write_text("".join(lines[:count]))
        states.append(state_of(cluster))
    return states


def new_cluster(folder: Path, brokers: FakeCluster) -> NewCluster:
    """Returns a cluster without topics. `folder` gets the log directory."""
    brokers.configs = dict(READY)
    log_dir = folder / "logs"
    log_dir.mkdir(parents=True)
    (log_dir / "meta.properties").write_text("#\nversion=1\ncluster.id=fake\nnode.id=0\n")
    return NewCluster(brokers, log_dir, folder / "plan.json")


SEED, OTHER = 0, 1
"""Nodes of `serving_cluster`: the seed gets the log, the other leads the topic of events."""


def serving_cluster(folder: Path, brokers: FakeCluster, topic: str = "orders") -> NewCluster:
    """Returns a cluster that is ready for zero copy. Its seed has an empty topic."""
    cluster = new_cluster(folder, brokers)
    brokers.configs |= {
        "remote.storage.enable": "true",
        "local.retention.ms": "-2",
        "local.retention.bytes": "-1",
    }
    cluster.add_topic(topic)
    events = [FakePartition(empty_log(), leader=OTHER) for _ in range(3)]
    brokers.create(REMOTE_LOG_METADATA, events)
    return cluster


def finished_segments(cluster: NewCluster, topic: str = "orders") -> list[RemoteLogSegmentMetadata]:
    """Returns the finished segments of the new topic, as brokers see them."""
    topic_id = read_plan(str(cluster.plan_file)).target_ids[topic]
    state = read_metadata_topic(
        cluster.brokers.settings(), {(topic, 0): topic_id}, max_batch_bytes=1 << 20
    )
    (named,) = state.partitions.values()
    assert (named.copying, named.deleting, named.read.missing) == ([], [], ())
    return named.live


def copied_tier(folder: Path, topic: str, *, lost: int | None = None) -> dict[str, str]:
    """Copies a topic of the golden tier, without the objects of segment `lost`. Returns the options
    of the copy.
    """
    (source,) = (TIER / "tiered").glob(f"{topic}-*")
    paths = sorted((source / "0").iterdir())
    stems = sorted({path.name.rsplit(".", 1)[0] for path in paths})
    target = folder / "tier" / "tiered" / source.name / "0"
    target.mkdir(parents=True)
    for path in paths:
        if lost is None or not path.name.startswith(stems[lost]):
            (target / path.name).write_bytes(path.read_bytes())
    return tier_options(topic, path=str(folder / "tier"))


def _small_log() -> LogBuilder:
    builder = LogBuilder(leader_epoch=3, codec="gzip")
    for number in range(3):
        builder.append([SimpleRecord(b"value %d" % number, b"key"), SimpleRecord(None, None)])
        builder.send(9, [SimpleRecord(b"in a transaction", b"t", headers=(("h", None),))])
        builder.abort(9) if number == 1 else builder.commit(9)
        builder.roll()
    return builder


SMALL_LOG = _small_log().build()
"""A log of three segments, with committed and aborted transactions."""


def write_small_tier(folder: Path, topic: str, *partitions: int) -> dict[str, str]:
    """Writes `SMALL_LOG` to partitions (by default 0) of a tier in the layout of Aiven's plugin.
    Returns its options.
    """
    topic_id = None
    for number in partitions or (0,):
        writer = AivenTierWriter(
            folder, topic=topic, key_prefix="tiered/", partition=number, topic_id=topic_id
        )
        topic_id = writer.topic_id
        for files in SMALL_LOG.segments:
            if files.log:
                writer.write_segment(files)
    return {"path": str(folder), "keyPrefix": "tiered/", "subscribe": topic}
