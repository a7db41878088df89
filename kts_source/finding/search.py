"""`kts_source.find(source, …)`: all records that meet some conditions, and proof that there are no
others.

What a search reads, planned so that what cannot be planned costs no more than itself.

From what was planned and read of a partition to its part of the certificate.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.finding.certificate import (
    OF_FILTERS,
    Certificate,
    PartitionCertificate,
    Undecided,
    UnreadRange,
    UnservedObjects,
    assumptions_of,
    conditions_of,
    digest_of_objects,
    outside_of,
)
from kts_source.finding.key_index import IndexFolder, RuleOut
from kts_source.finding.query import Query, assumption, partition_counts, partitions_of, query_of
from kts_source.finding.read_apart import PLACE, SearchedTask, TaskSearch
from kts_source.options import check_for_batch, parse_any_options
from kts_source.options.selection import Assign
from kts_source.options.value_formats import DROP_MALFORMED
from kts_source.planning.infer_types import with_types
from kts_source.planning.planner import plan_scan
from kts_source.read.handover import ThreadTiers, in_threads
from kts_source.read.read_settings import FOR_ENGINES, ReadSettings, read_schema
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task import ScanTask
from kts_source.read.task_metrics import DONE, TaskMeter, TaskPlace
from kts_source.texts import one_line
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

    import pyarrow as pa

    from kts_source.finding.query import Conditions
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
    from kts_source.read.task import SegmentSlice


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A plan, and what it lacks.

    Attributes:
        plan: What is read.
        faults: What had to be overlooked to make it, in words.
        uri: Root of the tier.
        listed_ms: When the tier was listed, in ms since 1970: what came later is not searched.
        counts: With `partitionerPruning`, topic -> how many partitions it has.
        wanted: Likewise, topic -> the partitions that may hold a key; `None` = any may.
    """

    plan: ScanPlan
    faults: tuple[str, ...]
    uri: str
    listed_ms: int
    counts: Mapping[str, int]
    wanted: Mapping[str, frozenset[int]] | None

    @classmethod
    def of(cls, options: ScanOptions, query: Query) -> SearchPlan:
        """Plans a search.

        A plan that nothing is wrong with is tried first: what a lenient one leaves out, it only
        logs.

        Raises:
            TieredKafkaError: Nothing tells what the tier holds, or options contradict it.
        """
        listed_ms = time.time_ns() // 1_000_000
        faults: list[str] = []
        with closing(open_tier(options)) as tier:
            uri = tier.store.uri(options.key_prefix)
            refused: list[TieredKafkaError] = []
            try:
                plan = plan_scan(options, tier, apart=refused.append)
            except InvalidOptionError:
                raise
            except TieredKafkaError as error:
                refused = [error]
            if refused:
                faults += map(_said, refused)
                lenient = replace(options, fail_on_data_loss=False)
                refused = []
                plan = plan_scan(lenient, tier, apart=refused.append)
                faults += (f"a partition was not searched: {_said(error)}" for error in refused)
        faults += _without_segments(options, plan)
        counts: Mapping[str, int] = {}
        wanted = None
        if query.partitioner_pruning:
            counts = partition_counts(options, plan, query.num_partitions)
            assert query.keys is not None, "checked by the query"
            of_count = {count: partitions_of(query.keys, count) for count in set(counts.values())}
            wanted = {topic: of_count[count] for topic, count in counts.items()}
        return cls(plan, tuple(faults), uri, listed_ms, counts, wanted)

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a partition may hold one of the keys."""
        return self.wanted is None or partition in self.wanted[topic]


def _without_segments(options: ScanOptions, plan: ScanPlan) -> Iterator[str]:
    """Partitions that the user names and the tier does not have: perhaps another was meant."""
    if isinstance(options.selection, Assign):
        there = {(part.topic, part.partition) for part in plan.partitions}
        for topic, numbers in options.selection.partitions.items():
            for number in numbers:
                if (topic, number) not in there:
                    yield f"{topic}-{number} was asked for, and the tier has no segment of it"


def _said(error: TieredKafkaError) -> str:
    return one_line(str(error))


def certified_as_pruned(part: PartitionPlan) -> PartitionCertificate:
    """Of a partition that was not searched."""
    left_out = "partitionerPruning: none of the keys belongs to this partition"
    nothing = replace(part, undecided=(), orphans=(), stop=part.start, wanted_stop=part.start)
    found = certified(nothing, (), (), None)
    return replace(found, unserved=(), left_out=left_out)


def certified(
    part: PartitionPlan,
    done: Sequence[SearchedTask],
    ruled_out: Collection[ObjectRef],
    planned: Sequence[SegmentSlice] | None,
) -> PartitionCertificate:
    """Of a partition that was searched.

    Args:
        part: The partition.
        done: Its tasks.
        ruled_out: Logs that filters left out.
        planned: All slices of the plan, whether read or ruled out; `None` where a condition on
            offsets or times has left out some.
    """
    unread = [one for each in done for one in each.search.unread]
    for hole in part.surviving.missing:
        start, stop = max(hole.start, part.start), min(hole.stop, part.wanted_stop)
        if start < stop:
            reason = f"no segment holds these offsets, {hole.between}"
            unread.append(UnreadRange(start, stop, reason, None))
    if planned is not None:
        unread += _not_planned(part, planned, unread)
    undecided = tuple(Undecided(one.producer_id, one.first_offset) for one in part.undecided)
    if part.stop < part.wanted_stop:
        reason = "read_committed ends where a transaction is undecided"
        unread.append(UnreadRange(part.stop, part.wanted_stop, reason, None))
    unserved = [
        UnservedObjects((one.segment.objects.log.key,), one.reason)
        for one in part.surviving.skipped
    ]
    unserved += _served_in_part(part)
    unserved += [UnservedObjects(one.keys, one.reason) for one in part.orphans]
    logs = {piece.objects.log for each in done for piece in each.search.task.slices}
    return PartitionCertificate(
        topic=part.topic,
        topic_id=part.topic_id,
        partition=part.partition,
        start=part.start,
        stop=part.stop,
        unread=tuple(sorted(unread, key=lambda one: (one.start, one.stop))),
        undecided=undecided,
        unserved=tuple(unserved),
        left_out=None,
        segments=len(logs),
        stored_bytes=sum(log.size for log in logs),
        objects_digest=digest_of_objects(logs),
        ruled_out=len(ruled_out),
        ruled_out_digest=digest_of_objects(ruled_out),
        records=sum(each.metrics.records + each.metrics.records_skipped_key for each in done),
        matches=sum(each.search.matches for each in done),
    )


def _not_planned(
    part: PartitionPlan, planned: Sequence[SegmentSlice], unread: Sequence[UnreadRange]
) -> Iterator[UnreadRange]:
    """Offsets that nothing accounts for. There are none, but a mistake in a plan must not become a
    proof.
    """
    at = part.start
    covered = [(one.start_offset, one.stop_offset) for one in planned]
    covered += ((one.start, one.stop) for one in unread)
    for start, stop in sorted([*covered, (part.stop, part.stop)]):
        if at < min(start, part.stop):
            reason = "the plan has neither a segment nor a hole for these offsets"
            yield UnreadRange(at, min(start, part.stop), reason, None)
        at = max(at, stop)


def _served_in_part(part: PartitionPlan) -> Iterator[UnservedObjects]:
    """Segments of which the log has some offsets alone; those that are named as skipped are not
    named again.
    """
    named = {one.segment.objects.log.key for one in part.surviving.skipped}
    served: dict[str, list[tuple[int, int]]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for span in part.surviving.ranges:
        key = span.segment.objects.log.key
        served[key].append((span.start, span.stop))
        sizes[key] = span.segment.stop_offset - span.segment.start_offset
    for key, ranges in served.items():
        if key not in named and sum(stop - start for start, stop in ranges) < sizes[key]:
            text = ", ".join(f"[{start}, {stop})" for start, stop in ranges)
            yield UnservedObjects((key,), f"of its offsets, those of the log are {text} alone")


_TASK_BYTES: Final = 32 << 20
"""As for scans: threads that hand rows over in order wait for each other's tasks."""
_ISOLATION: Final = "isolationLevel"


