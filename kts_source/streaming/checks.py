"""What may have happened to a partition between two looks, told by topic id, epoch and offsets."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kts_source.errors import DataLossError, OffsetOutOfRangeError
from kts_source.options.selection import Assign
from kts_source.texts import some

if TYPE_CHECKING:
    from kts_source.options.selection import Selection
    from kts_source.planning.bounds import Place
    from kts_source.streaming.offsets import StreamPosition

log = logging.getLogger(__name__)


def check_goes_on(
    place: Place,
    offset: int,
    epoch: int | None,
    *,
    log_start: int,
    stop: int,
    owner: int | None,
) -> int:
    """Where a stream goes on in a partition that it knows.

    Args:
        place: The partition, and whether loss is an error.
        offset: The next offset to read.
        epoch: Leader epoch of the record before it; `None` where the stream did not read it.
        log_start: Where the log begins now, as the tier or the leader tells.
        stop: Where it ends.
        owner: The epoch that owns the record before `offset` now; `None` where nobody tells.

    Returns:
        `offset`, or the log start where it has overtaken the stream and loss is allowed.

    Raises:
        OffsetOutOfRangeError: The log start is above `offset`.
        DataLossError: The log ends below what was read, or another leader wrote it.
    """
    if offset < log_start:
        place.raise_or_warn(
            f"offsets [{offset}, {log_start}) have left {place.holder} before the stream read them:"
            " retention or DeleteRecords has overtaken it; failOnDataLoss=false goes on at"
            f" {log_start}",
            OffsetOutOfRangeError,
        )
        return log_start
    if epoch is None:
        return offset
    if offset > stop:
        place.raise_or_warn(
            f"{place.holder} ends at offset {stop} now, and the stream has read up to {offset}:"
            " records that it returned were lost, in an unclean election or with their segments, or"
            " brokers had them that the options no longer name; failOnDataLoss=false waits for"
            " offsets from there on"
        )
    elif owner is not None and owner != epoch:
        place.raise_or_warn(
            f"the stream has read up to offset {offset}, where leader epoch {epoch} wrote the last"
            f" record; in {place.holder} it is of epoch {owner} now: an unclean election replaced"
            " records that the stream returned; failOnDataLoss=false goes on behind them"
        )
    return offset


def check_new(place: Place, log_start: int) -> None:
    """A partition that the stream did not know begins at offset 0, unless some of it has gone.

    Raises:
        OffsetOutOfRangeError: It does not, and loss is not allowed.
    """
    if log_start:
        place.raise_or_warn(
            f"the partition is new to the stream and begins at offset {log_start} in"
            f" {place.holder}: offsets [0, {log_start}) may have been there and deleted unseen;"
            f" failOnDataLoss=false reads it from {log_start}",
            OffsetOutOfRangeError,
        )


def check_kept(place: Place, start: int, stop: int) -> None:
    """To be called when offsets [start, stop) have gone that this process has seen and not read.

    Raises:
        OffsetOutOfRangeError: Unless loss is allowed.
    """
    place.raise_or_warn(
        f"offsets [{start}, {stop}) were there before and have gone unread: their segments expired,"
        " were deleted, or lost an unclean election; failOnDataLoss=false goes on without them",
        OffsetOutOfRangeError,
    )


def check_recreated(topic: str, before: str, now: str, *, fail_on_data_loss: bool) -> None:
    """To be called when a stream has read what the tier holds of a topic that was created again.

    Raises:
        DataLossError: Unless loss is allowed.
    """
    text = (
        f"the topic was created again: the stream has read what the tier holds of topic id"
        f" {before}, and its id is {now} now"
    )
    if fail_on_data_loss:
        raise DataLossError(
            f"{text}; failOnDataLoss=false goes on with the new one from its earliest offset",
            topic=topic,
        )
    log.warning("topic %s: %s; going on from its earliest offset", topic, text)


def note_deselected(selection: Selection, position: StreamPosition) -> None:
    """Says what a checkpoint has read of and the options no longer select: no loss, but perhaps not
    meant.

    Args:
        selection: What is read now.
        position: Where the stream is.
    """
    wanted = selection.wanted(position.topics)
    for topic, known in sorted(position.topics.items()):
        left = sorted(known.offsets)
        if topic in wanted:
            if not isinstance(selection, Assign):
                continue
            left = [number for number in left if number not in selection.partitions[topic]]
        if left:
            log.warning(
                "topic %s: the options no longer select partitions %s, which the stream has read:"
                " their offsets stay in the checkpoint, and it goes on from there when they are"
                " selected again",
                topic,
                some(f"{number} (at offset {known.offsets[number]})" for number in left),
            )
