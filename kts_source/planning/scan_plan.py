"""Defines the plan of one scan: partitions and tasks. Explains the plan as text, and converts it to
and from JSON.

The JSON can be used later to repeat the same scan. It contains a table of segments; partitions and
slices refer to a segment by its number in the table. It contains no secret: data keys are encrypted
(wrapped), and credentials of the store and the key ring are not written.

A plan file may come from an author who is not trusted. So `ScanPlan.from_json` checks that numbers
are numbers, byte ranges are within their objects, keys are below the root of the store, and slices
cover the offsets of their partitions. `replay` compares the objects with the store. So a malicious
plan cannot make a reader access other data or exhaust its memory.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, field, fields, replace
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from kts_source.broker.broker_range import BrokerRange
from kts_source.errors import InvalidOptionError
from kts_source.layout.layout import Orphan
from kts_source.layout.remote_segment import (
    IndexType,
    ObjectRef,
    RemoteSegment,
    segment_facts,
    segment_from_facts,
)
from kts_source.options.parsing import MAX_INT32
from kts_source.planning.estimate import S3_PRICES, estimate
from kts_source.planning.lineage import Hole, PartitionLog, SegmentRange, SkippedSegment
from kts_source.planning.partition_plan import (
    BrokerPart,
    CatalogPart,
    DiskPart,
    PartitionPlan,
    segment_name,
    segment_slice,
    slice_objects,
    with_surroundings,
)
from kts_source.predicate.model import MAX_INT64, MIN_INT64
from kts_source.read.task import ScanTask, SegmentSlice
from kts_source.store.joined_store import is_in_additional_store
from kts_source.store.object_store import check_key
from kts_source.texts import Displayed, Table, camel_case, format_bytes, printable
from segment_format.errors import SegmentFormatError
from segment_format.index.checkpoints import EpochEntry
from segment_format.isolation import AbortedIntervals, OpenTransaction
from segment_format.kafka_uuid import uuid_from_text
from segment_format.manifest.chunk_index import FixedChunkIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from kts_source.errors import StoreError
    from kts_source.planning.estimate import Price
    from kts_source.planning.partition_plan import SegmentName


_Part = TypeVar("_Part", BrokerPart, DiskPart, CatalogPart, BrokerRange)

VERSION: Final = 4
_MAX_CHUNKS: Final = 1 << 20
"""Maximum chunks per segment; a segment of 2 GiB has 512 with the plugin's default chunk size."""
_READ_ERRORS: Final = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
    SegmentFormatError,
)


