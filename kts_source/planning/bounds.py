"""Resolves the range of offsets that a scan reads in a partition, and checks that the log has these
offsets.

`earliest` is the log start, and `latest` is the end of the log. If an offset is outside the log, an
error states the reason, or the offset is clamped with a warning. Like in a broker's ListOffsets, a
timestamp resolves to the first offset of a record with this or a later timestamp.

Timestamps of records are in any order, so a binary search is impossible: a segment, a part of the
time index or a batch is skipped only if its largest timestamp is lower than the requested one. As
on a broker, the result may be the offset of a transaction marker or of an aborted record. The time
index has no checksum, so an entry is used only if the records around its offset confirm it. A
manifest has no checksum either, so the largest timestamp of the last skipped segment is compared
with the segment's time index. Source: `RemoteLogManager.findOffsetByTimestamp`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    OffsetOutOfRangeError,
)
from kts_source.layout.remote_segment import IndexType
from kts_source.options.selection import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Bound,
    EarliestBound,
    LatestBound,
    OffsetsBound,
    TimestampBound,
)
from kts_source.planning.estimate import ARCHIVE_CLASSES
from kts_source.planning.lineage import PartitionLog
from kts_source.texts import printable, some, time_text
from segment_format.index.sparse_indexes import TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.layout.layout import Orphan
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.isolation import Decisions
    from kts_source.planning.lineage import SegmentRange
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.side_files import SideFiles
    from kts_source.store.joined_store import FallbackStore

log = logging.getLogger(__name__)

TimestampLookup: TypeAlias = Callable[[int], tuple[PartitionLog, int | None]]
"""Maps a timestamp in ms to two values: the first offset with this or a later timestamp, or `None`;
and the log with all holes below this offset that may have contained an earlier match.
"""
BoundsOf: TypeAlias = Callable[[PartitionLog, TimestampLookup], tuple[int, int]]
"""Maps a partition's log and its timestamp lookup to the offsets [start, stop) to read."""


class Progress(Protocol):
    """The offsets that a reader has already read. A plan with a `Progress` contains only later
    offsets.
    """

    def bounds_of(self, topic: str, topic_id: str, partition: int) -> BoundsOf | None:
        """Returns a function that finds the unread offsets of a partition. Returns `None` if the
        reader has read nothing of the partition: then the options determine the bounds.
        """

    def first_missing(self, partition: PartitionPlan) -> int:
        """Returns the first unread offset of a planned partition, or the end of the partition if
        all offsets were read.
        """


@dataclass(frozen=True, slots=True)
class Place:
    """A partition, with facts for checks and error messages about it.

    Attributes:
        orphans: Objects that belong to no complete segment.
        fail_on_data_loss: False to log a warning about missing offsets instead of raising an error.
        holder: The source that has the log, such as "the tier", for messages.
        beyond: State of the offsets after the end of the log in this source, such as "not tiered
            yet", for messages.
        explain_hole: Returns a possible reason for missing offsets, for error messages; an empty
            text if there is none. May send requests.
        mirror: The tier with its mirror. Missing offsets count as lost only if both answered.
    """

    topic: str
    partition: int
    orphans: tuple[Orphan, ...] = ()
    fail_on_data_loss: bool = True
    holder: str = "the tier"
    beyond: str = "not tiered yet"
    explain_hole: Callable[[], str] | None = None
    mirror: FallbackStore | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def orphans_text(self, start: int, stop: int) -> str:
        """Returns a message about orphans whose base offset is in [start, stop); an empty text if
        there is no such orphan.
        """
        names = [
            str(orphan)
            for orphan in self.orphans
            if orphan.base_offset is not None and start <= orphan.base_offset < stop
        ]
        return f"; only incomplete segments exist: {some(names)}" if names else ""

    def raise_or_warn(
        self, text: str, error: Callable[[str], DataLossError] = DataLossError
    ) -> None:
        """Raises `error` with the text after the partition's name. If `failOnDataLoss` is false,
        logs the text as a warning instead, without advice to set the option. Raises the error of
        the tier or its mirror if one of them did not answer.
        """
        if self.mirror is not None:
            self.mirror.require_answers()
        if self.fail_on_data_loss:
            raise error(f"{self}: {text}")
        log.warning("%s: %s", self, printable(_without_advice(text)))


