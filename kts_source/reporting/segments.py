"""The segments of a tier as columns: what a picture needs of each of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.planning.estimate import DEFAULT_CLASS
from kts_source.planning.lineage import BELOW_LOG_START, COVERED, DEAD_BRANCH, last_epoch
from kts_source.store.joined_store import is_beside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.partition_plan import PartitionPlan

SERVED: Final = 0
ON_DISK: Final = 1
STATES: Final = (
    "served",
    "served from a broker's disk",
    COVERED,
    BELOW_LOG_START,
    DEAD_BRANCH,
    "not read for another reason",
)
"""What becomes of a segment, by its code."""

COMPRESSED: Final = 1
ENCRYPTED: Final = 2
COPY_TIME_KNOWN: Final = 4

UNKNOWN_TIME: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns:
    """One row a segment, in order of partition and offset; of equals, those that are served first.

    Attributes:
        partition: Which of the report's partitions, int64.
        start: First offset that it stands for, inclusive, int64.
        stop: One past the last, int64.
        stored: Bytes of the log object, int64.
        original: Bytes before compression and encryption, int64.
        newest_s: Its largest timestamp in whole seconds since 1970, int64; −1 where unknown.
        copied_s: When its copy began, likewise; only where the flag says that it is known.
        state: Index into `STATES`, int64.
        epoch: Its newest leader epoch, int64; −1 where it tells none.
        flags: Sum of `COMPRESSED`, `ENCRYPTED` and `COPY_TIME_KNOWN`, int64.
        storage_class: Index into `classes`, int64.
        classes: Storage classes of the log objects.
        ids: Segment ids.
        side_bytes: Bytes of the objects that hold side files, int64.
    """

    partition: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]
    stored: npt.NDArray[np.int64]
    original: npt.NDArray[np.int64]
    newest_s: npt.NDArray[np.int64]
    copied_s: npt.NDArray[np.int64]
    state: npt.NDArray[np.int64]
    epoch: npt.NDArray[np.int64]
    flags: npt.NDArray[np.int64]
    storage_class: npt.NDArray[np.int64]
    side_bytes: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_served(self) -> npt.NDArray[np.bool_]:
        """Which of them the tier serves offsets from."""
        return np.equal(self.state, SERVED)

    @property
    def is_tiered(self) -> npt.NDArray[np.bool_]:
        """Which of them are objects of the tier, served or not."""
        return np.not_equal(self.state, ON_DISK)

    def bytes_by_class(self, rows: npt.NDArray[np.bool_]) -> dict[str, int]:
        """Stored bytes of the logs of these rows, by storage class."""
        return {
            name: int(self.stored[rows & (self.storage_class == number)].sum())
            for number, name in enumerate(self.classes)
            if np.any(rows & (self.storage_class == number))
        }


def segment_columns(parts: Sequence[PartitionPlan]) -> SegmentColumns:
    """The segments of these partitions."""
    classes: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    ids: list[str] = []
    for number, part in enumerate(parts):
        for start, stop, state, segment in _rows(part):
            objects = segment.objects
            copied_ms = segment.event_timestamp_ms
            flags = COMPRESSED * objects.compression
            flags += ENCRYPTED * (objects.encryption is not None)
            flags += COPY_TIME_KNOWN * (copied_ms is not None)
            name = objects.log.storage_class or DEFAULT_CLASS
            rows.append(
                (
                    number,
                    start,
                    stop,
                    objects.log.size,
                    objects.size_in_bytes,
                    _seconds(segment.max_timestamp_ms),
                    0 if copied_ms is None else _seconds(copied_ms),
                    state,
                    last_epoch(segment),
                    flags,
                    classes.setdefault(name, len(classes)),
                    _side_bytes(segment),
                )
            )
            ids.append(segment.segment_id)
    names = [field.name for field in fields(SegmentColumns)][:-2]
    table = np.array(rows, np.int64).reshape(len(rows), len(names))
    columns: dict[str, Any] = {name: table[:, at].copy() for at, name in enumerate(names)}
    return SegmentColumns(**columns, classes=tuple(classes), ids=tuple(ids))


def _seconds(ms: int) -> int:
    return UNKNOWN_TIME if ms < 0 else ms // 1000


def _rows(part: PartitionPlan) -> Iterator[tuple[int, int, int, RemoteSegment]]:
    log = part.surviving
    used = {id(span.segment) for span in log.ranges}
    rows = [
        (span.start, span.stop, ON_DISK if is_beside(span.segment.objects.log.key) else SERVED, n)
        for n, span in enumerate(log.ranges)
    ]
    segments = [span.segment for span in log.ranges]
    for skipped in log.skipped:
        segment = skipped.segment
        if id(segment) in used:  # the part of it below the log start
            continue
        reason = skipped.reason
        state = STATES.index(reason) if reason in STATES else len(STATES) - 1
        rows.append((segment.start_offset, segment.stop_offset, state, len(segments)))
        segments.append(segment)
    for start, stop, state, n in sorted(rows, key=lambda row: (row[0], row[2], row[3])):
        yield start, stop, state, segments[n]


def _side_bytes(segment: RemoteSegment) -> int:
    sources = {
        index.source.key: index.source.size
        for index in segment.objects.indexes.values()
        if index.content is None
    }
    return sum(sources.values())