@dataclass(frozen=True, slots=True, repr=False)
class ScanPlan(Displayed):
    """A fixed list of byte ranges to read, and of the objects and offsets that are skipped.

    Attributes:
        tasks: Tasks in order of topic, partition and offset.
        columns: Columns of the table, in order.
        where: Text of the predicate by which slices were skipped; `None` if the tasks read all
            rows.
        notes: Messages for users, for example about the chosen topic id, or partitions without
            data.
        made_with: Values of the options on which the plan depends, by name.
        remarks: Messages about how this process reads the objects. `to_json` does not write them.
        unanswered: Error of the tier or its mirror, if one of them did not answer which objects it
            has. Then missing offsets may not be lost. `to_json` does not write it.
        is_mirror_alone: True if only the mirror answered. Then the log may begin earlier. `to_json`
            does not write it.
    """

    partitions: tuple[PartitionPlan, ...]
    tasks: tuple[ScanTask, ...]
    columns: tuple[str, ...]
    where: str | None = None
    notes: tuple[str, ...] = ()
    made_with: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = field(default=(), compare=False)
    unanswered: StoreError | None = field(default=None, compare=False)
    is_mirror_alone: bool = field(default=False, compare=False)

    @property
    def read_committed(self) -> bool:
        """True if the plan skips aborted transactions."""
        return self.made_with.get("isolationLevel") != "read_uncommitted"

    def explain(self, prices: Mapping[str, Price] = S3_PRICES) -> str:
        """Returns a text that explains which offsets are read, which are skipped and why, and what
        the scan will probably cost at these prices by storage class (default: list prices of S3).
        """
        return explain(self, prices)

    def _tables(self) -> tuple[Table]:
        work = estimate(self.tasks)
        title = (
            f"Plan: {len(self.tasks):,} tasks, {work.requests:,} requests,"
            f" {format_bytes(work.bytes)}, about ${work.cost():.4f}"
        )
        rows = [
            (p.topic_partition, p.start, p.stop, len(p.surviving.ranges), p.end_reason)
            for p in self.partitions
        ]
        return (Table(title, ("partition", "start", "stop", "segments", "ends"), rows),)

    def to_json(self) -> str:
        """Returns the plan as a JSON document for option `planFile`. The document contains no
        secret.
        """
        numbers: dict[SegmentName, int] = {}
        segments: list[RemoteSegment] = []

        def number(segment: RemoteSegment) -> int:
            key = segment_name(segment)
            if key not in numbers:
                numbers[key] = len(segments)
                segments.append(segment)
            return numbers[key]

        partitions = [_partition_to(partition, number) for partition in self.partitions]
        document = {
            "version": VERSION,
            "madeWith": dict(self.made_with),
            "columns": self.columns,
            "where": self.where,
            "notes": self.notes,
            "partitions": partitions,
            "tasks": [
                [
                    *(_slice_to(piece, numbers) for piece in task.slices),
                    *map(_fields_to, task.ranges),
                ]
                for task in self.tasks
            ],
            "segments": [_segment_to(segment) for segment in segments],
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ScanPlan:
        """Creates a plan from a text that `to_json` returned.

        Raises:
            InvalidOptionError: The text is not a plan, is of another version, or contradicts
                itself.
        """
        try:
            document: dict[str, Any] = json.loads(text)
            version = document["version"]
            if version != VERSION or type(version) is not int:
                raise InvalidOptionError(
                    f"the plan has version {str(version)[:40]!r}, but this release reads only"
                    f" version {VERSION}; plan again"
                )
            segments = [_segment_from(entry) for entry in document["segments"]]
            plan = cls(
                tuple(_partition_from(entry, segments) for entry in document["partitions"]),
                tuple(_task_from(task, segments) for task in document["tasks"]),
                tuple(document["columns"]),
                document["where"],
                tuple(str(note) for note in document["notes"]),
                dict(document["madeWith"]),
            )
            _check_plan(plan, segments)
            tasks = with_surroundings(
                plan.tasks, plan.partitions, read_committed=plan.read_committed
            )
            plan = replace(plan, tasks=tasks)
        except InvalidOptionError:
            raise
        except _READ_ERRORS as error:
            problem = f"{type(error).__name__}: {error}"[:200]
            raise InvalidOptionError(f"the text is not a plan ({problem}); plan again") from None
        return plan

    def from_offsets(self, starts: Sequence[int]) -> ScanPlan:
        """Returns a copy of the plan in which each partition begins at its offset in `starts`.
        `starts` has the order of `partitions`; no offset is below the current start.
        """
        partitions = tuple(
            replace(partition, start=start)
            for partition, start in zip(self.partitions, starts, strict=True)
        )
        first = {
            (partition.topic, partition.partition): partition.start for partition in partitions
        }
        tasks = []
        for task in self.tasks:
            slices = tuple(
                replace(piece, start_offset=max(piece.start_offset, start))
                for piece in task.slices
                if piece.stop_offset > (start := first[piece.topic, piece.partition])
            )
            ranges = tuple(
                piece.from_offset(start)
                for piece in task.ranges
                if piece.stop_offset > (start := first[piece.topic, piece.partition])
            )
            if slices or ranges:
                tasks.append(ScanTask(slices, ranges))
        placed = with_surroundings(tasks, partitions, read_committed=self.read_committed)
        return replace(self, partitions=partitions, tasks=placed)

    @property
    def nominal_bytes(self) -> int:
        """Bytes of original segments that the tasks cover, plus an estimate for broker ranges."""
        return sum(task.nominal_bytes for task in self.tasks)

    def objects_read(self) -> Iterator[ObjectRef]:
        """Yields the objects that tasks will read: logs, and the offset indexes of segments that
        are split into slices. An object that several slices read occurs several times.
        """
        for task in self.tasks:
            for piece in task.slices:
                if piece.objects.size_in_bytes:  # a log without bytes may have no object
                    yield piece.objects.log
                if not piece.is_whole:
                    yield piece.offset_index.source


def explain(plan: ScanPlan, prices: Mapping[str, Price] = S3_PRICES) -> str:
    """Returns the text of `ScanPlan.explain`: which offsets are read, which are skipped and why,
    and the probable cost.
    """
    work = estimate(plan.tasks)
    slices = sum(len(task.slices) for task in plan.tasks)
    ranges = [piece for task in plan.tasks for piece in task.ranges]
    tier_bytes = plan.nominal_bytes - sum(piece.nominal_bytes for piece in ranges)
    lines = [
        f"{len(plan.tasks)} tasks, {slices} slices, {tier_bytes:,} bytes of segments",
        f"{work.requests:,} requests for {work.bytes:,} stored bytes,"
        f" about ${work.cost(prices):.4f}",
    ]
    for name, (requests, size) in sorted(work.by_class.items()):
        lines.append(f"  {name}: {requests:,} requests, {size:,} bytes")
    on_disk = [
        p for task in plan.tasks for p in task.slices if is_in_additional_store(p.objects.log.key)
    ]
    if on_disk:
        size = sum(piece.nominal_bytes for piece in on_disk)
        lines.append(f"{len(on_disk)} of the slices, {size:,} bytes, are of brokers' disks")
    if ranges:
        offsets = sum(piece.stop_offset - piece.start_offset for piece in ranges)
        size = plan.nominal_bytes - tier_bytes
        lines.append(
            f"{len(ranges)} ranges of {offsets:,} offsets from brokers, about {size:,} bytes"
        )
    lines += [*plan.notes, *plan.remarks]
    kept = None if plan.where is None else _kept_offsets(plan)
    if kept is not None:
        lines.append(_explain_where(plan, kept))
    for partition in plan.partitions:
        lines.extend(_explain_partition(partition, kept))
    return "\n".join(map(printable, lines))


def _kept_offsets(plan: ScanPlan) -> dict[SegmentName, tuple[int, int]]:
    """Returns the offsets that tasks read of each segment: the lowest start and the highest end of
    its slices.
    """
    kept: dict[SegmentName, tuple[int, int]] = {}
    for task in plan.tasks:
        for piece in task.slices:
            name = segment_name(piece)
            start, stop = kept.get(name, (piece.start_offset, piece.stop_offset))
            kept[name] = min(start, piece.start_offset), max(stop, piece.stop_offset)
    return kept


def _explain_where(plan: ScanPlan, kept: Mapping[SegmentName, tuple[int, int]]) -> str:
    skipped = narrowed = size = 0
    for partition in plan.partitions:
        for span, low, high in partition.wanted_ranges():
            segment = span.segment
            offsets = kept.get(segment_name(segment))
            if offsets is None:
                skipped += 1
                size += segment.objects.size_in_bytes
            else:
                narrowed += offsets != (low, high)
    return (
        f"where skips {skipped} segments of {size:,} bytes and narrows {narrowed} by offsets"
        " and times; rows of the others are decided by the tasks"
    )


def _explain_partition(
    partition: PartitionPlan, kept: Mapping[SegmentName, tuple[int, int]] | None
) -> Iterator[str]:
    log = partition.surviving
    yield (
        f"{partition.topic_partition} (topic id {partition.topic_id}): offsets [{partition.start},"
        f" {partition.stop}) of [{log.log_start}, {log.stop}); ends: {partition.end_reason}"
    )
    for span in log.ranges:
        segment = span.segment
        low, high = max(span.start, partition.start), min(span.stop, partition.stop)
        text = f"offsets [{low}, {high})" if low < high else "not in the range"
        if kept is not None and low < high:
            offsets = kept.get(segment_name(segment))
            if offsets is None:
                text += ", skipped by where"
            elif offsets != (low, high):
                text += f", where leaves [{offsets[0]}, {offsets[1]})"
        kind = "disk" if is_in_additional_store(segment.objects.log.key) else "segment"
        yield f"  {kind} {segment.segment_id}: {text}, {segment.objects.size_in_bytes:,} bytes"
    if partition.brokers is not None:
        yield from _explain_brokers(partition, partition.brokers)
    if partition.disks is not None:
        yield _explain_disks(partition, partition.disks)
    if partition.catalog is not None:
        yield from _explain_catalog(partition.catalog)
    for hole in log.holes:
        yield f"  hole: offsets [{hole.start}, {hole.stop}) {hole.between}"
    for gap in log.unverifiable:
        yield f"  gap that cannot be proven: offsets [{gap.start}, {gap.stop})"
    for skipped in log.skipped:
        yield f"  skipped segment {skipped.segment.segment_id}: {skipped.reason}"
    for orphan in partition.orphans:
        yield f"  orphans {', '.join(orphan.keys)}: {orphan.reason}"


def _explain_brokers(partition: PartitionPlan, brokers: BrokerPart) -> Iterator[str]:
    local = "unknown" if brokers.local_start is None else str(brokers.local_start)
    yield (
        f"  cluster: high watermark {brokers.high_watermark}, last stable offset"
        f" {brokers.last_stable_offset}, local start {local}, leader epoch {brokers.leader_epoch};"
        f" the tier ends at {partition.tier_end}, {brokers.high_watermark - partition.tier_end}"
        " offsets behind"
    )
    for start, stop in brokers.ranges:
        low, high = max(start, partition.start), min(stop, partition.stop)
        if low < high:
            yield f"  brokers: offsets [{low}, {high})"


def _explain_disks(partition: PartitionPlan, disks: DiskPart) -> str:
    watermark = "not recorded" if disks.high_watermark is None else str(disks.high_watermark)
    offsets = sum(span.stop - span.start for span in partition.disk_ranges)
    return (
        f"  disks: high watermark {watermark}, local start {disks.local_start}, in {disks.folder};"
        f" the tier ends at {partition.tier_end}, {partition.surviving.stop - partition.tier_end}"
        f" offsets behind; {offsets} offsets are on disk alone"
    )


def _explain_catalog(catalog: CatalogPart) -> Iterator[str]:
    yield (
        f"  catalog: {catalog.records:,} records of __remote_log_metadata-{catalog.partition},"
        f" offsets [{catalog.start}, {catalog.stop}); segments: {catalog.live} live,"
        f" {catalog.copying} being copied, {catalog.deleting} being deleted"
    )
    for start, stop in catalog.not_named:
        yield f"  not in the catalog: offsets [{start}, {stop}), which are not on the leader's disk"


def _partition_to(
    partition: PartitionPlan, number: Callable[[RemoteSegment], int]
) -> dict[str, Any]:
    log = partition.surviving

    def holes(gaps: Iterable[Hole]) -> list[list[object]]:
        return [
            [gap.start, gap.stop, gap.before and number(gap.before), number(gap.after)]
            for gap in gaps
        ]

    document = {
        "topic": partition.topic,
        "topicId": partition.topic_id,
        "partition": partition.partition,
        "start": partition.start,
        "stop": partition.stop,
        "wantedStop": partition.wanted_stop,
        "undecided": [[txn.producer_id, txn.first_offset] for txn in partition.undecided],
        "orphans": [{"keys": orphan.keys, "reason": orphan.reason} for orphan in partition.orphans],
        "lineage": _epochs_to(log.lineage),
        "logStart": log.log_start,
        "tierStop": log.stop,
        "ranges": [[number(span.segment), span.start, span.stop] for span in log.ranges],
        "holes": holes(log.holes),
        "unverifiable": holes(log.unverifiable),
        "skipped": [[number(skipped.segment), skipped.reason] for skipped in log.skipped],
        "endTimestampMs": log.end_timestamp_ms,
    }
    sources: dict[str, BrokerPart | DiskPart | CatalogPart | None] = {
        "brokers": partition.brokers,
        "disks": partition.disks,
        "catalog": partition.catalog,
    }
    described = {name: _fields_to(value) for name, value in sources.items() if value is not None}
    return document | described


def _partition_from(entry: dict[str, Any], segments: Sequence[RemoteSegment]) -> PartitionPlan:
    def holes(gaps: list[list[Any]]) -> tuple[Hole, ...]:
        return tuple(
            Hole(start, stop, None if before is None else segments[before], segments[after])
            for start, stop, before, after in gaps
        )

    log = PartitionLog(
        lineage=_epochs_from(entry["lineage"]),
        log_start=entry["logStart"],
        stop=entry["tierStop"],
        ranges=tuple(SegmentRange(segments[n], low, high) for n, low, high in entry["ranges"]),
        holes=holes(entry["holes"]),
        skipped=tuple(SkippedSegment(segments[n], reason) for n, reason in entry["skipped"]),
        unverifiable=holes(entry["unverifiable"]),
        end_timestamp_ms=entry.get("endTimestampMs", -1),  # optional; changes no rows
    )
    return PartitionPlan(
        topic=entry["topic"],
        topic_id=entry["topicId"],
        partition=entry["partition"],
        surviving=log,
        orphans=tuple(Orphan(tuple(o["keys"]), o["reason"]) for o in entry["orphans"]),
        start=entry["start"],
        stop=entry["stop"],
        wanted_stop=entry["wantedStop"],
        undecided=tuple(OpenTransaction(*pair) for pair in entry["undecided"]),
        brokers=_fields_from(BrokerPart, entry["brokers"]) if "brokers" in entry else None,
        disks=_fields_from(DiskPart, entry["disks"]) if "disks" in entry else None,
        catalog=_fields_from(CatalogPart, entry["catalog"]) if "catalog" in entry else None,
    )


def _fields_to(record: BrokerPart | DiskPart | CatalogPart | BrokerRange) -> dict[str, Any]:
    return {camel_case(field.name): getattr(record, field.name) for field in fields(record)}


def _fields_from(kind: type[_Part], entry: dict[str, Any]) -> _Part:
    values = {field.name: entry[camel_case(field.name)] for field in fields(kind)}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple((start, stop) for start, stop in value)
    return kind(**values)


def _task_from(entries: list[dict[str, Any]], segments: Sequence[RemoteSegment]) -> ScanTask:
    slices = tuple(_slice_from(entry, segments) for entry in entries if "segment" in entry)
    ranges = (_fields_from(BrokerRange, entry) for entry in entries[len(slices) :])
    return ScanTask(slices, tuple(ranges))


def _slice_to(piece: SegmentSlice, numbers: Mapping[SegmentName, int]) -> dict[str, Any]:
    aborted = piece.aborted
    columns = (aborted.producer_ids, aborted.first_offsets, aborted.last_offsets)
    return {
        "segment": numbers[segment_name(piece)],
        "cuts": [piece.cut_start, piece.cut_stop],
        "offsets": [piece.start_offset, piece.stop_offset],
        "aborted": [column.tolist() for column in columns],
        "lineage": _epochs_to(piece.lineage),
    }


def _slice_from(entry: dict[str, Any], segments: Sequence[RemoteSegment]) -> SegmentSlice:
    segment = segments[entry["segment"]]
    return segment_slice(
        segment,
        slice_objects(segment),
        entry["cuts"],
        entry["offsets"],
        AbortedIntervals(*map(_int64, entry["aborted"])),
        _epochs_from(entry["lineage"]),
    )


def _int64(column: list[int]) -> NDArray[np.int64]:
    numbers = np.array(column)
    if len(column) and numbers.dtype != np.int64:
        raise TypeError("expected integers")
    return numbers.astype(np.int64)


def _segment_to(segment: RemoteSegment) -> dict[str, Any]:
    objects = segment.objects
    refs = dict.fromkeys([objects.log, *(index.source for index in objects.indexes.values())])
    names = {ref: str(number) for number, ref in enumerate(refs)}
    facts = segment_facts(segment, names.get)
    if facts is None:
        raise InvalidOptionError(
            "the plan cannot be written as JSON, because a segment has the unsupported chunk index"
            f" {type(objects.chunk_index).__name__}",
            topic=segment.topic,
            partition=segment.partition,
        )
    return {
        "topic": segment.topic,
        "topicId": segment.topic_id,
        "partition": segment.partition,
        "id": segment.segment_id,
        "objects": {
            name: [ref.key, ref.size, ref.version, ref.storage_class] for ref, name in names.items()
        },
        "facts": facts,
    }


def _segment_from(entry: dict[str, Any]) -> RemoteSegment:
    refs = {name: ObjectRef(*ref) for name, ref in entry["objects"].items()}
    identity = (entry["topic"], entry["topicId"], entry["partition"], entry["id"])
    return segment_from_facts(identity, entry["facts"], refs.__getitem__)


def _epochs_to(entries: Iterable[EpochEntry]) -> list[list[int]]:
    return [[entry.epoch, entry.start_offset] for entry in entries]


def _epochs_from(pairs: list[list[int]]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*pair) for pair in pairs)


