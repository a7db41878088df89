"""Reads the committed offsets of consumer groups from the topic `__consumer_offsets` on disks."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from kts_source.planning.planner import plan_scan
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import open_tier
from segment_format.metadata.group_offsets import committed_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan
    from segment_format.metadata.group_offsets import CommittedOffset, GroupPartition
    from segment_format.record.records import DecodedBatch

OFFSETS_TOPIC: Final = "__consumer_offsets"


def groups_on_disks(options: ScanOptions) -> dict[GroupPartition, CommittedOffset]:
    """Returns the last committed offsets of all groups, sorted by group, topic and partition.

    Args:
        options: Options of a read_uncommitted scan of `OFFSETS_TOPIC` with `layout=kafka-logs`. In
            read_committed, an open transaction would hide the later commits of other groups.

    Raises:
        TieredKafkaError: The disks cannot be read, or lack offsets.
        InvalidMetadataError: A record is malformed.
    """
    offsets: dict[GroupPartition, CommittedOffset] = {}
    plan = plan_scan(options, tasks=False)
    with closing(open_tier(options)) as tier:
        source = SegmentSource(tier, options.key_ring.loaded())
        side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
        for partition in plan.partitions:
            offsets |= committed_offsets(_batches(partition, side_files))
    return dict(sorted(offsets.items()))


def _batches(partition: PartitionPlan, side_files: SideFiles) -> Iterator[DecodedBatch]:
    for span, start, stop in partition.wanted_ranges():
        for batch in side_files.batches(span.segment, 0):
            if batch.base_offset >= stop:
                break
            if batch.last_offset >= start:
                yield batch
