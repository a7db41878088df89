"""The layout of brokers' own disks: `log.dirs`, of one broker or several, on a volume or copied.

    [<broker>/[<disk>/]]<topic>-<partition>/<base offset, 20 digits>.{log,index,timeindex,txnindex}
                                            <offset, 20 digits>.snapshot
                                            leader-epoch-checkpoint, partition.metadata

Each partition is recovered in memory as a broker would do it that starts on the disks; nothing is
written. Of several replicas one is read, and what the others recorded counts. Source: `LogManager`,
`LogLoader`, `UnifiedLog` in Kafka.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError, DataLossError
from kts_source.layout.kafka_logs.described import described
from kts_source.layout.kafka_logs.log_dirs import files_in, find_log_dirs, read_file
from kts_source.layout.kafka_logs.replica import Recovery, recovered
from kts_source.layout.kafka_logs.surviving import surviving_log
from kts_source.layout.layout import Orphan, PartitionListing, SegmentEntry, TopicFolder
from segment_format.errors import SegmentFormatError
from segment_format.index.partition_metadata import parse_partition_metadata
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from kts_source.layout.kafka_logs.log_dirs import LogDir
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectInfo, ObjectStore

_NO_ID: Final = "A" * 22
"""`Uuid.ZERO_UUID`: of partitions without `partition.metadata`."""
_MAX_METADATA_BYTES: Final = 4096


class KafkaLogsLayout:
    """Partitions as brokers keep them. An instance is of one plan: it looks at each log directory
    once, and keeps what recovery found for `describe`.

    Args:
        end_of_log: Whether all whole batches are read, not only those below the high watermark.
    """

    name = "kafka-logs"
    folder_pattern = "[<broker>/[<disk>/]]<topic>-<partition>/"
    format_versions: tuple[str, ...] = ("1",)  # its files carry none

    def __init__(self, *, end_of_log: bool) -> None:
        self._end_of_log = end_of_log
        self._lock = threading.Lock()
        self._log_dirs: dict[str, tuple[LogDir, ...]] = {}
        self._topic_ids: dict[str, str] = {}
        self._described: dict[str, RemoteSegment] = {}

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """One for each pair of topic and id; all share the folder above."""
        root = key_prefix if not key_prefix or key_prefix.endswith("/") else f"{key_prefix}/"
        named = {
            (place[0], self._topic_id(store, folder))
            for log_dir in self._dirs(store, root)
            for place, folder in log_dir.partitions.items()
            if topic in (None, place[0])
        }
        return tuple(TopicFolder(*pair, root) for pair in sorted(named))

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Partitions with a replica of this topic id."""
        return tuple(
            sorted(
                {
                    place[1]
                    for log_dir in self._dirs(store, folder.folder)
                    for place, path in log_dir.partitions.items()
                    if place[0] == folder.topic and self._topic_id(store, path) == folder.topic_id
                }
            )
        )

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Recovers the replicas of a partition and lists the segments of the one that survives.

        Raises:
            CorruptSegmentError: A replica that cannot be recovered.
            DataLossError: Nothing tells where the log ends.
        """
        place = (folder.topic, partition)
        dirs = self._dirs(store, folder.folder)
        here = [
            one
            for one in dirs
            if place in one.partitions
            and self._topic_id(store, one.partitions[place]) == folder.topic_id
        ]
        replicas = [recovered(store, one, place) for one in here]
        aside = [
            Orphan((key,), f"a -{name.state} folder, left alone")
            for one in dirs
            for key, name in one.set_aside.get(place, ())
        ]
        log = surviving_log(replicas, end_of_log=self._end_of_log)
        if log is None:
            raise DataLossError(
                "no log directory holds replication-offset-checkpoint, so nothing tells up to which"
                " offset records were replicated; endOfLog=true reads all whole batches",
                topic=folder.topic,
                partition=partition,
            )
        recovery = Recovery(store, log.replica.log_dir, place, log.replica.files)
        segments, lost = described(store, folder, partition, log, recovery)
        with self._lock:
            self._described |= {segment.segment_id: segment for segment, _ in segments}
            self._described |= {one.segment.segment_id: one.segment for one in lost}
        orphans = [*aside, *log.notes]
        for one in lost:
            entry = _entry(one.segment, one.key, ())
            orphans.append(Orphan((one.key,), one.reason, one.segment.start_offset, entry))
        return PartitionListing(
            tuple(
                _entry(segment, files.log.key, tuple(sorted(files.files.items())))
                for segment, files in segments
            ),
            tuple(orphans),
        )

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """What recovery found."""
        del store
        return self._described[entry.segment_id]

    def _dirs(self, store: ObjectStore, root: str) -> tuple[LogDir, ...]:
        with self._lock:
            if root not in self._log_dirs:
                self._log_dirs[root] = find_log_dirs(store, root)
            return self._log_dirs[root]

    def _topic_id(self, store: ObjectStore, folder: str) -> str:
        if folder not in self._topic_ids:
            self._topic_ids[folder] = _topic_id(store, folder)
        return self._topic_ids[folder]


def _topic_id(store: ObjectStore, folder: str) -> str:
    info = dict(files_in(store, folder)).get("partition.metadata")
    if info is None:
        return _NO_ID
    try:
        return uuid_to_text(parse_partition_metadata(read_file(store, info, _MAX_METADATA_BYTES)))
    except SegmentFormatError as error:
        raise CorruptSegmentError(error.message, uri=store.uri(info.key)) from error


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
