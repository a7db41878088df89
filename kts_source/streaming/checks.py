"""Checks for changes of a partition since the stream last read it: topic id, epoch, offsets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kts_source.errors import DataLossError, OffsetOutOfRangeError
from kts_source.options.selection import Assign
from kts_source.planning.bounds import Place
from kts_source.texts import some

if TYPE_CHECKING:
    from kts_source.options import ScanOptions
    from kts_source.options.selection import Selection
    from kts_source.streaming.offsets import BatchRange, StreamPosition

log = logging.getLogger(__name__)


def resumed_offset(
    location: Place,
    offset: int,
    epoch: int | None,
    *,
    log_start: int,
    stop: int,
    owner: int | None,
) -> int:
    """Returns the offset at which a stream continues in a partition: `offset`, or the log start if
    it is higher and loss is allowed.

    Args:
        location: The partition; determines whether loss is an error.
        offset: The next offset to read.
        epoch: Leader epoch of the record before `offset`; `None` if the stream did not read it.
        log_start: Current log start.
        stop: Current end of the log.
        owner: Current epoch of the record before `offset`; `None` if unknown.

    Raises:
        OffsetOutOfRangeError: The log start is above `offset`.
        DataLossError: The log ends below the offsets that were read, or another leader wrote these
            offsets.
    """
    if offset < log_start:
        location.raise_or_warn(
            f"offsets [{offset}, {log_start}) have left {location.holder} before the stream read"
            " them: retention or DeleteRecords has overtaken it; failOnDataLoss=false continues at"
            f" {log_start}",
            OffsetOutOfRangeError,
        )
        return log_start
    if epoch is None:
        return offset
    if offset > stop:
        location.raise_or_warn(
            f"{location.holder} ends at offset {stop} now, and the stream has read up to {offset}:"
            " records that it returned were lost, in an unclean election or with their segments, or"
            " brokers had them that the options no longer name; failOnDataLoss=false waits for"
            " offsets from there on"
        )
    elif owner is not None and owner != epoch:
        location.raise_or_warn(
            f"the stream has read up to offset {offset}, where leader epoch {epoch} wrote the last"
            f" record; in {location.holder} it is of epoch {owner} now: an unclean election"
            " replaced records that the stream returned; failOnDataLoss=false continues after them"
        )
    return offset


def check_new(location: Place, log_start: int) -> None:
    """Raises `OffsetOutOfRangeError`, or warns, if a new partition does not begin at offset 0."""
    if log_start:
        location.raise_or_warn(
            f"the partition is new to the stream and begins at offset {log_start} in"
            f" {location.holder}: offsets [0, {log_start}) may have been there and deleted unseen;"
            f" failOnDataLoss=false reads it from {log_start}",
            OffsetOutOfRangeError,
        )


def report_unread(location: Place, start: int, stop: int) -> None:
    """Raises `OffsetOutOfRangeError`, or warns, about offsets that existed before and were deleted
    before the stream read them.
    """
    location.raise_or_warn(
        f"offsets [{start}, {stop}) were there before and have gone unread: their segments expired,"
        " were deleted, or lost an unclean election; failOnDataLoss=false continues without them",
        OffsetOutOfRangeError,
    )


def report_recreated(topic: str, before: str, now: str, *, fail_on_data_loss: bool) -> None:
    """Raises `DataLossError`, or warns, about a topic that was created again. The stream has read
    all records of the previous topic in the tier.
    """
    text = (
        f"the topic was created again: the stream has read what the tier holds of topic id"
        f" {before}, and the new id is {now}"
    )
    if fail_on_data_loss:
        raise DataLossError(
            f"{text}; failOnDataLoss=false continues with the new one from its earliest offset",
            topic=topic,
        )
    log.warning("topic %s: %s; continuing from its earliest offset", topic, text)


def note_deselected(selection: Selection, position: StreamPosition) -> None:
    """Warns about partitions in the checkpoint that the options no longer select: this is no loss,
    but may be a mistake.
    """
    wanted = selection.wanted(position.topics)
    for topic, topic_position in sorted(position.topics.items()):
        deselected = sorted(topic_position.offsets)
        if topic in wanted:
            if not isinstance(selection, Assign):
                continue
            deselected = [n for n in deselected if n not in selection.partitions[topic]]
        if deselected:
            log.warning(
                "topic %s: the options no longer select partitions %s, which the stream has read:"
                " their offsets stay in the checkpoint, and it continues from there when they are"
                " selected again",
                topic,
                some(f"{n} (at offset {topic_position.offsets[n]})" for n in deselected),
            )


def report_gone(options: ScanOptions, wanted: BatchRange) -> None:
    """Raises `DataLossError`, or warns, about a partition of a batch that no longer has a
    segment.
    """
    topic, number = wanted.partition
    Place(topic, number, fail_on_data_loss=options.fail_on_data_loss).raise_or_warn(
        f"offsets [{wanted.start}, {wanted.stop}) of topic id {wanted.topic_id} are no longer in"
        " the tier, which has no segment of the partition; failOnDataLoss=false skips them"
    )


def check_epoch(location: Place, wanted: BatchRange, owner: int | None) -> None:
    """Raises `DataLossError`, or warns, if another leader wrote the last record of a batch since it
    was fixed. `owner` is the current epoch of the record; `None` if unknown.
    """
    if wanted.epoch is not None and owner is not None and owner != wanted.epoch:
        location.raise_or_warn(
            f"when the batch that ends at offset {wanted.stop} was fixed, leader epoch"
            f" {wanted.epoch} had written its last record; in {location.holder} it is of epoch"
            f" {owner} now: an unclean election replaced records of the batch; failOnDataLoss=false"
            " reads the existing records"
        )


def report_undecided(location: Place, wanted: BatchRange, stable: int, reason: str) -> None:
    """Raises `DataLossError`, or warns, about a batch that ends above the last stable offset: the
    isolation level changed after it was fixed.
    """
    location.raise_or_warn(
        f"the batch that ends at offset {wanted.stop} holds offsets from {stable} on that are"
        f" not decided: {reason}. It was started with isolationLevel=read_uncommitted: finish"
        " it with that level; failOnDataLoss=false skips them"
    )


def remaining_bounds(
    location: Place, wanted: BatchRange, log_start: int, log_end: int
) -> tuple[int, int]:
    """Returns the offsets [start, stop) of a batch that still exist. Raises `DataLossError`, or
    warns, about offsets that were lost after the batch was fixed.
    """
    start, stop = wanted.start, wanted.stop
    until = f"of the batch that ends at offset {stop} are no longer in {location.holder}, which"
    if start < log_start:
        high = min(stop, log_start)
        location.raise_or_warn(
            f"offsets [{start}, {high}) {until} begins at {log_start}; failOnDataLoss=false leaves"
            " them out"
        )
        start = high
    if stop > log_end:
        low = max(start, log_end)
        location.raise_or_warn(
            f"offsets [{low}, {stop}) {until} ends at {log_end}; failOnDataLoss=false leaves them"
            " out"
        )
        stop = low
    return start, stop
