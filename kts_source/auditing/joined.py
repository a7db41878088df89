"""The findings of all steps of a partition put together, and its statement."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from kts_source.auditing.file_facts import NO_FACTS
from kts_source.auditing.kinds import Severity
from kts_source.auditing.report import PartitionStatement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.auditing.described import Described
    from kts_source.auditing.file_facts import FileFacts
    from kts_source.auditing.place import PartitionObjects, Place
    from kts_source.auditing.proof import Proof
    from kts_source.auditing.report import Finding
    from kts_source.auditing.served import Served
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import Hole


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
