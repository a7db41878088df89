"""Chooses the offsets of the next micro-batch.

Pending segments are sorted by the time of their newest record, oldest first, across partitions. So
event time advances evenly over partitions, and watermarks drop fewer rows. Within a partition
segments keep their order.
"""

from __future__ import annotations

import heapq
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kts_source.options.selection import LATEST_OFFSET, LatestBound, OffsetsBound
from kts_source.planning.bounds import check_named, resolve_start, wanted_of
from kts_source.streaming.checks import check_new, report_recreated, resumed_offset
from kts_source.streaming.offsets import (
    StreamPosition,
    TopicBegin,
    TopicPartition,
    TopicPosition,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.options import ScanOptions
    from kts_source.planning.lineage import PartitionLog
    from kts_source.streaming.look import LogLook, Look, PendingSegment, TopicLook

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a micro-batch; `None` = no limit. The first one reached ends the batch.

    Attributes:
        offsets: Cut inside a segment.
        size: Original bytes of complete segments; at least one segment is read.
        segments: Number of segments, or of parts of segments.
    """

    offsets: int | None = None
    size: int | None = None
    segments: int | None = None


NO_LIMITS = BatchLimits()

Pending: TypeAlias = "Mapping[TopicPartition, Iterator[PendingSegment]]"


def admit(pending: Pending, limits: BatchLimits) -> dict[TopicPartition, int]:
    """Returns where a micro-batch ends, exclusive, in each partition that it reads.

    Reads only as many pending segments as needed.

    Args:
        pending: Segments by partition, ascending.
        limits: Of the batch.
    """
    heads: list[tuple[tuple[int, int], TopicPartition, PendingSegment]] = []

    def advance(partition: TopicPartition) -> None:
        segment = next(pending[partition], None)
        if segment is not None:
            heapq.heappush(heads, (segment.order, partition, segment))

    for partition in pending:
        advance(partition)
    ends: dict[TopicPartition, int] = {}
    offsets = size = segments = 0
    while heads:
        _, partition, segment = heapq.heappop(heads)
        if limits.segments is not None and segments == limits.segments:
            break
        if limits.size is not None and segments and size + segment.size > limits.size:
            break
        count = segment.stop - segment.start
        if limits.offsets is not None and offsets + count >= limits.offsets:
            stop = segment.start + limits.offsets - offsets
            if stop > segment.start:
                ends[partition] = stop
            break
        ends[partition] = segment.stop
        offsets, size, segments = offsets + count, size + segment.size, segments + 1
        advance(partition)
    return ends


@dataclass(frozen=True, slots=True)
class PendingPartition:
    """Offsets [start, stop) of a partition that may be read next.

    Attributes:
        is_told: True if the stream's position has its start; else the next position must.
        look: `None` if the tier has no segment of the partition.
    """

    partition: TopicPartition
    topic_id: str
    start: int
    stop: int
    is_told: bool
    look: LogLook | None


def pending_partitions(
    options: ScanOptions, position: StreamPosition, look: Look
) -> list[PendingPartition]:
    """Returns what may be read next, in order of topic and partition, with empty ranges.

    Raises:
        DataLossError: Something was lost that the stream has read, or has still to read.
        InvalidOptionError: A start in JSON does not name the existing partitions.
    """
    if position.is_initial:
        return _initial_partitions(options, look)
    pending: list[PendingPartition] = []
    for name, topic in sorted(look.items()):
        topic_position = position.topics.get(name)
        if topic_position is None or topic_position.topic_id is None:
            if topic_position is not None:
                log.warning(
                    "topic %s: the checkpoint has no topic id; continuing in the newest, %s",
                    name,
                    topic.topic_id,
                )
            pending += _resumed_partitions(topic, topic_position)
            continue
        partitions = list(_resumed_partitions(topic, topic_position))
        if topic.newer is not None and all(each.start >= each.stop for each in partitions):
            newer = topic.newer
            report_recreated(
                name,
                topic_position.topic_id,
                newer.topic_id,
                fail_on_data_loss=options.fail_on_data_loss,
            )
            looks = sorted(newer.partitions().items())
            partitions = [_new_partition(each, newer.topic_id) for _, each in looks]
        pending += partitions
    return pending


def _resumed_partitions(
    topic: TopicLook, position: TopicPosition | None
) -> Iterator[PendingPartition]:
    offsets: Mapping[int, int] = {} if position is None else position.offsets
    epochs: Mapping[int, int] = {} if position is None else position.epochs
    for number, look in sorted(topic.partitions.items()):
        if number not in offsets:
            yield _new_partition(look, topic.topic_id)
            continue
        before = offsets[number]
        start = resumed_offset(
            look.place,
            before,
            epochs.get(number),
            log_start=look.log.log_start,
            stop=look.written_stop,
            owner=look.epoch_of(before - 1),
        )
        partition = TopicPartition(topic.topic, number)
        stop = max(start, look.end())
        yield PendingPartition(partition, topic.topic_id, start, stop, start == before, look)


def _new_partition(look: LogLook, topic_id: str) -> PendingPartition:
    stop = look.end()
    start = look.log.log_start
    check_new(look.place, start)
    partition = TopicPartition(look.place.topic, look.place.partition)
    return PendingPartition(partition, topic_id, start, max(start, stop), is_told=False, look=look)


def _initial_partitions(options: ScanOptions, look: Look) -> list[PendingPartition]:
    """Returns where the options say that a new stream begins."""
    held = {(topic.topic, number) for topic in look.values() for number in topic.partitions}
    # Only brokers know all partitions: one without segments may exist.
    check_named(options, held, look.keys() if options.brokers is None else frozenset())
    pending = []
    for name, topic in sorted(look.items()):
        for number, log_look in sorted(topic.partitions.items()):
            partition = TopicPartition(name, number)
            start = _initial_offset(options, log_look, log_look.end())
            stop = max(start, log_look.end())
            pending.append(
                PendingPartition(partition, topic.topic_id, start, stop, False, log_look)
            )
        # Partitions that the user named and that are not tiered yet.
        if isinstance(options.starting, OffsetsBound):
            for number, start in sorted(options.starting.offsets.get(name, {}).items()):
                if number not in topic.partitions and start >= 0:
                    partition = TopicPartition(name, number)
                    pending.append(
                        PendingPartition(partition, topic.topic_id, start, start, False, None)
                    )
    return pending


def _initial_offset(options: ScanOptions, look: LogLook, end: int) -> int:
    starting = options.starting
    wanted = wanted_of(starting, look.place)
    if isinstance(starting, LatestBound):
        return end
    if isinstance(starting, OffsetsBound) and wanted is not None:
        if wanted == LATEST_OFFSET:
            return end
        if wanted > look.log.stop:  # not tiered yet
            return wanted

    def lookup(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
        offset = look.first_offset_at_or_after(timestamp_ms)
        return look.log, offset

    return resolve_start(options, look.place, look.log, lookup)


def next_position(
    position: StreamPosition,
    pending: Sequence[PendingPartition],
    ends: Mapping[TopicPartition, int],
) -> StreamPosition:
    """Returns the position after a batch; `position` itself if the batch would be empty.

    A new stream always has a first batch, because Spark asks for one. Partitions that are in the
    position and not pending keep their offsets.

    Args:
        position: Before the batch.
        pending: Partitions that could be read.
        ends: End offsets of the batch.
    """
    if not position.is_initial and all(ends.get(p.partition, 0) <= p.start for p in pending):
        return position
    topics = dict(position.topics)
    begins: dict[str, TopicBegin] = {}
    for each in pending:
        topic, number = each.partition
        topic_position = topics.get(topic)
        if topic_position is None or topic_position.topic_id not in (None, each.topic_id):
            topic_position = TopicPosition(each.topic_id, {})
        stop = max(each.start, ends.get(each.partition, each.start))
        epochs = dict(topic_position.epochs)
        if stop != topic_position.offsets.get(number):
            epochs.pop(number, None)
            # The epoch of a record that this stream did not read is never compared.
            epoch = None if each.look is None else each.look.epoch_of(stop - 1)
            if stop > each.start and epoch is not None:
                epochs[number] = epoch
        topics[topic] = TopicPosition(
            each.topic_id, {**topic_position.offsets, number: stop}, epochs
        )
        if not each.is_told:
            begin = begins.get(topic, TopicBegin(each.topic_id, {}))
            begins[topic] = TopicBegin(each.topic_id, {**begin.offsets, number: each.start})
    return StreamPosition(topics, begins)
