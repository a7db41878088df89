"""What stands in the log directories below some folders: topics, their ids, replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError
from kts_source.layout.kafka_logs.filling import with_missing_ends
from kts_source.layout.kafka_logs.log_dirs import files_in, find_log_dirs, read_file
from kts_source.layout.kafka_logs.replica import recovered
from kts_source.layout.layout import Orphan
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import parse_partition_metadata
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kts_source.layout.kafka_logs.log_dirs import LogDir, LostReplica, TopicPartition
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
        """Returns the names of all topics with a partition in use."""
        return frozenset(topic for log_dir in self._dirs for topic, _ in log_dir.partitions)

    def remains(self) -> frozenset[str]:
        """Returns the names of topics of which checkpoints or folders set aside are all that
        exists.
        """
        named = {
            topic for log_dir in self._dirs for topic, _ in (*log_dir.lost, *log_dir.set_aside)
        }
        return frozenset(named) - self.topics()

    def topic_ids(self, topic: str) -> frozenset[str]:
        """Returns the ids of a topic: of its partitions in use, else of folders set aside; the
        zero id where only a checkpoint names it.
        """
        in_use = {
            self._topic_id(folder)
            for log_dir in self._dirs
            for place, folder in log_dir.partitions.items()
            if place[0] == topic
        }
        if in_use:
            return frozenset(in_use)
        aside = {self._topic_id(folder) for _, folder in self._aside(topic)}
        is_named = any(place[0] == topic for log_dir in self._dirs for place in log_dir.lost)
        return frozenset(aside or ({_NO_ID} if is_named else ()))

    def partitions(self, topic: str, topic_id: str) -> tuple[int, ...]:
        """Returns the partitions of a topic id, ascending: those with a replica, and those of which
        only a checkpoint or a folder set aside is left.
        """
        of_any_id = set()
        numbers = set()
        for log_dir in self._dirs:
            for place, folder in log_dir.partitions.items():
                if place[0] == topic:
                    of_any_id.add(place[1])
                    if self._topic_id(folder) == topic_id:
                        numbers.add(place[1])
        numbers |= {number for number, folder in self._aside(topic)
                    if self._topic_id(folder) == topic_id}  # fmt: skip
        # A checkpoint does not record the topic id.
        named = {number for log_dir in self._dirs for name, number in log_dir.lost if name == topic}
        return tuple(sorted(numbers | (named - of_any_id)))

    def has_replica(self, place: TopicPartition, topic_id: str) -> bool:
        """Returns whether a partition in use has this topic id."""
        return any(
            place in log_dir.partitions and self._topic_id(log_dir.partitions[place]) == topic_id
            for log_dir in self._dirs
        )

    def lost_replicas(self, place: TopicPartition) -> list[LostReplica]:
        """Returns the replicas of a partition that checkpoints name and whose folder is gone."""
        return [log_dir.lost[place] for log_dir in self._dirs if place in log_dir.lost]

    def replicas(self, place: TopicPartition, topic_id: str) -> list[Replica]:
        """Returns the replicas of a partition, recovered, and compared with each other.

        Raises:
            CorruptSegmentError: One that cannot be recovered.
        """
        replicas = [
            recovered(self.store, one, place)
            for one in self._dirs
            if place in one.partitions and self._topic_id(one.partitions[place]) == topic_id
        ]
        return with_missing_ends(self.store, place, replicas)

    def set_aside(self, place: TopicPartition) -> list[Orphan]:
        """Folders that are no partition any more, or not yet."""
        return [
            Orphan((key,), f"a -{name.state} folder, left alone")
            for one in self._dirs
            for key, name in one.set_aside.get(place, ())
        ]

    def aside_of_others(self, topic: str, topic_id: str) -> list[Orphan]:
        """Returns the folders set aside of partitions that `partitions` does not name, as they have
        another topic id.
        """
        numbers = self.partitions(topic, topic_id)
        others = sorted({number for number, _ in self._aside(topic)} - {*numbers})
        return [orphan for number in others for orphan in self.set_aside((topic, number))]

    def _aside(self, topic: str) -> Iterator[tuple[int, str]]:
        """Yields partition and folder of what is set aside of a topic."""
        for log_dir in self._dirs:
            for (name, number), folders in log_dir.set_aside.items():
                if name == topic:
                    yield from ((number, folder) for folder, _ in folders)

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
