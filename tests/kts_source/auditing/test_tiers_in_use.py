"""Tests audits of tiers with several damaged objects, and of tiers that brokers still write."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.auditing.report import LEVELS
from segment_format.testing import LogBuilder, SimpleRecord
from segment_format.testing.batches import DEFAULT_TIMESTAMP_MS
from segment_format.testing.segment import write_leader_epoch_checkpoint
from tests.golden_data import encryption_options
from tests.kts_source.auditing.damaged_tier import (
    BASES,
    NOW_MS,
    STOP,
    TOPIC,
    TOPIC_ID,
    encryption,
    finding_spans,
    healthy_segments,
    replace_files,
    run_audit,
    write_tier,
)

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000


def test_swapped_logs_are_reported_as_out_of_bounds(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.swap(3, 4, "log")
    assert run_audit(tier, "metadata").findings == ()
    # Level `indexes` reads only the batches at the last index entries.
    names = {(finding.name, finding.start) for finding in run_audit(tier, "indexes").findings}
    assert names == {("offset-index-disagrees", 123), ("offset-index-disagrees", 163)}
    report = run_audit(tier)
    assert [(finding.name, finding.objects) for finding in report.findings] == [
        ("out-of-bounds", (tier.key(3, "log"),)),
        ("out-of-bounds", (tier.key(4, "log"),)),
    ]


def test_swapped_manifests_or_side_files_are_reported(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "manifests", healthy_segments())
    tier.swap(3, 4, "rsm-manifest")
    report = run_audit(tier)
    assert finding_spans(report) == {
        ("manifest-foreign", 123, None),
        ("manifest-foreign", 163, None),
    }
    tier = write_tier(tmp_path / "indexes", healthy_segments())
    tier.swap(3, 4, "indexes")
    report = run_audit(tier)
    assert finding_spans(report) == {
        ("time-index-disagrees", 123, 163),
        ("time-index-disagrees", 163, 203),
    }


def test_segment_copied_under_another_id_is_reported_as_foreign(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    for suffix in ("log", "indexes", "rsm-manifest"):
        path = tier.path(2, suffix)
        copy = path.with_name(f"{82:020d}-AAAAAAAAAAAAAAAAAAAABQ.{suffix}")
        copy.write_bytes(path.read_bytes())
    report = run_audit(tier)
    assert finding_spans(report) == {("manifest-foreign", 82, None)}
    assert report.partitions[0].records == STOP - 2


@pytest.mark.parametrize(
    ("chunk_size", "suffix", "kind"), [(512, "log", "log-unreadable"), (512, "indexes", None)]
)
def test_undecryptable_object_is_reported(
    tmp_path: Path, chunk_size: int, suffix: str, kind: str | None
) -> None:
    tier = write_tier(
        tmp_path,
        healthy_segments(),
        chunk_size=chunk_size,
        compression=True,
        encryption=encryption(),
    )
    tier.flip(2, suffix, 30)
    report = run_audit(tier, **encryption_options())
    assert finding_spans(report) == {(kind or "offset-index-invalid", 82, 123)}


def test_damaged_or_swapped_chunks_are_reported(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "zstd", healthy_segments(), compression=True)
    tier.flip(2, "log", 2)
    assert finding_spans(run_audit(tier)) == {("log-unreadable", 82, 123)}
    tier = write_tier(tmp_path / "swapped", healthy_segments(), encryption=encryption())
    log = tier.path(2, "log")
    size = 512 + 28
    data = log.read_bytes()
    log.write_bytes(data[size : 2 * size] + data[:size] + data[2 * size :])
    (finding,) = run_audit(tier, **encryption_options()).findings
    assert (finding.name, finding.start, finding.stop) == ("batch-invalid", 82, 123)


def test_missing_encryption_key_is_reported_once(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments(), encryption=encryption())
    for level in ("metadata", "indexes", "bytes"):
        (finding,) = run_audit(tier, level).findings
        assert (finding.name, finding.start, finding.stop) == ("key-missing", 0, STOP)
        assert len(finding.objects) == len(BASES)
    (statement,) = run_audit(tier).partitions
    assert (statement.records, statement.last_stable_offset) == (None, None)
    assert statement.stop == STOP


def test_incomplete_copy_counts_as_in_progress_for_an_hour(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(4, "rsm-manifest")
    objects = tier.path(4, "log"), tier.path(4, "indexes")
    for minutes, kind in ((59, "copy-under-way"), (61, "half-copy")):
        for path in objects:
            os.utime(path, (NOW_MS / 1000 - 60 * minutes,) * 2)
        for level in LEVELS:
            report = run_audit(tier, level)
            assert finding_spans(report) == {(kind, 163, None)}
            assert report.exit_code == 0
            assert report.findings[0].stored_bytes == sum(p.stat().st_size for p in objects)
    tier.lose(4, "indexes")
    assert finding_spans(run_audit(tier)) == {("half-copy", 163, None)}


def test_incomplete_first_segment_is_reported_as_unfinished_delete(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(0, "log")
    for level in LEVELS:
        report = run_audit(tier, level)
        assert {(finding.name, finding.start) for finding in report.findings} == {
            ("half-delete", 0)
        }
        assert report.exit_code == 0


def test_missing_manifest_is_reported_with_offsets(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(2, "rsm-manifest")
    for level in ("metadata", "bytes"):
        report = run_audit(tier, level)
        assert finding_spans(report) == {("object-missing", 82, 123)}
        assert report.exit_code == 3


def test_hole_next_to_damaged_segment_is_reported_separately(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(1, "log", "indexes", "rsm-manifest")
    tier.lose(2, "log")
    report = run_audit(tier)
    assert finding_spans(report) == {("hole", 40, 82), ("object-missing", 82, 123)}


def test_duplicate_overlapping_and_expired_segments_are_reported(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    write_tier(tmp_path, healthy_segments()[2:3], seed=6)
    (finding,) = run_audit(tier).findings
    assert (finding.name, finding.start, finding.stop) == ("duplicate-upload", 82, 123)
    assert len(finding.objects) == 3
    listing = run_audit(tier, "listing")
    assert {finding.name for finding in listing.findings} == {"duplicate-upload"}
    tier = write_tier(tmp_path / "overlap", healthy_segments())
    write_tier(tmp_path / "overlap", healthy_segments((1, 4))[:1], seed=6)
    (finding,) = run_audit(tier).findings
    assert (finding.name, finding.start, finding.stop) == ("overlap", 0, 40)
    checkpoint = write_leader_epoch_checkpoint([(0, 40), (3, 82)])
    tier = write_tier(tmp_path / "deleted", replace_files(4, leader_epoch_checkpoint=checkpoint))
    (finding,) = run_audit(tier).findings
    assert (finding.name, finding.start, finding.stop) == ("below-log-start", 0, 40)
    assert run_audit(tier).partitions[0].start == 40


def test_segment_of_replaced_branch_is_reported(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    builder = LogBuilder(start_offset=82, leader_epoch=1)
    builder.append([SimpleRecord(b"dead") for _ in range(5)])
    builder.roll()
    (segment,) = builder.build().segments
    segment = replace(
        segment, leader_epoch_checkpoint=write_leader_epoch_checkpoint([(0, 0), (1, 82)])
    )
    write_tier(tmp_path, [segment], seed=6)
    report = run_audit(tier)
    assert finding_spans(report) == {("dead-branch", 82, 87)}
    assert report.partitions[0].records == STOP - 2


def test_segments_of_unselected_topic_id_and_stray_object_are_reported(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    write_tier(tmp_path, healthy_segments(), topic_id="AAAAAAAAAAAAAAAAAAAAMQ", seed=6)
    (log,) = (tmp_path / f"{TOPIC}-{TOPIC_ID}").rglob(f"{82:020d}-*.log")
    stray = log.with_name("notes.txt")
    stray.write_bytes(bytes(10))
    for level in LEVELS:
        report = run_audit(tier, level, topicId=TOPIC_ID)
        assert {(finding.name, finding.start) for finding in report.findings} == {
            ("other-topic-id", 0),
            ("stray-object", None),
        }
        by_name = {finding.name: finding for finding in report.findings}
        assert by_name["stray-object"].stored_bytes == 10
        assert len(by_name["other-topic-id"].objects) == 3 * len(BASES)


def test_event_times_in_the_future_or_before_the_records_are_reported(tmp_path: Path) -> None:
    newest = healthy_segments()[4:]
    future = write_tier(tmp_path / "a", newest, event_timestamp_ms=NOW_MS * 2)
    assert finding_spans(run_audit(future)) == {("clock", 163, STOP)}
    early = newest[0].max_timestamp_ms - 2 * DAY_MS
    ahead = write_tier(tmp_path / "b", newest, event_timestamp_ms=early)
    assert finding_spans(run_audit(ahead)) == {("clock", 163, STOP)}


def test_hanging_transaction_is_reported_after_a_day(tmp_path: Path) -> None:
    builder = LogBuilder()
    for day in range(3):
        clock = DEFAULT_TIMESTAMP_MS + day * DAY_MS
        if day == 0:
            builder.send(7, [SimpleRecord(b"a", timestamp=clock)])
        if day == 2:
            builder.send(8, [SimpleRecord(b"b", timestamp=clock)])
        builder.append([SimpleRecord(b"c", timestamp=clock)])
        builder.roll()
    tier = write_tier(tmp_path, list(builder.build().segments))
    report = run_audit(tier)
    assert finding_spans(report) == {("hanging-transaction", 0, 5), ("open-transaction", 3, 5)}
    assert (report.exit_code, report.partitions[0].last_stable_offset) == (0, 0)
