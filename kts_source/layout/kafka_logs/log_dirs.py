"""Where log directories are below a root, and what their checkpoints say.

A log directory (`log.dirs`) is a folder that holds `meta.properties` or one of a broker's
checkpoints, or partitions. It may be the root itself or lie one or two folders below it: one for a
broker, one for each of its disks. Source: `LogManager`, `ReplicaManager`,
`CleanShutdownFileHandler` in Kafka.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError, ObjectNotFoundError
from segment_format.errors import SegmentFormatError
from segment_format.index.offset_checkpoint import parse_offset_checkpoint
from segment_format.manifest.log_dir_names import PartitionDirectory, parse_partition_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.store.object_store import ObjectInfo, ObjectStore

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
_MARKS: Final = ("meta.properties", HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEAN_SHUTDOWN)
_PARTITION_MARKS: Final = ("leader-epoch-checkpoint", "partition.metadata")
_MAX_CHECKPOINT_BYTES: Final = 64 << 20
_DEPTH: Final = 2

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LogDir:
    """One log directory.

    Attributes:
        folder: Its key prefix; empty or ending in a slash.
        is_clean: Whether its broker was shut down cleanly: nothing of it needs to be recovered.
        high_watermarks: By partition; `None` where the file is missing.
        recovery_points: Below them everything was flushed.
        log_starts: Where they lie above the first segment.
        partitions: Folders of the partitions in use.
        set_aside: Folders that are no partition any more, or not yet, by partition.
    """

    folder: str
    is_clean: bool
    high_watermarks: Mapping[TopicPartition, int] | None
    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    partitions: Mapping[TopicPartition, str]
    set_aside: Mapping[TopicPartition, tuple[tuple[str, PartitionDirectory], ...]]


def find_log_dirs(store: ObjectStore, root: str) -> tuple[LogDir, ...]:
    """The log directories at a key prefix, or below it, in order of their folders.

    Raises:
        CorruptSegmentError: A checkpoint that cannot be read.
    """
    level = [root]
    for _ in range(_DEPTH + 1):
        below = {folder: store.list_folders(folder) for folder in level}
        found = [folder for folder in level if _is_log_dir(store, folder, below[folder])]
        if found:
            others = [one for folder in level if folder not in found for one in below[folder]]
            deeper = [one for one in others if _has_any(store, one, _MARKS)]
            return tuple(_log_dir(store, folder) for folder in sorted([*found, *deeper]))
        level = [folder for folders in below.values() for folder in folders]
    return ()


def _is_log_dir(store: ObjectStore, folder: str, below: list[str]) -> bool:
    if _has_any(store, folder, _MARKS):
        return True
    return any(
        _has_any(store, one, _PARTITION_MARKS)
        for one in below
        if parse_partition_directory(one[len(folder) : -1]) is not None
    )


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
    return LogDir(
        folder,
        _look_up(store, folder + CLEAN_SHUTDOWN) is not None,
        _checkpoint(store, folder + HIGH_WATERMARKS),
        _checkpoint(store, folder + RECOVERY_POINTS) or {},
        _checkpoint(store, folder + LOG_STARTS) or {},
        partitions,
        {place: tuple(found) for place, found in set_aside.items()},
    )


def _checkpoint(store: ObjectStore, key: str) -> Mapping[TopicPartition, int] | None:
    info = _look_up(store, key)
    if info is None:
        return None
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
