"""Every byte of a partition's segments, read once: checksums, offsets, epochs, indexes and
transactions; and of what is served, the counts and the digest of the completeness statement.

The digest of what a partition serves, in parts that can be put together.

Batches are taken together whose base offsets divided by 4,096 are the same. Of each such block in
order, SHA-256 is taken over its batches: base offset (int64) and stored CRC (uint32), big-endian.
The digest is the sum of these numbers modulo 2^256. So a segment's part is one number and the
batches of the two blocks that may go on in the segments around it.

Transactions as batch headers tell them, against transaction indexes and producer snapshots.

Headers tell all of a transaction only where they were read from its beginning on: what began below
the first offset that was read is not judged. Compaction may have taken batches away, never the
marker of a transaction of which data is left; so an index may know of more than the headers, and
an entry may begin earlier, as long as no other marker of the producer lies between.

What was proven of a segment, as a value and in JSON's types.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.auditing.index_checks import SegmentIndexes, rows_of, segment_tables
from kts_source.auditing.place import is_archived
from kts_source.auditing.segment_checks import FileFacts
from kts_source.errors import (
    CorruptSegmentError,
    ObjectChangedError,
    ObjectNotFoundError,
    TruncatedObjectError,
)
from kts_source.layout.remote_segment import IndexType, ObjectRef, segment_facts, segment_from_facts
from kts_source.planning.lineage import MAX_OFFSET, SegmentRange, epoch_ranges
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import EpochEntry
from segment_format.index.producer_snapshot import ProducerStateEntry, parse_producer_snapshot
from segment_format.index.transaction_index import AbortedTxn
from segment_format.record.control_record import ControlRecordType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from kts_source.auditing.index_checks import BatchFacts
    from kts_source.auditing.place import Place
    from kts_source.auditing.report import Finding
    from kts_source.keyring import KeyRing
    from kts_source.layout.layout import SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import PartitionLog
    from kts_source.read.fetch import ReadAhead
    from kts_source.read.segment_source import SegmentSource
    from segment_format.kernels.batch_scanner import BatchTable


_CHAINED: Final = np.dtype([("base_offset", ">i8"), ("crc", ">u4")])
_BLOCK_BITS: Final = 12
_MODULUS: Final = 1 << 256


@dataclass(frozen=True, slots=True)
class DigestPart:
    """Of neighbouring batches.

    Attributes:
        first: The batches of the first block; empty where there are none.
        last: The batches of the last block; empty where it is the first.
        between: The sum over the blocks between them.
    """

    first: bytes
    last: bytes
    between: int


class PartDigest:
    """Adds batches, and parts, in order."""

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._open = bytearray()
        self._block: int | None = None
        self._sum = 0

    def update(self, base_offsets: NDArray[np.int64], crcs: NDArray[np.int64]) -> None:
        """Adds batches; base offsets ascend."""
        if not len(base_offsets):
            return
        chained = np.empty(len(base_offsets), _CHAINED)
        chained["base_offset"], chained["crc"] = base_offsets, crcs
        data = chained.tobytes()
        blocks = base_offsets >> _BLOCK_BITS
        cuts = np.flatnonzero(blocks[1:] != blocks[:-1]) + 1
        starts = [0, *cuts.tolist()]
        for start, stop in zip(starts, [*starts[1:], len(blocks)], strict=True):
            part = data[start * _CHAINED.itemsize : stop * _CHAINED.itemsize]
            self._add(int(blocks[start]), part)

    def add(self, part: DigestPart) -> None:
        """Adds what another one has seen."""
        for data in (part.first, part.last):
            if data:
                self._add(int.from_bytes(data[:8], "big", signed=True) >> _BLOCK_BITS, data)
        self._sum += part.between

    def _add(self, block: int, data: bytes) -> None:
        if block != self._block:
            self._close()
            self._block = block
        self._open += data

    def _close(self) -> None:
        if self._block is not None:
            if self._first is None:
                self._first = bytes(self._open)
            else:
                self._sum += _number(self._open)
        self._open.clear()

    def part(self) -> DigestPart:
        """All of it, to be added to another one."""
        if self._first is None:
            return DigestPart(bytes(self._open), b"", 0)
        return DigestPart(self._first, bytes(self._open), self._sum % _MODULUS)

    def text(self) -> str:
        """The digest in hex."""
        part = self.part()
        edges = sum(_number(data) for data in (part.first, part.last) if data)
        return f"{(part.between + edges) % _MODULUS:064x}"


def _number(data: bytes | bytearray) -> int:
    return int.from_bytes(hashlib.sha256(data).digest(), "big")


class Transactions:
    """Follows the transactions of a segment.

    Args:
        open_before: Producer id to first offset of the transactions known to be open at its begin.
    """

    def __init__(self, open_before: Mapping[int, int]) -> None:
        self._open = dict(open_before)
        self._own: dict[int, int] = {}
        self._seen_from = MAX_OFFSET
        self._markers: dict[int, int] = {}
        self._aborted: list[tuple[int, int | None, int]] = []
        self._aborted_at: dict[int, int] = {}
        self._last_data: dict[int, int] = {}

    @property
    def open(self) -> Mapping[int, int]:
        """The same after the batches seen so far."""
        return self._open

    @property
    def own(self) -> Mapping[int, int]:
        """What would be open if nothing had been known to be before."""
        return self._own

    def see(self, table: BatchTable, wanted: NDArray[np.bool_]) -> None:
        """Takes the wanted rows of the next batches into account."""
        if not wanted.any():
            return
        self._seen_from = min(self._seen_from, int(table.base_offsets[wanted].min()))
        first = 0
        for row in sorted(table.markers):
            if wanted[row]:
                self._see_data(table, wanted, first, row)
                self._see_marker(table, row)
                first = row + 1
        self._see_data(table, wanted, first, len(table))

    def _see_data(
        self, table: BatchTable, wanted: NDArray[np.bool_], first: int, stop: int
    ) -> None:
        """Rows [first, stop), between which no transaction ends."""
        rows = first + np.flatnonzero(wanted[first:stop] & ~table.are_control[first:stop])
        producers = table.producer_ids[rows]
        # Of each producer its last row.
        known, back = np.unique(producers[::-1], return_index=True)
        lasts = table.last_offsets[rows][::-1][back]
        for producer, last in zip(known.tolist(), lasts.tolist(), strict=True):
            if producer >= 0:
                self._last_data[producer] = last
        of_transactions = rows[table.are_transactional[rows]]
        known, at = np.unique(table.producer_ids[of_transactions], return_index=True)
        bases = table.base_offsets[of_transactions][at]
        for producer, base in zip(known.tolist(), bases.tolist(), strict=True):
            self._open.setdefault(producer, base)
            self._own.setdefault(producer, base)

    def _see_marker(self, table: BatchTable, row: int) -> None:
        producer, base = int(table.producer_ids[row]), int(table.base_offsets[row])
        first = self._open.pop(producer, None)
        self._own.pop(producer, None)
        if table.markers[row] is ControlRecordType.ABORT:
            self._aborted_at[base] = producer
            self._aborted.append((producer, first, base))
        self._markers[producer] = base

    def missing_in(self, index: Iterable[AbortedTxn]) -> str:
        """What a transaction index lacks of the abort markers seen in its segment, in words."""
        known = {txn.last_offset: txn for txn in index}
        for producer, first, marker in self._aborted:
            if first is None:  # without data, as far as one sees
                continue
            entry = known.get(marker)
            if entry is None or entry.producer_id != producer or entry.first_offset > first:
                return (
                    f"producer {producer} has data from offset {first} on, aborted by a marker at"
                    f" offset {marker}"
                )
        return ""

    def invented_by(self, index: Iterable[AbortedTxn]) -> str:
        """What a transaction index has without an abort marker in its segment, in words."""
        for txn in index:
            is_seen = txn.last_offset >= self._seen_from
            if is_seen and self._aborted_at.get(txn.last_offset) != txn.producer_id:
                return (
                    f"there is no abort marker of producer {txn.producer_id} at offset"
                    f" {txn.last_offset}"
                )
        return ""

    def against(self, snapshot: Iterable[ProducerStateEntry]) -> str:
        """Where the snapshot of the segment's end says something else, in words."""
        told = {}
        for entry in snapshot:
            first, producer = entry.current_txn_first_offset, entry.producer_id
            if first >= 0:
                told[producer] = first
                if self._markers.get(producer, -1) > first:
                    return (
                        f"the transaction of producer {producer} from offset {first} on has ended"
                    )
            seen = self._last_data.get(producer, -1)
            if 0 <= entry.last_offset < seen:
                return (
                    f"producer {producer} ends at offset {entry.last_offset}, but has a batch up to"
                    f" {seen}"
                )
        for producer, first in self._open.items():
            if told.get(producer, first + 1) > first:
                return f"the transaction of producer {producer} from offset {first} on is not in it"
        return ""