def _check_plan(plan: ScanPlan, segments: Iterable[RemoteSegment]) -> None:
    """Raises one of `_READ_ERRORS` if parts of a plan contradict each other. `segments` is the
    table of all segments in the plan file.
    """
    for segment in segments:
        _check_segment(segment)
    _check_texts(*plan.columns, *([] if plan.where is None else [plan.where]), *plan.notes)
    _check_texts(plan.made_with["isolationLevel"])
    asked = plan.made_with["partitions"]
    if type(asked) is not dict:
        raise TypeError("expected an object with the partitions of each topic")
    _check_texts(*asked)
    for number in chain.from_iterable(asked.values()):
        _check_ascending(0, number, MAX_INT32)
    partitions = {}
    for partition in plan.partitions:
        _check_partition(partition)
        partitions[partition.topic, partition.partition] = partition
    if len(partitions) != len(plan.partitions):
        raise ValueError("a partition appears twice")
    slices: dict[tuple[str, int], list[SegmentSlice]] = {key: [] for key in partitions}
    ranges: dict[tuple[str, int], list[BrokerRange]] = {key: [] for key in partitions}
    for task in plan.tasks:
        if not task.parts:
            raise ValueError("a task has no slice and no range")
        for broker_range in task.ranges:
            key = broker_range.topic, broker_range.partition
            _check_range(broker_range, partitions[key])
            ranges[key].append(broker_range)
        for piece in task.slices:
            key = piece.topic, piece.partition
            before = slices[key]
            _check_slice(piece, partitions[key], before[-1] if before else None)
            before.append(piece)
    for key, partition in partitions.items():
        _check_slices(partition, slices[key], leaves_rows_out=plan.where is not None)
        _check_ranges(partition, ranges[key])


