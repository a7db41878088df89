"""What describes each listed segment, and whether it is of that segment and fits its objects.

What the listing of a partition shows by itself.

What the side files of one segment say of epochs and transactions, and whether they are sound and
of that segment.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kts_source.auditing.place import Place, is_archived, keys_of
from kts_source.cache.packs import SideFilePack
from kts_source.errors import (
    CorruptSegmentError,
    ObjectChangedError,
    ObjectNotFoundError,
    TruncatedObjectError,
)
from kts_source.layout.aiven import INDEXES_SUFFIX, LOG_SUFFIX, AivenLayout, segment_of
from kts_source.layout.remote_segment import IndexType, epochs_between
from kts_source.planning.estimate import ARCHIVE_CLASSES
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from segment_format.errors import DecryptionError, SegmentFormatError
from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import ProducerStateEntry, parse_producer_snapshot
from segment_format.index.transaction_index import AbortedTxn, parse_transaction_index
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from kts_source.auditing.place import PartitionObjects
    from kts_source.auditing.report import Finding
    from kts_source.keyring import KeyRing
    from kts_source.layout.layout import Layout, SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import Hole
    from kts_source.store.object_store import ObjectStore
    from kts_source.tier import Tier
    from segment_format.manifest.segment_manifest import SegmentManifest


def place_of(part: PartitionObjects) -> Place:
    """The partition, with the sizes of its objects."""
    described = [one.described for one in part.orphans if one.described is not None]
    infos = [info for entry in (*part.entries, *described) for _, info in entry.objects]
    sizes = {info.key: info.size for info in infos}
    classes = {info.key: info.storage_class for info in infos if info.storage_class}
    for orphan in part.orphans:
        sizes.update(zip(orphan.keys, orphan.sizes or (0,) * len(orphan.keys), strict=True))
    return Place(part.topic, part.topic_id, part.partition, sizes, classes)


def other_incarnation(part: PartitionObjects, chosen: str) -> list[Finding]:
    """What there is of a topic id that is not read."""
    place = place_of(part)
    if not place.sizes:
        return []
    bases = [entry.base_offset for entry in part.entries]
    text = f"{len(place.sizes)} objects of topic id {part.topic_id}; {chosen} is read"
    first = min(bases, default=None)
    return [place.finding("other-topic-id", first, None, sorted(place.sizes), text)]


def of_every_object(place: Place, part: PartitionObjects, empty_logs: Set[str]) -> list[Finding]:
    """Finds objects that are empty or archived; those of a storage class make one finding.

    Args:
        place: The partition.
        part: Its listing.
        empty_logs: Keys of logs that have no byte because compaction removed all their records.
    """
    found = []
    archived: dict[str, list[SegmentEntry]] = defaultdict(list)
    for entry in part.entries:
        for suffix, info in entry.objects:
            if info.size == 0 and _holds_bytes(suffix) and info.key not in empty_logs:
                text = f"{info.key} has no byte"
                at = entry.base_offset
                found.append(place.finding("empty-object", at, None, [info.key], text))
        classes = {info.storage_class for _, info in entry.objects if info.storage_class}
        for name in sorted(classes & ARCHIVE_CLASSES):
            archived[name].append(entry)
    for name, entries in archived.items():
        keys = [
            info.key for entry in entries for _, info in entry.objects if info.storage_class == name
        ]
        text = f"{len(keys)} objects of storage class {name}"
        found.append(place.finding("archived", entries[0].base_offset, None, keys, text))
    return found


def _holds_bytes(suffix: str) -> bool:
    """Whether an object with this suffix is never empty: small segments have empty indexes."""
    return suffix not in ("index", "timeindex", "txnindex")


def duplicates(place: Place, part: PartitionObjects) -> list[Finding]:
    """Segments that share their base offset, as far as names tell."""
    by_base: dict[int, list[SegmentEntry]] = defaultdict(list)
    for entry in part.entries:
        by_base[entry.base_offset].append(entry)
    return [
        place.finding(
            "duplicate-upload",
            base,
            None,
            [key for entry in entries for key in keys_of(entry)],
            f"{len(entries)} segments begin at offset {base}",
        )
        for base, entries in sorted(by_base.items())
        if len(entries) > 1
    ]


class KnownLog(NamedTuple):
    """What manifests and side files tell of a partition.

    Attributes:
        holes: Offsets that no segment holds, also where there may have been no record.
        stops: One past the last offset of each segment that lacks objects, by the key of what
            describes it.
        in_doubt: Keys of those of which the log may be, as nothing tells that it is of others.
    """

    holes: Sequence[Hole]
    stops: Mapping[str, int | None]
    in_doubt: Set[str]


def half_segments(
    place: Place,
    part: PartitionObjects,
    known: KnownLog | None,
    *,
    now_ms: int,
    grace_ms: int,
    has_manifests: bool,
) -> list[Finding]:
    """Objects that make no segment.

    Args:
        place: The partition.
        part: Its listing.
        known: `None` where only names are. Then what is above the first whole segment, and was
            whole once, counts as missed.
        now_ms: The time in ms since 1970.
        grace_ms: Copies that are younger may be under way.
        has_manifests: Whether the layout describes segments by an object of their own. If not, a
            segment between whole ones counts as missed where only names are known.
    """
    whole = {entry.base_offset for entry in part.entries}
    bases = {one.base_offset for one in part.orphans if one.base_offset is not None}
    first = min((entry.base_offset for entry in part.entries), default=None)
    lost_all = first is None and len(bases) > 1
    found = []
    for orphan in part.orphans:
        base, entry = orphan.base_offset, orphan.described
        if base is None:
            found.append(place.finding("stray-object", None, None, orphan.keys, orphan.reason))
            continue
        missed: list[tuple[int, int | None]]
        if known is None:
            is_lost = entry is not None and (first is None or base > first)
            if entry is None and not has_manifests and base not in whole:
                is_lost = bool(whole) and min(whole) < base < max(whole)
            missed = [(base, None)] if is_lost else []
        elif entry is None:
            missed = _missed(base, None, known.holes)
        else:
            stop = known.stops[entry.described_by]
            missed = _missed(base, stop, known.holes)
            if not missed and entry.described_by in known.in_doubt:
                missed = [(base, stop)]
        if lost_all and entry is None:
            missed = [(base, None)]
        if entry is not None:
            name = "half-delete"
        elif orphan.written_ms is not None and now_ms - orphan.written_ms < grace_ms:
            name = "copy-under-way"
        else:
            name = "half-copy"
        if missed:
            name = "object-missing"
        for start, stop in missed or [(base, None)]:
            found.append(place.finding(name, start, stop, orphan.keys, orphan.reason))
    return found


def _missed(base: int, stop: int | None, holes: Sequence[Hole]) -> list[tuple[int, int | None]]:
    """What of a segment lies in holes; up to the end where that is known."""
    if stop is None:
        return [(base, None)] if any(one.start <= base < one.stop for one in holes) else []
    parts = ((max(one.start, base), min(one.stop, stop)) for one in holes)
    return [(low, high) for low, high in parts if low < high]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What is known of a segment's side files; `None` for one that is not sound.

    Attributes:
        epochs: Entries of the leader-epoch checkpoint.
        open_after: Entries of the producer snapshot with an open transaction.
        aborted: The transaction index.
        locked_by: Id of the key that is missing, or does not open the segment; empty for none.
    """

    epochs: tuple[EpochEntry, ...] | None
    open_after: tuple[ProducerStateEntry, ...] | None
    aborted: tuple[AbortedTxn, ...] | None
    locked_by: str
    findings: tuple[Finding, ...]

    @property
    def is_closed(self) -> bool:
        """Whether its side files cannot be read: the key is missing, or they are archived."""
        return self is NO_FACTS or bool(self.locked_by)

    @property
    def are_sound(self) -> bool:
        """Whether all of them are."""
        return None not in (self.epochs, self.open_after, self.aborted)


