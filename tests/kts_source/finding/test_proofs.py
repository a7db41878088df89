"""Checks that the certificate of a search makes no false claim, for example that all records were
read. Each test creates a situation in which a claim could be false.

A certificate is the report of a search. Its faults are the faults of the tier that hid records from
the search.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

import kts_source
from kts_source.errors import DataLossError, InvalidOptionError
from kts_source.finding.search import certify_partition
from kts_source.planning.planner import plan_scan
from kts_source.read.segment_source import SegmentSource
from kts_source.store.local_store import LocalStore
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.auditing.damaged_tier import (
    BASES,
    TOPIC,
    TOPIC_ID,
    DamagedTier,
    healthy_segments,
    write_tier,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.store.object_store import ObjectInfo

SECRET = b"a secret of the user's"
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAQQ"


def options_of(tier: DamagedTier, **options: str) -> dict[str, str]:
    return {"path": str(tier.root), "subscribe": TOPIC, "columns": "partition,offset", **options}


def certify_search(
    tier: DamagedTier, conditions: dict[str, Any] | None = None, **options: str
) -> Any:  # noqa: ANN401
    search = kts_source.find(options_of(tier, **options), **(conditions or {"keys": [None]}))
    search.to_table(threads=2)
    return search.certificate


def test_concurrent_runs_of_a_search_have_separate_unread_ranges(tmp_path: Path) -> None:
    """The first run reads the damaged segment before the second run begins."""
    tier = write_tier(tmp_path, healthy_segments())
    tier.flip(2, "log", 100)
    options = options_of(tier, targetPartitionBytes="1")
    search = kts_source.find(options, keys=[None])
    first = search.batches(threads=1)
    while next(first).column("offset")[0].as_py() < BASES[3]:
        pass
    second = search.batches(threads=1)
    next(second)
    list(first)
    certificate = search.certificate
    assert not certificate.complete
    (unread,) = certificate.partitions[0].unread
    assert (unread.start, unread.stop) == (BASES[2], BASES[3])
    second.close()
    assert search.certificate == certificate
    third = search.batches(threads=1)
    next(third)
    with pytest.raises(RuntimeError, match="read the batches to the end"):
        _ = search.certificate


def test_certificate_excludes_segments_copied_after_the_listing(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments()[:3])
    search = kts_source.find(options_of(tier), keys=[None])
    search.to_table()
    certificate = search.certificate
    write_tier(tmp_path, healthy_segments())
    search.to_table()
    assert search.certificate.searched_ms == certificate.searched_ms
    assert search.certificate.partitions[0].stop == BASES[3]


@pytest.mark.parametrize("threads", [0, -1])
def test_search_refuses_fewer_than_one_thread(tmp_path: Path, threads: int) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    search = kts_source.find(options_of(tier, targetPartitionBytes="1"), keys=[None])
    with pytest.raises(ValueError, match="is invalid: use 1"):
        search.to_table(threads=threads)


def test_certificate_lists_offsets_without_slice_as_unread(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    plan = kts_source.scan(options_of(tier, targetPartitionBytes="1")).plan
    slices = [task_slice for task in plan.tasks for task_slice in task.slices]
    assert certify_partition(plan.partitions[0], (), (), slices).unread == ()
    for missing in slices:
        remaining = [
            task_slice for task_slice in slices if task_slice.start_offset != missing.start_offset
        ]
        (unread,) = certify_partition(plan.partitions[0], (), (), remaining).unread
        assert unread.start == missing.start_offset
        assert unread.stop == missing.stop_offset
        assert "neither a segment nor a hole" in unread.reason


def write_two_topic_ids(root: Path) -> DamagedTier:
    old = write_tier(root, healthy_segments()[:1], topic_id=OTHER_ID, event_timestamp_ms=1)
    write_tier(root, healthy_segments(), event_timestamp_ms=1 << 40)
    return old


def test_search_is_exhaustive_only_if_it_covers_all_records_of_the_topic(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "healthy", healthy_segments())
    certificate = certify_search(tier)
    assert certificate.exhaustive
    assert certificate.outside == ()

    committed = certify_search(tier, isolationLevel="read_committed")
    assert committed.complete
    assert not committed.exhaustive
    assert committed.outside == ("records of aborted transactions",)

    bounds = {"startingOffsets": f'{{"{TOPIC}":{{"0":5}}}}'}
    for options in (bounds, {"endingOffsets": f'{{"{TOPIC}":{{"0":5}}}}'}):
        certificate = certify_search(tier, None, **options)
        assert certificate.complete
        assert not certificate.exhaustive
        assert "[0, 203)" in certificate.outside[0]

    certificate = certify_search(write_two_topic_ids(tmp_path / "recreated"))
    assert certificate.complete
    assert not certificate.exhaustive
    assert any(OTHER_ID in text for text in certificate.outside)
    assert json.loads(certificate.to_json())["outside"] == list(certificate.outside)


def test_search_with_note_about_store_settings_is_still_exhaustive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remark = "s3fs reads the bucket orders: AWS_ENDPOINT_URL is set"
    monkeypatch.setattr(LocalStore, "remarks", (remark,))
    tier = write_tier(tmp_path, healthy_segments())
    assert remark in kts_source.plan(options_of(tier)).explain().splitlines()
    certificate = certify_search(tier)
    assert certificate.exhaustive
    assert certificate.outside == ()


def test_search_with_segment_of_dead_branch_is_not_exhaustive(tmp_path: Path) -> None:
    """After an unclean election, the log no longer has the last records of the old segment."""
    old = LogBuilder()
    old.append([SimpleRecord(b"v", b"k") for _ in range(10)])
    old.append([SimpleRecord(b"v", b"dead") for _ in range(10)])
    old.roll()
    new = LogBuilder()
    new.append([SimpleRecord(b"v", b"k") for _ in range(10)])
    new.roll()
    new.set_leader_epoch(1)
    new.append([SimpleRecord(b"v", b"other") for _ in range(10)])
    new.roll()
    write_tier(tmp_path, list(old.build().segments))
    tier = write_tier(tmp_path, list(new.build().segments)[1:], seed=6)
    certificate = certify_search(tier, {"keys": [b"dead"]})
    assert (certificate.complete, certificate.matches, certificate.exhaustive) == (True, 0, False)
    (unserved,) = certificate.partitions[0].unserved
    assert "[0, 10)" in unserved.reason


def test_malformed_records_are_never_skipped_silently(tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b'{"a":1}', b"k"), SimpleRecord(b"{", b"k")])
    builder.roll()
    tier = write_tier(tmp_path, list(builder.build().segments))
    typed = {"value.format": "json", "value.schema": "a int", "columns": "offset,value"}
    with pytest.raises(InvalidOptionError, match="hide records"):
        certify_search(tier, {"keys": [b"k"]}, **typed, **{"value.mode": "DROPMALFORMED"})
    certificate = certify_search(tier, {"keys": [b"k"]}, **typed)
    assert not certificate.complete
    lenient = {"value.mode": "PERMISSIVE"}
    text = "A record whose fields cannot be decoded meets no condition on them."
    certificate = certify_search(tier, {"keys": [b"k"]}, **typed, **lenient)
    assert (certificate.complete, certificate.matches, text in certificate.assumptions) == (
        True,
        2,
        False,
    )
    certificate = certify_search(tier, {"keys": [b"k"]}, **typed, **lenient, where="value.a = 1")
    assert (certificate.matches, text in certificate.assumptions) == (1, True)


def test_timestamp_bounds_add_an_assumption_to_the_certificate(
    tmp_path: Path,
) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    text = "Timestamps in manifests, time indexes"
    certificate = certify_search(tier, startingTimestamp="0")
    assert any(assumption.startswith(text) for assumption in certificate.assumptions)
    unbounded = certify_search(tier)
    assert not any(assumption.startswith(text) for assumption in unbounded.assumptions)


def test_certificate_lists_partition_without_segments_as_fault(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    options = {"path": str(tier.root), "assign": '{"t":[0,11]}'}
    search = kts_source.find(options, keys=[None])
    search.to_table()
    assert search.certificate.faults == ("t-11 was not searched: the tier has no segment of it",)
    assert not search.certificate.complete


class _UnversionedStore(LocalStore):
    def list_objects(self, prefix: str, **arguments: Any) -> Iterator[ObjectInfo]:  # noqa: ANN401
        for info in super().list_objects(prefix, **arguments):
            yield dataclasses.replace(info, version=None)


def test_missing_object_versions_add_an_assumption_to_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    text = "No object has changed since it was listed: the store has no versions."
    assert text not in certify_search(tier).assumptions
    monkeypatch.setattr("kts_source.store.local_store.LocalStore", _UnversionedStore)
    assert text in certify_search(tier).assumptions
    report = kts_source.index_keys(options_of(tier), str(tmp_path / "index"))
    assert report.segments == 0
    assert {reason for _, reason in report.left_out} == {
        "the store reports no version of the object, so a later change would not be noticed"
    }


class _ArchivingStore(LocalStore):
    """A store with one archived object. A read of this object fails the test."""

    archived = ""

    def list_objects(self, prefix: str, **arguments: Any) -> Iterator[ObjectInfo]:  # noqa: ANN401
        for info in super().list_objects(prefix, **arguments):
            is_archived = self.archived and self.archived in info.key
            yield dataclasses.replace(info, storage_class="GLACIER") if is_archived else info

    def get_range(self, key: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        assert not (self.archived and self.archived in key)
        return super().get_range(key, *arguments, **options)


def test_archived_segment_is_reported_as_unread_and_all_others_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    _ArchivingStore.archived = tier.key(2, "log")
    monkeypatch.setattr("kts_source.store.local_store.LocalStore", _ArchivingStore)
    certificate = certify_search(tier)
    (unread,) = certificate.partitions[0].unread
    assert (unread.start, unread.stop) == (BASES[2], BASES[3])
    assert "GLACIER" in unread.reason
    assert unread.object.endswith(_ArchivingStore.archived)
    assert certificate.faults == ()
    assert certificate.matches == 203 - 41 - 1  # minus the abort marker
    report = kts_source.index_keys(options_of(tier), str(tmp_path / "index"), secret=SECRET)
    assert report.segments == 4
    ((key, reason),) = report.left_out
    assert (key, "archived" in reason) == (_ArchivingStore.archived, True)


def test_certificate_lists_unplannable_partition_as_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(3):
        builder = LogBuilder()
        builder.append([SimpleRecord(b"v", b"k")])
        builder.roll()
        writer = AivenTierWriter(str(tmp_path), topic=TOPIC, topic_id=TOPIC_ID, partition=partition)
        for segment in builder.build().segments:
            writer.write_segment(segment)
    tier = DamagedTier(tmp_path)

    def refuse(options: Any, source_log: Any, *arguments: Any, **options_by_name: Any) -> Any:  # noqa: ANN401
        if source_log.place.partition == 1:
            raise DataLossError("the partition cannot be planned")
        return planned(options, source_log, *arguments, **options_by_name)

    from kts_source.planning import planner

    planned = planner.plan_log
    monkeypatch.setattr(planner, "plan_log", refuse)
    search = kts_source.find(options_of(tier), keys=[b"k"])
    assert search.to_table()["partition"].to_pylist() == [0, 2]
    certificate = search.certificate
    assert not certificate.complete
    assert "a partition was not searched" in certificate.faults[-1]
    assert "partition 1" in certificate.faults[-1]
    with pytest.raises(DataLossError):
        plan_scan(kts_source.options.parse_options(options_of(tier)))


def test_segment_deleted_during_indexing_has_no_key_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incomplete filter would hide keys if the segment were later restored with the same object
    version.
    """
    tier = write_tier(tmp_path / "tier", healthy_segments())
    path = tier.path(2, "log")
    moved = path.with_suffix(".moved")
    windows = SegmentSource.windows

    def move_before_read(self: SegmentSource, *arguments: Any, **options_by_name: Any) -> Any:  # noqa: ANN401
        if path.exists():
            path.rename(moved)
        return windows(self, *arguments, **options_by_name)

    with monkeypatch.context() as patched:
        patched.setattr(SegmentSource, "windows", move_before_read)
        report = kts_source.index_keys(options_of(tier), str(tmp_path / "index"))
    assert [key for key, _ in report.left_out] == [tier_key(tier, path)]
    moved.rename(path)
    search = kts_source.find(options_of(tier), keys=[None], key_index=str(tmp_path / "index"))
    offsets = search.to_table()["offset"].to_pylist()
    assert set(range(BASES[2], BASES[2] + 40)) <= set(offsets)