def _check_segment(segment: RemoteSegment) -> None:
    objects = segment.objects
    _check_texts(segment.topic, segment.topic_id, segment.segment_id)
    _check_ascending(0, segment.partition, MAX_INT32)
    _check_ascending(0, segment.start_offset, segment.end_offset + 1, MAX_INT64)
    _check_ascending(MIN_INT64, segment.max_timestamp_ms, MAX_INT64)
    if segment.event_timestamp_ms is not None:
        _check_ascending(MIN_INT64, segment.event_timestamp_ms, MAX_INT64)
    if any(type(flag) is not bool for flag in (segment.end_is_exact, objects.compression)):
        raise TypeError("expected true or false")
    _check_epochs(segment.leader_epochs)
    indexes = list(objects.indexes.values())
    for ref in (objects.log, *(index.source for index in indexes)):
        _check_keys(ref.key)
        _check_texts(*(text for text in (ref.version, ref.storage_class) if text is not None))
        check_key(ref.key, ref.key, absolute=True)
        _check_ascending(0, ref.size, MAX_INT64)
    for index in indexes:
        if index.content is None:
            _check_ascending(0, index.start, index.stop, index.source.size)
        elif (index.start, index.stop) != (0, len(index.content)):
            raise ValueError("the size of a side file differs from the size of its content")
    chunks = objects.chunk_index
    _check_ascending(0, chunks.chunk_count, min(_MAX_CHUNKS, objects.log.size))
    chunks.check_object_size(objects.log.size)
    if isinstance(chunks, FixedChunkIndex) and chunks.chunk_count > 1:
        _check_ascending(chunks.original_chunk_size, chunks.transformed_chunk_size, MAX_INT32)


