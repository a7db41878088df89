"""Damages a tier that has a mirror (`fallbackPath`), and reads it with a scan, an export and a
stream. The expected rows are those that the builder of the log wrote.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import uuid
from collections import Counter
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import CorruptSegmentError, DataLossError, StoreNotFoundError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import BatchLimits, ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import open_tier
from segment_format.testing import AivenTierWriter
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.small_tier import table_offsets
from tests.kts_source.planning.scanning import scan
from tests.kts_source.planning.transaction_damage import build_log
from tests.kts_source.streaming.running import Checkpointed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from segment_format.testing import BuiltLog

SUFFIXES = ("log", "indexes", "rsm-manifest")


def write_mirrored(folder: Path, seed: int) -> tuple[BuiltLog, dict[str, str]]:
    """Writes a tier and its mirror below `folder`. Returns the log and options that read each
    segment in one task.
    """
    log = build_log(seed)
    source = random.Random(seed)
    writer = AivenTierWriter(
        str(folder / "mirror"),
        topic="t",
        topic_id=uuid.UUID(int=7),
        chunk_size=source.choice((200, 10_000)),
        compression=seed % 3 == 0,
    )
    for files in log.segments:
        writer.write_segment(files)
    shutil.copytree(folder / "mirror", folder / "tier")
    options = {
        "path": str(folder / "tier"),
        "fallbackPath": str(folder / "mirror"),
        "subscribe": "t",
        "cache": "false",
        "isolationLevel": "read_committed",
        "targetPartitionBytes": "10m",
    }
    return log, options


def objects(folder: Path, suffix: str) -> list[Path]:
    """Returns the objects of a tier with a suffix, in order of offsets."""
    return sorted(folder.rglob(f"*.{suffix}"))


def expected(log: BuiltLog) -> list[int]:
    return [row.offset for row in log.rows("read_committed")]


def scanned(options: dict[str, str]) -> list[int]:
    return sorted(scan(options)["offset"].to_pylist())


def new_lake(folder: Path) -> Lake:
    lake = Lake(folder / "lake", "parquet")
    lake.folder.mkdir()
    return lake


def check_export_without_tier_raises(lake: Lake, options: dict[str, str], folder: Path) -> None:
    """Moves the tier below `folder` away during an export."""
    (folder / "tier").rename(folder / "away")
    with pytest.raises(StoreNotFoundError, match="run again when it answers"):
        lake.export(options)
    (folder / "away").rename(folder / "tier")


def exported(options: dict[str, str], folder: Path) -> list[int]:
    lake = new_lake(folder)
    lake.export(options, commit_bytes=1)
    return sorted(table_offsets(lake))


def streamed(options: dict[str, str]) -> list[int]:
    stream = Checkpointed({**options, "minListingIntervalMs": "0"})
    stream.all()
    stream.close()
    return sorted(
        offset for batch in stream.batches.values() for offset in batch["offset"].to_pylist()
    )


def remove(path: Path, _source: random.Random) -> None:
    path.unlink()


def truncate(path: Path, source: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: source.randrange(len(data))])


def flip(path: Path, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


DAMAGES = (remove, truncate, flip)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_scan_export_and_stream_read_damaged_objects_from_the_mirror(
    damage: Callable[[Path, random.Random], None],
    suffix: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for seed in range(2):
        folder = tmp_path / str(seed)
        log, options = write_mirrored(folder, seed)
        source = random.Random(f"{damage.__name__} {suffix} {seed}")
        damage(objects(folder / "tier", suffix)[source.choice((1, 2, 3))], source)
        assert scanned(options) == expected(log)
        assert streamed(options) == expected(log)
        assert exported(options, folder) == expected(log)
    if damage is not flip:
        assert "is read from the mirror (fallbackPath)" in caplog.text


def test_damaged_segment_of_several_tasks_has_all_rows_or_raises(tmp_path: Path) -> None:
    outcomes = Counter[str]()
    for seed in range(12):
        log, options = write_mirrored(tmp_path / str(seed), seed % 4)
        source = random.Random(seed)
        suffix = source.choice(SUFFIXES)
        flip(source.choice(objects(tmp_path / str(seed) / "tier", suffix)), source)
        try:
            rows = scanned({**options, "targetPartitionBytes": "500"})
        except (CorruptSegmentError, DataLossError):
            outcomes["error"] += 1
        else:
            assert rows == expected(log), seed
            outcomes["rows"] += 1
    assert outcomes["error"] > 0
    assert outcomes["rows"] > 0


def damage_batch(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)


def test_warning_about_the_mirror_names_only_the_damaged_object(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, options = write_mirrored(tmp_path, 1)
    damaged = objects(tmp_path / "tier", "log")[1]
    damage_batch(damaged)
    assert scanned(options) == expected(log)
    (line,) = [each.message for each in caplog.records if "read from the mirror" in each.message]
    assert line.startswith(f"{damaged.as_uri()} is read from the mirror")
    assert "fallbackPath" not in line.partition("(fallbackPath)")[2]


def test_reads_from_the_mirror_are_in_the_report_and_the_metrics(tmp_path: Path) -> None:
    _, options = write_mirrored(tmp_path, 1)
    report = Lake(tmp_path, "parquet").export({**options, "endingOffsets": '{"t": {"0": 1}}'})
    assert report.mirrored == 0
    assert "repair the tier" not in str(report)
    objects(tmp_path / "tier", "log")[1].unlink()
    report = Lake(tmp_path, "parquet").export(options)
    assert report.mirrored > 0
    assert "from the mirror: repair the tier" in str(report)
    assert f'\nkts_export_mirrored_reads{{target="{report.target}"}} {report.mirrored}\n' in (
        report.to_prometheus()
    )


def test_damage_in_both_stores_fails_with_the_object_of_the_tier(tmp_path: Path) -> None:
    _, options = write_mirrored(tmp_path, 1)
    for root in ("tier", "mirror"):
        damage_batch(objects(tmp_path / root, "log")[1])
    with pytest.raises(CorruptSegmentError) as caught:
        scan(options)
    assert caught.value.uri == objects(tmp_path / "tier", "log")[1].as_uri()
    assert "Restore the object; `kts verify`" in str(caught.value)


def test_row_returned_before_the_damage_is_not_returned_again(tmp_path: Path) -> None:
    log, options = write_mirrored(tmp_path, 1)
    damage_batch(objects(tmp_path / "tier", "log")[0])
    parsed = parse_options(options)
    settings = replace(
        ReadSettings.of(parsed), columns=("value", "key"), batches=BatchLimits(1, 1000)
    )
    with closing(open_tier(parsed)) as tier:
        source = SegmentSource(tier, parsed.key_ring)
        tasks = plan_scan(parsed).tasks
        batches = [batch for task in tasks for batch in read_task(task, source, settings)]
    assert {tuple(batch.schema.names) for batch in batches} == {("value", "key")}
    values = [value for batch in batches for value in batch["value"].to_pylist()]
    assert Counter(values) == Counter(row.value for row in log.rows("read_committed"))


def test_audit_finds_damage_that_the_mirror_hides(tmp_path: Path) -> None:
    _, options = write_mirrored(tmp_path, 1)
    objects(tmp_path / "tier", "log")[1].unlink()
    damage_batch(objects(tmp_path / "tier", "log")[2])
    kinds = {finding.kind.name for finding in kts_source.audit(options, level="bytes").findings}
    assert {"object-missing", "crc"} <= kinds


def test_mirror_does_not_replace_objects_that_it_lacks(tmp_path: Path) -> None:
    _, options = write_mirrored(tmp_path, 1)
    for root in ("tier", "mirror"):
        objects(tmp_path / root, "log")[1].unlink()
    with pytest.raises(DataLossError):
        scan(options)


@pytest.mark.parametrize("allowed", ["true", "false"])
@pytest.mark.parametrize(("lacking", "away"), [("tier", "mirror"), ("mirror", "tier")])
def test_offsets_that_one_store_lacks_are_not_lost_while_the_other_is_away(
    lacking: str, away: str, allowed: str, tmp_path: Path
) -> None:
    for seed in range(2):
        folder = tmp_path / str(seed)
        log, options = write_mirrored(folder, seed)
        options["failOnDataLoss"] = allowed
        lost = random.Random(f"{lacking} {seed}").choice((0, 1, 2, 3))
        for suffix in SUFFIXES:
            objects(folder / lacking, suffix)[lost].unlink()
        complete = folder / away
        complete.rename(folder / "away")
        if lost > 0:  # without its first segment, the log looks as if retention had deleted it
            with pytest.raises(StoreNotFoundError, match="run again when it answers"):
                scanned(options)
            with pytest.raises(StoreNotFoundError, match="run again when it answers"):
                exported(options, folder)
            with contextlib.suppress(StoreNotFoundError):  # or the stream waits
                rows = streamed(options)
                assert rows == expected(log)[: len(rows)]
            shutil.rmtree(folder / "lake")
        (folder / "away").rename(complete)
        if lost > 0 or lacking == "mirror":
            assert scanned(options) == expected(log)
            assert exported(options, folder) == expected(log)


def test_start_that_only_the_absent_store_has_is_not_skipped(tmp_path: Path) -> None:
    """The mirror lacks the first segments, and the table lacks the offsets of the second one."""
    log, options = write_mirrored(tmp_path, 0)
    options["failOnDataLoss"] = "false"
    for suffix in SUFFIXES:
        for path in objects(tmp_path / "mirror", suffix)[:2]:
            path.unlink()
    lake = new_lake(tmp_path)
    stop = log.segments[1].base_offset
    lake.export({**options, "endingOffsets": f'{{"t": {{"0": {stop}}}}}'})
    check_export_without_tier_raises(lake, options, tmp_path)
    lake.export(options)
    assert sorted(table_offsets(lake)) == expected(log)


def test_mirror_that_is_emptied_after_the_plan_is_not_lost(tmp_path: Path) -> None:
    _, options = write_mirrored(tmp_path, 1)
    objects(tmp_path / "tier", "log")[1].unlink()
    parsed = parse_options({**options, "failOnDataLoss": "false"})
    plan = plan_scan(parsed)
    shutil.rmtree(tmp_path / "mirror")
    (tmp_path / "mirror").mkdir()
    settings = ReadSettings.of(parsed)
    with closing(open_tier(parsed)) as tier:
        source = SegmentSource(tier, parsed.key_ring)
        with pytest.raises(StoreNotFoundError):
            [list(read_task(task, source, settings)) for task in plan.tasks]


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_offsets_are_not_lost_while_the_mirror_is_empty(tmp_path: Path, allowed: str) -> None:
    log, options = write_mirrored(tmp_path, 1)
    options["failOnDataLoss"] = allowed
    for suffix in SUFFIXES:
        objects(tmp_path / "tier", suffix)[2].unlink()
    (tmp_path / "mirror").rename(tmp_path / "away")
    (tmp_path / "mirror").mkdir()
    for read in (scanned, partial(exported, folder=tmp_path)):
        with pytest.raises(StoreNotFoundError, match=r"mirror has no objects here.*not mounted"):
            read(options)
    (tmp_path / "mirror").rmdir()
    (tmp_path / "away").rename(tmp_path / "mirror")
    shutil.rmtree(tmp_path / "lake")
    assert exported(options, tmp_path) == expected(log)


@pytest.mark.parametrize("kept", [slice(0, 2), slice(2, None)])
def test_start_and_end_of_the_mirror_alone_are_no_facts(tmp_path: Path, kept: slice) -> None:
    """The mirror has only the first or the last segments, and the tier is away."""
    log, options = write_mirrored(tmp_path, 0)
    lake = new_lake(tmp_path)
    if kept.start == 0:  # the table has more than the mirror
        lake.export(options)
    for suffix in SUFFIXES:
        all_objects = objects(tmp_path / "mirror", suffix)
        for path in {*all_objects} - {*all_objects[kept]}:
            path.unlink()
    check_export_without_tier_raises(lake, options, tmp_path)
    lake.export(options)
    assert sorted(table_offsets(lake)) == expected(log)


def test_old_topic_id_that_only_the_mirror_has_is_not_exported(tmp_path: Path) -> None:
    """The topic was created again, and its new segments are not in the mirror yet."""
    _, options = write_mirrored(tmp_path, 0)
    options["failOnDataLoss"] = "false"
    (tmp_path / "tier").rename(tmp_path / "old")
    writer = AivenTierWriter(str(tmp_path / "tier"), topic="t", topic_id=uuid.UUID(int=8))
    for files in build_log(1).segments:
        writer.write_segment(files)
    lake = new_lake(tmp_path)
    lake.export({name: text for name, text in options.items() if name != "fallbackPath"})
    rows = sorted(table_offsets(lake))
    assert rows
    check_export_without_tier_raises(lake, options, tmp_path)
    assert sorted(table_offsets(lake)) == rows


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_topic_that_the_mirror_lacks_is_not_missing_while_the_tier_is_away(
    tmp_path: Path, allowed: str
) -> None:
    _, options = write_mirrored(tmp_path, 0)
    options["failOnDataLoss"] = allowed
    lake = new_lake(tmp_path)
    lake.export(options)
    (folder,) = (tmp_path / "mirror").iterdir()
    folder.rename(folder.with_name(folder.name.replace("t-", "other-", 1)))
    (tmp_path / "tier").rename(tmp_path / "away")
    for read in (scanned, lake.export):
        with pytest.raises(StoreNotFoundError, match="run again when it answers"):
            read(options)
