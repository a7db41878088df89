"""From a kernel's status and frame to the error the readable decoder raises for the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segment_format.errors import (
    CorruptRecordError,
    CrcMismatchError,
    SegmentFormatError,
    UnsupportedCompressionError,
    UnsupportedMagicError,
)
from segment_format.kernels import contract as c
from segment_format.record.batch_header import record_count_message, record_offset_message
from segment_format.transaction_check import ContradictedIntervalsError, transaction_message

if TYPE_CHECKING:
    from collections.abc import Sequence

_RECORD_ERRORS = {
    c.ERROR_RECORD: "its timestamp or offset delta is cut or too long",
    c.ERROR_RECORD_LENGTH: "its length does not fit the bytes left",
    c.ERROR_KEY: "its key runs past its end",
    c.ERROR_VALUE: "its value runs past its end",
    c.ERROR_HEADER_COUNT: "its header count does not fit the bytes left",
    c.ERROR_RECORD_HEADERS: "a header runs past its end",
    c.ERROR_RECORD_REST: "bytes are left in it",
    c.ERROR_TIMESTAMP: "its timestamp in microseconds does not fit 64 bits",
    c.ERROR_RECORD_SIZE: "its header keys take more than 2 GiB as UTF-8",
}

_OUTCOMES = {
    -1: "the batch at offset {offset} and the one before it are of one transaction, of which the"
    " indexes leave out one",
    0: "the log has an abort marker at offset {offset}, the indexes have none there",
    1: "the log has a commit marker at offset {offset}, the indexes say aborted",
}


def order_message(first: int, last: int, frame: Sequence[int]) -> str:
    """Why an entry with these first and last offsets cannot stand where it stands."""
    least, stop = frame[c.NEXT_OFFSET], frame[c.OFFSETS_STOP]
    return (
        f"an entry of offsets {first} to {last}, where they must lie in [{least}, {stop}) and below"
        " those of the next entry"
    )


def error_for(status: int, frame: Sequence[int], origin: int) -> SegmentFormatError:
    """The error that a negative status stands for.

    Args:
        status: What the kernel returned.
        frame: Its frame.
        origin: Log position of the window's first byte.
    """
    position = origin + frame[c.ERROR_POSITION]
    offset = frame[c.ERROR_OFFSET]
    found, expected = frame[c.ERROR_FOUND], frame[c.ERROR_EXPECTED]
    error: type[CorruptRecordError] = CorruptRecordError
    if status in _RECORD_ERRORS:
        message = (
            f"{frame[c.RECORDS_LEFT]} records before the end of a batch: {_RECORD_ERRORS[status]}"
        )
    elif status == c.ERROR_LENGTH:
        message = f"entry length {found} is below {expected}"
    elif status == c.ERROR_MAGIC:
        error, message = UnsupportedMagicError, f"unknown magic {found}"
    elif status == c.ERROR_TOO_LARGE:
        message = f"entry of {found} bytes, at most {expected} are allowed"
    elif status == c.ERROR_HEADER:
        message = (
            f"impossible batch: base offset {offset}, last offset delta {found},"
            f" record count {expected}"
        )
    elif status in (c.ERROR_CRC, c.ERROR_SKIPPED):
        error, message = CrcMismatchError, f"stored CRC {found:#010x}, computed {expected:#010x}"
    elif status == c.ERROR_CODEC:
        error, message = UnsupportedCompressionError, f"unknown codec number {found}"
    elif status == c.ERROR_EPOCH:
        message = f"a batch of leader epoch {found}, where the lineage has epoch {expected}"
    elif status == c.ERROR_ORDER:
        message = order_message(found, expected, frame)
    elif status == c.ERROR_RECORD_COUNT:
        message = record_count_message(expected, found)
    elif status == c.ERROR_RECORD_OFFSET:
        message = record_offset_message(found, expected, frame[c.LAST_OFFSET])
    elif status == c.ERROR_TRANSACTION:
        error = ContradictedIntervalsError
        message = transaction_message(found, _OUTCOMES[expected].format(offset=offset))
    elif status == c.ERROR_BATCH_REST:
        message = f"{found} bytes left after the last record of a batch"
    else:  # pragma: no cover - a status without a text is a mistake in the kernels
        message = f"kernel status {status}"
    return error(message, position=position, offset=offset)