def _check_partition(partition: PartitionPlan) -> None:
    log = partition.surviving
    _check_texts(partition.topic, partition.topic_id)
    _check_ascending(0, partition.partition, MAX_INT32)
    _check_ascending(0, partition.start, partition.stop, partition.wanted_stop, MAX_INT64)
    _check_ascending(0, log.log_start, log.stop, MAX_INT64)
    _check_ascending(-1, log.end_timestamp_ms, MAX_INT64)
    _check_epochs(log.lineage)
    offsets = [(span.start, span.stop) for span in log.ranges]
    offsets += [(hole.start, hole.stop) for hole in log.missing]
    for start, stop in offsets:
        _check_ascending(0, start, stop, MAX_INT64)
    for transaction in partition.undecided:
        _check_ascending(-1, transaction.producer_id, MAX_INT64)
        _check_offsets(transaction.first_offset)
    if partition.stop < partition.wanted_stop and not partition.undecided:
        raise ValueError("a partition ends before its requested end without an open transaction")
    brokers, disks, catalog = partition.brokers, partition.disks, partition.catalog
    if brokers is not None:
        _check_ascending(-1, brokers.leader_epoch, MAX_INT32)
        _check_ascending(0, *chain.from_iterable(brokers.ranges), MAX_INT64)
        _check_offsets(brokers.high_watermark, brokers.last_stable_offset)
        if brokers.local_start is not None:
            _check_offsets(brokers.local_start)
    if disks is not None:
        _check_keys(disks.folder)
        _check_ascending(0, disks.local_start, disks.local_stop, MAX_INT64)
        if disks.high_watermark is not None:
            _check_offsets(disks.high_watermark)
    if catalog is not None:
        *numbers, not_named = astuple(catalog)
        _check_offsets(*numbers, *chain.from_iterable(not_named))
    _check_keys(*(key for orphan in partition.orphans for key in orphan.keys))
    _check_texts(*(orphan.reason for orphan in partition.orphans))
    _check_texts(*(skipped.reason for skipped in log.skipped))


