"""Options of streams: the size of a micro-batch, and how often tier and brokers are queried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import (
    Option,
    parse_bool,
    parse_byte_size,
    parse_positive_int,
    parse_positive_int32,
)
from kts_source.options.times import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping


STREAM_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "maxOffsetsPerTrigger",
        parse_positive_int,
        "Maximum number of offsets in a micro-batch over all partitions; oldest segments first.",
    ),
    Option(
        "maxBytesPerTrigger",
        parse_byte_size,
        "Maximum original bytes in a micro-batch, in whole segments, at least one.",
    ),
    Option(
        "maxSegmentsPerTrigger",
        parse_positive_int32,
        "Maximum number of segments in a micro-batch.",
    ),
    Option(
        "minOffsetsPerTrigger",
        parse_positive_int,
        "Minimum of new offsets before a micro-batch starts, or `maxTriggerDelay` passes.",
    ),
    Option(
        "maxTriggerDelay",
        parse_duration_ms,
        "Maximum time to wait for `minOffsetsPerTrigger`: `90s`, `15m`, `1h`.",
        default="15m",
    ),
    Option(
        "minListingIntervalMs",
        parse_duration_ms,
        "Minimum time in ms between two listings of the tier, however often Spark polls.",
        default="10000",
    ),
    Option(
        "fullListingIntervalMs",
        parse_duration_ms,
        "Time in ms between two complete listings of a partition with many segments; in between,"
        " only its beginning and end are listed.",
        default="600000",
    ),
    Option(
        "minBrokerPollIntervalMs",
        parse_duration_ms,
        "Minimum time in ms between two requests for end offsets to brokers.",
        default="1000",
    ),
    Option(
        "holeGraceMs",
        parse_duration_ms,
        "Time that a stream waits for the upload of missing offsets before it fails.",
        default="600000",
    ),
    Option(
        "stopAtEnd",
        parse_bool,
        "`true` fixes the end when the query starts; the next query reads later segments."
        " For Spark 4.0 and 4.1, where `Trigger.AvailableNow` ignores limits.",
        default="false",
    ),
)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Typed values of the options for streams. `None` means no limit."""

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
    """Builds `StreamSettings` from parsed options. Raises InvalidOptionError if the minimum number
    of offsets in a micro-batch is above the maximum.
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
