"""Writes tiers with a few records, for tests of exports that check only offsets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.export.report import BackfillReport
    from tests.kts_source.export.exporting import Lake

TOPIC = "t"
T0 = 1_700_000_000_000


@dataclass
class SmallTier:
    """A tier with one partition. Each segment has ten records, whose timestamps differ by 1 s.

    Attributes:
        topic_id: Id of the topic; by default a random one.
        keys: Keys of the objects of each segment.
    """

    root: Path
    partition: int = 0
    topic_id: str | None = None
    keys: list[tuple[str, ...]] = field(default_factory=list)
    _log: LogBuilder = field(default_factory=LogBuilder)

    def __post_init__(self) -> None:
        self._writer = AivenTierWriter(
            str(self.root), topic=TOPIC, partition=self.partition, topic_id=self.topic_id
        )
        self.topic_id = self._writer.topic_id

    def grow(self, segments: int, key: bytes = b"k") -> SmallTier:
        """Adds `segments` segments. All their records have the key `key`."""
        for _ in range(segments):
            first = self._log.next_offset
            self._log.append(
                [
                    SimpleRecord(b"%d" % offset, key, timestamp=T0 + 1000 * offset)
                    for offset in range(first, first + 10)
                ]
            )
            files = self._log.roll()
            assert files is not None
            self.keys.append(self._writer.write_segment(files).keys)
        return self

    def expire(self, *numbers: int) -> None:
        """Deletes the segments with the indexes `numbers`, counted from 0."""
        for number in numbers:
            for key in self.keys[number]:
                (self.root / key).unlink(missing_ok=True)

    def options(self, **options: str) -> dict[str, str]:
        """Returns options that read the tier with one segment per task. `options` overrides
        them.
        """
        return {
            "path": str(self.root),
            "subscribe": TOPIC,
            "cache": "false",
            "maxSegmentsPerTask": "1",
            **options,
        }


def offset_option(offset: int) -> str:
    """Returns the value of `startingOffsets` or `endingOffsets` for `offset` of partition 0, as
    JSON.
    """
    return json.dumps({TOPIC: {"0": offset}})


def table_offsets(lake: Lake) -> list[int]:
    """Returns the offsets of all rows of the table, sorted. An offset with several rows is
    repeated.
    """
    if lake.table_format == "parquet" and not (lake.folder / "table").exists():
        return []
    table = lake.read()
    return sorted(table["offset"].to_pylist()) if table.num_rows else []


def ranges(report: BackfillReport) -> list[tuple[int, int]]:
    """Returns the offset ranges [start, stop) that a run wrote."""
    return [(span.start, span.stop) for span in report.ranges]


def gaps(report: BackfillReport) -> list[tuple[int, int]]:
    """Returns the offset ranges [start, stop) that a run skipped."""
    return [(gap.start, gap.stop) for gap in report.skipped]
