"""Compares the rows of a read with the rows of the expected log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from segment_format.testing import BuiltLog

Row = tuple[int, int, bytes | None, bytes | None, int]
"""A row: partition, offset, key, value, and timestamp in microseconds."""


def list_surviving_rows(partition: int, log: BuiltLog, isolation: str, start: int) -> list[Row]:
    """Returns the rows from offset `start` on that a read of `log` at isolation level `isolation`
    must return.
    """
    return [
        (partition, row.offset, row.key, row.value, row.timestamp * 1000)
        for row in log.rows(isolation, start=start)
    ]


def require_same_rows(
    options: Mapping[str, str], rows: Sequence[Row], expected: Sequence[Row]
) -> None:
    """Checks that the rows equal the expected rows. The error shows missing and additional rows."""
    missing = sorted(set(expected) - set(rows))[:4]
    extra = sorted(set(rows) - set(expected))[:4]
    assert sorted(rows) == expected, (
        f"{options}: {len(rows)} rows for {len(expected)}, missing {missing}, extra {extra}"
    )
