"""The files of a partition's folder, as a broker that starts would have them: what a change left
half done is completed or undone first.

    .deleted    was on its way out: dropped
    .cleaned    a cleaner or a split that did not get to its end: dropped
    .swap       a cleaner or a split that did: takes the place of the segments it was made from,
                unless it lies at or above a `.cleaned` file, which tells of a split that did not

Source: `LogLoader.load`, `LogLoader.removeTempFilesAndCollectSwapFiles` in Kafka.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.errors import CorruptSegmentError
from kts_source.layout.kafka_logs.log_dirs import files_in, read_file
from kts_source.layout.layout import Orphan
from segment_format.errors import SegmentFormatError
from segment_format.manifest.object_names import LogFileName, parse_log_file_name
from segment_format.record.recovery import last_offset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.store.object_store import ObjectInfo, ObjectStore


MAX_SIDE_FILE_BYTES: Final = 64 << 20
NO_LOG: Final = "its log is not there"


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of one segment: kind (`log`, `index`, …) and listing; there always is a `log`."""

    base_offset: int
    files: Mapping[str, ObjectInfo]

    @property
    def log(self) -> ObjectInfo:
        """The batches."""
        return self.files["log"]


@dataclass(frozen=True, slots=True)
class LostLog:
    """A segment whose log is neither there nor was on its way out. A broker would drop its indexes
    and serve what is left; here that is a loss.

    Attributes:
        base_offset: Of the segment; its first missing offset where another replica shows that the
            end of a log is missing.
        info: One of its indexes, or the log that ends early.
        stop: One past the last offset that its indexes or a producer snapshot name; `base_offset`
            where they name none, as those of a segment without records.
        reason: What is wrong.
    """

    base_offset: int
    info: ObjectInfo
    stop: int
    reason: str = NO_LOG


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of a partition's folder.

    Attributes:
        segments: In order of base offset.
        snapshots: Producer snapshots by the offset they are of.
        others: `leader-epoch-checkpoint` and the like, by name.
        not_read: What a broker would drop.
        lost_logs: In order of base offset.
    """

    segments: tuple[SegmentFiles, ...]
    snapshots: Mapping[int, ObjectInfo]
    others: Mapping[str, ObjectInfo]
    not_read: tuple[Orphan, ...]
    lost_logs: tuple[LostLog, ...]


def partition_files(store: ObjectStore, folder: str) -> PartitionFiles:
    """Lists a partition's folder and puts it in order.

    Raises:
        CorruptSegmentError: A `.swap` file that is no log.
    """
    named: list[tuple[LogFileName, ObjectInfo]] = []
    others = {}
    for text, info in files_in(store, folder):
        name = parse_log_file_name(text)
        if name is None:
            others[text] = info
        else:
            named.append((name, info))
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
            not_read.append(Orphan((info.key,), "of a split that did not get to its end"))
        else:
            swaps.append((name, info))
    usual = [(name, info) for name, info in named if not name.state]
    logs = [(name.offset, info) for name, info in swaps if name.kind == "log"]
    if logs:
        low = min(offset for offset, _ in logs)
        high = max(_next_offset(store, offset, info) for offset, info in logs)
        replaced = [one for one in usual if low <= one[0].offset < high]
        usual = [one for one in usual if not low <= one[0].offset < high]
        not_read += [Orphan((info.key,), "replaced by a .swap file") for _, info in replaced]
    segments: dict[int, dict[str, ObjectInfo]] = defaultdict(dict)
    snapshots = {}
    for name, info in (*usual, *swaps):
        if name.kind == "snapshot":
            snapshots[name.offset] = info
        else:
            segments[name.offset][name.kind] = info
    bases = sorted(base for base, files in segments.items() if "log" in files)
    going = {name.offset for name, _ in named if name.kind == "log"}
    lost = []
    for base, files in sorted(segments.items()):
        if "log" in files:
            # Compaction can leave a closed log without records, and then its indexes are empty.
            following = next((one for one in bases if one > base), None)
            if files["log"].size or following is None:
                continue
            stop = min(named_stop(store, base, files), following)
            if stop > base:
                text = "it is empty, although its indexes name offsets"
                lost.append(LostLog(base, files["log"], stop, text))
            continue
        keys = tuple(info.key for info in files.values())
        if base in going:
            not_read.append(Orphan(keys, "indexes without a log, which a broker drops"))
            continue
        following = next((one for one in bases if one > base), None)
        stop = named_stop(store, base, files)
        stop = max([stop, *snapshots]) if following is None else min(stop, following)
        is_between = bool(bases) and bases[0] < base < bases[-1]
        if is_between or stop > base:
            lost.append(LostLog(base, next(iter(files.values())), stop))
        else:
            not_read.append(Orphan(keys, "indexes without a log or entries, which a broker drops"))
    return PartitionFiles(
        tuple(SegmentFiles(base, segments[base]) for base in bases),
        snapshots,
        others,
        tuple(not_read),
        tuple(lost),
    )


def named_stop(store: ObjectStore, base: int, files: Mapping[str, ObjectInfo]) -> int:
    """Returns one past the last offset that the indexes of a segment name; its base for none."""
    stop = base
    for kind, entry_bytes, at in (("index", 8, 0), ("timeindex", 12, 8)):
        info = files.get(kind)
        if info is None:
            continue
        # Without zeros that were allocated ahead. Entries ascend, by offsets relative to the base.
        data = read_file(store, info, MAX_SIDE_FILE_BYTES).rstrip(b"\0")
        data += bytes(-len(data) % entry_bytes)
        last = data[-entry_bytes:]
        if last:
            stop = max(stop, base + int.from_bytes(last[at : at + 4], "big") + 1)
    if "txnindex" in files and files["txnindex"].size:
        stop = max(stop, base + 1)
    return stop


def _next_offset(store: ObjectStore, base_offset: int, info: ObjectInfo) -> int:
    """One past the last offset of a log (`LogSegment.readNextOffset`)."""
    if not info.size:
        return base_offset
    try:
        return 1 + last_offset(
            lambda start, stop: store.get_range(info.key, start, stop, version=info.version),
            info.size,
            base_offset=base_offset,
        )
    except SegmentFormatError as error:
        raise CorruptSegmentError(
            f"a .swap file is not whole: {error.message}",
            offset=base_offset,
            uri=store.uri(info.key),
            position=error.position,
        ) from error
