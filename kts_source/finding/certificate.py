"""What a search has looked at, and what it has not: the proof that there are no other records.

What a certificate says in words: the conditions of a search, and what it takes for granted.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.options.selection import TimestampBound, TimestampsBound
from kts_source.options.value_formats import PERMISSIVE
from kts_source.predicate.model import fields_of
from kts_source.texts import camel_case

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kts_source.finding.query import Query
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan


OF_FILTERS: Final = (
    "filters of keys hold every key of the segments that they were made of: those ruled out by them"
    " were not read"
)


def conditions_of(options: ScanOptions, query: Query) -> tuple[str, ...]:
    """What records must meet beside their keys, which are not named: a certificate is passed on."""

    def each() -> Iterator[str]:
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

    return tuple(each())


def assumptions_of(options: ScanOptions, plan: ScanPlan) -> tuple[str, ...]:
    """What must hold so that the certificate says what it seems to say."""

    def each() -> Iterator[str]:
        yield (
            "the log of a partition is the one that the tier proves: its newest lineage from its"
            " log start on; objects that hold nothing of it are named as unserved and were not"
            " searched, and neither were records below the log start in a segment that holds it"
        )
        yield (
            "brokers were not asked: what they have not yet copied to the tier was not searched;"
            " nobody has removed all objects of a partition, or all of its newest segments"
        )
        if options.read_committed:
            yield "records of aborted transactions lie in the tier, and were left out"
            yield "the tier's transaction indexes, which have no checksum, say which those are"
        if not options.check_crcs:
            yield "the bytes are those that were written: checksums of batches were not compared"
        if options.where is not None or by_time:
            yield (
                "manifests, time indexes and headers of batches say how records are dated: what"
                " they rule out was not read"
            )
        if _may_be_undecidable(options):
            yield "a record whose fields cannot be decoded meets no condition on them"
        if any(part.objects.log.version is None for task in plan.tasks for part in task.slices):
            yield "no object has changed since it was listed: the store tells no versions"
        if options.max_timestamp_ahead_ms is not None:
            yield (
                "no record is dated later than maxTimestampAheadMs="
                f"{options.max_timestamp_ahead_ms} after its upload"
            )

    by_time = any(
        isinstance(bound, TimestampBound | TimestampsBound)
        for bound in (options.starting, options.ending)
    )
    return tuple(each())


def _may_be_undecidable(options: ScanOptions) -> bool:
    """Whether a condition is about fields of columns of which malformed ones end nothing."""
    fields = () if options.where is None else fields_of(options.where)
    lenient = {one.column for one in options.formats if one.mode == PERMISSIVE}
    return any(field.source in lenient for field in fields)


def outside_of(options: ScanOptions, plan: ScanPlan) -> tuple[str, ...]:
    """What there is of the topics beside what a search is of."""

    def each() -> Iterator[str]:
        yield from plan.notes
        if options.read_committed:
            yield "records of aborted transactions"
        for part in plan.partitions:
            log = part.surviving
            if log.log_start < part.start or part.wanted_stop < log.stop:
                yield (
                    f"offsets of {part.topic_partition} that were not asked for: the tier has"
                    f" [{log.log_start}, {log.stop})"
                )

    return tuple(each())


CERTIFICATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class UnreadRange:
    """Offsets [start, stop) that were asked for and not searched, or not all of them.

    Attributes:
        start: First offset, inclusive.
        stop: One past the last.
        reason: Why, in words.
        object: Where they should be read; `None` where no object holds them.
    """

    start: int
    stop: int
    reason: str
    object: str | None


@dataclass(frozen=True, slots=True)
class Undecided:
    """A transaction that had not ended, as far as the tier tells.

    Attributes:
        producer_id: Whose.
        first_offset: Where it begins.
    """

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class UnservedObjects:
    """Objects of the partition that hold nothing of its log, and were not searched.

    Attributes:
        objects: Keys below the root of the store.
        reason: Why a reader never sees their records.
    """

    objects: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionCertificate:
    """What was searched of one partition.

    Attributes:
        topic: Topic.
        topic_id: Its incarnation.
        partition: Partition number.
        start: First offset searched, inclusive.
        stop: One past the last.
        unread: Offsets in [start, stop), or behind it, that were not searched.
        undecided: Transactions that end the range, with `read_committed`.
        unserved: Objects that were left alone.
        left_out: Why nothing of the partition was read; `None` where it was.
        segments: Segments read, or tried in vain.
        stored_bytes: Bytes of their logs in the store.
        objects_digest: SHA-256 in hex over these logs, see `digest_of_objects`.
        ruled_out: Segments that were not read, as their filter has none of the keys.
        ruled_out_digest: As `objects_digest`, over their logs.
        records: Records whose key or condition was looked at. Where something could not be read,
            others of the same task are looked at again, and may count twice.
        matches: Records found.
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


