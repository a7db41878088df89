"""Finds the log directories of brokers, reads their checkpoints, and lists the files of their
partitions.

A log directory (`log.dirs`) is a folder that contains `meta.properties`, a checkpoint of a broker
or partition folders. It may be the root itself, or be one or two levels below it (broker, disk).
Log directories at different depths are all found. Source: `LogManager`, `ReplicaManager`,
`CleanShutdownFileHandler` in Kafka.

Files that an interrupted change left behind are handled like in a starting broker:

    .deleted    file that was being deleted: dropped
    .cleaned    output of an interrupted log cleaner or segment split: dropped
    .swap       output of a finished log cleaner or segment split: replaces its source
                segments, unless a `.cleaned` file with the same or a lower base offset shows
                that the split was interrupted

Source: `LogLoader.load`, `LogLoader.removeTempFilesAndCollectSwapFiles` in Kafka.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError, ObjectNotFoundError
from kts_source.layout.layout import Orphan, read_last_offset
from kts_source.texts import printable, some
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import parse_offset_checkpoint
from segment_format.manifest.object_names import (
    LogFileName,
    PartitionDirectory,
    parse_log_file_name,
    parse_partition_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.store.object_store import ObjectInfo, ObjectStore

log = logging.getLogger(__name__)

CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"
NO_LOG: Final = "its log does not exist"
MAX_SIDE_FILE_BYTES: Final = 64 << 20
_MARKS: Final = ("meta.properties", HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS, CLEAN_SHUTDOWN)
_PARTITION_MARKS: Final = ("leader-epoch-checkpoint", "partition.metadata")
_MAX_CHECKPOINT_BYTES: Final = 64 << 20
_DEPTH: Final = 2
_NO_DATA: Final = frozenset({"lost+found"})
"""Folders that the file system creates, usually unreadable."""
_FIRST_FILES: Final = 100
"""Number of files to list to recognize the folder of a partition by a log file or an index."""

TopicPartition = tuple[str, int]
_NamedFile = tuple[LogFileName, "ObjectInfo"]


@dataclass(frozen=True, slots=True)
class LostReplica:
    """A replica without a folder, which a checkpoint of the log directory names.

    Attributes:
        start: First offset of its log; 0 if no checkpoint records it.
        stop: One past the last offset that a checkpoint records as replicated or flushed; equal to
            `start` if there is no such offset.
    """

    checkpoint: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class LogDir:
    """One log directory.

    Attributes:
        folder: Key prefix of the log directory; empty or ending in a slash.
        is_clean: True if the broker was shut down cleanly. Then no log needs recovery.
        high_watermarks: High watermark by partition; `None` if the checkpoint does not exist.
        recovery_points: By partition, the offset below which all records were flushed.
        log_starts: First offset that consumers may see, by partition. Brokers do not record it for
            all partitions.
        cleaned: By partition, the offset up to which the log cleaner compacted the log.
        partitions: Folders of the partitions in use.
        set_aside: By partition, folders of deleted, stray or future replicas.
        lost: Replicas without a folder, which a checkpoint names.
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
    """Finds the log directories at the key prefix `root` and up to two levels below it. Returns
    them in order of folder names.

    Raises:
        CorruptSegmentError: A checkpoint cannot be read.
    """
    folders = []
    level = [root]
    for _ in range(_DEPTH + 1):
        deeper: list[str] = []
        for folder in level:
            below = store.list_folders(folder)
            if _is_log_dir(store, folder, below):
                folders.append(folder)
                below = [child for child in below if _may_hold_log_dirs(child, folder)]
            deeper += below
        level = [child for child in deeper if child[:-1].rpartition("/")[2] not in _NO_DATA]
    if folders and level:
        log.warning(
            "not searched for log directories, as they are more than %d folders below %s: %s; name"
            " the log directories in option 'path' or 'tailPath'",
            _DEPTH,
            printable(store.uri(root)),
            printable(some(level)),
        )
    return tuple(_read_log_dir(store, folder) for folder in sorted(folders))


