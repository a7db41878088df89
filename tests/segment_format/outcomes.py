"""Hostile input has two allowed outcomes: a value, or a format error with a position."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def value_or_error(function: Callable[[], T]) -> T | SegmentFormatError:
    """What `function` returns, or the format error it raises; other exceptions pass through."""
    try:
        return function()
    except SegmentFormatError as error:
        return error


def assert_value_or_positioned_error(function: Callable[[], object], *, size: int) -> None:
    """Fails unless `function` returns, or raises a format error that names a byte of `size` ones.

    The position after the last byte is allowed: it is where missing bytes are missed.
    """
    outcome = value_or_error(function)
    if isinstance(outcome, SegmentFormatError):
        assert outcome.position is not None
        assert 0 <= outcome.position <= size
