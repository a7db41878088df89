"""Where log directories are below a root, and what their checkpoints say.

A log directory (`log.dirs`) is a folder that holds `meta.properties` or one of a broker's
checkpoints, or partitions. It may be the root itself or lie one or two folders below it: one for a
broker, one for each of its disks. Directories at different depths are all found. Source:
`LogManager`, `ReplicaManager`, `CleanShutdownFileHandler` in Kafka.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError, ObjectNotFoundError
from kts_source.texts import printable, some
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import parse_offset_checkpoint
from segment_format.manifest.object_names import (
    PartitionDirectory,
    parse_log_file_name,
    parse_partition_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.store.object_store import ObjectInfo, ObjectStore

log = logging.getLogger(__name__)

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"
_MARKS: Final = ("meta.properties", HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEAN_SHUTDOWN)
_PARTITION_MARKS: Final = ("leader-epoch-checkpoint", "partition.metadata")
_MAX_CHECKPOINT_BYTES: Final = 64 << 20
_DEPTH: Final = 2
_NO_DATA: Final = frozenset({"lost+found"})
"""Folders of a file system's own, usually unreadable."""
_FIRST_FILES: Final = 100
"""A partition's folder has a log file or an index among the first of its files."""

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LostReplica:
    """A replica that a checkpoint of a log directory names and whose folder does not exist.

    Attributes:
        checkpoint: Key of that checkpoint.
        start: First offset of its log, as far as a checkpoint records it.
        stop: One past the last offset that was replicated or flushed; `start` for none.
    """

    checkpoint: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class LogDir:
    """One log directory.

    Attributes:
        folder: Its key prefix; empty or ending in a slash.
        is_clean: Whether its broker was shut down cleanly: nothing of it needs to be recovered.
        high_watermarks: By partition; `None` where the file is missing.
        recovery_points: Below them everything was flushed.
        log_starts: Where they lie above the first segment.
        cleaned: By partition, the offset up to which the log cleaner has compacted it.
        partitions: Folders of the partitions in use.
        set_aside: Folders that are no partition any more, or not yet, by partition.
        lost: Replicas that a checkpoint names and whose folder does not exist.
    """

    folder: str
    is_clean: bool
    high_watermarks: Mapping[TopicPartition, int] | None
    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    cleaned: Mapping[TopicPartition, int]
    partitions: Mapping[TopicPartition, str]
    set_aside: Mapping[TopicPartition, tuple[tuple[str, PartitionDirectory], ...]]
    lost: Mapping[TopicPartition, LostReplica]


def find_log_dirs(store: ObjectStore, root: str) -> tuple[LogDir, ...]:
    """Finds the log directories at a key prefix and up to two folders below it.

    Returns:
        The directories in order of their folders.

    Raises:
        CorruptSegmentError: A checkpoint that cannot be read.
    """
    found = []
    level = [root]
    for _ in range(_DEPTH + 1):
        deeper: list[str] = []
        for folder in level:
            below = store.list_folders(folder)
            if _is_log_dir(store, folder, below):
                found.append(folder)
                below = [child for child in below if _may_hold_log_dirs(child, folder)]
            deeper += below
        level = [child for child in deeper if _name(child) not in _NO_DATA]
    if found and level:
        log.warning(
            "not searched for log directories, as they are more than %d folders below %s: %s; name"
            " the log directories in option 'path' or 'tailPath'",
            _DEPTH,
            printable(store.uri(root)),
            printable(some(level)),
        )
    return tuple(_log_dir(store, folder) for folder in sorted(found))


def _name(folder: str) -> str:
    return folder[:-1].rpartition("/")[2]


def _may_hold_log_dirs(child: str, folder: str) -> bool:
    """Returns whether a folder inside a log directory is neither a partition nor hidden, such as
    the snapshots that some file systems show.
    """
    name = child[len(folder) : -1]
    return parse_partition_directory(name) is None and not name.startswith(".")


