"""Computes the rows that a scan of a simulated tier must return.

Definitions:
    newest upload: The upload with the highest leader epoch. If several uploads have this epoch, the
        one with the highest end. Uploads without the object that marks a finished copy do not
        count.
    surviving log: The log from which the newest upload was copied.
    present offset: An offset at which a complete upload has the same batch as the surviving log.
    log start: The log start in the newest leader-epoch checkpoint. If no complete upload ends at or
        below this offset, the first present offset.
    missing offset: An offset of the surviving log, at or above the log start, that is not present.
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
    """Expected content of one partition of the topic incarnation that scans read.

    Attributes:
        number: Partition number.
        log: Rows of the surviving log up to the end of the tier, and its transactions.
        entries: Batches of the surviving log, from offset 0.
        dates: Timestamps in ms of all offsets from 0, including markers.
        log_start: First offset that a reader must return.
        stop: One past the last offset of the surviving log.
        missing: Ranges of offsets in [log_start, stop) that no complete upload has.
        is_outlived: Whether a copy with a lower leader epoch was made after the newest copy. This
            requires two unclean elections, and that the new leader has copied no segment of its own
            epoch.
        is_ambiguous: Whether several copies have the highest epoch and end, but different log
            starts. Then only the times of these copies show which copy is newest.
        is_start_unsure: Whether the tier looks like a tier with a damaged checkpoint. Planning then
            raises an error.
        copied: Start time in ms and first offset of each complete copy.
        spoiled: Names of damaged side files of complete copies, and of damaged checkpoints of
            incomplete copies.
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
        """Returns the end of the log for `read_committed`."""
        return self.log.last_stable_offset()

    @property
    def decided_stop(self) -> int:
        """Returns the end of the log for `read_committed` if transactions whose marker is in the
        missing end of the log count as open.
        """
        open_starts = (
            txn.first_offset
            for txn in self.log.transactions
            if txn.first_offset < self.missing_end_start and self._is_open(txn)
        )
        return min(open_starts, default=self.stop)

    @property
    def missing_end_start(self) -> int:
        """Returns the start of the missing offsets at the end of the log, or `stop` if the last
        offset is not missing.
        """
        return next((low for low, high in self.missing if high == self.stop), self.stop)

    def _is_open(self, txn: Transaction) -> bool:
        """Returns whether a transaction has no marker below `missing_end_start`."""
        return txn.marker_offset is None or txn.marker_offset >= self.missing_end_start

    @property
    def undecided_rows_from(self) -> int:
        """Returns the end of the log for `read_committed` if no producer snapshot is usable.

        A reader then finds open transactions only in batch headers. It does not find transactions
        whose data is below the log start, but these affect no rows.
        """
        open_starts = (
            row.batch_base_offset
            for row in self.log.all_rows
            if row.transaction is not None
            and self.log_start <= row.batch_base_offset < self.missing_end_start
            and self._is_open(self.log.transactions[row.transaction])
        )
        return min(open_starts, default=self.stop)

    def rows(self, isolation: str, start: int, stop: int) -> list[Row]:
        """Returns the rows of the surviving log in [start, stop) that a consumer with this
        isolation level would receive if no offset were missing in the tier.
        """
        expected = self.log.rows(isolation, start=start, stop=stop)
        return [_convert_row(self.number, row) for row in expected]

    def decided_rows(self, start: int, stop: int) -> list[Row]:
        """Returns the committed rows of [start, stop) that are below `undecided_rows_from`."""
        return self.committed_rows(start, min(stop, self.undecided_rows_from))

    def committed_rows(self, start: int, stop: int) -> list[Row]:
        """Returns all committed rows of [start, stop), including rows above the last stable
        offset.
        """
        return [
            _convert_row(self.number, row)
            for row in self.log.all_rows
            if start <= row.offset < stop
            and (row.transaction is None or self.log.transactions[row.transaction].committed)
        ]

    def is_missing(self, offset: int) -> bool:
        """Returns whether no complete upload has the offset."""
        return any(start <= offset < stop for start, stop in self.missing)

    def find_offset_since(self, timestamp_ms: int, *, include_missing: bool) -> int:
        """Returns the first offset with a timestamp of at least `timestamp_ms`, or the end of the
        log if there is none. Missing offsets count only if `include_missing` is true.
        """
        return next(
            (
                offset
                for offset in range(self.log_start, self.stop)
                if self.dates[offset] >= timestamp_ms
                and (include_missing or not self.is_missing(offset))
            ),
            self.stop,
        )

    def hides(self, timestamp_ms: int, found_offset: int, copied_since_ms: int) -> bool:
        """Returns whether a missing offset may be the right result of a search by timestamp.

        This requires a missing offset below `found_offset` with a timestamp of at least
        `timestamp_ms`. In addition, the hole that contains it must end at or above the lowest first
        offset of the uploads that were copied since `copied_since_ms`, if there are such uploads.
        """
        recent = min((base for copied, base in self.copied if copied >= copied_since_ms), default=0)
        return any(
            self.dates[offset] >= timestamp_ms
            for start, stop in self.missing
            for offset in range(max(start, self.log_start), min(stop, found_offset))
            if recent <= stop
        )

    def lost_outcomes(self, start: int, stop: int) -> tuple[bool, bool]:
        """Returns whether a `read_committed` scan of [start, stop) may fail because a transaction's
        outcome is unknown, and whether it must fail.

        The scan may fail if a hole begins between the first offset and the marker of a transaction
        that begins below `stop`. It must fail if the hole contains the marker, and the transaction
        has rows in [start, stop) below the last stable offset. Transactions whose marker is at or
        above `missing_end_start` are still open for the reader, so they do not count.
        """
        may_be_lost = is_lost = False
        stable = min(stop, self.last_stable_offset)
        for number, txn in enumerate(self.log.transactions):
            if txn.first_offset >= stop or txn.marker_offset is None:
                continue
            spans = any(
                txn.first_offset < hole_start <= txn.marker_offset < self.missing_end_start
                for hole_start, _ in self.missing
            )
            may_be_lost = may_be_lost or spans
            if spans and self.is_missing(txn.marker_offset):
                is_lost = is_lost or any(
                    row.transaction == number and start <= row.offset < stable
                    for row in self.log.all_rows
                )
        return may_be_lost, is_lost