@dataclass(frozen=True, slots=True)
class LogProof:
    """Every batch of a segment was read and is sound, and so are all its side files.

    Attributes:
        start: First served offset of the segment, inclusive.
        stop: One past the last; `start` where it serves nothing.
        counted_from: Batches that begin before it were counted in the segment before.
        first_base: Base offset of the first batch that holds served offsets; `stop` if none does.
        is_first: Whether nothing was served before it, though the segment begins earlier.
        open_before: Producer id to first offset of the transactions known to be open at its begin.
        open_after: The same at its end.
        own_after: The same if none had been known at its begin.
        next_offset: One past the last batch counted up to its end.
        batches: Counted ones.
        records: Counted ones.
        digest: Of the counted batches.
    """

    start: int
    stop: int
    counted_from: int
    first_base: int
    is_first: bool
    open_before: Mapping[int, int]
    open_after: Mapping[int, int]
    own_after: Mapping[int, int]
    next_offset: int
    batches: int
    records: int
    digest: DigestPart

    def open_knowing(self, known: Mapping[int, int]) -> dict[int, int]:
        """What reading the segment again would know to be open at its end.

        Args:
            known: Transactions known to be open at its begin, some of `open_before`.
        """
        from_before = self.open_after.items() & self.open_before.items()
        return {**self.own_after, **dict(from_before & known.items())}

    def holds_for(
        self, span: tuple[int, int], counted_from: int, is_first: bool, known: Mapping[int, int]
    ) -> bool:
        """Whether reading the segment again would tell nothing else.

        Args:
            span: Served offsets [start, stop).
            counted_from: One past the last batch counted before.
            is_first: See above.
            known: Transactions known to be open. It was proven with these and more, perhaps.
        """
        return (
            span == (self.start, self.stop)
            and known.items() <= self.open_before.items()
            and is_first == self.is_first
            and (
                counted_from == self.counted_from
                or max(counted_from, self.counted_from) <= self.first_base
            )
        )


