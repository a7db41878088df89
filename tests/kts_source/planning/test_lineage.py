"""Checks that a partition log assigns each offset to exactly one segment of the surviving branch,
and lists the missing offsets.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.planning.lineage import (
    BELOW_LOG_START,
    COVERED,
    DEAD_BRANCH,
    joined_lineage,
    newest_segment,
    partition_log,
    usable_range,
)
from segment_format.index.checkpoints import EpochEntry
from tests.kts_source.planning.segments import make_lineage, make_segment
from tests.quick import examples

if TYPE_CHECKING:
    from kts_source.layout.remote_segment import RemoteSegment

SEVEN = make_lineage(e0=0, e1=10, e2=20, e3=30, e4=40, e5=50, e7=70)


@pytest.mark.parametrize(
    ("start", "end", "epochs", "usable"),
    [
        # From Kafka's RemoteLogManagerTest: segments within the lineage are completely usable.
        (15, 35, {1: 15, 2: 20, 3: 30}, (15, 36)),
        (15, 19, {1: 15}, (15, 20)),
        (0, 5, {0: 0}, (0, 6)),
        (70, 75, {7: 70}, (70, 76)),
        (15, 29, {1: 15, 2: 20}, (15, 30)),
        # Segments that differ from the lineage are usable in part or not at all.
        (55, 85, {5: 55, 6: 60, 7: 70}, (55, 60)),
        (15, 45, {1: 15, 2: 20, 4: 40}, (15, 30)),
        (5, 25, {1: 5, 2: 20}, (10, 26)),
        (15, 35, {1: 15, 2: 20}, (15, 30)),
        (60, 69, {6: 60}, None),
    ],
)
def test_usable_range_excludes_offsets_that_diverge_from_lineage(
    start: int, end: int, epochs: dict[int, int], usable: tuple[int, int] | None
) -> None:
    span = usable_range(make_segment(start, end, epochs), SEVEN)
    assert (None if span is None else (span.start, span.stop)) == usable


@pytest.mark.parametrize(
    ("start", "end", "epochs", "usable"),
    [
        # An epoch that begins below the segment is clipped to the segment.
        (15, 18, {1: 10}, (15, 19)),
        (15, 18, {1: 2}, (15, 19)),
        # An epoch that ends below the segment or begins above the segment is ignored.
        (25, 35, {0: 0, 1: 10, 2: 20, 3: 30}, (25, 36)),
        (15, 18, {1: 15, 6: 60}, (15, 19)),
        (60, 65, {5: 50, 7: 70}, (60, 66)),
        # An epoch whose offsets differ from the lineage belongs to a different branch.
        (25, 35, {1: 10}, None),
        (25, 35, {1: 10, 3: 30}, None),
        (60, 65, {6: 50}, None),
    ],
)
def test_usable_range_ignores_epochs_outside_segment(
    start: int, end: int, epochs: dict[int, int], usable: tuple[int, int] | None
) -> None:
    span = usable_range(make_segment(start, end, epochs), SEVEN)
    assert (None if span is None else (span.start, span.stop)) == usable


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.data(),
)
def test_partition_log_accepts_first_epoch_that_starts_at_or_before_its_segment(
    sizes: list[int], epoch_sizes: list[int], data: st.DataObject
) -> None:
    starts = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    begins = [0, *(sum(epoch_sizes[: number + 1]) for number in range(len(epoch_sizes)))]
    epochs = {number: begin for number, begin in enumerate(begins) if begin < starts[-1]}
    segments = []
    for low, stop in pairwise(starts):
        segment_epochs = [e for e in epochs if epochs[e] < stop and epochs.get(e + 1, stop) > low]
        first = data.draw(st.integers(0, segment_epochs[0]))
        manifest_epochs = {e: epochs[e] for e in range(first, segment_epochs[-1] + 1)}
        is_clipped = data.draw(st.booleans())
        manifest_epochs[segment_epochs[0]] = (
            max(manifest_epochs[segment_epochs[0]], low)
            if is_clipped
            else manifest_epochs[segment_epochs[0]]
        )
        segments.append(make_segment(low, stop - 1, manifest_epochs))
    is_lost = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    is_lost[-1] = False  # its checkpoint contains the lineage
    kept = [segment for segment, was_lost in zip(segments, is_lost, strict=True) if not was_lost]
    lost = [segment for segment, was_lost in zip(segments, is_lost, strict=True) if was_lost]
    entries = make_lineage(**{f"e{number}": begin for number, begin in epochs.items()})
    log = partition_log(kept, entries)
    assert [(span.start, span.stop) for span in log.ranges] == [
        (segment.start_offset, segment.stop_offset) for segment in kept
    ]
    missing = {offset for hole in log.holes for offset in range(hole.start, hole.stop)}
    assert missing == {
        offset
        for segment in lost
        for offset in range(segment.start_offset, segment.stop_offset)
        if offset >= kept[0].start_offset
    }


def test_epoch_of_damaged_segment_affects_only_offsets_of_that_segment() -> None:
    complete = [make_segment(0, 9, {0: 0}), make_segment(10, 19, {0: 10})]
    # Epoch 3 starts at offset 5, but its segment starts at 20. Offsets below 20 stay valid.
    log = partition_log(complete, make_lineage(e0=0), [make_segment(20, 29, {3: 5})])
    assert [(span.start, span.stop) for span in log.ranges] == [(0, 10), (10, 20)]
    assert [(hole.start, hole.stop) for hole in log.holes] == [(20, 30)]
    log = partition_log(complete, make_lineage(e0=0), [make_segment(15, 29, {0: 0, 3: 15})])
    assert [(span.start, span.stop) for span in log.ranges] == [(0, 10), (10, 15)]
    assert [(hole.start, hole.stop) for hole in log.holes] == [(15, 30)]


def test_offsets_below_first_epoch_of_segment_are_skipped_or_become_a_hole() -> None:
    first = make_segment(10, 19, {0: 13})
    for start in (0, 13):
        log = partition_log([first, make_segment(20, 29)], make_lineage(e0=start))
        assert (log.log_start, log.holes) == (13, ())
        assert ["[10, 13)" in skipped.reason for skipped in log.skipped] == [True]
    log = partition_log([make_segment(0, 9), first, make_segment(20, 29)], make_lineage(e0=0))
    assert [(hole.start, hole.stop) for hole in log.holes] == [(10, 13)]


def test_usable_range_starts_at_log_start_of_lineage() -> None:
    span = usable_range(make_segment(14, 150, {5: 14, 7: 15, 9: 100}), make_lineage(e7=51, e9=100))
    assert span is not None
    assert (span.start, span.stop) == (51, 151)


def test_newest_segment_is_the_one_with_the_highest_epoch() -> None:
    old, new = make_segment(0, 300, {0: 0}), make_segment(100, 200, {1: 100})
    assert newest_segment([old, new]) is new


def test_partition_log_of_adjacent_segments_has_no_hole() -> None:
    log = partition_log([make_segment(10, 19), make_segment(0, 9)], make_lineage(e0=0))
    assert [(span.start, span.stop) for span in log.ranges] == [(0, 10), (10, 20)]
    assert (log.log_start, log.stop, log.holes, log.skipped) == (0, 20, (), ())


def test_log_start_is_the_start_offset_of_the_first_epoch() -> None:
    log = partition_log(
        [make_segment(0, 9), make_segment(10, 19), make_segment(20, 29)], make_lineage(e0=13)
    )
    assert log.log_start == 13
    assert [(span.start, span.stop) for span in log.ranges] == [(13, 20), (20, 30)]
    (clipped, below) = log.skipped
    assert (below.segment.start_offset, below.reason) == (0, BELOW_LOG_START)
    # These offsets were deleted, or their message format has no leader epochs.
    assert clipped.segment.start_offset == 10
    assert clipped.reason.startswith("offsets [10, 13) are below the first leader epoch")


def test_log_start_below_first_tiered_offset_adds_no_hole() -> None:
    log = partition_log([make_segment(50, 99)], make_lineage(e0=0))
    assert (log.log_start, log.holes) == (50, ())


def test_segment_uploaded_twice_is_read_once() -> None:
    log = partition_log(
        [make_segment(0, 9, name="a"), make_segment(0, 9, name="b"), make_segment(5, 14, name="c")],
        make_lineage(e0=0),
    )
    assert [(span.start, span.stop, span.segment.segment_id) for span in log.ranges] == [
        (0, 5, "a"),
        (5, 15, "c"),
    ]
    assert [skipped.reason for skipped in log.skipped] == [COVERED]


def test_offset_in_several_segments_is_read_from_the_segment_that_starts_last() -> None:
    log = partition_log(
        [
            make_segment(0, 99, name="long"),
            make_segment(20, 29, name="in it"),
            make_segment(25, 39, name="on"),
        ],
        make_lineage(e0=0),
    )
    assert [(span.start, span.stop, span.segment.segment_id) for span in log.ranges] == [
        (0, 20, "long"),
        (20, 25, "in it"),
        (25, 40, "on"),
        (40, 100, "long"),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=12),
    st.integers(0, 80),
)
def test_segment_for_an_offset_does_not_depend_on_segments_after_it(
    shapes: list[tuple[int, int]], offset: int
) -> None:
    segments = [
        make_segment(start, start + length, name=f"{number}")
        for number, (start, length) in enumerate(shapes)
    ]

    def segment_ids_at(subset: list[RemoteSegment]) -> list[str]:
        ranges = partition_log(subset, make_lineage(e0=0)).ranges if subset else ()
        return [s.segment.segment_id for s in ranges if s.start <= offset < s.stop]

    assert segment_ids_at(
        [segment for segment in segments if segment.start_offset <= offset]
    ) == segment_ids_at(segments)


def test_dead_branch_is_not_read() -> None:
    dead = make_segment(0, 99, {0: 0, 1: 40})
    log = partition_log([dead, make_segment(0, 199, {0: 0, 2: 60})], make_lineage(e0=0, e2=60))
    assert [(span.start, span.stop) for span in log.ranges] == [(0, 200)]
    only_dead = make_segment(40, 80, {1: 40})
    log = partition_log([only_dead, make_segment(0, 199, {0: 0, 2: 60})], make_lineage(e0=0, e2=60))
    assert [skipped.reason for skipped in log.skipped] == [DEAD_BRANCH]


def test_hole_names_the_segments_before_and_after_it() -> None:
    log = partition_log([make_segment(0, 9), make_segment(30, 39)], make_lineage(e0=0))
    (hole,) = log.holes
    assert (hole.start, hole.stop) == (10, 30)
    assert hole.before is not None
    assert (hole.before.end_offset, hole.after.start_offset) == (9, 30)
    assert log.unverifiable == ()


def test_hole_names_the_same_copy_of_the_next_segment_as_reads_use() -> None:
    retried = [make_segment(30, 39, name="b"), make_segment(30, 39, name="a")]
    log = partition_log([make_segment(0, 9), *retried], make_lineage(e0=0))
    (hole,) = log.holes
    assert hole.after is log.ranges[-1].segment
    assert hole.after.segment_id == "a"


def test_gap_after_segment_with_inexact_end_is_reported_as_unverifiable() -> None:
    first, last = make_segment(0, 9, end_is_exact=False), make_segment(50, 59, end_is_exact=False)
    log = partition_log([first, make_segment(30, 39), last], make_lineage(e0=0))
    assert [(gap.start, gap.stop) for gap in log.unverifiable] == [(10, 30)]
    assert [(hole.start, hole.stop) for hole in log.holes] == [(40, 50)]


def test_gap_after_segment_of_dead_branch_is_reported_as_hole() -> None:
    branched = make_segment(0, 99, {0: 0, 1: 40}, end_is_exact=False)
    log = partition_log([branched, make_segment(60, 99, {2: 60})], make_lineage(e0=0, e2=50))
    assert [(hole.start, hole.stop) for hole in log.holes] == [(40, 60)]
    assert log.unverifiable == ()


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=12),
    st.integers(0, 70),
)
@settings(max_examples=examples(300))
def test_partition_log_has_each_offset_once_in_a_range_or_hole(
    shapes: list[tuple[int, int]], log_start: int
) -> None:
    segments = [
        make_segment(start, start + length, name=f"{number}")
        for number, (start, length) in enumerate(shapes)
    ]
    log = partition_log(segments, make_lineage(e0=log_start))
    covered = {offset for start, length in shapes for offset in range(start, start + length + 1)}
    read = [offset for span in log.ranges for offset in range(span.start, span.stop)]
    missing = [offset for hole in log.holes for offset in range(hole.start, hole.stop)]
    assert read == sorted(offset for offset in covered if offset >= log_start)
    if read:
        assert sorted(read + missing) == list(range(max(log_start, min(covered)), max(read) + 1))
    for span in log.ranges:
        assert span.segment.start_offset <= span.start
        assert span.stop <= span.segment.stop_offset


@given(st.integers(0, 90), st.integers(0, 90), st.integers(0, 90))
def test_joined_lineage_contains_the_epochs_of_both_checkpoints(
    first: int, log_start: int, end: int
) -> None:
    def checkpoint_of(start: int, stop: int) -> tuple[EpochEntry, ...]:
        """Returns the checkpoint of a log of offsets [start, stop)."""
        before = [entry for entry in SEVEN if entry.start_offset <= start]
        after = [entry for entry in SEVEN if start < entry.start_offset < stop]
        return EpochEntry(before[-1].epoch, start), *after

    first, log_start = sorted((first, log_start))
    older = checkpoint_of(first, max(end, log_start))
    assert tuple(joined_lineage(older, checkpoint_of(log_start, 100))) == checkpoint_of(first, 100)
