"""Tests exports that continue a table. They read the offsets that the table lacks, and raise an
error if the table would then have a gap.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import (
    ArchivedObjectError,
    CorruptSegmentError,
    RangeGapError,
    RangeOverlapError,
)
from kts_source.planning import segment_catalog
from kts_source.store import local_store
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.small_tier import (
    T0,
    SmallTier,
    gaps,
    offset_option,
    ranges,
    table_offsets,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


@pytest.fixture
def folder_lake(tmp_path: Path) -> Lake:
    """Returns a Parquet folder as target. It is the fastest target, for tests that do not depend on
    the format.
    """
    return Lake(tmp_path, "parquet")


@pytest.fixture
def tier(tmp_path: Path) -> SmallTier:
    return SmallTier(tmp_path / "tier").grow(3)


def plan_file(tier: SmallTier, path: Path, **options: str) -> str:
    path.write_text(kts_source.plan(tier.options(**options)).to_json())
    return str(path)


# -- plan files


def test_export_of_plan_file_writes_only_offsets_that_the_table_lacks(
    lake: Lake, tier: SmallTier, tmp_path: Path
) -> None:
    planned = tier.options(planFile=plan_file(tier, tmp_path / "plan.json"))
    lake.export(tier.options(endingOffsets=offset_option(14)))
    assert ranges(lake.export(planned)) == [(14, 30)]
    assert table_offsets(lake) == list(range(30))
    again = lake.export(planned)
    assert (again.ranges, again.commits) == ((), 0)
    tier.grow(1)
    assert lake.export(planned).ranges == ()
    assert ranges(lake.export(tier.options())) == [(30, 40)]
    assert lake.export(planned).ranges == ()
    assert table_offsets(lake) == list(range(40))


def test_export_of_plan_file_does_not_read_exported_objects(
    folder_lake: Lake, tier: SmallTier, tmp_path: Path
) -> None:
    planned = tier.options(planFile=plan_file(tier, tmp_path / "plan.json"))
    folder_lake.export(tier.options(endingOffsets=offset_option(20)))
    tier.expire(0, 1)
    assert ranges(folder_lake.export(planned)) == [(20, 30)]
    assert table_offsets(folder_lake) == list(range(30))


def test_plan_file_that_leaves_a_gap_after_the_table_is_refused(
    folder_lake: Lake, tier: SmallTier, tmp_path: Path
) -> None:
    late = tier.options(
        planFile=plan_file(tier, tmp_path / "plan.json", startingOffsets=offset_option(20))
    )
    folder_lake.export(tier.options(endingOffsets=offset_option(10)))
    with pytest.raises(RangeGapError, match=r"offsets \[10, 20\) of t-0 were not requested"):
        folder_lake.export(late)
    assert table_offsets(folder_lake) == list(range(10))


def test_plan_file_that_starts_before_the_table_is_refused(
    folder_lake: Lake, tier: SmallTier, tmp_path: Path
) -> None:
    planned = tier.options(planFile=plan_file(tier, tmp_path / "plan.json"))
    folder_lake.export(tier.options(startingOffsets=offset_option(20)))
    with pytest.raises(RangeOverlapError, match=r"offsets \[0, 20\) were requested"):
        folder_lake.export(planned)


def test_plan_file_that_overlaps_the_table_is_refused_without_resume(
    folder_lake: Lake, tier: SmallTier, tmp_path: Path
) -> None:
    planned = tier.options(planFile=plan_file(tier, tmp_path / "plan.json"))
    folder_lake.export(tier.options(endingOffsets=offset_option(10)))
    with pytest.raises(RangeOverlapError, match=r"offsets \[0, 10\) were requested"):
        folder_lake.export(planned, resume=False)


# -- records that cannot be read


def test_export_continues_after_damaged_records_if_their_offsets_are_skipped_by_name(
    lake: Lake, tier: SmallTier
) -> None:
    log = next(tier.root / key for key in tier.keys[1] if key.endswith(".log"))
    data = bytearray(log.read_bytes())
    data[70] ^= 1  # in the first record, which the checksum of the batch covers
    log.write_bytes(data)
    with pytest.raises(CorruptSegmentError):
        lake.export(tier.options())
    assert ranges(lake.export(tier.options(endingOffsets=offset_option(10)))) == [(0, 10)]
    time = {"startingTimestamp": str(T0 + 20_000)}  # does not name an offset
    for start in (
        {"startingOffsets": offset_option(20)},
        time,
        {**time, "failOnDataLoss": "false"},
    ):
        with pytest.raises(RangeGapError, match=r"offsets \[10, 20\) of t-0 were not requested"):
            lake.export(tier.options(**start))
    assert table_offsets(lake) == list(range(10))
    once = tier.options(startingOffsets=offset_option(20), failOnDataLoss="false")
    report = lake.export(once)
    assert ranges(report) == [(20, 30)]
    (gap,) = report.skipped
    assert (gap.topic, gap.partition, gap.start, gap.stop) == ("t", 0, 10, 20)
    assert ranges(lake.export(tier.grow(1).options())) == [(30, 40)]
    assert table_offsets(lake) == [*range(10), *range(20, 40)]


# -- offsets below those of the table


@pytest.mark.parametrize(
    "start", [{}, {"startingOffsets": offset_option(-2)}, {"startingTimestamp": str(T0)}]
)
def test_requested_offsets_below_the_table_raise_or_are_reported_as_skipped(
    lake: Lake, tier: SmallTier, start: dict[str, str]
) -> None:
    lake.export(tier.options(startingOffsets=offset_option(20)))
    tier.grow(1)
    with pytest.raises(RangeOverlapError, match=r"\[0, 20\) were requested.* from 20 to 30"):
        lake.export(tier.options(**start))
    assert table_offsets(lake) == list(range(20, 30))
    report = lake.export(tier.options(**start, failOnDataLoss="false"))
    assert (gaps(report), ranges(report)) == ([(0, 20)], [(30, 40)])
    assert "skipped t-0 [0, 20): below the offsets of the table" in str(report)
    assert table_offsets(lake) == list(range(20, 40))


# -- exported offsets that were deleted from the tier


@pytest.mark.parametrize(
    "start",
    [
        {},
        {"startingOffsets": offset_option(0)},
        {"startingOffsets": offset_option(-2)},
        {"startingTimestamp": str(T0)},
    ],
)
@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1), (0, 1, 2)])
def test_export_continues_after_exported_segments_left_the_tier(
    folder_lake: Lake, tier: SmallTier, start: dict[str, str], lost: tuple[int, ...]
) -> None:
    folder_lake.export(tier.options(**start))
    tier.expire(*lost)
    tier.grow(1)
    report = folder_lake.export(tier.options(**start))
    assert (ranges(report), report.skipped) == ([(30, 40)], ())
    assert table_offsets(folder_lake) == list(range(40))


@pytest.mark.parametrize("stop", [10, 20, 25])
def test_export_with_ending_offset_inside_the_table_writes_nothing(
    folder_lake: Lake, tier: SmallTier, stop: int
) -> None:
    folder_lake.export(tier.options())
    tier.expire(0, 1)
    for end in (
        {"endingOffsets": offset_option(stop)},
        {"endingTimestamp": str(T0 + 1000 * stop)},
    ):
        assert folder_lake.export(tier.options(**end)).ranges == ()
    assert table_offsets(folder_lake) == list(range(30))


def test_segments_expired_before_export_raise_gap_error(lake: Lake, tier: SmallTier) -> None:
    lake.export(tier.options(endingOffsets=offset_option(10)))
    tier.expire(0, 1)
    for start in ({}, {"startingOffsets": offset_option(0)}, {"startingTimestamp": str(T0)}):
        with pytest.raises(
            RangeGapError, match=r"\[10, 20\) of t-0 are no longer in the tier"
        ) as e:
            lake.export(tier.options(**start))
        assert e.value.is_deleted
        assert "set failOnDataLoss=false to skip them" in str(e.value)
    report = lake.export(tier.options(failOnDataLoss="false"))
    assert (gaps(report), ranges(report)) == ([(10, 20)], [(20, 30)])
    assert table_offsets(lake) == [*range(10), *range(20, 30)]
    assert lake.export(tier.options()).ranges == ()


def test_exported_segments_in_an_archive_are_not_read(
    folder_lake: Lake, tier: SmallTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_lake.export(tier.options(endingOffsets=offset_option(20)))
    archived = {key for keys in tier.keys[:2] for key in keys if key.endswith(".log")}
    original = local_store.LocalStore.list_objects

    def listed(self: local_store.LocalStore, prefix: str) -> object:
        import dataclasses

        for info in original(self, prefix):
            is_archived = info.key in archived
            yield dataclasses.replace(info, storage_class="GLACIER") if is_archived else info

    monkeypatch.setattr(local_store.LocalStore, "list_objects", listed)
    with pytest.raises(ArchivedObjectError):
        Lake(folder_lake.folder / "other", "parquet").export(tier.options())
    for options in ({}, {"startingTimestamp": str(T0)}):
        folder_lake.export(tier.options(**options))
    assert table_offsets(folder_lake) == list(range(30))


def test_plan_size_limit_ignores_offsets_in_the_table(folder_lake: Lake, tier: SmallTier) -> None:
    folder_lake.export(tier.options())
    tier.grow(1)
    size = kts_source.plan(tier.options(startingOffsets=offset_option(30))).nominal_bytes
    report = folder_lake.export(tier.options(maxPlanBytes=str(size), maxPlanRequests="9"))
    assert ranges(report) == [(30, 40)]


def test_continued_export_reads_only_a_few_manifests(
    folder_lake: Lake, tier: SmallTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.grow(30)
    folder_lake.export(tier.options())
    tier.grow(1)
    described = []
    original = segment_catalog.SegmentCatalog.described

    def counted(self: segment_catalog.SegmentCatalog, entries: list[object]) -> object:
        described.extend(entries)
        return original(self, entries)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_catalog.SegmentCatalog, "described", counted)
    assert ranges(folder_lake.export(tier.options())) == [(330, 340)]
    # The reads depend on the copy times of the newest segments.
    assert 0 < len(described) < 20


# -- offsets skipped with failOnDataLoss=false


def test_report_lists_skipped_requested_offsets_outside_the_tier(
    folder_lake: Lake, tier: SmallTier
) -> None:
    tier.expire(0)
    report = folder_lake.export(
        tier.options(
            startingOffsets=offset_option(0),
            endingOffsets=offset_option(35),
            failOnDataLoss="false",
        )
    )
    assert (gaps(report), ranges(report)) == ([(0, 10), (30, 35)], [(10, 30)])
    tier.grow(1)
    report = folder_lake.export(
        tier.options(
            startingOffsets=offset_option(0),
            endingOffsets=offset_option(35),
            failOnDataLoss="false",
        )
    )
    assert (gaps(report), ranges(report)) == ([(0, 10)], [(30, 35)])


# -- wrong end offsets in a manifest


def raise_end(tier: SmallTier, number: int, end: int) -> None:
    """Sets the end offset of segment `number` to `end` in its manifest."""
    (key,) = (key for key in tier.keys[number] if key.endswith("manifest"))
    manifest = json.loads((tier.root / key).read_text())
    manifest["remoteLogSegmentMetadata"]["endOffset"] = end
    (tier.root / key).write_text(json.dumps(manifest))


@pytest.mark.parametrize("end", [30, 31, 39, 69])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_manifest_with_too_high_end_offset_loses_no_row(
    folder_lake: Lake, tier: SmallTier, end: int, isolation: str
) -> None:
    raise_end(tier, 2, end)
    options = tier.options(isolationLevel=isolation)
    assert ranges(folder_lake.export(options)) == [(0, 30)]
    assert folder_lake.export(options).ranges == ()
    tier.grow(1)
    assert ranges(folder_lake.export(options)) == [(30, 40)]
    tier.grow(1)
    folder_lake.export(options)
    assert table_offsets(folder_lake) == list(range(50))
