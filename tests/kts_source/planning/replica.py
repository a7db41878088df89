"""Simulates the log of a partition on one broker.

Replicas that received the same append share one `Entry` object. Entries of two logs can therefore
be compared by identity, without comparing leader epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from segment_format.testing import LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.testing import SegmentFiles

EntryKind = Literal["plain", "send", "commit", "abort"]
FIRST_TIMESTAMP_MS = 1_700_000_000_000


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """A record batch or a transaction marker with offsets [base, stop)."""

    kind: EntryKind
    epoch: int
    producer_id: int
    serial: int
    codec: str
    base: int
    stop: int

    def append_to(self, builder: LogBuilder) -> None:
        """Appends the entry to a log."""
        if self.kind in ("commit", "abort"):
            end = builder.commit if self.kind == "commit" else builder.abort
            end(self.producer_id, timestamp=self.date(self.base))
            return
        records = [
            SimpleRecord(b"%d/%d" % (self.serial, offset), timestamp=self.date(offset))
            for offset in range(self.base, self.stop)
        ]
        builder.append(
            records,
            codec=self.codec,
            producer_id=self.producer_id,
            transactional=self.kind == "send",
        )

    def date(self, offset: int) -> int:
        """Returns the timestamp of a record in ms. Timestamps do not ascend with offsets."""
        late = 5000 if self.serial % 5 == 0 else 0
        return FIRST_TIMESTAMP_MS + self.serial * 1000 - offset % 3 - late


def build(entries: Sequence[Entry], index_interval: int) -> LogBuilder:
    """Returns the builder of a log with these entries in one open segment."""
    builder = LogBuilder(
        start_offset=entries[0].base,
        leader_epoch=entries[0].epoch,
        index_interval_bytes=index_interval,
    )
    extend(builder, entries, entries[0].epoch)
    return builder


def extend(builder: LogBuilder, entries: Sequence[Entry], epoch: int) -> int:
    """Appends entries to a log whose current leader epoch is `epoch`. Returns the leader epoch of
    the last entry.
    """
    for entry in entries:
        if entry.epoch != epoch:
            builder.set_leader_epoch(entry.epoch)
        epoch = entry.epoch
        entry.append_to(builder)
    return epoch


def divergence(log: Sequence[Entry], other: Sequence[Entry]) -> int:
    """Returns the first offset at which two logs differ, or the end of the shorter log."""
    for entry, other_entry in zip(log, other, strict=False):
        if entry is not other_entry:
            return entry.base
    return min(log[-1].stop, other[-1].stop) if log and other else 0


@dataclass(slots=True)
class Replica:
    """Log of a partition on one broker."""

    interval: int
    entries: list[Entry] = field(default_factory=list)
    rolls: list[int] = field(default_factory=list)
    log_start: int = 0
    in_sync: bool = True
    is_copying: bool = False
    _builder: LogBuilder | None = None
    _written: int = 0
    _segments: list[SegmentFiles] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Returns the offset of the next append."""
        return self.entries[-1].stop if self.entries else 0

    @property
    def last_stable_offset(self) -> int:
        """Returns the first offset of the oldest open transaction, or the end of the log if no
        transaction is open.
        """
        open_transactions: dict[int, int] = {}
        for entry in self.entries:
            if entry.kind == "send":
                open_transactions.setdefault(entry.producer_id, entry.base)
            elif entry.kind != "plain":
                open_transactions.pop(entry.producer_id, None)
        return min(open_transactions.values(), default=self.end)

    def roll(self) -> None:
        """Closes the current segment if it has entries."""
        if self.end > (self.rolls[-1] if self.rolls else 0):
            self.rolls.append(self.end)

    def follow(self, leader: Replica) -> None:
        """Truncates the log at the first offset that differs from the leader's log, and copies the
        leader's remaining entries.
        """
        self.truncate(divergence(self.entries, leader.entries))
        self.entries.extend(leader.entries[len(self.entries) :])
        self.log_start = leader.log_start
        self.in_sync = True

    def truncate(self, offset: int) -> None:
        """Removes all entries at or after `offset`, which must be the start of a batch."""
        if offset >= self.end:
            return
        self.entries = [entry for entry in self.entries if entry.stop <= offset]
        self.rolls = [stop for stop in self.rolls if stop <= offset]
        self.log_start = min(self.log_start, offset)
        self._builder, self._written, self._segments = None, 0, []

    def segments(self) -> list[SegmentFiles]:
        """Returns the closed segments."""
        for stop in [*self.rolls[len(self._segments) :]]:
            count = sum(1 for entry in self.entries if entry.stop <= stop)
            new_entries = self.entries[self._written : count]
            if self._builder is None:
                self._builder = build(new_entries, self.interval)
            else:
                extend(self._builder, new_entries, self.entries[self._written - 1].epoch)
            self._written = count
            files = self._builder.roll()
            assert files is not None
            assert files.next_offset == stop
            self._segments.append(files)
        return self._segments

    def epochs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Returns the leader epochs of offsets [start, stop), each with its start offset.

        An epoch that begins below `start` has the start offset `start`, as in Kafka's leader epoch
        cache.
        """
        epochs_seen: list[tuple[int, int]] = []
        for entry in self.entries:
            if entry.base < stop and (not epochs_seen or epochs_seen[-1][0] != entry.epoch):
                epochs_seen.append((entry.epoch, entry.base))
        before = [epoch for epoch, first in epochs_seen if first <= start]
        after = [(epoch, first) for epoch, first in epochs_seen if first > start]
        return [(before[-1], start), *after] if before else after
