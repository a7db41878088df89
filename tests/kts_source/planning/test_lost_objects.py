"""What one object promises and the listing lacks is told: objects, offsets, partitions, topics."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import DataLossError, OffsetOutOfRangeError, TopicNotFoundError
from segment_format.kafka_uuid import uuid_to_text
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from segment_format.testing import SegmentFiles

OLD, NEW = (uuid_to_text(uuid.UUID(int=number << 80)) for number in (5, 6))


def segments(count: int = 3, epoch: int = 0, start: int = 0, size: int = 5) -> list[SegmentFiles]:
    builder = LogBuilder(start_offset=start, leader_epoch=epoch)
    for _ in range(count):
        builder.append([SimpleRecord(b"%d" % epoch) for _ in range(size)])
        builder.roll()
    return list(builder.build().segments)


def write(
    root: Path,
    files: Sequence[SegmentFiles] | None = None,
    partition: int = 0,
    topic_id: str = OLD,
    layout: str = "aiven",
) -> None:
    place = {"topic": "t", "partition": partition, "topic_id": topic_id}
    writer = (AivenTierWriter if layout == "aiven" else LocalTierWriter)(str(root), **place)  # type: ignore[arg-type]
    for one in segments() if files is None else files:
        writer.write_segment(one)


def lose(root: Path, *suffixes: str, base: int | None = None, under: str = "") -> list[str]:
    """Deletes objects, of one base offset or all; their names."""
    digits = "*" if base is None else f"{base:020d}*"
    gone = [
        path
        for suffix in suffixes
        for path in root.rglob(f"{digits}.{suffix}")
        if under in str(path)
    ]
    assert gone
    for path in gone:
        path.unlink()
    return [path.name for path in gone]


def options(root: Path, **named: str) -> dict[str, str]:
    return {"path": str(root), "subscribe": "t", **named}


def offsets(root: Path, **named: str) -> list[int]:
    found: list[int] = scan(options(root, **named))["offset"].to_pylist()
    return found


@pytest.mark.parametrize("suffixes", [("log",), ("indexes",), ("log", "indexes")])
def test_what_the_newest_manifest_promises_is_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffixes: tuple[str, ...]
) -> None:
    write(tmp_path)
    lost = lose(tmp_path, *suffixes, base=10)
    with pytest.raises(DataLossError, match=r"t-0: .*\[10, 15\)") as caught:
        kts_source.plan(options(tmp_path))
    assert f"{lost[0].partition('.')[0]}.rsm-manifest" in str(caught.value)
    assert all(f"no .{suffix}" in str(caught.value) for suffix in suffixes)
    assert offsets(tmp_path, endingOffsets='{"t":{"0":10}}') == [*range(10)]
    with pytest.raises(DataLossError, match=r"\[10, 12\)"):
        kts_source.plan(options(tmp_path, endingOffsets='{"t":{"0":12}}'))
    caplog.clear()
    assert offsets(tmp_path, failOnDataLoss="false") == [*range(10)]
    assert "[10, 15)" in caplog.text
    (part,) = kts_source.describe(options(tmp_path)).partitions
    assert (part.tier_end, part.holes) == (15, ((10, 15),))
    plan = kts_source.plan(options(tmp_path, failOnDataLoss="false"))
    assert "hole: offsets [10, 15)" in plan.explain()


def test_a_loss_in_the_middle_names_the_objects_that_are_left(tmp_path: Path) -> None:
    write(tmp_path)
    (lost,) = lose(tmp_path, "rsm-manifest", base=5)
    with pytest.raises(DataLossError, match=r"\[5, 10\).*only incomplete") as caught:
        kts_source.plan(options(tmp_path))
    assert f"{lost.partition('.')[0]}.log" in str(caught.value)


def test_what_is_damaged_below_all_others_is_being_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    (lost,) = lose(tmp_path, "log", base=0)
    assert offsets(tmp_path) == [*range(5, 15)]
    assert lost.partition(".")[0] in caplog.text
    with pytest.raises(OffsetOutOfRangeError, match=lost.partition(".")[0]):
        kts_source.plan(options(tmp_path, startingOffsets='{"t":{"0":0}}'))


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_a_partition_whose_only_segment_is_damaged_is_missed(tmp_path: Path, suffix: str) -> None:
    write(tmp_path)
    write(tmp_path, segments(1), partition=1)
    lose(tmp_path, suffix, base=0, under="/1/")
    with pytest.raises(DataLossError) as caught:
        kts_source.plan(options(tmp_path))
    assert caught.value.partition == 1
    assert "/1/00000000000000000000-" in str(caught.value)
    for isolation in ("read_committed", "read_uncommitted"):
        given = {"failOnDataLoss": "false", "isolationLevel": isolation}
        assert offsets(tmp_path, **given) == [*range(15)]
    named = '{"t":{"0":0,"1":2}}'
    assert offsets(tmp_path, failOnDataLoss="false", startingOffsets=named) == [*range(15)]


@pytest.mark.parametrize("selection", [{}, {"subscribePattern": "t", "subscribe": ""}])
def test_a_partition_without_any_manifest_is_missed(
    tmp_path: Path, selection: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    write(tmp_path, partition=1)
    lose(tmp_path, "rsm-manifest", under="/1/")
    given = {name: text for name, text in options(tmp_path, **selection).items() if text}
    with pytest.raises(
        DataLossError, match=r"incomplete segments exist: .*/1/0{20}-.*\.log"
    ) as caught:
        kts_source.plan(given)
    assert caught.value.partition == 1
    assert scan({**given, "failOnDataLoss": "false"}).num_rows == 15
    assert "no segments of partitions [1]" in caplog.text
    lose(tmp_path, "rsm-manifest", under="/0/")
    with pytest.raises(DataLossError):
        kts_source.plan(given)
    assert kts_source.plan({**given, "failOnDataLoss": "false"}).partitions == ()


def test_a_first_copy_under_way_is_no_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, segments(1), partition=1)
    lose(tmp_path, "rsm-manifest")
    with pytest.raises(TopicNotFoundError, match=r"no segment of topic 't'.*an upload that did"):
        kts_source.plan(options(tmp_path))
    assert not kts_source.plan(options(tmp_path, failOnDataLoss="false")).partitions
    write(tmp_path, partition=0)
    caplog.clear()
    plan = kts_source.plan(options(tmp_path))
    assert [part.partition for part in plan.partitions] == [0]
    assert "no segments of partitions [1]" in caplog.text
    assert "/1/00000000000000000000-" in plan.explain()


def test_a_copy_under_way_at_the_end_is_told_where_it_matters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    lose(tmp_path, "rsm-manifest", base=10)
    assert offsets(tmp_path) == [*range(10)]
    assert not [one for one in caplog.records if one.levelname == "WARNING"]
    with pytest.raises(OffsetOutOfRangeError, match="not tiered yet") as caught:
        kts_source.plan(options(tmp_path, endingOffsets='{"t":{"0":12}}'))
    assert "[0, 10)" in str(caught.value)


def test_folders_without_objects_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / f"t-{OLD}").mkdir()
    with pytest.raises(TopicNotFoundError, match="no objects"):
        kts_source.plan(options(tmp_path))
    write(tmp_path)
    (tmp_path / f"t-{OLD}" / "1").mkdir()
    assert len(offsets(tmp_path)) == 15
    assert "no segments of partitions [1]" in caplog.text


# -- incarnations


def aged(root: Path, topic_id: str, seconds: int) -> None:
    for path in root.rglob(f"t-{topic_id}/*/*"):
        os.utime(path, (seconds, seconds))


def test_an_older_incarnation_does_not_take_the_place_of_one_that_lost_its_manifests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, topic_id=OLD)
    write(tmp_path, segments(1), topic_id=NEW)
    aged(tmp_path, OLD, 1_000_000)
    aged(tmp_path, NEW, 2_000_000)
    lose(tmp_path, "rsm-manifest", under=NEW)
    with pytest.raises(DataLossError, match="option 'topicId'") as caught:
        kts_source.plan(options(tmp_path))
    assert OLD in str(caught.value)
    assert NEW in str(caught.value)
    assert len(offsets(tmp_path, topicId=OLD)) == 15
    assert len(offsets(tmp_path, failOnDataLoss="false")) == 15
    assert "are older than objects of another one" in caplog.text
    # What a deleted incarnation left behind is no reason to ask.
    aged(tmp_path, NEW, 500_000)
    assert len(offsets(tmp_path)) == 15


def test_damaged_segments_tell_which_incarnation_is_the_newest(tmp_path: Path) -> None:
    place = {"topic": "t", "partition": 0}
    for topic_id, at in ((OLD, 1_000), (NEW, 2_000)):
        writer = AivenTierWriter(str(tmp_path), topic_id=topic_id, **place)  # type: ignore[arg-type]
        writer.write_segment(segments(1)[0], event_timestamp_ms=at)
    lose(tmp_path, "log", under=NEW)
    with pytest.raises(DataLossError, match=rf"\[0, 5\).*{NEW}"):
        kts_source.plan(options(tmp_path))


# -- lineages


def test_a_damaged_segment_of_a_newer_epoch_decides_which_branch_lives(tmp_path: Path) -> None:
    write(tmp_path, segments(3, epoch=0))  # [0, 15), of which [5, 15) died
    builder = LogBuilder(leader_epoch=0)
    builder.append([SimpleRecord(b"0") for _ in range(5)])
    builder.set_leader_epoch(1)
    builder.roll()
    builder.append([SimpleRecord(b"1") for _ in range(3)])
    write(tmp_path, [builder.build().segments[-1]])
    (newer,) = (
        path.name.replace(".rsm-manifest", ".log")
        for path in tmp_path.rglob(f"{5:020d}*.rsm-manifest")
        if b'"endOffset":7' in path.read_bytes()
    )
    assert offsets(tmp_path) == [*range(8)]
    next(tmp_path.rglob(newer)).unlink()
    # Without its log, its checkpoint still tells that the other branch is dead.
    with pytest.raises(DataLossError, match=r"\[5, 8\)"):
        kts_source.plan(options(tmp_path))
    assert offsets(tmp_path, failOnDataLoss="false") == [*range(5)]
    # Without its checkpoint nothing does.
    next(tmp_path.rglob(newer.replace(".log", ".indexes"))).unlink()
    with pytest.raises(DataLossError, match="it is unknown which segments belong to the log"):
        kts_source.plan(options(tmp_path, endingOffsets='{"t":{"0":3}}'))


# -- LocalTieredStorage


def local(root: Path, **named: str) -> dict[str, str]:
    return {**options(root, **named), "layout": "local-tiered-storage"}


@pytest.mark.parametrize("suffix", ["log", "index", "timeindex", "leader_epoch_checkpoint"])
@pytest.mark.parametrize("count", [1, 3])
def test_files_that_were_there_before_the_snapshot_are_missed(
    tmp_path: Path, suffix: str, count: int
) -> None:
    write(tmp_path, segments(count), layout="local")
    last = 5 * (count - 1)
    lose(tmp_path, suffix, base=last)
    with pytest.raises(DataLossError, match=rf"t-0: .*\[{last}, \d+\).*no \.{suffix}"):
        kts_source.plan(local(tmp_path))
    rows = scan(local(tmp_path, failOnDataLoss="false"))
    assert rows["offset"].to_pylist() == [*range(last)]


def test_a_damaged_copy_proves_a_gap_that_could_else_be_none(tmp_path: Path) -> None:
    write(tmp_path, layout="local")
    lose(tmp_path, "log", base=5)
    with pytest.raises(DataLossError, match=r"\[5, 10\)"):
        kts_source.plan(local(tmp_path))


def test_a_copy_without_its_snapshot_may_be_under_way(tmp_path: Path) -> None:
    write(tmp_path, layout="local")
    lose(tmp_path, "snapshot", base=10)
    assert scan(local(tmp_path))["offset"].to_pylist() == [*range(10)]


@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_what_the_lost_end_decided_is_undecided(tmp_path: Path, layout: str) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")] * 2)
    builder.send(7, [SimpleRecord(b"open")] * 2)
    builder.roll()
    builder.abort(7)
    write(tmp_path, builder.build().segments, layout=layout)
    lose(tmp_path, "log", base=4)
    given = local if layout == "local" else options
    with pytest.raises(DataLossError, match=r"\[4, 5\)"):
        kts_source.plan(given(tmp_path))
    with pytest.raises(OffsetOutOfRangeError, match="ends at offset 2"):
        kts_source.plan(given(tmp_path, endingOffsets='{"t":{"0":4}}'))
    assert scan(given(tmp_path, failOnDataLoss="false"))["offset"].to_pylist() == [0, 1]


@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_a_plan_with_a_damaged_end_is_read_from_its_file(tmp_path: Path, layout: str) -> None:
    root, file = tmp_path / "tier", tmp_path / "plan.json"
    write(root, layout=layout)
    lose(root, "log", base=10)
    given = (local if layout == "local" else options)(root, failOnDataLoss="false")
    plan = kts_source.plan(given)
    file.write_text(plan.to_json())
    again = kts_source.plan({**given, "planFile": str(file)})
    assert again.partitions[0].surviving.holes == plan.partitions[0].surviving.holes
    assert again.tasks == plan.tasks


def test_a_damaged_local_copy_tells_its_epoch_by_its_checkpoint_or_nothing_does(
    tmp_path: Path,
) -> None:
    write(tmp_path, segments(3, epoch=0), layout="local")  # [0, 15), of which [7, 15) died
    before = set(tmp_path.rglob("*.log"))
    builder = LogBuilder(leader_epoch=0)
    builder.append([SimpleRecord(b"0") for _ in range(5)])
    builder.roll()
    builder.append([SimpleRecord(b"0") for _ in range(2)])
    builder.set_leader_epoch(1)
    builder.append([SimpleRecord(b"1") for _ in range(3)])
    write(tmp_path, [builder.build().segments[-1]], layout="local")
    (newer,) = set(tmp_path.rglob("*.log")) - before
    for suffix in ("log", "index"):
        newer.with_suffix(f".{suffix}").unlink()
    # What is left says that epoch 1 began at 7, not where it ended.
    with pytest.raises(DataLossError, match=r"\[7, 8\)"):
        kts_source.plan(local(tmp_path))
    rows = scan(local(tmp_path, failOnDataLoss="false"))
    assert rows["offset"].to_pylist() == [*range(7)]
    newer.with_suffix(".leader_epoch_checkpoint").unlink()
    for ending in ('{"t":{"0":3}}', "latest"):
        with pytest.raises(DataLossError, match="it is unknown which segments belong to the log"):
            kts_source.plan(local(tmp_path, endingOffsets=ending))


def test_a_damaged_segment_below_the_others_may_be_of_the_branch_that_lives(
    tmp_path: Path,
) -> None:
    write(tmp_path, [one for one in segments(12, epoch=0) if one.base_offset])
    builder = LogBuilder(leader_epoch=0)
    builder.append([SimpleRecord(b"0") for _ in range(2)])
    builder.set_leader_epoch(1)
    builder.append([SimpleRecord(b"1") for _ in range(2)])
    write(tmp_path, builder.build().segments)
    lose(tmp_path, "log", base=0)
    for file in tmp_path.rglob("*.*"):
        at = 1_000_000 + int(file.name[:20]) if int(file.name[:20]) else 2_000_000
        os.utime(file, (at, at))
    # All others are of a branch that died; a part of the log must not look as if it lived.
    for start, ending in ((0, "latest"), (20, '{"t":{"0":30}}')):
        given = {"startingOffsets": f'{{"t":{{"0":{start}}}}}', "endingOffsets": ending}
        with pytest.raises(DataLossError, match=r"\[0, 4\)"):
            kts_source.plan(options(tmp_path, **given))
