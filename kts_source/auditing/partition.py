"""Audits one partition: runs the checks of the requested audit level and of all lower levels."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kts_source.auditing.batch_checks import SegmentIndexes
from kts_source.auditing.listing_checks import (
    LogGaps,
    check_duplicates,
    check_objects,
    check_orphans,
    is_archived,
)
from kts_source.auditing.metadata_checks import (
    NO_FACTS,
    CheckedSideFiles,
    DescribedSegment,
    SideFileFacts,
    check_clock,
    check_lineage,
    describe_segment,
    read_side_files,
)
from kts_source.auditing.proof import PartitionReader, ProvenSegment
from kts_source.auditing.report import (
    BYTES,
    INDEXES,
    LISTING,
    Finding,
    PartitionStatement,
    Severity,
)
from kts_source.auditing.state import NO_STATE, identity_of
from kts_source.errors import ObjectChangedError, ObjectNotFoundError
from kts_source.layout.aiven import LOG_SUFFIX
from kts_source.layout.local_tiered import LocalTieredLayout
from kts_source.layout.remote_segment import IndexType
from kts_source.read.read_settings import ReadSettings
from kts_source.read.segment_source import SegmentSource
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.auditing.listing_checks import PartitionObjects
    from kts_source.auditing.metadata_checks import ServedLog
    from kts_source.auditing.proof import LogProof, PartitionProof
    from kts_source.auditing.state import PartitionState
    from kts_source.keyring import KeyRing
    from kts_source.layout.layout import Layout, SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.lineage import Hole
    from kts_source.tier import Tier

_GROUPS: Final = 256
"""Minimum number of groups of segments, if possible, over all partitions that are audited
concurrently. With fewer groups, threads would be idle.
"""
_GROUP_SEGMENTS: Final = 16
"""Maximum segments per group. A thread checks a group at a time, because submitting a single
segment to a thread takes longer than checking it.
"""


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """Audits partitions. The result of a partition does not depend on other partitions.

    Attributes:
        options: Only the private keys and the limits of memory and requests are used.
        grace_ms: Age limit in ms. Younger objects of an incomplete segment are reported as a copy
            that is under way.
        now_ms: The time in ms since 1970.
        pool: Reads metadata of segments concurrently.
        on_read: Called after each segment whose log was read, with the size of the log in bytes.
        concurrency: Number of partitions that are audited concurrently.
    """

    options: ScanOptions
    level: str
    grace_ms: int
    now_ms: int
    tier: Tier
    layout: Layout
    pool: Executor
    on_read: Callable[[int], object] | None
    concurrency: int = 1

    def audit(
        self, partition: PartitionObjects, state: PartitionState = NO_STATE
    ) -> tuple[PartitionStatement, list[Finding]]:
        """Audits a partition. Returns a statement about its offsets, and the findings. `state`
        contains proofs of earlier audits; new proofs are added.

        Raises:
            StoreError: A request to the store failed.
            KeyPrefixError: The key prefix ends inside the topic's name.
            InvalidOptionError: The state file cannot be written.
        """
        if self.level == LISTING:
            findings = self._check_listing(partition)
            findings += check_duplicates(partition)
            findings += self._check_orphans(partition, None)
            return _statement(partition, findings), findings
        key_ring = self.options.key_ring.loaded()
        identity = _partition_identity(partition) if state is not NO_STATE else ""
        kept = _stored_result(state.whole(identity), self.level, self.now_ms, key_ring)
        if kept is not None:
            return kept
        metadata = self._read_metadata(partition, key_ring, state)
        findings = [*metadata.findings]
        proof = None
        if self.level == INDEXES:
            findings += self._check_indexes(partition, metadata, state)
        elif self.level == BYTES:
            proof = self._read_bytes(partition, metadata, state)
            findings += proof.findings
        statement = _statement(partition, findings, metadata.served, proof)
        if identity and self._is_proven(partition, metadata):
            segments = metadata.proven.values()
            _store_result(state, identity, self.level, self.now_ms, segments, (statement, findings))
        return statement, findings

    def _check_listing(self, partition: PartitionObjects) -> list[Finding]:
        empty_logs = set()
        for entry in partition.entries:
            log = entry.object(LOG_SUFFIX)
            if log is None or log.size:
                continue
            try:
                if self.layout.describe(self.tier.store, entry).objects.size_in_bytes == 0:
                    empty_logs.add(log.key)
            except (SegmentFormatError, ObjectNotFoundError, ObjectChangedError):
                continue  # reported as an empty object, and by higher levels
        return [*check_objects(partition, empty_logs)]

    def _check_orphans(
        self, partition: PartitionObjects, gaps: LogGaps | None
    ) -> Iterator[Finding]:
        return check_orphans(
            partition,
            gaps,
            now_ms=self.now_ms,
            grace_ms=self.grace_ms,
            has_manifests=not isinstance(self.layout, LocalTieredLayout),
        )

    def _is_proven(self, partition: PartitionObjects, metadata: _Metadata) -> bool:
        """Returns whether every segment has a proof that suffices for the level of this audit."""
        segments = [metadata.proven.get(entry.described_by) for entry in partition.entries]
        return all(
            proven is not None
            and (self.level != INDEXES or proven.has_indexes or proven.log is not None)
            and (self.level != BYTES or proven.log is not None)
            for proven in segments
        )

    def _describe(self, partition: PartitionObjects, entry: SegmentEntry) -> DescribedSegment:
        return describe_segment(partition, entry, self.layout, self.tier.store, self.now_ms)

    def _read_metadata(
        self, partition: PartitionObjects, key_ring: KeyRing, state: PartitionState
    ) -> _Metadata:
        """Checks the listing, manifests and side files. Returns their contents and findings."""
        findings = self._check_listing(partition)
        segments, facts, proven = self._read_segments(partition, key_ring, state)
        orphans = [orphan.described for orphan in partition.orphans if orphan.described is not None]
        damaged = [self._describe(partition, entry) for entry in orphans]
        readable = [
            described
            for described in segments
            if described.is_readable and described.segment is not None
        ]
        broken = [
            described
            for described in segments
            if not described.is_readable or described.segment is None
        ]
        unserved = [*broken, *damaged]
        findings += [
            finding for described in (*segments, *damaged) for finding in described.findings
        ]
        findings += [finding for file_facts in facts.values() for finding in file_facts.findings]
        findings += _check_keys(partition, readable, facts)
        facts |= self._read_lineage(partition, unserved, key_ring)
        ranges: list[tuple[int, int | None]] = [(o.entry.base_offset, o.stop) for o in unserved]
        ranges += [
            (orphan.base_offset, None)
            for orphan in partition.orphans
            if orphan.base_offset is not None and orphan.described is None
        ]
        source = SegmentSource(self.tier, key_ring)
        served = check_lineage(
            partition,
            readable,
            [described.segment for described in unserved if described.segment is not None],
            ranges,
            CheckedSideFiles(facts, source, max_batch_bytes=self.options.max_batch_bytes),
        )
        doubted = {id(segment) for segment in served.in_doubt}
        gaps = LogGaps(
            served.log.missing,
            {described.entry.described_by: described.stop for described in damaged},
            {
                described.entry.described_by
                for described in damaged
                if id(described.segment) in doubted
            },
        )
        findings += self._check_orphans(partition, gaps)
        findings = [_with_end_offset(finding, ranges, served.log.missing) for finding in findings]
        return _Metadata(
            tuple(described.segment for described in readable if described.segment is not None),
            {id(described.segment): described.entry for described in readable},
            facts,
            served,
            source,
            proven,
            tuple(_without_repeated_objects([*findings, *served.findings])),
        )

    def _read_segments(
        self, partition: PartitionObjects, key_ring: KeyRing, state: PartitionState
    ) -> tuple[list[DescribedSegment], dict[str, SideFileFacts], dict[str, ProvenSegment]]:
        """Describes all complete segments, and reads the side files of segments without a proof.
        Returns three values: the described segments; the contents of their side files, by key of
        the log object; and the proofs of segments without faults, by key of the manifest.
        """

        def read(group: Sequence[SegmentEntry]) -> list[_Read]:
            return [self._read_segment(partition, entry, key_ring) for entry in group]

        proven: dict[str, ProvenSegment] = {}
        for entry in partition.entries:
            kept = state.segment(entry)
            if kept is not None and kept.opens_with(key_ring):
                proven[entry.described_by] = kept
        missing = [entry for entry in partition.entries if entry.described_by not in proven]
        size = min(max(len(missing) * self.concurrency // _GROUPS, 1), _GROUP_SEGMENTS)
        groups = [missing[start : start + size] for start in range(0, len(missing), size)]
        fresh: dict[str, DescribedSegment] = {}
        facts: dict[str, SideFileFacts] = {}
        for group in self.pool.map(read, groups):
            added = []
            for described, files in group:
                entry, segment = described.entry, described.segment
                fresh[entry.described_by] = described
                if segment is None or files is None:
                    continue
                facts[segment.objects.log.key] = files
                is_sound = files.are_sound and not files.findings
                if is_sound and all(finding.name == "clock" for finding in described.findings):
                    proof = ProvenSegment(segment, files)
                    proof = replace(proof, opened_by=key_ring.fingerprint(proof.key_id))
                    proven[entry.described_by] = proof
                    added.append((entry, proof))
            state.add_segments(added)
        segments = []
        for entry in partition.entries:
            if entry.described_by in fresh:
                segments.append(fresh[entry.described_by])
                continue
            kept = proven[entry.described_by]
            clock = tuple(check_clock(partition, kept.segment, entry, self.now_ms))
            segments.append(DescribedSegment(entry, kept.segment, True, clock))
            facts[kept.segment.objects.log.key] = kept.files
        return segments, facts, proven

    def _read_segment(
        self, partition: PartitionObjects, entry: SegmentEntry, key_ring: KeyRing
    ) -> _Read:
        described = self._describe(partition, entry)
        if described.segment is None or not described.is_readable:
            return described, None
        if _are_archived(described.segment):
            return described, NO_FACTS
        return described, read_side_files(partition, described.segment, self.tier, key_ring)

    def _read_lineage(
        self, partition: PartitionObjects, damaged: Sequence[DescribedSegment], key_ring: KeyRing
    ) -> dict[str, SideFileFacts]:
        """Reads the side files of damaged segments, and ignores faults of these files. Returns
        their contents by key of the log object.

        The leader-epoch checkpoint of the newest segment is needed even if the segment has lost its
        log.
        """
        return {
            segment.objects.log.key: read_side_files(partition, segment, self.tier, key_ring)
            for segment in (described.segment for described in damaged)
            if segment is not None
            and not _are_archived(segment)
            and IndexType.LEADER_EPOCH in segment.objects.indexes
        }

    def _check_indexes(
        self, partition: PartitionObjects, metadata: _Metadata, state: PartitionState
    ) -> list[Finding]:
        findings: list[Finding] = []
        for segment in metadata.segments:
            entry = metadata.entries[id(segment)]
            proof = metadata.proven.get(entry.described_by)
            if proof is not None and (proof.has_indexes or proof.log is not None):
                continue
            if metadata.facts[segment.objects.log.key].is_unreadable:
                continue
            indexes = SegmentIndexes(partition, segment, metadata.source)
            log_is_readable = not is_archived(segment.objects.log)
            if log_is_readable:
                indexes.check_last_entry(self.options.max_batch_bytes)
            findings += indexes.findings
            if proof is not None and not indexes.findings and log_is_readable:
                metadata.proven[entry.described_by] = replace(proof, has_indexes=True)
                state.add_segments([(entry, metadata.proven[entry.described_by])])
        return findings

    def _read_bytes(
        self, partition: PartitionObjects, metadata: _Metadata, state: PartitionState
    ) -> PartitionProof:
        def keep(segment: RemoteSegment, log: LogProof | None) -> None:
            entry = metadata.entries[id(segment)]
            before = metadata.proven.get(entry.described_by)
            if before is not None:
                # If a segment has a new fault, its proofs are deleted.
                proof = replace(before, log=log, has_indexes=before.has_indexes and log is not None)
                if proof != before:
                    metadata.proven[entry.described_by] = proof
                    state.add_segments([(entry, proof)])

        reader = PartitionReader(
            partition,
            metadata.source,
            ReadSettings.of(self.options).read_ahead,
            max_batch_bytes=self.options.max_batch_bytes,
            facts=metadata.facts,
            on_read=self.on_read,
            on_proof=keep,
        )
        log = metadata.served.log
        if not metadata.served.is_certain:  # consecutive segments may be of different branches
            log = replace(log, ranges=())
        serving = {id(span.segment) for span in log.ranges}
        others = [segment for segment in metadata.segments if id(segment) not in serving]
        proofs = {
            proven.segment.objects.log.key: proven.log
            for proven in metadata.proven.values()
            if proven.log is not None
        }
        return reader.prove(log, others, proofs)


_Read = tuple[DescribedSegment, SideFileFacts | None]


@dataclass(frozen=True, slots=True)
class _Metadata:
    """The manifests and side files of a partition, and the results of checking them.

    Attributes:
        segments: Segments whose objects have the names and sizes in their descriptions.
        entries: Listed objects of the segments in `segments`, by the `id()` of the segment.
        facts: Contents of the side files of all segments, by key of the log object.
        served: The offsets that readers get.
        source: Reads logs and side files.
        proven: Proofs of segments without faults, by key of the manifest.
        findings: All findings about the partition so far.
    """

    segments: tuple[RemoteSegment, ...]
    entries: Mapping[int, SegmentEntry]
    facts: Mapping[str, SideFileFacts]
    served: ServedLog
    source: SegmentSource
    proven: dict[str, ProvenSegment]
    findings: tuple[Finding, ...]


def _are_archived(segment: RemoteSegment) -> bool:
    """Returns whether side files of a segment must be restored before they can be read."""
    return any(is_archived(stored.source) for stored in segment.objects.indexes.values())


def _check_keys(
    partition: PartitionObjects,
    segments: Sequence[DescribedSegment],
    facts: Mapping[str, SideFileFacts],
) -> Iterator[Finding]:
    """Reports segments that cannot be decrypted because their private key is missing. Reports one
    finding per missing key.
    """
    by_key: dict[str, list[RemoteSegment]] = defaultdict(list)
    for described in segments:
        if described.segment is not None:
            key_id = facts.get(described.segment.objects.log.key, NO_FACTS).locked_by
            if key_id:
                by_key[key_id].append(described.segment)
    for key_id, locked in sorted(by_key.items()):
        yield partition.finding(
            "key-missing",
            min(segment.start_offset for segment in locked),
            max(segment.stop_offset for segment in locked),
            [segment.objects.log.key for segment in locked],
            f"{len(locked)} segments are encrypted with key id {key_id!r}",
        )


def _without_repeated_objects(findings: Sequence[Finding]) -> list[Finding]:
    """Drops each finding about an empty object if another finding names that object."""
    named = {
        key for finding in findings if finding.name != "empty-object" for key in finding.objects
    }
    return [
        finding
        for finding in findings
        if finding.name != "empty-object" or not named & {*finding.objects}
    ]


def _with_end_offset(
    finding: Finding, unserved: Sequence[tuple[int, int | None]], holes: Sequence[Hole]
) -> Finding:
    """If a finding has no end offset and starts in a hole, sets its end to the first offset of the
    next segment in `unserved`, or to the end of the hole if that is lower. Returns other findings
    unchanged.
    """
    start = finding.start
    if start is None or finding.stop is not None:
        return finding
    hole = next((hole for hole in holes if hole.start <= start < hole.stop), None)
    if hole is None:
        return finding
    following = min((base for base, _ in unserved if base > start), default=hole.stop)
    return replace(finding, stop=min(following, hole.stop))


def _statement(
    partition: PartitionObjects,
    findings: Sequence[Finding],
    served: ServedLog | None = None,
    proof: PartitionProof | None = None,
) -> PartitionStatement:
    listed = len(partition.entries), sum(partition.sizes.values())
    is_whole = not any(finding.severity is Severity.ERROR for finding in findings)
    if served is None:
        return PartitionStatement(*partition.key, None, None, None, *listed, is_whole)
    log = served.log
    bounds = log.log_start, log.stop, served.stable
    statement = PartitionStatement(*partition.key, *bounds, *listed, is_whole)
    if proof is None or not proof.is_sound or log.missing or not served.is_certain:
        return statement
    return replace(statement, records=proof.records, batches=proof.batches, digest=proof.digest)


def _partition_identity(partition: PartitionObjects) -> str:
    """Returns a digest of the listed objects of a partition and their versions. Returns "" if an
    object has no version, or if there are orphans, because findings about orphans depend on the
    time.
    """
    if partition.orphans:
        return ""
    digest = hashlib.blake2b(digest_size=20)
    for entry in partition.entries:
        identity = identity_of(entry)
        if not identity:
            return ""
        digest.update(f"{entry.described_by} {identity}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _store_result(
    state: PartitionState,
    identity: str,
    level: str,
    now_ms: int,
    segments: Iterable[ProvenSegment],
    result: tuple[PartitionStatement, Sequence[Finding]],
) -> None:
    """Stores the result of a partition in `state`. Every segment of the partition must have a
    proof. A result with a finding about timestamps is not stored, because it depends on the time.
    """
    statement, findings = result
    if any(finding.name == "clock" for finding in findings):  # depends on the time
        return
    keys = sorted(
        {
            (segment_facts.key_id, segment_facts.opened_by)
            for segment_facts in segments
            if segment_facts.key_id
        }
    )
    documents = [finding.to_dict() for finding in findings]
    state.add_whole(identity, [level, now_ms, keys, statement.to_dict(), documents])


def _stored_result(
    value: Any,  # noqa: ANN401
    level: str,
    now_ms: int,
    key_ring: KeyRing,
) -> tuple[PartitionStatement, list[Finding]] | None:
    """Restores a result that `_store_result` stored. Returns `None` if the level differs, if a
    private key is missing, or if the clock was set back since then, because timestamps of segments
    may now be in the future.
    """
    try:
        kept_level, kept_ms, keys, statement, findings = value
        if kept_level != level or kept_ms > now_ms:
            return None
        if any(not key or key != key_ring.fingerprint(key_id) for key_id, key in keys):
            return None
        return PartitionStatement.from_dict(statement), [Finding.from_dict(o) for o in findings]
    except (KeyError, TypeError, ValueError, SegmentFormatError):
        return None
