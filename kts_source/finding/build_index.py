"""`kts_source.index_keys(source, folder)`: filters of the keys of each segment, for searches."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.finding.key_index import (
    MOST_KEYS,
    IndexFolder,
    KeyFilter,
    hashes_of,
    indexed,
    new_salt,
)
from kts_source.finding.read_apart import archived_object, why_archived
from kts_source.options import check_for_batch, parse_any_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import FOR_ENGINES, ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task import ScanTask
from kts_source.texts import one_line
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.finding.key_index import IndexedSegment, PartitionIndex
    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.read.task import SegmentSlice

_WHOLE_SEGMENTS = 1 << 62


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What became of the segments.

    Attributes:
        segments: How many have a filter now.
        read: How many of them were read for it; the others had it.
        bytes: Of all files of the index that were written.
        left_out: Objects, or whole partitions, without a filter, and why.
    """

    segments: int
    read: int
    bytes: int
    left_out: tuple[tuple[str, str], ...]


def index_keys(
    source: Mapping[str, str],
    folder: str,
    *,
    secret: bytes | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> IndexReport:
    """Writes, for each partition, a file with the filters of its segments' keys; segments that have
    one are not read again.

    Args:
        source: Options as for the data source.
        folder: A folder of this machine, not of the tier.
        secret: 16 to 64 bytes that the hashes of keys are made with. A filter without one tells
            anybody whether a key is there, so topics that are encrypted need one.
        progress: Called after each segment with the original bytes that were read, and all to read.

    Raises:
        InvalidOptionError: Options that bound what is read, an encrypted topic without a secret, or
            a folder that cannot be used.
        TieredKafkaError: The tier cannot be planned, or the store does not answer.
    """
    options = _options(source)
    target = IndexFolder.of(folder, secret, options)
    with closing(open_tier(options)) as tier:
        refused: list[TieredKafkaError] = []
        plan = plan_scan(options, tier, on_partition_error=refused.append)
        parts = [part for task in plan.tasks for part in task.slices]
        if not target.secret.reveal() and any(
            part.objects.encryption is not None for part in parts
        ):
            raise InvalidOptionError(
                "a filter without a secret tells which keys there are, and segments are encrypted:"
                " give a secret"
            )
        building = _Building(SegmentSource(tier, options.key_ring), options, target.secret.reveal())
        every = sum(part.nominal_bytes for part in parts)
        root = tier.store.uri(options.key_prefix)
        written = 0
        for partition in plan.partitions:
            file = target.file_of(root, partition.topic, partition.topic_id, partition.partition)
            before = target.open(file)
            salt = new_salt() if before is None else before.salt
            here = _slices(partition, parts)

            def told(read: int) -> None:
                if progress is not None:
                    progress(read, every)

            written += target.write(file, salt, building.entries(here, before, salt, told))
    segments = building.read + building.kept
    left_out = [(f"{one.topic}-{one.partition}", one_line(str(one))) for one in refused]
    return IndexReport(segments, building.read, written, (*left_out, *building.left_out))


def _options(source: Mapping[str, str]) -> ScanOptions:
    check_for_batch(options := parse_any_options(source))
    named = sorted(options.given & {"planFile", "where", "timestampRange", "targetPartitionBytes"})
    if options.brokers is not None:
        named.append("kafka.bootstrap.servers")
    if options.formats:
        named.append("key.format and value.format")
    if not options.check_crcs:  # a filter of other bytes would hide keys from a search
        named.append("checkCrcs=false")
    if named:
        raise InvalidOptionError(f"an index is of whole segments: leave out {', '.join(named)}")
    return replace(
        options,
        key_ring=options.key_ring.loaded(),
        isolation_level="read_uncommitted",  # holds for any search
        fail_on_data_loss=False,  # what cannot be read has no filter
        target_partition_bytes=_WHOLE_SEGMENTS,
        max_segments_per_task=1,
        min_partitions=None,
        max_records_per_partition=None,
    )


def _slices(partition: PartitionPlan, parts: list[SegmentSlice]) -> list[SegmentSlice]:
    place = partition.topic, partition.partition
    return [part for part in parts if (part.topic, part.partition) == place]


class _Building:
    """Makes filters, and counts.

    Args:
        reader: What reads segments.
        options: How.
        secret: Of the hashes.
    """

    def __init__(self, reader: SegmentSource, options: ScanOptions, secret: bytes) -> None:
        self.read = self.kept = self._done = 0
        self.left_out: list[tuple[str, str]] = []
        self._reader = reader
        self._secret = secret
        # The plan goes on without what is lost. A segment of which a part is lost has no filter: it
        # would lack keys, and hide them from a search once the object is there again.
        self._settings = replace(
            ReadSettings.of(options), columns=("key",), batches=FOR_ENGINES, fail_on_data_loss=True
        )

    def entries(
        self,
        parts: Sequence[SegmentSlice],
        before: PartitionIndex | None,
        salt: bytes,
        told: Callable[[int], object],
    ) -> Iterator[tuple[IndexedSegment, bytes]]:
        """The filter of each segment that can have one, old or new."""
        pieces = Counter(part.objects.log.key for part in parts)
        for part in parts:
            if pieces[part.objects.log.key] > 1:  # each would be taken for all of its offsets
                self.left_out.append((part.objects.log.key, "it was planned in pieces"))
                continue
            entry = _kept(before, part)
            self.kept += entry is not None
            if entry is None and (ref := archived_object(part)) is not None:
                self.left_out.append((ref.key, why_archived(ref)))
            elif entry is None:
                try:
                    entry = self._made(part, salt)
                    self.read += 1
                except TieredKafkaError as error:
                    self.left_out.append((part.objects.log.key, one_line(str(error))))
                except ValueError as error:
                    self.left_out.append((part.objects.log.key, str(error)))
            if entry is not None:
                yield entry
            self._done += part.nominal_bytes
            told(self._done)

    def _made(self, part: SegmentSlice, salt: bytes) -> tuple[IndexedSegment, bytes]:
        """Raises `ValueError` where a segment cannot have a filter."""
        has_null, count = False, 0
        hashes = [np.empty(0, np.uint64)]
        with closing(read_task(ScanTask((part,)), self._reader, self._settings)) as batches:  # type: ignore[type-var]
            for batch in batches:
                keys = batch.column(0)
                has_null = has_null or keys.null_count > 0
                distinct = pc.unique(keys.drop_null()).to_pylist()
                hashes.append(hashes_of(distinct, salt=salt, secret=self._secret))
                count += len(distinct)
                if count > MOST_KEYS:
                    hashes = [np.unique(np.concatenate(hashes))]
                    count = len(hashes[0])
        made = KeyFilter.of(np.concatenate(hashes))
        data = made.to_bytes()
        place = part.objects.log, part.start_offset, part.stop_offset
        entry = indexed(*place, has_null=has_null, bits=made.bits, data=data)
        if entry is None:
            raise ValueError("the store tells no version of it")
        return entry, data


def _kept(before: PartitionIndex | None, part: SegmentSlice) -> tuple[IndexedSegment, bytes] | None:
    """What an index has of a segment already."""
    one = None if before is None else before.segments.get(part.objects.log.key)
    if before is None or one is None or not one.covers(part):
        return None
    data = before.filter_bytes(one)
    return None if data is None else (one, data)
