"""The layout of `LocalTieredStorage`, the storage manager of Kafka's own tests. It stores plain
copies of the files of a segment, without a manifest.

    kafka-tiered-storage/<topic>-<partition>-<topicId>/<startOffset, 20 digits>-<segmentId>.<suffix>

The facts of a segment are computed from its files:

* The end offset is the last offset of the last batch. This is a lower bound: if compaction removed
  the last records, the broker has recorded a higher end offset. For a segment with an empty log,
  the end offset is the offset before the next segment.
* The largest timestamp is from the last entry of the time index, if the batches at and after the
  offset of this entry confirm it.
* The leader epochs are from the leader-epoch checkpoint.
* The time of the upload is unknown.

`.snapshot` is written last, so a segment that has it is complete. Source: `LocalTieredStorage`,
`RemoteLogSegmentFileset` in the tests of Kafka's storage module.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from kts_source.layout.layout import (
    PartitionListing,
    SegmentEntry,
    TopicFolder,
    group_segments,
    read_last_offset,
    read_whole,
)
from kts_source.layout.remote_segment import (
    IndexType,
    ObjectRef,
    RemoteSegment,
    SegmentObjects,
    StoredIndex,
    epochs_between,
    plain_chunks,
)
from kts_source.texts import printable
from segment_format.errors import CorruptIndexError, SegmentFormatError
from segment_format.index.checkpoints import LeaderEpochCheckpoint
from segment_format.index.sparse_indexes import OffsetIndex, TimeIndex
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.object_names import (
    LOCAL_SUFFIXES,
    ROOT_DIRECTORY,
    parse_local_partition_directory,
)
from segment_format.record.recovery import max_timestamps_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.layout.layout import SegmentName
    from kts_source.store.object_store import ObjectInfo, ObjectStore

logger = logging.getLogger(__name__)

Index = TypeVar("Index", OffsetIndex, TimeIndex)

MAX_SIDE_FILE_BYTES: Final = 64 << 20

_LOG: Final = "log"
_SIDE_FILES: Final = (
    (IndexType.OFFSET, "index"),
    (IndexType.TIMESTAMP, "timeindex"),
    (IndexType.PRODUCER_SNAPSHOT, "snapshot"),
    (IndexType.LEADER_EPOCH, "leader_epoch_checkpoint"),
    (IndexType.TRANSACTION, "txnindex"),
)
_NO_TIMESTAMP: Final = -1
_MAX_TIMESTAMP_READS: Final = 16
"""Maximum number of reads to confirm the largest timestamp. Usually one is enough, because the last
batches have it.
"""


class LocalTieredLayout:
    """Reads segments that `LocalTieredStorage` has copied.

    The key prefix may end before `kafka-tiered-storage/` or include it. There is a folder for each
    pair of partition and topic id, and all these folders have the same parent folder.
    """

    name = "local-tiered-storage"
    folder_pattern = f"[{ROOT_DIRECTORY}/]<topic>-<partition>-<topic id>/"
    format_versions: tuple[str, ...] = (
        "1",
    )  # its files are the broker's files, without a format version
    required: tuple[str, ...] = (_LOG, "index", "timeindex", "leader_epoch_checkpoint", "snapshot")
    optional: tuple[str, ...] = ("txnindex",)
    described_by = _LOG

    def topic_folders(
        self, store: ObjectStore, key_prefix: str, topic: str | None
    ) -> tuple[TopicFolder, ...]:
        """Returns a `TopicFolder` for each pair of topic and topic id that occurs in the name of a
        partition folder.
        """
        for root in (f"{key_prefix}{ROOT_DIRECTORY}/", key_prefix):
            if pairs := {parsed[:2] for parsed in _partition_folders(store, root, topic)}:
                return tuple(TopicFolder(*pair, root) for pair in sorted(pairs))
        return ()

    def partitions(self, store: ObjectStore, folder: TopicFolder) -> tuple[int, ...]:
        """Returns the partitions that have a folder with the topic id of `folder`."""
        return tuple(
            sorted(
                partition
                for _, topic_id, partition in _partition_folders(store, folder.folder, folder.topic)
                if topic_id == folder.topic_id
            )
        )

    def list_partition(
        self, store: ObjectStore, folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Lists the files of a partition, grouped by segment."""
        infos = list(store.list_objects(self.partition_folder(folder, partition)))
        return self.grouped(infos, folder, partition)

    def partition_folder(self, folder: TopicFolder, partition: int) -> str:
        """Returns the folder of a partition, which has the same parent as the folders of other
        partitions and topics.
        """
        return f"{folder.folder}{folder.topic}-{partition}-{folder.topic_id}/"

    def grouped(
        self, infos: Sequence[ObjectInfo], folder: TopicFolder, partition: int
    ) -> PartitionListing:
        """Groups the listed objects of a partition's folder by segment."""
        listing = group_segments(
            infos,
            folder,
            partition,
            prefix=self.partition_folder(folder, partition),
            suffixes=LOCAL_SUFFIXES,
            required=self.required,
            described_by=self.described_by,
        )
        return replace(listing, segments=_with_next_bases(listing))

    def stems(self, key_prefix: str, name: SegmentName) -> tuple[str, ...]:
        """Returns two possible stems of the segment's keys: with and without the folder
        `kafka-tiered-storage/` after the key prefix, because the prefix may already include it.
        """
        folder = f"{name.topic}-{name.partition}-{name.topic_id}"
        stem = f"{folder}/{name.base_offset:020d}-{name.segment_id}"
        return f"{key_prefix}{ROOT_DIRECTORY}/{stem}", f"{key_prefix}{stem}"

    def describe(self, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        """Describes a segment. Reads three side files and the last batches of its log.

        If the segment has no log (an orphan), its end offset is a lower bound: the last offset in
        its offset index or leader-epoch checkpoint.
        """
        files = dict(entry.objects)
        base, log = entry.base_offset, files.get(_LOG)
        index = _offset_index(store, files.get("index"), base, log)
        times = _usable(store, files.get("timeindex"), base, TimeIndex)
        end = floor = int(index.offsets[-1]) if index else base
        is_empty = log is not None and log.size == 0
        if is_empty:
            if index or times:
                raise CorruptIndexError("the log is empty, but its indexes have entries")
            end = max(base, (entry.next_base or 0) - 1)
        elif log is not None:
            newest = int(times.offsets[-1]) if times else None
            end = read_last_offset(
                store, log, base, index, newest=newest, next_base=entry.next_base
            )
        if end < floor:
            expected = "its offset index contains" if index else "its name begins with"
            raise CorruptIndexError(f"the log ends at offset {end}, but {expected} offset {floor}")
        checkpoint = files.get("leader_epoch_checkpoint")
        lineage = (
            LeaderEpochCheckpoint.from_bytes(_read(store, checkpoint)).entries if checkpoint else ()
        )
        if log is None and lineage:
            end = max(end, lineage[-1].start_offset)
        key = f"{entry.described_by.rpartition('.')[0]}.{_LOG}"
        ref = ObjectRef.of(log) if log else ObjectRef(key, 1, None)  # the size is unknown
        return RemoteSegment(
            topic=entry.topic,
            topic_id=entry.topic_id,
            partition=entry.partition,
            segment_id=entry.segment_id,
            start_offset=base,
            end_offset=end,
            max_timestamp_ms=_largest_timestamp(store, log, times, index),
            event_timestamp_ms=None,
            leader_epochs=epochs_between(lineage, base, end),
            objects=SegmentObjects(
                log=ref,
                chunk_index=plain_chunks(ref.size),
                compression=False,
                encryption=None,
                indexes={
                    kind: StoredIndex(ObjectRef.of(files[suffix]), 0, files[suffix].size)
                    for kind, suffix in _SIDE_FILES
                    if suffix in files
                },
            ),
            end_is_exact=is_empty and entry.next_base is not None,
        )


def _with_next_bases(listing: PartitionListing) -> tuple[SegmentEntry, ...]:
    """Returns the listing's segments. Sets `next_base` of each segment to the next higher base
    offset in the partition: the end of a segment with an empty log, and evidence about the end of
    other segments.

    Base offsets of damaged segments count, too. Otherwise, the lost offsets of a damaged segment
    would belong to the empty segment before it.
    """
    bases: set[int | None] = {entry.base_offset for entry in listing.segments}
    bases |= {orphan.base_offset for orphan in listing.orphans}
    ascending = sorted(base for base in bases if base is not None)
    completed = []
    for entry in listing.segments:
        index = bisect_right(ascending, entry.base_offset)
        if index < len(ascending):
            entry = replace(entry, next_base=ascending[index])
        completed.append(entry)
    return tuple(completed)


def _largest_timestamp(
    store: ObjectStore, log: ObjectInfo | None, times: TimeIndex | None, index: OffsetIndex | None
) -> int:
    """Returns the timestamp (ms) of the last time-index entry if the log confirms it: the batch at
    the offset of the entry has this timestamp, and no later batch has a larger timestamp. Otherwise
    returns −1.

    Pruning relies on this timestamp, and the time index has no checksum and may be truncated.
    """
    if log is None or not times:
        return _NO_TIMESTAMP
    offset, timestamp_ms = int(times.offsets[-1]), int(times.timestamps[-1])
    reads = 0

    def read(start: int, stop: int) -> bytes | memoryview:
        nonlocal reads
        reads += 1
        return store.get_range(log.key, start, stop, version=log.version)

    position = index.lookup(offset).position if index else 0
    in_log = max_timestamps_from(read, log.size, position, offset)
    largest = next(in_log, None)
    if largest == timestamp_ms:
        for later in in_log:
            if later > timestamp_ms:
                largest = later
                break
            if reads > _MAX_TIMESTAMP_READS:
                return _NO_TIMESTAMP
        else:
            return timestamp_ms
    what = "no batch" if largest is None else f"a batch of {largest} ms"
    logger.warning(
        "%s: the time index ends with %s ms at offset %s, where the log has %s; the segment's"
        " largest timestamp counts as unknown",
        *(printable(store.uri(log.key)), timestamp_ms, offset, what),
    )
    return _NO_TIMESTAMP


def _partition_folders(
    store: ObjectStore, root: str, topic: str | None
) -> Iterator[tuple[str, str, int]]:
    """Yields the topic, topic id and number of each partition that has a folder below `root`."""
    for key in store.list_folders(root + (f"{topic}-" if topic else "")):
        parsed = parse_local_partition_directory(key[len(root) : -1])
        if parsed is not None and (topic is None or parsed.topic == topic):
            yield parsed.topic, uuid_to_text(parsed.topic_id), parsed.partition


def _offset_index(
    store: ObjectStore, info: ObjectInfo | None, base_offset: int, log: ObjectInfo | None
) -> OffsetIndex | None:
    """Reads the offset index. Returns `None` if it is missing or invalid; the caller then reads the
    log from its start.
    """
    index = _usable(store, info, base_offset, OffsetIndex)
    if index and info and log and int(index.positions[-1]) >= log.size:
        logger.warning(
            "%s: the offset index points past the end of its log, so it is not used",
            printable(store.uri(info.key)),
        )
        return None
    return index


def _usable(
    store: ObjectStore, info: ObjectInfo | None, base_offset: int, kind: type[Index]
) -> Index | None:
    """Reads an index. Returns `None` if the file does not exist or is not valid."""
    if info is None:
        return None
    try:
        return kind.from_bytes(_read(store, info), base_offset=base_offset)
    except SegmentFormatError as error:
        logger.warning("%s is not usable: %s", printable(store.uri(info.key)), error)
        return None


def _read(store: ObjectStore, info: ObjectInfo) -> bytes:
    return read_whole(store, info, MAX_SIDE_FILE_BYTES, CorruptIndexError)