def _check_range(piece: BrokerRange, partition: PartitionPlan) -> None:
    if partition.brokers is None or type(piece.read_committed) is not bool:
        raise TypeError("a broker range belongs to a partition that does not read from brokers")
    _check_texts(piece.topic_id)
    uuid_from_text(piece.topic_id)
    if (piece.topic_id, piece.leader_epoch) != (partition.topic_id, partition.brokers.leader_epoch):
        raise ValueError("a broker range has another topic id or leader epoch than its partition")
    _check_ascending(partition.start, piece.start_offset, piece.stop_offset, partition.stop)
    _check_ascending(0, piece.nominal_bytes, MAX_INT64)


def _check_ranges(partition: PartitionPlan, ranges: Sequence[BrokerRange]) -> None:
    """Raises `ValueError` unless the broker ranges of a partition are exactly the offsets that the
    plan reads from brokers, without overlap.
    """
    planned = partition.brokers.ranges if partition.brokers is not None else ()
    wanted = ((max(low, partition.start), min(high, partition.stop)) for low, high in planned)
    offsets = [(piece.start_offset, piece.stop_offset) for piece in ranges]
    if any(high > low for (_, high), (low, _) in pairwise(offsets)):
        raise ValueError("two broker ranges overlap")
    if _joined(wanted) != _joined(offsets):
        raise ValueError(
            f"{partition.topic}-{partition.partition}: the broker ranges of the tasks differ"
            " from the offsets that the plan assigns to brokers"
        )