def _without_advice(text: str) -> str:
    text = re.sub(r"[,;](?: or)? set failOnDataLoss=false to .*", "", text)
    return text.replace("failOnDataLoss=false ", "this run ")


def requested_bounds(
    options: ScanOptions, location: Place, partition: PartitionLog, lookup: TimestampLookup
) -> tuple[int, int]:
    """Resolves the offsets [start, stop) that the options request. Ignores open transactions, which
    may end the read earlier.

    Raises:
        OffsetOutOfRangeError: A bound is outside the log, or no record has the starting timestamp
            or a later one.
        DataLossError: Offsets are missing that may have had the first record with the timestamp or
            a later one.
        InvalidOptionError: The start is above the end.
    """
    start = resolve_start(options, location, partition, lookup)
    stop = _resolve_stop(options.ending, location, partition, lookup)
    if start > stop:
        raise InvalidOptionError(
            f"{location}: the starting offset {start} is above the ending offset {stop}"
        )
    return start, stop


def resolve_start(
    options: ScanOptions, location: Place, partition: PartitionLog, lookup: TimestampLookup
) -> int:
    """Resolves the first offset that the options request. Raises the errors of
    `requested_bounds`.
    """
    wanted = requested_value(options.starting, location)
    if wanted is None or wanted == EARLIEST_OFFSET:
        return partition.log_start
    if isinstance(options.starting, OffsetsBound):
        return _clamped("startingOffsets", wanted, location, partition)
    partition, offset = lookup(wanted)
    check_no_holes(
        location,
        partition,
        partition.log_start,
        partition.stop if offset is None else offset,
        note=f", where records dated at or after {wanted} ms may have been",
    )
    if offset is not None:
        return offset
    if options.timestamp_strategy == "latest":
        return partition.stop
    raise OffsetOutOfRangeError(
        f"{location}: no record in {location.holder} has a timestamp at or after {wanted} ms"
        f" ({_time(wanted)}){_newest_text(partition, wanted)}. Set"
        " startingOffsetsByTimestampStrategy=latest to read nothing instead",
        is_start_time=True,
    )


def _newest_text(partition: PartitionLog, wanted: int) -> str:
    """Returns a text about the time of the newest record; an empty text if it is unknown, because
    brokers hold the last records or a segment's largest timestamp contradicts the search.
    """
    newest = max((span.segment.max_timestamp_ms for span in partition.ranges), default=-1)
    if not 0 <= newest < wanted or partition.ranges[-1].stop < partition.stop:
        return ""
    return f": the newest record is from {_time(newest)}"


def _time(milliseconds: int) -> str:
    return time_text(1000 * milliseconds)


def _resolve_stop(
    bound: Bound, location: Place, partition: PartitionLog, lookup: TimestampLookup
) -> int:
    wanted = requested_value(bound, location)
    if wanted is None or wanted == LATEST_OFFSET:
        return partition.stop
    if isinstance(bound, OffsetsBound):
        return _clamped("endingOffsets", wanted, location, partition)
    partition, offset = lookup(wanted)
    return partition.stop if offset is None else offset


def _named_partitions(bound: Bound) -> Mapping[str, Mapping[int, int]] | None:
    """Returns the offsets or timestamps in a bound that was set in JSON, by topic and partition.
    Returns `None` for other bounds.
    """
    if isinstance(bound, EarliestBound | LatestBound | TimestampBound):
        return None
    return bound.offsets if isinstance(bound, OffsetsBound) else bound.timestamps_ms


