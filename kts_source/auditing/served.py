"""Which offsets a partition serves, from the same code that plans a scan, and what that shows:
holes, dead branches, overlaps, what lies below the log start, transactions that do not end.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from kts_source.auditing.segment_checks import NO_FACTS
from kts_source.layout.remote_segment import IndexType
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.auditing.place import Place
    from kts_source.auditing.report import Finding
    from kts_source.auditing.segment_checks import Described, FileFacts, KnownFiles
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import Hole, PartitionLog

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Served:
    """What a partition serves.

    Attributes:
        log: The surviving log.
        stable: Where `read_committed` ends; `None` where side files do not tell.
        in_doubt: Damaged segments of which the log may be: a scan refuses to read any.
        is_sure: Whether the newest segment tells the lineage; if not, segments that follow each
            other may be of different branches.
    """

    log: PartitionLog
    stable: int | None
    in_doubt: tuple[RemoteSegment, ...]
    is_sure: bool
    findings: tuple[Finding, ...]


def served(
    place: Place,
    readable: Sequence[Described],
    damaged: Sequence[RemoteSegment],
    explained: Sequence[tuple[int, int | None]],
    files: KnownFiles,
) -> Served:
    """The surviving log of a partition.

    Args:
        place: Which.
        readable: Segments whose objects are whole, as far as names and sizes tell.
        damaged: Segments that serve nothing: of which objects are missing, or are not what the
            manifest says.
        explained: First offsets and, where known, ends of all that serves nothing: their own
            findings tell of them, so no hole does.
        files: The side files of the readable ones.
    """
    facts = files.facts
    segments = [one.segment for one in readable if one.segment is not None]
    told = (*segments, *damaged)
    with_lineage = [s for s in told if facts.get(s.objects.log.key, NO_FACTS).epochs]
    newest = newest_segment(with_lineage) if with_lineage else None
    lineage = newest and facts[newest.objects.log.key].epochs
    # A segment whose own checkpoint is bad still tells the epochs of its offsets.
    known = {id(segment) for segment in with_lineage}
    untold = [segment for segment in segments if id(segment) not in known]
    log = partition_log(segments, with_epochs(lineage or (), untold), damaged)
    first = min((one.start_offset for one in segments), default=None) if lineage else None
    in_doubt = with_unknown_epoch(damaged, last_epoch(newest) if newest else -1, first)
    with_file = [one for one in told if IndexType.LEADER_EPOCH in one.objects.indexes]
    is_sure = not in_doubt and bool(with_file) and newest_segment(with_file) is newest
    contradictions = _contradictions(place, log, newest, segments, files)
    is_sure = is_sure and not contradictions
    findings = [*contradictions, *_holes(place, log, explained), *_gaps(place, log, explained)]
    findings += _unconfirmed_start(place, log, newest, segments, files)
    skipped = _skipped(place, log, {id(one.segment): one for one in readable})
    # Their advice is to delete, so they need a lineage that nothing contradicts.
    findings += [one for one in skipped if not contradictions or one.name == "duplicate-upload"]
    sound = all(facts[span.segment.objects.log.key].are_sound for span in log.ranges)
    stable = None
    if log.ranges and sound and is_sure:
        findings += _broken_chain(place, log, facts)
        decisions = decide(log, log.log_start, log.stop, files)
        stable = decisions.stop
        findings += [
            _undecided(place, log, txn.producer_id, txn.first_offset) for txn in decisions.undecided
        ]
    elif not log.ranges:
        stable = log.log_start
    return Served(log, stable, tuple(in_doubt), is_sure, tuple(findings))


def _contradictions(
    place: Place,
    log: PartitionLog,
    newest: RemoteSegment | None,
    segments: Sequence[RemoteSegment],
    files: KnownFiles,
) -> list[Finding]:
    """Finds what contradicts the newest checkpoint, in one finding."""
    if newest is None:
        return []
    lineage = files.facts[newest.objects.log.key].epochs or ()
    dropped = dropped_segments(log, lineage)
    text = contradiction(log, lineage, newest, segments, files)
    if text is None:  # no segment is dropped, or rightly so
        others = (files.facts[segment.objects.log.key].epochs or () for segment in segments)
        differences = (difference(lineage, entries, starts=False) for entries in others)
        text = next((one for one in differences if one is not None), None)
        if text is None:
            return []
        text = f"the checkpoints of two segments differ: {text}"
    indexes = newest.objects.indexes
    keys = [indexes[IndexType.LEADER_EPOCH].source.key]
    keys += [segment.objects.log.key for segment in dropped if segment is not newest]
    spans = [(one.start_offset, one.stop_offset) for one in dropped] or [(log.log_start, log.stop)]
    start, stop = min(low for low, _ in spans), max(high for _, high in spans)
    return [place.finding("lineage-disagrees", start, stop, keys, text)]


def _unconfirmed_start(
    place: Place,
    log: PartitionLog,
    newest: RemoteSegment | None,
    segments: Sequence[RemoteSegment],
    files: KnownFiles,
) -> Iterator[Finding]:
    """Finds rows of the first segment that is served, which are not served because one checkpoint
    says that the log starts above them. Whole segments below have findings of their own.
    """
    if newest is None or not log.ranges:
        return
    first = log.ranges[0].segment.start_offset
    lineage = files.facts[newest.objects.log.key].epochs or ()
    deleted = unconfirmed_start(lineage, newest, segments, files)
    if deleted is not None and first < deleted[1]:
        text = f"the log starts at offset {deleted[1]} for this checkpoint only"
        keys = [newest.objects.indexes[IndexType.LEADER_EPOCH].source.key]
        yield place.finding("log-start-unconfirmed", first, deleted[1], keys, text)


def _holes(
    place: Place, log: PartitionLog, explained: Sequence[tuple[int, int | None]]
) -> Iterator[Finding]:
    """What of the holes nothing explains."""
    for hole in log.holes:
        inside = sorted(
            (base, hole.stop if stop is None else stop, stop is None)
            for base, stop in explained
            if base < hole.stop and (hole.start <= base if stop is None else stop > hole.start)
        )
        position = hole.start
        for number, (base, stop, is_guess) in enumerate(inside):
            if is_guess and number + 1 < len(inside):  # it ends where the next begins, or before
                stop = inside[number + 1][0]
            if position < base:
                yield _hole(place, hole, position, base)
            position = max(position, stop)
        if position < hole.stop:
            yield _hole(place, hole, position, hole.stop)


def _hole(place: Place, hole: Hole, start: int, stop: int) -> Finding:
    around = [one.objects.log.key for one in (hole.before, hole.after) if one is not None]
    return place.finding("hole", start, stop, around, f"{hole.between}: {stop - start} offsets")


def _gaps(
    place: Place, log: PartitionLog, explained: Sequence[tuple[int, int | None]]
) -> Iterator[Finding]:
    for gap in log.unverifiable:
        if any(gap.start <= base < gap.stop for base, _ in explained):
            continue
        around = [one.objects.log.key for one in (gap.before, gap.after) if one is not None]
        yield place.finding("unsure-gap", gap.start, gap.stop, around, gap.between)


_SKIPPED = {BELOW_LOG_START: "below-log-start", COVERED: "overlap", DEAD_BRANCH: "dead-branch"}


def _skipped(
    place: Place, log: PartitionLog, entries: Mapping[int, Described]
) -> Iterator[Finding]:
    served_as = {(span.segment.start_offset, span.segment.stop_offset) for span in log.ranges}
    for one in log.skipped:
        segment = one.segment
        name = _SKIPPED.get(one.reason)
        if name is None:  # the part of the first segment below the log start: as usual
            continue
        if name == "overlap" and (segment.start_offset, segment.stop_offset) in served_as:
            name = "duplicate-upload"
        keys = [info.key for _, info in entries[id(segment)].entry.objects]
        yield place.of_segment(name, segment, keys, one.reason)
    # Of a branch that lives only up to an epoch's border, the rest is dead.
    for span in log.ranges:
        segment = span.segment
        owner = epoch_at(log.lineage, span.stop)
        if span.stop < segment.stop_offset and owner != epoch_at(segment.leader_epochs, span.stop):
            keys = [info.key for _, info in entries[id(segment)].entry.objects]
            text = f"offsets from {span.stop} on are of an epoch that lost them"
            yield place.finding("dead-branch", span.stop, segment.stop_offset, keys, text)


def _broken_chain(
    place: Place, log: PartitionLog, facts: Mapping[str, FileFacts]
) -> Iterator[Finding]:
    """Snapshots and transaction indexes that know of a transaction from before their segment which
    the snapshot before does not have open.
    """
    for before, after in pairwise(log.ranges):
        whole = before.stop == before.segment.stop_offset
        if not whole or before.stop != after.start or after.start != after.segment.start_offset:
            continue
        start = after.start
        opened = facts[before.segment.objects.log.key].open_after or ()
        known = {(entry.producer_id, entry.current_txn_first_offset) for entry in opened}
        here = facts[after.segment.objects.log.key]
        told = {(e.producer_id, e.current_txn_first_offset) for e in here.open_after or ()}
        told |= {(txn.producer_id, txn.first_offset) for txn in here.aborted or ()}
        unknown = sorted(pair for pair in told - known if pair[1] < start)
        if unknown:
            producer, first = unknown[0]
            keys = [
                span.segment.objects.indexes[kind].source.key
                for span in (before, after)
                for kind in list(span.segment.objects.indexes)[:1]
            ]
            text = (
                f"producer {producer} has a transaction open since offset {first}, which was not"
                f" open at offset {start} for the snapshot before"
            )
            yield place.finding(
                "snapshot-disagrees",
                before.segment.start_offset,
                after.segment.stop_offset,
                keys,
                text,
            )


def _undecided(place: Place, log: PartitionLog, producer: int, first: int) -> Finding:
    began = next((span.segment for span in log.ranges if span.start <= first < span.stop), None)
    hangs = began is not None and _age_ms(began, log.ranges[-1].segment) > _DAY_MS
    keys = [] if began is None else [began.objects.log.key]
    text = f"producer {producer} has a transaction open since offset {first}"
    name = "hanging-transaction" if hangs else "open-transaction"
    return place.finding(name, first, log.stop, keys, text)


def _age_ms(began: RemoteSegment, newest: RemoteSegment) -> int:
    """How much later than one segment another was copied, or is dated where copies are not."""
    if began.event_timestamp_ms is not None and newest.event_timestamp_ms is not None:
        return newest.event_timestamp_ms - began.event_timestamp_ms
    return newest.max_timestamp_ms - began.max_timestamp_ms