def _may_hold_log_dirs(child: str, folder: str) -> bool:
    """Returns whether a child folder may contain log directories. Returns False for partition
    folders and for hidden folders, such as snapshots of some file systems.
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


def _read_log_dir(store: ObjectStore, folder: str) -> LogDir:
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
    marks = _read_checkpoint(store, folder + HIGH_WATERMARKS)
    points = _read_checkpoint(store, folder + RECOVERY_POINTS) or {}
    starts = _read_checkpoint(store, folder + LOG_STARTS) or {}
    lost = {}
    for topic_partition in sorted({*(marks or {}), *points, *starts} - partitions.keys()):
        if any(name.state != "future" for _, name in set_aside.get(topic_partition, ())):
            continue  # a broker renamed it before it rewrote its checkpoints
        lost[topic_partition] = _lost_replica(folder, topic_partition, marks or {}, points, starts)
    return LogDir(
        folder,
        _look_up(store, folder + CLEAN_SHUTDOWN) is not None,
        marks,
        points,
        starts,
        _read_checkpoint(store, folder + CLEANED) or {},
        partitions,
        {topic_partition: tuple(folders) for topic_partition, folders in set_aside.items()},
        lost,
    )


def _lost_replica(
    folder: str,
    topic_partition: TopicPartition,
    marks: Mapping[TopicPartition, int],
    points: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
) -> LostReplica:
    start = starts.get(topic_partition, 0)
    mark, point = marks.get(topic_partition, start), points.get(topic_partition, start)
    name = HIGH_WATERMARKS if topic_partition in marks else RECOVERY_POINTS
    if mark < point:
        name = RECOVERY_POINTS
    if topic_partition not in marks and topic_partition not in points:
        name = LOG_STARTS
    return LostReplica(folder + name, start, max(start, mark, point))


def _read_checkpoint(store: ObjectStore, key: str) -> Mapping[TopicPartition, int] | None:
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
    """Reads a listed file; raises CorruptSegmentError if it has more than `at_most` bytes."""
    if info.size > at_most:
        raise CorruptSegmentError(
            f"the file has {info.size} bytes, but may have at most {at_most} bytes",
            uri=store.uri(info.key),
        )
    return bytes(store.get_range(info.key, 0, info.size, version=info.version))


def files_in(store: ObjectStore, folder: str) -> Iterator[tuple[str, ObjectInfo]]:
    """Yields the name and the listed object of each file directly in a folder."""
    for info in store.list_objects(folder):
        name = info.key[len(folder) :]
        if "/" not in name:
            yield name, info


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of one segment by kind (`log`, `index`, …); `log` always exists."""

    base_offset: int
    files: Mapping[str, ObjectInfo]

    @property
    def log(self) -> ObjectInfo:
        """The file with the batches."""
        return self.files["log"]