def check_named(
    options: ScanOptions, held: AbstractSet[tuple[str, int]], topics: AbstractSet[str]
) -> None:
    """Checks that bounds in JSON name only existing partitions.

    Partitions that a bound does not name are read from their start, or to their end. Spark's Kafka
    source rejects a bound that does not name all partitions.

    Args:
        options: Options with the bounds.
        held: The partitions to read.
        topics: Topics for which it is unknown whether they have partitions without data. If a bound
            names all partitions of such a topic that have data, it may name further partitions.

    Raises:
        InvalidOptionError: A bound names a partition that is not read.
    """
    for option, bound in (("starting", options.starting), ("ending", options.ending)):
        named = _named_partitions(bound)
        if named is None:
            continue
        pairs = {(topic, number) for topic, numbers in named.items() for number in numbers}
        # If a bound names only some of the partitions, a partition without data may be a typo.
        complete = topics - {topic for topic, _ in held - pairs}
        extra = {pair for pair in pairs - held if pair[0] not in complete}
        if extra:
            may_be_empty = any(topic in topics for topic, _ in extra)
            raise InvalidOptionError(
                f"the {option} offsets name partitions that are not read: {_names(extra)}. Remove"
                " them from the option"
                + (", or name all other partitions, too, if they are empty" if may_be_empty else "")
                + f". Partitions to read: {_names(held) or 'none'}"
            )


def _names(partitions: AbstractSet[tuple[str, int]]) -> str:
    return some(f"{topic}-{number}" for topic, number in sorted(partitions))


def requested_value(bound: Bound, location: Place) -> int | None:
    """Returns the offset or timestamp that a bound has for a partition. Returns `None` if the bound
    is `earliest` or `latest`, or is in JSON and does not name the partition.
    """
    if isinstance(bound, TimestampBound):
        return bound.timestamp_ms
    named = _named_partitions(bound) or {}
    return named.get(location.topic, {}).get(location.partition)


def _clamped(option: str, offset: int, location: Place, partition: PartitionLog) -> int:
    if partition.log_start <= offset <= partition.stop:
        return offset
    reason = location.beyond if offset > partition.stop else "below the log start"
    location.raise_or_warn(
        f"{option} names offset {offset}, which is {reason}: {location.holder} holds"
        f" [{partition.log_start}, {partition.stop}){location.orphans_text(offset, offset + 1)}"
        "; failOnDataLoss=false reads the offsets that exist",
        OffsetOutOfRangeError,
    )
    return min(max(offset, partition.log_start), partition.stop)


def check_decided(bound: Bound, location: Place, stop: int, decided: int, reason: str) -> None:
    """Checks that a read does not end before an ending offset that the options name.

    A read with `read_committed` ends at `decided`, the start of the first undecided transaction.
    Raises `OffsetOutOfRangeError` if `decided` is below the requested end `stop`, the ending bound
    is an explicit offset, and loss is not allowed. For other bounds (`latest`, −1, timestamps),
    ending at `decided` is no error.
    """
    wanted = requested_value(bound, location) if isinstance(bound, OffsetsBound) else None
    if decided >= stop or wanted in (None, LATEST_OFFSET) or not location.fail_on_data_loss:
        return
    raise OffsetOutOfRangeError(
        f"{location}: endingOffsets names offset {wanted}, but read_committed ends at offset"
        f" {decided}: {reason}; set failOnDataLoss=false to end there"
    )


def check_lineage_known(location: Place, damaged: RemoteSegment) -> None:
    """Raises `DataLossError` because a damaged segment may have a newer leader epoch than all
    readable checkpoints: then it is unknown which segments belong to the log. If loss is allowed,
    logs a warning instead.
    """
    location.raise_or_warn(
        f"the checkpoint of offsets [{damaged.start_offset}, {damaged.stop_offset}) is lost, and"
        " they may have the newest leader epoch, so it is unknown which segments belong to the"
        f" log{location.orphans_text(damaged.start_offset, damaged.stop_offset)}"
        "; failOnDataLoss=false reads all segments"
    )


