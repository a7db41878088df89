"""Finds all records that meet conditions, and certifies the search.

All offsets are searched, except offsets that cannot be planned or read. The certificate of a search
lists the exceptions.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from kts_source.columns import PARTITION, TOPIC
from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    MissingExtraError,
    TieredKafkaError,
    TopicNotFoundError,
)
from kts_source.finding.certificate import (
    Certificate,
    PartitionCertificate,
    Undecided,
    UnreadRange,
    UnservedObjects,
    archived_object,
    assumptions_of,
    conditions_of,
    digest_of_objects,
    formats_of,
    outside_of,
)
from kts_source.finding.key_index import IndexFolder, SegmentFilters
from kts_source.finding.query import (
    Query,
    partition_counts,
    partitions_of,
    pruning_assumption,
)
from kts_source.options.scan_options import scan_facts
from kts_source.options.selection import Assign
from kts_source.options.value_formats import DROP_MALFORMED, PERMISSIVE, further_columns
from kts_source.planning.planner import plan_scan
from kts_source.predicate.model import fields_of
from kts_source.read.handover import ThreadTiers, in_threads
from kts_source.read.read_settings import FOR_ENGINES, ReadSettings, read_schema
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task import ScanTask
from kts_source.read.task_metrics import DONE, TaskMeter, TaskPlace
from kts_source.texts import Displayed, Table, whole_line
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    import pyarrow as pa

    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.task import SegmentSlice
    from kts_source.read.task_metrics import TaskMetrics

_ISOLATION: Final = "isolationLevel"
_LOCATION_COLUMNS: Final = (TOPIC, PARTITION, "offset")
_MAX_RANGES: Final = 1000
"""Max number of ranges of undecodable records per slice, so that certificates stay small."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The plan of a search.

    Attributes:
        plan: The slices to read.
        faults: Faults of the tier; the plan skips the affected offsets.
        uri: Root of the tier.
        listed_ms: When the tier was listed, in ms since 1970.
        counts: Number of partitions by topic; empty without `partitionerPruning`.
        wanted: By topic, the numbers of the partitions that may have one of the keys; `None` means
            all partitions.
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

        First plans with `failOnDataLoss=true` to get all faults, because a plan with
        `failOnDataLoss=false` only logs them. If there are faults, plans again with
        `failOnDataLoss=false`.

        Raises:
            TieredKafkaError: The tier cannot be listed, or the options do not fit its content.
        """
        listed_ms = time.time_ns() // 1_000_000
        faults: list[str] = []
        refused: list[TieredKafkaError] = []
        with closing(open_tier(options)) as tier:
            uri = tier.store.uri(options.key_prefix)
            try:
                plan = plan_scan(options, tier, on_partition_error=refused.append)
            except (InvalidOptionError, MissingExtraError):
                raise
            except TieredKafkaError as error:
                refused = [error]
            if refused:
                tolerant = replace(options, fail_on_data_loss=False)
                skipped: list[TieredKafkaError] = []
                plan = plan_scan(tolerant, tier, on_partition_error=skipped.append)
                is_listed = isinstance(options.selection, Assign)  # by `_missing_partitions`
                faults += (
                    whole_line(str(error))
                    for error in refused
                    if not _is_hole(error, plan)
                    and not (is_listed and isinstance(error, TopicNotFoundError))
                )
                faults += (
                    f"a partition was not searched: {whole_line(str(error))}" for error in skipped
                )
        faults += _missing_partitions(options, plan)
        counts: Mapping[str, int] = {}
        wanted = None
        if query.partitioner_pruning:
            counts = partition_counts(options, plan, query.num_partitions)
            assert query.keys is not None, "checked by the query"
            of_count = {count: partitions_of(query.keys, count) for count in set(counts.values())}
            wanted = {topic: of_count[count] for topic, count in counts.items()}
        return cls(plan, tuple(faults), uri, listed_ms, counts, wanted)

    def may_hold(self, topic: str, partition: int) -> bool:
        """Returns whether a partition may have one of the keys of the search."""
        return self.wanted is None or partition in self.wanted[topic]


def _is_hole(error: TieredKafkaError, plan: ScanPlan) -> bool:
    """Returns whether an error reports missing offsets of a planned partition. The certificate
    lists these offsets as unread, so the error must not become a second entry in `faults`.
    """
    holes = {f"{p.topic}-{p.partition}" for p in plan.partitions if p.surviving.missing}
    name = error.message.partition(": ")[0]
    return isinstance(error, DataLossError) and error.is_hole and name in holes


def _missing_partitions(options: ScanOptions, plan: ScanPlan) -> Iterator[str]:
    """Yields a fault for each partition in option `assign` that the tier does not have."""
    if isinstance(options.selection, Assign):
        planned = {(partition.topic, partition.partition) for partition in plan.partitions}
        for topic, numbers in options.selection.partitions.items():
            for number in numbers:
                if (topic, number) not in planned:
                    yield f"{topic}-{number} was not searched: the tier has no segment of it"


@dataclass(slots=True)
class _UndecodedRange:
    """Offsets of records that cannot be decoded.

    Attributes:
        records: Minimum number of these records. If it is less than the number of offsets, the
            range also has other records.
        reason: Why the record at `start` cannot be decoded.
    """

    start: int
    stop: int
    records: int
    reason: str

    def __str__(self) -> str:
        records = "a record" if self.records == 1 else f"{self.records:,} records"
        if self.records < self.stop - self.start:
            records = f"at least {records}"
        return f"{records} cannot be decoded; offset {self.start}: {self.reason}"


class _UndecodedRanges:
    """The undecodable records of a slice. Adjacent offsets are one range. If there are more than
    `_MAX_RANGES` ranges, all become one range.
    """

    def __init__(self) -> None:
        self.ranges: list[_UndecodedRange] = []

    def add(self, offset: int, reason: str) -> None:
        """Adds a record. Ignores a record in a range, because it may have been read before."""
        ranges = self.ranges
        at = bisect_right(ranges, offset, key=lambda each: each.start)
        if at and offset < ranges[at - 1].stop:
            return
        ranges.insert(at, _UndecodedRange(offset, offset + 1, 1, reason))
        if at + 1 < len(ranges) and ranges[at + 1].start == offset + 1:
            self._join(at, at + 2)
        if at and ranges[at - 1].stop == offset:
            self._join(at - 1, at + 1)
        if len(ranges) > _MAX_RANGES:
            self._join(0, len(ranges))

    def _join(self, low: int, high: int) -> None:
        joined = self.ranges[low:high]
        records = sum(each.records for each in joined)
        first, last = joined[0], joined[-1]
        self.ranges[low:high] = [_UndecodedRange(first.start, last.stop, records, first.reason)]


@dataclass(slots=True)
class TaskSearch:
    """The search of one task.

    Attributes:
        task: Slices of one partition.
        matches: Number of records found.
        unread: Offsets that could not be read.
        metrics: Metrics of the read; set when the read has ended.
    """

    task: ScanTask
    query: Query
    matches: int = 0
    unread: list[UnreadRange] = field(default_factory=list)
    metrics: TaskMetrics | None = None
    _next_offset: int | None = None
    _undecoded: dict[int, _UndecodedRanges] = field(
        default_factory=lambda: defaultdict(_UndecodedRanges)
    )  # by start offset of the slice

    def rows(
        self, reader: SegmentSource, settings: ReadSettings, meter: TaskMeter
    ) -> Generator[pa.RecordBatch]:
        """Yields the matching rows in order. Close the generator to cancel reads.

        Raises:
            InvalidOptionError: An option, such as a schema, does not fit the data.
        """
        readable = [
            task_slice
            for task_slice in self.task.slices
            if not self._is_archived(task_slice, reader)
        ]
        if not readable:
            return
        try:
            yield from self._matches(ScanTask(tuple(readable)), reader, settings, meter)
        except (InvalidOptionError, MissingExtraError):
            raise
        except TieredKafkaError:
            # Read the slices one by one to find out which slice cannot be read.
            for task_slice in self._remaining(readable):
                yield from self._slice_matches(task_slice, reader, settings, meter)
        self.unread += self._undecoded_ranges(readable, reader)

    def _slice_matches(
        self,
        task_slice: SegmentSlice,
        reader: SegmentSource,
        settings: ReadSettings,
        meter: TaskMeter,
    ) -> Generator[pa.RecordBatch]:
        try:
            yield from self._matches(ScanTask((task_slice,)), reader, settings, meter)
        except (InvalidOptionError, MissingExtraError):
            raise
        except TieredKafkaError as error:
            self._add_unread(task_slice, reader, task_slice.objects.log, whole_line(str(error)))

    def _matches(
        self, task: ScanTask, reader: SegmentSource, settings: ReadSettings, meter: TaskMeter
    ) -> Generator[pa.RecordBatch]:
        rows = read_task(
            task, reader, settings, meter=meter, set_aside=self._set_aside, warns=False
        )
        with closing(rows) as batches:  # type: ignore[type-var]
            for batch in batches:
                if not batch.num_rows:
                    continue
                self._next_offset = batch.column("offset")[-1].as_py() + 1
                mask = self.query.mask(batch)
                matches = batch if mask is None else batch.filter(mask)
                self.matches += matches.num_rows
                if matches.num_rows:
                    yield matches

    def _set_aside(self, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        offsets = batch.column("offset")
        slices = self.task.slices
        for row, reason in reasons.items():
            offset = offsets[row].as_py()
            at = bisect_right(slices, offset, key=lambda each: each.start_offset) - 1
            self._undecoded[slices[at].start_offset].add(offset, reason)

    def _undecoded_ranges(
        self, slices: Sequence[SegmentSlice], reader: SegmentSource
    ) -> Iterator[UnreadRange]:
        """Yields the offsets of records that could not be compared with the conditions, because
        the records cannot be decoded.
        """
        for task_slice in slices:
            start, stop = task_slice.start_offset, task_slice.stop_offset
            if any(unread.start <= start and stop <= unread.stop for unread in self.unread):
                continue
            if start in self._undecoded:
                uri = reader.store.uri(task_slice.objects.log.key)
                for each in self._undecoded[start].ranges:
                    yield UnreadRange(each.start, each.stop, str(each), uri)

    def _is_archived(self, task_slice: SegmentSlice, reader: SegmentSource) -> bool:
        """Returns whether a needed object of a slice is archived. If so, adds the slice to
        `unread`.
        """
        archived = archived_object(task_slice)
        if archived is not None:
            self._add_unread(task_slice, reader, *archived)
        return archived is not None

    def _add_unread(
        self, task_slice: SegmentSlice, reader: SegmentSource, ref: ObjectRef, reason: str
    ) -> None:
        uri = reader.store.uri(ref.key)
        self.unread.append(
            UnreadRange(task_slice.start_offset, task_slice.stop_offset, reason, uri)
        )

    def _remaining(self, slices: list[SegmentSlice]) -> list[SegmentSlice]:
        """Returns the parts of the slices after the last row that was read. Rows are read in offset
        order, so all offsets before that row were read.
        """
        done = self._next_offset
        if done is None:
            return slices
        return [
            replace(task_slice, start_offset=max(task_slice.start_offset, done))
            for task_slice in slices
            if task_slice.stop_offset > done
        ]


def certify_partition(
    partition: PartitionPlan,
    searches: Sequence[TaskSearch],
    ruled_out: Collection[ObjectRef],
    planned: Sequence[SegmentSlice] | None,
) -> PartitionCertificate:
    """Returns the certificate for the search of a partition.

    Args:
        partition: The partition.
        searches: The searches of the tasks of the partition.
        ruled_out: Log objects that were not read, because their filters have none of the keys.
        planned: All slices of the plan, including slices that filters ruled out; `None` if a
            condition on offsets or timestamps has removed slices.
    """
    unread = [unread_range for search in searches for unread_range in search.unread]
    for hole in partition.surviving.missing:
        start, stop = max(hole.start, partition.start), min(hole.stop, partition.wanted_stop)
        if start < stop:
            reason = f"no segment holds these offsets, {hole.between}"
            unread.append(UnreadRange(start, stop, reason, None))
    if planned is not None:
        unread += _unplanned(partition, planned, unread)
    if partition.stop < partition.wanted_stop:
        reason = "an undecided transaction ends read_committed"
        unread.append(UnreadRange(partition.stop, partition.wanted_stop, reason, None))
    logs = {piece.objects.log for search in searches for piece in search.task.slices}
    metrics = [search.metrics for search in searches if search.metrics is not None]
    return PartitionCertificate(
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
        start=partition.start,
        stop=partition.stop,
        unread=tuple(
            sorted(unread, key=lambda unread_range: (unread_range.start, unread_range.stop))
        ),
        undecided=tuple(
            Undecided(transaction.producer_id, transaction.first_offset)
            for transaction in partition.undecided
        ),
        unserved=tuple(_unserved(partition)),
        left_out=None,
        segments=len(logs),
        stored_bytes=sum(log.size for log in logs),
        objects_digest=digest_of_objects(logs),
        ruled_out=len(ruled_out),
        ruled_out_digest=digest_of_objects(ruled_out),
        records=sum(
            task_metrics.records + task_metrics.records_skipped_key for task_metrics in metrics
        ),
        matches=sum(search.matches for search in searches),
    )


def _certify_pruned(partition: PartitionPlan) -> PartitionCertificate:
    """Returns the certificate of a partition that was not searched because of
    `partitionerPruning`.
    """
    reason = "partitionerPruning: none of the keys belongs to this partition"
    empty = replace(
        partition, undecided=(), orphans=(), stop=partition.start, wanted_stop=partition.start
    )
    return replace(certify_partition(empty, (), (), None), unserved=(), left_out=reason)


def _unplanned(
    partition: PartitionPlan, planned: Sequence[SegmentSlice], unread: Sequence[UnreadRange]
) -> Iterator[UnreadRange]:
    """Yields the offsets of a partition that are neither in `planned` nor in `unread`. They are a
    bug in planning, and must not be certified as searched.
    """
    position = partition.start
    covered = [(task_slice.start_offset, task_slice.stop_offset) for task_slice in planned]
    covered += ((unread_range.start, unread_range.stop) for unread_range in unread)
    for start, stop in sorted([*covered, (partition.stop, partition.stop)]):
        if position < min(start, partition.stop):
            reason = "the plan has neither a segment nor a hole for these offsets"
            yield UnreadRange(position, min(start, partition.stop), reason, None)
        position = max(position, stop)


def _unserved(partition: PartitionPlan) -> Iterator[UnservedObjects]:
    """Yields the objects with records that are not part of the log: segments that do not belong to
    the log, segments of which only some offsets belong to the log, and orphans.
    """
    skipped = [(s.segment.objects.log.key, s.reason) for s in partition.surviving.skipped]
    for key, reason in skipped:
        yield UnservedObjects((key,), reason)
    skipped_keys = {key for key, _ in skipped}
    served: dict[str, list[tuple[int, int]]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for span in partition.surviving.ranges:
        key = span.segment.objects.log.key
        served[key].append((span.start, span.stop))
        sizes[key] = span.segment.stop_offset - span.segment.start_offset
    for key, ranges in served.items():
        if key not in skipped_keys and sum(stop - start for start, stop in ranges) < sizes[key]:
            text = ", ".join(f"[{start}, {stop})" for start, stop in ranges)
            yield UnservedObjects((key,), f"only its offsets {text} are in the log")
    for orphan in partition.orphans:
        yield UnservedObjects(orphan.keys, orphan.reason)


@dataclass(frozen=True, slots=True)
class _Run:
    """A finished search.

    Attributes:
        filters: Filters of keys that ruled out segments; `None` without an index.
    """

    searches: tuple[TaskSearch, ...]
    filters: SegmentFilters | None


class Search(Displayed):
    """A search for the records that meet a query. Reads the records on request, and then certifies
    which offsets were searched.

    Args:
        options: The scan to search. The default of `isolationLevel` is `read_uncommitted`, because
            the tier also contains records of aborted transactions.
        query: Conditions in addition to option `where`.

    Raises:
        InvalidOptionError: A search does not support one of the options.
    """

    def __init__(self, options: ScanOptions, query: Query) -> None:
        _check(options, query)
        if _ISOLATION not in options.given:
            options = replace(options, isolation_level="read_uncommitted")
        self._options = replace(_with_errors(options), fail_on_data_loss=True)
        self._query = query
        self._planned: SearchPlan | None = None
        self._run: _Run | None = None
        self._lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows."""
        return read_schema(self._options.columns, self._options.formats)

    def batches(
        self,
        *,
        threads: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Generator[pa.RecordBatch]:
        """Yields the records in order of topic, partition and offset. Close the generator to stop.

        Args:
            threads: Number of tasks read concurrently; by default the number of cores.
            progress: Called after each task, in any thread, with two sizes, in bytes of the
                original segment files: the size of the tasks read so far, and the size of all
                tasks.

        Raises:
            InvalidOptionError: The filters of keys were made with another secret.
            TieredKafkaError: The tier cannot be listed.
            ValueError: `threads` is less than 1.
        """
        threads = (os.cpu_count() or 1) if threads is None else threads
        if threads < 1:
            raise ValueError(f"threads={threads} is invalid: use 1 or more")
        # Another generator of this search may run concurrently, so the counts are local variables.
        self._run = None
        done: list[TaskSearch] = []
        planned = self._plan()
        filters = self._filters(planned)
        tasks = list(_search_tasks(planned, filters))
        total = sum(task.nominal_bytes for task in tasks)
        settings = self._read_settings()
        tiers = ThreadTiers(self._options)
        read = 0

        def search(task: ScanTask) -> Generator[pa.RecordBatch]:
            nonlocal read
            tier = tiers.mine()
            meter = TaskMeter(task, tier, TaskPlace())
            reader = SegmentSource(tier, self._options.key_ring)
            task_search = TaskSearch(task, self._query)
            with closing(task_search.rows(reader, settings, meter)) as rows:
                for batch in rows:
                    yield batch.select(self._options.columns)
            with self._lock:
                task_search.metrics = meter.finished(DONE)
                done.append(task_search)
                read += task.nominal_bytes
                if progress is not None:
                    progress(read, total)

        with closing(tiers):
            if threads == 1 or len(tasks) < 2:
                for task in tasks:
                    yield from search(task)
            else:
                reads = [partial(search, task) for task in tasks]
                with closing(in_threads(reads, threads, ordered=True)) as batches:
                    yield from batches
        if len(done) != len(tasks):
            raise RuntimeError(f"only {len(done)} of {len(tasks)} tasks were searched")
        self._run = _Run(tuple(done), filters)

    @property
    def nominal_bytes(self) -> int:
        """Bytes of the original segment files of all tasks. Plans the search.

        Raises:
            TieredKafkaError: The tier cannot be listed.
        """
        return self._plan().plan.nominal_bytes

    def to_table(self, *, threads: int | None = None) -> pa.Table:
        """Reads all records into memory; see `batches`."""
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(threads=threads), self.schema)

    @property
    def certificate(self) -> Certificate:
        """The certificate; available after `batches` was read to the end.

        Raises:
            RuntimeError: `batches` was not read to the end.
        """
        run, planned = self._run, self._planned
        if run is None or planned is None:
            raise RuntimeError("read the batches to the end before you use the certificate")
        options, query = self._options, self._query
        searches: dict[tuple[str, int], list[TaskSearch]] = defaultdict(list)
        for search in run.searches:
            searches[_partition(search.task.slices[0])].append(search)
        slices: dict[tuple[str, int], list[SegmentSlice]] = defaultdict(list)
        for task in planned.plan.tasks:
            for piece in task.slices:
                slices[_partition(piece)].append(piece)

        def certify(partition: PartitionPlan) -> PartitionCertificate:
            key = partition.topic, partition.partition
            if not planned.may_hold(*key):
                return _certify_pruned(partition)
            ruled_out = () if run.filters is None else run.filters.ruled_out.get(key, ())
            planned_slices = None if options.where is not None else slices[key]
            return certify_partition(partition, searches[key], ruled_out, planned_slices)

        has_filters = run.filters is not None
        metrics = [search.metrics for search in run.searches if search.metrics is not None]
        return Certificate(
            searched_ms=planned.listed_ms,
            path=planned.uri,
            isolation_level=options.isolation_level,
            keys=None if query.keys is None else len(query.keys),
            key_digest=query.key_digest,
            conditions=tuple(conditions_of(options, query)),
            formats=tuple(formats_of(options)),
            assumptions=(
                *assumptions_of(options, planned.plan, has_filters=has_filters),
                *([pruning_assumption(planned.counts)] if query.partitioner_pruning else ()),
            ),
            outside=tuple(outside_of(options, planned.plan)),
            faults=planned.faults,
            partitions=tuple(map(certify, planned.plan.partitions)),
            requests=sum(task_metrics.requests for task_metrics in metrics),
            bytes=sum(task_metrics.bytes for task_metrics in metrics),
        )

    def _tables(self) -> tuple[Table]:
        facts = scan_facts(self._options)
        if self._query.keys is not None:
            facts["keys"] = f"{len(self._query.keys):,}"
        facts["conditions"] = "; ".join(conditions_of(self._options, self._query)) or "none"
        facts["state"] = "not read to the end yet" if self._run is None else "read to the end"
        return (Table.of_facts("Search", facts),)

    def _read_settings(self) -> ReadSettings:
        columns = (*self._options.columns, *_LOCATION_COLUMNS, *self._query.columns)
        return replace(
            ReadSettings.of(self._options),
            columns=tuple(dict.fromkeys(columns)),
            batches=FOR_ENGINES,
            keys=self._query.keys,
        )

    def _filters(self, planned: SearchPlan) -> SegmentFilters | None:
        query = self._query
        if query.key_index is None or query.keys is None:
            return None
        secret = None if query.key_index_secret is None else query.key_index_secret.reveal()
        folder = IndexFolder.of(query.key_index, secret, self._options)
        ids = {
            (partition.topic, partition.partition): partition.topic_id
            for partition in planned.plan.partitions
        }
        return SegmentFilters(folder, planned.uri, query.keys, ids)

    def _plan(self) -> SearchPlan:
        """Returns the plan of this search. The first call computes it."""
        with self._lock:
            if self._planned is None:
                self._planned = SearchPlan.of(self._options, self._query)
            return self._planned


