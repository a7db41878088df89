"""Which replica of a partition survives, and where its log ends for a consumer.

The branch of the highest leader epoch survives, and the replica that goes furthest along it is
read: of all, a cluster would choose it as leader to lose least. A high watermark counts when its
replica agrees with that branch on all offsets below it; one that was recorded on a branch that died
says nothing of this log.
Source: KIP-101, `LeaderEpochFileCache.endOffsetFor`, `ReplicaManager` in Kafka.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.errors import DataLossError
from kts_source.layout.layout import Orphan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.layout.kafka_logs.log_dirs import TopicPartition
    from kts_source.layout.kafka_logs.replica import Replica
    from segment_format.index.checkpoints import EpochEntry

MAX_OFFSET: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Branch:
    """A history of leader epochs.

    Attributes:
        lineage: Its leader epochs with their first offsets.
        log_start: First offset from which on they are known.
        stop: One past the last.
    """

    lineage: tuple[EpochEntry, ...]
    log_start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SurvivingLog:
    """The replica that is read.

    Attributes:
        stop: One past the last offset that is read.
        promised: One past the last offset that some file says was there: more than `stop` where
            records were lost.
        high_watermark: The highest that was recorded on its branch; `None` = there is none.
    """

    replica: Replica
    stop: int
    promised: int
    high_watermark: int | None
    notes: tuple[Orphan, ...]


def newest_branch(replicas: Sequence[Replica]) -> Branch:
    """The branch of the highest leader epoch that a replica tells of."""
    one = max(replicas, key=lambda one: (one.last_epoch, one.stop, one.folder))
    start = one.history[0].start_offset if one.history else one.log_start
    return Branch(one.history, start, MAX_OFFSET)


def furthest(replicas: Sequence[Replica], branch: Branch) -> Replica:
    """Returns the replica that goes furthest along a branch; of those with the same end, one that
    lost nothing in between, and then the one with the most bytes: files that are gone without a
    trace, or a log that was cut, show in no other way.
    """
    return max(
        replicas,
        key=lambda one: (
            _reach(one, branch),
            -one.lost_in_between,
            one.log_bytes,
            one.last_epoch,
            one.high_watermark or -1,
            -one.log_start,
            one.folder,
        ),
    )


def agreed_to(one: Replica | Branch, branch: Branch) -> int:
    """Up to which offset what is known of a log holds for a branch, too; −1 where they part at the
    first offset that both tell of: they may have parted before.
    """
    at = parts_at(one, branch)
    if at is None:
        return MAX_OFFSET
    return at if at > max(one.log_start, branch.log_start) else -1


def _reach(one: Replica, branch: Branch) -> int:
    """One past the last offset that a replica has of a branch; −1 for none."""
    return min(one.stop, agreed_to(one, branch))


def surviving_log(
    place: TopicPartition,
    replicas: Sequence[Replica],
    *,
    end_of_log: bool,
    branch: Branch | None = None,
    replicated: int = 0,
) -> SurvivingLog:
    """Chooses the replica and its end.

    Args:
        place: The partition, for errors.
        replicas: At least one.
        end_of_log: Whether to read all whole batches, whatever was replicated.
        branch: What survives; default: the newest branch of the replicas. Of them, the one that
            goes furthest along it is read, up to where they part.
        replicated: Offsets below it are known to have been replicated, whatever the disks say.

    Raises:
        DataLossError: No high watermark tells the end, though there are records.
    """
    branch = branch or newest_branch(replicas)
    best = furthest(replicas, branch)
    notes = []
    marks = []
    for one in replicas:
        at = parts_at(one, branch)
        if at is not None:
            reason = f"from offset {at} on of a branch that died"
            reason += f"; {best.folder} is read" if one is not best else ""
            notes.append(Orphan((one.folder,), reason))
        if one.high_watermark is not None and one.high_watermark <= agreed_to(one, branch):
            marks.append(one.high_watermark)
    end, flushed = _reach(best, branch), best.recovery_point or 0
    if end < best.log_start:  # nothing on the disks is of the branch
        return SurvivingLog(best, 0, 0, None, tuple(notes))
    if end_of_log:
        told = [flushed, best.lost_end] if end == best.stop else []
        stop, promised = end, max([end, *told, *marks])
    elif marks:
        promised = max([best.log_start, *marks])
        stop = min(end, max(promised, replicated))
    elif any(one.log_dir.high_watermarks is not None for one in replicas):
        # The file is written every few seconds: the partition is younger, and a broker that starts
        # takes it that nothing was replicated.
        promised = best.log_start
        stop = min(end, max(promised, replicated))
        if end > stop:
            text = "no high watermark is recorded, so none of its records is read: see endOfLog"
            notes.append(Orphan((best.folder,), text))
    elif end == best.log_start or replicated >= end:
        stop = promised = end
    else:
        raise DataLossError(
            "no log directory holds replication-offset-checkpoint, so nothing tells up to which"
            " offset records were replicated; endOfLog=true reads all whole batches",
            topic=place[0],
            partition=place[1],
        )
    stop = max(stop, best.log_start)
    if best.lost_end > promised:
        note = _lost_after(best, "above what was replicated, so it is not missed: see endOfLog")
        notes.append(note)
    notes += _not_read(best, lost=promised > stop)
    return SurvivingLog(best, stop, promised, max(marks, default=None), tuple(notes))


def _lost_after(replica: Replica, reason: str) -> Orphan:
    """A note of the logs that are lost at the end of a replica."""
    logs = [log for log in replica.files.lost_logs if log.base_offset >= replica.stop]
    return Orphan(
        tuple(log.info.key for log in logs) or (replica.folder,),
        f"offsets [{replica.stop}, {replica.lost_end}): no log holds them, though side files name"
        f" them; {reason}",
    )


def parts_at(one: Replica | Branch, branch: Branch) -> int | None:
    """The first offset that a replica, or another branch, has under another leader epoch than a
    branch; `None` = it is of that branch.
    """
    low = max(one.log_start, branch.log_start)
    high = min(one.stop, branch.stop)
    starts = {entry.start_offset for entry in (*one.lineage, *branch.lineage)}
    for at in sorted({low, *starts}):
        if low <= at < high and epoch_at(one.lineage, at) != epoch_at(branch.lineage, at):
            return at
    return None


def epoch_at(lineage: Sequence[EpochEntry], offset: int) -> int:
    """Returns the leader epoch of an offset; −1 where none is recorded."""
    number = bisect_right(lineage, offset, key=lambda entry: entry.start_offset) - 1
    return lineage[number].epoch if number >= 0 else -1


def _not_read(replica: Replica, *, lost: bool) -> Iterator[Orphan]:
    yield from replica.files.not_read
    if replica.problem and replica.segments and not lost:  # what is lost is told as such
        log = replica.segments[-1].log
        yield Orphan(
            (log.key,),
            f"not whole from position {replica.stop_size} on, offset {replica.stop}:"
            f" {replica.problem}; what follows is not read",
        )
    above = [offset for offset in replica.files.snapshots if offset > replica.stop]
    if above and not replica.problem and replica.recovery_point is not None:
        key = replica.files.snapshots[max(above)].key
        text = f"a producer snapshot above the end of the log, {replica.stop}: records before it"
        yield Orphan((key,), f"{text} were lost or never flushed")
    for segment in replica.dropped:
        yield Orphan((segment.log.key,), "behind a log that is not whole, so it is not read")