def refuse_contradiction(location: Place, evidence: str) -> None:
    """Raises `DataLossError` because `evidence` shows that the newest leader-epoch checkpoint is
    wrong, so that segments of the log would be skipped. If loss is allowed, logs a warning instead.
    """
    location.raise_or_warn(
        f"{evidence}. Segments would be skipped because of it. Restore the damaged side file from a"
        " replica or a version of the bucket, or set failOnDataLoss=false to read the log by the"
        " newest checkpoint"
    )


def check_outcomes(location: Place, partition: PartitionLog, decisions: Decisions) -> None:
    """Raises `DataLossError` if the outcome of a transaction is unknown: its marker may be in a
    hole, or no usable producer snapshot after a hole shows which transactions are open. If loss is
    allowed, logs a warning instead.
    """
    gap = decisions.unknown_after
    if gap is not None:
        location.raise_or_warn(
            f"producer snapshots from offset {gap.stop} on are not usable, and no segment in"
            f" {location.holder} holds offsets [{gap.start}, {gap.stop}), so it is unknown which"
            " transactions were open there; failOnDataLoss=false assumes that none was"
        )
    lost = decisions.lost
    if not lost:
        return
    producers = ", ".join(f"{txn.producer_id} since offset {txn.first_offset}" for txn in lost)
    oldest = min(txn.first_offset for txn in lost)
    holes = "; ".join(
        f"[{hole.start}, {hole.stop})" for hole in partition.missing if hole.start > oldest
    )
    location.raise_or_warn(
        f"no segment in {location.holder} holds offsets {holes}, where transactions of these"
        f" producers may have ended: {producers}; failOnDataLoss=false skips their records"
    )


def check_no_holes(
    location: Place, partition: PartitionLog, start: int, stop: int, note: str = ""
) -> None:
    """Raises `DataLossError` if offsets of [start, stop) are missing. If loss is allowed, logs a
    warning instead. Appends `note` to the message.

    Unverifiable gaps count as missing, because they may have contained records.
    """
    if start >= stop:
        return
    missing = [hole for hole in partition.missing if hole.start < stop and hole.stop > start]
    if not missing:
        return
    texts = []
    for hole in missing:
        texts.append(
            f"[{max(hole.start, start)}, {min(hole.stop, stop)}) {hole.between}"
            f"{location.orphans_text(hole.start, hole.stop)}"
        )
        if hole in partition.unverifiable:
            texts[-1] += " (none are missing if compaction removed the last records before them)"
    reason, consequence = "", "this run skips them"
    if location.fail_on_data_loss:
        reason = "" if location.explain_hole is None else location.explain_hole()
        consequence = (
            "restore the segments from older versions or a backup, or set failOnDataLoss=false to"
            " skip these offsets"
        )
    location.raise_or_warn(
        f"no segment in {location.holder} holds offsets {'; '.join(texts)}{note}{reason}"
        f"; {consequence}",
        partial(DataLossError, is_hole=True),
    )


def first_offset_at_or_after(
    partition: PartitionLog, timestamp_ms: int, side_files: SideFiles
) -> int | None:
    """Returns the offset of the first record in the segments that has a timestamp at or after
    `timestamp_ms`; `None` if there is no such record.
    """
    following = [span.segment for span in partition.ranges[1:]]
    for span, after in zip_longest(partition.ranges, following):
        if is_skipped(span.segment, after, timestamp_ms, side_files):
            continue
        offset = _first_offset_in(span, timestamp_ms, side_files)
        if offset is not None:
            return offset
    return None


