"""The plan of one micro-batch, from its start and its end alone: the same rows at every replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.errors import StreamOffsetError
from kts_source.planning import bounds
from kts_source.streaming.admission import Place

if TYPE_CHECKING:
    from kts_source.options import ScanOptions
    from kts_source.streaming.offsets import StreamPosition


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Offsets [start, stop) of one partition in a micro-batch.

    Attributes:
        epoch: Leader epoch of the last record, as it was when the batch was fixed; `None` where it
            was not known.
    """

    place: Place
    topic_id: str
    start: int
    stop: int
    epoch: int | None = None


def batch_ranges(start: StreamPosition, end: StreamPosition) -> list[BatchRange]:
    """Returns the offsets between two positions, in order of topic and partition; no empty ranges.

    Spark 4.0 and 4.1 ask for the batch between a position and itself after a restart. That batch is
    empty, also where `from` of the position says where an earlier batch began.

    Raises:
        StreamOffsetError: The two do not belong together.
    """
    if start == end:
        return []
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
            place, epoch = Place(name, partition), topic.epochs.get(partition)
            found.append(BatchRange(place, topic.topic_id, first, stop, epoch))
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


def check_epoch(place: bounds.Place, wanted: BatchRange, owner: int | None) -> None:
    """To be called before a batch is read again: its records may be others since.

    Args:
        place: The partition, and whether loss is an error.
        wanted: The range.
        owner: The epoch that owns its last record now; `None` where nobody tells.

    Raises:
        DataLossError: Another leader wrote it, and loss is not allowed.
    """
    if wanted.epoch is not None and owner is not None and owner != wanted.epoch:
        place.raise_or_warn(
            f"when the batch that ends at offset {wanted.stop} was fixed, leader epoch"
            f" {wanted.epoch} had written its last record; in {place.holder} it is of epoch {owner}"
            " now: an unclean election replaced records of the batch; failOnDataLoss=false reads"
            " what is there"
        )


def check_stable(place: bounds.Place, wanted: BatchRange, stable: int, written: int) -> None:
    """Refuses a batch that ends above the last stable offset: the isolation level changed after it
    was fixed.

    Args:
        place: The partition, and whether undecided offsets are an error.
        wanted: The range.
        stable: One past the last offset that is decided.
        written: One past the last offset that exists.

    Raises:
        DataLossError: It does, and skipping the undecided offsets is not allowed.
    """
    if stable < wanted.stop <= written:
        place.raise_or_warn(
            f"the batch that ends at offset {wanted.stop} holds offsets from {stable} on that are"
            " not decided: transactions are open there. It was begun with"
            " isolationLevel=read_uncommitted: finish it so; failOnDataLoss=false leaves them out"
        )


def bounds_left(
    place: bounds.Place, wanted: BatchRange, log_start: int, log_end: int
) -> tuple[int, int]:
    """The offsets [start, stop) of a range that are still there. What has been lost since the batch
    was fixed is an error, or left out with a warning.

    Args:
        place: The partition, and whether loss is an error.
        wanted: The range.
        log_start: First offset there is.
        log_end: One past the last.

    Raises:
        DataLossError: Some have gone, unless loss is allowed.
    """
    start, stop = wanted.start, wanted.stop
    until = f"of the batch that ends at offset {stop} are no longer in {place.holder}, which"
    if start < log_start:
        high = min(stop, log_start)
        place.raise_or_warn(
            f"offsets [{start}, {high}) {until} begins at {log_start}; failOnDataLoss=false leaves"
            " them out"
        )
        start = high
    if stop > log_end:
        low = max(start, log_end)
        place.raise_or_warn(
            f"offsets [{low}, {stop}) {until} ends at {log_end}; failOnDataLoss=false leaves them"
            " out"
        )
        stop = low
    return start, stop
