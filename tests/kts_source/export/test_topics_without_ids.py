"""Tests exports of topics without topic ids. The table identifies such topics by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import ExportError
from kts_source.export.end_offsets import end_offsets
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.export.exporting import FORMATS, Lake, row_locations
from tests.kts_source.layout.kafka_logs.disk import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS

if TYPE_CHECKING:
    from pathlib import Path


def write_disk(root: Path, **counts: int) -> dict[str, str]:
    """Writes broker log folders without `partition.metadata`, the file with the topic id.

    `counts` maps each topic to its number of records. Keys repeat every four records. Returns the
    options to read the topics.
    """
    for topic, count in counts.items():
        log = LogBuilder()
        for offset in range(count):
            value = b"%s %d" % (topic.encode(), offset)
            log.append([SimpleRecord(value, b"%d" % (offset % 4), timestamp=1000 * offset)])
        (segment,) = log.build().segments
        folder = root / f"{topic}-0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{0:020d}.log").write_bytes(segment.log)
        (folder / f"{0:020d}.index").write_bytes(segment.index)
        (folder / f"{0:020d}.timeindex").write_bytes(segment.timeindex)
        (folder / "leader-epoch-checkpoint").write_bytes(segment.leader_epoch_checkpoint)
    lines = [f"{topic} 0 {count}" for topic, count in counts.items()]
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
        (root / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    (root / LOG_STARTS).write_text("0\n0\n")
    (root / ".kafka_cleanshutdown").touch()
    return {"path": str(root), "layout": "kafka-logs", "subscribe": ",".join(counts)}


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def test_exports_of_topics_without_ids_continue_at_their_end_offsets(
    lake: Lake, tmp_path: Path
) -> None:
    root = tmp_path / "disk"
    for counts in ({"a": 10, "b": 4}, {"a": 12, "b": 12}, {"a": 12, "b": 12, "c": 3}):
        lake.export(write_disk(root, **counts))
        want = [(topic, 0, offset) for topic, count in counts.items() for offset in range(count)]
        assert sorted(row_locations(lake.read())) == sorted(want)
    options = write_disk(root, a=12, b=12, c=3)
    where: dict[str, Any] = {"target": lake.target, "table_format": lake.table_format}
    if lake.table_format == "iceberg":
        where["catalog"] = {**lake.catalog, "name": "lake"}
    ends = end_offsets(source=options, **where)
    assert json.loads(ends) == {"a": {"0": 12}, "b": {"0": 12}, "c": {"0": 3}}


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_compaction_separates_equal_keys_of_topics_without_ids(
    tmp_path: Path, table_format: str
) -> None:
    lake = Lake(tmp_path, table_format)
    root = tmp_path / "disk"
    for a, b in ((8, 5), (9, 12)):
        lake.export(write_disk(root, a=a, b=b), compact=True)
        want = [("a", 0, offset) for offset in range(a - 4, a)]
        want += [("b", 0, offset) for offset in range(b - 4, b)]
        assert sorted(row_locations(lake.read())) == want


def test_export_of_two_topics_with_the_same_id_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    for topic in ("a", "b"):
        log = LogBuilder()
        log.append([SimpleRecord(b"v")])
        writer = AivenTierWriter(tmp_path / "tier", topic=topic, topic_id="LWgrMmVrT0a__7a4SasuPA")
        writer.write_segment(log.build().segments[0])
    with pytest.raises(ExportError, match="topics a and b have the same topic id LWgrMmVrT0a"):
        lake.export({"path": str(tmp_path / "tier"), "subscribe": "a,b"})