def find(source: Mapping[str, str], **conditions: Unpack[Conditions]) -> Search:
    """All records of topics that meet some conditions, and proof that there are no others.

    Nothing is asked of the store before a row is wanted, but a sample of JSON without schema.

    Args:
        source: Options as for `spark.read.format("tiered-kafka")`; option `where` is one of the
            conditions, and `columns` says what is given of each record.
        **conditions: See `Conditions`.

    Raises:
        InvalidOptionError: Options or conditions that are unknown, malformed or contradictory.
    """
    check_for_batch(options := parse_any_options(source))
    if "targetPartitionBytes" not in options.given:
        options = replace(options, target_partition_bytes=_TASK_BYTES)
    options = replace(with_types(options), key_ring=options.key_ring.loaded())
    return Search(options, query_of(**conditions))


@dataclass(frozen=True, slots=True)
class _Run:
    """A search that was read to its end.

    Attributes:
        done: Its tasks.
        filters: What left out others; `None` where no filters were asked.
    """

    done: tuple[SearchedTask, ...]
    filters: RuleOut | None


class Search:
    """The records that meet a query, read when they are asked for, and what was searched for them.

    Args:
        options: Of the scan that is searched. Without `isolationLevel` it is `read_uncommitted`:
            records of aborted transactions lie in the tier as all others do.
        query: Conditions beside option `where`.

    Raises:
        InvalidOptionError: Options that a search cannot honour.
    """

    def __init__(self, options: ScanOptions, query: Query) -> None:
        _check(options, query)
        if _ISOLATION not in options.given:
            options = replace(options, isolation_level="read_uncommitted")
        self._options = replace(options, fail_on_data_loss=True)
        self._query = query
        self._planned: SearchPlan | None = None
        self._run: _Run | None = None
        self._lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        return read_schema(self._options.columns, self._options.formats)

    def batches(
        self,
        *,
        threads: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Generator[pa.RecordBatch]:
        """The records, in order of topic, partition and offset. Close the generator to stop.

        Args:
            threads: How many tasks are read at a time, at least one; default: one a core.
            progress: Called after each task with the original bytes of the tasks that were read,
                and of all. In any thread.

        Raises:
            InvalidOptionError: Filters of keys that were made with another secret.
            TieredKafkaError: The tier cannot be planned at all: nothing tells what it holds.
            ValueError: No thread.
        """
        threads = (os.cpu_count() or 1) if threads is None else threads
        if threads < 1:
            raise ValueError(f"{threads} threads cannot search")
        # What is counted belongs to this generator: another one may run beside it.
        self._run = None
        done: list[SearchedTask] = []
        planned = self._plan()
        tasks = [
            task
            for task in _of_one_partition(planned.plan.tasks)
            if planned.holds(task.slices[0].topic, task.slices[0].partition)
        ]
        filters = self._rule_out(planned)
        if filters is not None:
            tasks = list(filters.narrowed(tasks))
        every = sum(task.nominal_bytes for task in tasks)
        columns = (*self._options.columns, *PLACE, *self._query.columns)
        settings = replace(
            ReadSettings.of(self._options),
            columns=tuple(dict.fromkeys(columns)),
            batches=FOR_ENGINES,
            keys=self._query.keys,
        )
        tiers = ThreadTiers(self._options)
        read = 0

        def search(task: ScanTask) -> Generator[pa.RecordBatch]:
            nonlocal read
            tier = tiers.mine()
            meter = TaskMeter(task, tier, TaskPlace())
            reader = SegmentSource(tier, self._options.key_ring)
            found = TaskSearch(task, self._query)
            with closing(found.rows(reader, settings, meter)) as rows:
                for batch in rows:
                    yield batch.select(self._options.columns)
            with self._lock:
                done.append(SearchedTask(found, meter.finished(DONE)))
                read += task.nominal_bytes
                if progress is not None:
                    progress(read, every)

        with closing(tiers):
            if threads == 1 or len(tasks) < 2:
                for task in tasks:
                    yield from search(task)
            else:
                reads = [partial(search, task) for task in tasks]
                with closing(in_threads(reads, threads, ordered=True)) as batches:
                    yield from batches
        if len(done) != len(tasks):
            raise RuntimeError(f"{len(done)} of {len(tasks)} tasks were searched")
        self._run = _Run(tuple(done), filters)

    def to_table(self, *, threads: int | None = None) -> pa.Table:
        """All records in memory; see `batches`."""
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(threads=threads), self.schema)

    @property
    def certificate(self) -> Certificate:
        """What was searched, once `batches` was read to its end.

        Raises:
            RuntimeError: It was not.
        """
        run, planned = self._run, self._planned
        if run is None or planned is None:
            raise RuntimeError("a search has a certificate once its batches were read to the end")
        options, query, plan = self._options, self._query, planned.plan
        done: dict[tuple[str, int], list[SearchedTask]] = defaultdict(list)
        for one in run.done:
            part = one.search.task.slices[0]
            done[part.topic, part.partition].append(one)
        slices: dict[tuple[str, int], list[SegmentSlice]] = defaultdict(list)
        for part in (part for task in plan.tasks for part in task.slices):
            slices[part.topic, part.partition].append(part)

        def of_partition(part: PartitionPlan) -> PartitionCertificate:
            place = part.topic, part.partition
            if not planned.holds(*place):
                return certified_as_pruned(part)
            logs = () if run.filters is None else run.filters.logs.get(place, ())
            return certified(
                part, done[place], logs, None if options.where is not None else slices[place]
            )

        return Certificate(
            searched_ms=planned.listed_ms,
            path=planned.uri,
            isolation_level=options.isolation_level,
            keys=None if query.keys is None else len(query.keys),
            key_digest=query.key_digest,
            conditions=conditions_of(options, query),
            assumptions=(
                *assumptions_of(options, plan),
                *([assumption(planned.counts)] if query.partitioner_pruning else ()),
                *([OF_FILTERS] if run.filters is not None else ()),
            ),
            outside=outside_of(options, plan),
            faults=planned.faults,
            partitions=tuple(map(of_partition, plan.partitions)),
            requests=sum(one.metrics.requests for one in run.done),
            bytes=sum(one.metrics.bytes for one in run.done),
        )

    def _rule_out(self, planned: SearchPlan) -> RuleOut | None:
        query = self._query
        if query.key_index is None or query.keys is None:
            return None
        secret = None if query.key_index_secret is None else query.key_index_secret.reveal()
        folder = IndexFolder.of(query.key_index, secret, self._options)
        ids = {(part.topic, part.partition): part.topic_id for part in planned.plan.partitions}
        return RuleOut(folder, planned.uri, query.keys, ids)

    def _plan(self) -> SearchPlan:
        """The plan, made once."""
        with self._lock:
            if self._planned is None:
                self._planned = SearchPlan.of(self._options, self._query)
            return self._planned


def _check(options: ScanOptions, query: Query) -> None:
    if query == Query() and options.where is None:
        raise InvalidOptionError("say what to look for: keys, values, headers, producers, or where")
    query.check(options)
    if any(one.mode == DROP_MALFORMED for one in options.formats):
        raise InvalidOptionError(
            "a search leaves out no record because it cannot be decoded: use mode FAILFAST or"
            " PERMISSIVE"
        )
    named = [name for name in ("planFile",) if name in options.given]
    if options.brokers is not None:
        named.append("kafka.bootstrap.servers")
    if named:
        raise InvalidOptionError(f"a search is of what stores hold: leave out {', '.join(named)}")


def _of_one_partition(tasks: Sequence[ScanTask]) -> Iterator[ScanTask]:
    """The same slices in tasks of one partition each."""
    for task in tasks:
        slices = list(task.slices)
        while slices:
            place = slices[0].topic, slices[0].partition
            stop = next(
                (at for at, one in enumerate(slices) if (one.topic, one.partition) != place),
                len(slices),
            )
            yield ScanTask(tuple(slices[:stop]))
            del slices[:stop]