def truth_of(world: World) -> dict[int, PartitionTruth]:
    """Returns the expected content of each partition with a complete upload, by partition
    number.
    """
    return {
        number: _compute_truth(number, life)
        for number, life in enumerate(world.incarnations[newest_incarnation(world)])
        if life.complete()
    }


def newest_incarnation(world: World) -> str:
    """Returns the topic id of the newest upload whose copy is marked as finished."""
    return max(
        world.incarnations, key=lambda topic_id: _find_newest_ms(world.incarnations[topic_id])
    )


def _list_damaged(life: PartitionLife) -> list[Upload]:
    """Returns uploads that have the object that marks a finished copy, but lack other objects."""
    complete = life.complete()
    return [copy for copy in life.uploads if life.is_described(copy) and copy not in complete]


def _list_undescribed(life: PartitionLife) -> list[Upload]:
    """Returns uploads with some objects, but without the object that marks a finished copy."""
    return [copy for copy in life.uploads if life.has(copy) and not life.is_described(copy)]


def _find_newest_ms(lives: Sequence[PartitionLife]) -> int:
    described = (copy for life in lives for copy in (*life.complete(), *_list_damaged(life)))
    return max((copy.event_timestamp_ms for copy in described), default=-1)


def is_in_doubt(world: World, *, times: bool) -> bool:
    """Returns whether the tier has lost so much that planning must raise an error. `times` is true
    if the store reports modification times.
    """
    lives = world.incarnations[newest_incarnation(world)]
    written = max(
        (copy.event_timestamp_ms for life in lives for copy in life.complete()), default=-1
    )
    newer = (
        copy
        for other in world.incarnations.values()
        if _find_newest_ms(other) < 0
        for life in other
        for copy in _list_undescribed(life)
        if not times or copy.event_timestamp_ms > written
    )
    # With LocalTieredStorage, option topicId selects the incarnation.
    is_chosen = world.shape.local
    return _find_newest_ms(lives) >= 0 and (
        any(map(_is_lost, lives)) or (not is_chosen and any(newer))
    )