@dataclass(frozen=True, slots=True)
class Certificate:
    """All that a search has to say about itself.

    Attributes:
        searched_ms: When it began, in ms since 1970.
        path: Root of the tier, free of credentials.
        isolation_level: `read_uncommitted` finds records of aborted transactions, too.
        keys: How many keys were looked for; `None` = no key was asked for.
        key_digest: SHA-256 in hex over them; empty without keys.
        conditions: What else records must meet, in words.
        assumptions: What is taken for granted, in words.
        outside: What else there is of the topics, and was not searched, in words.
        faults: What is wrong with the tier as a whole, in words.
        partitions: In order of topic and partition.
        requests: Reads of the store.
        bytes: Stored bytes received.
    """

    searched_ms: int
    path: str
    isolation_level: str
    keys: int | None
    key_digest: str
    conditions: tuple[str, ...]
    assumptions: tuple[str, ...]
    outside: tuple[str, ...]
    faults: tuple[str, ...]
    partitions: tuple[PartitionCertificate, ...]
    requests: int
    bytes: int

    @property
    def complete(self) -> bool:
        """Whether every offset that was asked for was searched: there are no other records, as far
        as the assumptions hold.
        """
        return not self.faults and not any(part.unread for part in self.partitions)

    @property
    def exhaustive(self) -> bool:
        """Whether it is complete, and nothing of the topics was left alone: the bytes of other
        records are not in the tier either, be they served or not, as far as the assumptions hold.
        """
        alone = self.outside or any(part.unserved for part in self.partitions)
        return self.complete and not alone

    @property
    def matches(self) -> int:
        """Records found."""
        return sum(part.matches for part in self.partitions)

    @property
    def records(self) -> int:
        """Records looked at."""
        return sum(part.records for part in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """The certificate as the values of JSON; the page on `find` has its schema."""
        fields = {camel_case(name): value for name, value in asdict(self).items()}
        fields["partitions"] = [
            {camel_case(name): value for name, value in asdict(part).items()}
            | {"unread": [asdict(one) for one in part.unread]}
            | {
                "undecided": [
                    {camel_case(name): value for name, value in asdict(one).items()}
                    for one in part.undecided
                ]
            }
            for part in self.partitions
        ]
        return {
            "version": CERTIFICATE_VERSION,
            "complete": self.complete,
            "exhaustive": self.exhaustive,
            "records": self.records,
            "matches": self.matches,
            **fields,
        }

    def to_json(self) -> str:
        """The certificate as JSON, in ASCII: terminals obey some of what names may hold."""
        return json.dumps(self.to_dict(), indent=1)


def digest_of_objects(logs: Iterable[ObjectRef]) -> str:
    """SHA-256 in hex over objects in order of their keys, each as a line of JSON: key, size and
    version as listed (ETag, generation or the like; null where the store has none).
    """
    digest = hashlib.sha256()
    for log in sorted(set(logs), key=lambda one: one.key):
        digest.update(json.dumps([log.key, log.size, log.version]).encode() + b"\n")
    return digest.hexdigest()
