"""The certificate of a search. It lists searched offsets, unread offsets and assumptions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.options.selection import TimestampBound, TimestampsBound
from kts_source.options.value_formats import PERMISSIVE
from kts_source.planning.estimate import ARCHIVE_CLASSES
from kts_source.predicate.model import fields_of
from kts_source.texts import Displayed, Table, json_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kts_source.finding.query import Query
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.task import SegmentSlice


def conditions_of(options: ScanOptions, query: Query) -> Iterator[str]:
    """Yields the conditions of a search as texts. Omits the keys, because certificates are shared
    and keys may be secret.
    """
    if options.where is not None:
        yield f"where {options.where!r}"
    if query.value_contains is not None:
        yield f"the value contains the bytes {query.value_contains.hex()}"
    if query.value_matches is not None:
        yield f"the value matches the regular expression {query.value_matches!r}"
    for header in query.headers:
        value = "" if header.value is None else f" with the bytes {header.value.hex()}"
        yield f"a header {header.name!r}{value}"
    if query.producer_ids:
        yield f"the producer id is one of {', '.join(map(str, query.producer_ids))}"


def formats_of(options: ScanOptions) -> Iterator[str]:
    """Yields the formats of decoded keys and values as texts."""
    for form in options.formats:
        yield f"{form.column}: {form.format}, {form.type}"


def assumptions_of(options: ScanOptions, plan: ScanPlan, *, has_filters: bool) -> Iterator[str]:
    """Yields the assumptions of a search as sentences. The certificate is correct only if all of
    them are true.
    """
    yield (
        "The log of a partition is the newest lineage in the tier, from its log start on. Objects"
        " that hold nothing of it are listed as unserved and were not searched. Neither were"
        " records below the log start in a segment that holds it."
    )
    yield (
        "Brokers were not asked. Records that are not yet copied to the tier were not searched. All"
        " objects of a partition, or all of its newest segments, may have been removed unnoticed."
    )
    if options.read_committed:
        yield "Records of aborted transactions are in the tier and were skipped."
        yield "The tier's transaction indexes, which have no checksum, list the aborted records."
    if not options.check_crcs:
        yield "The bytes were not damaged: checksums of batches were not compared."
    by_time = any(
        isinstance(bound, TimestampBound | TimestampsBound)
        for bound in (options.starting, options.ending)
    )
    if options.where is not None or by_time:
        yield (
            "Timestamps in manifests, time indexes and batch headers are correct. Segments and"
            " batches that they rule out were not read."
        )
    if _may_be_undecidable(options):
        yield "A record whose fields cannot be decoded meets no condition on them."
    if any(
        task_slice.objects.log.version is None for task in plan.tasks for task_slice in task.slices
    ):
        yield "No object has changed since it was listed: the store has no versions."
    if options.max_timestamp_ahead_ms is not None:
        yield (
            "No record is dated later than maxTimestampAheadMs="
            f"{options.max_timestamp_ahead_ms} after its upload."
        )
    if has_filters:
        yield (
            "Filters of keys hold every key of the segments that they were made from. Segments that"
            " they rule out were not read."
        )


def _may_be_undecidable(options: ScanOptions) -> bool:
    """Returns whether option `where` uses a field of a column that is decoded in mode `PERMISSIVE`.
    In this mode, fields that cannot be decoded are null.
    """
    fields = () if options.where is None else fields_of(options.where)
    permissive = {
        column_format.column
        for column_format in options.formats
        if column_format.mode == PERMISSIVE
    }
    return any(field.source in permissive for field in fields)


def outside_of(options: ScanOptions, plan: ScanPlan) -> Iterator[str]:
    """Yields the parts of the topics that the search did not cover."""
    yield from plan.notes
    if options.read_committed:
        yield "records of aborted transactions"
    for partition in plan.partitions:
        log = partition.surviving
        if log.log_start < partition.start or partition.wanted_stop < log.stop:
            yield (
                f"offsets of {partition.topic_partition} outside the bounds of the search: the tier"
                f" has [{log.log_start}, {log.stop})"
            )


def archived_object(task_slice: SegmentSlice) -> tuple[ObjectRef, str] | None:
    """Returns an archived object that must be restored before the slice can be read, and a message
    about the object. Returns `None` if no needed object is archived.
    """
    needed = [
        task_slice.objects.log,
        *([] if task_slice.is_whole else [task_slice.offset_index.source]),
    ]
    for ref in needed:
        if ref.storage_class in ARCHIVE_CLASSES:
            return ref, f"it is archived in storage class {ref.storage_class}. Restore it first."
    return None


CERTIFICATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class UnreadRange:
    """Offsets [start, stop) that were requested, but were not searched or not completely searched.

    Attributes:
        start: First offset, inclusive.
        stop: End, exclusive.
        reason: Why these offsets were not searched.
        object: URI of the object that could not be read; `None` if the reason is not an unreadable
            object.
    """

    start: int
    stop: int
    reason: str
    object: str | None


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction without an end marker in the tier."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class UnservedObjects:
    """Objects with records that are not part of the partition's log, such as records of an
    abandoned leader. These records were not searched.

    Attributes:
        objects: Keys of the objects, relative to the root of the store.
        reason: Why these records are not part of the log.
    """

    objects: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionCertificate:
    """The searched part of a partition.

    Attributes:
        start: First searched offset, inclusive.
        stop: End of the searched offsets, exclusive.
        unread: Requested offsets that were not searched. They are in [start, stop) or after `stop`.
        undecided: Transactions without an end marker in the tier. A search with `read_committed`
            ends before the first of them.
        unserved: Objects with records outside the log. These records were not searched.
        left_out: Why the partition was not searched; `None` if it was searched.
        segments: Number of segments that were read, including segments that could not be read.
        stored_bytes: Size of the log objects of these segments in the store.
        objects_digest: SHA-256 in hex over these log objects, see `digest_of_objects`.
        ruled_out: Number of segments that were not read, because their filter proves that they have
            none of the keys.
        ruled_out_digest: Like `objects_digest`, over the log objects of the segments that were
            ruled out.
        records: Number of records that were compared with the keys or conditions. If a segment
            could not be read, other segments of its task are read again, so their records may count
            twice.
        matches: Number of records found.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    unread: tuple[UnreadRange, ...]
    undecided: tuple[Undecided, ...]
    unserved: tuple[UnservedObjects, ...]
    left_out: str | None
    segments: int
    stored_bytes: int
    objects_digest: str
    ruled_out: int
    ruled_out_digest: str
    records: int
    matches: int


