"""What a certificate says in words: the conditions of a search, and what it takes for granted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.options.requested_bounds import TimestampBound, TimestampsBound
from kts_source.options.value_formats import PERMISSIVE
from kts_source.predicate.model import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.finding.query import Query
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
