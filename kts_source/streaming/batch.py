"""The plan of one micro-batch, from its start and its end alone: the same rows at every replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.errors import DataLossError, StreamOffsetError
from kts_source.planning import bounds
from kts_source.planning.plan_log import plan_log
from kts_source.streaming.admission import Place

if TYPE_CHECKING:
    from kts_source.options import ScanOptions
    from kts_source.planning.assemble import PlannedPartition
    from kts_source.planning.bounds import TimestampLookup
    from kts_source.planning.lineage import PartitionLog
    from kts_source.streaming.offsets import StreamPosition
    from kts_source.streaming.partition_look import PartitionLook


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Offsets [start, stop) of one partition in a micro-batch."""

    place: Place
    topic_id: str
    start: int
    stop: int


def batch_ranges(start: StreamPosition, end: StreamPosition) -> list[BatchRange]:
    """What lies between two positions, in order of topic and partition; no empty ranges.

    Raises:
        StreamOffsetError: The two do not belong together.
    """
    found = []
    for name, topic in sorted(end.topics.items()):
        before = start.topics.get(name)
        begins = end.begins[name].offsets if name in end.begins else {}
        goes_on = before is not None and before.topic_id in (None, topic.topic_id)
        for partition, stop in sorted(topic.offsets.items()):
            first = begins.get(partition)
            if first is None and before is not None and goes_on:
                first = before.offsets.get(partition)
            if first is None or first > stop:
                raise StreamOffsetError(
                    f"the checkpoint does not say where the batch begins that ends at offset {stop}"
                    f" of topic id {topic.topic_id}: its lines do not belong together",
                    topic=name,
                    partition=partition,
                )
            if first == stop:
                continue
            if topic.topic_id is None:
                raise StreamOffsetError(
                    "the checkpoint was written by Spark's Kafka source and holds a batch that was"
                    " not finished: finish it with that source first",
                    topic=name,
                    partition=partition,
                )
            found.append(BatchRange(Place(name, partition), topic.topic_id, first, stop))
    return found


def check_gone(options: ScanOptions, wanted: BatchRange) -> None:
    """To be called where the tier has no segment of a partition any more.

    Raises:
        DataLossError: Unless loss is allowed.
    """
    topic, partition = wanted.place
    bounds.Place(topic, partition, fail_on_data_loss=options.fail_on_data_loss).raise_or_warn(
        f"offsets [{wanted.start}, {wanted.stop}) of topic id {wanted.topic_id} are no longer in"
        " the tier, which has no segment of the partition; failOnDataLoss=false leaves them out"
    )


def plan_range(options: ScanOptions, wanted: BatchRange, look: PartitionLook) -> PlannedPartition:
    """Plans one partition of a batch. What has been lost since the batch was fixed is an error, or
    left out with a warning.

    Raises:
        DataLossError: Offsets have gone, or the end is not decided, unless loss is allowed.
    """
    place = look.place
    until = f"the batch that ends at offset {wanted.stop}"

    def bounds_of(log: PartitionLog, _: TimestampLookup) -> tuple[int, int]:
        start, stop = wanted.start, wanted.stop
        if start < log.log_start:
            high = min(stop, log.log_start)
            place.raise_or_warn(
                f"offsets [{start}, {high}) of {until} are no longer in the tier, which begins at"
                f" {log.log_start}; failOnDataLoss=false leaves them out"
            )
            start = high
        if stop > log.stop:
            low = max(start, log.stop)
            place.raise_or_warn(
                f"offsets [{low}, {stop}) of {until} are no longer in the tier, which ends at"
                f" {log.stop}; failOnDataLoss=false leaves them out"
            )
            stop = low
        return start, stop

    while True:
        in_part = not look.view.is_complete
        planned = plan_log(options, place, wanted.topic_id, look.side_files, look.view, bounds_of)
        # What a part of the log said may be wrong where it did not do.
        if not (in_part and look.view.is_complete):
            break
    plan = planned.plan
    if plan.stop < plan.wanted_stop:
        place.raise_or_warn(
            f"{until} holds offsets from {plan.stop} on that are not decided: {plan.end_reason}. It"
            " was begun with isolationLevel=read_uncommitted: finish it so; failOnDataLoss=false"
            " leaves them out",
            DataLossError,
        )
    return planned
