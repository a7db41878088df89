"""How much a micro-batch of a stream takes, and how often the tier is looked at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import (
    MAX_INT32,
    Option,
    parse_bool,
    parse_byte_size,
    parse_positive_int,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# As in `JavaUtils.timeStringAsMs`, which Spark's Kafka source parses its delay with.
_UNIT_MS: Final[Mapping[str, int]] = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_DURATION: Final = re.compile(r"([0-9]{1,15})\s*([a-z]*)", re.IGNORECASE)


def parse_duration_ms(name: str, text: str) -> int:
    """Milliseconds, plain or with a unit: `900000`, `500ms`, `90s`, `15m`, `1h`, `2d`."""
    match = _DURATION.fullmatch(text.strip())
    unit = _UNIT_MS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidOptionError(
            f"option {name!r} must be a duration such as 500ms, 90s, 15m or 1h, not {text!r}"
        )
    return int(match[1]) * unit


def _parse_segments(name: str, text: str) -> int:
    return parse_positive_int(name, text, most=MAX_INT32)


STREAM_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "maxOffsetsPerTrigger",
        parse_positive_int,
        "At most so many offsets in a micro-batch, over all partitions; oldest segments first.",
    ),
    Option(
        "maxBytesPerTrigger",
        parse_byte_size,
        "At most so many original bytes in a micro-batch, in whole segments, at least one.",
    ),
    Option(
        "maxSegmentsPerTrigger",
        _parse_segments,
        "At most so many segments in a micro-batch.",
    ),
    Option(
        "minOffsetsPerTrigger",
        parse_positive_int,
        "Wait for so many new offsets before a micro-batch, but not longer than `maxTriggerDelay`.",
    ),
    Option(
        "maxTriggerDelay",
        parse_duration_ms,
        "See `minOffsetsPerTrigger`: `90s`, `15m`, `1h`.",
        default="15m",
    ),
    Option(
        "minListingIntervalMs",
        parse_duration_ms,
        "The tier is listed at most once in so many ms, however often Spark asks for news.",
        default="10000",
    ),
    Option(
        "fullListingIntervalMs",
        parse_duration_ms,
        "The listing of a partition with many segments is read again as a whole after so many ms;"
        " before that, only where it begins and ends.",
        default="600000",
    ),
    Option(
        "minBrokerPollIntervalMs",
        parse_duration_ms,
        "Brokers are asked for new ends at most once in so many ms.",
        default="1000",
    ),
    Option(
        "holeGraceMs",
        parse_duration_ms,
        "How long missing offsets may be a copy under way: a stream waits before them, then fails.",
        default="600000",
    ),
    Option(
        "stopAtEnd",
        parse_bool,
        "`true` fixes the end at the first look: what is tiered later is left to the next query."
        " For Spark 4.0 and 4.1, where `Trigger.AvailableNow` knows no limits.",
        default="false",
    ),
)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What a micro-batch may hold, and when there is one.

    Attributes:
        max_offsets: Of a batch; `None` = no limit.
        max_bytes: Original bytes of a batch; `None` = no limit.
        max_segments: Of a batch; `None` = no limit.
        min_offsets: A batch waits for as many; `None` = it does not wait.
        max_delay_ms: How long it waits for them.
        listing_interval_ms: Between two listings.
        full_listing_interval_ms: Between two listings of a whole partition that is long.
        poll_interval_ms: Between two questions to brokers.
        hole_grace_ms: How long a hole may heal.
        stop_at_end: Whether the end is fixed at the first look.
    """

    max_offsets: int | None
    max_bytes: int | None
    max_segments: int | None
    min_offsets: int | None
    max_delay_ms: int
    listing_interval_ms: int
    full_listing_interval_ms: int
    poll_interval_ms: int
    hole_grace_ms: int
    stop_at_end: bool


def stream_settings(values: Mapping[str, Any]) -> StreamSettings:
    """From parsed values, by option name, to typed ones.

    Raises:
        InvalidOptionError: Fewer offsets are allowed than are waited for.
    """
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise InvalidOptionError(
            f"option minOffsetsPerTrigger={least} must not be above maxOffsetsPerTrigger={most}"
        )
    return StreamSettings(
        max_offsets=most,
        max_bytes=values["maxBytesPerTrigger"],
        max_segments=values["maxSegmentsPerTrigger"],
        min_offsets=least,
        max_delay_ms=values["maxTriggerDelay"],
        listing_interval_ms=values["minListingIntervalMs"],
        full_listing_interval_ms=values["fullListingIntervalMs"],
        poll_interval_ms=values["minBrokerPollIntervalMs"],
        hole_grace_ms=values["holeGraceMs"],
        stop_at_end=values["stopAtEnd"],
    )