def _check(options: ScanOptions, query: Query) -> None:
    if query == Query() and options.where is None:
        raise InvalidOptionError(
            "the search has no condition: give keys, values, headers, producers, or option where"
        )
    query.check(options)
    if any(column_format.mode == DROP_MALFORMED for column_format in options.formats):
        raise InvalidOptionError(
            "mode DROPMALFORMED would hide records from the search: use FAILFAST or PERMISSIVE"
        )
    named = ["planFile"] if "planFile" in options.given else []
    if options.brokers is not None:
        named.append("kafka.bootstrap.servers")
    if named:
        raise InvalidOptionError(
            "a search reads no brokers and makes its own plan: remove option"
            f" {' and option '.join(named)}"
        )


def _with_errors(options: ScanOptions) -> ScanOptions:
    """Returns options for a search that also finds records that cannot be decoded. Such a record
    has null as key or value; further columns contain the reason and the stored bytes.

    Changes nothing if the user set option `columns`. Keeps the mode of a key or value that option
    `where` compares, because the condition cannot be checked for such a record.
    """
    if not options.formats or "columns" in options.given:
        return options
    compared = {each.source for each in fields_of(options.where)} if options.where else set()
    formats = tuple(
        form if form.column in compared else replace(form, mode=PERMISSIVE)
        for form in options.formats
    )
    columns = (*options.columns, *further_columns(formats))
    return replace(options, formats=formats, columns=tuple(dict.fromkeys(columns)))


def _partition(task_slice: SegmentSlice) -> tuple[str, int]:
    return task_slice.topic, task_slice.partition


def _search_tasks(planned: SearchPlan, filters: SegmentFilters | None) -> Iterator[ScanTask]:
    """Yields the tasks of a search. Each task has slices of one partition. Slices that cannot
    contain one of the keys are skipped.
    """
    for task in planned.plan.tasks:
        for key, group in groupby(task.slices, _partition):
            if not planned.may_hold(*key):
                continue
            slices: Iterable[SegmentSlice] = group
            if filters is not None:
                slices = (task_slice for task_slice in group if not filters.rules_out(task_slice))
            if kept := tuple(slices):
                yield ScanTask(kept)
