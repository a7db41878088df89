"""Checks in which cases planning reads all manifests of a partition, and in which cases only those
near the offsets to read.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kts_source.layout.layout import SegmentEntry
from kts_source.planning import tier_source
from kts_source.planning.bounds import Place
from kts_source.planning.tier_source import TierLog
from kts_source.store.object_store import ObjectInfo
from tests.kts_source.planning.segments import make_lineage, make_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import PartitionLog
    from segment_format.index.checkpoints import EpochEntry


class Listed:
    """Fake catalog of segments without objects. The upload time of a segment is its event
    timestamp.
    """

    topic_id = "id"

    def __init__(self, segments: Iterable[RemoteSegment], *, deleted_id: str = "") -> None:
        self._segments = sorted(
            segments, key=lambda segment: (segment.start_offset, segment.segment_id)
        )
        self._deleted_id = deleted_id
        self.described_ids: set[str] = set()
        self.entries = [
            SegmentEntry(
                "t",
                segment.topic_id,
                0,
                segment.start_offset,
                segment.segment_id,
                "",
                (("log", ObjectInfo(segment.segment_id, 1, "1", segment.event_timestamp_ms)),),
            )
            for segment in self._segments
        ]

    def damaged(self) -> list[RemoteSegment]:
        return []

    def described(self, numbers: Iterable[int]) -> list[RemoteSegment]:
        segments = [self._segments[number] for number in numbers]
        self.described_ids |= {segment.segment_id for segment in segments}
        return [segment for segment in segments if segment.segment_id != self._deleted_id]

    def all(self) -> list[RemoteSegment]:
        return self.described(range(len(self._segments)))


def make_view(listed: Listed, checkpoints: Mapping[str, tuple[EpochEntry, ...]]) -> TierLog:
    def leader_epochs(remote_segment: RemoteSegment) -> object:
        return SimpleNamespace(
            entries=checkpoints.get(remote_segment.segment_id, make_lineage(e0=0))
        )

    side_files = cast("Any", SimpleNamespace(leader_epochs=leader_epochs))
    return TierLog(Place("t", 0), cast("Any", listed), side_files, in_part=True)


@pytest.fixture(autouse=True)
def _newest_upload_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_source, "NEWEST_UPLOADS", 1)


def make_segments(count: int) -> list[RemoteSegment]:
    return [
        make_segment(100 * number, 100 * number + 99, name=f"{number}", event_timestamp_ms=number)
        for number in range(count)
    ]


def list_ranges(log: PartitionLog) -> list[tuple[str, int, int]]:
    return [(span.segment.segment_id, span.start, span.stop) for span in log.ranges]


def test_plan_of_window_reads_only_manifests_around_the_window() -> None:
    listed = Listed(make_segments(50))
    log_view = make_view(listed, {})
    assert (log_view.log.log_start, log_view.log.stop) == (0, 5000)
    assert listed.described_ids == {"0", "49"}
    assert list_ranges(log_view.covering(2050, 2220)) == [
        ("20", 2050, 2100),
        ("21", 2100, 2200),
        ("22", 2200, 2300),
    ]
    assert listed.described_ids == {"0", "20", "21", "22", "49"}
    assert not log_view.is_complete


def test_window_is_read_from_long_segment_that_starts_earlier() -> None:
    segments = make_segments(50)
    del segments[15:20]
    listed = Listed([*segments, make_segment(1250, 2100, name="long", event_timestamp_ms=3)])
    log_view = make_view(listed, {})
    assert list_ranges(log_view.covering(1950, 2010)) == [("long", 1950, 2000), ("20", 2000, 2100)]
    assert "2" not in listed.described_ids
    assert not log_view.is_complete


def test_higher_epoch_in_window_makes_planner_read_all_manifests() -> None:
    old = [*make_segments(10), make_segment(1000, 1099, name="last", event_timestamp_ms=99)]
    winner = make_segment(510, 549, {1: 510}, name="winner", event_timestamp_ms=6)
    log_view = make_view(Listed([*old, winner]), {"winner": make_lineage(e0=0, e1=510)})
    assert log_view.log.stop == 1100
    log_view.covering(450, 520)
    assert log_view.is_complete
    assert log_view.log.stop == 550
    assert list_ranges(log_view.covering(450, 520))[-1] == ("winner", 510, 550)


def test_newest_epoch_in_older_upload_makes_planner_read_all_manifests() -> None:
    # After an unclean election, a leader with lower epochs copied all its segments again. So the
    # segment of the newest epoch is not among the newest uploads.
    copied = [
        make_segment(100 * n, 100 * n + 99, name=f"again{n}", event_timestamp_ms=20 + n)
        for n in range(3, 12)
    ]
    winner = make_segment(350, 399, {1: 350}, name="winner", event_timestamp_ms=15)
    log_view = make_view(
        Listed([*make_segments(3), winner, *copied]), {"winner": make_lineage(e0=0, e1=350)}
    )
    assert log_view.log.stop == 400
    assert log_view.is_complete  # with dead branches, a partial view is not sufficient


def test_higher_end_offset_in_window_makes_planner_read_all_manifests() -> None:
    listed = Listed(
        [*make_segments(10), make_segment(405, 2000, name="long", event_timestamp_ms=5)]
    )
    log_view = make_view(listed, {})
    assert log_view.log.stop == 1000
    assert log_view.covering(410, 420).stop == 2001
    assert log_view.is_complete


def test_hole_in_window_makes_planner_read_all_manifests() -> None:
    segments = make_segments(50)
    del segments[20]
    log_view = make_view(Listed(segments), {})
    (hole,) = log_view.covering(1950, 2050).holes
    assert (hole.start, hole.stop) == (2000, 2100)
    assert log_view.is_complete


@pytest.mark.parametrize("deleted_id", ["0", "20", "49"])
def test_deleted_segment_makes_planner_read_all_manifests(deleted_id: str) -> None:
    log_view = make_view(Listed(make_segments(50), deleted_id=deleted_id), {})
    log_view.covering(2010, 2020)
    assert log_view.is_complete


def test_missing_upload_times_make_planner_read_all_manifests() -> None:
    segments = make_segments(50)
    listed = Listed(segments)
    first = listed.entries[0]
    listed.entries[0] = SegmentEntry(
        *("t", first.topic_id, 0, 0, first.segment_id, "", (("log", ObjectInfo("0", 1, "1")),))
    )
    assert make_view(listed, {}).is_complete
    same = [
        make_segment(100 * n, 100 * n + 99, name=f"{n}", event_timestamp_ms=7) for n in range(50)
    ]
    assert make_view(Listed(same), {}).is_complete


def test_log_start_is_read_from_the_newest_checkpoint() -> None:
    listed = Listed(make_segments(50))
    log_view = make_view(listed, {"49": make_lineage(e0=150)})
    assert (log_view.log.log_start, log_view.log.stop) == (150, 5000)
    assert list_ranges(log_view.covering(150, 210)) == [("1", 150, 200), ("2", 200, 300)]
    assert not log_view.is_complete
