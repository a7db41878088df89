"""Checks that a scan reports lost objects and offsets if other objects show that they existed."""

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


def build_segments(
    count: int = 3, epoch: int = 0, start: int = 0, size: int = 5
) -> list[SegmentFiles]:
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
    kwargs = {"topic": "t", "partition": partition, "topic_id": topic_id}
    writer = (AivenTierWriter if layout == "aiven" else LocalTierWriter)(str(root), **kwargs)  # type: ignore[arg-type]
    for segment in build_segments() if files is None else files:
        writer.write_segment(segment)


def lose(root: Path, *suffixes: str, base: int | None = None, under: str = "") -> list[str]:
    """Deletes the objects whose suffix is in `suffixes` and returns their names. If `base` is set,
    deletes only objects of the segment with this base offset. If `under` is set, deletes only
    objects whose paths contain this text.
    """
    digits = "*" if base is None else f"{base:020d}*"
    paths = [
        path
        for suffix in suffixes
        for path in root.rglob(f"{digits}.{suffix}")
        if under in str(path)
    ]
    assert paths
    for path in paths:
        path.unlink()
    return [path.name for path in paths]


def make_options(root: Path, **extra: str) -> dict[str, str]:
    return {"path": str(root), "subscribe": "t", **extra}


def read_offsets(root: Path, **extra: str) -> list[int]:
    rows: list[int] = scan(make_options(root, **extra))["offset"].to_pylist()
    return rows


@pytest.mark.parametrize("suffixes", [("log",), ("indexes",), ("log", "indexes")])
def test_missing_objects_of_newest_segment_raise_data_loss_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffixes: tuple[str, ...]
) -> None:
    write(tmp_path)
    lost = lose(tmp_path, *suffixes, base=10)
    with pytest.raises(DataLossError, match=r"t-0: .*\[10, 15\)") as error:
        kts_source.plan(make_options(tmp_path))
    assert f"{lost[0].partition('.')[0]}.rsm-manifest" in str(error.value)
    assert all(f"no .{suffix}" in str(error.value) for suffix in suffixes)
    assert read_offsets(tmp_path, endingOffsets='{"t":{"0":10}}') == [*range(10)]
    with pytest.raises(DataLossError, match=r"\[10, 12\)"):
        kts_source.plan(make_options(tmp_path, endingOffsets='{"t":{"0":12}}'))
    caplog.clear()
    assert read_offsets(tmp_path, failOnDataLoss="false") == [*range(10)]
    assert "[10, 15)" in caplog.text
    (partition,) = kts_source.describe(make_options(tmp_path)).partitions
    assert (partition.tier_end, partition.holes) == (15, ((10, 15),))
    plan = kts_source.plan(make_options(tmp_path, failOnDataLoss="false"))
    assert "hole: offsets [10, 15)" in plan.explain()


def test_lost_manifest_error_names_remaining_objects(tmp_path: Path) -> None:
    write(tmp_path)
    (lost,) = lose(tmp_path, "rsm-manifest", base=5)
    with pytest.raises(DataLossError, match=r"\[5, 10\).*only incomplete") as error:
        kts_source.plan(make_options(tmp_path))
    assert f"{lost.partition('.')[0]}.log" in str(error.value)


def test_first_segment_without_log_object_is_treated_as_deleted_by_retention(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    (lost,) = lose(tmp_path, "log", base=0)
    assert read_offsets(tmp_path) == [*range(5, 15)]
    assert lost.partition(".")[0] in caplog.text
    with pytest.raises(OffsetOutOfRangeError, match=lost.partition(".")[0]):
        kts_source.plan(make_options(tmp_path, startingOffsets='{"t":{"0":0}}'))


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_partition_with_only_damaged_segment_raises_data_loss_error(
    tmp_path: Path, suffix: str
) -> None:
    write(tmp_path)
    write(tmp_path, build_segments(1), partition=1)
    lose(tmp_path, suffix, base=0, under="/1/")
    with pytest.raises(DataLossError) as error:
        kts_source.plan(make_options(tmp_path))
    assert error.value.partition == 1
    assert "/1/00000000000000000000-" in str(error.value)
    for isolation in ("read_committed", "read_uncommitted"):
        extra = {"failOnDataLoss": "false", "isolationLevel": isolation}
        assert read_offsets(tmp_path, **extra) == [*range(15)]
    starting_offsets = '{"t":{"0":0,"1":2}}'
    assert read_offsets(tmp_path, failOnDataLoss="false", startingOffsets=starting_offsets) == [
        *range(15)
    ]


@pytest.mark.parametrize("selection", [{}, {"subscribePattern": "t", "subscribe": ""}])
def test_partition_without_manifests_raises_data_loss_error(
    tmp_path: Path, selection: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    write(tmp_path, partition=1)
    lose(tmp_path, "rsm-manifest", under="/1/")
    scan_options = {
        name: text for name, text in make_options(tmp_path, **selection).items() if text
    }
    with pytest.raises(
        DataLossError, match=r"incomplete segments exist: .*/1/0{20}-.*\.log"
    ) as error:
        kts_source.plan(scan_options)
    assert error.value.partition == 1
    assert scan({**scan_options, "failOnDataLoss": "false"}).num_rows == 15
    assert "no segments of partitions [1]" in caplog.text
    lose(tmp_path, "rsm-manifest", under="/0/")
    with pytest.raises(DataLossError):
        kts_source.plan(scan_options)
    assert kts_source.plan({**scan_options, "failOnDataLoss": "false"}).partitions == ()


def test_first_copy_in_progress_is_not_data_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, build_segments(1), partition=1)
    lose(tmp_path, "rsm-manifest")
    with pytest.raises(
        TopicNotFoundError, match=r"topic 't' has no complete segment.*an upload that did"
    ):
        kts_source.plan(make_options(tmp_path))
    assert not kts_source.plan(make_options(tmp_path, failOnDataLoss="false")).partitions
    write(tmp_path, partition=0)
    caplog.clear()
    plan = kts_source.plan(make_options(tmp_path))
    assert [partition.partition for partition in plan.partitions] == [0]
    assert "no segments of partitions [1]" in caplog.text
    assert "/1/00000000000000000000-" in plan.explain()


def test_copy_in_progress_at_end_of_tier_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path)
    lose(tmp_path, "rsm-manifest", base=10)
    assert read_offsets(tmp_path) == [*range(10)]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    with pytest.raises(OffsetOutOfRangeError, match="not tiered yet") as error:
        kts_source.plan(make_options(tmp_path, endingOffsets='{"t":{"0":12}}'))
    assert "[0, 10)" in str(error.value)


