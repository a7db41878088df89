"""Checks whether a partition has changed since the stream last read it. Compares topic id, leader
epoch and offsets.
"""

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
    """Returns the next offset that a stream reads in a partition. This is `offset`, or the log
    start if it is higher and `failOnDataLoss` is false.

    Args:
        location: The partition, with the option `failOnDataLoss`: if it is false, losses are logged
            instead of raised.
        offset: The next offset to read.
        epoch: Leader epoch of the record before `offset` when the stream read it; `None` if the
            stream did not read that record.
        log_start: Current log start.
        stop: Current end of the log, exclusive.
        owner: Leader epoch that the record before `offset` has now; `None` if unknown.

    Raises:
        OffsetOutOfRangeError: The log start is above `offset`.
        DataLossError: The log now ends below `offset`, or the record before `offset` now has
            another leader epoch.
    """
    if offset < log_start:
        location.raise_or_warn(
            f"offsets [{offset}, {log_start}) were deleted from {location.holder} by retention or"
            " DeleteRecords before the stream read them; failOnDataLoss=false continues at offset"
            f" {log_start}",
            OffsetOutOfRangeError,
        )
        return log_start
    if epoch is None:
        return offset
    if offset > stop:
        location.raise_or_warn(
            f"{location.holder} ends at offset {stop} now, and the stream has read up to {offset}:"
            " records that the stream has returned were lost in an unclean election or with their"
            " segments, or they are in a tier or on brokers that the options no longer name;"
            " failOnDataLoss=false waits until the log reaches that offset again"
        )
    elif owner is not None and owner != epoch:
        location.raise_or_warn(
            f"the last record that the stream has read, before offset {offset}, had leader epoch"
            f" {epoch}, but in {location.holder} it now has epoch {owner}: an unclean election"
            " replaced records that the stream returned; failOnDataLoss=false continues after them"
        )
    return offset


def check_new(location: Place, log_start: int) -> None:
    """Raises `OffsetOutOfRangeError` if a partition that is new to the stream does not begin at
    offset 0. Logs a warning instead if `failOnDataLoss` is false.
    """
    if log_start:
        location.raise_or_warn(
            f"the partition is new to the stream and begins at offset {log_start} in"
            f" {location.holder}: offsets [0, {log_start}) may have been deleted before the stream"
            f" read them; failOnDataLoss=false reads the partition from offset {log_start} on",
            OffsetOutOfRangeError,
        )


def report_unread(location: Place, start: int, stop: int) -> None:
    """Raises `OffsetOutOfRangeError` for offsets [start, stop), which were deleted before the
    stream read them. Logs a warning instead if `failOnDataLoss` is false.
    """
    location.raise_or_warn(
        f"offsets [{start}, {stop}) were lost before the stream read them: their segments expired"
        " or were deleted, or an unclean election removed them; failOnDataLoss=false skips them",
        OffsetOutOfRangeError,
    )


def report_recreated(topic: str, before: str, now: str, *, fail_on_data_loss: bool) -> None:
    """Raises `DataLossError` because a topic was deleted and created again. Logs a warning instead
    if `fail_on_data_loss` is false. Call it after the stream has read all records of the deleted
    topic in the tier. `before` is the id of the deleted topic, `now` the id of the new topic.
    """
    text = (
        f"the topic was created again: the stream has read all records in the tier of topic id"
        f" {before}, and the new id is {now}"
    )
    if fail_on_data_loss:
        raise DataLossError(
            f"{text}; failOnDataLoss=false continues with the new topic from its earliest offset",
            topic=topic,
        )
    log.warning("topic %s: %s; continuing from its earliest offset", topic, text)


def note_deselected(selection: Selection, position: StreamPosition) -> None:
    """Warns about partitions that the checkpoint contains, but the options no longer select. This
    loses no data, but may be a mistake.
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
    """Raises `DataLossError` because the tier no longer has segments of a partition in a batch.
    Logs a warning instead if `failOnDataLoss` is false.
    """
    topic, number = wanted.partition
    Place(topic, number, fail_on_data_loss=options.fail_on_data_loss).raise_or_warn(
        f"offsets [{wanted.start}, {wanted.stop}) of topic id {wanted.topic_id} are no longer in"
        " the tier, which has no segment of the partition; failOnDataLoss=false skips them"
    )


def check_epoch(location: Place, wanted: BatchRange, owner: int | None) -> None:
    """Raises `DataLossError` if the last record of a batch no longer has the leader epoch that it
    had when the end of the batch was chosen. Logs a warning instead if `failOnDataLoss` is false.
    `owner` is the current leader epoch of the record; `None` if unknown.
    """
    if wanted.epoch is not None and owner is not None and owner != wanted.epoch:
        location.raise_or_warn(
            f"the last record of the batch that ends at offset {wanted.stop} had leader epoch"
            f" {wanted.epoch} when the batch was planned, but in {location.holder} it now has epoch"
            f" {owner}: an unclean election replaced records of the batch; failOnDataLoss=false"
            " reads the existing records"
        )


def report_undecided(location: Place, wanted: BatchRange, stable: int, reason: str) -> None:
    """Raises `DataLossError` because a batch ends above `stable`, the last stable offset. Logs a
    warning instead if `failOnDataLoss` is false.

    This happens if the isolation level changed to `read_committed` after the end of the batch was
    chosen with `read_uncommitted`.
    """
    location.raise_or_warn(
        f"the batch that ends at offset {wanted.stop} has transactions from offset {stable} on that"
        f" are not decided: {reason}. The batch was planned with isolationLevel=read_uncommitted:"
        f" finish it with this level; failOnDataLoss=false skips the offsets from {stable} on"
    )


def remaining_bounds(
    location: Place, wanted: BatchRange, log_start: int, log_end: int
) -> tuple[int, int]:
    """Returns the offsets [start, stop) of a batch that still exist. Raises `DataLossError` if
    other offsets of the batch were lost. Logs a warning instead if `failOnDataLoss` is false.
    """
    start, stop = wanted.start, wanted.stop
    until = f"of the batch that ends at offset {stop} are no longer in {location.holder}, which"
    if start < log_start:
        high = min(stop, log_start)
        location.raise_or_warn(
            f"offsets [{start}, {high}) {until} begins at {log_start}; failOnDataLoss=false skips"
            " them"
        )
        start = high
    if stop > log_end:
        low = max(start, log_end)
        location.raise_or_warn(
            f"offsets [{low}, {stop}) {until} ends at {log_end}; failOnDataLoss=false skips them"
        )
        stop = low
    return start, stop
