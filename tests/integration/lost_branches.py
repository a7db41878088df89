"""Creates lost histories: the tier has segments that are not in the leader's log."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tests.integration.admin import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.cluster import Cluster

_CHECKPOINTS = (
    "replication-offset-checkpoint",
    "recovery-point-offset-checkpoint",
)


def lose_branch(cluster: Cluster, topic: str, partition: int = 0) -> int:
    """Removes the newest part of a partition from node 1's disk, like a disk that lost writes.

    The topic must keep its segments locally (`local_retention_bytes="-2"`, `retention_ms="-1"`)
    and have several tiered ones. Half of the first segment's batches stay; the tier is unchanged.

    Returns:
        The new end: the offset of the next record, which has a new leader epoch.
    """
    node = cluster.nodes[1]
    node.stop()
    folder = node.logs / f"{topic}-{partition}"
    first, *newer = sorted(folder.glob("*.log"))
    for path in newer:
        path.unlink()
    for suffix in ("*.snapshot", "*.index", "*.timeindex", "*.txnindex"):
        for path in folder.glob(suffix):
            path.unlink()
    end = _cut_in_half(first)
    for name in _CHECKPOINTS:
        _forget(node.logs / name, topic, partition)
    (node.logs / ".kafka_cleanshutdown").unlink(missing_ok=True)
    cluster.start_node(1)
    wait_until(lambda: cluster.admin.leader(topic, partition) == 1)
    return end


def elect_unclean(
    cluster: Cluster, topic: str, lost: Callable[[], None], partition: int = 0
) -> tuple[int, int]:
    """Elects a replica without the newest records as the leader of a topic on two nodes.

    Afterwards the old leader is down; after `Cluster.start_node` it follows and truncates its log.

    Args:
        cluster: A cluster with two replicas.
        topic: Created with `replicas=(2, 3)`, in any order.
        lost: Writes the records that will be lost; waits until they are tiered if they should be.
        partition: Number of the partition.

    Returns:
        The old leader and the new one.
    """
    old = cluster.admin.leader(topic, partition)
    (new,) = {number for number in cluster.replica_nodes() if number != old}
    cluster.nodes[new].stop()
    wait_until(lambda: cluster.admin.in_sync(topic, partition) == [old])
    lost()
    cluster.nodes[old].kill()
    cluster.start_node(new)
    wait_until(lambda: cluster.admin.leader(topic, partition) == -1)
    cluster.admin.elect_unclean(topic, partition)
    wait_until(lambda: cluster.admin.leader(topic, partition) == new)
    return old, new


def _cut_in_half(log: Path) -> int:
    """Truncates a segment after half of its batches; returns the new end offset."""
    data = log.read_bytes()
    ends: list[tuple[int, int]] = []
    position = 0
    # Kafka's DefaultRecordBatch: base offset, length, ..., last offset delta at byte 23.
    while position + 61 <= len(data):
        base, length = struct.unpack_from(">qi", data, position)
        (delta,) = struct.unpack_from(">i", data, position + 23)
        position += 12 + length
        ends.append((position, base + delta + 1))
    if len(ends) < 2:
        raise ValueError(f"{log} has {len(ends)} batches; two are needed")
    size, offset = ends[len(ends) // 2 - 1]
    log.write_bytes(data[:size])
    return offset


def _forget(checkpoint: Path, topic: str, partition: int) -> None:
    """Removes a partition from a checkpoint file.

    The file contains the version, the number of partitions, and a line for each partition.
    """
    version, _, *lines = checkpoint.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(f"{topic} {partition} ")]
    checkpoint.write_text("\n".join([version, str(len(kept)), *kept]) + "\n")
