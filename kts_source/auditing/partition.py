"""The audit of one partition, level by level."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kts_source.auditing.described import Described, described
from kts_source.auditing.file_facts import NO_FACTS, FileFacts, KnownFiles, file_facts
from kts_source.auditing.index_checks import SegmentIndexes
from kts_source.auditing.kinds import BYTES, INDEXES, LISTING, Severity
from kts_source.auditing.listed import (
    KnownLog,
    duplicates,
    half_segments,
    of_every_object,
    place_of,
)
from kts_source.auditing.place import is_archived
from kts_source.auditing.proof import PartitionReader
from kts_source.auditing.report import PartitionStatement
from kts_source.auditing.served import served
from kts_source.layout.remote_segment import IndexType
from kts_source.read.read_settings import ReadSettings
from kts_source.read.segment_source import SegmentSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.auditing.place import Place
    from kts_source.auditing.proof import Proof
    from kts_source.auditing.report import Finding
    from kts_source.auditing.served import Served
    from kts_source.keyring import KeyRing
    from kts_source.layout.layout import Layout, SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.options import ScanOptions
    from kts_source.planning.lineage import Hole
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.tier import Tier


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
    """

    options: ScanOptions
    level: str
    grace_ms: int
    now_ms: int
    tier: Tier
    layout: Layout
    pool: Executor
    on_read: Callable[[int], object] | None

    def audit(self, part: ListedPartition) -> tuple[PartitionStatement, list[Finding]]:
        """What is wrong with a partition, and what it serves.

        Raises:
            StoreError: The store does not answer.
            KeyPrefixError: The topic's name is cut by the key prefix.
        """
        place = place_of(part)
        findings = of_every_object(place, part)
        if self.level == LISTING:
            findings += duplicates(place, part)
            findings += self._half_segments(place, part, None)
            return _statement(place, part, findings), findings
        known = self._known(place, part, findings)
        findings = [*known.findings]
        if self.level == INDEXES:
            findings += self._indexes(place, known)
        proof = self._proof(place, known) if self.level == BYTES else None
        if proof is not None:
            findings += proof.findings
        return _statement(place, part, findings, known.state, proof), findings

    def _known(self, place: Place, part: ListedPartition, listed: Sequence[Finding]) -> _Known:
        """What manifests and side files tell, and all findings so far."""
        segments = self._described(place, [*part.entries])
        damaged = self._described(
            place, [one.described for one in part.orphans if one.described is not None]
        )
        readable = [one for one in segments if one.is_readable and one.segment is not None]
        broken = [one for one in segments if not one.is_readable or one.segment is None]
        key_ring = self.options.key_ring.loaded()
        facts = self._facts(place, readable, key_ring)
        findings = [*listed, *(found for one in (*segments, *damaged) for found in one.findings)]
        findings += [found for one in facts.values() for found in one.findings]
        findings += _locked(place, readable, facts)
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
        state = served(
            place,
            readable,
            [one.segment for one in (*broken, *damaged) if one.segment is not None],
            explained,
            KnownFiles(facts, source, max_batch_bytes=self.options.max_batch_bytes),
        )
        stops = {one.entry.described_by: one.stop for one in damaged}
        doubted = {id(segment) for segment in state.in_doubt}
        in_doubt = {one.entry.described_by for one in damaged if id(one.segment) in doubted}
        findings += self._half_segments(place, part, KnownLog(state.log.holes, stops, in_doubt))
        findings = [_with_end(one, explained, state.log.holes) for one in findings]
        whole = tuple(one.segment for one in readable if one.segment is not None)
        return _Known(whole, facts, state, source, tuple(_once([*findings, *state.findings])))

    def _proof(self, place: Place, known: _Known) -> Proof:
        reader = PartitionReader(
            place,
            known.source,
            ReadSettings.of(self.options).read_ahead,
            max_batch_bytes=self.options.max_batch_bytes,
            on_read=self.on_read,
        )
        log = known.state.log
        if not known.state.is_sure:  # each segment for itself: the next may be of another branch
            log = replace(log, ranges=())
        serving = {id(span.segment) for span in log.ranges}
        others = [segment for segment in known.segments if id(segment) not in serving]
        return reader.prove(log, others, known.facts)

    def _half_segments(
        self,
        place: Place,
        part: ListedPartition,
        known: KnownLog | None,
    ) -> list[Finding]:
        return half_segments(place, part, known, now_ms=self.now_ms, grace_ms=self.grace_ms)

    def _described(self, place: Place, entries: Sequence[SegmentEntry]) -> list[Described]:
        return described(
            place, entries, self.layout, self.tier.store, self.pool, now_ms=self.now_ms
        )

    def _facts(
        self, place: Place, segments: Sequence[Described], key_ring: KeyRing
    ) -> dict[str, FileFacts]:
        """The side files of the readable segments, by key of the log object."""

        def of(segment: RemoteSegment) -> FileFacts:
            if _are_archived(segment):
                return NO_FACTS
            return file_facts(place, segment, self.tier, key_ring)

        readable = [one.segment for one in segments if one.segment is not None]
        keys = [segment.objects.log.key for segment in readable]
        return dict(zip(keys, self.pool.map(of, readable), strict=True))

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

    def _indexes(self, place: Place, known: _Known) -> list[Finding]:
        found: list[Finding] = []
        for segment in known.segments:
            if known.facts[segment.objects.log.key].is_closed:
                continue
            indexes = SegmentIndexes(place, segment, known.source)
            if not is_archived(segment.objects.log):
                indexes.look_up_last(self.options.max_batch_bytes)
            found += indexes.findings
        return found


@dataclass(frozen=True, slots=True)
class _Known:
    """A partition as its manifests and side files tell it.

    Attributes:
        segments: Those whose objects are whole, as far as names and sizes tell.
        facts: Their side files, by key of the log object.
        state: What is served.
        source: Reads more of it.
    """

    segments: tuple[RemoteSegment, ...]
    facts: Mapping[str, FileFacts]
    state: Served
    source: SegmentSource
    findings: tuple[Finding, ...]


def _are_archived(segment: RemoteSegment) -> bool:
    """Whether side files of a segment must be restored before they can be read."""
    return any(is_archived(stored.source) for stored in segment.objects.indexes.values())


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Without empty objects of which something else tells more."""
    told = {key for one in findings if one.name != "empty-object" for key in one.objects}
    return [one for one in findings if one.name != "empty-object" or not told & {*one.objects}]


def _with_end(
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


def _locked(
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


def _statement(
    place: Place,
    part: ListedPartition,
    findings: Sequence[Finding],
    state: Served | None = None,
    proof: Proof | None = None,
) -> PartitionStatement:
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
