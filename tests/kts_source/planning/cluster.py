"""Simulates one partition on a small cluster, and the objects that its brokers copy to a tier.

All in-sync replicas append the same entries. An unclean election can make a lagging replica the
leader. Then the logs and uploads of the other replicas still contain records that are no longer
part of the partition's log (a dead branch). Each replica rolls its segments independently. A copy
can fail at any step, can be repeated, and can come from a former leader. A deletion can stop before
it is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from segment_format.testing import AivenTierWriter
from segment_format.testing.segment import write_leader_epoch_checkpoint
from tests.kts_source.planning.replica import FIRST_TIMESTAMP_MS, Entry, Replica, divergence

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from segment_format.testing import LocalTierWriter, SegmentFiles, WrittenSegment
    from tests.kts_source.planning.replica import EntryKind

REPLICAS = 3
SIDE_FILES: Final = ("snapshot", "txnindex", "index", "timeindex", "leader_epoch_checkpoint")
_LOCAL: Final = {
    "log": 1,
    "txnindex": 1,
    "index": 2,
    "timeindex": 2,
    "leader_epoch_checkpoint": 3,
    "snapshot": 4,
}
"""For each kind of file of `LocalTieredStorage`, the bit in `remaining` that keeps files of this
kind.

The log and the transaction index share a bit, because a reader cannot detect the loss of only the
index.
"""
EpochShape = Literal["in the segment", "true starts", "full lineage"]
"""Leader epochs that a manifest contains.

