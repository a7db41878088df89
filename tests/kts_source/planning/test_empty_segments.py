"""Checks closed segments from which compaction removed all records. The log object of such a
segment is empty or missing.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.auditing.report import LEVELS
from kts_source.cli.app import main
from kts_source.errors import CorruptSegmentError, DataLossError
from segment_format.testing import (
    AivenTierWriter,
    LocalTierWriter,
    LogBuilder,
    SegmentFiles,
    SimpleRecord,
)
from tests.golden_data import KEYS
from tests.kts_source.auditing.damaged_tier import encryption
from tests.kts_source.streaming.running import Checkpointed

if TYPE_CHECKING:
    from pathlib import Path

T = 1_700_000_000_000
PRIVATE_KEY = {"encryption.key.pairs.key1.private.key.file": str(KEYS / "key1.private.pem")}
KINDS = ("aiven", "no object", "compressed", "encrypted", "local")


def remove_records(files: SegmentFiles) -> SegmentFiles:
    """Returns the segment without its batches, as if compaction had removed all of them."""
    return dataclasses.replace(files, log=b"", index=b"", timeindex=b"", max_timestamp_ms=-1)


def build_segments(empty: set[int], count: int = 5) -> list[SegmentFiles]:
    """Builds `count` segments of ten offsets. A segment whose number is in `empty` has no records;
    every other segment has one.
    """
    builder = LogBuilder()
    for number in range(count):
        builder.append(
            [SimpleRecord(b"%d" % number, key=b"k%d" % number, timestamp=T + number)],
            last_offset_delta=9,
        )
        builder.roll()
    closed = builder.build().segments[:count]
    return [
        remove_records(files) if number in empty else files for number, files in enumerate(closed)
    ]


def write_tier(root: Path, kind: str, empty: set[int], count: int = 5) -> dict[str, str]:
    """Writes a tier of one of `KINDS` and returns the options to read it."""
    extra: dict[str, str] = {}
    writer: AivenTierWriter | LocalTierWriter
    if kind == "local":
        writer = LocalTierWriter(root, topic="t")
        extra = {"layout": "local-tiered-storage"}
    elif kind == "encrypted":
        writer = AivenTierWriter(root, topic="t", compression=True, encryption=encryption())
        extra = PRIVATE_KEY
    else:
        writer = AivenTierWriter(root, topic="t", compression=kind == "compressed")
    for files in build_segments(empty, count):
        writer.write_segment(files)
    if kind in ("no object", "compressed", "encrypted"):
        for log in root.rglob("*.log"):
            if log.stat().st_size == 0:
                log.unlink()
    return {"path": str(root), "subscribe": "t", **extra}


def read_rows(options: dict[str, str], **extra: str) -> list[tuple[int, bytes]]:
    table = kts_source.scan({**options, **extra}).to_table()
    return sorted(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def list_expected_rows(empty: set[int], count: int = 5) -> list[tuple[int, bytes]]:
    return [(10 * number, b"%d" % number) for number in range(count) if number not in empty]


@pytest.mark.parametrize("empty", [{2}, {0}, {1, 2, 3}, {4}, {0, 1, 2, 3, 4}])
@pytest.mark.parametrize("kind", KINDS)
def test_scan_of_tier_with_empty_segments_returns_all_rows_without_holes(
    tmp_path: Path, kind: str, empty: set[int]
) -> None:
    options = write_tier(tmp_path, kind, empty)
    expected_rows = list_expected_rows(empty)
    stop = 41 if kind == "local" and 4 in empty else 50
    for level in ("read_uncommitted", "read_committed"):
        assert read_rows(options, isolationLevel=level) == expected_rows
    for offset in (0, 5, 10, 20, 25, 29, 30, 39, 40, stop):
        bound = json.dumps({"t": {"0": offset}})
        assert read_rows(options, startingOffsets=bound) == [
            row for row in expected_rows if row[0] >= offset
        ]
        assert read_rows(options, endingOffsets=bound) == [
            row for row in expected_rows if row[0] < offset
        ]
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    for number in range(6):
        late = [row for row in expected_rows if int(row[1]) >= number]
        assert read_rows(options, startingTimestamp=str(T + number), **latest) == late
        assert read_rows(options, timestampRange=f"{T + number},") == late
    (partition,) = kts_source.describe(options).partitions
    assert (partition.log_start, partition.tier_end) == (0, stop)
    assert partition.holes == ()


@pytest.mark.parametrize("empty", [{2}, {0}, {1, 2, 3}, {4}])
@pytest.mark.parametrize("kind", KINDS)
def test_audit_of_empty_segments_has_no_findings(
    tmp_path: Path, kind: str, empty: set[int]
) -> None:
    options = write_tier(tmp_path, kind, empty)
    for level in LEVELS:
        report = kts_source.audit(options, level=level)
        assert report.findings == (), level
    (partition,) = report.partitions
    assert partition.records == len(list_expected_rows(empty))
    assert partition.digest is not None
    assert kts_source.report(options, audit=report).to_html()


@pytest.mark.parametrize("kind", KINDS)
def test_tier_with_empty_segments_can_be_searched_streamed_and_exported(
    tmp_path: Path, kind: str
) -> None:
    empty = {1, 3}
    options = write_tier(tmp_path / "tier", kind, empty)
    search = kts_source.find(options, keys=[b"k2"])
    assert search.to_table()["offset"].to_pylist() == [20]
    assert search.certificate.exhaustive
    for limit in ("1", "7", "100"):
        stream = Checkpointed(
            {**options, "maxOffsetsPerTrigger": limit, "minListingIntervalMs": "0"}
        )
        stream.all()
        offsets = [
            offset
            for number in sorted(stream.batches)
            for offset in stream.batches[number]["offset"].to_pylist()
        ]
        stream.close()
        assert offsets == [0, 20, 40]
    result = kts_source.backfill(
        None, source=options, target=str(tmp_path / "table"), progress=False
    )
    assert result.rows == 3


@pytest.mark.parametrize("kind", KINDS)
def test_stored_plans_and_caches_support_empty_segments(tmp_path: Path, kind: str) -> None:
    options = write_tier(tmp_path / "tier", kind, {1, 3})
    plan = tmp_path / "plan.json"
    plan.write_text(kts_source.plan(options).to_json())
    assert read_rows(options, planFile=str(plan)) == list_expected_rows({1, 3})
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    for _ in range(2):
        assert read_rows(options, cacheDir=str(cache)) == list_expected_rows({1, 3})


def test_commands_accept_empty_segments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = write_tier(tmp_path, "no object", {1, 3})
    for command in ("cat", "segments", "plan", "verify"):
        assert main([command, options["path"], "t"]) == 0, capsys.readouterr()
    assert [line["value"] for line in map(json.loads, read_cat_lines(options, capsys))] == [*"024"]


def read_cat_lines(options: dict[str, str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["cat", options["path"], "t"]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("kind", KINDS)
def test_lost_log_of_segment_with_records_raises_data_loss_error(tmp_path: Path, kind: str) -> None:
    options = write_tier(tmp_path, kind, {1})
    log = sorted(tmp_path.rglob("*.log"))[-2]
    log.unlink()
    with pytest.raises(DataLossError, match=r"holds offsets \[30, 40\)"):
        read_rows(options)
    for level in LEVELS:
        report = kts_source.audit(options, level=level)
        assert "object-missing" in {finding.name for finding in report.errors}
        assert report.exit_code == 3


@pytest.mark.parametrize("suffix", ["log", "index", "timeindex", "snapshot"])
@pytest.mark.parametrize("kind", KINDS)
def test_lost_file_after_empty_segment_raises_data_loss_error(
    tmp_path: Path, kind: str, suffix: str
) -> None:
    options = write_tier(tmp_path, kind, {1, 2})
    if kind != "local":
        suffix = "log"  # the Aiven layout has the other files in one object
    next(tmp_path.rglob(f"{30:020d}-*.{suffix}")).unlink()
    with pytest.raises(DataLossError, match="30"):
        read_rows(options)
    report = kts_source.audit(options, level="metadata")
    assert "object-missing" in {finding.name for finding in report.errors}


@pytest.mark.parametrize("kind", ["local", "aiven"])
def test_incremental_audit_counts_records_after_empty_last_segment(
    tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "tier"
    writer = (
        LocalTierWriter(root, topic="t") if kind == "local" else AivenTierWriter(root, topic="t")
    )
    layout = {"layout": "local-tiered-storage"} if kind == "local" else {}
    options = {"path": str(root), "subscribe": "t", **layout}
    files = build_segments({3}, 6)
    for number, segment in enumerate(files):
        writer.write_segment(segment)
        if number > 2:
            report = kts_source.audit(options, level="bytes", state=str(tmp_path / "state"))
            assert report.findings == ()
            assert report.partitions[0].records == number


@pytest.mark.parametrize("kind", KINDS)
def test_log_truncated_to_zero_bytes_raises_corrupt_segment_error(
    tmp_path: Path, kind: str
) -> None:
    options = write_tier(tmp_path, kind, {1})
    sorted(tmp_path.rglob("*.log"))[-2].write_bytes(b"")
    with pytest.raises(CorruptSegmentError):
        read_rows(options)
    assert "empty-object" in {
        finding.name for finding in kts_source.audit(options, level="listing").errors
    }
    for level in LEVELS:
        assert kts_source.audit(options, level=level).errors
