"""What stands in the log directories below some folders: topics, their ids, replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError
from kts_source.layout.kafka_logs.log_dirs import files_in, find_log_dirs, read_file
from kts_source.layout.kafka_logs.replica import recovered
from kts_source.layout.layout import Orphan
from segment_format.errors import SegmentFormatError
from segment_format.index.partition_metadata import parse_partition_metadata
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.layout.kafka_logs.log_dirs import LogDir, TopicPartition
    from kts_source.layout.kafka_logs.replica import Replica
    from kts_source.store.object_store import ObjectStore

_NO_ID: Final = "A" * 22
"""`Uuid.ZERO_UUID`: of partitions without `partition.metadata`."""
_MAX_METADATA_BYTES: Final = 4096


class Disks:
    """Log directories, found once. From any thread.

    Args:
        store: Where they are.
        roots: Key prefixes; empty, or ending in a slash.

    Attributes:
        without: The roots below which there is no log directory.
    """

    def __init__(self, store: ObjectStore, roots: Iterable[str]) -> None:
        self.store = store
        found = {root: find_log_dirs(store, root) for root in roots}
        self.without = tuple(root for root, dirs in found.items() if not dirs)
        self._dirs: tuple[LogDir, ...] = tuple(one for dirs in found.values() for one in dirs)
        self._topic_ids: dict[str, str] = {}

    def topics(self) -> frozenset[str]:
        """The names of all topics."""
        return frozenset(topic for one in self._dirs for topic, _ in one.partitions)

    def topic_ids(self, topic: str) -> frozenset[str]:
        """The ids under which a topic is there."""
        return frozenset(
            self._topic_id(folder)
            for one in self._dirs
            for place, folder in one.partitions.items()
            if place[0] == topic
        )

    def partitions(self, topic: str, topic_id: str) -> tuple[int, ...]:
        """Partitions with a replica of this topic id, ascending."""
        found = {
            place[1]
            for one in self._dirs
            for place, folder in one.partitions.items()
            if place[0] == topic and self._topic_id(folder) == topic_id
        }
        return tuple(sorted(found))

    def replicas(self, place: TopicPartition, topic_id: str) -> list[Replica]:
        """The replicas of a partition, recovered.

        Raises:
            CorruptSegmentError: One that cannot be recovered.
        """
        return [
            recovered(self.store, one, place)
            for one in self._dirs
            if place in one.partitions and self._topic_id(one.partitions[place]) == topic_id
        ]

    def set_aside(self, place: TopicPartition) -> list[Orphan]:
        """Folders that are no partition any more, or not yet."""
        return [
            Orphan((key,), f"a -{name.state} folder, left alone")
            for one in self._dirs
            for key, name in one.set_aside.get(place, ())
        ]

    def _topic_id(self, folder: str) -> str:
        if folder not in self._topic_ids:
            self._topic_ids[folder] = _topic_id(self.store, folder)
        return self._topic_ids[folder]


def _topic_id(store: ObjectStore, folder: str) -> str:
    info = dict(files_in(store, folder)).get("partition.metadata")
    if info is None:
        return _NO_ID
    try:
        return uuid_to_text(parse_partition_metadata(read_file(store, info, _MAX_METADATA_BYTES)))
    except SegmentFormatError as error:
        raise CorruptSegmentError(error.message, uri=store.uri(info.key)) from error
