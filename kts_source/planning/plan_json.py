"""A plan as JSON and back: for people, for tools, and to replay the very same scan later.

Segments stand once in a table, and everything else names them by number. There is no secret in it:
a data key is wrapped, and nothing that opens the store or the key ring is part of a plan. Reads of
a replayed plan ask for the versions it names, so a changed object is an error.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.errors import InvalidOptionError
from kts_source.layout.layout import Orphan
from kts_source.layout.remote_segment import (
    Envelope,
    IndexType,
    ObjectRef,
    RemoteSegment,
    SegmentObjects,
    StoredIndex,
)
from kts_source.planning.lineage import Hole, PartitionLog, SegmentRange, SkippedSegment
from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
from kts_source.read.task import ScanTask, SegmentSlice
from segment_format.errors import SegmentFormatError
from segment_format.index.leader_epoch_checkpoint import EpochEntry
from segment_format.isolation import AbortedIntervals, OpenTransaction
from segment_format.manifest.chunk_index import FixedChunkIndex, VariableChunkIndex
from segment_format.manifest.encryption import WrappedDataKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from segment_format.manifest.chunk_index import ChunkIndex

VERSION: Final = 1


def plan_to_json(plan: ScanPlan) -> str:
    """The plan as one JSON document."""
    numbers: dict[tuple[str, str], int] = {}
    segments: list[RemoteSegment] = []

    def number(segment: RemoteSegment) -> int:
        key = (segment.topic_id, segment.segment_id)
        if key not in numbers:
            numbers[key] = len(segments)
            segments.append(segment)
        return numbers[key]

    partitions = [_partition_to(part, number) for part in plan.partitions]
    ids = {segment.segment_id: n for n, segment in enumerate(segments)}
    document = {
        "version": VERSION,
        "columns": plan.columns,
        "where": plan.where,
        "notes": plan.notes,
        "partitions": partitions,
        "tasks": [[_slice_to(part, ids) for part in task.slices] for task in plan.tasks],
        "segments": [_segment_to(segment) for segment in segments],
    }
    return json.dumps(document, separators=(",", ":"))


def plan_from_json(text: str) -> ScanPlan:
    """The plan that `plan_to_json` wrote.

    Raises:
        InvalidOptionError: Not such a document, or of another version.
    """
    try:
        document: dict[str, Any] = json.loads(text)
        if document["version"] != VERSION:
            raise InvalidOptionError(
                f"plan of version {document['version']!r}; this is read: {VERSION}"
            )
        segments = [_segment_from(entry) for entry in document["segments"]]
        return ScanPlan(
            tuple(_partition_from(entry, segments) for entry in document["partitions"]),
            tuple(
                ScanTask(tuple(_slice_from(part, segments) for part in task))
                for task in document["tasks"]
            ),
            tuple(document["columns"]),
            document.get("where"),
            tuple(str(note) for note in document.get("notes", ())),
        )
    except (
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        AttributeError,
        SegmentFormatError,
    ) as error:
        if isinstance(error, InvalidOptionError):
            raise
        raise InvalidOptionError(f"not a plan: {type(error).__name__}: {error}") from error


def _partition_to(part: PartitionPlan, number: Any) -> dict[str, Any]:  # noqa: ANN401
    log = part.surviving

    def holes(gaps: Iterable[Hole]) -> list[list[int | None]]:
        return [
            [
                gap.start,
                gap.stop,
                None if gap.before is None else number(gap.before),
                number(gap.after),
            ]
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
    )


def _slice_to(part: SegmentSlice, ids: dict[str, int]) -> dict[str, Any]:
    aborted = part.aborted
    columns = (aborted.producer_ids, aborted.first_offsets, aborted.last_offsets)
    return {
        "segment": ids[part.segment_id],
        "cuts": [part.cut_start, part.cut_stop],
        "offsets": [part.start_offset, part.stop_offset],
        "aborted": [column.tolist() for column in columns],
        "lineage": _epochs_to(part.lineage),
    }


def _slice_from(entry: dict[str, Any], segments: Sequence[RemoteSegment]) -> SegmentSlice:
    segment = segments[entry["segment"]]
    kept = {IndexType.OFFSET: segment.objects.indexes[IndexType.OFFSET]}
    producers, firsts, lasts = (np.array(column, np.int64) for column in entry["aborted"])
    cut_start, cut_stop = entry["cuts"]
    start, stop = entry["offsets"]
    return SegmentSlice(
        topic=segment.topic,
        partition=segment.partition,
        segment_id=segment.segment_id,
        segment_start=segment.start_offset,
        segment_stop=segment.stop_offset,
        objects=replace(segment.objects, indexes=kept),
        cut_start=cut_start,
        cut_stop=cut_stop,
        start_offset=start,
        stop_offset=stop,
        aborted=AbortedIntervals(producers, firsts, lasts),
        lineage=_epochs_from(entry["lineage"]),
    )


def _segment_to(segment: RemoteSegment) -> dict[str, Any]:
    objects = segment.objects
    envelope = objects.encryption
    return {
        "topic": segment.topic,
        "topicId": segment.topic_id,
        "partition": segment.partition,
        "id": segment.segment_id,
        "startOffset": segment.start_offset,
        "endOffset": segment.end_offset,
        "endIsExact": segment.end_is_exact,
        "maxTimestampMs": segment.max_timestamp_ms,
        "eventTimestampMs": segment.event_timestamp_ms,
        "leaderEpochs": _epochs_to(segment.leader_epochs),
        "log": _ref_to(objects.log),
        "chunkIndex": _chunks_to(objects.chunk_index),
        "compression": objects.compression,
        "encryption": None
        if envelope is None
        else {
            "dataKey": envelope.wrapped_key.to_text(),
            "aad": base64.b64encode(envelope.aad).decode(),
        },
        "indexes": {
            kind.value: [_ref_to(index.source), index.start, index.stop]
            for kind, index in objects.indexes.items()
        },
    }


def _segment_from(entry: dict[str, Any]) -> RemoteSegment:
    envelope = entry["encryption"]
    objects = SegmentObjects(
        log=ObjectRef(*entry["log"]),
        chunk_index=_chunks_from(entry["chunkIndex"]),
        compression=entry["compression"],
        encryption=None
        if envelope is None
        else Envelope(
            WrappedDataKey.from_text(envelope["dataKey"]), base64.b64decode(envelope["aad"])
        ),
        indexes={
            IndexType(kind): StoredIndex(ObjectRef(*source), start, stop)
            for kind, (source, start, stop) in entry["indexes"].items()
        },
    )
    return RemoteSegment(
        topic=entry["topic"],
        topic_id=entry["topicId"],
        partition=entry["partition"],
        segment_id=entry["id"],
        start_offset=entry["startOffset"],
        end_offset=entry["endOffset"],
        max_timestamp_ms=entry["maxTimestampMs"],
        event_timestamp_ms=entry["eventTimestampMs"],
        leader_epochs=_epochs_from(entry["leaderEpochs"]),
        objects=objects,
        end_is_exact=entry["endIsExact"],
    )


def _ref_to(ref: ObjectRef) -> list[Any]:
    return [ref.key, ref.size, ref.version, ref.storage_class]


def _chunks_to(index: ChunkIndex) -> dict[str, Any]:
    sizes = {"chunk": index.original_chunk_size, "file": index.original_file_size}
    if isinstance(index, FixedChunkIndex):
        stored = [index.transformed_chunk_size, index.final_transformed_chunk_size]
        return {**sizes, "fixed": stored}
    assert isinstance(index, VariableChunkIndex)
    return {**sizes, "variable": index.transformed_chunks}


def _chunks_from(entry: dict[str, Any]) -> ChunkIndex:
    if "fixed" in entry:
        return FixedChunkIndex(entry["chunk"], entry["file"], *entry["fixed"])
    return VariableChunkIndex.from_text(entry["chunk"], entry["file"], entry["variable"])


def _epochs_to(entries: Iterable[EpochEntry]) -> list[list[int]]:
    return [[entry.epoch, entry.start_offset] for entry in entries]


def _epochs_from(pairs: list[list[int]]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(*pair) for pair in pairs)