def _check_slice(
    piece: SegmentSlice, partition: PartitionPlan, before: SegmentSlice | None
) -> None:
    aborted = piece.aborted
    _check_ascending(0, piece.cut_start, piece.cut_stop, piece.objects.size_in_bytes)
    _check_ascending(piece.segment_start, piece.start_offset, piece.stop_offset, piece.segment_stop)
    _check_ascending(partition.start, piece.start_offset, piece.stop_offset, partition.stop)
    _check_epochs(piece.lineage)
    piece.objects.indexes[IndexType.OFFSET]
    columns = aborted.producer_ids, aborted.first_offsets, aborted.last_offsets
    if any(column.shape != columns[0].shape or column.ndim != 1 for column in columns):
        raise ValueError("aborted transactions must be three columns of equal length")
    if before is None or piece.start_offset >= before.stop_offset:
        return
    if _span(piece) != _span(before):
        raise ValueError("two slices overlap")
    _check_ascending(before.cut_stop, piece.cut_start)


def _check_slices(
    partition: PartitionPlan, slices: Sequence[SegmentSlice], *, leaves_rows_out: bool
) -> None:
    """Raises `ValueError` if successive slices of a segment skip bytes, or if the slices do not
    cover the offsets of the partition. With `leaves_rows_out`, uncovered offsets are allowed,
    because a predicate skipped them.
    """
    for _, group in groupby(slices, _span):
        pieces = list(group)
        first, last = pieces[0], pieces[-1]
        is_complete = (
            (first.cut_start == 0 or first.start_offset > first.segment_start)
            and (
                last.cut_stop == last.objects.size_in_bytes or last.stop_offset < last.segment_stop
            )
            and all(piece.cut_stop == other.cut_start for piece, other in pairwise(pieces))
        )
        if not is_complete:
            offsets = f"[{first.start_offset}, {last.stop_offset})"
            raise ValueError(f"the slices of offsets {offsets} skip bytes of their segment")
    if leaves_rows_out:
        return
    wanted = ((start, stop) for _, start, stop in partition.wanted_ranges())
    if _joined(wanted) != _joined((piece.start_offset, piece.stop_offset) for piece in slices):
        raise ValueError(
            f"{partition.topic}-{partition.partition}: the slices do not cover the planned offsets"
        )


