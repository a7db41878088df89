"""The checks of audit level `metadata`: manifests, side files (indexes, producer snapshot,
leader-epoch checkpoint), leader epochs and open transactions.

The audit determines with the code of scans which offsets of a partition readers get.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from kts_source.auditing.listing_checks import PartitionObjects, is_archived, keys_of
from kts_source.cache.packs import SideFilePack
from kts_source.errors import (
    CorruptSegmentError,
    ObjectChangedError,
    ObjectNotFoundError,
    TruncatedObjectError,
    UnknownKeyError,
)
from kts_source.layout.aiven import INDEXES_SUFFIX, LOG_SUFFIX, AivenLayout, is_copied, segment_of
from kts_source.layout.remote_segment import IndexType, epochs_between
from kts_source.planning.isolation import decide
from kts_source.planning.lineage import (
    BELOW_LOG_START,
    COVERED,
    DEAD_BRANCH,
    epoch_at,
    last_epoch,
    newest_segment,
    partition_log,
    with_epochs,
    with_unknown_epoch,
)
from kts_source.planning.lineage_evidence import (
    contradiction,
    difference,
    dropped_segments,
    unconfirmed_start,
)
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from segment_format.errors import DecryptionError, SegmentFormatError
from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import ProducerStateEntry, parse_producer_snapshot
from segment_format.index.transaction_index import AbortedTxn, parse_transaction_index
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.auditing.report import Finding
    from kts_source.keyring import KeyRing
    from kts_source.layout.layout import Layout, SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import Hole, PartitionLog
    from kts_source.store.object_store import ObjectStore
    from kts_source.tier import Tier
    from segment_format.manifest.segment_manifest import SegmentManifest

_Parsed = TypeVar("_Parsed")
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class DescribedSegment:
    """A listed segment with its description. The description was read from the manifest, or from
    other objects if the layout has no manifests.

    Attributes:
        entry: The listed objects of the segment.
        segment: The segment as described; `None` if the description is unreadable.
        is_readable: True if names and sizes of the segment's objects match the description.
        findings: Faults of the description and of the objects.
    """

    entry: SegmentEntry
    segment: RemoteSegment | None
    is_readable: bool
    findings: tuple[Finding, ...]

    @property
    def stop(self) -> int | None:
        """One past the last offset of the segment; `None` if unknown."""
        return None if self.segment is None else self.segment.stop_offset


def describe_segment(
    partition: PartitionObjects,
    entry: SegmentEntry,
    layout: Layout,
    store: ObjectStore,
    now_ms: int,
) -> DescribedSegment:
    """Reads the description of a complete or damaged segment. If the description cannot be read,
    the result has no `segment`, but a finding with the reason.

    Raises:
        StoreError: A request to the store failed.
        KeyPrefixError: The key prefix ends inside the topic's name.
    """
    if any(info.key == entry.described_by and is_archived(info) for _, info in entry.objects):
        return DescribedSegment(entry, None, False, ())
    name = "manifest-invalid"
    try:
        if isinstance(layout, AivenLayout):
            return _check_manifest(partition, entry, layout.manifest(store, entry), now_ms)
        segment = layout.describe(store, entry)
        clock = tuple(check_clock(partition, segment, entry, now_ms))
        return DescribedSegment(entry, segment, True, clock)
    except SegmentFormatError as failure:
        error = str(failure)
    except (ObjectNotFoundError, ObjectChangedError) as failure:
        name, error = "object-gone", failure.message
    except TruncatedObjectError as failure:
        error = failure.message
    finding = partition.finding(name, entry.base_offset, None, [entry.described_by], error)
    return DescribedSegment(entry, None, False, (finding,))


def _check_manifest(
    partition: PartitionObjects, entry: SegmentEntry, manifest: SegmentManifest, now_ms: int
) -> DescribedSegment:
    if text := _identity_difference(entry, manifest):
        finding = partition.finding(
            "manifest-foreign", entry.base_offset, None, keys_of(entry), text
        )
        return DescribedSegment(entry, None, False, (finding,))
    log, indexes = entry.object(LOG_SUFFIX), entry.object(INDEXES_SUFFIX)
    log_size = manifest.chunk_index.transformed_size
    indexes_size = manifest.segment_indexes.transformed_size
    has_log = log is None or log.size == log_size
    has_indexes = indexes is None or indexes.size >= indexes_size
    usable = entry  # side files show the lineage, even if the log is damaged
    if not has_indexes:
        usable = replace(entry, objects=())
    elif not has_log:
        usable = replace(
            entry, objects=tuple(item for item in entry.objects if item[0] != LOG_SUFFIX)
        )
    segment = segment_of(usable, manifest)
    findings = check_clock(partition, segment, entry, now_ms)
    for name, info, size, what in (
        ("log-size", log, log_size, "chunks"),
        ("indexes-size", indexes, indexes_size, "side files"),
    ):
        if info is not None and info.size and info.size != size:
            text = f"{info.key} has {info.size} bytes; the {what} in the manifest have {size}"
            findings.append(partition.segment_finding(name, segment, [info.key], text))
    return DescribedSegment(entry, segment, has_log and has_indexes, tuple(findings))


def _identity_difference(entry: SegmentEntry, manifest: SegmentManifest) -> str:
    """Describes how the contents of a manifest contradict the name of its object. Returns "" if
    they agree, or if a restore with zero copy copied the manifest from another topic id.
    """
    if manifest.metadata is None or is_copied(entry, manifest.metadata):
        return ""
    segment_id = manifest.metadata.segment_id
    partition = segment_id.topic_id_partition
    cut_prefix = entry.topic.endswith(partition.topic)  # `segment_of` reports it
    pairs = (
        ("topic", entry.topic if cut_prefix else partition.topic, entry.topic),
        ("topic id", uuid_to_text(partition.topic_id), entry.topic_id),
        ("partition", partition.partition, entry.partition),
        ("first offset", manifest.metadata.start_offset, entry.base_offset),
        ("segment id", uuid_to_text(segment_id.id), entry.segment_id),
    )
    return "; ".join(
        f"{what} {content} in the manifest, {named} in its name"
        for what, content, named in pairs
        if content != named
    )


def check_clock(
    partition: PartitionObjects, segment: RemoteSegment, entry: SegmentEntry, now_ms: int
) -> list[Finding]:
    """Reports a segment with an impossible timestamp: it was copied before 1970 or more than a day
    after `now_ms`, or its newest record is more than a day newer than the copy.
    """
    copied, newest = segment.event_timestamp_ms, segment.max_timestamp_ms
    if copied is not None and not 0 < copied <= now_ms + _DAY_MS:
        text = f"the segment was copied at {copied} ms since 1970"
    elif newest > (now_ms if copied is None else copied) + _DAY_MS:
        text = f"a record is dated {newest} ms since 1970, more than a day after its copy"
    else:
        return []
    return [partition.segment_finding("clock", segment, [entry.described_by], text)]


@dataclass(frozen=True, slots=True)
class SideFileFacts:
    """Contents of the side files of a segment. If a file has a fault, its attribute (`epochs`,
    `open_after` or `aborted`) is `None`.

    Attributes:
        epochs: Entries of the leader-epoch checkpoint.
        open_after: Entries of the producer snapshot whose producers have an open transaction.
        aborted: Entries of the transaction index.
        locked_by: Id of the private key that is missing or does not decrypt the segment; empty if
            the segment can be decrypted or is not encrypted.
    """

    epochs: tuple[EpochEntry, ...] | None
    open_after: tuple[ProducerStateEntry, ...] | None
    aborted: tuple[AbortedTxn, ...] | None
    locked_by: str
    findings: tuple[Finding, ...]

    @property
    def is_unreadable(self) -> bool:
        """True if the files cannot be read, because they are archived or because the private key
        that decrypts them is missing.
        """
        return self is NO_FACTS or bool(self.locked_by)

    @property
    def are_sound(self) -> bool:
        """True if no file has a fault."""
        return None not in (self.epochs, self.open_after, self.aborted)


NO_FACTS: Final = SideFileFacts(None, None, None, "", ())
"""The facts of a segment whose side files cannot be read."""


def read_side_files(
    partition: PartitionObjects, segment: RemoteSegment, tier: Tier, key_ring: KeyRing
) -> SideFileFacts:
    """Reads and checks leader-epoch checkpoint, producer snapshot and transaction index of a
    segment, with one request if possible.

    Raises:
        StoreError: A request to the store failed.
    """
    encryption = segment.objects.encryption
    if encryption is not None:
        try:
            key_ring.unwrap(encryption.data_key)
        except (DecryptionError, UnknownKeyError):
            return SideFileFacts(None, None, None, encryption.data_key.key_id, ())
    files = _MetadataFiles(partition, segment, SegmentSource(tier, key_ring, pack=SideFilePack()))
    contents = files.epochs(), files.open_after(), files.aborted()
    return SideFileFacts(*contents, "", tuple(files.findings))


class SideFileReader:
    """Reads the side files of a segment and collects their faults."""

    def __init__(
        self, partition: PartitionObjects, segment: RemoteSegment, source: SegmentSource
    ) -> None:
        self.segment = segment
        self.findings: list[Finding] = []
        self._part = partition
        self._source = source

    def read(self, kind: IndexType, name: str) -> bytes | None:
        """Returns the contents of the side file `kind`. Returns empty contents for a transaction
        index that does not exist.

        If the file cannot be read, returns `None` and adds a finding. The kind of the finding is
        `object-gone` if the object does not exist or was changed, otherwise `name`.
        """
        try:
            data = self._source.index(self.segment.objects, kind)
        except (ObjectNotFoundError, ObjectChangedError) as error:
            self.report("object-gone", kind, error.message)
            return None
        except (CorruptSegmentError, TruncatedObjectError) as error:
            self.report(name, kind, error.message)
            return None
        if data is None and kind is not IndexType.TRANSACTION:
            self.report(name, kind, f"the segment has no {kind.value} file")
            return None
        return data or b""

    def parse(
        self, kind: IndexType, name: str, parse: Callable[[bytes], _Parsed]
    ) -> _Parsed | None:
        """Reads the side file `kind` and passes its content to the function `parse`. If that fails,
        adds the finding `name` and returns `None`. See `read` for files that cannot be read.
        """
        data = self.read(kind, name)
        if data is None:
            return None
        try:
            return parse(data)
        except SegmentFormatError as error:
            self.report(name, kind, str(error))
            return None

    def report(self, name: str, kind: IndexType, detail: str) -> None:
        """Adds the finding `name` about the side file `kind`."""
        stored = self.segment.objects.indexes.get(kind)
        keys = [self.segment.objects.log.key if stored is None else stored.source.key]
        self.findings.append(self._part.segment_finding(name, self.segment, keys, detail))


class _MetadataFiles(SideFileReader):
    def epochs(self) -> tuple[EpochEntry, ...] | None:
        kind, segment = IndexType.LEADER_EPOCH, self.segment
        checkpoint = self.parse(kind, "epochs-invalid", LeaderEpochCheckpoint.from_bytes)
        if checkpoint is None:
            return None
        bounds = segment.start_offset, segment.end_offset
        own = epochs_between(checkpoint.entries, *bounds)
        expected = epochs_between(segment.leader_epochs, *bounds)
        if expected and own != expected:
            texts = _epochs_text(own), _epochs_text(expected)
            text = f"for its offsets, the checkpoint has {texts[0]}, the segment {texts[1]}"
            self.report("epochs-disagree", kind, text)
            return None
        return checkpoint.entries

    def open_after(self) -> tuple[ProducerStateEntry, ...] | None:
        kind, stop = IndexType.PRODUCER_SNAPSHOT, self.segment.stop_offset
        entries = self.parse(kind, "snapshot-invalid", parse_producer_snapshot)
        if entries is None:
            return None
        if not self.segment.end_is_exact:
            stop = max(stop, max((entry.last_offset + 1 for entry in entries), default=0))
        late = [e for e in entries if max(e.last_offset, e.current_txn_first_offset) >= stop]
        if late:
            text = f"producer {late[0].producer_id} has offsets after the segment's end {stop}"
            self.report("snapshot-disagrees", kind, text)
            return None
        return tuple(entry for entry in entries if entry.current_txn_first_offset >= 0)

    def aborted(self) -> tuple[AbortedTxn, ...] | None:
        kind, segment = IndexType.TRANSACTION, self.segment
        entries = self.parse(kind, "transactions-invalid", parse_transaction_index)
        for txn in entries or ():
            if not segment.start_offset <= txn.last_offset < segment.stop_offset:
                bounds = f"[{segment.start_offset}, {segment.stop_offset})"
                text = f"abort marker at offset {txn.last_offset} is outside the segment's {bounds}"
                self.report("transactions-disagree", kind, text)
                return None
        return entries


def _epochs_text(entries: tuple[EpochEntry, ...]) -> str:
    return (
        ", ".join(f"epoch {entry.epoch} from {entry.start_offset}" for entry in entries)
        or "no epoch"
    )


class CheckedSideFiles(SideFiles):
    """Returns the contents of side files that were already read and checked, to decide which
    transactions were aborted.

    Args:
        facts: Contents of the side files, by key of the segment's log object.
        source: Reads batch headers from logs if the side files do not suffice.
        max_batch_bytes: Maximum size of a record batch.
    """

    def __init__(
        self, facts: Mapping[str, SideFileFacts], source: SegmentSource, *, max_batch_bytes: int
    ) -> None:
        super().__init__(source, max_batch_bytes=max_batch_bytes)
        self.facts = facts

    def epochs(self, segment: RemoteSegment) -> tuple[EpochEntry, ...]:
        """Returns the leader epochs that the log had when the segment was uploaded; none if the
        leader-epoch checkpoint has a fault.
        """
        return self.facts.get(segment.objects.log.key, NO_FACTS).epochs or ()

    def leader_epochs(self, segment: RemoteSegment) -> LeaderEpochCheckpoint:
        """Returns the result of `epochs` as a checkpoint."""
        return LeaderEpochCheckpoint(self.epochs(segment))

    def snapshot(self, segment: RemoteSegment) -> tuple[ProducerStateEntry, ...] | None:
        """Returns the producers that have an open transaction at the segment's end; `None` if the
        snapshot has a fault.
        """
        return self.facts[segment.objects.log.key].open_after

    def aborted(self, segment: RemoteSegment) -> tuple[AbortedTxn, ...] | None:
        """Returns the aborted transactions whose abort marker is in the segment; `None` if the
        transaction index has a fault.
        """
        return self.facts[segment.objects.log.key].aborted


@dataclass(frozen=True, slots=True)
class ServedLog:
    """The offsets that readers get from a partition.

    Attributes:
        log: The log of the partition, assembled from its segments.
        stable: Last stable offset, at which readers with `read_committed` stop. `None` if unknown,
            because side files have faults or `is_certain` is False.
        in_doubt: Damaged segments that may belong to the log. A scan fails because of them.
        is_certain: True if the leader-epoch checkpoint of the newest segment was readable and shows
            which epochs belong to the log. If False, consecutive segments may be from logs of
            different leaders.
    """

    log: PartitionLog
    stable: int | None
    in_doubt: tuple[RemoteSegment, ...]
    is_certain: bool
    findings: tuple[Finding, ...]


def check_lineage(
    partition: PartitionObjects,
    readable: Sequence[DescribedSegment],
    damaged: Sequence[RemoteSegment],
    unserved: Sequence[tuple[int, int | None]],
    files: CheckedSideFiles,
) -> ServedLog:
    """Determines by leader epochs which segments form the log of a partition, and reports faults of
    this log.

    Args:
        partition: The partition.
        readable: Segments whose objects have the names and sizes in their descriptions.
        damaged: Segments that lack objects, or whose objects do not match the manifest.
        unserved: First offset and end (exclusive, `None` if unknown) of every segment that lacks
            objects or is damaged. These segments were already reported, so their offsets are not
            reported as holes.
        files: The side files of the segments.
    """
    facts = files.facts
    segments = [described.segment for described in readable if described.segment is not None]
    all_segments = (*segments, *damaged)
    with_lineage = [segment for segment in all_segments if files.epochs(segment)]
    newest = newest_segment(with_lineage) if with_lineage else None
    lineage = files.epochs(newest) if newest else ()
    # For a segment with a damaged checkpoint, use the epochs in the description of the segment.
    ids_with_lineage = {id(segment) for segment in with_lineage}
    without_lineage = [segment for segment in segments if id(segment) not in ids_with_lineage]
    log = partition_log(segments, with_epochs(lineage, without_lineage), damaged)
    first = min((segment.start_offset for segment in segments), default=None) if lineage else None
    in_doubt = with_unknown_epoch(damaged, last_epoch(newest) if newest else -1, first)
    with_file = [
        segment for segment in all_segments if IndexType.LEADER_EPOCH in segment.objects.indexes
    ]
    contradictions = _check_newest_checkpoint(partition, log, newest, segments, files)
    is_certain = bool(with_file) and newest_segment(with_file) is newest
    is_certain = is_certain and not in_doubt and not contradictions
    findings = [*contradictions, *_check_holes(partition, log, unserved)]
    findings += _check_gaps(partition, log, unserved)
    findings += _check_log_start(partition, log, newest, segments, files)
    skipped = _check_skipped(
        partition, log, {id(described.segment): described.entry for described in readable}
    )
    # These findings advise to delete segments, so they are dropped if the newest checkpoint is
    # doubtful.
    findings += [
        finding for finding in skipped if not contradictions or finding.name == "duplicate-upload"
    ]
    sound = all(facts[span.segment.objects.log.key].are_sound for span in log.ranges)
    stable = None
    if log.ranges and sound and is_certain:
        findings += _check_snapshot_chain(partition, log, facts)
        decisions = decide(log, log.log_start, log.stop, files)
        stable = decisions.stop
        for txn in decisions.undecided:
            findings.append(_open_transaction(partition, log, txn.producer_id, txn.first_offset))
    elif not log.ranges:
        stable = log.log_start
    return ServedLog(log, stable, tuple(in_doubt), is_certain, tuple(findings))


def _check_newest_checkpoint(
    partition: PartitionObjects,
    log: PartitionLog,
    newest: RemoteSegment | None,
    segments: Sequence[RemoteSegment],
    files: CheckedSideFiles,
) -> list[Finding]:
    """Reports, in one finding, all segments that contradict the leader-epoch checkpoint of the
    newest segment.
    """
    if newest is None:
        return []
    lineage = files.epochs(newest)
    dropped = dropped_segments(log, lineage)
    text = contradiction(log, lineage, newest, segments, files)
    if text is None:  # no segment is dropped, or each drop is correct
        differences = (
            difference(lineage, files.epochs(segment), starts=False) for segment in segments
        )
        text = next(
            (
                text_of_difference
                for text_of_difference in differences
                if text_of_difference is not None
            ),
            None,
        )
        if text is None:
            return []
        text = f"the checkpoints of two segments differ: {text}"
    keys = [newest.objects.indexes[IndexType.LEADER_EPOCH].source.key]
    keys += [segment.objects.log.key for segment in dropped if segment is not newest]
    spans = [(segment.start_offset, segment.stop_offset) for segment in dropped] or [
        (log.log_start, log.stop)
    ]
    start, stop = min(low for low, _ in spans), max(high for _, high in spans)
    return [partition.finding("lineage-disagrees", start, stop, keys, text)]


def _check_log_start(
    partition: PartitionObjects,
    log: PartitionLog,
    newest: RemoteSegment | None,
    segments: Sequence[RemoteSegment],
    files: CheckedSideFiles,
) -> Iterator[Finding]:
    """Reports the log start of the newest leader-epoch checkpoint if it is inside the first served
    segment and no other checkpoint confirms it.

    Readers do not get the records of that segment below the log start. Segments that are completely
    below the log start are reported by other checks.
    """
    if newest is None or not log.ranges:
        return
    first = log.ranges[0].segment.start_offset
    deleted = unconfirmed_start(files.epochs(newest), newest, segments, files)
    if deleted is not None and first < deleted[1]:
        text = f"only this checkpoint has a log start of {deleted[1]}"
        keys = [newest.objects.indexes[IndexType.LEADER_EPOCH].source.key]
        yield partition.finding("log-start-unconfirmed", first, deleted[1], keys, text)


def _check_holes(
    partition: PartitionObjects, log: PartitionLog, unserved: Sequence[tuple[int, int | None]]
) -> Iterator[Finding]:
    """Reports the holes of the log. Skips the offsets of segments in `unserved`, which were already
    reported.
    """
    for hole in log.holes:
        inside = sorted(
            (base, hole.stop if stop is None else stop, stop is None)
            for base, stop in unserved
            if base < hole.stop and (hole.start <= base if stop is None else stop > hole.start)
        )
        position = hole.start
        for number, (base, stop, is_guess) in enumerate(inside):
            if is_guess and number + 1 < len(inside):  # the next segment begins at its end
                stop = inside[number + 1][0]
            if position < base:
                yield _hole(partition, hole, position, base)
            position = max(position, stop)
        if position < hole.stop:
            yield _hole(partition, hole, position, hole.stop)


def _hole(partition: PartitionObjects, hole: Hole, start: int, stop: int) -> Finding:
    text = f"{hole.between}: {stop - start} offsets"
    return partition.finding("hole", start, stop, _neighbors(hole), text)


def _neighbors(hole: Hole) -> list[str]:
    return [
        neighbor.objects.log.key for neighbor in (hole.before, hole.after) if neighbor is not None
    ]


def _check_gaps(
    partition: PartitionObjects, log: PartitionLog, unserved: Sequence[tuple[int, int | None]]
) -> Iterator[Finding]:
    for gap in log.unverifiable:
        if not any(gap.start <= base < gap.stop for base, _ in unserved):
            yield partition.finding("unsure-gap", gap.start, gap.stop, _neighbors(gap), gap.between)


_SKIPPED = {BELOW_LOG_START: "below-log-start", COVERED: "overlap", DEAD_BRANCH: "dead-branch"}


def _check_skipped(
    partition: PartitionObjects, log: PartitionLog, entries: Mapping[int, SegmentEntry]
) -> Iterator[Finding]:
    served = {(span.segment.start_offset, span.segment.stop_offset) for span in log.ranges}
    for skipped in log.skipped:
        segment = skipped.segment
        name = _SKIPPED.get(skipped.reason)
        if name is None:  # the first segment below the log start, which is normal
            continue
        if name == "overlap" and (segment.start_offset, segment.stop_offset) in served:
            name = "duplicate-upload"
        keys = keys_of(entries[id(segment)])
        yield partition.segment_finding(name, segment, keys, skipped.reason)
    # If only the first offsets of a segment are in the surviving log, its later offsets are not
    # read.
    for span in log.ranges:
        segment = span.segment
        owner = epoch_at(log.lineage, span.stop)
        if span.stop < segment.stop_offset and owner != epoch_at(segment.leader_epochs, span.stop):
            keys = keys_of(entries[id(segment)])
            text = f"from offset {span.stop}, the segment has an epoch that lost these offsets"
            yield partition.finding("dead-branch", span.stop, segment.stop_offset, keys, text)


def _check_snapshot_chain(
    partition: PartitionObjects, log: PartitionLog, facts: Mapping[str, SideFileFacts]
) -> Iterator[Finding]:
    """Compares the side files of each segment with the producer snapshot of the segment before it.

    If a side file lists a transaction that began before the segment, the producer snapshot must
    list this transaction as open. Otherwise reports both segments.
    """
    for before, after in pairwise(log.ranges):
        is_complete = before.stop == before.segment.stop_offset
        if (
            not is_complete
            or before.stop != after.start
            or after.start != after.segment.start_offset
        ):
            continue
        start = after.start
        opened = facts[before.segment.objects.log.key].open_after or ()
        open_before = {(entry.producer_id, entry.current_txn_first_offset) for entry in opened}
        own = facts[after.segment.objects.log.key]
        listed = {(e.producer_id, e.current_txn_first_offset) for e in own.open_after or ()}
        listed |= {(txn.producer_id, txn.first_offset) for txn in own.aborted or ()}
        unknown = sorted(pair for pair in listed - open_before if pair[1] < start)
        if unknown:
            producer, first = unknown[0]
            keys = [
                span.segment.objects.indexes[kind].source.key
                for span in (before, after)
                for kind in list(span.segment.objects.indexes)[:1]
            ]
            text = (
                f"producer {producer} has an open transaction since offset {first}, which the"
                f" snapshot before offset {start} does not list"
            )
            bounds = before.segment.start_offset, after.segment.stop_offset
            yield partition.finding("snapshot-disagrees", *bounds, keys, text)


def _open_transaction(
    partition: PartitionObjects, log: PartitionLog, producer: int, first: int
) -> Finding:
    began = next((span.segment for span in log.ranges if span.start <= first < span.stop), None)
    hangs = began is not None and _age_ms(began, log.ranges[-1].segment) > _DAY_MS
    keys = [] if began is None else [began.objects.log.key]
    text = f"producer {producer} has an open transaction since offset {first}"
    name = "hanging-transaction" if hangs else "open-transaction"
    return partition.finding(name, first, log.stop, keys, text)


def _age_ms(began: RemoteSegment, newest: RemoteSegment) -> int:
    """Returns the time between the copies of two segments in ms. If a copy time is unknown, returns
    the time between the newest records of the two segments.
    """
    if began.event_timestamp_ms is not None and newest.event_timestamp_ms is not None:
        return newest.event_timestamp_ms - began.event_timestamp_ms
    return newest.max_timestamp_ms - began.max_timestamp_ms
