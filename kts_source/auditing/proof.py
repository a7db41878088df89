"""Reads all segments of a partition once, and records a proof of each segment without a fault.

The digest of the served batches can be computed segment by segment. A block consists of the batches
whose base offset, divided by 4,096 and rounded down, is equal. The hash of a block is the SHA-256
over the base offset (int64) and the stored CRC (uint32) of each of its batches in log order, both
big-endian. The digest is the sum of the hashes of all blocks, as 256-bit numbers, modulo 2^256. The
first and the last block of a segment may continue in the neighboring segments. Therefore the digest
of one segment (`DigestPart`) has the unhashed bytes of these two blocks, and the sum of the hashes
of the blocks between them.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.auditing.batch_checks import (
    LogCheck,
    SegmentIndexes,
    Transactions,
    check_table,
    segment_tables,
)
from kts_source.auditing.listing_checks import is_archived
from kts_source.auditing.metadata_checks import SideFileFacts
from kts_source.errors import (
    CorruptSegmentError,
    ObjectChangedError,
    ObjectNotFoundError,
    TruncatedObjectError,
)
from kts_source.layout.remote_segment import IndexType, ObjectRef, segment_facts, segment_from_facts
from kts_source.planning.lineage import SegmentRange
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import EpochEntry
from segment_format.index.producer_snapshot import ProducerStateEntry, parse_producer_snapshot
from segment_format.index.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from kts_source.auditing.listing_checks import PartitionObjects
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
    """The digest of consecutive batches, which can be combined with the digests of the batches
    before and after them. The module defines blocks.

    Attributes:
        first: Base offsets and CRCs of the batches in the first block; empty if there is no batch.
        last: Base offsets and CRCs of the batches in the last block; empty if there are fewer than
            two blocks.
        between: Sum of the hashes of the blocks between the first and the last block.
    """

    first: bytes
    last: bytes
    between: int


class PartDigest:
    """Computes the digest of consecutive batches. The batches are added with their offsets and
    CRCs, or as a `DigestPart` of several batches. They must be added in log order.
    """

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._open = bytearray()
        self._block: int | None = None
        self._sum = 0

    def update(self, base_offsets: NDArray[np.int64], crcs: NDArray[np.int64]) -> None:
        """Adds batches, given their ascending base offsets and their stored CRCs."""
        if not len(base_offsets):
            return
        chained = np.empty(len(base_offsets), _CHAINED)
        chained["base_offset"], chained["crc"] = base_offsets, crcs
        data = chained.tobytes()
        blocks = base_offsets >> _BLOCK_BITS
        cuts = np.flatnonzero(blocks[1:] != blocks[:-1]) + 1
        starts = [0, *cuts.tolist()]
        for start, stop in zip(starts, [*starts[1:], len(blocks)], strict=True):
            batches = data[start * _CHAINED.itemsize : stop * _CHAINED.itemsize]
            self._add(int(blocks[start]), batches)

    def add(self, other: DigestPart) -> None:
        """Adds the batches of `other`. They must be later than all batches added before."""
        for data in (other.first, other.last):
            if data:
                self._add(int.from_bytes(data[:8], "big", signed=True) >> _BLOCK_BITS, data)
        self._sum += other.between

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
        """Returns the `DigestPart` of all batches that were added so far."""
        if self._first is None:
            return DigestPart(bytes(self._open), b"", 0)
        return DigestPart(self._first, bytes(self._open), self._sum % _MODULUS)

    def text(self) -> str:
        """Returns the digest of all added batches as 64 hex digits."""
        sums = self.part()
        edges = sum(_number(data) for data in (sums.first, sums.last) if data)
        return f"{(sums.between + edges) % _MODULUS:064x}"


def _number(data: bytes | bytearray) -> int:
    return int.from_bytes(hashlib.sha256(data).digest(), "big")


@dataclass(frozen=True, slots=True)
class LogProof:
    """Proof that all batches of a segment were read, and that the batches and the side files are
    valid.

    Attributes:
        start: First offset of the segment that readers get, inclusive.
        stop: End of the offsets that readers get, exclusive; `start` if readers get no offset.
        counted_from: Batches that begin below this offset are not counted for this segment, because
            they were counted for an earlier segment.
        first_base: Base offset of the first batch with an offset in [start, stop); `stop` if there
            is no such batch.
        is_first: True if this segment is the first one that readers get, and also has offsets below
            `start`, which they do not get.
        open_before: Transactions that are open at the segment's start, as a map from producer id to
            first offset.
        open_after: Like `open_before`, but for the segment's end.
        own_after: Transactions of `open_after` that began in this segment.
        next_offset: One past the last offset of the counted batches.
        batches: Number of counted batches.
        records: Number of counted records.
        digest: Digest of the counted batches.
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

    def open_after_given(self, known_open: Mapping[int, int]) -> dict[int, int]:
        """Returns the transactions that are open at the segment's end. `known_open` must contain
        the transactions that are open at its start.
        """
        from_before = self.open_after.items() & self.open_before.items()
        return {**self.own_after, **dict(from_before & known_open.items())}

    def holds_for(
        self,
        span: tuple[int, int],
        counted_from: int,
        is_first: bool,
        known_open: Mapping[int, int],
    ) -> bool:
        """Returns True if the segment need not be read again, because this proof is still valid.

        Args:
            span: Offsets [start, stop) of the segment that readers get now.
            counted_from: One past the last offset of the batches that were counted in earlier
                segments.
            is_first: See the attribute `is_first`.
            known_open: Transactions that are known to be open at the segment's start. The proof is
                valid if they are a subset of `open_before`.
        """
        return (
            span == (self.start, self.stop)
            and known_open.items() <= self.open_before.items()
            and is_first == self.is_first
            and (
                counted_from == self.counted_from
                or max(counted_from, self.counted_from) <= self.first_base
            )
        )

    def to_json(self) -> list[Any]:
        """Returns the attributes of the proof in order, as a JSON array."""
        *values, digest = (getattr(self, name) for name in LogProof.__slots__)
        edges = (base64.b64encode(data).decode() for data in (digest.first, digest.last))
        values = [[*value.items()] if isinstance(value, dict) else value for value in values]
        return [*values, *edges, f"{digest.between:x}"]

    @classmethod
    def from_json(cls, document: Any) -> LogProof:  # noqa: ANN401
        """Restores a proof from a result of `to_json`. Raises `ValueError` or `TypeError` if the
        document has another form.
        """
        *values, first, last, between = document
        values = [dict(value) if isinstance(value, list) else value for value in values]
        digest = DigestPart(base64.b64decode(first), base64.b64decode(last), int(between, 16))
        return cls(*[*values, digest])


