"""Describes the segments of a recovered log up to the end of the log. Uses the side files on the
disk if they are valid, and rebuilds them otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.errors import DataLossError
from kts_source.layout.kafka_logs.log_dirs import NO_LOG
from kts_source.layout.kafka_logs.replica import offset_index
from kts_source.layout.remote_segment import (
    IndexType,
    ObjectRef,
    RemoteSegment,
    SegmentObjects,
    StoredIndex,
    epochs_between,
    plain_chunks,
)
from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.sparse_indexes import OFFSET_ENTRY_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.layout.kafka_logs.log_dirs import LostReplica, SegmentFiles
    from kts_source.layout.kafka_logs.replica import Recovery, Replica, SurvivingLog, Walked
    from kts_source.layout.layout import TopicFolder
    from kts_source.store.object_store import ObjectInfo, ObjectStore

_NO_TIMESTAMP: Final = -1


@dataclass(frozen=True, slots=True)
class Lost:
    """Records of a log that are lost.

    Attributes:
        segment: A segment description with the offsets of the lost records. Its objects cannot be
            read.
        key: Key of the file that shows the loss.
    """

    segment: RemoteSegment
    key: str
    reason: str


def described(
    store: ObjectStore,
    folder: TopicFolder,
    partition: int,
    log: SurvivingLog,
    recovery: Recovery,
) -> tuple[list[tuple[RemoteSegment, SegmentFiles]], list[Lost]]:
    """Returns two values: the descriptions of the segments of a log in order of offsets, and its
    lost records.

    If the log has no records, returns one segment without offsets, or none if the folder has no
    `.log` file either.

    Raises:
        DataLossError: Records are lost, and the folder has no file that a message could name.
    """
    replica = log.replica
    lineage = tuple(entry for entry in replica.lineage if entry.start_offset < log.stop)
    if not lineage:  # a log without records needs an entry for its start
        lineage = (EpochEntry(0, replica.log_start),)
    kept = [
        number
        for number, segment in enumerate(replica.segments)
        if segment.base_offset < log.stop and _stop(replica, number) > replica.log_start
    ]
    maker = _SegmentMaker(store, folder, partition, lineage, replica, recovery, log.stop)
    segments, lost = [], []
    first = replica.segments[kept[0]] if kept else None
    if first is not None and (missing := replica.files.lost_logs[:1]):
        base = min(first.base_offset, log.stop)
        if missing[0].base_offset < base and replica.log_start < base:
            start, info = replica.log_start, missing[0].info
            lost.append(Lost(maker.lost(first.log, start, base), info.key, NO_LOG))
            segments.append((maker.empty(first, start, "start"), first))
    for number in kept:
        stop = min(_stop(replica, number), log.stop)
        files = replica.segments[number]
        for gone in replica.files.lost_logs:
            base = gone.base_offset
            if files.base_offset <= base < stop:
                lost.append(Lost(maker.lost(files.log, base, stop), gone.info.key, gone.reason))
                stop = base
                break
        walked = maker.walked(number, stop)
        if walked is not None and walked.problem and walked.next_offset < stop:
            reason = f"incomplete from position {walked.size} on: {walked.problem}"
            start = walked.next_offset
            lost.append(Lost(maker.lost(files.log, start, stop), files.log.key, reason))
            stop = start
        segments.append((maker.segment(number, stop, walked), files))
    if not segments and replica.files.segments:
        only = replica.files.segments[0]
        segments = [(maker.empty(only, log.stop), only)]
    if log.expected_stop > log.stop:
        info, reason = _why_end_is_lost(store, replica, log.expected_stop)
        lost.append(Lost(maker.lost(info, log.stop, log.expected_stop), info.key, reason))
    return segments, lost


def _why_end_is_lost(
    store: ObjectStore, replica: Replica, expected_stop: int
) -> tuple[ObjectInfo, str]:
    """Returns the file and the reason for the message about lost records at the end of a log: the
    log ends before `expected_stop`, the end that checkpoints and side files show.
    """
    continuation = f"the log continued to offset {expected_stop}"
    lost_at_end = [
        lost_log for lost_log in replica.files.lost_logs if lost_log.base_offset >= replica.stop
    ]
    if lost_at_end:
        return lost_at_end[0].info, f"{NO_LOG}, but {continuation}"
    logs = replica.segments or replica.files.segments
    if logs:
        problem = replica.problem or "the file ends"
        reason = f"incomplete from position {replica.stop_size} on, but {continuation}: {problem}"
        return logs[-1].log, reason
    text = f"{store.uri(replica.folder)} has no log, but {continuation}"
    for info in (*replica.files.others.values(), *replica.files.snapshots.values()):
        return info, text
    raise DataLossError(text)


def lost_partition(
    store: ObjectStore,
    folder: TopicFolder,
    partition: int,
    lost: LostReplica,
    after: SurvivingLog | None = None,
) -> Lost:
    """Describes the lost records of a replica without a folder, which only a checkpoint names. If
    `after`, the log of another replica, is set, the lost records begin at its actual or expected
    end.

    Raises:
        ObjectNotFoundError: The checkpoint was deleted in the meantime.
    """
    ref = ObjectRef.of(store.head(lost.checkpoint))
    start = lost.start
    lineage: tuple[EpochEntry, ...] = ()
    if after is not None:
        start, lineage = max(after.stop, after.expected_stop), after.replica.lineage
    segment = _lost_segment(
        (folder.topic, folder.topic_id, partition),
        f"{lost.checkpoint} {folder.topic}-{partition} lost {start}",
        ref,
        (start, lost.stop),
        lineage,
        {},
    )
    return Lost(segment, lost.checkpoint, lost_reason(folder.topic, partition, lost))


def lost_reason(topic: str, partition: int, lost: LostReplica) -> str:
    """Returns a message about a replica that has no folder."""
    offsets = f"offsets [{lost.start}, {lost.stop})" if lost.start < lost.stop else "no offsets"
    return f"it names {offsets} of {topic}-{partition}, but this folder does not exist"


def _lost_segment(
    topic: tuple[str, str, int],
    segment_id: str,
    ref: ObjectRef,
    offsets: tuple[int, int],
    lineage: tuple[EpochEntry, ...],
    indexes: Mapping[IndexType, StoredIndex],
) -> RemoteSegment:
    start, stop = offsets
    return RemoteSegment(
        *topic,
        segment_id=segment_id,
        start_offset=start,
        end_offset=stop - 1,
        max_timestamp_ms=_NO_TIMESTAMP,
        event_timestamp_ms=None,
        leader_epochs=epochs_between(lineage, start, stop - 1),
        objects=SegmentObjects(
            log=ref,
            chunk_index=plain_chunks(0),
            compression=False,
            encryption=None,
            indexes=indexes,
        ),
    )


def _stop(replica: Replica, number: int) -> int:
    """Returns the end (exclusive) of segment `number`: the base offset of the next segment, or the
    end of the log.
    """
    if number + 1 < len(replica.segments):
        return replica.segments[number + 1].base_offset
    return replica.stop


class _SegmentMaker:
    """Creates the descriptions of the segments of one log."""

    def __init__(
        self,
        store: ObjectStore,
        folder: TopicFolder,
        partition: int,
        lineage: tuple[EpochEntry, ...],
        replica: Replica,
        recovery: Recovery,
        log_stop: int,
    ) -> None:
        self._store = store
        self._log_stop = log_stop
        self._topic = folder.topic, folder.topic_id, partition
        self._lineage = lineage
        self._checkpoint = LeaderEpochCheckpoint(lineage).to_bytes()
        self._replica = replica
        self._recovery = recovery

    def walked(self, number: int, stop: int) -> Walked | None:
        """Returns the result of reading the batches of segment `number` up to offset `stop`.
        Returns `None` if the side files on the disk suffice to describe the segment.
        """
        replica = self._replica
        files = replica.segments[number]
        if stop == self._log_stop < _stop(replica, number):
            return self._recovery.walk(number, stop_offset=stop)
        if files.base_offset in replica.walked:
            return replica.walked[files.base_offset]
        is_last = number + 1 == len(replica.segments)
        if "index" not in files.files or (is_last and stop not in replica.files.snapshots):
            return self._recovery.walk(number)
        return None

    def segment(self, number: int, stop: int, walked: Walked | None) -> RemoteSegment:
        replica = self._replica
        files = replica.segments[number]
        if walked is not None:
            return self._made(files, stop, walked.size, _rebuilt(files, walked), walked)
        is_last = number + 1 == len(replica.segments)
        size = replica.stop_size if is_last else files.log.size
        return self._made(files, stop, size, self._stored(files, stop))

    def empty(self, files: SegmentFiles, stop: int, mark: str = "") -> RemoteSegment:
        return self._made(files, stop, 0, {}, start=stop, mark=mark)

    def lost(self, info: ObjectInfo, start: int, stop: int) -> RemoteSegment:
        ref = ObjectRef.of(info)
        return _lost_segment(
            self._topic,
            f"{info.key.removesuffix('.log')} lost {start}",
            ref,
            (start, stop),
            self._lineage,
            {
                IndexType.OFFSET: StoredIndex.rebuilt(ref, b""),
                IndexType.LEADER_EPOCH: StoredIndex.rebuilt(ref, self._checkpoint),
            },
        )

    def _made(
        self,
        files: SegmentFiles,
        stop: int,
        size: int,
        indexes: dict[IndexType, StoredIndex],
        walked: Walked | None = None,
        *,
        start: int | None = None,
        mark: str = "",
    ) -> RemoteSegment:
        ref = ObjectRef.of(files.log)
        start = files.base_offset if start is None else start
        indexes.setdefault(IndexType.OFFSET, StoredIndex.rebuilt(ref, b""))
        indexes[IndexType.LEADER_EPOCH] = StoredIndex.rebuilt(ref, self._checkpoint)
        return RemoteSegment(
            *self._topic,
            segment_id=files.log.key.removesuffix(".log") + (f" {mark} {start}" if mark else ""),
            start_offset=start,
            end_offset=stop - 1,
            max_timestamp_ms=walked.side_files.max_timestamp if walked else _NO_TIMESTAMP,
            event_timestamp_ms=None,
            leader_epochs=epochs_between(self._lineage, start, stop - 1),
            objects=SegmentObjects(
                log=ref,
                chunk_index=plain_chunks(size),
                compression=False,
                encryption=None,
                indexes=indexes,
            ),
        )

    def _stored(self, files: SegmentFiles, stop: int) -> dict[IndexType, StoredIndex]:
        """Returns the side files of a segment that are on the disk. The producer snapshot is the
        one at offset `stop`.
        """
        indexes = {}
        for kind, suffix in (
            (IndexType.TIMESTAMP, "timeindex"),
            (IndexType.TRANSACTION, "txnindex"),
        ):
            if suffix in files.files:
                info = files.files[suffix]
                indexes[kind] = StoredIndex(ObjectRef.of(info), 0, info.size)
        info = files.files["index"]
        size = info.size
        if files == self._replica.segments[-1]:  # may be preallocated with zeros
            index = offset_index(self._store, files)
            size = 0 if index is None else len(index) * OFFSET_ENTRY_SIZE
        indexes[IndexType.OFFSET] = StoredIndex(ObjectRef.of(info), 0, size)
        if stop in self._replica.files.snapshots:
            info = self._replica.files.snapshots[stop]
            indexes[IndexType.PRODUCER_SNAPSHOT] = StoredIndex(ObjectRef.of(info), 0, info.size)
        return indexes


def _rebuilt(files: SegmentFiles, walked: Walked) -> dict[IndexType, StoredIndex]:
    log, rebuilt = ObjectRef.of(files.log), walked.side_files
    return {
        IndexType.OFFSET: StoredIndex.rebuilt(log, rebuilt.offset_index()),
        IndexType.TIMESTAMP: StoredIndex.rebuilt(log, rebuilt.time_index()),
        IndexType.TRANSACTION: StoredIndex.rebuilt(log, rebuilt.transaction_index()),
        IndexType.PRODUCER_SNAPSHOT: StoredIndex.rebuilt(log, rebuilt.snapshot()),
    }
