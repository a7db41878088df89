"""Lag of a stream: available offsets that it has not read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kts_source.streaming.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Lag of one partition.

    Attributes:
        end: One past the last offset that may be read.
        offsets: Number of unread offsets.
        size: Approximate bytes of these offsets: stored bytes in the tier, estimated bytes on
            brokers.
        oldest_ms: Approximate timestamp of the oldest unread record in ms since the epoch; `None`
            if everything is read, or it is unknown.
        start: The log start.
    """

    end: int
    offsets: int
    size: int
    oldest_ms: int | None
    start: int

    @property
    def headroom(self) -> int:
        """Number of read offsets that still exist. At 0, retention deletes offsets before the
        stream reads them.
        """
        return self.end - self.offsets - self.start


def lag_to_json(lags: Mapping[TopicPartition, PartitionLag]) -> dict[str, Any]:
    """Returns lags in the format of a query's progress: `[end, offsets, bytes, oldestMs, start]` by
    topic and partition, and the totals.
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
    """Lag of a query's stream after a batch.

    Attributes:
        offsets: Number of unread offsets.
        size: Approximate bytes of these offsets.
        oldest_ms: Approximate timestamp of the oldest unread record in ms since the epoch; `None`
            if everything was read, or it is unknown.
        partitions: Lag by topic and partition.
    """

    offsets: int
    size: int
    oldest_ms: int | None
    partitions: Mapping[TopicPartition, PartitionLag]


def stream_lag(progress: Mapping[str, Any] | str) -> tuple[StreamLag, ...]:
    """Returns the lag of each stream of this source in a progress event, in order.

    Args:
        progress: `query.lastProgress`, its JSON, or the JSON of a `StreamingQueryListener` event.
            Python sources report it since Spark 4.2; before that, the log has a line per batch.
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
        lags.append(StreamLag(behind["offsets"], behind["bytes"], behind["oldestMs"], partitions))
    return tuple(lags)