NO_FACTS: Final = FileFacts(None, None, None, "", ())
"""Of a segment whose side files cannot be read."""


def file_facts(place: Place, segment: RemoteSegment, tier: Tier, key_ring: KeyRing) -> FileFacts:
    """Reads and checks checkpoint, snapshot and transaction index, in one request where they stand
    together.

    Raises:
        StoreError: The store does not answer.
    """
    encryption = segment.objects.encryption
    if encryption is not None:
        try:
            key_ring.unwrap(encryption.data_key)
        except DecryptionError:
            return FileFacts(None, None, None, encryption.data_key.key_id, ())
    files = _Files(place, segment, SegmentSource(tier, key_ring, pack=SideFilePack()))
    epochs = files.epochs()
    open_after = files.open_after()
    aborted = files.aborted()
    return FileFacts(epochs, open_after, aborted, "", tuple(files.findings))


class SideFileReader:
    """Reads the side files of one segment for checks; what is wrong becomes a finding."""

    def __init__(self, place: Place, segment: RemoteSegment, source: SegmentSource) -> None:
        self.segment = segment
        self.findings: list[Finding] = []
        self._place = place
        self._source = source

    def read(self, kind: IndexType, name: str) -> bytes | None:
        """The file; `None`, and a finding of this name, where it cannot be had. A transaction
        index that is not there is empty.
        """
        try:
            data = self._source.index(self.segment.objects, kind)
        except (ObjectNotFoundError, ObjectChangedError) as error:
            self.find("object-gone", kind, error.message)
            return None
        except (CorruptSegmentError, TruncatedObjectError) as error:
            self.find(name, kind, error.message)
            return None
        if data is None and kind is not IndexType.TRANSACTION:
            self.find(name, kind, f"the segment has no {kind.value} file")
            return None
        return data or b""

    def find(self, name: str, kind: IndexType, detail: str) -> None:
        """Adds a finding about a side file."""
        stored = self.segment.objects.indexes.get(kind)
        keys = [self.segment.objects.log.key if stored is None else stored.source.key]
        self.findings.append(self._place.of_segment(name, self.segment, keys, detail))


