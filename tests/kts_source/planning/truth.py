"""What a tier proves, worked out from the lives of its partitions.

The log of whoever made the newest upload that a manifest tells of is the truth: a higher epoch is
newer, then a higher offset. A complete upload holds an offset of it if its own log has the very
same batch there. The log start is what the newest checkpoint says, or the first offset held at all
where nothing lies below; whatever is not held above it is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.kts_source.planning.cluster import build, divergence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.testing import BuiltLog
    from segment_format.testing.rows import ExpectedRow
    from tests.kts_source.planning.cluster import PartitionLife, Upload
    from tests.kts_source.planning.history import World

_MANIFEST = ".rsm-manifest"
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
    """

    number: int
    log: BuiltLog
    dates: tuple[int, ...]
    log_start: int
    stop: int
    missing: tuple[Range, ...]
    is_outlived: bool

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed ends."""
        return self.log.last_stable_offset()

    @property
    def decided_stop(self) -> int:
        """The same where the log's end is lost: outcomes in there are not known."""
        lost = next((low for low, high in self.missing if high == self.stop), self.stop)
        begun = (
            txn.first_offset
            for txn in self.log.transactions
            if txn.first_offset < lost and (txn.marker_offset is None or txn.marker_offset >= lost)
        )
        return min(begun, default=self.stop)

    def rows(self, isolation: str, start: int, stop: int) -> list[Row]:
        """Rows of offsets [start, stop), the missing ones included."""
        expected = self.log.rows(isolation, start=start, stop=stop)
        return [_row(self.number, row) for row in expected]

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


def truth_of(world: World) -> dict[int, PartitionTruth]:
    """Partition number to truth; empty when no upload is complete."""
    return {
        number: _truth(number, life)
        for number, life in enumerate(newest_incarnation(world))
        if life.complete()
    }


def newest_incarnation(world: World) -> tuple[PartitionLife, ...]:
    """The partitions of the incarnation with the newest upload that a manifest tells of."""
    return max(world.incarnations.values(), key=_newest_ms)


def _damaged(life: PartitionLife) -> list[Upload]:
    """The uploads with a manifest, but not all that it promises."""
    complete = life.complete()
    return [copy for copy in life.uploads if life.has(copy, _MANIFEST) and copy not in complete]


def _parts(life: PartitionLife) -> list[Upload]:
    """The uploads of which something is there, but no manifest."""
    return [copy for copy in life.uploads if life.has(copy) and not life.has(copy, _MANIFEST)]


def _newest_ms(lives: Sequence[PartitionLife]) -> int:
    told = (copy for life in lives for copy in (*life.complete(), *_damaged(life)))
    return max((copy.event_timestamp_ms for copy in told), default=-1)


def is_in_doubt(world: World, *, times: bool) -> bool:
    """Whether what the tier has lost does not let it be read at all.

    Args:
        world: The tier.
        times: Whether the store tells when objects were written.
    """
    lives = newest_incarnation(world)
    written = max(
        (copy.event_timestamp_ms for life in lives for copy in life.complete()), default=-1
    )
    newer = (
        copy
        for other in world.incarnations.values()
        if _newest_ms(other) < 0
        for life in other
        for copy in _parts(life)
        if not times or copy.event_timestamp_ms > written
    )
    return _newest_ms(lives) >= 0 and (any(map(_is_lost, lives)) or any(newer))


def _is_lost(life: PartitionLife) -> bool:
    """Whether nothing tells what the log of a partition is, although it was there."""
    tellers = [*life.complete(), *(copy for copy in _damaged(life) if life.has(copy, ".indexes"))]
    newest = max((copy.last_epoch for copy in tellers), default=-1)
    if any(copy.last_epoch > newest for copy in _damaged(life)):
        return True
    if life.complete():
        return False
    return bool(_damaged(life)) or len({copy.base for copy in _parts(life)}) > 1


def _truth(number: int, life: PartitionLife) -> PartitionTruth:
    def age(copy: Upload) -> tuple[int, int, int]:
        return copy.last_epoch, copy.stop, copy.event_timestamp_ms

    copies, damaged = life.complete(), _damaged(life)
    newest = max([*copies, *damaged], key=age)
    teller = max([*copies, *(copy for copy in damaged if life.has(copy, ".indexes"))], key=age)

    def of_the_log(copy: Upload) -> range:
        first = max(copy.base, copy.log_start, teller.log_start)
        return range(first, min(copy.stop, divergence(copy.log, newest.log)))

    held: set[int] = set()
    for copy in copies:
        held.update(of_the_log(copy))
    log_start = teller.log_start
    if not held:
        log_start = min(spans.start for copy in damaged if (spans := of_the_log(copy)))
    elif not any(copy.stop <= log_start for copy in copies):
        log_start = min(held)
    lacking = [offset for offset in range(log_start, newest.stop) if offset not in held]
    log = build(newest.log, life.interval).build()
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
