"""Provides functions that check that invalid input is either parsed or raises an error with a
position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def value_or_error(function: Callable[[], T]) -> T | SegmentFormatError:
    """Returns the result of `function`, or the `SegmentFormatError` that it raises."""
    try:
        return function()
    except SegmentFormatError as error:
        return error


def assert_value_or_positioned_error(function: Callable[[], object], *, size: int) -> None:
    """Asserts that `function` returns, or raises a format error with a position in `[0, size]`.
    Errors about missing bytes have the position `size`, which is after the last byte.
    """
    outcome = value_or_error(function)
    if isinstance(outcome, SegmentFormatError):
        assert outcome.position is not None
        assert 0 <= outcome.position <= size
