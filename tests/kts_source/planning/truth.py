"""What a tier proves, worked out from the lives of its partitions.

The log of whoever made the newest upload that tells of itself is the truth: a higher epoch is
newer, then a higher offset. A complete upload holds an offset of it if its own log has the very
same batch there. The log start is what the newest checkpoint says, or the first offset held at all
where nothing lies below; whatever is not held above it is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.kts_source.planning.replica import build, divergence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.testing import BuiltLog
    from segment_format.testing.log_builder import ExpectedRow
    from segment_format.testing.segment import Transaction
    from tests.kts_source.planning.cluster import PartitionLife, Upload
    from tests.kts_source.planning.history import World
    from tests.kts_source.planning.replica import Entry

Row = tuple[int, int, bytes | None, bytes | None, int]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PartitionTruth:
    """One partition of the incarnation that is read.

    Attributes:
        number: The partition.
        log: Every row of the surviving log up to the tier's end, and its transactions.
        entries: The batches of that log, from offset 0 on.
        dates: In ms, of every offset from 0 on, markers included.
        log_start: First offset that a reader must return.
        stop: One past the last one.
        missing: Offsets of [log_start, stop) that no complete upload holds.
        is_outlived: Whether copies of lower epochs came after the newest: two unclean elections,
            and none of the new leader's own epoch copied yet.
        is_ambiguous: Whether the newest copy is one of several that differ in the log start, where
            only the time of the copy tells which is newer.
        is_start_unsure: Whether a damaged checkpoint would look like this tier, so that a plan
            refuses it.
        copied: When complete copies began, in ms, and their first offsets.
        spoiled: Side files that cannot be used: of complete copies, checkpoints of all.
    """

    number: int
    log: BuiltLog
    entries: tuple[Entry, ...]
    dates: tuple[int, ...]
    log_start: int
    stop: int
    missing: tuple[Range, ...]
    is_outlived: bool
    is_ambiguous: bool
    is_start_unsure: bool
    copied: tuple[tuple[int, int], ...]
    spoiled: frozenset[str]

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed ends."""
        return self.log.last_stable_offset()

    @property
    def decided_stop(self) -> int:
        """The same where the log's end is lost: outcomes in there are not known."""
        begun = (
            txn.first_offset
            for txn in self.log.transactions
            if txn.first_offset < self.held_stop and self._is_open(txn)
        )
        return min(begun, default=self.stop)

    @property
    def held_stop(self) -> int:
        """Where the lost end of the log begins; its end where that is not lost."""
        return next((low for low, high in self.missing if high == self.stop), self.stop)

    def _is_open(self, txn: Transaction) -> bool:
        """Whether nothing below the lost end of the log ends a transaction."""
        return txn.marker_offset is None or txn.marker_offset >= self.held_stop

    @property
    def undecided_rows_from(self) -> int:
        """Where it may end without snapshots: headers do not tell of transactions that are open
        and have no data above the log start, which decide no row.
        """
        begun = (
            row.batch_base_offset
            for row in self.log.all_rows
            if row.transaction is not None
            and self.log_start <= row.batch_base_offset < self.held_stop
            and self._is_open(self.log.transactions[row.transaction])
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
        """Whether the outcome of a transaction with data below `stop` may be, and is, lost; what
        the lost end of the log decided is undecided.
        """
        may = must = False
        stable = min(stop, self.last_stable_offset)
        for number, txn in enumerate(self.log.transactions):
            if txn.first_offset >= stop or txn.marker_offset is None:
                continue
            spans = any(
                txn.first_offset < hole_start <= txn.marker_offset < self.held_stop
                for hole_start, _ in self.missing
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
        for number, life in enumerate(world.incarnations[newest_incarnation(world)])
        if life.complete()
    }


def newest_incarnation(world: World) -> str:
    """The topic id of the newest upload that tells of itself."""
    return max(world.incarnations, key=lambda topic_id: _newest_ms(world.incarnations[topic_id]))


def _damaged(life: PartitionLife) -> list[Upload]:
    """The uploads that are described, but lack something."""
    complete = life.complete()
    return [copy for copy in life.uploads if life.is_described(copy) and copy not in complete]


def _parts(life: PartitionLife) -> list[Upload]:
    """The uploads of which something is there, but nothing that describes them."""
    return [copy for copy in life.uploads if life.has(copy) and not life.is_described(copy)]


def _newest_ms(lives: Sequence[PartitionLife]) -> int:
    told = (copy for life in lives for copy in (*life.complete(), *_damaged(life)))
    return max((copy.event_timestamp_ms for copy in told), default=-1)


def is_in_doubt(world: World, *, times: bool) -> bool:
    """Whether what the tier has lost does not let it be read at all.

    Args:
        world: The tier.
        times: Whether the store tells when objects were written.
    """
    lives = world.incarnations[newest_incarnation(world)]
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
    # In the local layout the user names the incarnation.
    is_chosen = world.shape.local
    return _newest_ms(lives) >= 0 and (any(map(_is_lost, lives)) or (not is_chosen and any(newer)))


def _is_start_unsure(truth: PartitionTruth, life: PartitionLife, told_start: int) -> bool:
    """Returns whether a damaged checkpoint would look like this tier.

    Retention deleted the first segments of the log after the newest checkpoint was copied, so the
    log begins above the start that the checkpoint states. In front of it are offsets
    of another segment: a dead branch was cut at the very offset where the log begins, or an earlier
    leader had a higher log start, inside the first segment.

    Args:
        truth: Of the partition.
        life: The partition.
        told_start: Log start in the newest checkpoint.
    """
    start = truth.log_start
    is_held = start < truth.held_stop and not truth.is_missing(start)
    copies = life.complete()
    if not is_held:
        return any(
            max(copy.base, told_start) < min(copy.stop, start)
            # A copy with batches below the log start of its own leader: those are lost offsets.
            or copy.base <= start < copy.log_start
            for copy in copies
        )
    begins_segment = any(
        copy.base == start < divergence(copy.log, truth.entries) for copy in copies
    )
    for copy in copies:
        if begins_segment and max(copy.base, told_start) < copy.stop == start:
            return True
        checked = (copy.base, copy.log[-1].base)  # batches whose headers a plan reads
        is_clipped = copy.base < copy.log_start == start
        is_of_log = divergence(copy.log, truth.entries) == copy.stop
        if is_clipped and is_of_log and any(told_start <= offset < start for offset in checked):
            return True
    return False


def _is_lost(life: PartitionLife) -> bool:
    """Whether nothing tells what the log of a partition is, although it was there."""
    complete, damaged = life.complete(), _damaged(life)
    if not complete:
        return bool(damaged) or len({copy.base for copy in _parts(life)}) > 1
    tellers = [*complete, *(copy for copy in damaged if life.has_checkpoint(copy))]
    newest = max(copy.last_epoch for copy in tellers)
    if life.is_local:  # only the checkpoint tells the epoch
        first = min(copy.base for copy in complete)
        untold = (copy for copy in damaged if not life.has_checkpoint(copy))
        return any(life.told_stop(copy) > first for copy in untold)
    return any(copy.last_epoch > newest for copy in damaged)


def _truth(number: int, life: PartitionLife) -> PartitionTruth:
    def age(copy: Upload) -> tuple[int, int, int]:
        return copy.last_epoch, life.told_stop(copy), copy.event_timestamp_ms

    copies, damaged = life.complete(), _damaged(life)
    tellers = [*copies, *(copy for copy in damaged if life.has_checkpoint(copy))]
    teller = max(tellers, key=age)
    newest = teller if life.is_local else max([*copies, *damaged], key=age)
    stop = life.told_stop(newest)

    def of_the_log(copy: Upload) -> range:
        first = max(copy.base, copy.log_start, teller.log_start)
        return range(first, min(life.told_stop(copy), divergence(copy.log, newest.log)))

    held: set[int] = set()
    for copy in copies:
        held.update(of_the_log(copy))
    log_start = teller.log_start
    starts = [spans.start for copy in damaged if (spans := of_the_log(copy))]
    if not held:
        log_start = min(starts, default=log_start)
    elif not any(copy.stop <= log_start for copy in copies):
        log_start = min(held)
    rivals = [
        copy
        for copy in tellers
        if (copy.last_epoch, life.told_stop(copy)) == (newest.last_epoch, stop)
    ]
    if not held and not starts:  # the branch ends below a log start that the tier knows
        stop = log_start
    lacking = [offset for offset in range(log_start, stop) if offset not in held]
    told = [entry for entry in newest.log if entry.base < stop]
    log = build(told, life.interval).build()
    dates = tuple(entry.date(at) for entry in told for at in range(entry.base, entry.stop))
    unreadable = {name for copy in damaged for name in copy.spoiled} & {"leader_epoch_checkpoint"}
    truth = PartitionTruth(
        number,
        log,
        tuple(told),
        dates,
        log_start,
        stop,
        _ranges(lacking),
        is_outlived=any(
            copy.last_epoch < newest.last_epoch
            and copy.event_timestamp_ms > newest.event_timestamp_ms
            for copy in copies
        ),
        is_ambiguous=len({copy.log_start for copy in rivals}) > 1,
        is_start_unsure=False,
        copied=tuple(sorted((copy.event_timestamp_ms, copy.base) for copy in copies)),
        spoiled=frozenset(unreadable.union(*(copy.spoiled for copy in copies))),
    )
    return replace(truth, is_start_unsure=_is_start_unsure(truth, life, teller.log_start))


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
