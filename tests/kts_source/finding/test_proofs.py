"""What a certificate must not say: each test is a way to hand out a proof that is none."""

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


def searched(tier: DamagedTier, conditions: dict[str, Any] | None = None, **options: str) -> Any:  # noqa: ANN401
    search = kts_source.find(options_of(tier, **options), **(conditions or {"keys": [None]}))
    search.to_table(threads=2)
    return search.certificate


def test_searches_side_by_side_do_not_share_what_they_could_not_read(tmp_path: Path) -> None:
    """The first one has met the damage before the second begins."""
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
    proof = search.certificate
    assert not proof.complete
    (unread,) = proof.partitions[0].unread
    assert (unread.start, unread.stop) == (BASES[2], BASES[3])
    second.close()
    assert search.certificate == proof
    third = search.batches(threads=1)
    next(third)
    with pytest.raises(RuntimeError, match="read to the end"):
        _ = search.certificate


def test_what_was_copied_after_the_listing_is_not_claimed(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments()[:3])
    search = kts_source.find(options_of(tier), keys=[None])
    search.to_table()
    proof = search.certificate
    write_tier(tmp_path, healthy_segments())
    search.to_table()
    assert search.certificate.searched_ms == proof.searched_ms
    assert search.certificate.partitions[0].stop == BASES[3]


@pytest.mark.parametrize("threads", [0, -1])
def test_no_thread_searches_nothing(tmp_path: Path, threads: int) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    search = kts_source.find(options_of(tier, targetPartitionBytes="1"), keys=[None])
    with pytest.raises(ValueError, match="is invalid: use 1"):
        search.to_table(threads=threads)


def test_a_plan_that_lacks_a_segment_proves_nothing(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    made = kts_source.scan(options_of(tier, targetPartitionBytes="1")).plan
    slices = [part for task in made.tasks for part in task.slices]
    assert certify_partition(made.partitions[0], (), (), slices).unread == ()
    for number in range(len(slices)):
        some = [part for part in slices if part.start_offset != slices[number].start_offset]
        (unread,) = certify_partition(made.partitions[0], (), (), some).unread
        assert unread.start == slices[number].start_offset
        assert unread.stop == slices[number].stop_offset
        assert "neither a segment nor a hole" in unread.reason


def two_incarnations(root: Path) -> DamagedTier:
    old = write_tier(root, healthy_segments()[:1], topic_id=OTHER_ID, event_timestamp_ms=1)
    write_tier(root, healthy_segments(), event_timestamp_ms=1 << 40)
    return old


def test_exhaustive_is_the_log_and_all_else(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "whole", healthy_segments())
    proof = searched(tier)
    assert proof.exhaustive
    assert proof.outside == ()

    committed = searched(tier, isolationLevel="read_committed")
    assert committed.complete
    assert not committed.exhaustive
    assert committed.outside == ("records of aborted transactions",)

    bounds = {"startingOffsets": f'{{"{TOPIC}":{{"0":5}}}}'}
    for options in (bounds, {"endingOffsets": f'{{"{TOPIC}":{{"0":5}}}}'}):
        proof = searched(tier, None, **options)
        assert proof.complete
        assert not proof.exhaustive
        assert "[0, 203)" in proof.outside[0]

    again = searched(two_incarnations(tmp_path / "again"))
    assert again.complete
    assert not again.exhaustive
    assert any(OTHER_ID in text for text in again.outside)
    assert json.loads(again.to_json())["outside"] == list(again.outside)


def test_a_segment_that_diverges_from_the_log_is_not_exhausted(tmp_path: Path) -> None:
    """An unclean election: the old leader's segment goes on behind where the next epoch begins."""
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
    proof = searched(tier, {"keys": [b"dead"]})
    assert (proof.complete, proof.matches, proof.exhaustive) == (True, 0, False)
    (unserved,) = proof.partitions[0].unserved
    assert "[0, 10)" in unserved.reason


def test_records_that_cannot_be_decoded_are_not_passed_over(tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b'{"a":1}', b"k"), SimpleRecord(b"{", b"k")])
    builder.roll()
    tier = write_tier(tmp_path, list(builder.build().segments))
    typed = {"value.format": "json", "value.schema": "a int", "columns": "offset,value"}
    with pytest.raises(InvalidOptionError, match="hide records"):
        searched(tier, {"keys": [b"k"]}, **typed, **{"value.mode": "DROPMALFORMED"})
    proof = searched(tier, {"keys": [b"k"]}, **typed)
    assert not proof.complete
    lenient = {"value.mode": "PERMISSIVE"}
    text = "A record whose fields cannot be decoded meets no condition on them."
    proof = searched(tier, {"keys": [b"k"]}, **typed, **lenient)
    assert (proof.complete, proof.matches, text in proof.assumptions) == (True, 2, False)
    proof = searched(tier, {"keys": [b"k"]}, **typed, **lenient, where="value.a = 1")
    assert (proof.matches, text in proof.assumptions) == (1, True)


