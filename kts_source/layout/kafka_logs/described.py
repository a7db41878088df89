"""The segments of a recovered log as every other part of the reader knows them: clipped to where
the log ends, with the side files that fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.errors import DataLossError
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
from segment_format.index.leader_epoch_checkpoint import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.offset_index import ENTRY_SIZE

if TYPE_CHECKING:
    from kts_source.layout.kafka_logs.replica import Recovery, Replica, Walked
    from kts_source.layout.kafka_logs.segment_files import SegmentFiles
    from kts_source.layout.kafka_logs.surviving import SurvivingLog
    from kts_source.layout.layout import TopicFolder
    from kts_source.store.object_store import ObjectStore

_NO_TIMESTAMP: Final = -1
"""Nothing that was flushed tells; planning looks into the segment."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Records that were there.

    Attributes:
        segment: Their offsets.
        key: The file that tells of them.
        reason: What is wrong with it.
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
    """The segments in order, and what stands for records that were there and are lost.

    A log without records is one segment without offsets, unless there is no file at all.
    """
    replica = log.replica
    if log.promised > log.stop and not replica.files.segments:
        raise DataLossError(
            f"{store.uri(replica.folder)} holds no log, but records went on to offset"
            f" {log.promised}",
            topic=folder.topic,
            partition=partition,
        )
    lineage = tuple(entry for entry in replica.lineage if entry.start_offset < log.stop)
    if not lineage:  # without records the epoch does not matter, but where the log begins
        lineage = (EpochEntry(0, replica.log_start),)
    kept = [
        number
        for number, segment in enumerate(replica.segments)
        if segment.base_offset < log.stop and _stop(replica, number) > replica.log_start
    ]
    maker = _Maker(store, folder, partition, lineage, replica, recovery, log.stop)
    segments, lost = [], []
    for number in kept:
        stop = min(_stop(replica, number), log.stop)
        files = replica.segments[number]
        for base, index in replica.files.lost_logs:
            if files.base_offset < base < stop:
                lost.append(Lost(maker.lost(files, base, stop), index.key, "its log is not there"))
                stop = base
                break
        walked = maker.walked(number, stop)
        if walked is not None and walked.problem and walked.next_offset < stop:
            reason = f"not whole from position {walked.size} on: {walked.problem}"
            start = walked.next_offset
            lost.append(Lost(maker.lost(files, start, stop), files.log.key, reason))
            stop = start
        segments.append((maker.segment(number, stop, walked), files))
    if not segments and replica.files.segments:
        first = replica.files.segments[0]
        segments = [(maker.empty(first, log.stop), first)]
    if log.promised > log.stop:
        last = replica.segments[-1] if replica.segments else replica.files.segments[-1]
        reason = (
            f"not whole from position {replica.stop_size} on, but the log went on to offset"
            f" {log.promised}: {replica.problem or 'the file ends'}"
        )
        segment = maker.lost(last, log.stop, log.promised)
        lost.append(Lost(segment, last.log.key, reason))
    return segments, lost


def _stop(replica: Replica, number: int) -> int:
    """One past the last offset of a segment: a segment ends where the next one begins."""
    if number + 1 < len(replica.segments):
        return replica.segments[number + 1].base_offset
    return replica.stop


class _Maker:
    """Describes segments of one log."""

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
        """What the batches of segment `number` below an offset tell, where files do not."""
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
        """Segment `number` up to an offset."""
        replica = self._replica
        files = replica.segments[number]
        if walked is not None:
            return self._made(files, stop, walked.size, _rebuilt(files, walked), walked)
        is_last = number + 1 == len(replica.segments)
        size = replica.stop_size if is_last else files.log.size
        return self._made(files, stop, size, self._stored(files, stop))

    def empty(self, files: SegmentFiles, stop: int) -> RemoteSegment:
        """A segment without offsets."""
        return self._made(files, stop, 0, {}, start=stop)

    def lost(self, files: SegmentFiles, start: int, stop: int) -> RemoteSegment:
        """Offsets that were there."""
        return self._made(files, stop, 0, {}, start=start, mark="lost")

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
        """The side files as they stand on the disk."""
        found = {}
        for kind, suffix in (
            (IndexType.TIMESTAMP, "timeindex"),
            (IndexType.TRANSACTION, "txnindex"),
        ):
            if suffix in files.files:
                info = files.files[suffix]
                found[kind] = StoredIndex(ObjectRef.of(info), 0, info.size)
        info = files.files["index"]
        size = info.size
        if files == self._replica.segments[-1]:  # zeros may have been allocated ahead
            index = offset_index(self._store, files)
            size = 0 if index is None else len(index) * ENTRY_SIZE
        found[IndexType.OFFSET] = StoredIndex(ObjectRef.of(info), 0, size)
        if stop in self._replica.files.snapshots:
            info = self._replica.files.snapshots[stop]
            found[IndexType.PRODUCER_SNAPSHOT] = StoredIndex(ObjectRef.of(info), 0, info.size)
        return found


def _rebuilt(files: SegmentFiles, walked: Walked) -> dict[IndexType, StoredIndex]:
    """The side files as recovery works them out."""
    log, found = ObjectRef.of(files.log), walked.side_files
    return {
        IndexType.OFFSET: StoredIndex.rebuilt(log, found.offset_index()),
        IndexType.TIMESTAMP: StoredIndex.rebuilt(log, found.time_index()),
        IndexType.TRANSACTION: StoredIndex.rebuilt(log, found.transaction_index()),
        IndexType.PRODUCER_SNAPSHOT: StoredIndex.rebuilt(log, found.snapshot()),
    }
