"""Which replica of a partition survives, and where its log ends for a consumer.

The replica of the highest leader epoch survives, among those the longest: of all, a cluster would
choose it as leader to lose least. A high watermark counts when its replica agrees with the survivor
on all offsets below it; one that was recorded on a branch that died says nothing of this log.
Source: KIP-101, `LeaderEpochFileCache.endOffsetFor`, `ReplicaManager` in Kafka.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.layout.layout import Orphan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.layout.kafka_logs.replica import Replica
    from segment_format.index.leader_epoch_checkpoint import EpochEntry


@dataclass(frozen=True, slots=True)
class SurvivingLog:
    """The replica that is read.

    Attributes:
        stop: One past the last offset that is read.
        promised: One past the last offset that some file says was there: more than `stop` where
            records were lost.
    """

    replica: Replica
    stop: int
    promised: int
    notes: tuple[Orphan, ...]


def surviving_log(replicas: Sequence[Replica], *, end_of_log: bool) -> SurvivingLog | None:
    """Chooses the replica and its end; `None` where no high watermark tells the end, though there
    are records.

    Args:
        replicas: At least one.
        end_of_log: Whether to read all whole batches, whatever was replicated.
    """
    best = max(replicas, key=lambda one: (*one.rank, one.high_watermark or -1, one.folder))
    notes = []
    marks = []
    for one in replicas:
        parted = parts_at(one, best)
        if parted is not None:
            reason = f"from offset {parted} on of a branch that died; {best.folder} is read"
            notes.append(Orphan((one.folder,), reason))
        if one.high_watermark is not None and (parted is None or one.high_watermark <= parted):
            marks.append(one.high_watermark)
    flushed = best.recovery_point or 0
    if end_of_log:
        stop, promised = best.stop, max([best.stop, flushed, *marks])
    elif marks:
        promised = max([best.log_start, *marks])
        stop = min(best.stop, promised)
    elif any(one.log_dir.high_watermarks is not None for one in replicas):
        # The file is written every few seconds: the partition is younger, and a broker that starts
        # takes it that nothing was replicated.
        stop = promised = best.log_start
        if best.stop > stop:
            text = "no high watermark is recorded, so none of its records is read: see endOfLog"
            notes.append(Orphan((best.folder,), text))
    elif best.stop == best.log_start:
        stop = promised = best.stop
    else:
        return None
    stop = max(stop, best.log_start)
    return SurvivingLog(best, stop, promised, (*notes, *_not_read(best, lost=promised > stop)))


def parts_at(one: Replica, other: Replica) -> int | None:
    """The first offset that two replicas have under different leader epochs; `None` = they agree
    on all that both have.
    """
    low = max(one.log_start, other.log_start)
    high = min(one.stop, other.stop)
    starts = {entry.start_offset for entry in (*one.lineage, *other.lineage)}
    for at in sorted({low, *starts}):
        if low <= at < high and _epoch_at(one.lineage, at) != _epoch_at(other.lineage, at):
            return at
    return None


def _epoch_at(lineage: Sequence[EpochEntry], offset: int) -> int:
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
    for segment in replica.dropped:
        yield Orphan((segment.log.key,), "behind a log that is not whole, so it is not read")
