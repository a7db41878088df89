"""Runs an audit in this process, in several processes, or on other machines."""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict

from kts_source.auditing.listing_checks import (
    PartitionObjects,
    check_topic_id,
    check_withheld,
    with_sources,
)
from kts_source.auditing.partition import PartitionAudit
from kts_source.auditing.report import (
    BYTES,
    LEVELS,
    METADATA,
    AuditReport,
    Finding,
    PartitionStatement,
    Severity,
    in_order,
)
from kts_source.auditing.state import NO_STATE, AuditState, PartitionState, open_to_append
from kts_source.errors import InvalidOptionError, StoreError
from kts_source.layout.aiven import AivenLayout
from kts_source.layout.find_layout import find_layout
from kts_source.options import options_of
from kts_source.planning.planner import paused_collector
from kts_source.planning.segment_catalog import (
    PLANNING_THREADS,
    SegmentCatalog,
    check_partitions,
    discover_topic,
    incarnations,
)
from kts_source.processes import in_processes
from kts_source.tier import Tier, open_uncached_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.auditing.broker_checks import BrokerSnapshot
    from kts_source.auditing.listing_checks import PartitionKey
    from kts_source.layout.layout import Layout
    from kts_source.options import Options, ScanOptions
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.store.object_store import ObjectStore

