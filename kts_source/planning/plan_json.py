"""A plan as JSON and back: for people, for tools, and to replay the very same scan later.

Segments stand once in a table, and everything else names them by number. There is no secret in it:
a data key is wrapped, and nothing that opens the store or the key ring is part of a plan. Reads of
a replayed plan ask for the versions it names, so a changed object is an error.

Whoever can write a plan file is not trusted: `plan_from_json` gives a plan whose parts fit each
other (`plan_fits`), or an error.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.broker.broker_range import BrokerRange
from kts_source.errors import InvalidOptionError
from kts_source.layout.layout import Orphan
from kts_source.layout.remote_segment import ObjectRef, RemoteSegment
from kts_source.layout.segment_facts import segment_facts, segment_from_facts
from kts_source.planning.lineage import Hole, PartitionLog, SegmentRange, SkippedSegment
from kts_source.planning.plan_fits import check_fits
from kts_source.planning.scan_plan import (
    BrokerPart,
    CatalogPart,
    DiskPart,
    PartitionPlan,
    ScanPlan,
    segment_name,
)
from kts_source.planning.slicing import segment_slice, slice_objects
from kts_source.planning.surroundings import with_surroundings
from kts_source.read.task import ScanTask, SegmentSlice
from segment_format.errors import SegmentFormatError
from segment_format.index.leader_epoch_checkpoint import EpochEntry
from segment_format.isolation import AbortedIntervals, OpenTransaction
from segment_format.manifest.chunk_index import VariableChunkIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kts_source.planning.scan_plan import SegmentName

VERSION: Final = 2
WITH_BROKERS: Final = 3
"""Of plans that read from brokers: what knows only the tier would leave rows out."""
_READ: Final = (1, VERSION, WITH_BROKERS)


def plan_to_json(plan: ScanPlan) -> str:
    """The plan as one JSON document."""
    numbers: dict[SegmentName, int] = {}
    segments: list[RemoteSegment] = []

    def number(segment: RemoteSegment) -> int:
        key = segment_name(segment)
        if key not in numbers:
            numbers[key] = len(segments)
            segments.append(segment)
        return numbers[key]

    partitions = [_partition_to(part, number) for part in plan.partitions]
    document = {
        "version": VERSION
        if all(part.brokers is None for part in plan.partitions)
        else WITH_BROKERS,
        "madeWith": dict(plan.made_with),
        "columns": plan.columns,
        "where": plan.where,
        "notes": plan.notes,
        "partitions": partitions,
        "tasks": [
            [_slice_to(part, numbers) for part in task.slices] + [*map(_range_to, task.ranges)]
            for task in plan.tasks
        ],
        "segments": [_segment_to(segment) for segment in segments],
    }
    return json.dumps(document, separators=(",", ":"))


def plan_from_json(text: str) -> ScanPlan:
    """The plan that `plan_to_json` wrote, now or in an earlier version.

    Raises:
        InvalidOptionError: Not such a document, of another version, or its parts do not fit each
            other.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        version = document["version"]
        if isinstance(version, bool) or version not in _READ:
            raise InvalidOptionError(
                f"a plan of version {str(version)[:40]!r}, and versions"
                f" {' and '.join(map(str, _READ))} are read here: make the plan anew"
            )
        entries = document["segments"]
        segments = [_segment_from(_from_version_1(e) if version == 1 else e) for e in entries]
        plan = ScanPlan(
            tuple(_partition_from(entry, segments) for entry in document["partitions"]),
            tuple(_task_from(task, segments) for task in document["tasks"]),
            tuple(document["columns"]),
            document.get("where"),
            tuple(str(note) for note in document.get("notes", ())),
            dict(document["madeWith"]) if version > 1 else {},
        )
        check_fits(plan, segments)
        tasks = with_surroundings(plan.tasks, plan.partitions, read_committed=plan.read_committed)
        plan = replace(plan, tasks=tasks)
    except InvalidOptionError:
        raise
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        OverflowError,
        RecursionError,
        SegmentFormatError,
    ) as error:
        problem = f"{type(error).__name__}: {error}"[:200]
        raise InvalidOptionError(f"not a plan ({problem}): make it anew") from None
    return plan


def _partition_to(part: PartitionPlan, number: Any) -> dict[str, Any]:  # noqa: ANN401
    log = part.surviving

    def holes(gaps: Iterable[Hole]) -> list[list[object]]:
        return [
            [gap.start, gap.stop, gap.before and number(gap.before), number(gap.after)]
            for gap in gaps
        ]

    return {
        "topic": part.topic,
        "topicId": part.topic_id,
        "partition": part.partition,
        "start": part.start,
        "stop": part.stop,
        "wantedStop": part.wanted_stop,
        "undecided": [[txn.producer_id, txn.first_offset] for txn in part.undecided],
        "orphans": [{"keys": orphan.keys, "reason": orphan.reason} for orphan in part.orphans],
        "lineage": _epochs_to(log.lineage),
        "logStart": log.log_start,
        "tierStop": log.stop,
        "ranges": [[number(span.segment), span.start, span.stop] for span in log.ranges],
        "holes": holes(log.holes),
        "unverifiable": holes(log.unverifiable),
        "skipped": [[number(skipped.segment), skipped.reason] for skipped in log.skipped],
        **_brokers_to(part.brokers),
        **_disks_to(part.disks),
        **_catalog_to(part.catalog),
    }


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
        brokers=_brokers_from(entry.get("brokers")),
        disks=_disks_from(entry.get("disks")),
        catalog=_catalog_from(entry.get("catalog")),
    )