@dataclass(frozen=True, slots=True)
class ProvenSegment:
    """A segment without faults.

    Attributes:
        segment: Its facts.
        files: Its side files that tell of epochs and transactions; all are sound.
        has_indexes: Whether its offset and time index are known to be sound.
        log: The proof of its bytes, if they were read.
        opened_by: Fingerprint of the private key that opened it; empty where it is not encrypted.
    """

    segment: RemoteSegment
    files: FileFacts
    has_indexes: bool = False
    log: LogProof | None = None
    opened_by: str = ""

    @property
    def key_id(self) -> str:
        """Of the private key that opens it; empty where it is not encrypted."""
        encryption = self.segment.objects.encryption
        return "" if encryption is None else encryption.data_key.key_id

    def opens_with(self, key_ring: KeyRing) -> bool:
        """Whether the key ring has the very key that the segment was proven with."""
        return not self.key_id or self.opened_by == key_ring.fingerprint(self.key_id) != ""


def to_json(entry: SegmentEntry, proven: ProvenSegment) -> list[Any] | None:
    """A proof in JSON's types; `None` if its facts depend on more than its own objects."""
    suffixes = {info.key: suffix for suffix, info in entry.objects}
    segment, files = proven.segment, proven.files
    if any(one.content is not None for one in segment.objects.indexes.values()):
        return None  # worked out from more than the objects of this segment
    if not segment.objects.size_in_bytes:
        return None  # its end may depend on the next one in the listing
    facts = segment_facts(segment, lambda ref: suffixes.get(ref.key))
    if facts is None:
        return None
    return [
        facts,
        [[one.epoch, one.start_offset] for one in files.epochs or ()],
        [list(astuple(one)) for one in files.open_after or ()],
        [list(astuple(one)) for one in files.aborted or ()],
        proven.has_indexes,
        proven.opened_by,
        None if proven.log is None else _log_to_json(proven.log),
    ]


def from_json(entry: SegmentEntry, value: Any) -> ProvenSegment:  # noqa: ANN401
    """The proof of a listed segment.

    Raises:
        ValueError: Not what `to_json` gives; as TypeError, LookupError and SegmentFormatError.
    """
    facts, epochs, opened, aborted, has_indexes, opened_by, log = value
    place = entry.topic, entry.topic_id, entry.partition, entry.segment_id
    objects = dict(entry.objects)
    segment = segment_from_facts(place, facts, lambda name: ObjectRef.of(objects[str(name)]))
    files = FileFacts(
        tuple(EpochEntry(*one) for one in epochs),
        tuple(ProducerStateEntry(*one) for one in opened),
        tuple(AbortedTxn(*one) for one in aborted),
        "",
        (),
    )
    proof = None if log is None else _log_from_json(log)
    return ProvenSegment(segment, files, bool(has_indexes), proof, str(opened_by))


def _log_to_json(log: LogProof) -> list[Any]:
    digest = log.digest
    return [
        *(log.start, log.stop, log.counted_from, log.first_base, log.is_first),
        *(
            [[*pair] for pair in opened.items()]
            for opened in (log.open_before, log.open_after, log.own_after)
        ),
        *(log.next_offset, log.batches, log.records),
        *(base64.b64encode(part).decode() for part in (digest.first, digest.last)),
        f"{digest.between:x}",
    ]


def _log_from_json(value: Any) -> LogProof:  # noqa: ANN401
    *numbers, before, after, own, next_offset, batches, records, first, last, between = value
    start, stop, counted_from, first_base, is_first = numbers
    digest = DigestPart(base64.b64decode(first), base64.b64decode(last), int(between, 16))
    opened = dict(before), dict(after), dict(own)
    return LogProof(
        *(start, stop, counted_from, first_base, bool(is_first)),
        *opened,
        *(next_offset, batches, records),
        digest,
    )


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