def test_folders_without_objects_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"t-{OLD}").mkdir()
    with pytest.raises(TopicNotFoundError, match="existing objects: none"):
        kts_source.plan(make_options(tmp_path))
    write(tmp_path)
    (tmp_path / f"t-{OLD}" / "1").mkdir()
    assert len(read_offsets(tmp_path)) == 15
    assert "no segments of partitions [1]" in caplog.text


# -- incarnations


def set_modified(root: Path, topic_id: str, seconds: int) -> None:
    for path in root.rglob(f"t-{topic_id}/*/*"):
        os.utime(path, (seconds, seconds))


def test_newest_incarnation_without_manifests_raises_data_loss_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, topic_id=OLD)
    write(tmp_path, build_segments(1), topic_id=NEW)
    set_modified(tmp_path, OLD, 1_000_000)
    set_modified(tmp_path, NEW, 2_000_000)
    lose(tmp_path, "rsm-manifest", under=NEW)
    with pytest.raises(DataLossError, match="option 'topicId'") as error:
        kts_source.plan(make_options(tmp_path))
    assert OLD in str(error.value)
    assert NEW in str(error.value)
    assert len(read_offsets(tmp_path, topicId=OLD)) == 15
    assert len(read_offsets(tmp_path, failOnDataLoss="false")) == 15
    assert "are older than objects of another topic id" in caplog.text
    # Older objects without a manifest are of a deleted topic and do not require option topicId.
    set_modified(tmp_path, NEW, 500_000)
    assert len(read_offsets(tmp_path)) == 15


def test_newest_incarnation_with_lost_log_object_raises_data_loss_error(tmp_path: Path) -> None:
    kwargs = {"topic": "t", "partition": 0}
    for topic_id, timestamp_ms in ((OLD, 1_000), (NEW, 2_000)):
        writer = AivenTierWriter(str(tmp_path), topic_id=topic_id, **kwargs)  # type: ignore[arg-type]
        writer.write_segment(build_segments(1)[0], event_timestamp_ms=timestamp_ms)
    lose(tmp_path, "log", under=NEW)
    with pytest.raises(DataLossError, match=rf"\[0, 5\).*{NEW}"):
        kts_source.plan(make_options(tmp_path))


# -- dead branches


def test_checkpoint_of_damaged_segment_shows_which_branch_is_dead(tmp_path: Path) -> None:
    write(tmp_path, build_segments(3, epoch=0))  # [0, 15); the dead branch is [5, 15)
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
    assert read_offsets(tmp_path) == [*range(8)]
    next(tmp_path.rglob(newer)).unlink()
    # The checkpoint of the newer segment remains, and shows that the other branch is dead.
    with pytest.raises(DataLossError, match=r"\[5, 8\)"):
        kts_source.plan(make_options(tmp_path))
    assert read_offsets(tmp_path, failOnDataLoss="false") == [*range(5)]
    # Without this checkpoint, it is unknown which branch is dead.
    next(tmp_path.rglob(newer.replace(".log", ".indexes"))).unlink()
    with pytest.raises(DataLossError, match="it is unknown which segments belong to the log"):
        kts_source.plan(make_options(tmp_path, endingOffsets='{"t":{"0":3}}'))


# -- LocalTieredStorage


def make_local_options(root: Path, **extra: str) -> dict[str, str]:
    return {**make_options(root, **extra), "layout": "local-tiered-storage"}