def _catalog_to(part: CatalogPart | None) -> dict[str, Any]:
    if part is None:
        return {}
    return {
        "catalog": {
            "partition": part.partition,
            "start": part.start,
            "stop": part.stop,
            "records": part.records,
            "live": part.live,
            "copying": part.copying,
            "deleting": part.deleting,
            "notNamed": part.not_named,
        }
    }


def _catalog_from(entry: dict[str, Any] | None) -> CatalogPart | None:
    if entry is None:
        return None
    names = ("partition", "start", "stop", "records", "live", "copying", "deleting")
    not_named = tuple((low, high) for low, high in entry["notNamed"])
    return CatalogPart(**{name: entry[name] for name in names}, not_named=not_named)


def _brokers_to(part: BrokerPart | None) -> dict[str, Any]:
    if part is None:
        return {}
    return {
        "brokers": {
            "leaderEpoch": part.leader_epoch,
            "ranges": part.ranges,
            "highWatermark": part.high_watermark,
            "lastStableOffset": part.last_stable_offset,
            "localStart": part.local_start,
        }
    }


def _brokers_from(entry: dict[str, Any] | None) -> BrokerPart | None:
    if entry is None:
        return None
    return BrokerPart(
        entry["leaderEpoch"],
        tuple((low, high) for low, high in entry["ranges"]),
        entry["highWatermark"],
        entry["lastStableOffset"],
        entry["localStart"],
    )


def _disks_to(part: DiskPart | None) -> dict[str, Any]:
    if part is None:
        return {}
    return {"disks": [part.folder, part.local_start, part.local_stop, part.high_watermark]}


def _disks_from(entry: list[Any] | None) -> DiskPart | None:
    if entry is None:
        return None
    folder, local_start, local_stop, high_watermark = entry
    return DiskPart(folder, local_start, local_stop, high_watermark)


def _task_from(entries: list[dict[str, Any]], segments: Sequence[RemoteSegment]) -> ScanTask:
    slices = tuple(_slice_from(entry, segments) for entry in entries if "segment" in entry)
    return ScanTask(slices, tuple(map(_range_from, entries[len(slices) :])))


def _range_to(part: BrokerRange) -> dict[str, Any]:
    return {
        "topic": part.topic,
        "topicId": part.topic_id,
        "partition": part.partition,
        "leaderEpoch": part.leader_epoch,
        "offsets": [part.start_offset, part.stop_offset],
        "readCommitted": part.read_committed,
        "bytes": part.nominal_bytes,
    }


def _range_from(entry: dict[str, Any]) -> BrokerRange:
    start, stop = entry["offsets"]
    place = entry["topic"], entry["topicId"], entry["partition"], entry["leaderEpoch"]
    return BrokerRange(*place, start, stop, entry["readCommitted"], entry["bytes"])


def _slice_to(part: SegmentSlice, numbers: dict[SegmentName, int]) -> dict[str, Any]:
    aborted = part.aborted
    columns = (aborted.producer_ids, aborted.first_offsets, aborted.last_offsets)
    return {
        "segment": numbers[segment_name(part)],
        "cuts": [part.cut_start, part.cut_stop],
        "offsets": [part.start_offset, part.stop_offset],
        "aborted": [column.tolist() for column in columns],
        "lineage": _epochs_to(part.lineage),
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
        raise TypeError("not whole numbers where they belong")
    return numbers.astype(np.int64)


def _segment_to(segment: RemoteSegment) -> dict[str, Any]:
    objects = segment.objects
    refs = dict.fromkeys([objects.log, *(index.source for index in objects.indexes.values())])
    names = {ref: str(number) for number, ref in enumerate(refs)}
    facts = segment_facts(segment, names.get)
    if facts is None:
        raise InvalidOptionError(
            f"a plan with {type(objects.chunk_index).__name__} cannot be written as JSON",
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
    place = (entry["topic"], entry["topicId"], entry["partition"], entry["id"])
    return segment_from_facts(place, entry["facts"], refs.__getitem__)


def _from_version_1(entry: dict[str, Any]) -> dict[str, Any]:
    """A segment as the first version wrote it, as this one does."""
    names: dict[tuple[Any, ...], str] = {}

    def name(ref: list[Any]) -> str:
        return names.setdefault(tuple(ref), str(len(names)))

    chunks, envelope = entry["chunkIndex"], entry["encryption"]
    chunk, file = chunks["chunk"], chunks["file"]
    stored = chunks.get("fixed")
    if stored is None:
        index = VariableChunkIndex(chunk, file, str(chunks["variable"]))
        stored = [index.transformed_chunks, index.transformed_size]
    facts = [
        entry["startOffset"],
        entry["endOffset"],
        entry["maxTimestampMs"],
        entry["eventTimestampMs"],
        entry["endIsExact"],
        entry["leaderEpochs"],
        name(entry["log"]),
        entry["compression"],
        [chunk, file, *stored],
        envelope and [envelope["dataKey"], envelope["aad"]],
        [[kind, name(ref), low, high] for kind, (ref, low, high) in entry["indexes"].items()],
    ]
    objects = {number: list(ref) for ref, number in names.items()}
    return {**entry, "objects": objects, "facts": facts}


def _epochs_to(entries: Iterable[EpochEntry]) -> list[list[int]]:
    return [[entry.epoch, entry.start_offset] for entry in entries]


def _epochs_from(pairs: list[list[int]]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*pair) for pair in pairs)
