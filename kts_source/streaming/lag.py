"""Defines the lag of a stream: the available offsets that the stream has not read yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kts_source.streaming.offsets import TopicPartition

BROKERS: Final = "brokers"
REGISTRY: Final = "registry"
STORE: Final = "store"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Lag of one partition.

    Attributes:
        end: One past the last offset that may be read.
        offsets: Number of unread offsets.
        size: Approximate bytes of the unread offsets. A stream from the tier alone counts stored
            bytes. A stream from brokers counts uncompressed segment bytes in the tier, and
            estimates the bytes on brokers.
        oldest_ms: Approximate timestamp of the oldest unread record in ms since the epoch; `None`
            if all records were read or the timestamp is unknown.
        start: First offset of the log.
    """

    end: int
    offsets: int
    size: int
    oldest_ms: int | None
    start: int

    @property
    def headroom(self) -> int:
        """Number of offsets that the stream has read and that still exist. If it is 0, retention
        may already be deleting offsets that the stream has not read.
        """
        return self.end - self.offsets - self.start


@dataclass(frozen=True, slots=True)
class LagAge:
    """How old a reported lag is.

    Attributes:
        as_of_ms: Time of the last successful request for the ends of the logs, in ms since the
            epoch; `None` if no request succeeded.
        is_stale: True if a later request failed, or found no tier or no topic any more. The lag
            then compares with the last known ends, and the real lag is probably larger.
        waiting_for: The service for which the stream waits: `brokers`, `store` or `registry`;
            `None` if it does not wait for one.
    """

    as_of_ms: int | None
    is_stale: bool
    waiting_for: str | None


def lag_to_json(lags: Mapping[TopicPartition, PartitionLag]) -> dict[str, Any]:
    """Converts lags to the JSON that Spark shows in a query's progress. It has a list `[end,
    offsets, bytes, oldestMs, start]` for each partition, and the totals of all partitions.
    """
    topics: dict[str, dict[str, list[int | None]]] = {}
    for (topic, partition), lag in sorted(lags.items()):
        row = [lag.end, lag.offsets, lag.size, lag.oldest_ms, lag.start]
        topics.setdefault(topic, {})[str(partition)] = row
    dates = [lag.oldest_ms for lag in lags.values() if lag.oldest_ms is not None]
    return {
        "v": 1,
        "behind": {
            "offsets": sum(lag.offsets for lag in lags.values()),
            "bytes": sum(lag.size for lag in lags.values()),
            "oldestMs": min(dates, default=None),
        },
        "topics": topics,
    }


def age_to_json(age: LagAge) -> dict[str, Any]:
    """Returns the items about the age of a lag, which are added to the result of `lag_to_json`."""
    return {"asOf": age.as_of_ms, "stale": age.is_stale, "waitingFor": age.waiting_for}


@dataclass(frozen=True, slots=True)
class StreamLag:
    """Lag of one stream of a query after a batch.

    Attributes:
        offsets: Number of unread offsets.
        size: Approximate bytes of the unread offsets.
        oldest_ms: Approximate timestamp of the oldest unread record in ms since the epoch; `None`
            if all records were read or the timestamp is unknown.
        as_of_ms: Time of the last successful request for the ends of the logs, in ms since the
            epoch; `None` if no request succeeded, and in events of older versions.
        stale: True if a later request failed, or found no tier or no topic any more. Then the lag
            compares with the last known ends, and the real lag is probably larger.
        waiting_for: The service for which the stream waits: `brokers`, `store` or `registry`;
            `None` if it does not wait for one.
    """

    offsets: int
    size: int
    oldest_ms: int | None
    partitions: Mapping[TopicPartition, PartitionLag]
    as_of_ms: int | None = None
    stale: bool = False
    waiting_for: str | None = None


def stream_lag(progress: Mapping[str, Any] | str) -> tuple[StreamLag, ...]:
    """Returns the lags in a progress event: one per stream of this source, in the order of the
    query's sources.

    Args:
        progress: `query.lastProgress`, its JSON, or the JSON of a `StreamingQueryListener` event.
            Spark reports the lag of Python sources since version 4.2. With earlier versions, read
            it from the log, which has a line for each batch.
    """
    event = json.loads(progress) if isinstance(progress, str) else progress
    lags = []
    for source in event["sources"]:
        latest = source["latestOffset"]
        if isinstance(latest, str):
            try:
                latest = json.loads(latest)
            except ValueError:  # before Spark 4.2 the text is the repr of a dict, without lag
                continue
        if not isinstance(latest, Mapping) or "behind" not in latest:
            continue
        behind = latest["behind"]
        partitions = {
            TopicPartition(topic, int(number)): PartitionLag(*row)
            for topic, rows in latest["topics"].items()
            for number, row in rows.items()
        }
        lags.append(
            StreamLag(
                behind["offsets"],
                behind["bytes"],
                behind["oldestMs"],
                partitions,
                latest.get("asOf"),
                latest.get("stale", False),
                latest.get("waitingFor"),
            )
        )
    return tuple(lags)
