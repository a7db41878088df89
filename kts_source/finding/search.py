"""`kts_source.find(source, …)`: all records that meet some conditions, and proof that there are no
others.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Unpack

from kts_source.errors import CorruptSegmentError, DataLossError, InvalidOptionError
from kts_source.finding.certificate import (
    Certificate,
    PartitionCertificate,
    Undecided,
    UnreadRange,
    UnservedObjects,
    digest_of_objects,
)
from kts_source.finding.key_index import IndexFolder
from kts_source.finding.partitioner import assumption, partition_counts, partitions_of
from kts_source.finding.query import Query, query_of
from kts_source.finding.read_apart import PLACE, TaskSearch
from kts_source.finding.rule_out import RuleOut
from kts_source.finding.statements import OF_FILTERS, assumptions_of, conditions_of
from kts_source.options import check_for_batch, parse_any_options
from kts_source.planning.infer_types import with_types
from kts_source.planning.planner import plan_scan
from kts_source.read.handover import in_threads
from kts_source.read.read_settings import FOR_ENGINES, ReadSettings
from kts_source.read.row_schema import read_schema
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task import ScanTask
from kts_source.read.task_metrics import DONE, TaskMeter, TaskPlace
from kts_source.read.thread_tiers import ThreadTiers
from kts_source.texts import one_line
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

    import pyarrow as pa

    from kts_source.finding.query import Conditions
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
    from kts_source.read.task_metrics import TaskMetrics

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
class _Done:
    """A task that was searched."""

    search: TaskSearch
    metrics: TaskMetrics


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
        self._done: list[_Done] = []
        self._is_whole = False
        self._began_ms = 0
        self._plan: tuple[ScanPlan, tuple[str, ...]] | None = None
        self._counts: dict[str, int] = {}
        self._wanted: dict[str, frozenset[int]] = {}
        self._filters: RuleOut | None = None
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
            threads: How many tasks are read at a time; default: one a core.
            progress: Called after each task with the original bytes of the tasks that were read,
                and of all. In any thread.

        Raises:
            TieredKafkaError: The tier cannot be planned at all: nothing tells what it holds.
        """
        self._is_whole, self._done = False, []
        self._began_ms = time.time_ns() // 1_000_000
        plan, _ = self._planned()
        tasks = [
            task
            for task in _of_one_partition(plan.tasks)
            if self._holds(task.slices[0].topic, task.slices[0].partition)
        ]
        filters = self._filters = self._rule_out(plan)
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
                self._done.append(_Done(found, meter.finished(DONE)))
                read += task.nominal_bytes
                if progress is not None:
                    progress(read, every)

        threads = (os.cpu_count() or 1) if threads is None else threads
        with closing(tiers):
            if threads == 1 or len(tasks) < 2:
                for task in tasks:
                    yield from search(task)
            else:
                reads = [partial(search, task) for task in tasks]
                with closing(in_threads(reads, threads, ordered=True)) as batches:
                    yield from batches
        self._is_whole = True

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
        if not self._is_whole:
            raise RuntimeError("a search has a certificate once its batches were read to the end")
        plan, faults = self._planned()
        options, query = self._options, self._query
        by_place: dict[tuple[str, int], list[_Done]] = {}
        for done in self._done:
            part = done.search.task.slices[0]
            by_place.setdefault((part.topic, part.partition), []).append(done)
        return Certificate(
            searched_ms=self._began_ms,
            path=self._uri,
            isolation_level=options.isolation_level,
            keys=None if query.keys is None else len(query.keys),
            key_digest=query.key_digest,
            conditions=conditions_of(options, query),
            assumptions=(
                *assumptions_of(options, plan),
                *([assumption(self._counts)] if query.partitioner_pruning else ()),
                *([OF_FILTERS] if self._filters is not None else ()),
            ),
            faults=faults,
            partitions=tuple(
                self._certified(part, by_place.get((part.topic, part.partition), []))
                for part in plan.partitions
            ),
            requests=sum(done.metrics.requests for done in self._done),
            bytes=sum(done.metrics.bytes for done in self._done),
        )

    def _certified(self, part: PartitionPlan, done: Sequence[_Done]) -> PartitionCertificate:
        if not self._holds(part.topic, part.partition):
            return _pruned(part)
        place = part.topic, part.partition
        logs = () if self._filters is None else self._filters.logs.get(place, ())
        return _certified(part, done, logs)

    def _rule_out(self, plan: ScanPlan) -> RuleOut | None:
        query = self._query
        if query.key_index is None or query.keys is None:
            return None
        secret = None if query.key_index_secret is None else query.key_index_secret.reveal()
        folder = IndexFolder.of(query.key_index, secret, self._options)
        ids = {(part.topic, part.partition): part.topic_id for part in plan.partitions}
        return RuleOut(folder, self._uri, query.keys, ids)

    def _planned(self) -> tuple[ScanPlan, tuple[str, ...]]:
        """The plan, made once, and what had to be overlooked to make it.

        A plan that nothing is wrong with is made first: what a lenient one leaves out, it only
        logs.
        """
        if self._plan is None:
            with closing(open_tier(self._options)) as tier:
                self._uri = tier.store.uri(self._options.key_prefix)
                try:
                    self._plan = plan_scan(self._options, tier), ()
                except (DataLossError, CorruptSegmentError) as error:
                    lenient = replace(self._options, fail_on_data_loss=False)
                    self._plan = plan_scan(lenient, tier), (one_line(str(error)),)
            if self._query.partitioner_pruning:
                counts = partition_counts(self._options, self._plan[0], self._query.num_partitions)
                self._counts = counts
                keys = self._query.keys
                assert keys is not None, "checked by the query"
                of_count = {count: partitions_of(keys, count) for count in set(counts.values())}
                self._wanted = {topic: of_count[count] for topic, count in counts.items()}
        return self._plan

    def _holds(self, topic: str, partition: int) -> bool:
        """Whether a partition may hold one of the keys."""
        return not self._query.partitioner_pruning or partition in self._wanted[topic]


def _check(options: ScanOptions, query: Query) -> None:
    if query == Query() and options.where is None:
        raise InvalidOptionError("say what to look for: keys, values, headers, producers, or where")
    query.check(options)
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


def _pruned(part: PartitionPlan) -> PartitionCertificate:
    """Of a partition that was not searched."""
    left_out = "partitionerPruning: none of the keys belongs to this partition"
    nothing = replace(part, undecided=(), orphans=(), stop=part.start, wanted_stop=part.start)
    found = _certified(nothing, (), ())
    return replace(found, unserved=(), left_out=left_out)


def _certified(
    part: PartitionPlan, done: Sequence[_Done], ruled_out: Collection[ObjectRef]
) -> PartitionCertificate:
    unread = [one for each in done for one in each.search.unread]
    for hole in part.surviving.missing:
        start, stop = max(hole.start, part.start), min(hole.stop, part.wanted_stop)
        if start < stop:
            reason = f"no segment holds these offsets, {hole.between}"
            unread.append(UnreadRange(start, stop, reason, None))
    undecided = tuple(Undecided(one.producer_id, one.first_offset) for one in part.undecided)
    if part.stop < part.wanted_stop:
        reason = "read_committed ends where a transaction is undecided"
        unread.append(UnreadRange(part.stop, part.wanted_stop, reason, None))
    unserved = [
        UnservedObjects((one.segment.objects.log.key,), one.reason)
        for one in part.surviving.skipped
    ]
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
