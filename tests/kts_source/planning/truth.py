"""What a tier proves, worked out from the lives of its partitions.

The log of whoever made the newest complete upload is the truth: a higher epoch is newer, then a
higher offset. An upload holds an offset of it if its own log has the very same batch there. The log
start is what that newest upload's checkpoint says, or the first offset held at all where nothing
lies below; whatever is not held above it is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.kts_source.planning.replica import build, divergence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.testing import BuiltLog
    from segment_format.testing.rows import ExpectedRow
    from tests.kts_source.planning.cluster import Upload
    from tests.kts_source.planning.history import World

Row = tuple[int, int, bytes | None, bytes | None, int]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PartitionTruth:
    """One partition of the incarnation that is read.

    Attributes:
        number: The partition.
        log: Every row of the surviving log up to the tier's end, and its transactions.
        dates: In ms, of every offset from 0 on, markers included.
        log_start: First offset that a reader must return.
        stop: One past the last one.
        missing: Offsets of [log_start, stop) that no complete upload holds.
        is_outlived: Whether copies of lower epochs came after the newest: two unclean elections,
            and none of the new leader's own epoch copied yet.
        is_ambiguous: Whether the newest copy is one of several that differ in the log start, where
            only the time of the copy tells which is newer.
        copied: When complete copies began, in ms, and their first offsets.
        damaged: Side files of complete copies that cannot be used.
    """

    number: int
    log: BuiltLog
    dates: tuple[int, ...]
    log_start: int
    stop: int
    missing: tuple[Range, ...]
    is_outlived: bool
    is_ambiguous: bool
    copied: tuple[tuple[int, int], ...]
    damaged: frozenset[str]

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed ends."""
        return self.log.last_stable_offset()

    @property
    def undecided_rows_from(self) -> int:
        """Where it may end without snapshots: headers do not tell of transactions that are open
        and have no data above the log start, which decide no row.
        """
        begun = (
            row.batch_base_offset
            for row in self.log.all_rows
            if row.transaction is not None
            and row.batch_base_offset >= self.log_start
            and self.log.transactions[row.transaction].marker_offset is None
        )
        return min(begun, default=self.stop)

    def rows(self, isolation: str, start: int, stop: int) -> list[Row]:
        """Rows of offsets [start, stop), the missing ones included."""
        expected = self.log.rows(isolation, start=start, stop=stop)
        return [_row(self.number, row) for row in expected]

    def decided_rows(self, start: int, stop: int) -> list[Row]:
        """Rows of [start, stop) that are committed and lie below the first undecided one."""
        return self.committed_rows(start, min(stop, self.undecided_rows_from))

    def committed_rows(self, start: int, stop: int) -> list[Row]:
        """Rows of [start, stop) that are committed, whatever is open below them."""
        return [
            _row(self.number, row)
            for row in self.log.all_rows
            if start <= row.offset < stop
            and (row.transaction is None or self.log.transactions[row.transaction].committed)
        ]

    def is_missing(self, offset: int) -> bool:
        """Whether no complete upload holds it."""
        return any(start <= offset < stop for start, stop in self.missing)

    def first_dated(self, timestamp_ms: int, *, missing_too: bool) -> int:
        """The first offset dated at or after a time; the end when there is none."""
        return next(
            (
                offset
                for offset in range(self.log_start, self.stop)
                if self.dates[offset] >= timestamp_ms
                and (missing_too or not self.is_missing(offset))
            ),
            self.stop,
        )

    def hides(self, timestamp_ms: int, found: int, copied_since_ms: int) -> bool:
        """Whether what is missing below the offset found for a time holds an earlier one, in front
        of something copied since some time.
        """
        recent = min((base for copied, base in self.copied if copied >= copied_since_ms), default=0)
        return any(
            self.dates[offset] >= timestamp_ms
            for start, stop in self.missing
            for offset in range(max(start, self.log_start), min(stop, found))
            if recent <= stop
        )

    def lost_outcomes(self, start: int, stop: int) -> tuple[bool, bool]:
        """Whether the outcome of a transaction with data below `stop` may be, and is, lost."""
        may = must = False
        stable = min(stop, self.last_stable_offset)
        for number, txn in enumerate(self.log.transactions):
            if txn.first_offset >= stop or txn.marker_offset is None:
                continue
            spans = any(
                txn.first_offset < hole_start <= txn.marker_offset for hole_start, _ in self.missing
            )
            may = may or spans
            if spans and self.is_missing(txn.marker_offset):
                must = must or any(
                    row.transaction == number and start <= row.offset < stable
                    for row in self.log.all_rows
                )
        return may, must


def newest_incarnation(world: World) -> str:
    """The topic id of the newest complete upload."""
    return max(
        world.incarnations,
        key=lambda topic_id: max(
            (
                copy.event_timestamp_ms
                for life in world.incarnations[topic_id]
                for copy in life.complete()
            ),
            default=-1,
        ),
    )


def truth_of(world: World) -> dict[int, PartitionTruth]:
    """Partition number to truth; empty when no upload is complete."""
    return {
        number: _truth(number, copies, life.interval)
        for number, life in enumerate(world.incarnations[newest_incarnation(world)])
        if (copies := life.complete())
    }


def _truth(number: int, copies: Sequence[Upload], interval: int) -> PartitionTruth:
    newest = max(copies, key=lambda copy: (copy.last_epoch, copy.stop, copy.event_timestamp_ms))
    held: set[int] = set()
    for copy in copies:
        first = max(copy.base, copy.log_start, newest.log_start)
        held.update(range(first, min(copy.stop, divergence(copy.log, newest.log))))
    log_start = newest.log_start
    if not any(copy.stop <= newest.log_start for copy in copies):
        log_start = min(held)
    rivals = [
        copy for copy in copies if (copy.last_epoch, copy.stop) == (newest.last_epoch, newest.stop)
    ]
    lacking = [offset for offset in range(log_start, newest.stop) if offset not in held]
    log = build(newest.log, interval).build()
    dates = tuple(entry.date(at) for entry in newest.log for at in range(entry.base, entry.stop))
    return PartitionTruth(
        number,
        log,
        dates,
        log_start,
        newest.stop,
        _ranges(lacking),
        is_outlived=any(
            copy.last_epoch < newest.last_epoch
            and copy.event_timestamp_ms > newest.event_timestamp_ms
            for copy in copies
        ),
        is_ambiguous=len({copy.log_start for copy in rivals}) > 1,
        copied=tuple(sorted((copy.event_timestamp_ms, copy.base) for copy in copies)),
        damaged=frozenset(name for copy in copies for name in copy.damaged),
    )


def _ranges(offsets: Sequence[int]) -> tuple[Range, ...]:
    found: list[Range] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return tuple(found)


def _row(partition: int, row: ExpectedRow) -> Row:
    return partition, row.offset, row.key, row.value, row.timestamp * 1000
