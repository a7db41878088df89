"""The layout of brokers' log directories (`log.dirs`), of one or several brokers.

    [<broker>/[<disk>/]]<topic>-<partition>/<base offset, 20 digits>.{log,index,timeindex,txnindex}
                                            <offset, 20 digits>.snapshot
                                            leader-epoch-checkpoint, partition.metadata

Each partition is recovered in memory like in a starting broker; nothing is written. Records are
read from one replica. Offsets that this replica lacks are read from other replicas of the same
branch, which have equal leader epochs. The checkpoints of all replicas are used. Source:
`LogManager`, `LogLoader`, `UnifiedLog` in Kafka.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError, TierNotFoundError
from kts_source.layout.kafka_logs.log_dirs import files_in, find_log_dirs, read_file
from kts_source.layout.kafka_logs.recovered_segments import described, lost_partition, lost_reason
from kts_source.layout.kafka_logs.replica import Recovery, recovered
from kts_source.layout.kafka_logs.replica_choice import (
    Filler,
    ReplicaSource,
    joined_lineage,
    newest_branch,
    recorded_start,
    start_note,
    surviving_log,
    with_lineage,
    with_lost_logs_in_gaps,
)
from kts_source.layout.layout import Orphan, PartitionListing, SegmentEntry, TopicFolder
from kts_source.store.joined_store import additional_store_prefix
from kts_source.texts import printable, some
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import parse_partition_metadata
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.layout.kafka_logs.log_dirs import (
        LogDir,
        LostReplica,
        SegmentFiles,
        TopicPartition,
    )
    from kts_source.layout.kafka_logs.recovered_segments import Lost
    from kts_source.layout.kafka_logs.replica import Replica, SurvivingLog
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectInfo, ObjectStore

log = logging.getLogger(__name__)

_NO_ID: Final = "A" * 22
"""`Uuid.ZERO_UUID`, for partitions without `partition.metadata`."""
_MAX_METADATA_BYTES: Final = 4096


class Disks:
    """Topics and replicas of the log directories below some folders. Thread-safe.

    A partition is in use if it has a folder `<topic>-<partition>`. Brokers add a suffix to the name
    of a folder to set it aside: a deleted, stray or future replica.

    Args:
        roots: Key prefixes; empty, or ending in a slash.

    Attributes:
        without: Those key prefixes in `roots` under which there is no log directory.
    """

    def __init__(self, store: ObjectStore, roots: Iterable[str]) -> None:
        self.store = store
        by_root = {root: find_log_dirs(store, root) for root in roots}
        self.without = tuple(root for root, dirs in by_root.items() if not dirs)
        self._dirs: tuple[LogDir, ...] = tuple(
            log_dir for dirs in by_root.values() for log_dir in dirs
        )
        self._topic_ids: dict[str, str] = {}

    def topics(self) -> frozenset[str]:
        """Returns the names of all topics that have a partition in use."""
        return frozenset(topic for log_dir in self._dirs for topic, _ in log_dir.partitions)

    def topics_not_in_use(self) -> frozenset[str]:
        """Returns the topics that have no partition in use. They occur only in checkpoints, or in
        folders of deleted, stray or future replicas.
        """
        named = {
            topic for log_dir in self._dirs for topic, _ in (*log_dir.lost, *log_dir.set_aside)
        }
        return frozenset(named) - self.topics()

    def topic_ids(self, topic: str) -> frozenset[str]:
        """Returns the ids of a topic's partitions in use. If it has none, returns the ids in
        folders of deleted, stray and future replicas. If only a checkpoint names the topic, returns
        the zero id.
        """
        in_use = {
            self._topic_id(folder)
            for log_dir in self._dirs
            for topic_partition, folder in log_dir.partitions.items()
            if topic_partition[0] == topic
        }
        if in_use:
            return frozenset(in_use)
        aside = {self._topic_id(folder) for _, folder in self._folders_set_aside(topic)}
        is_named = any(
            topic_partition[0] == topic
            for log_dir in self._dirs
            for topic_partition in log_dir.lost
        )
        return frozenset(aside or ({_NO_ID} if is_named else ()))

    def partitions(self, topic: str, topic_id: str) -> tuple[int, ...]:
        """Returns the partitions of a topic id in ascending order. Includes partitions that occur
        only in a checkpoint or in a folder of a deleted, stray or future replica.
        """
        of_any_id = set()
        numbers = {
            number
            for number, folder in self._folders_set_aside(topic)
            if self._topic_id(folder) == topic_id
        }
        for log_dir in self._dirs:
            for topic_partition, folder in log_dir.partitions.items():
                if topic_partition[0] == topic:
                    of_any_id.add(topic_partition[1])
                    if self._topic_id(folder) == topic_id:
                        numbers.add(topic_partition[1])
        # A checkpoint does not record topic ids, so the partition may belong to any topic id.
        named = {number for log_dir in self._dirs for name, number in log_dir.lost if name == topic}
        return tuple(sorted(numbers | (named - of_any_id)))

    def has_replica(self, topic_partition: TopicPartition, topic_id: str) -> bool:
        """Returns whether the partition is in use and its replica has this topic id."""
        return any(self._dirs_of(topic_partition, topic_id))

    def lost_replicas(self, topic_partition: TopicPartition) -> list[LostReplica]:
        """Returns the replicas of a partition that have no folder, but are named in a
        checkpoint.
        """
        return [
            log_dir.lost[topic_partition]
            for log_dir in self._dirs
            if topic_partition in log_dir.lost
        ]

    def replicas(self, topic_partition: TopicPartition, topic_id: str) -> list[Replica]:
        """Recovers the replicas of a partition that have this topic id. If a comparison of the
        replicas shows that one lacks records, adds these records to the replica's lost logs.

        Raises:
            CorruptSegmentError: A replica cannot be recovered.
        """
        replicas = [
            recovered(self.store, log_dir, topic_partition)
            for log_dir in self._dirs_of(topic_partition, topic_id)
        ]
        return with_lost_logs_in_gaps(self.store, topic_partition, replicas)

    def set_aside(self, topic_partition: TopicPartition) -> list[Orphan]:
        """Returns an `Orphan` for each folder of a deleted, stray or future replica of a partition.
        Its `reason` names the state of the replica.
        """
        return [
            Orphan((key,), f"a -{name.state} folder, left alone")
            for log_dir in self._dirs
            for key, name in log_dir.set_aside.get(topic_partition, ())
        ]

    def folders_set_aside(self, topic: str, topic_id: str) -> list[Orphan]:
        """Returns an `Orphan` for each folder of a deleted, stray or future replica of a topic.
        Skips partitions that exist with this topic id.
        """
        numbers = self.partitions(topic, topic_id)
        others = sorted({number for number, _ in self._folders_set_aside(topic)} - {*numbers})
        return [orphan for number in others for orphan in self.set_aside((topic, number))]

    def _dirs_of(self, topic_partition: TopicPartition, topic_id: str) -> Iterator[LogDir]:
        for log_dir in self._dirs:
            folder = log_dir.partitions.get(topic_partition)
            if folder is not None and self._topic_id(folder) == topic_id:
                yield log_dir

    def _folders_set_aside(self, topic: str) -> Iterator[tuple[int, str]]:
        """Yields the partition number and the folder of each deleted, stray or future replica of a
        topic.
        """
        for log_dir in self._dirs:
            for (name, number), folders in log_dir.set_aside.items():
                if name == topic:
                    yield from ((number, folder) for folder, _ in folders)

    def _topic_id(self, folder: str) -> str:
        if folder not in self._topic_ids:
            self._topic_ids[folder] = _read_topic_id(self.store, folder)
        return self._topic_ids[folder]


def _read_topic_id(store: ObjectStore, folder: str) -> str:
    info = dict(files_in(store, folder)).get("partition.metadata")
    if info is None:
        return _NO_ID
    try:
        return uuid_to_text(parse_partition_metadata(read_file(store, info, _MAX_METADATA_BYTES)))
    except SegmentFormatError as error:
        raise CorruptSegmentError(error.message, uri=store.uri(info.key)) from error


class KafkaLogsLayout:
    """Reads partitions in the layout of brokers. Use an instance for one plan only, because it
    searches for log directories once, and keeps the recovered segments for `describe`.

    Args:
        end_of_log: True if all complete batches are read, not only those below the high watermark.
        paths: Number of paths with log directories. `JoinedStore` adds the stores of the second and
            later paths to the store of the first path.
    """

    name = "kafka-logs"
    folder_pattern = "[<broker>/[<disk>/]]<topic>-<partition>/"
    format_versions: tuple[str, ...] = ("1",)  # the files have no format version

    def __init__(self, *, end_of_log: bool, paths: int = 1) -> None:
        self._end_of_log = end_of_log
        self._additional_prefixes = tuple(
            additional_store_prefix(number) for number in range(paths - 1)
        )
        self._lock = threading.Lock()
        self._disks: dict[str, Disks] = {}
        self._described: dict[str, RemoteSegment] = {}

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """Returns a `TopicFolder` for each pair of topic and topic id. All have the same `folder`,
        the key prefix, because a log directory has no folder per topic.

        Raises:
            TierNotFoundError: The scan has several paths, and there is no log directory at one of
                them.
        """
        root = key_prefix if not key_prefix or key_prefix.endswith("/") else f"{key_prefix}/"
        disks = self._below(store, root)
        if (
            0 < len(disks.without) <= len(self._additional_prefixes)
        ):  # a wrong path must not be reported as data loss
            missing = ", ".join(store.uri(root) for root in disks.without)
            raise TierNotFoundError(
                f"option 'path': there is no log directory of a broker at {missing}"
            )
        names, remains = disks.topics(), disks.topics_not_in_use()
        if topic is not None:
            names = frozenset({topic}) & (names | remains)
        elif remains := frozenset(name for name in remains if not name.startswith("__")):
            log.warning(
                "not read, because only checkpoints or folders set aside exist: topics %s",
                printable(some(sorted(remains))),
            )
        folders = tuple(
            TopicFolder(name, topic_id, root)
            for name in sorted(names)
            for topic_id in sorted(disks.topic_ids(name))
        )
        for folder in folders:
            if others := disks.folders_set_aside(folder.topic, folder.topic_id):
                text = printable(some(map(str, others)))
                log.warning(
                    "topic %s: not read, because no partition in use has them: %s",
                    folder.topic,
                    text,
                )
        return folders

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Returns the numbers of the partitions of a topic id. Includes partitions that occur only
        in a checkpoint or in a folder of a deleted, stray or future replica.
        """
        return self._below(store, folder.folder).partitions(folder.topic, folder.topic_id)

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Recovers the replicas of a partition. Returns the segments of the replica that
        `surviving_log` chooses, and segments of other replicas for its gaps.

        Raises:
            CorruptSegmentError: A replica cannot be recovered.
            DataLossError: No file records where the log ends.
        """
        topic_partition = (folder.topic, partition)
        disks = self._below(store, folder.folder)
        replicas = disks.replicas(topic_partition, folder.topic_id)
        orphans = disks.set_aside(topic_partition)
        segments: Sequence[tuple[RemoteSegment, SegmentFiles]] = ()
        lost: list[Lost] = []
        survivor = None
        if replicas:
            survivor = surviving_log(topic_partition, replicas, end_of_log=self._end_of_log)
            segments, lost, notes = _joined(store, folder, partition, survivor, replicas)
            orphans += [*survivor.notes, *notes]
        reach = 0 if survivor is None else max(survivor.expected_stop, survivor.replica.stop)
        for gone in disks.lost_replicas(topic_partition):
            if gone.stop > max(reach, gone.start):
                lost.append(lost_partition(store, folder, partition, gone, survivor))
            else:
                reason = lost_reason(folder.topic, partition, gone)
                orphans.append(Orphan((gone.checkpoint,), reason))
        with self._lock:
            self._described |= {segment.segment_id: segment for segment, _ in segments}
            self._described |= {loss.segment.segment_id: loss.segment for loss in lost}
        for loss in lost:
            entry = _entry(loss.segment, loss.key, ())
            orphans.append(Orphan((loss.key,), loss.reason, loss.segment.start_offset, entry))
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
        """Returns the description of a segment that `list_partition` has recovered."""
        del store
        return self._described[entry.segment_id]

    def _below(self, store: ObjectStore, root: str) -> Disks:
        with self._lock:
            if root not in self._disks:
                roots = (root, *(before + root for before in self._additional_prefixes))
                self._disks[root] = Disks(store, roots)
            return self._disks[root]


def _joined(
    store: ObjectStore,
    folder: TopicFolder,
    partition: int,
    survivor: SurvivingLog,
    replicas: Sequence[Replica],
) -> tuple[list[tuple[RemoteSegment, SegmentFiles]], list[Lost], list[Orphan]]:
    """Returns the segments of the log, the lost records, and notes. The segments are those of the
    chosen replica, and segments of other replicas in its gaps.
    """
    topic_partition = (folder.topic, partition)
    main, branch = survivor.replica, newest_branch(replicas)
    recovery = Recovery(store, main.log_dir, topic_partition, main.files)
    segments, lost = described(store, folder, partition, survivor, recovery)
    low = recorded_start(topic_partition, main, replicas, branch)
    source = ReplicaSource(main, segments, recovery)
    others = [replica for replica in replicas if replica is not main]
    filler = Filler(store, folder, partition, branch, source, others, low, survivor.stop)
    older = filler.fill(low, main.log_start) if survivor.stop >= main.log_start else []
    first = older[0].start if older else main.log_start
    notes = [start_note(topic_partition, main, low, first)] if low < first else []
    spans, still_lost = list(older), []
    for gone in lost:
        start, stop = gone.segment.start_offset, gone.segment.stop_offset
        filled = filler.fill(start, stop) if stop <= survivor.stop else []
        spans += filled
        if filled and filled[0].start == start:
            folders = ", ".join(span.source.replica.folder for span in filled)
            reason = f"{gone.reason}; offsets [{start}, {stop}) are read from {folders}"
            notes.append(Orphan((gone.key,), reason))
        else:
            still_lost.append(gone)
    # Records below a recorded log start were deleted, so they are not lost.
    if low == first and main.log_dir.log_starts.get(topic_partition) is None:
        for replica in others:
            if replica.log_start < first:
                reason = f"the log that is read starts at {first}"
                filler.note(replica, replica.log_start, first, reason)
    notes += dict.fromkeys(filler.notes)
    if spans:
        lineage = joined_lineage(older, main, survivor.stop)
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
