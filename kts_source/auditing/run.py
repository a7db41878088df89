"""An audit from its options to its report.

The audit of a partition as a task: in this process, in others, or on other machines.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict

from kts_source.auditing.kinds import BYTES, LEVELS, METADATA, Severity
from kts_source.auditing.partition import PartitionAudit
from kts_source.auditing.place import PartitionObjects
from kts_source.auditing.report import AuditReport, Finding, PartitionStatement, in_order
from kts_source.auditing.segment_checks import other_incarnation
from kts_source.auditing.state import NO_STATE, AuditState, PartitionState, appending
from kts_source.errors import InvalidOptionError, StoreError
from kts_source.layout.find_layout import find_layout
from kts_source.options import ScanOptions, parse_options
from kts_source.planning.planner import paused_collector
from kts_source.planning.segment_catalog import (
    PLANNING_THREADS,
    SegmentCatalog,
    discover_topic,
    incarnations,
)
from kts_source.processes import in_processes
from kts_source.tier import Tier, open_uncached_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.auditing.brokers import BrokerSide
    from kts_source.layout.layout import Layout
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class AuditJob:
    """What all tasks share. It holds credentials, so it travels in pickles only.

    Attributes:
        options: Of the audit, key ring loaded.
        level: How far to look.
        grace_ms: Copies that are younger may be under way.
        now_ms: The time in ms since 1970.
        has_state: Whether what is proven is kept.
        state: The file, where the task can write into it.
    """

    options: ScanOptions
    level: str
    grace_ms: int
    now_ms: int
    has_state: bool
    state: str | None = None


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """What the audit of a partition gave.

    Attributes:
        number: Of the task.
        lines: For the state.
        read_bytes: Original bytes of the segments that were read, at level `bytes`.
    """

    number: int
    statement: PartitionStatement
    findings: tuple[Finding, ...]
    lines: tuple[str, ...]
    read_bytes: int

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> AuditOutcome:
        """What `to_text` gave."""
        value: dict[str, Any] = json.loads(text)
        findings = (
            Finding(**{**one, "objects": tuple(one["objects"])}) for one in value["findings"]
        )
        return cls(
            value["number"],
            PartitionStatement(**value["statement"]),
            tuple(findings),
            tuple(value["lines"]),
            value["read_bytes"],
        )


@dataclass(frozen=True, slots=True)
class AuditTask:
    """The audit of one partition. It holds no credentials.

    Attributes:
        part: The objects of the partition.
        lines: What the state knows of it.
    """

    number: int
    part: PartitionObjects
    lines: Mapping[str, str]

    def run(self, job: AuditJob) -> AuditOutcome:
        """Audits the partition.

        Raises:
            TieredKafkaError: See `PartitionAudit.audit`.
        """
        lines: list[str] = []
        read: list[int] = []
        with (
            closing(open_uncached_tier(job.options)) as tier,
            ThreadPoolExecutor(PLANNING_THREADS, "kts-describe") as pool,
            nullcontext() if job.state is None else appending(job.state) as write,
            nullcontext() if job.level == BYTES else paused_collector(),
        ):

            def keep(more: Sequence[str]) -> None:
                lines.extend(more)
                if write is not None:
                    write(more)

            layout = find_layout(job.options.layout)
            times = job.grace_ms, job.now_ms
            run = PartitionAudit(job.options, job.level, *times, tier, layout, pool, read.append)
            state = PartitionState(self.part.place, dict(self.lines), keep)
            found = run.audit(self.part, state if job.has_state else NO_STATE)
        return AuditOutcome(self.number, found[0], tuple(found[1]), tuple(lines), sum(read))


class AuditExecutor(Protocol):
    """Runs the tasks of an audit somewhere.

    Attributes:
        is_near: Whether tasks can write into files of this machine.
    """

    is_near: bool

    def run(self, tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        """One outcome a task, in any order, as they become known.

        Raises:
            Exception: What a task raised.
        """
        ...


class AuditProcesses:
    """Tasks in processes of this machine.

    Args:
        workers: How many.
    """

    is_near = True

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        """See `AuditExecutor.run`."""
        if not tasks:
            return
        # The longest first: what is left at the end is short.
        tasks = sorted(tasks, key=lambda one: -one.part.stored_bytes)
        try:
            yield from in_processes(partial(_run, job), tasks, min(self._workers, len(tasks)))
        except BrokenProcessPool as error:
            raise StoreError("a process of the audit died; with a state it goes on") from error


def _run(job: AuditJob, task: AuditTask) -> AuditOutcome:
    return task.run(job)


DEFAULT_GRACE_MS: Final = 3_600_000
"""Objects of a copy are younger than this while it is under way."""
_NOT_OF_A_TIER: Final = (
    "planFile",
    "tailPath",
    "catalog",
    "where",
    "timestampRange",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
)
"""Options that would make an audit look at less than the tier, or at something else."""


class AuditArguments(TypedDict, total=False):
    """See `audit`."""

    level: str
    grace_ms: int
    store: ObjectStore | None
    now_ms: int | None
    on_read: Callable[[int], object] | None
    state: str | None
    jobs: int


def audit(  # named ones
    source: Mapping[str, str] | ScanOptions,
    *,
    level: str = METADATA,
    grace_ms: int = DEFAULT_GRACE_MS,
    store: ObjectStore | None = None,
    now_ms: int | None = None,
    on_read: Callable[[int], object] | None = None,
    state: str | None = None,
    jobs: int = 1,
    executor: AuditExecutor | None = None,
) -> AuditReport:
    """See `kts_source.audit`.

    Args:
        source: Options as for the data source.
        level: How far to look.
        grace_ms: Objects of an unfinished copy that are younger count as a copy under way.
        store: The tier; opened from the options when not given. Only for an audit in this process.
        now_ms: The time in ms since 1970 that ages are counted from; the clock's unless given.
        on_read: Called with the bytes of segments that were read, at level `bytes`.
        state: File that keeps what was proven.
        jobs: Processes.
        executor: What runs the audits of partitions, in place of processes.

    Raises:
        InvalidOptionError: See `kts_source.audit`.
        TopicNotFoundError: Neither the tier nor the given brokers have a topic.
        StoreError: The store does not answer.
    """
    if level not in LEVELS:
        raise InvalidOptionError(f"an audit's level is one of {', '.join(LEVELS)}, not {level!r}")
    options = source if isinstance(source, ScanOptions) else parse_options(source)
    _check(options)
    if jobs < 1:
        raise InvalidOptionError(f"an audit takes one process or more, not {jobs}")
    if jobs > 1 and executor is None:
        executor = AuditProcesses(jobs)
    if store is not None and executor is not None:
        raise InvalidOptionError("a store that is handed over is audited in this process alone")
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    opening = closing(open_uncached_tier(options)) if store is None else nullcontext(Tier(store))
    layout = find_layout(options.layout)
    with (
        opening as tier,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-describe") as describing,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-audit") as pool,
        _state(state, tier, options) as kept,
        # Reading bytes may take days: too long for the little garbage that there is.
        nullcontext() if level == BYTES else paused_collector(),
    ):
        before = _asked(options)
        # Brokers may have topics that were never tiered, or of which all objects are lost.
        in_cluster = set() if before is None else {topic for topic, _ in before.logs}
        objects, findings = _listed(options, tier, layout, describing, pool, in_cluster)
        after = _asked(options, objects)
        if executor is None:
            # The bytes of one partition after the other: reading ahead keeps the store busy.
            together = 1 if level == BYTES else _side_by_side(objects)
            place = tier, layout, describing
            run = PartitionAudit(options, level, grace_ms, now, *place, on_read, together)

            def one(part: PartitionObjects) -> tuple[PartitionStatement, Sequence[Finding]]:
                return run.audit(part, NO_STATE if kept is None else kept.of(part.place))

            results = map(one, objects) if level == BYTES else pool.map(one, objects)
        else:
            job = AuditJob(
                replace(options, key_ring=options.key_ring.loaded()),
                *(level, grace_ms, now, kept is not None),
                state if executor.is_near else None,
            )
            results = _elsewhere(executor, job, objects, kept, on_read)
        statements = []
        for statement, more in results:
            statements.append(statement)
            findings += more
        if before is not None and after is not None:
            old_ms = now - grace_ms
            statements, findings = _compared(
                options, objects, statements, findings, (before, after), old_ms
            )
        if kept is not None:
            kept.finish({part.place: _names(part) for part in objects})
    statements.sort(key=lambda one: (one.topic, one.partition))
    return AuditReport(
        level, now, tier.store.uri(options.key_prefix), in_order(findings), tuple(statements)
    )


def _listed(
    options: ScanOptions,
    tier: Tier,
    layout: Layout,
    describing: Executor,
    pool: Executor,
    may_lack: Collection[str],
) -> tuple[list[PartitionObjects], list[Finding]]:
    """The objects of every partition, and what there is of other incarnations."""
    tolerant = replace(options, fail_on_data_loss=False)
    catalog = SegmentCatalog(tier, layout, describing, fail_on_data_loss=False)
    findings: list[Finding] = []
    parts: list[ListedPartition] = []
    for topic, folders in sorted(incarnations(options, catalog, may_lack).items()):
        found = discover_topic(tolerant, topic, folders, catalog, pool)
        here = [part for part in found.others if part.topic_id == found.topic_id]
        parts += [*found.partitions, *(part for part in here if part.orphans)]
        for part in found.others:
            if part.topic_id != found.topic_id:
                findings += other_incarnation(PartitionObjects.of(part), found.topic_id)
    return [PartitionObjects.of(part) for part in parts], findings


def _side_by_side(objects: Sequence[PartitionObjects]) -> int:
    """How many partitions are audited at a time; as if each were as large as the largest."""
    sizes = [len(part.entries) for part in objects]
    return min(sum(sizes) // (max(sizes, default=0) or 1), PLANNING_THREADS)


def _elsewhere(
    executor: AuditExecutor,
    job: AuditJob,
    objects: Sequence[PartitionObjects],
    kept: AuditState | None,
    on_read: Callable[[int], object] | None,
) -> Iterator[tuple[PartitionStatement, Sequence[Finding]]]:
    """The audits of all partitions by an executor."""
    tasks = [
        AuditTask(number, part, {} if kept is None else kept.lines(part.place))
        for number, part in enumerate(objects)
    ]
    missing = {task.number for task in tasks}
    for outcome in executor.run(tasks, job):
        missing.discard(outcome.number)
        if kept is not None:
            place = objects[outcome.number].place
            kept.take(place, outcome.lines, are_written=job.state is not None)
        if on_read is not None:
            on_read(outcome.read_bytes)
        yield outcome.statement, outcome.findings
    if missing:
        raise StoreError(f"the audits of {len(missing)} partitions did not answer")


def _asked(options: ScanOptions, objects: Sequence[PartitionObjects] = ()) -> BrokerSide | None:
    """Returns what brokers report now, where they are given.

    Raises:
        BrokerUnavailableError: They do not describe all partitions of which the tier has objects
            under the same topic id.
    """
    if options.brokers is None:
        return None
    from kts_source.auditing.brokers import BrokerSide  # with the client

    counts: dict[str, int] = {}
    for part in objects:
        counts[part.topic_id] = max(counts.get(part.topic_id, 0), part.partition + 1)
    return BrokerSide.now(options.brokers, options, counts)


def _compared(
    options: ScanOptions,
    objects: Sequence[PartitionObjects],
    statements: Sequence[PartitionStatement],
    findings: Sequence[Finding],
    sides: tuple[BrokerSide, BrokerSide],
    old_ms: int,
) -> tuple[list[PartitionStatement], list[Finding]]:
    """What the tier alone tells, put right by what brokers said before and behind its listing."""
    from kts_source.auditing.brokers import (
        against_brokers,
        unlisted,
        with_leaders_start,
        without_deleted,
    )

    before, after = sides
    last = after
    if any(one.objects and one.severity is not Severity.INFO for one in findings):
        last = _asked(options, objects) or after
    stated = {_place(one): one for one in statements}
    told = defaultdict(list)
    for finding in findings:
        told[_place(finding)].append(finding)
    found = unlisted(objects, before, after)
    for part in objects:
        at = _place(part)
        statement, own = without_deleted(part, stated[at], told[at], (before, after, last), old_ms)
        own = with_leaders_start(part, own, last)
        stated[at], told[at] = statement, own
        found += against_brokers(part, statement, own, before, after, last, old_ms=old_ms)
    found += [one for own in told.values() for one in own]
    faulty = {_place(one) for one in found if one.severity is Severity.ERROR}
    return [replace(one, is_whole=at not in faulty) for at, one in stated.items()], found


def _place(one: PartitionObjects | PartitionStatement | Finding) -> tuple[str, str, int]:
    return one.topic, one.topic_id, one.partition


def _state(
    path: str | None, tier: Tier, options: ScanOptions
) -> contextlib.AbstractContextManager[AuditState | None]:
    if path is None:
        return nullcontext(None)
    root = tier.store.uri(options.key_prefix)
    return AuditState(path, tier.caches.entry_name(options.layout, root).strip())


def _names(part: PartitionObjects) -> list[str]:
    return [entry.segment_id for entry in part.entries]


def _check(options: ScanOptions) -> None:
    named = sorted(options.given & set(_NOT_OF_A_TIER))
    if options.layout == "kafka-logs":
        named.append("layout=kafka-logs")
    if named:
        raise InvalidOptionError(f"an audit is of a whole tier: leave out {', '.join(named)}")