"in the segment": the epochs of the segment. As in Kafka, the first of them starts at the first
offset of the segment. "true starts": the same epochs with their true start offsets. "full lineage":
all epochs of the checkpoint, including epochs that end below the segment.
"""


def _damage_file(data: bytes, kind: int) -> bytes:
    """Returns damaged content of a side file.

    Depending on `kind`, the content is empty, garbage, truncated, or of an unknown version.
    """
    match kind:
        case 0:
            return b""
        case 1:
            return b"\xff" * 34
        case 2:
            return data[:-1]
        case _:
            return bytes([data[0] ^ 0x7F]) + data[1:] if data else b"\x7f"


@dataclass(eq=False, slots=True)
class Upload:
    """A complete or incomplete copy of a segment in the tier.

    Attributes:
        log: Entries of the log of the copying broker, up to the end of the segment.
        base: First offset of the segment.
        stop: One past the last offset of the segment.
        log_start: Log start of the broker when the copy began.
        event_timestamp_ms: Time when the copy began.
        keys: Keys of the objects of the copy.
        finished: True if the cluster knows that the copy is finished, and has not started to
            delete it.
        files: Files of the segment.
        segment_id: Segment id of the copy.
        spoiled: Names of the damaged side files.
    """

    log: tuple[Entry, ...]
    base: int
    stop: int
    log_start: int
    event_timestamp_ms: int
    keys: tuple[str, ...]
    finished: bool
    files: SegmentFiles
    segment_id: str
    spoiled: set[str] = field(default_factory=set)

    @property
    def last_epoch(self) -> int:
        """Returns the newest leader epoch of the copied log."""
        return self.log[-1].epoch

    def __str__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return (
            f"[{self.base}, {self.stop}) of epoch {self.last_epoch}, log start {self.log_start},"
            f" {state}: {self.keys[0]}, spoiled: {sorted(self.spoiled)}"
        )


class PartitionLife:
    """Simulates a partition with its replicas and its uploads to the tier.

    Args:
        store: Objects of the tier by key.
        writer: Writes segments to `store`.
        interval: Kafka's `index.interval.bytes`.
        only_stable: Whether brokers copy only offsets below the last stable offset, as Kafka does.
        epochs: Which leader epochs a manifest contains (see `EpochShape`).
        clock: Time in seconds at the start of the simulation.
    """

    def __init__(
        self,
        store: MutableMapping[str, bytes],
        writer: AivenTierWriter | LocalTierWriter,
        *,
        interval: int,
        only_stable: bool,
        epochs: EpochShape = "in the segment",
        clock: int = 0,
    ) -> None:
        self._store = store
        self._writer = writer
        self._only_stable = only_stable
        self._epochs = epochs
        self.interval = interval
        self.is_local = not isinstance(writer, AivenTierWriter)
        self.replicas = [Replica(interval) for _ in range(REPLICAS)]
        self.leader = self.replicas[0]
        self.epoch = 0
        self.uploads: list[Upload] = []
        self.clock = clock

    def append(self, kind: EntryKind, producer_id: int, count: int, codec: str) -> None:
        """Appends an entry to the leader and to all in-sync replicas."""
        self.clock += 1
        base = self.leader.end
        size = count if kind in ("plain", "send") else 1
        entry = Entry(kind, self.epoch, producer_id, self.clock, codec, base, base + size)
        for replica in self._in_sync():
            replica.entries.append(entry)

    def roll(self, which: int) -> None:
        """Starts a new segment on each in-sync replica n for which bit n of `which` is set. If
        `which` is above 3, also starts a new segment on the leader.
        """
        for number, replica in enumerate(self.replicas):
            is_selected = which >> number & 1 or (replica is self.leader and which > 3)
            if is_selected and replica.in_sync:
                replica.roll()

    def lag(self, number: int) -> None:
        """Removes a follower from the in-sync replicas. The leader always stays in sync."""
        replica = self.replicas[number % REPLICAS]
        replica.in_sync = replica is self.leader

    def catch_up(self, number: int) -> None:
        """Copies the leader's log to a lagging follower, which is in sync afterwards."""
        replica = self.replicas[number % REPLICAS]
        if not replica.in_sync:
            replica.follow(self.leader)

    def elect(self, number: int, gap: int) -> None:
        """Elects replica `number` as leader. If `gap` is odd, skips a leader epoch. If this replica
        was not in sync, its log becomes the log of the partition, and all other replicas become
        out of sync.
        """
        chosen = self.replicas[number % REPLICAS]
        self.epoch += 1 + gap % 2
        self.leader.is_copying = chosen is not self.leader
        if not chosen.in_sync:
            for replica in self.replicas:
                replica.in_sync = replica is chosen
        self.leader = chosen

    def elect_unclean(self, number: int, lost: int) -> None:
        """Elects replica `number`, which lacks the last entries of the log.

        If the replica was in sync, it first loses its last `lost` entries. Does nothing if the
        replica is the leader or its log is empty.
        """
        chosen = self.replicas[number % REPLICAS]
        if chosen is self.leader or not chosen.entries:
            return
        if chosen.in_sync:
            chosen.in_sync = False
            chosen.truncate(chosen.entries[-min(lost, len(chosen.entries))].base)
        self.elect(number, lost)

    def upload(self, number: int, forgetful: bool, fate: int) -> None:
        """Copies the next segment of a broker to the tier.

        Args:
            number: Number of the broker, from 0 to 2. Other numbers select the leader. A former
                leader makes at most one copy after it lost the leadership.
            forgetful: If true, the broker ignores the last finished copy, so it can repeat this
                copy.
            fate: End of the copy. Below 5, the copy finishes. With 5, all objects exist, but the
                cluster does not know that the copy is finished. With 6, the last two objects are
                missing, and with 7, the last object is missing.
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
        log = tuple(entry for entry in broker.entries if entry.stop <= stop)
        self.clock += 1
        event = FIRST_TIMESTAMP_MS + self.clock * 1000
        lineage = broker.epochs(broker.log_start, stop)
        files = replace(
            files,
            epochs=self._manifest_epochs(broker, files.base_offset, stop),
            leader_epoch_checkpoint=write_leader_epoch_checkpoint(lineage),
        )
        written = self._write(files, None, event)
        for key in written.keys[fate - 8 :] if fate in (6, 7) else ():
            del self._store[key]
        self.uploads.append(
            Upload(
                log,
                files.base_offset,
                stop,
                broker.log_start,
                event,
                written.keys,
                fate < 5,
                files,
                written.segment_id,
            )
        )

    def spoil(self, number: int, which: int, kind: int) -> None:
        """Damages a side file of a complete upload. `number` selects the upload, `which` the side
        file, and `kind` the damage (see `_damage_file`).
        """
        copies = self.complete()
        name = SIDE_FILES[which % len(SIDE_FILES)]
        if not copies:
            return
        copy = copies[number % len(copies)]
        data: bytes | None = getattr(copy.files, name)
        # An empty transaction index is valid, so a reader cannot detect lost entries. The same is
        # true if repeated truncation leaves only complete entries.
        if data is None or name in copy.spoiled or (name == "txnindex" and kind % 4 == 0):
            return
        changes: dict[str, Any] = {name: _damage_file(data, kind % 4)}
        copy.files = replace(copy.files, **changes)
        copy.spoiled.add(name)
        self._write(copy.files, copy.segment_id, copy.event_timestamp_ms)

    def delete_records(self, share: int) -> None:
        """Moves the log start forward by `share` 24ths of the log."""
        span = self.leader.end - self.leader.log_start
        self._move_log_start(self.leader.log_start + span * share // 24)

    def retain(self, count: int, remaining: int) -> None:
        """Applies retention to the oldest `count` finished uploads of the log: moves the log start
        to their end and deletes their objects, except those that the bits of `remaining` select.
        """
        finished = [
            (min(copy.stop, divergence(copy.log, self.leader.entries)), copy)
            for copy in self.uploads
            if copy.finished
        ]
        on_lineage = sorted(
            ((stop, copy) for stop, copy in finished if stop > copy.base), key=lambda pair: pair[0]
        )
        for stop, copy in on_lineage[:count]:
            self._move_log_start(stop)
            copy.finished = False
            self._remove(copy, remaining)

    def clean_up(self, number: int, remaining: int) -> None:
        """Deletes objects of an unfinished upload that is below the log start or lacks an object.
        Keeps the objects that the bits of `remaining` select.
        """
        useless = [
            copy
            for copy in self.uploads
            if not copy.finished
            and (copy.stop <= self.leader.log_start or not self._is_complete(copy))
        ]
        if useless:
            self._remove(useless[number % len(useless)], remaining)

    def lose(self, number: int, remaining: int) -> None:
        """Deletes objects of any upload, as an operator might do by mistake, except those that the
        bits of `remaining` select.
        """
        if self.uploads:
            self._remove(self.uploads[number % len(self.uploads)], remaining)

    def complete(self) -> list[Upload]:
        """Returns the uploads that have all their objects."""
        return [copy for copy in self.uploads if self._is_complete(copy)]

    def has(self, copy: Upload, suffix: str = "") -> bool:
        """Returns whether the upload has an object whose key ends with `suffix`."""
        return any(key in self._store for key in copy.keys if key.endswith(suffix))

    def is_described(self, copy: Upload) -> bool:
        """Returns whether the object that is written last exists. Its existence shows that the copy
        finished.
        """
        return self.has(copy, ".snapshot" if self.is_local else ".rsm-manifest")

    def has_checkpoint(self, copy: Upload) -> bool:
        """Returns whether the upload has the object that contains its leader-epoch checkpoint."""
        return self.has(copy, ".leader_epoch_checkpoint" if self.is_local else ".indexes")

    def proven_stop(self, copy: Upload) -> int:
        """Returns the exclusive end offset of an upload, as far as the existing objects of the
        upload show it.
        """
        if not self.is_local or self.has(copy, ".log"):
            return copy.stop
        last_offsets = [copy.base]
        if self.has(copy, ".index") and copy.files.index:
            last_offsets.append(copy.base + int.from_bytes(copy.files.index[-8:-4]))
        if self.has_checkpoint(copy):
            last_offsets.append(
                next(entry.base for entry in copy.log if entry.epoch == copy.last_epoch)
            )
        return max(last_offsets) + 1

    def _manifest_epochs(
        self, broker: Replica, base: int, stop: int
    ) -> tuple[tuple[int, int], ...]:
        if self._epochs == "in the segment":
            return tuple(broker.epochs(max(base, broker.log_start), stop))
        lineage = broker.epochs(broker.log_start, stop)
        if self._epochs == "full lineage":
            return tuple(lineage)
        ends = [start for _, start in lineage[1:]] + [stop]
        return tuple(entry for entry, end in zip(lineage, ends, strict=True) if end > base)

    def _write(self, files: SegmentFiles, segment_id: str | None, event: int) -> WrittenSegment:
        if isinstance(self._writer, AivenTierWriter):
            return self._writer.write_segment(
                files, segment_id=segment_id, event_timestamp_ms=event
            )
        return self._writer.write_segment(files, segment_id=segment_id)

    def _is_complete(self, copy: Upload) -> bool:
        return all(key in self._store for key in copy.keys)

    def _remove(self, copy: Upload, remaining: int) -> None:
        if self.is_local and copy.spoiled & {"index", "leader_epoch_checkpoint"}:
            remaining = 0  # otherwise the end of the copy is unknown
        for number, key in enumerate(copy.keys):
            kept = _LOCAL[key.rpartition(".")[2]] if self.is_local else 1 << number
            if not remaining & kept:
                self._store.pop(key, None)

    def _in_sync(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.in_sync]

    def _move_log_start(self, offset: int) -> None:
        for replica in self._in_sync():
            replica.log_start = max(replica.log_start, min(offset, replica.end))