@dataclass(frozen=True, slots=True)
class ProvenSegment:
    """A segment that was checked and has no fault.

    Attributes:
        segment: The segment as its manifest describes it.
        files: Contents of leader-epoch checkpoint, producer snapshot and transaction index.
        has_indexes: True if the offset index and the time index were checked.
        log: The proof that all batches are valid; `None` if they were not read.
        opened_by: Fingerprint of the private key that decrypted the segment; empty if the segment
            is not encrypted.
    """

    segment: RemoteSegment
    files: SideFileFacts
    has_indexes: bool = False
    log: LogProof | None = None
    opened_by: str = ""

    @property
    def key_id(self) -> str:
        """Id of the private key that decrypts the segment; empty for a segment without
        encryption.
        """
        encryption = self.segment.objects.encryption
        return "" if encryption is None else encryption.data_key.key_id

    def opens_with(self, key_ring: KeyRing) -> bool:
        """Returns True if `key_ring` has the private key that decrypted the segment for this proof,
        or if the segment is not encrypted.
        """
        return not self.key_id or self.opened_by == key_ring.fingerprint(self.key_id) != ""

    def to_json(self, entry: SegmentEntry) -> list[Any] | None:
        """Returns the proven segment as a JSON array. Returns `None` if the listed objects of this
        segment do not suffice to restore its description from the array.
        """
        suffixes = {info.key: suffix for suffix, info in entry.objects}
        segment, files = self.segment, self.files
        if any(index.content is not None for index in segment.objects.indexes.values()):
            return None  # computed from other segments
        if not segment.objects.size_in_bytes:
            return None  # its end may depend on the next segment in the listing
        facts = segment_facts(segment, lambda ref: suffixes.get(ref.key))
        if facts is None:
            return None
        return [
            facts,
            *([astuple(entry) for entry in entries or ()] for entries in _contents(files)),
            self.has_indexes,
            self.opened_by,
            None if self.log is None else self.log.to_json(),
        ]

    @classmethod
    def from_json(cls, entry: SegmentEntry, document: Any) -> ProvenSegment:  # noqa: ANN401
        """Restores a proven segment from its listed objects and a result of `to_json`. Raises
        `ValueError`, `TypeError`, `LookupError` or `SegmentFormatError` if the document has another
        form.
        """
        facts, epochs, opened, aborted, has_indexes, opened_by, log = document
        location = entry.topic, entry.topic_id, entry.partition, entry.segment_id
        objects = dict(entry.objects)
        segment = segment_from_facts(location, facts, lambda name: ObjectRef.of(objects[str(name)]))
        files = SideFileFacts(
            tuple(EpochEntry(*fields) for fields in epochs),
            tuple(ProducerStateEntry(*fields) for fields in opened),
            tuple(AbortedTxn(*fields) for fields in aborted),
            "",
            (),
        )
        proof = None if log is None else LogProof.from_json(log)
        return cls(segment, files, bool(has_indexes), proof, str(opened_by))