@pytest.mark.parametrize("suffix", ["log", "index", "timeindex", "leader_epoch_checkpoint"])
@pytest.mark.parametrize("count", [1, 3])
def test_missing_file_of_local_copy_raises_error_if_its_snapshot_exists(
    tmp_path: Path, suffix: str, count: int
) -> None:
    write(tmp_path, build_segments(count), layout="local")
    last = 5 * (count - 1)
    lose(tmp_path, suffix, base=last)
    with pytest.raises(DataLossError, match=rf"t-0: .*\[{last}, \d+\).*no \.{suffix}"):
        kts_source.plan(make_local_options(tmp_path))
    rows = scan(make_local_options(tmp_path, failOnDataLoss="false"))
    assert rows["offset"].to_pylist() == [*range(last)]


def test_lost_log_file_of_local_copy_raises_data_loss_error(tmp_path: Path) -> None:
    write(tmp_path, layout="local")
    lose(tmp_path, "log", base=5)
    with pytest.raises(DataLossError, match=r"\[5, 10\)"):
        kts_source.plan(make_local_options(tmp_path))


def test_local_copy_without_snapshot_is_skipped_without_error(tmp_path: Path) -> None:
    write(tmp_path, layout="local")
    lose(tmp_path, "snapshot", base=10)
    assert scan(make_local_options(tmp_path))["offset"].to_pylist() == [*range(10)]


@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_transaction_whose_marker_was_in_lost_last_segment_is_undecided(
    tmp_path: Path, layout: str
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")] * 2)
    builder.send(7, [SimpleRecord(b"open")] * 2)
    builder.roll()
    builder.abort(7)
    write(tmp_path, builder.build().segments, layout=layout)
    lose(tmp_path, "log", base=4)
    options_for = make_local_options if layout == "local" else make_options
    with pytest.raises(DataLossError, match=r"\[4, 5\)"):
        kts_source.plan(options_for(tmp_path))
    with pytest.raises(OffsetOutOfRangeError, match="ends at offset 2"):
        kts_source.plan(options_for(tmp_path, endingOffsets='{"t":{"0":4}}'))
    assert scan(options_for(tmp_path, failOnDataLoss="false"))["offset"].to_pylist() == [0, 1]


@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_plan_of_tier_with_damaged_last_segment_can_be_replayed(
    tmp_path: Path, layout: str
) -> None:
    root, plan_file = tmp_path / "tier", tmp_path / "plan.json"
    write(root, layout=layout)
    lose(root, "log", base=10)
    scan_options = (make_local_options if layout == "local" else make_options)(
        root, failOnDataLoss="false"
    )
    plan = kts_source.plan(scan_options)
    plan_file.write_text(plan.to_json())
    replayed = kts_source.plan({**scan_options, "planFile": str(plan_file)})
    assert replayed.partitions[0].surviving.holes == plan.partitions[0].surviving.holes
    assert replayed.tasks == plan.tasks


def test_epoch_of_damaged_local_copy_is_read_from_checkpoint(
    tmp_path: Path,
) -> None:
    # These segments have offsets [0, 15). Offsets [7, 15) are a dead branch.
    write(tmp_path, build_segments(3, epoch=0), layout="local")
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
    # The remaining files show that epoch 1 starts at offset 7, but not where it ends.
    with pytest.raises(DataLossError, match=r"\[7, 8\)"):
        kts_source.plan(make_local_options(tmp_path))
    rows = scan(make_local_options(tmp_path, failOnDataLoss="false"))
    assert rows["offset"].to_pylist() == [*range(7)]
    newer.with_suffix(".leader_epoch_checkpoint").unlink()
    for ending in ('{"t":{"0":3}}', "latest"):
        with pytest.raises(DataLossError, match="it is unknown which segments belong to the log"):
            kts_source.plan(make_local_options(tmp_path, endingOffsets=ending))


def test_damaged_segment_below_dead_branch_raises_data_loss_error(
    tmp_path: Path,
) -> None:
    write(tmp_path, [files for files in build_segments(12, epoch=0) if files.base_offset])
    builder = LogBuilder(leader_epoch=0)
    builder.append([SimpleRecord(b"0") for _ in range(2)])
    builder.set_leader_epoch(1)
    builder.append([SimpleRecord(b"1") for _ in range(2)])
    write(tmp_path, builder.build().segments)
    lose(tmp_path, "log", base=0)
    for file in tmp_path.rglob("*.*"):
        modified = 1_000_000 + int(file.name[:20]) if int(file.name[:20]) else 2_000_000
        os.utime(file, (modified, modified))
    # All other segments are of a dead branch. A scan of their offsets must raise an error, too.
    for start, ending in ((0, "latest"), (20, '{"t":{"0":30}}')):
        bounds = {"startingOffsets": f'{{"t":{{"0":{start}}}}}', "endingOffsets": ending}
        with pytest.raises(DataLossError, match=r"\[0, 4\)"):
            kts_source.plan(make_options(tmp_path, **bounds))
