"""The layout of brokers' own disks: `log.dirs`, of one broker or several, on a volume or copied.

    [<broker>/[<disk>/]]<topic>-<partition>/<base offset, 20 digits>.{log,index,timeindex,txnindex}
                                            <offset, 20 digits>.snapshot
                                            leader-epoch-checkpoint, partition.metadata

Each partition is recovered in memory as a broker would do it that starts on the disks; nothing is
written. Of several replicas one is read, and others of its branch where it lacks offsets; what all
of them recorded counts. Source: `LogManager`,
`LogLoader`, `UnifiedLog` in Kafka.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from kts_source.errors import TierNotFoundError
from kts_source.layout.kafka_logs.described import described, lost_partition, lost_reason
from kts_source.layout.kafka_logs.disks import Disks
from kts_source.layout.kafka_logs.filling import (
    Filler,
    ReplicaSource,
    joined_lineage,
    recorded_start,
    start_note,
    with_lineage,
)
from kts_source.layout.kafka_logs.replica import Recovery
from kts_source.layout.kafka_logs.surviving import newest_branch, surviving_log
from kts_source.layout.layout import Orphan, PartitionListing, SegmentEntry, TopicFolder
from kts_source.store.joined_store import beside
from kts_source.texts import printable, some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.layout.kafka_logs.described import Lost
    from kts_source.layout.kafka_logs.replica import Replica
    from kts_source.layout.kafka_logs.segment_files import SegmentFiles
    from kts_source.layout.kafka_logs.surviving import SurvivingLog
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectInfo, ObjectStore

log = logging.getLogger(__name__)


class KafkaLogsLayout:
    """Partitions as brokers keep them. An instance is of one plan: it looks at each log directory
    once, and keeps what recovery found for `describe`.

    Args:
        end_of_log: Whether all whole batches are read, not only those below the high watermark.
        paths: How many there are: those behind the first stand beside its store (`JoinedStore`).
    """

    name = "kafka-logs"
    folder_pattern = "[<broker>/[<disk>/]]<topic>-<partition>/"
    format_versions: tuple[str, ...] = ("1",)  # its files carry none

    def __init__(self, *, end_of_log: bool, paths: int = 1) -> None:
        self._end_of_log = end_of_log
        self._beside = tuple(beside(number) for number in range(paths - 1))
        self._lock = threading.Lock()
        self._disks: dict[str, Disks] = {}
        self._described: dict[str, RemoteSegment] = {}

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """One for each pair of topic and id; all share the folder above.

        Raises:
            TierNotFoundError: One of several paths holds no log directory.
        """
        root = key_prefix if not key_prefix or key_prefix.endswith("/") else f"{key_prefix}/"
        disks = self._below(store, root)
        if 0 < len(disks.without) <= len(self._beside):  # a path that is wrong is no loss of disks
            missing = ", ".join(store.uri(root) for root in disks.without)
            raise TierNotFoundError(f"option 'path': no log directory of a broker at {missing}")
        names, remains = disks.topics(), disks.remains()
        if topic is not None:
            names = frozenset({topic}) & (names | remains)
        elif remains := frozenset(name for name in remains if not name.startswith("__")):
            log.warning(
                "not read: no partition in use, but checkpoints or folders set aside, of topics %s",
                printable(some(sorted(remains))),
            )
        found = tuple(
            TopicFolder(name, topic_id, root)
            for name in sorted(names)
            for topic_id in sorted(disks.topic_ids(name))
        )
        for folder in found:
            if others := disks.aside_of_others(folder.topic, folder.topic_id):
                text = printable(some(map(str, others)))
                log.warning("topic %s: not read, of no partition in use: %s", folder.topic, text)
        return found

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Partitions with a replica of this topic id."""
        return self._below(store, folder.folder).partitions(folder.topic, folder.topic_id)

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Recovers the replicas of a partition and lists the segments of the one that survives.

        Raises:
            CorruptSegmentError: A replica that cannot be recovered.
            DataLossError: Nothing tells where the log ends.
        """
        place = (folder.topic, partition)
        disks = self._below(store, folder.folder)
        replicas = disks.replicas(place, folder.topic_id)
        orphans = disks.set_aside(place)
        segments: Sequence[tuple[RemoteSegment, SegmentFiles]] = ()
        lost: list[Lost] = []
        known = None
        if replicas:
            known = surviving_log(place, replicas, end_of_log=self._end_of_log)
            segments, lost, notes = _joined(store, folder, partition, known, replicas)
            orphans += [*known.notes, *notes]
        reach = 0 if known is None else max(known.promised, known.replica.stop)
        for gone in disks.lost_replicas(place):
            if gone.stop > max(reach, gone.start):
                lost.append(lost_partition(store, folder, partition, gone, known))
            else:
                reason = lost_reason(folder.topic, partition, gone)
                orphans.append(Orphan((gone.checkpoint,), reason))
        with self._lock:
            self._described |= {segment.segment_id: segment for segment, _ in segments}
            self._described |= {one.segment.segment_id: one.segment for one in lost}
        for one in lost:
            entry = _entry(one.segment, one.key, ())
            orphans.append(Orphan((one.key,), one.reason, one.segment.start_offset, entry))
        return PartitionListing(
            tuple(
                _entry(segment, files.log.key, tuple(sorted(files.files.items())))
                for segment, files in segments
            ),
            tuple(orphans),
            tuple(
                (segment.segment_id, segment.end_offset, segment.leader_epochs)
                for segment, _ in segments
            ),
        )

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """What recovery found."""
        del store
        return self._described[entry.segment_id]

    def _below(self, store: ObjectStore, root: str) -> Disks:
        with self._lock:
            if root not in self._disks:
                roots = (root, *(before + root for before in self._beside))
                self._disks[root] = Disks(store, roots)
            return self._disks[root]


def _joined(
    store: ObjectStore,
    folder: TopicFolder,
    partition: int,
    known: SurvivingLog,
    replicas: Sequence[Replica],
) -> tuple[list[tuple[RemoteSegment, SegmentFiles]], list[Lost], list[Orphan]]:
    """Returns the segments of the log, records that are lost, and notes: of the replica that is
    read, and of others where it lacks offsets.
    """
    place = (folder.topic, partition)
    main, branch = known.replica, newest_branch(replicas)
    recovery = Recovery(store, main.log_dir, place, main.files)
    segments, lost = described(store, folder, partition, known, recovery)
    low = recorded_start(place, main, replicas, branch)
    source = ReplicaSource(main, segments, recovery)
    others = [replica for replica in replicas if replica is not main]
    filler = Filler(store, folder, partition, branch, source, others, low, known.stop)
    older = filler.fill(low, main.log_start) if known.stop >= main.log_start else []
    first = older[0].start if older else main.log_start
    notes = [start_note(place, main, low, first)] if low < first else []
    spans, still_lost = list(older), []
    for gone in lost:
        start, stop = gone.segment.start_offset, gone.segment.stop_offset
        filled = filler.fill(start, stop) if stop <= known.stop else []
        spans += filled
        if filled and filled[0].start == start:
            folders = ", ".join(span.source.replica.folder for span in filled)
            reason = f"{gone.reason}; offsets [{start}, {stop}) are read from {folders}"
            notes.append(Orphan((gone.key,), reason))
        else:
            still_lost.append(gone)
    for replica in others:
        # Below a log start that is recorded, records were deleted.
        if (
            low == first
            and replica.log_start < first
            and main.log_dir.log_starts.get(place) is None
        ):
            filler.note(
                replica, replica.log_start, first, f"the log that is read starts at {first}"
            )
    notes += dict.fromkeys(filler.notes)
    if spans:
        lineage = joined_lineage(older, main, known.stop)
        extra = {pair[0].segment_id: pair for span in spans for pair in span.segments}
        pairs = {**extra, **{pair[0].segment_id: pair for pair in segments}}.values()
        segments = [(with_lineage(segment, lineage), files) for segment, files in pairs]
        segments.sort(key=lambda pair: (pair[0].start_offset, pair[0].segment_id))
    return segments, still_lost, notes


def _entry(
    segment: RemoteSegment, key: str, objects: tuple[tuple[str, ObjectInfo], ...]
) -> SegmentEntry:
    return SegmentEntry(
        segment.topic,
        segment.topic_id,
        segment.partition,
        segment.start_offset,
        segment.segment_id,
        key,
        objects,
    )