def _contents(files: SideFileFacts) -> tuple[tuple[Any, ...] | None, ...]:
    return files.epochs, files.open_after, files.aborted


@dataclass(frozen=True, slots=True)
class PartitionProof:
    """Result of reading all segments of a partition.

    Attributes:
        is_sound: True if all segments that readers get were read completely and their logs have no
            fault.
        records: Number of records that readers get, without transaction markers.
        batches: Number of batches that readers get, including transaction markers.
        digest: See `PartitionStatement.digest`.
        findings: Faults of the logs, indexes and side files.
    """

    is_sound: bool
    records: int
    batches: int
    digest: str
    findings: tuple[Finding, ...]


class PartitionReader:
    """Reads and checks the segments of one partition.

    Args:
        read_ahead: Number of bytes to request in advance, concurrently.
        max_batch_bytes: Maximum size of a batch.
        facts: Contents of the side files of each segment, by key of the log object.
        on_read: Called after each segment that was read, with the original size of its log in
            bytes. May be `None`.
        on_proof: Called for every segment that was read or could not be read, with two values: the
            segment and its proof. The proof is `None` if the segment has a fault or could not be
            read.
    """

    def __init__(
        self,
        partition: PartitionObjects,
        source: SegmentSource,
        read_ahead: ReadAhead,
        *,
        max_batch_bytes: int,
        facts: Mapping[str, SideFileFacts],
        on_read: Callable[[int], object] | None,
        on_proof: Callable[[RemoteSegment, LogProof | None], object],
    ) -> None:
        self._part = partition
        self._source = source
        self._read_ahead = read_ahead
        self._max_batch_bytes = max_batch_bytes
        self._facts = facts
        self._on_read = on_read
        self._on_proof = on_proof
        self._digest = PartDigest()
        self._records = 0
        self._batches = 0
        self._next_offset = 0
        self._findings: list[Finding] = []

    def prove(
        self,
        log: PartitionLog,
        others: Sequence[RemoteSegment],
        proofs: Mapping[str, LogProof],
    ) -> PartitionProof:
        """Proves the segments in `log` in order, then those in `others`. Skips segments that have a
        valid proof (`log`) or any proof (`others`).

        Args:
            log: The log of the partition, assembled from its segments.
            others: Segments that are not part of the log.
            proofs: Proofs of earlier audits, by key of the log object.
        """
        is_sound, stop = True, log.log_start
        opened: Mapping[int, int] = {}
        for span in log.ranges:
            if span.start != stop:
                opened = {}
            stop = span.stop
            # Batches below `span.start` exist only in the segment that contains the log start.
            is_first = not self._batches and span.start > span.segment.start_offset
            proof = proofs.get(span.segment.objects.log.key)
            context = self._next_offset, is_first, opened
            if proof is None or not proof.holds_for((span.start, span.stop), *context):
                proof = self._read(span, *context)
            if proof is None:
                is_sound, opened = False, {}
                continue
            opened = proof.open_after_given(opened)
            if proof.batches:
                self._next_offset = proof.next_offset
            self._batches += proof.batches
            self._records += proof.records
            self._digest.add(proof.digest)
        for segment in others:
            if segment.objects.log.key not in proofs:
                self._read(SegmentRange(segment, 0, 0), 0, False, {})
        digest = self._digest.text()
        return PartitionProof(is_sound, self._records, self._batches, digest, tuple(self._findings))

    def _read(
        self, span: SegmentRange, counted_from: int, is_first: bool, opened: Mapping[int, int]
    ) -> LogProof | None:
        """Reads a segment. Returns its proof, or `None` if the batches have a fault or cannot be
        read.
        """
        segment = span.segment
        key = segment.objects.log.key
        if self._facts[key].is_unreadable or is_archived(segment.objects.log):
            self._on_proof(segment, None)
            return None
        indexes = SegmentIndexes(self._part, segment, self._source)
        index_findings = [*indexes.findings]
        check = LogCheck(segment)
        counter = _BatchCounter(span, counted_from, is_first, opened)
        self._check_batches(segment, check, indexes, counter)
        findings = [
            self._part.finding(name, start, stop, [key], text)
            for name, (start, stop, text) in check.faults.items()
        ]
        if check.faults:  # side files cannot match a log with faults
            findings = [*index_findings, *findings]
        else:
            _compare_side_files(span, self._facts[key], counter.transactions, indexes)
            findings = indexes.findings
        self._findings += findings
        if self._on_read is not None:
            self._on_read(segment.objects.size_in_bytes)
        proof = None if check.faults else counter.proof()
        self._on_proof(segment, None if findings else proof)
        return proof

    def _check_batches(
        self,
        segment: RemoteSegment,
        check: LogCheck,
        indexes: SegmentIndexes,
        counter: _BatchCounter,
    ) -> None:
        fault = None
        try:
            for table in segment_tables(
                segment,
                self._source,
                self._read_ahead,
                max_batch_bytes=self._max_batch_bytes,
                start_offset=counter.span.start,
            ):
                check_table(table, check, indexes)
                counter.count(table)
            indexes.finish()
        except SegmentFormatError as error:
            fault = "batch-invalid", str(error)
        except (CorruptSegmentError, TruncatedObjectError) as error:
            fault = "log-unreadable", str(error)
        except (ObjectNotFoundError, ObjectChangedError) as error:
            fault = "object-gone", error.message
        if fault is not None:
            name, text = fault
            check.faults.setdefault(name, (check.next_offset, segment.stop_offset, text))


