"""What lies between a stream's position and the end of the tier, partition by partition."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.options.selection import LATEST_OFFSET, LatestBound, OffsetsBound
from kts_source.planning.bounds import check_named, resolve_start, wanted_of
from kts_source.streaming.admission import Place
from kts_source.streaming.checks import check_goes_on, check_new, check_recreated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.lineage import PartitionLog
    from kts_source.streaming.log_look import LogLook, Look, TopicLook
    from kts_source.streaming.offsets import StreamPosition, TopicPosition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingPartition:
    """Offsets [start, stop) of a partition that may be read next.

    Attributes:
        is_told: Whether the stream's position says where it begins; else the next one must.
        look: `None` where the tier has no segment of it.
    """

    place: Place
    topic_id: str
    start: int
    stop: int
    is_told: bool
    look: LogLook | None


def pending_partitions(
    options: ScanOptions, position: StreamPosition, tier: Look
) -> list[PendingPartition]:
    """What may be read next, in order of topic and partition, empty ranges among it.

    Raises:
        DataLossError: Something has gone that the stream has read, or has still to read.
        InvalidOptionError: A start in JSON does not name the partitions that there are.
    """
    if position.is_initial:
        return _first(options, tier)
    found: list[PendingPartition] = []
    for name, topic in sorted(tier.items()):
        known = position.topics.get(name)
        if known is None or known.topic_id is None:
            if known is not None:
                log.warning(
                    "topic %s: the checkpoint knows no topic id; going on in the newest, %s",
                    name,
                    topic.topic_id,
                )
            found += _known(topic, known)
            continue
        parts = list(_known(topic, known))
        if topic.newer is not None and all(part.start >= part.stop for part in parts):
            newer = topic.newer
            check_recreated(
                name, known.topic_id, newer.topic_id, fail_on_data_loss=options.fail_on_data_loss
            )
            looks = newer.partitions()
            parts = [_new(look, newer.topic_id) for _, look in sorted(looks.items())]
        found += parts
    return found


def _known(topic: TopicLook, position: TopicPosition | None) -> Iterator[PendingPartition]:
    offsets: Mapping[int, int] = {} if position is None else position.offsets
    epochs: Mapping[int, int] = {} if position is None else position.epochs
    for number, look in sorted(topic.partitions.items()):
        if number not in offsets:
            yield _new(look, topic.topic_id)
            continue
        before = offsets[number]
        start = check_goes_on(
            look.place,
            before,
            epochs.get(number),
            log_start=look.log.log_start,
            stop=look.written_stop,
            owner=look.epoch_of(before - 1),
        )
        place = Place(topic.topic, number)
        stop = max(start, look.end())
        yield PendingPartition(place, topic.topic_id, start, stop, start == before, look)


def _new(look: LogLook, topic_id: str) -> PendingPartition:
    stop = look.end()
    start = look.log.log_start
    check_new(look.place, start)
    place = Place(look.place.topic, look.place.partition)
    return PendingPartition(place, topic_id, start, max(start, stop), is_told=False, look=look)


def _first(options: ScanOptions, tier: Look) -> list[PendingPartition]:
    """Where the options say that a new stream begins."""
    held = {(topic.topic, number) for topic in tier.values() for number in topic.partitions}
    # Of a partition that is not in the tier, only brokers know that there is none.
    check_named(options, held, tier.keys() if options.brokers is None else frozenset())
    found = []
    for name, topic in sorted(tier.items()):
        for number, look in sorted(topic.partitions.items()):
            stop = look.end()
            start = _first_offset(options, look, stop)
            place = Place(name, number)
            stop = max(start, look.end())
            found.append(PendingPartition(place, topic.topic_id, start, stop, False, look))
        # Named by the user, and nothing of them is tiered yet.
        if isinstance(options.starting, OffsetsBound):
            for number, start in sorted(options.starting.offsets.get(name, {}).items()):
                if number not in topic.partitions and start >= 0:
                    place = Place(name, number)
                    found.append(PendingPartition(place, topic.topic_id, start, start, False, None))
    return found


def _first_offset(options: ScanOptions, look: LogLook, end: int) -> int:
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
