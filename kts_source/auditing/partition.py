"""The audit of one partition, level by level.

The findings of all steps of a partition put together, and its statement.

A partition of which every segment is proven: the next audit takes its result as it is.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kts_source.auditing.index_checks import SegmentIndexes
from kts_source.auditing.kinds import BYTES, INDEXES, LISTING, Severity
from kts_source.auditing.place import is_archived
from kts_source.auditing.proof import PartitionReader, ProvenSegment
from kts_source.auditing.report import Finding, PartitionStatement
from kts_source.auditing.segment_checks import (
    NO_FACTS,
    Described,
    FileFacts,
    KnownFiles,
    KnownLog,
    clock_findings,
    described,
    duplicates,
    file_facts,
    half_segments,
    of_every_object,
    place_of,
)
from kts_source.auditing.served import served
from kts_source.auditing.state import NO_STATE, identity_of
from kts_source.errors import ObjectChangedError, ObjectNotFoundError
from kts_source.layout.aiven import LOG_SUFFIX
from kts_source.layout.local_tiered import LocalTieredLayout
from kts_source.layout.remote_segment import IndexType
from kts_source.read.read_settings import ReadSettings
from kts_source.read.segment_source import SegmentSource
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.auditing.place import PartitionObjects, Place
    from kts_source.auditing.proof import LogProof, Proof
    from kts_source.auditing.served import Served
    from kts_source.auditing.state import PartitionState
    from kts_source.keyring import KeyRing
    from kts_source.layout.layout import Layout, SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.lineage import Hole
    from kts_source.tier import Tier


def once(findings: Sequence[Finding]) -> list[Finding]:
    """Without empty objects of which something else tells more."""
    told = {key for one in findings if one.name != "empty-object" for key in one.objects}
    return [one for one in findings if one.name != "empty-object" or not told & {*one.objects}]


def with_end(
    one: Finding, explained: Sequence[tuple[int, int | None]], holes: Sequence[Hole]
) -> Finding:
    """A finding about a segment whose end nothing tells, up to where the next one begins that
    serves nothing, or the hole ends that it leaves.
    """
    start = one.start
    if start is None or one.stop is not None:
        return one
    hole = next((hole for hole in holes if hole.start <= start < hole.stop), None)
    if hole is None:
        return one
    following = min((base for base, _ in explained if base > start), default=hole.stop)
    return replace(one, stop=min(following, hole.stop))


def locked(
    place: Place, segments: Sequence[Described], facts: Mapping[str, FileFacts]
) -> list[Finding]:
    """Segments whose key is missing, those of a key together."""
    by_key: dict[str, list[RemoteSegment]] = defaultdict(list)
    for one in segments:
        if one.segment is not None:
            known = facts.get(one.segment.objects.log.key, NO_FACTS)
            if known.locked_by:
                by_key[known.locked_by].append(one.segment)
    return [
        place.finding(
            "key-missing",
            min(segment.start_offset for segment in locked),
            max(segment.stop_offset for segment in locked),
            [segment.objects.log.key for segment in locked],
            f"{len(locked)} segments are encrypted with key id {key_id!r}",
        )
        for key_id, locked in sorted(by_key.items())
    ]


def statement_of(
    place: Place,
    part: PartitionObjects,
    findings: Sequence[Finding],
    state: Served | None = None,
    proof: Proof | None = None,
) -> PartitionStatement:
    """What the report states of a partition."""
    of = place.topic, place.topic_id, place.partition
    listed = len(part.entries), sum(place.sizes.values())
    errors = any(one.severity is Severity.ERROR for one in findings)
    if state is None:
        return PartitionStatement(*of, None, None, None, *listed, not errors)
    log = state.log
    bounds = log.log_start, log.stop, state.stable
    if proof is None or not proof.is_sound or log.missing or not state.is_sure:
        return PartitionStatement(*of, *bounds, *listed, not errors)
    counted = (proof.records, proof.batches)
    return PartitionStatement(*of, *bounds, *listed, not errors, *counted, proof.digest)


def whole_identity(part: PartitionObjects) -> str:
    """What tells the objects of a partition from any others; empty where there are parts of
    segments, of which time may tell something else, or where objects have no versions.
    """
    if part.orphans:
        return ""
    digest = hashlib.blake2b(digest_size=20)
    for entry in part.entries:
        identity = identity_of(entry)
        if not identity:
            return ""
        digest.update(f"{entry.described_by} {identity}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def keep_result(
    state: PartitionState,
    identity: str,
    level: str,
    now_ms: int,
    segments: Iterable[ProvenSegment],
    statement: PartitionStatement,
    findings: Sequence[Finding],
) -> None:
    """Keeps what was found of a partition of which every segment is proven."""
    if any(one.name == "clock" for one in findings):  # the time goes on
        return
    keys = sorted({(one.key_id, one.opened_by) for one in segments if one.key_id})
    told = [list(astuple(one)) for one in findings]
    state.add_whole(identity, [level, now_ms, keys, list(astuple(statement)), told])


def kept_result(
    value: Any,  # noqa: ANN401
    level: str,
    now_ms: int,
    key_ring: KeyRing,
) -> tuple[PartitionStatement, list[Finding]] | None:
    """What `keep_result` has kept; `None` where it is of another level, or its keys are missing, or
    the clock was set back: what was dated in the past then may be in the future now.
    """
    try:
        kept_level, kept_ms, keys, statement, findings = value
        if kept_level != level or kept_ms > now_ms:
            return None
        if any(not key or key != key_ring.fingerprint(key_id) for key_id, key in keys):
            return None
        told = [_finding(*one) for one in findings]
        return PartitionStatement(*statement), told
    except (TypeError, ValueError, SegmentFormatError):
        return None


def _finding(  # as many as a finding has
    name: str,
    topic: str,
    topic_id: str,
    partition: int,
    start: int | None,
    stop: int | None,
    objects: Iterable[str],
    stored_bytes: int,
    detail: str,
    dollars_a_month: float,
) -> Finding:
    place = topic, topic_id, partition
    return Finding(name, *place, start, stop, tuple(objects), stored_bytes, detail, dollars_a_month)


_GROUPS: Final = 256
"""Of all partitions that are audited side by side: threads that are done early find another one."""
_GROUP_SEGMENTS: Final = 16
"""Segments that a thread reads one after the other: handing over takes longer than all else."""


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """Audits partitions, each by itself.

    Attributes:
        options: Of the audit; keys and bounds on memory and requests are of interest.
        level: How far to look.
        grace_ms: Copies that are younger may be under way.
        now_ms: The time in ms since 1970.
        tier: What is audited.
        layout: Of the tier.
        pool: Where segments are described side by side.
        on_read: Told the bytes of every segment that was read.
        side_by_side: How many partitions are audited at a time.
    """

    options: ScanOptions
    level: str
    grace_ms: int
    now_ms: int
    tier: Tier
    layout: Layout
    pool: Executor
    on_read: Callable[[int], object] | None
    side_by_side: int = 1

    def audit(
        self, part: PartitionObjects, state: PartitionState = NO_STATE
    ) -> tuple[PartitionStatement, list[Finding]]:
        """What is wrong with a partition, and what it serves.

        Args:
            part: Its objects.
            state: What was proven before, and takes what is proven now.

        Raises:
            StoreError: The store does not answer.
            KeyPrefixError: The topic's name is cut by the key prefix.
            InvalidOptionError: The state cannot be written.
        """
        if self.level == LISTING:
            place = place_of(part)
            findings = of_every_object(place, part, self._empty_logs(part))
            findings += duplicates(place, part)
            findings += self._half_segments(place, part, None)
            return statement_of(place, part, findings), findings
        key_ring = self.options.key_ring.loaded()
        identity = whole_identity(part) if state is not NO_STATE else ""
        kept = kept_result(state.whole(identity), self.level, self.now_ms, key_ring)
        if kept is not None:
            return kept
        place = place_of(part)
        listed = of_every_object(place, part, self._empty_logs(part))
        known = self._known(place, part, listed, key_ring, state)
        findings = [*known.findings]
        if self.level == INDEXES:
            findings += self._indexes(place, known, state)
        proof = self._proof(place, known, state) if self.level == BYTES else None
        if proof is not None:
            findings += proof.findings
        statement = statement_of(place, part, findings, known.state, proof)
        if identity and self._is_proven(part, known):
            of = self.level, self.now_ms, known.proven.values()
            keep_result(state, identity, *of, statement, findings)
        return statement, findings

    def _empty_logs(self, part: PartitionObjects) -> set[str]:
        """Returns the keys of logs without a byte that belong to segments without records."""
        found = set()
        for entry in part.entries:
            log = entry.object(LOG_SUFFIX)
            if log is None or log.size:
                continue
            try:
                if self.layout.describe(self.tier.store, entry).objects.size_in_bytes == 0:
                    found.add(log.key)
            except (SegmentFormatError, ObjectNotFoundError, ObjectChangedError):
                continue  # reported as an empty object, and by the levels that read more
        return found

    def _is_proven(self, part: PartitionObjects, known: _Known) -> bool:
        """Whether every segment is, as far as the level goes."""
        found = [known.proven.get(entry.described_by) for entry in part.entries]
        return all(
            one is not None
            and (self.level != INDEXES or one.has_indexes or one.log is not None)
            and (self.level != BYTES or one.log is not None)
            for one in found
        )

    def _known(
        self,
        place: Place,
        part: PartitionObjects,
        listed: Sequence[Finding],
        key_ring: KeyRing,
        state: PartitionState,
    ) -> _Known:
        """What manifests and side files tell, and all findings so far."""
        segments, facts, proven = self._read(place, part.entries, key_ring, state)
        damaged = [
            described(place, one.described, self.layout, self.tier.store, now_ms=self.now_ms)
            for one in part.orphans
            if one.described is not None
        ]
        readable = [one for one in segments if one.is_readable and one.segment is not None]
        broken = [one for one in segments if not one.is_readable or one.segment is None]
        findings = [*listed, *(found for one in (*segments, *damaged) for found in one.findings)]
        findings += [found for one in facts.values() for found in one.findings]
        findings += locked(place, readable, facts)
        facts |= self._lineage_of(place, [*broken, *damaged], key_ring)
        explained: list[tuple[int, int | None]] = [
            (one.entry.base_offset, one.stop) for one in (*broken, *damaged)
        ]
        explained += [
            (one.base_offset, None)
            for one in part.orphans
            if one.base_offset is not None and one.described is None
        ]
        source = SegmentSource(self.tier, key_ring)
        served_now = served(
            place,
            readable,
            [one.segment for one in (*broken, *damaged) if one.segment is not None],
            explained,
            KnownFiles(facts, source, max_batch_bytes=self.options.max_batch_bytes),
        )
        stops = {one.entry.described_by: one.stop for one in damaged}
        doubted = {id(segment) for segment in served_now.in_doubt}
        in_doubt = {one.entry.described_by for one in damaged if id(one.segment) in doubted}
        known_log = KnownLog(served_now.log.missing, stops, in_doubt)
        findings += self._half_segments(place, part, known_log)
        findings = [with_end(one, explained, served_now.log.missing) for one in findings]
        whole = tuple(one.segment for one in readable if one.segment is not None)
        entries = {id(one.segment): one.entry for one in readable}
        found = tuple(once([*findings, *served_now.findings]))
        return _Known(whole, entries, facts, served_now, source, proven, found)

    def _read(
        self,
        place: Place,
        entries: Sequence[SegmentEntry],
        key_ring: KeyRing,
        state: PartitionState,
    ) -> tuple[list[Described], dict[str, FileFacts], dict[str, ProvenSegment]]:
        """The segments, the side files of the readable ones by key of the log object, and what is
        proven by key of the manifest. Those of which nothing is known are read side by side.
        """

        def read(group: Sequence[SegmentEntry]) -> list[tuple[Described, FileFacts | None]]:
            return [self._segment(place, entry, key_ring) for entry in group]

        proven: dict[str, ProvenSegment] = {}
        for entry in entries:
            known = state.segment(entry)
            if known is not None and known.opens_with(key_ring):
                proven[entry.described_by] = known
        missing = [entry for entry in entries if entry.described_by not in proven]
        size = min(max(len(missing) * self.side_by_side // _GROUPS, 1), _GROUP_SEGMENTS)
        groups = [missing[at : at + size] for at in range(0, len(missing), size)]
        fresh = {}
        facts: dict[str, FileFacts] = {}
        for group in self.pool.map(read, groups):
            added = []
            for one, files in group:
                fresh[one.entry.described_by] = one
                if one.segment is None or files is None:
                    continue
                facts[one.segment.objects.log.key] = files
                sound = files.are_sound and not files.findings
                if sound and all(found.name == "clock" for found in one.findings):
                    now = ProvenSegment(one.segment, files)
                    now = replace(now, opened_by=key_ring.fingerprint(now.key_id))
                    proven[one.entry.described_by] = now
                    added.append((one.entry, now))
            state.add_segments(added)
        segments = []
        for entry in entries:
            if entry.described_by in fresh:
                segments.append(fresh[entry.described_by])
                continue
            known = proven[entry.described_by]
            clock = clock_findings(place, known.segment, entry, self.now_ms)
            segments.append(Described(entry, known.segment, True, tuple(clock)))
            facts[known.segment.objects.log.key] = known.files
        return segments, facts, proven

    def _segment(
        self, place: Place, entry: SegmentEntry, key_ring: KeyRing
    ) -> tuple[Described, FileFacts | None]:
        """A segment, and its side files if it is readable."""
        one = described(place, entry, self.layout, self.tier.store, now_ms=self.now_ms)
        if one.segment is None or not one.is_readable:
            return one, None
        if _are_archived(one.segment):
            return one, NO_FACTS
        return one, file_facts(place, one.segment, self.tier, key_ring)

    def _proof(self, place: Place, known: _Known, state: PartitionState) -> Proof:
        def keep(segment: RemoteSegment, log: LogProof | None) -> None:
            entry = known.entries[id(segment)]
            proven = known.proven.get(entry.described_by)
            if proven is not None:
                # What was proven before and is at fault now is not proven any more.
                has_indexes = proven.has_indexes and log is not None
                proven = replace(proven, log=log, has_indexes=has_indexes)
                if proven != known.proven[entry.described_by]:
                    known.proven[entry.described_by] = proven
                    state.add_segments([(entry, proven)])

        reader = PartitionReader(
            place,
            known.source,
            ReadSettings.of(self.options).read_ahead,
            max_batch_bytes=self.options.max_batch_bytes,
            on_read=self.on_read,
            on_proof=keep,
        )
        log = known.state.log
        if not known.state.is_sure:  # each segment for itself: the next may be of another branch
            log = replace(log, ranges=())
        serving = {id(span.segment) for span in log.ranges}
        others = [segment for segment in known.segments if id(segment) not in serving]
        proofs = {
            one.segment.objects.log.key: one.log
            for one in known.proven.values()
            if one.log is not None
        }
        return reader.prove(log, others, known.facts, proofs)

    def _half_segments(
        self,
        place: Place,
        part: PartitionObjects,
        known: KnownLog | None,
    ) -> list[Finding]:
        return half_segments(
            place,
            part,
            known,
            now_ms=self.now_ms,
            grace_ms=self.grace_ms,
            has_manifests=not isinstance(self.layout, LocalTieredLayout),
        )

    def _lineage_of(
        self, place: Place, damaged: Sequence[Described], key_ring: KeyRing
    ) -> dict[str, FileFacts]:
        """The side files of damaged segments that have a checkpoint: the newest tells the lineage,
        even without its log. What else is wrong with them does not matter.
        """
        found = {}
        for one in damaged:
            segment = one.segment
            if segment is None or _are_archived(segment):
                continue
            if IndexType.LEADER_EPOCH in segment.objects.indexes:
                facts = file_facts(place, segment, self.tier, key_ring)
                found[segment.objects.log.key] = facts
        return found

    def _indexes(self, place: Place, known: _Known, state: PartitionState) -> list[Finding]:
        found: list[Finding] = []
        for segment in known.segments:
            entry = known.entries[id(segment)]
            proven = known.proven.get(entry.described_by)
            if proven is not None and (proven.has_indexes or proven.log is not None):
                continue
            if known.facts[segment.objects.log.key].is_closed:
                continue
            indexes = SegmentIndexes(place, segment, known.source)
            if not is_archived(segment.objects.log):
                indexes.look_up_last(self.options.max_batch_bytes)
            found += indexes.findings
            if proven is not None and not indexes.findings and not is_archived(segment.objects.log):
                known.proven[entry.described_by] = replace(proven, has_indexes=True)
                state.add_segments([(entry, known.proven[entry.described_by])])
        return found


@dataclass(frozen=True, slots=True)
class _Known:
    """A partition as its manifests and side files tell it.

    Attributes:
        segments: Those whose objects are whole, as far as names and sizes tell.
        entries: Their listing, by `id`.
        facts: Their side files, by key of the log object.
        state: What is served.
        source: Reads more of it.
        proven: What is proven of whole segments, by key of the manifest.
    """

    segments: tuple[RemoteSegment, ...]
    entries: Mapping[int, SegmentEntry]
    facts: Mapping[str, FileFacts]
    state: Served
    source: SegmentSource
    proven: dict[str, ProvenSegment]
    findings: tuple[Finding, ...]


def _are_archived(segment: RemoteSegment) -> bool:
    """Whether side files of a segment must be restored before they can be read."""
    return any(is_archived(stored.source) for stored in segment.objects.indexes.values())