class _Files(SideFileReader):
    def epochs(self) -> tuple[EpochEntry, ...] | None:
        kind, segment = IndexType.LEADER_EPOCH, self.segment
        data = self.read(kind, "epochs-invalid")
        if data is None:
            return None
        try:
            entries = LeaderEpochCheckpoint.from_bytes(data).entries
        except SegmentFormatError as error:
            self.find("epochs-invalid", kind, str(error))
            return None
        here = epochs_between(entries, segment.start_offset, segment.end_offset)
        told = epochs_between(segment.leader_epochs, segment.start_offset, segment.end_offset)
        if told and here != told:
            text = f"the checkpoint has {_text(here)} for its offsets, the segment {_text(told)}"
            self.find("epochs-disagree", kind, text)
            return None
        return entries

    def open_after(self) -> tuple[ProducerStateEntry, ...] | None:
        kind, stop = IndexType.PRODUCER_SNAPSHOT, self.segment.stop_offset
        data = self.read(kind, "snapshot-invalid")
        if data is None:
            return None
        try:
            entries = parse_producer_snapshot(data)
        except SegmentFormatError as error:
            self.find("snapshot-invalid", kind, str(error))
            return None
        if not self.segment.end_is_exact:
            stop = max(stop, max((entry.last_offset + 1 for entry in entries), default=0))
        late = [e for e in entries if max(e.last_offset, e.current_txn_first_offset) >= stop]
        if late:
            text = f"producer {late[0].producer_id} has offsets behind the segment's end {stop}"
            self.find("snapshot-disagrees", kind, text)
            return None
        return tuple(entry for entry in entries if entry.current_txn_first_offset >= 0)

    def aborted(self) -> tuple[AbortedTxn, ...] | None:
        kind, segment = IndexType.TRANSACTION, self.segment
        data = self.read(kind, "transactions-invalid")
        if data is None:
            return None
        try:
            entries = parse_transaction_index(data)
        except SegmentFormatError as error:
            self.find("transactions-invalid", kind, str(error))
            return None
        for txn in entries:
            if not segment.start_offset <= txn.last_offset < segment.stop_offset:
                text = (
                    f"it has an abort marker at offset {txn.last_offset}, outside of the segment's"
                    f" [{segment.start_offset}, {segment.stop_offset})"
                )
                self.find("transactions-disagree", kind, text)
                return None
        return entries


def _text(entries: tuple[EpochEntry, ...]) -> str:
    return ", ".join(f"epoch {one.epoch} from {one.start_offset}" for one in entries) or "no epoch"


class KnownFiles(SideFiles):
    """Side files that were read and checked before, for the code that decides transactions.

    Args:
        facts: By key of the segment's log object.
        source: What reads logs, where headers must be replayed.
        max_batch_bytes: Bound on one record batch.
    """

    def __init__(
        self, facts: Mapping[str, FileFacts], source: SegmentSource, *, max_batch_bytes: int
    ) -> None:
        super().__init__(source, max_batch_bytes=max_batch_bytes)
        self.facts = facts

    def leader_epochs(self, segment: RemoteSegment) -> LeaderEpochCheckpoint:
        """The lineage known when the segment was uploaded; without entries if it is not sound."""
        facts = self.facts.get(segment.objects.log.key, NO_FACTS)
        return LeaderEpochCheckpoint(facts.epochs or ())

    def snapshot(self, segment: RemoteSegment) -> tuple[ProducerStateEntry, ...] | None:
        """Producers with an open transaction at the segment's end."""
        return self.facts[segment.objects.log.key].open_after

    def aborted(self, segment: RemoteSegment) -> tuple[AbortedTxn, ...] | None:
        """Transactions whose abort marker is in the segment."""
        return self.facts[segment.objects.log.key].aborted