@dataclass(frozen=True, slots=True, repr=False)
class Certificate(Displayed):
    """The result of a search: searched and unread offsets, and assumptions.

    Attributes:
        searched_ms: When the tier was listed, in ms since 1970.
        path: Root of the tier, without credentials.
        isolation_level: Isolation level of the search. With `read_uncommitted`, a search also finds
            records of aborted transactions.
        keys: Number of keys; `None` if the search is not for keys.
        key_digest: SHA-256 in hex over the keys; empty without keys.
        conditions: Conditions on records other than keys.
        formats: Formats and types of decoded keys and values. If they differ by topic, each text
            begins with the topic.
        assumptions: Assumptions under which the certificate is correct.
        outside: Parts of the topics that the search did not cover.
        faults: Faults of the tier because of which offsets were not searched.
        partitions: Certificates of the partitions, in order of topic and partition.
        requests: Number of requests to the store.
        bytes: Number of stored bytes that the store sent.
    """

    searched_ms: int
    path: str
    isolation_level: str
    keys: int | None
    key_digest: str
    conditions: tuple[str, ...]
    formats: tuple[str, ...]
    assumptions: tuple[str, ...]
    outside: tuple[str, ...]
    faults: tuple[str, ...]
    partitions: tuple[PartitionCertificate, ...]
    requests: int
    bytes: int

    @property
    def complete(self) -> bool:
        """Returns whether every requested offset was searched. If so, and if the assumptions are
        true, the log has no matching records except those that were found.
        """
        return not self.faults and not any(partition.unread for partition in self.partitions)

    @property
    def exhaustive(self) -> bool:
        """Returns whether the search is complete and covers all objects of the topics. If so, and
        if the assumptions are true, no object of the tier contains a matching record that was not
        found, not even outside the log.
        """
        is_partial = self.outside or any(partition.unserved for partition in self.partitions)
        return self.complete and not is_partial

    @property
    def matches(self) -> int:
        """Number of records found."""
        return sum(partition.matches for partition in self.partitions)

    @property
    def records(self) -> int:
        """Number of records that were compared with the keys or conditions."""
        return sum(partition.records for partition in self.partitions)

    def _tables(self) -> tuple[Table, Table]:
        state = "incomplete"
        if self.complete:
            state = "complete and exhaustive" if self.exhaustive else "complete"
        title = f"Certificate: {state}, {self.matches:,} matches in {self.records:,} records"
        facts = {
            "path": self.path,
            "isolationLevel": self.isolation_level,
            "keys": "any" if self.keys is None else f"{self.keys:,}",
            "conditions": "; ".join(self.conditions) or "none",
            "formats": "; ".join(self.formats) or "none: keys and values are bytes",
            "assumptions": f"{len(self.assumptions):,}, see attribute assumptions",
            "not covered": "; ".join((*self.faults, *self.outside)) or "nothing",
        }
        header = ("partition", "start", "stop", "segments", "records", "matches", "not searched")
        rows = [
            (
                f"{each.topic}-{each.partition}",
                each.start,
                each.stop,
                each.segments,
                each.records,
                each.matches,
                each.left_out or "; ".join(unread.reason for unread in each.unread),
            )
            for each in self.partitions
        ]
        return Table.of_facts(title, facts), Table("Searched offsets", header, rows)

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as a dictionary of JSON values. The docs page about `find`
        describes it.
        """
        return {
            "version": CERTIFICATE_VERSION,
            "complete": self.complete,
            "exhaustive": self.exhaustive,
            "records": self.records,
            "matches": self.matches,
            **json_fields(self),
        }

    def to_json(self) -> str:
        """Returns the certificate as JSON. It has only ASCII characters, because terminals may
        interpret other characters as control codes.
        """
        return json.dumps(self.to_dict(), indent=1)


def digest_of_objects(logs: Iterable[ObjectRef]) -> str:
    """Returns the SHA-256, in hex, of a text with one line per object, in order of keys. A line is
    a JSON list of the object's key, size and version (such as the ETag) as listed. The version is
    null if the store has no versions.
    """
    digest = hashlib.sha256()
    for log in sorted(set(logs), key=lambda ref: ref.key):
        digest.update(json.dumps([log.key, log.size, log.version]).encode() + b"\n")
    return digest.hexdigest()