class _BatchCounter:
    """Counts the batches that readers get from a segment, and follows the transactions in these
    batches. See `LogProof` for `counted_from`, `is_first` and `opened` (there `open_before`).
    """

    def __init__(
        self, span: SegmentRange, counted_from: int, is_first: bool, opened: Mapping[int, int]
    ) -> None:
        self.span = span
        self.transactions = Transactions(opened)
        self._counted_from = counted_from
        self._opened = opened
        self._is_first = is_first
        self._first_base = span.stop
        self._next_offset = counted_from
        self._digest = PartDigest()
        self._batches = 0
        self._records = 0

    def count(self, table: BatchTable) -> None:
        """Counts the batches in `table` that have offsets in `span` and were not counted for an
        earlier segment.
        """
        is_before_stop = table.base_offsets < self.span.stop
        is_inside = is_before_stop & (table.last_offsets >= self.span.start)
        # In the first segment, transactions may begin below the first offset that readers get.
        is_first = self._is_first and not self._batches
        self.transactions.apply(table, is_before_stop if is_first else is_inside)
        inside = np.flatnonzero(is_inside)
        if len(inside):
            self._first_base = min(self._first_base, int(table.base_offsets[inside[0]]))
        # If a segment starts inside a batch, the previous segment has the same batch.
        served = inside[table.base_offsets[inside] >= self._next_offset]
        if not len(served):
            return
        self._next_offset = int(table.last_offsets[served[-1]]) + 1
        self._digest.update(table.base_offsets[served], table.crcs[served])
        self._batches += len(served)
        is_data = ~table.are_control[served]
        self._records += int(table.records[served][is_data].sum())

    def proof(self) -> LogProof:
        """Returns the proof with all counts. Call it only for a segment without faults."""
        return LogProof(
            start=self.span.start,
            stop=self.span.stop,
            counted_from=self._counted_from,
            first_base=self._first_base,
            is_first=self._is_first,
            open_before=dict(self._opened),
            open_after=dict(self.transactions.open),
            own_after=dict(self.transactions.own),
            next_offset=self._next_offset,
            batches=self._batches,
            records=self._records,
            digest=self._digest.part(),
        )


def _compare_side_files(
    span: SegmentRange, facts: SideFileFacts, transactions: Transactions, indexes: SegmentIndexes
) -> None:
    """Compares the transaction index and the producer snapshot with the batches of a segment. Adds
    findings about differences to `indexes`.
    """
    if span.stop != span.segment.stop_offset:
        return  # the rest is of a dead branch, or nothing is served
    if facts.aborted is not None:
        for name, text in (
            ("aborted-not-indexed", transactions.missing_in(facts.aborted)),
            ("transactions-disagree", transactions.unmarked_in(facts.aborted)),
        ):
            if text:
                indexes.report(name, IndexType.TRANSACTION, text)
    if facts.open_after is not None:
        data = indexes.read(IndexType.PRODUCER_SNAPSHOT, "snapshot-invalid")
        if data and (text := transactions.difference(parse_producer_snapshot(data))):
            indexes.report("snapshot-disagrees", IndexType.PRODUCER_SNAPSHOT, text)