@dataclass(frozen=True, slots=True)
class LostLog:
    """Lost records of a segment: its `.log` file is missing, empty or too short, and no regular
    deletion explains this. A scan reports data loss. A broker would silently drop the indexes of a
    segment without a `.log` file.

    Attributes:
        base_offset: Base offset of the segment. If another replica shows that only the end of the
            file is missing, the first missing offset.
        info: One of the indexes of the segment, or the `.log` file that is empty or ends early.
        stop: One past the last lost offset, as shown by the indexes of the segment, a producer
            snapshot or the next segment; equal to `base_offset` if the segment had no records.
        reason: The problem, for messages.
    """

    base_offset: int
    info: ObjectInfo
    stop: int
    reason: str = NO_LOG


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of a partition's folder.

    Attributes:
        segments: Segments with a `.log` file, in order of base offset.
        snapshots: Producer snapshots by offset.
        others: Other files by name, such as `leader-epoch-checkpoint`.
        not_read: Notes about files that a broker would drop.
        lost_logs: Segments with lost records, in order of base offset.
    """

    segments: tuple[SegmentFiles, ...]
    snapshots: Mapping[int, ObjectInfo]
    others: Mapping[str, ObjectInfo]
    not_read: tuple[Orphan, ...]
    lost_logs: tuple[LostLog, ...]


def partition_files(store: ObjectStore, folder: str) -> PartitionFiles:
    """Lists the files in the folder of a partition as a broker would see them after it has
    completed or undone interrupted changes.

    Raises:
        CorruptSegmentError: A `.log.swap` file does not consist of complete batches.
    """
    named: list[_NamedFile] = []
    others = {}
    for text, info in files_in(store, folder):
        name = parse_log_file_name(text)
        if name is None:
            others[text] = info
        else:
            named.append((name, info))
    current, not_read = _without_unfinished(store, named)
    files_by_base: dict[int, dict[str, ObjectInfo]] = defaultdict(dict)
    snapshots = {}
    for name, info in current:
        if name.kind == "snapshot":
            snapshots[name.offset] = info
        else:
            files_by_base[name.offset][name.kind] = info
    bases_with_any_log = {name.offset for name, _ in named if name.kind == "log"}
    lost, dropped = _lost_logs(store, files_by_base, snapshots, bases_with_any_log)
    return PartitionFiles(
        tuple(
            SegmentFiles(base, files)
            for base, files in sorted(files_by_base.items())
            if "log" in files
        ),
        snapshots,
        others,
        (*not_read, *dropped),
        tuple(lost),
    )


def _without_unfinished(
    store: ObjectStore, named: Sequence[_NamedFile]
) -> tuple[list[_NamedFile], list[Orphan]]:
    """Returns the files that a starting broker would keep, and a note about each other file."""
    not_read = [
        Orphan((info.key,), f"a .{name.state} file, which a broker drops when it starts")
        for name, info in named
        if name.state in ("deleted", "cleaned")
    ]
    cleaned = min((name.offset for name, _ in named if name.state == "cleaned"), default=None)
    swaps = []
    for name, info in named:
        if name.state != "swap":
            continue
        if cleaned is not None and name.offset >= cleaned:
            not_read.append(Orphan((info.key,), "belongs to a segment split that did not finish"))
        else:
            swaps.append((name, info))
    usual = [(name, info) for name, info in named if not name.state]
    swapped_logs = [(name.offset, info) for name, info in swaps if name.kind == "log"]
    if swapped_logs:
        low = min(offset for offset, _ in swapped_logs)
        high = max(_next_offset(store, offset, info) for offset, info in swapped_logs)
        replaced = [pair for pair in usual if low <= pair[0].offset < high]
        usual = [pair for pair in usual if not low <= pair[0].offset < high]
        not_read += [Orphan((info.key,), "replaced by a .swap file") for _, info in replaced]
    return [*usual, *swaps], not_read


def _lost_logs(
    store: ObjectStore,
    files_by_base: Mapping[int, Mapping[str, ObjectInfo]],
    snapshots: Mapping[int, ObjectInfo],
    bases_with_any_log: set[int],
) -> tuple[list[LostLog], list[Orphan]]:
    """Returns the segments with lost records, and notes about indexes that a broker would drop.
    `bases_with_any_log` has the base offsets of all log files, including files with a suffix such
    as `.deleted`.
    """
    bases = sorted(base for base, files in files_by_base.items() if "log" in files)
    lost, dropped = [], []
    for base, files in sorted(files_by_base.items()):
        following = next((other for other in bases if other > base), None)
        if "log" in files:
            # Compaction can remove all records of a segment that is not the last one. Then its
            # indexes are empty.
            if files["log"].size or following is None:
                continue
            stop = min(named_stop(store, base, files), following)
            if stop > base:
                text = "it is empty, although its indexes name offsets"
                lost.append(LostLog(base, files["log"], stop, text))
            continue
        keys = tuple(info.key for info in files.values())
        if base in bases_with_any_log:
            dropped.append(Orphan(keys, "indexes without a log, which a broker drops"))
            continue
        stop = named_stop(store, base, files)
        stop = max([stop, *snapshots]) if following is None else min(stop, following)
        is_between = bool(bases) and bases[0] < base < bases[-1]
        if is_between or stop > base:
            lost.append(LostLog(base, next(iter(files.values())), stop))
        else:
            dropped.append(Orphan(keys, "indexes without a log or entries, which a broker drops"))
    return lost, dropped


def named_stop(store: ObjectStore, base: int, files: Mapping[str, ObjectInfo]) -> int:
    """Returns one past the last offset in the indexes of a segment; `base` if the indexes have no
    entries. From the transaction index, only the fact is used that the segment has a record.
    """
    stop = base
    for kind, entry_bytes, position in (("index", 8, 0), ("timeindex", 12, 8)):
        info = files.get(kind)
        if info is None:
            continue
        # Preallocated files end in zeros. Entries are in ascending order, and their offsets are
        # relative to the base offset.
        data = read_file(store, info, MAX_SIDE_FILE_BYTES).rstrip(b"\0")
        data += bytes(-len(data) % entry_bytes)
        last = data[-entry_bytes:]
        if last:
            stop = max(stop, base + int.from_bytes(last[position : position + 4], "big") + 1)
    if "txnindex" in files and files["txnindex"].size:
        stop = max(stop, base + 1)
    return stop


def _next_offset(store: ObjectStore, base_offset: int, info: ObjectInfo) -> int:
    """Returns one past the last offset in a `.log.swap` file, like Kafka's
    `LogSegment.readNextOffset`.
    """
    if not info.size:
        return base_offset
    try:
        return 1 + read_last_offset(store, info, base_offset)
    except SegmentFormatError as error:
        raise CorruptSegmentError(
            f"a .swap file is incomplete: {error.message}",
            offset=base_offset,
            uri=store.uri(info.key),
            position=error.position,
        ) from error
