"""Every byte of a partition's segments, read once: checksums, offsets, epochs, indexes and
transactions; and of what is served, the counts and the digest of the completeness statement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kts_source.auditing.batches import rows_of, segment_tables
from kts_source.auditing.digest import PartDigest
from kts_source.auditing.index_checks import SegmentIndexes
from kts_source.auditing.place import is_archived
from kts_source.auditing.proven import LogProof
from kts_source.auditing.transactions import Transactions
from kts_source.errors import (
    CorruptSegmentError,
    ObjectChangedError,
    ObjectNotFoundError,
    TruncatedObjectError,
)
from kts_source.layout.remote_segment import IndexType
from kts_source.planning.lineage import SegmentRange, epoch_ranges
from segment_format.errors import SegmentFormatError
from segment_format.index.producer_snapshot import parse_producer_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kts_source.auditing.batches import BatchFacts
    from kts_source.auditing.file_facts import FileFacts
    from kts_source.auditing.place import Place
    from kts_source.auditing.report import Finding
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import PartitionLog
    from kts_source.read.fetch import ReadAhead
    from kts_source.read.segment_source import SegmentSource
    from segment_format.kernels.batch_scanner import BatchTable


@dataclass(frozen=True, slots=True)
class Proof:
    """What reading everything gave.

    Attributes:
        is_sound: Whether all that is served was read and is sound.
        records: Of the served offsets, without markers.
        batches: Of the served offsets, with those of markers.
        digest: See `PartitionStatement`.
    """

    is_sound: bool
    records: int
    batches: int
    digest: str
    findings: tuple[Finding, ...]


class PartitionReader:
    """Reads the segments of one partition.

    Args:
        place: Which.
        source: What reads.
        read_ahead: How much to have under way.
        max_batch_bytes: Bound on one batch.
        on_read: Told the original bytes of every segment that was read.
        on_proof: Told the proof of every segment that was read; `None` where it is at fault.
    """

    def __init__(
        self,
        place: Place,
        source: SegmentSource,
        read_ahead: ReadAhead,
        *,
        max_batch_bytes: int,
        on_read: Callable[[int], object] | None = None,
        on_proof: Callable[[RemoteSegment, LogProof | None], object] | None = None,
    ) -> None:
        self._place = place
        self._source = source
        self._read_ahead = read_ahead
        self._max_batch_bytes = max_batch_bytes
        self._on_read = on_read
        self._on_proof = on_proof
        self._digest = PartDigest()
        self._records = 0
        self._batches = 0
        self._next_offset = 0
        self._findings: list[Finding] = []
        self._has_faults = False  # of the segment read last

    def prove(
        self,
        log: PartitionLog,
        others: Sequence[RemoteSegment],
        facts: Mapping[str, FileFacts],
        proofs: Mapping[str, LogProof],
    ) -> Proof:
        """Reads what is served, in order, then all other segments.

        Args:
            log: The surviving log.
            others: Segments that serve nothing.
            facts: Side files of all of them, by key of the log object.
            proofs: What earlier audits have proven, likewise: it is not read again where it holds.
        """
        is_sound, stop = True, log.log_start
        opened: Mapping[int, int] = {}
        for span in log.ranges:
            if span.start != stop:
                opened = {}
            stop = span.stop
            proof = self._known(proofs, span, opened) or self._served(facts, span, opened)
            if proof is None:
                is_sound, opened = False, {}
                continue
            opened = proof.open_knowing(opened)
            if proof.batches:
                self._next_offset = proof.next_offset
            self._batches += proof.batches
            self._records += proof.records
            self._digest.add(proof.digest)
        for segment in others:
            if segment.objects.log.key not in proofs:
                self._other(facts, segment)
        return Proof(
            is_sound, self._records, self._batches, self._digest.text(), tuple(self._findings)
        )

    def _known(
        self, proofs: Mapping[str, LogProof], span: SegmentRange, opened: Mapping[int, int]
    ) -> LogProof | None:
        proof = proofs.get(span.segment.objects.log.key)
        # Only where the log start is in the segment, something lies before it.
        is_first = not self._batches and span.start > span.segment.start_offset
        wanted = span.start, span.stop
        if proof and proof.holds_for(wanted, self._next_offset, is_first, opened):
            return proof
        return None

    def _served(
        self, facts: Mapping[str, FileFacts], span: SegmentRange, opened: Mapping[int, int]
    ) -> LogProof | None:
        is_first = not self._batches and span.start > span.segment.start_offset
        counted = _Counted(span, self._next_offset, is_first=is_first)
        transactions = Transactions(opened)
        is_sound = self._segment(span.segment, facts, counted, transactions)
        proof = counted.proof(opened, transactions) if is_sound else None
        self._tell(span.segment, proof)
        return proof

    def _other(self, facts: Mapping[str, FileFacts], segment: RemoteSegment) -> None:
        is_sound = self._segment(segment, facts)
        nothing = _Counted(SegmentRange(segment, 0, 0), 0, is_first=False)
        self._tell(segment, nothing.proof({}, Transactions({})) if is_sound else None)

    def _tell(self, segment: RemoteSegment, proof: LogProof | None) -> None:
        if self._on_proof is not None:
            self._on_proof(segment, None if self._has_faults else proof)

    def _segment(
        self,
        segment: RemoteSegment,
        facts: Mapping[str, FileFacts],
        counted: _Counted | None = None,
        transactions: Transactions | None = None,
    ) -> bool:
        """Whether all of a segment's log is sound."""
        key = segment.objects.log.key
        if facts[key].is_closed or is_archived(segment.objects.log):
            return False
        before = len(self._findings)
        indexes = SegmentIndexes(self._place, segment, self._source)
        self._findings += indexes.findings
        own = len(indexes.findings)
        check = LogCheck(segment)
        failed = None
        try:
            for table in segment_tables(
                segment,
                self._source,
                self._read_ahead,
                max_batch_bytes=self._max_batch_bytes,
                start_offset=0 if counted is None else counted.span.start,
            ):
                see_all(table, check, indexes)
                if counted is not None and transactions is not None:
                    counted.see(table, transactions)
            indexes.finish()
        except SegmentFormatError as error:
            failed = "batch-invalid", str(error), error.offset
        except (CorruptSegmentError, TruncatedObjectError) as error:
            failed = "log-unreadable", str(error), None
        except (ObjectNotFoundError, ObjectChangedError) as error:
            failed = "object-gone", error.message, None
        if failed is not None:
            check.found.setdefault(failed[0], (check.next_offset, segment.stop_offset, failed[1]))
        for name, (start, stop, text) in check.found.items():
            self._findings.append(self._place.finding(name, start, stop, [key], text))
        if not check.found:  # side files disagree with a log that is not theirs
            if counted is not None and transactions is not None:
                _compare(counted.span, facts[key], transactions, indexes)
            self._findings += indexes.findings[own:]
        if self._on_read is not None:
            self._on_read(segment.objects.size_in_bytes)
        self._has_faults = len(self._findings) > before
        return not check.found


