"""Makes the leader of a partition lose records that are already in the tier.

The log then continues at a lower offset. The segments of the lost records stay in the tier, but are
no longer part of the log. These segments are a dead branch.
"""

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
    """Stops node 1, deletes records of a partition from its disk, and starts it again.

    Only the first half of the first segment remains, as if the disk had lost its last writes. The
    tier is unchanged. The topic must keep its segments on disk (`local_retention_bytes="-2"`,
    `retention_ms="-1"`) and have several tiered segments.

    Returns the new end of the log. The next record gets this offset, in a new leader epoch.
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
    """Kills the leader of a partition and elects a follower that lacks the newest records.

    The topic must have `replicas=(2, 3)`, in any order. Calls `lost` while the follower is stopped;
    it writes the records that will be lost. The old leader is not running when the function
    returns. If `Cluster.start_node` starts it again, it becomes a follower and truncates its log.

    Returns the node id of the old leader, and the node id of the new leader.
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
    """Removes the second half of the batches of a log file.

    Returns the offset after the last remaining record.
    """
    data = log.read_bytes()
    ends: list[tuple[int, int]] = []
    position = 0
    # A batch of magic 2 starts with base offset and length; the last offset delta is at byte 23.
    while position + 61 <= len(data):
        base, length = struct.unpack_from(">qi", data, position)
        (delta,) = struct.unpack_from(">i", data, position + 23)
        position += 12 + length
        ends.append((position, base + delta + 1))
    if len(ends) < 2:
        raise ValueError(f"{log} has {len(ends)} batches, but at least two are needed")
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
