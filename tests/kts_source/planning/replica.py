"""One broker's log of a partition: what was appended, and where its segments end.

An append is one `Entry` object, shared by all logs that hold it: whether two logs agree at an
offset is a matter of identity here, not of epochs.
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
    """One batch or marker, as its leader appended it: offsets [base, stop)."""

    kind: EntryKind
    epoch: int
    producer_id: int
    serial: int
    codec: str
    base: int
    stop: int

    def append_to(self, builder: LogBuilder) -> None:
        """Writes it at the end of a log."""
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
        """Timestamp of one of its records, in no order within the log."""
        late = 5000 if self.serial % 5 == 0 else 0
        return FIRST_TIMESTAMP_MS + self.serial * 1000 - offset % 3 - late


def build(entries: Sequence[Entry], index_interval: int) -> LogBuilder:
    """A log of these entries, not rolled."""
    builder = LogBuilder(
        start_offset=entries[0].base,
        leader_epoch=entries[0].epoch,
        index_interval_bytes=index_interval,
    )
    extend(builder, entries, entries[0].epoch)
    return builder


def extend(builder: LogBuilder, entries: Sequence[Entry], epoch: int) -> int:
    """Appends entries to a log whose last epoch is `epoch`; returns the new one."""
    for entry in entries:
        if entry.epoch != epoch:
            builder.set_leader_epoch(entry.epoch)
        epoch = entry.epoch
        entry.append_to(builder)
    return epoch


def divergence(one: Sequence[Entry], other: Sequence[Entry]) -> int:
    """The first offset at which two logs of one partition do not hold the same batch."""
    for mine, theirs in zip(one, other, strict=False):
        if mine is not theirs:
            return mine.base
    return min(one[-1].stop, other[-1].stop) if one and other else 0


@dataclass(slots=True)
class Replica:
    """One broker's log: entries, and where its segments end."""

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
        """Offset of the next append."""
        return self.entries[-1].stop if self.entries else 0

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, else the end."""
        begun: dict[int, int] = {}
        for entry in self.entries:
            if entry.kind == "send":
                begun.setdefault(entry.producer_id, entry.base)
            elif entry.kind != "plain":
                begun.pop(entry.producer_id, None)
        return min(begun.values(), default=self.end)

    def roll(self) -> None:
        """The next append begins a new segment."""
        if self.end > (self.rolls[-1] if self.rolls else 0):
            self.rolls.append(self.end)

    def follow(self, leader: Replica) -> None:
        """Drops what the leader does not have, and copies the rest of its log."""
        self.truncate(divergence(self.entries, leader.entries))
        self.entries.extend(leader.entries[len(self.entries) :])
        self.log_start = leader.log_start
        self.in_sync = True

    def truncate(self, offset: int) -> None:
        """Drops what is not below an offset at which a batch begins."""
        if offset >= self.end:
            return
        self.entries = [entry for entry in self.entries if entry.stop <= offset]
        self.rolls = [stop for stop in self.rolls if stop <= offset]
        self.log_start = min(self.log_start, offset)
        self._builder, self._written, self._segments = None, 0, []

    def segments(self) -> list[SegmentFiles]:
        """The closed ones."""
        for stop in [*self.rolls[len(self._segments) :]]:
            count = sum(1 for entry in self.entries if entry.stop <= stop)
            fresh = self.entries[self._written : count]
            if self._builder is None:
                self._builder = build(fresh, self.interval)
            else:
                extend(self._builder, fresh, self.entries[self._written - 1].epoch)
            self._written = count
            files = self._builder.roll()
            assert files is not None
            assert files.next_offset == stop
            self._segments.append(files)
        return self._segments

    def epochs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Epochs of offsets [start, stop) with their first offsets, as the epoch cache cuts it."""
        found: list[tuple[int, int]] = []
        for entry in self.entries:
            if entry.base < stop and (not found or found[-1][0] != entry.epoch):
                found.append((entry.epoch, entry.base))
        before = [epoch for epoch, first in found if first <= start]
        after = [(epoch, first) for epoch, first in found if first > start]
        return [(before[-1], start), *after] if before else after