def test_bounds_by_time_are_an_assumption(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    text = "Timestamps in manifests, time indexes"
    proof = searched(tier, startingTimestamp="0")
    assert any(one.startswith(text) for one in proof.assumptions)
    assert not any(one.startswith(text) for one in searched(tier).assumptions)


def test_a_partition_that_is_not_there_is_not_searched(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    options = {"path": str(tier.root), "assign": '{"t":[0,11]}'}
    search = kts_source.find(options, keys=[None])
    search.to_table()
    assert search.certificate.faults == ("t-11 was not searched: the tier has no segment of it",)
    assert not search.certificate.complete


class _Nameless(LocalStore):
    """A store without versions."""

    def list_objects(self, prefix: str, **more: Any) -> Iterator[ObjectInfo]:  # noqa: ANN401
        for info in super().list_objects(prefix, **more):
            yield dataclasses.replace(info, version=None)


def test_a_store_without_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    text = "No object has changed since it was listed: the store has no versions."
    assert text not in searched(tier).assumptions
    monkeypatch.setattr("kts_source.store.local_store.LocalStore", _Nameless)
    assert text in searched(tier).assumptions
    report = kts_source.index_keys(options_of(tier), str(tmp_path / "index"))
    assert report.segments == 0
    assert {reason for _, reason in report.left_out} == {"the store has no version of it"}


class _Archive(LocalStore):
    """Some objects are archived; reading one fails the test."""

    archived = ""

    def list_objects(self, prefix: str, **more: Any) -> Iterator[ObjectInfo]:  # noqa: ANN401
        for info in super().list_objects(prefix, **more):
            is_it = self.archived and self.archived in info.key
            yield dataclasses.replace(info, storage_class="GLACIER") if is_it else info

    def get_range(self, key: str, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401
        assert not (self.archived and self.archived in key)
        return super().get_range(key, *arguments, **more)


def test_archived_segments_are_unread_and_the_rest_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    _Archive.archived = tier.key(2, "log")
    monkeypatch.setattr("kts_source.store.local_store.LocalStore", _Archive)
    proof = searched(tier)
    (unread,) = proof.partitions[0].unread
    assert (unread.start, unread.stop) == (BASES[2], BASES[3])
    assert "GLACIER" in unread.reason
    assert unread.object.endswith(_Archive.archived)
    assert proof.faults == ()
    assert proof.matches == 203 - 41 - 1  # the abort marker
    report = kts_source.index_keys(options_of(tier), str(tmp_path / "index"), secret=SECRET)
    assert report.segments == 4
    ((key, reason),) = report.left_out
    assert (key, "archived" in reason) == (_Archive.archived, True)


def test_a_partition_that_cannot_be_planned_is_told(
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

    def refuse(options: Any, source_log: Any, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401
        if source_log.place.partition == 1:
            raise DataLossError("nothing tells what there is")
        return planned(options, source_log, *arguments, **more)

    from kts_source.planning import planner

    planned = planner.plan_log
    monkeypatch.setattr(planner, "plan_log", refuse)
    search = kts_source.find(options_of(tier), keys=[b"k"])
    assert search.to_table()["partition"].to_pylist() == [0, 2]
    proof = search.certificate
    assert not proof.complete
    assert "a partition was not searched" in proof.faults[-1]
    assert "partition 1" in proof.faults[-1]
    with pytest.raises(DataLossError):
        plan_scan(kts_source.options.parse_options(options_of(tier)))


def test_a_segment_that_goes_while_it_is_indexed_has_no_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is there again, in the same version, a filter of its first half would hide keys."""
    tier = write_tier(tmp_path / "tier", healthy_segments())
    path = tier.path(2, "log")
    away = path.with_suffix(".away")
    windows = SegmentSource.windows

    def losing(self: SegmentSource, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401
        if path.exists():
            path.rename(away)
        return windows(self, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(SegmentSource, "windows", losing)
        report = kts_source.index_keys(options_of(tier), str(tmp_path / "index"))
    assert [key for key, _ in report.left_out] == [tier_key(tier, path)]
    away.rename(path)
    search = kts_source.find(options_of(tier), keys=[None], key_index=str(tmp_path / "index"))
    offsets = search.to_table()["offset"].to_pylist()
    assert set(range(BASES[2], BASES[2] + 40)) <= set(offsets)


def tier_key(tier: DamagedTier, path: Path) -> str:
    return path.relative_to(tier.root).as_posix()


def test_filters_are_of_checked_bytes(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    with pytest.raises(InvalidOptionError, match="checkCrcs"):
        kts_source.index_keys(options_of(tier, checkCrcs="false"), str(tmp_path / "index"))


def test_the_secret_shows_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_an_index_is_not_in_the_mirror(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    with pytest.raises(InvalidOptionError, match="into the tier"):
        kts_source.index_keys(
            options_of(tier, fallbackPath=str(mirror)), str(tmp_path / "x" / ".." / "mirror" / "i")
        )


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(InvalidOptionError, match="cannot be written"):
            kts_source.index_keys(options_of(tier), str(tmp_path / name))
