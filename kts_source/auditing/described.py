"""What describes each listed segment, and whether it is of that segment and fits its objects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kts_source.auditing.place import Place, is_archived, keys_of
from kts_source.errors import ObjectChangedError, ObjectNotFoundError, TruncatedObjectError
from kts_source.layout.aiven import INDEXES_SUFFIX, LOG_SUFFIX, AivenLayout, segment_of
from segment_format.errors import SegmentFormatError
from segment_format.kafka_uuid import uuid_to_text

if TYPE_CHECKING:
    from kts_source.auditing.report import Finding
    from kts_source.layout.layout import Layout, SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.store.object_store import ObjectStore
    from segment_format.manifest.segment_manifest import SegmentManifest

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Described:
    """A listed segment.

    Attributes:
        segment: Its facts; `None` where nothing tells them.
        is_readable: Whether its objects are what is described, as far as sizes and names tell.
        findings: What is wrong about it.
    """

    entry: SegmentEntry
    segment: RemoteSegment | None
    is_readable: bool
    findings: tuple[Finding, ...]

    @property
    def stop(self) -> int | None:
        """One past its last offset, where that is known."""
        return None if self.segment is None else self.segment.stop_offset


def described(
    place: Place, entry: SegmentEntry, layout: Layout, store: ObjectStore, *, now_ms: int
) -> Described:
    """Describes a segment; what cannot be is among the findings.

    Args:
        place: Its partition.
        entry: A whole segment, or a damaged one that something describes.
        layout: Of the tier.
        store: Where it is.
        now_ms: The time in ms since 1970.

    Raises:
        StoreError: The store does not answer.
        KeyPrefixError: The topic's name is cut by the key prefix.
    """
    name, error = "manifest-invalid", None
    if any(info.key == entry.described_by and is_archived(info) for _, info in entry.objects):
        return Described(entry, None, False, ())
    try:
        if isinstance(layout, AivenLayout):
            return _by_manifest(place, entry, layout.manifest(store, entry), now_ms)
        segment = layout.describe(store, entry)
        return Described(entry, segment, True, tuple(clock_findings(place, segment, entry, now_ms)))
    except SegmentFormatError as failure:
        error = str(failure)
    except (ObjectNotFoundError, ObjectChangedError) as failure:
        name, error = "object-gone", failure.message
    except TruncatedObjectError as failure:
        error = failure.message
    finding = place.finding(name, entry.base_offset, None, [entry.described_by], error)
    return Described(entry, None, False, (finding,))


def _by_manifest(
    place: Place, entry: SegmentEntry, manifest: SegmentManifest, now_ms: int
) -> Described:
    keys = keys_of(entry)
    if foreign := _foreign(entry, manifest):
        found = place.finding("manifest-foreign", entry.base_offset, None, keys, foreign)
        return Described(entry, None, False, (found,))
    log, indexes = entry.object(LOG_SUFFIX), entry.object(INDEXES_SUFFIX)
    size, wanted = manifest.chunk_index.transformed_size, manifest.segment_indexes.transformed_size
    has_log = log is None or log.size == size
    has_indexes = indexes is None or indexes.size >= wanted
    own = entry.objects  # side files tell the lineage, whatever became of the log
    if not has_indexes:
        own = ()
    elif not has_log:
        own = tuple(pair for pair in own if pair[0] != LOG_SUFFIX)
    segment = segment_of(entry if own is entry.objects else replace(entry, objects=own), manifest)
    findings = clock_findings(place, segment, entry, now_ms)
    if log is not None and not has_log and log.size:
        text = f"{log.key} has {log.size} bytes; the manifest's chunks make {size}"
        findings.append(place.of_segment("log-size", segment, [log.key], text))
    if indexes is not None and indexes.size != wanted and indexes.size:
        text = f"{indexes.key} has {indexes.size} bytes; the manifest's side files make {wanted}"
        findings.append(place.of_segment("indexes-size", segment, [indexes.key], text))
    return Described(entry, segment, has_log and has_indexes, tuple(findings))


def _foreign(entry: SegmentEntry, manifest: SegmentManifest) -> str:
    """Where a manifest names another segment than its own name does; empty where it does not."""
    if manifest.metadata is None:
        return ""
    told = manifest.metadata.segment_id
    of = told.topic_id_partition
    cut_prefix = entry.topic.endswith(of.topic)  # `segment_of` tells of it
    pairs = (
        ("topic", entry.topic if cut_prefix else of.topic, entry.topic),
        ("topic id", uuid_to_text(of.topic_id), entry.topic_id),
        ("partition", of.partition, entry.partition),
        ("first offset", manifest.metadata.start_offset, entry.base_offset),
        ("segment id", uuid_to_text(told.id), entry.segment_id),
    )
    return "; ".join(
        f"the manifest says {what} {said}, its name {named}"
        for what, said, named in pairs
        if said != named
    )


def clock_findings(
    place: Place, segment: RemoteSegment, entry: SegmentEntry, now_ms: int
) -> list[Finding]:
    """Times that cannot be."""
    event, newest = segment.event_timestamp_ms, segment.max_timestamp_ms
    texts = []
    if event is not None and not 0 < event <= now_ms + _DAY_MS:
        texts.append(f"copied at {event} ms since 1970")
    elif newest > (now_ms if event is None else event) + _DAY_MS:
        texts.append(f"a record is dated {newest} ms since 1970, more than a day after its copy")
    return [place.of_segment("clock", segment, [entry.described_by], text) for text in texts]