def is_skipped(
    segment: RemoteSegment,
    following: RemoteSegment | None,
    timestamp_ms: int,
    side_files: SideFiles,
) -> bool:
    """Returns whether a search can skip a segment, because all its records have timestamps before
    `timestamp_ms`.

    The largest timestamp in a description is trusted if the next segment is skipped, too: even if
    it is wrong, the segment has no wanted records as long as timestamps ascend. The time index must
    confirm the largest timestamp of the last skipped segment.
    """
    if not segment.is_dated_before(timestamp_ms):
        return False
    if following is not None and following.is_dated_before(timestamp_ms):
        return True
    return has_confirmed_time(segment, side_files)


def has_confirmed_time(segment: RemoteSegment, side_files: SideFiles) -> bool:
    """Returns whether the time index of a segment confirms its largest timestamp, which manifests
    store without a checksum. Also returns True if the time index does not exist or is archived.
    """
    stored = segment.objects.indexes.get(IndexType.TIMESTAMP)
    if stored is None or not stored.size or stored.source.storage_class in ARCHIVE_CLASSES:
        return True
    return side_files.time_index(segment) is not None


def _first_offset_in(span: SegmentRange, timestamp_ms: int, side_files: SideFiles) -> int | None:
    skip = confirmed_skip(span.segment, timestamp_ms, side_files)
    times = (
        side_files.record_times(span.segment, 0, dated_from_ms=timestamp_ms)
        if skip is None
        else skip.rest
    )
    for offset, record_ms in times:
        if offset >= span.stop:
            return None
        if offset >= span.start and record_ms >= timestamp_ms:
            return offset
    return None


@dataclass(frozen=True, slots=True)
class Skip:
    """The start of a segment that a search for a timestamp can skip, and the records after it.

    Attributes:
        last_offset: All records up to this offset have earlier timestamps.
        rest: Offset and timestamp (ms) of the records after `last_offset`, without batches in which
            all timestamps are earlier.
    """

    last_offset: int
    rest: Iterator[tuple[int, int]]


def confirmed_skip(segment: RemoteSegment, timestamp_ms: int, side_files: SideFiles) -> Skip | None:
    """Finds the last time-index entry with a timestamp before `timestamp_ms`, and compares it with
    the log. Returns the records that a search can skip.

    Returns `None` if no record can be skipped: the indexes are empty or unusable, no entry has an
    earlier timestamp, or the records contradict the entry.
    """
    times, offsets = side_files.time_index(segment), side_files.offset_index(segment)
    if times is None or offsets is None:
        return None
    number = int(np.searchsorted(times.timestamps, timestamp_ms, side="left")) - 1
    if number < 0 or times.timestamps[number] <= 0:
        # Some clients do not set the largest timestamp in batch headers, from which brokers build
        # the index. So entries with timestamps of 0 or less prove nothing.
        return None
    entry = TimestampOffset(int(times.timestamps[number]), int(times.offsets[number]))
    position = offsets.lookup(entry.offset).position
    records = side_files.record_times(segment, position, dated_from_ms=entry.timestamp)
    rest = _records_after(entry, records)
    if rest is None:
        log.warning(
            "%s-%s: the time index says that the largest timestamp up to offset %s is %s ms, which"
            " the records do not confirm; reading segment %s from its start",
            *(segment.topic, segment.partition, entry.offset, entry.timestamp),
            printable(segment.objects.log.key),
        )
        return None
    return Skip(entry.offset, rest)


def _records_after(
    entry: TimestampOffset, records: Iterator[tuple[int, int]]
) -> Iterator[tuple[int, int]] | None:
    """Returns the records after the offset of a time-index entry; `None` if the records up to this
    offset contradict the entry. `records` must begin before or at the offset of the entry.
    """
    is_confirmed = False
    for offset, record_ms in records:
        if offset > entry.offset:
            return chain([(offset, record_ms)], records) if is_confirmed else None
        if record_ms > entry.timestamp:
            return None
        is_confirmed |= record_ms == entry.timestamp
    return iter(()) if is_confirmed else None