_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Described:
    """A listed segment.

    Attributes:
        segment: Its facts; `None` where nothing tells them.
        is_readable: Whether its objects are what is described, as far as sizes and names tell.
        findings: What is wrong about it.
    """

    entry: SegmentEntry
    segment: RemoteSegment | None
    is_readable: bool
    findings: tuple[Finding, ...]

    @property
    def stop(self) -> int | None:
        """One past its last offset, where that is known."""
        return None if self.segment is None else self.segment.stop_offset


def described(
    place: Place, entry: SegmentEntry, layout: Layout, store: ObjectStore, *, now_ms: int
) -> Described:
    """Describes a segment; what cannot be is among the findings.

    Args:
        place: Its partition.
        entry: A whole segment, or a damaged one that something describes.
        layout: Of the tier.
        store: Where it is.
        now_ms: The time in ms since 1970.

    Raises:
        StoreError: The store does not answer.
        KeyPrefixError: The topic's name is cut by the key prefix.
    """
    name, error = "manifest-invalid", None
    if any(info.key == entry.described_by and is_archived(info) for _, info in entry.objects):
        return Described(entry, None, False, ())
    try:
        if isinstance(layout, AivenLayout):
            return _by_manifest(place, entry, layout.manifest(store, entry), now_ms)
        segment = layout.describe(store, entry)
        return Described(entry, segment, True, tuple(clock_findings(place, segment, entry, now_ms)))
    except SegmentFormatError as failure:
        error = str(failure)
    except (ObjectNotFoundError, ObjectChangedError) as failure:
        name, error = "object-gone", failure.message
    except TruncatedObjectError as failure:
        error = failure.message
    finding = place.finding(name, entry.base_offset, None, [entry.described_by], error)
    return Described(entry, None, False, (finding,))


def _by_manifest(
    place: Place, entry: SegmentEntry, manifest: SegmentManifest, now_ms: int
) -> Described:
    keys = keys_of(entry)
    if foreign := _foreign(entry, manifest):
        found = place.finding("manifest-foreign", entry.base_offset, None, keys, foreign)
        return Described(entry, None, False, (found,))
    log, indexes = entry.object(LOG_SUFFIX), entry.object(INDEXES_SUFFIX)
    size, wanted = manifest.chunk_index.transformed_size, manifest.segment_indexes.transformed_size
    has_log = log is None or log.size == size
    has_indexes = indexes is None or indexes.size >= wanted
    own = entry.objects  # side files tell the lineage, whatever became of the log
    if not has_indexes:
        own = ()
    elif not has_log:
        own = tuple(pair for pair in own if pair[0] != LOG_SUFFIX)
    segment = segment_of(entry if own is entry.objects else replace(entry, objects=own), manifest)
    findings = clock_findings(place, segment, entry, now_ms)
    if log is not None and not has_log and log.size:
        text = f"{log.key} has {log.size} bytes; the manifest's chunks make {size}"
        findings.append(place.of_segment("log-size", segment, [log.key], text))
    if indexes is not None and indexes.size != wanted and indexes.size:
        text = f"{indexes.key} has {indexes.size} bytes; the manifest's side files make {wanted}"
        findings.append(place.of_segment("indexes-size", segment, [indexes.key], text))
    return Described(entry, segment, has_log and has_indexes, tuple(findings))


def _foreign(entry: SegmentEntry, manifest: SegmentManifest) -> str:
    """Where a manifest names another segment than its own name does; empty where it does not."""
    if manifest.metadata is None:
        return ""
    told = manifest.metadata.segment_id
    of = told.topic_id_partition
    cut_prefix = entry.topic.endswith(of.topic)  # `segment_of` tells of it
    pairs = (
        ("topic", entry.topic if cut_prefix else of.topic, entry.topic),
        ("topic id", uuid_to_text(of.topic_id), entry.topic_id),
        ("partition", of.partition, entry.partition),
        ("first offset", manifest.metadata.start_offset, entry.base_offset),
        ("segment id", uuid_to_text(told.id), entry.segment_id),
    )
    return "; ".join(
        f"the manifest says {what} {said}, its name {named}"
        for what, said, named in pairs
        if said != named
    )


def clock_findings(
    place: Place, segment: RemoteSegment, entry: SegmentEntry, now_ms: int
) -> list[Finding]:
    """Times that cannot be."""
    event, newest = segment.event_timestamp_ms, segment.max_timestamp_ms
    texts = []
    if event is not None and not 0 < event <= now_ms + _DAY_MS:
        texts.append(f"copied at {event} ms since 1970")
    elif newest > (now_ms if event is None else event) + _DAY_MS:
        texts.append(f"a record is dated {newest} ms since 1970, more than a day after its copy")
    return [place.of_segment("clock", segment, [entry.described_by], text) for text in texts]
