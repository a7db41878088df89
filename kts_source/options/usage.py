"""Options of a batch, and what of them a batch or a stream cannot have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError
from kts_source.options.requested_bounds import mentions
from kts_source.options.scan_options import parse_any_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.options.scan_options import ScanOptions


def parse_options(given: Mapping[str, str]) -> ScanOptions:
    """Checks and types the options of one batch `load()`.

    Args:
        given: Option name (any case) to text.

    Raises:
        InvalidOptionError: Unknown, malformed, missing or contradictory options.
    """
    options = parse_any_options(given)
    check_for_batch(options)
    return options


def check_for_batch(options: ScanOptions) -> None:
    """Refuses what only a stream can do.

    Raises:
        InvalidOptionError: It starts at the end.
    """
    if mentions(options.starting, "latest"):
        raise InvalidOptionError("option 'startingOffsets' cannot be latest (-1) in a batch query")


def check_for_stream(options: ScanOptions) -> None:
    """Refuses what only a batch can do.

    Raises:
        InvalidOptionError: An end, a plan, or disks.
    """
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if name in options.given:
            raise InvalidOptionError(f"option {name!r} is not valid in a stream: it has no end")
    if options.plan_file is not None:
        raise InvalidOptionError("option 'planFile' is not valid in a stream: it plans each batch")
    if options.tail_paths:
        raise InvalidOptionError("option 'tailPath' is not valid in a stream: disks do not grow")