DEFAULT_GRACE_MS: Final = 3_600_000
"""Objects of incomplete segments that are younger than this count as a running copy."""
_NARROWING_OPTIONS: Final = {
    *("planFile", "tailPath", "catalog", "where", "timestampRange"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
}
"""Options that an audit rejects. They would exclude parts of the tier, or add other logs."""

_Result = tuple[PartitionStatement, "Sequence[Finding]"]


@dataclass(frozen=True, slots=True)
class AuditJob:
    """Settings that all tasks of an audit share. They contain credentials, so an `AuditJob` is only
    pickled, never printed or written as JSON.

    Attributes:
        options: Options of the audit. If tasks run in other processes, the private keys are loaded
            already.
        grace_ms: Age limit in ms. Younger objects of an incomplete segment are reported as a copy
            that is under way.
        now_ms: The time in ms since 1970.
        has_state: True if the audit has a state file.
        state: Path of the state file if tasks can write to it; otherwise `None`.
    """

    options: ScanOptions
    level: str
    grace_ms: int
    now_ms: int
    has_state: bool
    state: str | None = None


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """The result of an `AuditTask`, which audits one partition.

    Attributes:
        lines: New lines for the state file.
        read_bytes: Total original size of the logs that were read at level `bytes`, in bytes.
    """

    number: int
    statement: PartitionStatement
    findings: tuple[Finding, ...]
    lines: tuple[str, ...]
    read_bytes: int

    def to_text(self) -> str:
        """Returns the outcome as JSON."""
        findings = [finding.to_dict() for finding in self.findings]
        result = self.statement.to_dict(), findings
        return json.dumps([self.number, *result, self.lines, self.read_bytes])

    @classmethod
    def from_text(cls, text: str) -> AuditOutcome:
        """Restores an outcome from a result of `to_text`."""
        number, statement, findings, lines, read_bytes = json.loads(text)
        return cls(
            number,
            PartitionStatement.from_dict(statement),
            tuple(Finding.from_dict(fields) for fields in findings),
            tuple(lines),
            read_bytes,
        )


@dataclass(frozen=True, slots=True)
class AuditTask:
    """A task that audits one partition. It contains no credentials.

    Attributes:
        lines: The lines of the partition in the state file, by segment id; see `PartitionState`.
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
            nullcontext() if job.state is None else open_to_append(job.state) as write,
            nullcontext() if job.level == BYTES else paused_collector(),
        ):

            def keep(more: Sequence[str]) -> None:
                lines.extend(more)
                if write is not None:
                    write(more)

            layout = find_layout(job.options.layout)
            times = job.grace_ms, job.now_ms
            run = PartitionAudit(job.options, job.level, *times, tier, layout, pool, read.append)
            state = PartitionState(self.part.state_key, dict(self.lines), keep)
            statement, findings = run.audit(self.part, state if job.has_state else NO_STATE)
        return AuditOutcome(self.number, statement, tuple(findings), tuple(lines), sum(read))


class AuditExecutor(Protocol):
    """Interface for running the tasks of an audit in other processes or on other machines.

    Attributes:
        is_near: True if tasks run on this machine, so that they can write to the state file.
    """

    is_near: bool

    def run(self, tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        """Yields the outcomes of all tasks in any order. Raises the error of a task that fails."""
        ...


class AuditProcesses:
    """Runs tasks in processes of this machine.

    Args:
        workers: Maximum number of processes.
    """

    is_near = True

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        """See `AuditExecutor.run`."""
        if not tasks:
            return
        # Run the largest partitions first, so that the processes finish at about the same time.
        tasks = sorted(tasks, key=lambda task: -task.part.stored_bytes)
        yield from in_processes(partial(_run, job), tasks, min(self._workers, len(tasks)))


def _run(job: AuditJob, task: AuditTask) -> AuditOutcome:
    return task.run(job)


class AuditArguments(TypedDict, total=False):
    """Keyword arguments of `audit`."""

    level: str
    grace_ms: int
    store: ObjectStore | None
    now_ms: int | None
    on_read: Callable[[int], object] | None
    state: str | None
    jobs: int


def audit(
    source: Options | ScanOptions,
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
    """Audits a tier, see `kts_source.audit`.

    Args:
        source: Options as for the data source.
        level: The level of the audit.
        grace_ms: Age limit in ms. Younger objects of an incomplete segment are reported as a copy
            that is under way.
        store: The store of the tier. By default, the audit opens it from the options. Allowed only
            if the audit runs in this process.
        now_ms: The current time in ms since 1970; by default the time of the clock.
        on_read: At level `bytes`, called with the number of original log bytes that were read since
            the last call: after each segment, or after each task if tasks run in other processes.
        state: Path of the state file, which keeps proofs for the next audit; `None` keeps no
            proofs.
        jobs: Number of processes.
        executor: Runs one task per partition. By default, `jobs` processes of this machine run
            them.

    Raises:
        InvalidOptionError: See `kts_source.audit`.
        TopicNotFoundError: A requested topic is neither in the tier nor on the brokers in the
            options.
        StoreError: A request to the store failed.
    """
    options = options_of(source)
    _check(options, level, jobs)
    # A mirror would hide the faults of the tier.
    options = replace(options, fetch=replace(options.fetch, fallback_path=None))
    if jobs > 1 and executor is None:
        executor = AuditProcesses(jobs)
    if store is not None and executor is not None:
        raise InvalidOptionError(
            "a store object cannot be passed to other processes: remove argument store or jobs"
        )
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    is_near = executor is None or executor.is_near
    job = AuditJob(options, level, grace_ms, now, state is not None, state if is_near else None)
    with (
        closing(open_uncached_tier(options)) if store is None else nullcontext(Tier(store)) as tier,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-describe") as describing,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-audit") as pool,
        _open_state(state, tier, options) as kept,
        # Level `bytes` may run for days, so it must not run without garbage collection.
        nullcontext() if level == BYTES else paused_collector(),
    ):
        return _audit_tier(job, tier, (describing, pool), kept, on_read, executor)


def _audit_tier(
    job: AuditJob,
    tier: Tier,
    pools: tuple[Executor, Executor],
    state: AuditState | None,
    on_read: Callable[[int], object] | None,
    executor: AuditExecutor | None,
) -> AuditReport:
    options = job.options
    layout = find_layout(options.layout)
    before = _query_brokers(options)
    # Brokers may have topics that were never tiered, or whose objects were all deleted.
    in_cluster = {} if before is None else before.topic_ids
    listed, others = _list_partitions(options, tier, layout, pools, in_cluster)
    after = _query_brokers(options, listed)
    snapshots = [snapshot for snapshot in (before, after) if snapshot is not None]
    partitions, findings = _mark_used(listed, others, snapshots)
    if executor is None:
        times = job.grace_ms, job.now_ms
        run = PartitionAudit(options, job.level, *times, tier, layout, pools[0], on_read)
        results = _audit_in_this_process(run, partitions, state, pools[1])
    else:
        job = replace(job, options=replace(options, key_ring=options.key_ring.loaded()))
        results = _audit_with_executor(executor, job, partitions, state, on_read)
    statements = []
    for statement, more in results:
        statements.append(statement)
        findings += more
    if before is not None and after is not None:
        result, old_ms = (statements, findings), job.now_ms - job.grace_ms
        statements, findings = _compare(options, partitions, result, before, after, old_ms)
    findings = [*_without_used(findings, partitions)]
    if state is not None:
        state.finish({p.state_key: [entry.segment_id for entry in p.entries] for p in partitions})
    statements.sort(key=lambda statement: (statement.topic, statement.partition))
    uri = tier.store.uri(options.key_prefix)
    return AuditReport(job.level, job.now_ms, uri, in_order(findings), tuple(statements))


def _check(options: ScanOptions, level: str, jobs: int) -> None:
    if level not in LEVELS:
        raise InvalidOptionError(f"unknown audit level {level!r}. Use one of {', '.join(LEVELS)}.")
    named = sorted(options.given & _NARROWING_OPTIONS)
    if options.layout == "kafka-logs":
        named.append("layout=kafka-logs")
    if named:
        raise InvalidOptionError(f"an audit covers the complete tier: remove {', '.join(named)}")
    if jobs < 1:
        raise InvalidOptionError(f"jobs={jobs} is invalid: an audit takes one process or more")


def _open_state(
    path: str | None, tier: Tier, options: ScanOptions
) -> contextlib.AbstractContextManager[AuditState | None]:
    if path is None:
        return nullcontext(None)
    root = tier.store.uri(options.key_prefix)
    return AuditState(path, tier.caches.entry_name(options.layout, root).strip())


def _list_partitions(
    options: ScanOptions,
    tier: Tier,
    layout: Layout,
    pools: tuple[Executor, Executor],
    in_cluster: Mapping[str, str],
) -> tuple[list[PartitionObjects], list[tuple[PartitionObjects, str]]]:
    """Lists the tier. Returns two values: the objects of each partition, and the partitions whose
    topic id neither readers nor brokers use, each with the topic id that readers use. `in_cluster`
    contains the topic ids of the brokers by topic.
    """
    tolerant = replace(options, fail_on_data_loss=False)
    describing, pool = pools
    catalog = SegmentCatalog(tier, layout, describing, fail_on_data_loss=False)
    partitions: list[PartitionObjects] = []
    topics = [
        discover_topic(tolerant, topic, folders, catalog, pool)
        for topic, folders in sorted(incarnations(options, catalog, in_cluster).items())
    ]
    if not in_cluster:
        check_partitions(options, topics, catalog)
    others: list[tuple[PartitionObjects, str]] = []
    for listed in topics:
        for each in (*listed.partitions, *listed.others):
            partition = _objects_of(each, tier.store, layout, describing)
            if each.topic_id in (listed.topic_id, in_cluster.get(each.topic)):
                if partition.entries or partition.orphans:
                    partitions.append(partition)
            elif partition.is_restored:  # with zero copy, and nothing uploaded since then
                partitions.append(partition)
            else:
                others.append((partition, listed.topic_id))
    return partitions, others


def _owners(
    listed: Iterable[PartitionObjects], snapshots: Iterable[BrokerSnapshot]
) -> dict[str, frozenset[PartitionKey]]:
    """Returns the partitions that refer to a segment, by the segment's name."""
    names: dict[PartitionKey, set[str]] = defaultdict(set)
    for each in listed:
        names[each.key] |= each.references
    for snapshot in snapshots:
        for key, announced in snapshot.announced():
            names[key].update(announced)
    owners: dict[str, frozenset[PartitionKey]] = {}
    for key, names_of_key in names.items():
        own = frozenset({key})
        for name in names_of_key:
            owners[name] = owners[name] | own if name in owners else own
    return owners


def _mark_used(
    partitions: Sequence[PartitionObjects],
    others: Sequence[tuple[PartitionObjects, str]],
    snapshots: Sequence[BrokerSnapshot],
) -> tuple[list[PartitionObjects], list[Finding]]:
    """Marks the objects that another topic id may use. Returns two values: the marked
    `partitions`, and findings about objects of older topic ids. `others` are the partitions whose
    topic id readers do not use, each with the topic id that they use.

    Brokers may announce segments whose manifests are lost. Objects of another topic id with the
    same names count as used. If no manifest of the brokers' topic id exists, all objects of older
    ids count as used, because brokers may have lost the announcements, too. Without brokers, they
    count as used if any topic uses objects of another id, because its manifests may be lost.
    """
    listed = [*partitions, *(partition for partition, _ in others)]
    owners = _owners(listed, snapshots)
    present = {(each.topic, each.topic_id) for each in listed if each.has_manifests}
    lost = {
        topic: topic_id
        for snapshot in snapshots
        for topic, topic_id in snapshot.topic_ids.items()
        if (topic, topic_id) not in present
    }
    findings: list[Finding] = []

    def withheld(partition: PartitionObjects, reason: str) -> PartitionObjects:
        if partition.sizes:
            findings.append(check_withheld(partition, reason))
        return replace(partition, used=frozenset(partition.sizes))

    def mark(partition: PartitionObjects) -> PartitionObjects:
        current = lost.get(partition.topic, partition.topic_id)
        if current == partition.topic_id:
            return partition.with_used(owners)
        return withheld(
            partition,
            f"the tier has no manifest of the brokers' topic id {current}, so it is unknown whether"
            " this topic was restored with zero copy and uses them",
        )

    marked = [mark(partition) for partition in partitions]
    restored = next((each for each in listed if each.is_restored), None)
    for partition, chosen in others:
        if restored is None or snapshots:
            findings += check_topic_id(mark(partition), chosen)
        else:
            withheld(
                partition,
                f"topic {restored.topic} was restored with zero copy, and a lost manifest may refer"
                " to them. Repeat the audit with kafka.bootstrap.servers",
            )
    return marked, findings


def _objects_of(
    partition: ListedPartition, store: ObjectStore, layout: Layout, pool: Executor
) -> PartitionObjects:
    if isinstance(layout, AivenLayout):
        return with_sources(partition, layout, store, pool)
    return PartitionObjects.of(partition)


def _without_used(
    findings: Iterable[Finding], partitions: Iterable[PartitionObjects]
) -> Iterator[Finding]:
    """Yields the findings without objects that must not be deleted."""
    by_key = {partition.key: partition for partition in partitions}
    for finding in findings:
        partition = by_key.get(_key(finding))
        kept = finding if partition is None else partition.without_used(finding)
        if kept is not None:
            yield kept


def _audit_in_this_process(
    run: PartitionAudit,
    partitions: Sequence[PartitionObjects],
    state: AuditState | None,
    pool: Executor,
) -> Iterable[_Result]:
    if run.level != BYTES:
        # Number of partitions audited concurrently. Assumes that all are as large as the largest.
        sizes = [len(partition.entries) for partition in partitions]
        concurrency = min(sum(sizes) // (max(sizes, default=0) or 1), PLANNING_THREADS)
        run = replace(run, concurrency=concurrency)

    def audit_partition(partition: PartitionObjects) -> _Result:
        return run.audit(
            partition, NO_STATE if state is None else state.partition(partition.state_key)
        )

    # At level `bytes`, partitions are audited one after the other, because the read-ahead within
    # one partition sends enough concurrent requests.
    return (map if run.level == BYTES else pool.map)(audit_partition, partitions)


def _audit_with_executor(
    executor: AuditExecutor,
    job: AuditJob,
    partitions: Sequence[PartitionObjects],
    state: AuditState | None,
    on_read: Callable[[int], object] | None,
) -> Iterator[_Result]:
    tasks = [
        AuditTask(number, partition, {} if state is None else state.lines(partition.state_key))
        for number, partition in enumerate(partitions)
    ]
    missing = {task.number for task in tasks}
    for outcome in executor.run(tasks, job):
        missing.discard(outcome.number)
        if state is not None:
            key = partitions[outcome.number].state_key
            state.merge(key, outcome.lines, are_written=job.state is not None)
        if on_read is not None:
            on_read(outcome.read_bytes)
        yield outcome.statement, outcome.findings
    if missing:
        raise StoreError(
            f"{len(missing)} partitions were not audited: their tasks returned no result."
            " Run the audit again"
        )


def _query_brokers(
    options: ScanOptions, partitions: Sequence[PartitionObjects] = ()
) -> BrokerSnapshot | None:
    """Queries the brokers and returns their responses; `None` if the options have no brokers.
    `partitions` are the listed partitions of the tier.

    Raises `BrokerUnavailableError` if brokers do not answer, or repeatedly describe fewer
    partitions of a topic id than the tier has.
    """
    if options.brokers is None:
        return None
    from kts_source.auditing.broker_checks import BrokerSnapshot  # with the client

    counts: dict[str, int] = {}
    for partition in partitions:
        counts[partition.topic_id] = max(counts.get(partition.topic_id, 0), partition.partition + 1)
    return BrokerSnapshot.take(options.brokers, options, counts)


def _compare(
    options: ScanOptions,
    partitions: Sequence[PartitionObjects],
    result: tuple[Sequence[PartitionStatement], Sequence[Finding]],
    before: BrokerSnapshot,
    after: BrokerSnapshot,
    old_ms: int,
) -> tuple[list[PartitionStatement], list[Finding]]:
    """Compares the result of the audit with the brokers' responses from before and after the
    listing. Returns the corrected statements and the corrected findings. `result` contains
    statements and findings from the tier alone; for `old_ms`, see `check_partition`.
    """
    from kts_source.auditing.broker_checks import (
        check_leader_start,
        check_partition,
        check_unlisted,
        without_deleted,
    )

    statements, findings = result
    last = after
    if any(finding.objects and finding.severity is not Severity.INFO for finding in findings):
        last = _query_brokers(options, partitions) or after
    by_key = {_key(statement): statement for statement in statements}
    own_findings = defaultdict(list)
    for finding in findings:
        own_findings[_key(finding)].append(finding)
    compared = check_unlisted(partitions, before, after)
    for partition in partitions:
        snapshots = before, after, last
        statement, own = without_deleted(
            partition, by_key[partition.key], own_findings[partition.key], snapshots, old_ms
        )
        own = check_leader_start(partition, own, last)
        by_key[partition.key], own_findings[partition.key] = statement, own
        compared += check_partition(partition, statement, own, snapshots, old_ms=old_ms)
    compared += [finding for own in own_findings.values() for finding in own]
    faulty = {_key(finding) for finding in compared if finding.severity is Severity.ERROR}
    checked = [replace(statement, is_whole=key not in faulty) for key, statement in by_key.items()]
    return checked, compared


def _key(result: Any) -> tuple[str, str, int]:  # noqa: ANN401  # statement or finding
    return result.topic, result.topic_id, result.partition