class _Counted:
    """The batches of a segment that are served.

    Args:
        span: What is served of it.
        counted_from: Batches that begin before it were counted already.
        is_first: Whether nothing was counted before.
    """

    def __init__(self, span: SegmentRange, counted_from: int, *, is_first: bool) -> None:
        self.span = span
        self._counted_from = counted_from
        self._is_first = is_first
        self._first_base = span.stop
        self._next_offset = counted_from
        self._digest = PartDigest()
        self._batches = 0
        self._records = 0

    def see(self, table: BatchTable, transactions: Transactions) -> None:
        """Counts the batches that are served, and follows their transactions."""
        is_before = table.base_offsets < self.span.stop
        is_inside = is_before & (table.last_offsets >= self.span.start)
        # In the first segment what lies before tells of transactions, too.
        is_first = self._is_first and not self._batches
        transactions.see(table, is_before if is_first else is_inside)
        inside = np.flatnonzero(is_inside)
        if len(inside):
            self._first_base = min(self._first_base, int(table.base_offsets[inside[0]]))
        # A log start inside a batch, of a later copy: both segments hold the batch.
        served = inside[table.base_offsets[inside] >= self._next_offset]
        if not len(served):
            return
        self._next_offset = int(table.last_offsets[served[-1]]) + 1
        self._digest.update(table.base_offsets[served], table.crcs[served])
        self._batches += len(served)
        is_data = ~table.are_control[served]
        self._records += int(table.records[served][is_data].sum())

    def proof(self, opened: Mapping[int, int], transactions: Transactions) -> LogProof:
        """What was counted, of a segment that is sound."""
        return LogProof(
            start=self.span.start,
            stop=self.span.stop,
            counted_from=self._counted_from,
            first_base=self._first_base,
            is_first=self._is_first,
            open_before=dict(opened),
            open_after=dict(transactions.open),
            own_after=dict(transactions.own),
            next_offset=self._next_offset,
            batches=self._batches,
            records=self._records,
            digest=self._digest.part(),
        )


