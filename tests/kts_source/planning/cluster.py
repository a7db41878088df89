"""The life of one partition on a small cluster, as far as it leaves traces in a tier.

Replicas hold the same appends until one lags behind and an unclean election makes its shorter log
the truth; the others keep their dead branch, and what they uploaded of it. Every replica rolls its
segments where it likes. Copies fail at every stage, are repeated, and come from leaders of the
past; deletes get stuck half-way.

An append is one `Entry` object, shared by all logs that hold it: whether two logs agree at an
offset is a matter of identity here, not of epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from segment_format.testing import LogBuilder, SimpleRecord
from segment_format.testing.side_files import write_leader_epoch_checkpoint

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from segment_format.testing import AivenTierWriter, SegmentFiles

EntryKind = Literal["plain", "send", "commit", "abort"]
REPLICAS = 3
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


@dataclass(eq=False, slots=True)
class Upload:
    """One copy of a segment, whatever became of it.

    Attributes:
        log: The log of the broker that made it, up to the segment's end.
        base: First offset.
        stop: One past the last offset.
        log_start: The broker's, when the copy began.
        event_timestamp_ms: When that was.
        keys: Its objects.
        finished: Whether the cluster learnt of it and has not begun to delete it.
    """

    log: tuple[Entry, ...]
    base: int
    stop: int
    log_start: int
    event_timestamp_ms: int
    keys: tuple[str, ...]
    finished: bool

    @property
    def last_epoch(self) -> int:
        """The newest epoch of its checkpoint."""
        return self.log[-1].epoch

    def __str__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return (
            f"[{self.base}, {self.stop}) of epoch {self.last_epoch}, log start {self.log_start},"
            f" {state}: {self.keys[0]}"
        )


class PartitionLife:
    """One partition, its replicas and its uploads.

    Args:
        store: Where objects go.
        writer: Writes them.
        interval: Kafka's `index.interval.bytes`.
        only_stable: Copies only what is below the last stable offset, as a broker does.
        clock: Seconds before anything happens.
    """

    def __init__(
        self,
        store: MutableMapping[str, bytes],
        writer: AivenTierWriter,
        *,
        interval: int,
        only_stable: bool,
        clock: int = 0,
    ) -> None:
        self._store = store
        self._writer = writer
        self._only_stable = only_stable
        self.interval = interval
        self.replicas = [Replica(interval) for _ in range(REPLICAS)]
        self.leader = self.replicas[0]
        self.epoch = 0
        self.uploads: list[Upload] = []
        self.clock = clock

    def append(self, kind: EntryKind, producer_id: int, count: int, codec: str) -> None:
        """The leader appends, and whoever is in sync follows."""
        self.clock += 1
        base = self.leader.end
        size = count if kind in ("plain", "send") else 1
        entry = Entry(kind, self.epoch, producer_id, self.clock, codec, base, base + size)
        for replica in self._in_sync():
            replica.entries.append(entry)

    def roll(self, which: int) -> None:
        """The replicas in sync that the bits of `which` name roll, and usually the leader."""
        for number, replica in enumerate(self.replicas):
            named = which >> number & 1 or (replica is self.leader and which > 3)
            if named and replica.in_sync:
                replica.roll()

    def lag(self, number: int) -> None:
        """A follower falls behind."""
        replica = self.replicas[number % REPLICAS]
        replica.in_sync = replica is self.leader

    def catch_up(self, number: int) -> None:
        """A follower comes back."""
        replica = self.replicas[number % REPLICAS]
        if not replica.in_sync:
            replica.follow(self.leader)

    def elect(self, number: int, gap: int) -> None:
        """Another leader; a lagging one takes its shorter log with it, and the others then lag."""
        chosen = self.replicas[number % REPLICAS]
        self.epoch += 1 + gap % 2
        self.leader.is_copying = chosen is not self.leader
        if not chosen.in_sync:
            for replica in self.replicas:
                replica.in_sync = replica is chosen
        self.leader = chosen

    def elect_unclean(self, number: int, lost: int) -> None:
        """A follower that has missed the last appends becomes the leader."""
        chosen = self.replicas[number % REPLICAS]
        if chosen is self.leader or not chosen.entries:
            return
        if chosen.in_sync:
            chosen.in_sync = False
            chosen.truncate(chosen.entries[-min(lost, len(chosen.entries))].base)
        self.elect(number, lost)

    def upload(self, number: int, forgetful: bool, fate: int) -> None:
        """A broker copies the next segment.

        Args:
            number: Of a leader of the past, which may finish one copy that it has under way; any
                other number is the leader.
            forgetful: Whether it has not heard of the last copy that was finished.
            fate: 6 and 7 crash before the manifest, 5 after it, before the cluster is told.
        """
        broker = self.replicas[number] if number < REPLICAS else self.leader
        if broker is not self.leader:
            if not broker.is_copying:
                return
            broker.is_copying = False
        finished = [copy for copy in self.uploads if copy.finished]
        resume = max(
            (
                min(copy.stop, divergence(copy.log, broker.entries))
                for copy in finished[: -1 if forgetful else None]
            ),
            default=0,
        )
        limit = broker.last_stable_offset if self._only_stable else broker.end
        closed = [files for files in broker.segments() if broker.log_start < files.next_offset]
        closed = [files for files in closed if resume < files.next_offset <= limit]
        if not closed:
            return
        files = closed[0]
        stop = files.next_offset
        visible = max(files.base_offset, broker.log_start)
        log = tuple(entry for entry in broker.entries if entry.stop <= stop)
        self.clock += 1
        written = self._writer.write_segment(
            replace(
                files,
                epochs=tuple(broker.epochs(visible, stop)),
                leader_epoch_checkpoint=write_leader_epoch_checkpoint(
                    broker.epochs(broker.log_start, stop)
                ),
            ),
            event_timestamp_ms=FIRST_TIMESTAMP_MS + self.clock * 1000,
        )
        for key in written.keys[fate - 8 :] if fate in (6, 7) else ():
            del self._store[key]
        self.uploads.append(
            Upload(
                log,
                files.base_offset,
                stop,
                broker.log_start,
                written.event_timestamp_ms,
                written.keys,
                finished=fate < 5,
            )
        )

    def delete_records(self, parts: int) -> None:
        """The log start moves, by so many 24ths of what there is."""
        span = self.leader.end - self.leader.log_start
        self._move_log_start(self.leader.log_start + span * parts // 24)

    def retain(self, count: int, remaining: int) -> None:
        """Retention drops the oldest segments: the log start first, then some of their objects."""
        known = [
            (min(copy.stop, divergence(copy.log, self.leader.entries)), copy)
            for copy in self.uploads
            if copy.finished
        ]
        on_lineage = sorted(
            ((stop, copy) for stop, copy in known if stop > copy.base), key=lambda pair: pair[0]
        )
        for stop, copy in on_lineage[:count]:
            self._move_log_start(stop)
            copy.finished = False
            self._remove(copy, remaining)

    def clean_up(self, number: int, remaining: int) -> None:
        """Another try to delete something below the log start, or left by a failed copy."""
        useless = [
            copy
            for copy in self.uploads
            if not copy.finished and (copy.stop <= self.leader.log_start or not self._whole(copy))
        ]
        if useless:
            self._remove(useless[number % len(useless)], remaining)

    def lose(self, number: int, remaining: int) -> None:
        """Somebody deletes objects that nobody should."""
        if self.uploads:
            self._remove(self.uploads[number % len(self.uploads)], remaining)

    def complete(self) -> list[Upload]:
        """The uploads with all their objects."""
        return [copy for copy in self.uploads if self._whole(copy)]

    def has(self, copy: Upload, suffix: str = "") -> bool:
        """Whether there is an object of an upload, with this suffix if one is named."""
        return any(key in self._store for key in copy.keys if key.endswith(suffix))

    def _whole(self, copy: Upload) -> bool:
        return all(key in self._store for key in copy.keys)

    def _remove(self, copy: Upload, remaining: int) -> None:
        for number, key in enumerate(copy.keys):
            if not remaining >> number & 1:
                self._store.pop(key, None)

    def _in_sync(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.in_sync]

    def _move_log_start(self, offset: int) -> None:
        for replica in self._in_sync():
            replica.log_start = max(replica.log_start, min(offset, replica.end))
