"""Segments that brokers should have deleted by retention.

A leader looks at its remote segments from the log start on and deletes those that the time or the
size of the topic's retention gives up, up to the first that it does not
(`RemoteLogManager.RLMExpirationTask.cleanupExpiredRemoteLogSegments`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.broker.topic_configs import TopicConfigs
    from segment_format.metadata.model import RemoteLogSegmentMetadata

CONFIGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic's records are kept.

    Attributes:
        time_ms: Segments whose newest record is older are deleted; `None` = however old.
        size: Of a partition, the oldest segments above it are deleted; `None` = however much.
        refusal: Why neither is known; empty where they are.
    """

    time_ms: int | None = None
    size: int | None = None
    refusal: str = ""

    @classmethod
    def of(cls, configs: TopicConfigs) -> Self:
        """As a topic is configured."""
        if configs.refusal:
            return cls(refusal=configs.refusal)
        if "delete" not in configs.values.get("cleanup.policy", "delete").split(","):
            return cls()
        time_ms, size = (_bound(configs.values.get(name)) for name in CONFIGS[1:])
        return cls(time_ms, size)

    def overdue(
        self, live: Sequence[RemoteLogSegmentMetadata], log_start: int, old_ms: int
    ) -> list[RemoteLogSegmentMetadata]:
        """The segments that should have been deleted by some time, from the log start on.

        Args:
            live: Those that brokers name, in any order.
            log_start: What ends below it is given up for another reason.
            old_ms: The time, in ms since 1970; segments copied later do not count, as retention may
                not have looked since.
        """
        counted = [
            one for one in live if one.end_offset >= log_start and one.event_timestamp_ms < old_ms
        ]
        size = sum(one.segment_size_in_bytes for one in counted)
        found = []
        for one in sorted(counted, key=lambda one: (one.start_offset, one.end_offset)):
            size -= one.segment_size_in_bytes
            is_old = self.time_ms is not None and one.max_timestamp_ms + self.time_ms < old_ms
            if not is_old and (self.size is None or size < self.size):
                break
            found.append(one)
        return found

    def __str__(self) -> str:
        return f"retention.ms={_text(self.time_ms)}, retention.bytes={_text(self.size)}"


def _bound(text: str | None) -> int | None:
    """The number of a configuration; −1 is none."""
    number = -1 if text is None else int(text)
    return None if number < 0 else number


def _text(bound: int | None) -> int:
    return -1 if bound is None else bound