def tier_key(tier: DamagedTier, path: Path) -> str:
    return path.relative_to(tier.root).as_posix()


def test_index_keys_with_check_crcs_false_is_refused(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    with pytest.raises(InvalidOptionError, match="checkCrcs"):
        kts_source.index_keys(options_of(tier, checkCrcs="false"), str(tmp_path / "index"))


def test_key_index_secret_is_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = write_tier(tmp_path / "plain", healthy_segments())
    folder = tmp_path / "index"
    kts_source.index_keys(options_of(plain), str(folder), secret=SECRET)
    search = kts_source.find(
        options_of(plain), keys=[None], key_index=str(folder), key_index_secret=SECRET
    )
    search.to_table()
    assert search._run is not None
    texts = [repr(vars(search)), repr(search._run.filters), caplog.text]
    texts.append(search.certificate.to_json())
    assert not any(SECRET.decode() in text for text in texts)
    for file in folder.iterdir():
        assert SECRET not in file.read_bytes()
        assert SECRET.hex().encode() not in file.read_bytes()


def test_key_index_in_the_fallback_tier_is_refused(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    with pytest.raises(InvalidOptionError, match="into the tier"):
        kts_source.index_keys(
            options_of(tier, fallbackPath=str(mirror)), str(tmp_path / "x" / ".." / "mirror" / "i")
        )


def test_key_index_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(InvalidOptionError, match="cannot be written"):
            kts_source.index_keys(options_of(tier), str(tmp_path / name))