def _is_start_unsure(truth: PartitionTruth, life: PartitionLife, checkpoint_start: int) -> bool:
    """Returns whether the tier looks like a tier with a damaged checkpoint.

    This is possible if retention deleted the first segments after the newest checkpoint was copied,
    so that the log begins above `checkpoint_start`, the log start in this checkpoint. In addition,
    a copy of another segment must have offsets between these two log starts. Either this copy
    belongs to a dead branch and ends exactly at the start of the log, or it was made by an earlier
    leader whose log start was inside the segment.
    """
    start = truth.log_start
    is_present = start < truth.missing_end_start and not truth.is_missing(start)
    copies = life.complete()
    if not is_present:
        return any(
            max(copy.base, checkpoint_start) < min(copy.stop, start)
            # The copy has batches below the log start of its own leader. Their offsets look lost.
            or copy.base <= start < copy.log_start
            for copy in copies
        )
    begins_segment = any(
        copy.base == start < divergence(copy.log, truth.entries) for copy in copies
    )
    for copy in copies:
        if begins_segment and max(copy.base, checkpoint_start) < copy.stop == start:
            return True
        checked = (copy.base, copy.log[-1].base)  # batches whose headers a plan reads
        is_clipped = copy.base < copy.log_start == start
        is_of_log = divergence(copy.log, truth.entries) == copy.stop
        if (
            is_clipped
            and is_of_log
            and any(checkpoint_start <= offset < start for offset in checked)
        ):
            return True
    return False


def _is_lost(life: PartitionLife) -> bool:
    """Returns whether so many objects are lost that the log of a partition is unknown."""
    complete, damaged = life.complete(), _list_damaged(life)
    if not complete:
        return bool(damaged) or len({copy.base for copy in _list_undescribed(life)}) > 1
    with_checkpoint = [*complete, *(copy for copy in damaged if life.has_checkpoint(copy))]
    newest = max(copy.last_epoch for copy in with_checkpoint)
    if life.is_local:  # only the checkpoint contains the epoch
        first = min(copy.base for copy in complete)
        without_checkpoint = (copy for copy in damaged if not life.has_checkpoint(copy))
        return any(life.proven_stop(copy) > first for copy in without_checkpoint)
    return any(copy.last_epoch > newest for copy in damaged)


def _compute_truth(number: int, life: PartitionLife) -> PartitionTruth:
    def age(copy: Upload) -> tuple[int, int, int]:
        return copy.last_epoch, life.proven_stop(copy), copy.event_timestamp_ms

    copies, damaged = life.complete(), _list_damaged(life)
    with_checkpoint = [*copies, *(copy for copy in damaged if life.has_checkpoint(copy))]
    authority = max(with_checkpoint, key=age)
    newest = authority if life.is_local else max([*copies, *damaged], key=age)
    stop = life.proven_stop(newest)

    def offsets_in_log(copy: Upload) -> range:
        first = max(copy.base, copy.log_start, authority.log_start)
        return range(first, min(life.proven_stop(copy), divergence(copy.log, newest.log)))

    present: set[int] = set()
    for copy in copies:
        present.update(offsets_in_log(copy))
    log_start = authority.log_start
    starts = [spans.start for copy in damaged if (spans := offsets_in_log(copy))]
    if not present:
        log_start = min(starts, default=log_start)
    elif not any(copy.stop <= log_start for copy in copies):
        log_start = min(present)
    tied = [
        copy
        for copy in with_checkpoint
        if (copy.last_epoch, life.proven_stop(copy)) == (newest.last_epoch, stop)
    ]
    if not present and not starts:  # the branch ends below the log start in the tier
        stop = log_start
    missing = [offset for offset in range(log_start, stop) if offset not in present]
    entries = [entry for entry in newest.log if entry.base < stop]
    log = build(entries, life.interval).build()
    dates = tuple(
        entry.date(offset) for entry in entries for offset in range(entry.base, entry.stop)
    )
    damaged_checkpoints = {name for copy in damaged for name in copy.spoiled} & {
        "leader_epoch_checkpoint"
    }
    truth = PartitionTruth(
        number,
        log,
        tuple(entries),
        dates,
        log_start,
        stop,
        _join_offsets(missing),
        is_outlived=any(
            copy.last_epoch < newest.last_epoch
            and copy.event_timestamp_ms > newest.event_timestamp_ms
            for copy in copies
        ),
        is_ambiguous=len({copy.log_start for copy in tied}) > 1,
        is_start_unsure=False,
        copied=tuple(sorted((copy.event_timestamp_ms, copy.base) for copy in copies)),
        spoiled=frozenset(damaged_checkpoints.union(*(copy.spoiled for copy in copies))),
    )
    return replace(truth, is_start_unsure=_is_start_unsure(truth, life, authority.log_start))


def _join_offsets(offsets: Sequence[int]) -> tuple[Range, ...]:
    ranges: list[Range] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return tuple(ranges)


def _convert_row(partition: int, row: ExpectedRow) -> Row:
    return partition, row.offset, row.key, row.value, row.timestamp * 1000
