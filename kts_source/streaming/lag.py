"""How far a stream is behind what it could read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kts_source.streaming.admission import Place


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """What is unread of one partition.

    Attributes:
        end: One past the last offset that may be read.
        offsets: How many are unread.
        size: About how many bytes that is: stored ones in the tier, estimated ones on brokers.
        oldest_ms: About when the oldest unread record is dated, ms since the epoch; `None` where
            all is read, or nothing tells.
        start: The log start.
    """

    end: int
    offsets: int
    size: int
    oldest_ms: int | None
    start: int

    @property
    def headroom(self) -> int:
        """How many offsets below the unread ones are still there: where it falls to 0, retention is
        about to overtake the stream.
        """
        return self.end - self.offsets - self.start


def lag_to_json(lags: Mapping[Place, PartitionLag]) -> dict[str, Any]:
    """As the progress of a query carries it: by topic and partition `[end, offsets, bytes,
    oldestMs, start]`, and all together.
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


@dataclass(frozen=True, slots=True)
class StreamLag:
    """How far a query's stream was behind after a batch.

    Attributes:
        offsets: How many were unread.
        size: About how many bytes that is.
        oldest_ms: About when the oldest unread record is dated, ms since the epoch; `None` where
            all was read, or nothing tells.
        partitions: By topic and partition.
    """

    offsets: int
    size: int
    oldest_ms: int | None
    partitions: Mapping[Place, PartitionLag]


def stream_lag(progress: Mapping[str, Any] | str) -> tuple[StreamLag, ...]:
    """What a progress event of a query tells of its streams of this source, in their order.

    Args:
        progress: `query.lastProgress`, its JSON, or what a `StreamingQueryListener` is given, as
            JSON. Spark 4.2 began to ask streams of Python for it; before that, the log has a line a
            batch.
    """
    event = json.loads(progress) if isinstance(progress, str) else progress
    found = []
    for source in event["sources"]:
        told = source["latestOffset"]
        if isinstance(told, str):
            try:
                told = json.loads(told)
            except ValueError:  # before 4.2 Spark gives Python's text of it, and never has figures
                continue
        if not isinstance(told, Mapping) or "behind" not in told:
            continue
        behind = told["behind"]
        partitions = {
            Place(topic, int(number)): PartitionLag(*row)
            for topic, rows in told["topics"].items()
            for number, row in rows.items()
        }
        found.append(StreamLag(behind["offsets"], behind["bytes"], behind["oldestMs"], partitions))
    return tuple(found)