def _is_log_dir(store: ObjectStore, folder: str, below: list[str]) -> bool:
    if _has_any(store, folder, _MARKS):
        return True
    return any(
        _has_any(store, child, _PARTITION_MARKS) or _has_segment_files(store, child)
        for child in below
        if parse_partition_directory(child[len(folder) : -1]) is not None
    )


def _has_segment_files(store: ObjectStore, folder: str) -> bool:
    first = islice(store.list_objects(folder), _FIRST_FILES)
    return any(parse_log_file_name(info.key[len(folder) :]) is not None for info in first)


def _has_any(store: ObjectStore, folder: str, names: tuple[str, ...]) -> bool:
    return any(_look_up(store, folder + name) is not None for name in names)


def _look_up(store: ObjectStore, key: str) -> ObjectInfo | None:
    try:
        return store.head(key)
    except ObjectNotFoundError:
        return None


def _log_dir(store: ObjectStore, folder: str) -> LogDir:
    partitions = {}
    set_aside = defaultdict(list)
    for key in store.list_folders(folder):
        name = parse_partition_directory(key[len(folder) : -1])
        if name is None:
            continue
        if name.state:
            set_aside[name.topic, name.partition].append((key, name))
        else:
            partitions[name.topic, name.partition] = key
    marks = _checkpoint(store, folder + HIGH_WATERMARKS)
    points = _checkpoint(store, folder + RECOVERY_POINTS) or {}
    starts = _checkpoint(store, folder + LOG_STARTS) or {}
    lost = {}
    for place in sorted({*(marks or {}), *points, *starts} - partitions.keys()):
        if any(name.state != "future" for _, name in set_aside.get(place, ())):
            continue  # a broker renamed it before it rewrote its checkpoints
        lost[place] = _lost_replica(folder, place, marks or {}, points, starts)
    return LogDir(
        folder,
        _look_up(store, folder + CLEAN_SHUTDOWN) is not None,
        marks,
        points,
        starts,
        _checkpoint(store, folder + CLEANED) or {},
        partitions,
        {place: tuple(found) for place, found in set_aside.items()},
        lost,
    )


def _lost_replica(
    folder: str,
    place: TopicPartition,
    marks: Mapping[TopicPartition, int],
    points: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
) -> LostReplica:
    start = starts.get(place, 0)
    mark, point = marks.get(place, start), points.get(place, start)
    name = HIGH_WATERMARKS if place in marks else RECOVERY_POINTS
    if mark < point:
        name = RECOVERY_POINTS
    if place not in marks and place not in points:
        name = LOG_STARTS
    return LostReplica(folder + name, start, max(start, mark, point))


def _checkpoint(store: ObjectStore, key: str) -> Mapping[TopicPartition, int] | None:
    info = _look_up(store, key)
    if info is None:
        return None
    if not info.size and key.endswith(CLEANED):
        return {}  # brokers create it without content
    try:
        return parse_offset_checkpoint(read_file(store, info, _MAX_CHECKPOINT_BYTES))
    except SegmentFormatError as error:
        raise CorruptSegmentError(error.message, uri=store.uri(key)) from error


def read_file(store: ObjectStore, info: ObjectInfo, at_most: int) -> bytes:
    """The bytes of a listed file.

    Raises:
        CorruptSegmentError: It has more than `at_most`.
    """
    if info.size > at_most:
        raise CorruptSegmentError(
            f"the file has {info.size} bytes; at most {at_most} are read", uri=store.uri(info.key)
        )
    return bytes(store.get_range(info.key, 0, info.size, version=info.version))


def files_in(store: ObjectStore, folder: str) -> Iterator[tuple[str, ObjectInfo]]:
    """Names and listings of what stands directly in a folder."""
    for info in store.list_objects(folder):
        name = info.key[len(folder) :]
        if "/" not in name:
            yield name, info
