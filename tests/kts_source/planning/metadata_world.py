"""Builds a tier that cannot be listed, a broker of its topic, and the metadata records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.planning.metadata_events import (
    FINISHED,
    Place,
    UnlistableStore,
    copied,
    create_metadata_topic,
)

if TYPE_CHECKING:
    from kts_source.planning.scan_plan import ScanPlan
    from segment_format.testing import BuiltLog, SegmentFiles


@dataclass(slots=True)
class World:
    """A topic whose closed segments are in a tier and whose active segment is on a broker.

    Attributes:
        records: Metadata records of each closed segment.
    """

    cluster: FakeCluster
    log: BuiltLog
    local: bool = False
    key_prefix: str = ""
    store: dict[str, bytes] = field(default_factory=dict)
    records: list[list[bytes | None]] = field(default_factory=list)
    segment_ids: list[str] = field(default_factory=list)
    place: Place = ("t", "", 0)

    def __post_init__(self) -> None:
        """Copies the closed segments to the tier and creates the topic in the cluster."""
        writer: LocalTierWriter | AivenTierWriter = (
            LocalTierWriter(self.store, topic="t")
            if self.local
            else AivenTierWriter(self.store, topic="t", key_prefix=self.key_prefix)
        )
        self.place = ("t", writer.topic_id, 0)
        for files in self.closed:
            segment_id = writer.write_segment(files).segment_id
            self.segment_ids.append(segment_id)
            self.records.append([*copied(self.place, files, segment_id, FINISHED)])
        user = FakePartition(fake_log(self.log))
        self.cluster.create("t", [user], uuid_from_text(writer.topic_id))

    @property
    def closed(self) -> tuple[SegmentFiles, ...]:
        """Returns the closed segments of the log, which are in the tier."""
        return self.log.segments[:-1]

    def keys(self, number: int) -> list[str]:
        """Returns the keys of the objects of closed segment `number`."""
        return [key for key in self.store if self.segment_ids[number] in key]

    def write_metadata(self, *extra: bytes | None, key: bytes | None = None) -> list[FakePartition]:
        """Creates the metadata topic with the records of all segments, followed by `extra`."""
        values = [value for records in self.records for value in records]
        return create_metadata_topic(self.cluster, {self.place: [*values, *extra]}, key=key)

    def plan(self, store: UnlistableStore | None = None, **extra: str) -> ScanPlan:
        """Plans a scan without listing the tier, checks the rows that the scan reads, and returns
        the plan.
        """
        option_texts = {
            "path": "/",
            "keyPrefix": self.key_prefix,
            "subscribe": "t",
            "catalog": "metadata-topic",
            "kafka.bootstrap.servers": self.cluster.bootstrap,
            "kafka.request.timeout.ms": "5000",
            "kafka.fetch.max.wait.ms": "10",
            **({"layout": "local-tiered-storage"} if self.local else {}),
            **extra,
        }
        options = parse_options(option_texts)
        tier = Tier(store or UnlistableStore(self.store))
        plan = plan_scan(options, tier)
        source, settings = SegmentSource(tier, options.key_ring), ReadSettings.of(options)
        batches = [batch for task in plan.tasks for batch in read_task(task, source, settings)]
        rows = pa.Table.from_batches(batches).select(["offset", "value"]).to_pylist()
        expected = [{"offset": row.offset, "value": row.value} for row in self.log.all_rows]
        assert rows == expected
        return plan

    def from_tier(self, plan: ScanPlan) -> list[int]:
        """Returns the numbers of the closed segments that a plan reads from the tier."""
        used = {span.segment.segment_id for span in plan.partitions[0].surviving.ranges}
        return [number for number, name in enumerate(self.segment_ids) if name in used]


def five_segments() -> BuiltLog:
    """Builds a log of five segments, each with six batches of two records. The last segment is not
    closed.
    """
    builder = LogBuilder()
    for segment in range(5):
        for number in range(6):
            builder.append([SimpleRecord(b"%d-%d" % (segment, number))] * 2)
        if segment < 4:
            builder.roll()
    return builder.build()
