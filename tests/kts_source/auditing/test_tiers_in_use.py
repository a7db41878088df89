"""Damages of more than one object, and what is usual in a tier that is in use."""

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
    audited,
    changed,
    encryption,
    found,
    healthy_segments,
    write_tier,
)

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000


def test_swapped_logs_are_of_other_offsets(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.swap(3, 4, "log")
    assert audited(tier, "metadata").findings == ()
    # Of the log, the batches that the indexes end at are read.
    names = {(one.name, one.start) for one in audited(tier, "indexes").findings}
    assert names == {("offset-index-disagrees", 123), ("offset-index-disagrees", 163)}
    report = audited(tier)
    assert [(one.name, one.objects) for one in report.findings] == [
        ("out-of-bounds", (tier.key(3, "log"),)),
        ("out-of-bounds", (tier.key(4, "log"),)),
    ]


def test_swapped_manifests_and_side_files(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "manifests", healthy_segments())
    tier.swap(3, 4, "rsm-manifest")
    report = audited(tier)
    assert found(report) == {("manifest-foreign", 123, None), ("manifest-foreign", 163, None)}
    tier = write_tier(tmp_path / "indexes", healthy_segments())
    tier.swap(3, 4, "indexes")
    report = audited(tier)
    assert found(report) == {
        ("time-index-disagrees", 123, 163),
        ("time-index-disagrees", 163, 203),
    }


def test_a_segment_copied_under_another_id_is_not_its_own(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    for suffix in ("log", "indexes", "rsm-manifest"):
        path = tier.path(2, suffix)
        copy = path.with_name(f"{82:020d}-AAAAAAAAAAAAAAAAAAAABQ.{suffix}")
        copy.write_bytes(path.read_bytes())
    report = audited(tier)
    assert found(report) == {("manifest-foreign", 82, None)}
    assert report.partitions[0].records == STOP - 2


@pytest.mark.parametrize(
    ("chunk_size", "suffix", "kind"), [(512, "log", "log-unreadable"), (512, "indexes", None)]
)
def test_what_does_not_decrypt(
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
    report = audited(tier, **encryption_options())
    assert found(report) == {(kind or "offset-index-invalid", 82, 123)}


def test_compressed_chunks_that_are_damaged_or_swapped(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "zstd", healthy_segments(), compression=True)
    tier.flip(2, "log", 2)
    assert found(audited(tier)) == {("log-unreadable", 82, 123)}
    tier = write_tier(tmp_path / "swapped", healthy_segments(), encryption=encryption())
    log = tier.path(2, "log")
    size = 512 + 28
    data = log.read_bytes()
    log.write_bytes(data[size : 2 * size] + data[:size] + data[2 * size :])
    (one,) = audited(tier, **encryption_options()).findings
    assert (one.name, one.start, one.stop) == ("batch-invalid", 82, 123)


def test_a_key_that_is_missing_is_one_finding(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments(), encryption=encryption())
    for level in ("metadata", "indexes", "bytes"):
        (one,) = audited(tier, level).findings
        assert (one.name, one.start, one.stop) == ("key-missing", 0, STOP)
        assert len(one.objects) == len(BASES)
    (part,) = audited(tier).partitions
    assert (part.records, part.last_stable_offset, part.stop) == (None, None, STOP)


def test_copies_under_way_and_copies_that_were_given_up(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(4, "rsm-manifest")
    objects = tier.path(4, "log"), tier.path(4, "indexes")
    for minutes, kind in ((59, "copy-under-way"), (61, "half-copy")):
        for path in objects:
            os.utime(path, (NOW_MS / 1000 - 60 * minutes,) * 2)
        for level in LEVELS:
            report = audited(tier, level)
            assert found(report) == {(kind, 163, None)}
            assert report.exit_code == 0
            assert report.findings[0].stored_bytes == sum(p.stat().st_size for p in objects)
    tier.lose(4, "indexes")
    assert found(audited(tier)) == {("half-copy", 163, None)}


def test_what_is_left_of_a_segment_below_all_others_is_a_delete(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(0, "log")
    for level in LEVELS:
        report = audited(tier, level)
        assert {(one.name, one.start) for one in report.findings} == {("half-delete", 0)}
        assert report.exit_code == 0


def test_a_manifest_that_is_lost_leaves_a_hole_that_is_named(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(2, "rsm-manifest")
    for level in ("metadata", "bytes"):
        report = audited(tier, level)
        assert found(report) == {("object-missing", 82, 123)}
        assert report.exit_code == 3


def test_a_hole_beside_a_segment_that_is_damaged(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(1, "log", "indexes", "rsm-manifest")
    tier.lose(2, "log")
    report = audited(tier)
    assert found(report) == {("hole", 40, 82), ("object-missing", 82, 123)}


def test_duplicates_overlaps_and_stragglers(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    write_tier(tmp_path, healthy_segments()[2:3], seed=6)
    (one,) = audited(tier).findings
    assert (one.name, one.start, one.stop) == ("duplicate-upload", 82, 123)
    assert len(one.objects) == 3
    assert {one.name for one in audited(tier, "listing").findings} == {"duplicate-upload"}
    tier = write_tier(tmp_path / "overlap", healthy_segments())
    write_tier(tmp_path / "overlap", healthy_segments((1, 4))[:1], seed=6)
    (one,) = audited(tier).findings
    assert (one.name, one.start, one.stop) == ("overlap", 0, 40)
    checkpoint = write_leader_epoch_checkpoint([(0, 40), (3, 82)])
    tier = write_tier(tmp_path / "deleted", changed(4, leader_epoch_checkpoint=checkpoint))
    (one,) = audited(tier).findings
    assert (one.name, one.start, one.stop) == ("below-log-start", 0, 40)
    assert audited(tier).partitions[0].start == 40


def test_a_branch_that_died(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    dead = LogBuilder(start_offset=82, leader_epoch=1)
    dead.append([SimpleRecord(b"dead") for _ in range(5)])
    dead.roll()
    (segment,) = dead.build().segments
    segment = replace(
        segment, leader_epoch_checkpoint=write_leader_epoch_checkpoint([(0, 0), (1, 82)])
    )
    write_tier(tmp_path, [segment], seed=6)
    report = audited(tier)
    assert found(report) == {("dead-branch", 82, 87)}
    assert report.partitions[0].records == STOP - 2


def test_another_incarnation_and_a_stray_object(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    write_tier(tmp_path, healthy_segments(), topic_id="AAAAAAAAAAAAAAAAAAAAMQ", seed=6)
    (log,) = (tmp_path / f"{TOPIC}-{TOPIC_ID}").rglob(f"{82:020d}-*.log")
    stray = log.with_name("notes.txt")
    stray.write_bytes(bytes(10))
    for level in LEVELS:
        report = audited(tier, level, topicId=TOPIC_ID)
        assert {(one.name, one.start) for one in report.findings} == {
            ("other-topic-id", 0),
            ("stray-object", None),
        }
        by_name = {one.name: one for one in report.findings}
        assert by_name["stray-object"].stored_bytes == 10
        assert len(by_name["other-topic-id"].objects) == 3 * len(BASES)


def test_times_that_cannot_be(tmp_path: Path) -> None:
    newest = healthy_segments()[4:]
    future = write_tier(tmp_path / "a", newest, event_timestamp_ms=NOW_MS * 2)
    assert found(audited(future)) == {("clock", 163, STOP)}
    early = newest[0].max_timestamp_ms - 2 * DAY_MS
    ahead = write_tier(tmp_path / "b", newest, event_timestamp_ms=early)
    assert found(audited(ahead)) == {("clock", 163, STOP)}


def test_transactions_that_nobody_ends(tmp_path: Path) -> None:
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
    report = audited(tier)
    assert found(report) == {("hanging-transaction", 0, 5), ("open-transaction", 3, 5)}
    assert (report.exit_code, report.partitions[0].last_stable_offset) == (0, 0)
