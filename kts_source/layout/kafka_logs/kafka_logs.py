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
from typing import TYPE_CHECKING

from kts_source.errors import TierNotFoundError
from kts_source.layout.kafka_logs.described import described
from kts_source.layout.kafka_logs.disks import Disks
from kts_source.layout.kafka_logs.replica import Recovery
from kts_source.layout.kafka_logs.surviving import surviving_log
from kts_source.layout.layout import Orphan, PartitionListing, SegmentEntry, TopicFolder
from kts_source.store.joined_store import beside

if TYPE_CHECKING:
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectInfo, ObjectStore


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
            names = ", ".join(store.uri(one) for one in disks.without)
            raise TierNotFoundError(f"option 'path': no log directory of a broker at {names}")
        return tuple(
            TopicFolder(name, topic_id, root)
            for name in sorted(disks.topics())
            if topic in (None, name)
            for topic_id in sorted(disks.topic_ids(name))
        )

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
        log = surviving_log(place, replicas, end_of_log=self._end_of_log)
        recovery = Recovery(store, log.replica.log_dir, place, log.replica.files)
        segments, lost = described(store, folder, partition, log, recovery)
        with self._lock:
            self._described |= {segment.segment_id: segment for segment, _ in segments}
            self._described |= {one.segment.segment_id: one.segment for one in lost}
        orphans = [*disks.set_aside(place), *log.notes]
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

    def _below(self, store: ObjectStore, root: str) -> Disks:
        with self._lock:
            if root not in self._disks:
                roots = (root, *(before + root for before in self._beside))
                self._disks[root] = Disks(store, roots)
            return self._disks[root]


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