def _span(piece: SegmentSlice) -> tuple[str, int, int]:
    return piece.segment_id, piece.start_offset, piece.stop_offset


def _joined(spans: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Joins spans that are adjacent or overlap. `spans` must ascend."""
    joined: list[list[int]] = []
    for low, high in spans:
        if joined and low <= joined[-1][1]:
            joined[-1][1] = max(high, joined[-1][1])
        elif low < high:
            joined.append([low, high])
    return joined


def _check_epochs(entries: Sequence[EpochEntry]) -> None:
    for entry in entries:
        _check_ascending(0, entry.epoch, MAX_INT32)
        _check_offsets(entry.start_offset)


def _check_offsets(*offsets: int) -> None:
    for offset in offsets:
        _check_ascending(0, offset, MAX_INT64)


def _check_ascending(*numbers: int) -> None:
    """Raises an error if an argument is not an integer, or less than the argument before it."""
    if any(type(number) is not int for number in numbers):
        raise TypeError("expected an integer")
    if any(low > high for low, high in pairwise(numbers)):
        raise ValueError(f"the numbers {', '.join(map(str, numbers))} must ascend")


def _check_texts(*values: str, errors: str = "strict") -> None:
    if any(type(value) is not str for value in values):
        raise TypeError("expected a text")
    for value in values:
        value.encode("utf-8", errors)  # lone surrogates fail


def _check_keys(*keys: str) -> None:
    """Raises `TypeError` if a key is not a text. Unlike other texts, a key may be a file name that
    is not valid UTF-8.
    """
    _check_texts(*keys, errors="surrogateescape")