def see_all(table: BatchTable, check: LogCheck, indexes: SegmentIndexes) -> None:
    """Checks the next batches of a segment: all at once, or one by one where something is wrong."""
    if check.fits(table) and indexes.fits(table):
        check.pass_by(table)
        indexes.pass_by(table)
        return
    for batch in rows_of(table):
        check.see(batch)
        indexes.see(batch)


def _compare(
    span: SegmentRange, facts: FileFacts, transactions: Transactions, indexes: SegmentIndexes
) -> None:
    """Compares side files with what the batches of a whole segment told."""
    segment = span.segment
    if span.stop != segment.stop_offset:
        return  # of a branch that died in it
    named = (
        ("aborted-not-indexed", transactions.missing_in),
        ("transactions-disagree", transactions.invented_by),
    )
    if facts.aborted is not None:
        for name, compare in named:
            if text := compare(facts.aborted):
                indexes.find(name, IndexType.TRANSACTION, text)
    if facts.open_after is not None:
        data = indexes.read(IndexType.PRODUCER_SNAPSHOT, "snapshot-invalid")
        if data and (text := transactions.against(parse_producer_snapshot(data))):
            indexes.find("snapshot-disagrees", IndexType.PRODUCER_SNAPSHOT, text)


class LogCheck:
    """What is wrong in the batches of one segment: of each kind the first place.

    Attributes:
        found: Kind to first offset, one past the last one, and what is wrong there.
        next_offset: One past the last batch seen.
    """

    def __init__(self, segment: RemoteSegment) -> None:
        self.found: dict[str, tuple[int, int, str]] = {}
        self.next_offset = segment.start_offset
        self._segment = segment
        self._epochs = tuple(epoch_ranges(segment))
        self._has_batch = False

    def fits(self, table: BatchTable) -> bool:
        """Whether nothing is wrong in the next batches."""
        if not len(table):
            return True
        segment, bases, lasts = self._segment, table.base_offsets, table.last_offsets
        least = self.next_offset if self._has_batch else segment.start_offset
        if (
            not table.are_sound.all()
            or bases[0] < least
            or (bases[1:] <= lasts[:-1]).any()
            or (segment.end_is_exact and lasts[-1] > segment.end_offset)
        ):
            return False
        told = table.leader_epochs
        return not any(
            ((told != epoch) & (told != -1) & (low <= bases) & (bases < high)).any()
            for epoch, low, high in self._epochs
        )

    def pass_by(self, table: BatchTable) -> None:
        """Goes on behind batches that fit."""
        if len(table):
            self._has_batch = True
            self.next_offset = max(self.next_offset, int(table.last_offsets[-1]) + 1)

    def see(self, batch: BatchFacts) -> None:
        """Checks the next batch."""
        segment, base, last = self._segment, batch.base_offset, batch.last_offset
        if not batch.is_sound:
            self._find("crc", batch, f"at byte {batch.position}")
        if base < segment.start_offset or (last > segment.end_offset and segment.end_is_exact):
            text = f"the segment holds [{segment.start_offset}, {segment.stop_offset})"
            whole = segment.start_offset, segment.stop_offset
            text = f"a batch of offsets [{base}, {last}]; {text}"
            self.found.setdefault("out-of-bounds", (*whole, text))
            return  # what follows is not behind it
        if self._has_batch and base < self.next_offset:
            text = f"a batch of offset {base} where {self.next_offset} is the least"
            self._find("offset-order", batch, text)
        else:
            owner = next((e for e, low, high in self._epochs if low <= base < high), None)
            if owner is not None and batch.leader_epoch not in (-1, owner):
                text = f"a batch of epoch {batch.leader_epoch}, where epoch {owner} is the leader's"
                self._find("epoch", batch, text)
        self._has_batch = True
        self.next_offset = max(self.next_offset, last + 1)

    def _find(self, name: str, batch: BatchFacts, text: str) -> None:
        self.found.setdefault(name, (batch.base_offset, batch.last_offset + 1, text))
