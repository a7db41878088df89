"""Counts rejected records, and limits how many records of a commit may be rejected.

A wrong schema rejects all records. Without a limit, a run with a wrong schema would succeed and
skip the offsets of all records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError, RejectedRowsError

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_MAX_REJECTED: Final = 0.01
_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d+)?)\s*%")
_MAX_NAMED: Final = 5
"""Maximum number of partitions that an error names."""


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Numbers of records of a partition that a task or a wave processed.

    Attributes:
        records: Number of records, including rejected records.
        offset: Offset of the first rejected record; `None` if no record was rejected.
        reason: Reason why the first rejected record was rejected.
    """

    topic: str
    partition: int
    records: int = 0
    rejected: int = 0
    offset: int | None = None
    reason: str = ""

    def __add__(self, other: RecordCounts) -> RecordCounts:
        first = other if self.offset is None else self
        return replace(
            first,
            records=self.records + other.records,
            rejected=self.rejected + other.rejected,
        )

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: {self.rejected:,} of {self.records:,}, first offset"
            f" {self.offset} ({self.reason})"
        )


def sum_counts(counts: Iterable[RecordCounts]) -> tuple[RecordCounts, ...]:
    """Adds up counts by topic and partition."""
    sums: dict[tuple[str, int], RecordCounts] = {}
    for count in counts:
        key = count.topic, count.partition
        sums[key] = sums[key] + count if key in sums else count
    return tuple(sums[key] for key in sorted(sums))


def parse_max_rejected(text: str) -> float:
    """Returns the share of a percentage such as `1%`, from 0 to 1.

    Raises:
        InvalidOptionError: The text is not a percentage from 0% to 100%.
    """
    match = _PERCENT.fullmatch(text.strip()) if isinstance(text, str) else None
    share = 2.0 if match is None else float(match[1]) / 100
    if share > 1:
        raise InvalidOptionError(
            f"max_rejected must be a percentage from 0% to 100%, such as '1%', not {text!r}"
        )
    return share


def check_rejected(counts: Iterable[RecordCounts], limit: float) -> None:
    """Checks the rejected records of a wave before its commit.

    Args:
        counts: Counts of the tasks of the wave.
        limit: Maximum share of rejected records in the wave. If it is below 1, it is also an error
            if all records of one partition were rejected.

    Raises:
        RejectedRowsError: Too many records were rejected.
    """
    partitions = sum_counts(counts)
    records = sum(count.records for count in partitions)
    rejected = sum(count.rejected for count in partitions)
    lost = [count for count in partitions if 0 < count.records == count.rejected]
    if limit >= 1 or not (rejected > limit * records or lost):
        return
    reason = f"at most {100 * limit:.6g}% may be rejected"
    if rejected <= limit * records:
        reason = "all records of a partition were rejected"
    named = sorted(
        (count for count in partitions if count.rejected), key=lambda count: -count.rejected
    )
    more = f"; and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    first = named[0]
    raise RejectedRowsError(
        f"{rejected:,} of {records:,} records were rejected, and {reason}, so this commit was"
        f" not made and its offsets will be read again: {'; '.join(map(str, named[:_MAX_NAMED]))}"
        f"{more}. Correct the schema or the transform and run again. If the registry lacks a"
        " schema, register it, or correct the URL or context of the registry. Otherwise raise"
        " max_rejected to store these rows in the dead letters",
        rejected=rejected,
        records=records,
        topic=first.topic,
        partition=first.partition,
        offset=first.offset,
    )


def check_sample(rejected: int, records: int, limit: float | None, target: str) -> None:
    """Checks the rejected records in the sample of a dry run.

    Args:
        rejected: Number of rejected records.
        records: Number of all records of the sample.
        limit: Maximum share of rejected records; `None` if there is no folder for them.
        target: The table, for the message.

    Raises:
        RejectedRowsError: A run with the same share of rejected records would fail.
    """
    if limit is None:
        reason, advice = "there is no folder for them", "set dead_letters to a folder"
    else:
        reason, advice = f"at most {100 * limit:.6g}% may be rejected", "raise max_rejected"
    if rejected > (limit or 0) * records:
        raise RejectedRowsError(
            f"{rejected:,} of {records:,} sampled records would be rejected, and {reason}, so a run"
            f" would fail. Correct the schema or the transform, or {advice}",
            rejected=rejected,
            records=records,
            uri=target,
        )
