"""Checks which rows a `read_committed` read skips, and at which offset it ends.

The expected results are from a real broker: twelve complete logs, and the offsets that a consumer
received from each log.
"""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from kts_source.planning.isolation import UnknownStartError, decide
from kts_source.planning.lineage import PartitionLog, SegmentRange, partition_log
from kts_source.planning.side_files import Replay, SideFiles, first_ends, replay_batches
from segment_format.index.producer_snapshot import ProducerStateEntry, parse_producer_snapshot
from segment_format.index.transaction_index import AbortedTxn, parse_transaction_index
from segment_format.record.records import iter_batches
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.planning.segments import make_lineage, make_segment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.layout.remote_segment import RemoteSegment
    from segment_format.record.records import DecodedBatch

VECTORS = Path(__file__).parents[2] / "golden" / "vectors" / "kafka-txn-goldens.json"


@dataclass(frozen=True)
class GoldenLog:
    """Log of a real broker.

    Attributes:
        bases: Base offsets of the segments.
        stops: One past the last offset of each segment.
        files: Contents of the segment files by name.
        read_committed: Offsets that a `read_committed` consumer received.
    """

    bases: tuple[int, ...]
    stops: tuple[int, ...]
    files: Mapping[str, bytes]
    read_committed: tuple[int, ...]

    def batches(self, base: int) -> tuple[DecodedBatch, ...]:
        return tuple(iter_batches(self.files[f"{base:020d}.log"]))

    def tier(self, segments: int) -> PartitionLog:
        """Returns a partition log with the first `segments` segments of this log."""
        described = [
            make_segment(base, stop - 1)
            for base, stop in zip(self.bases[:segments], self.stops[:segments], strict=True)
        ]
        return partition_log(described, make_lineage(e0=0))


@cache
def load_golden_logs() -> tuple[GoldenLog, ...]:
    logs = []
    document: dict[str, Any] = json.loads(VECTORS.read_text())
    for entry in document["logs"]:
        files = {name: base64.b64decode(data) for name, data in entry["files"].items()}
        bases = sorted(int(name[:20]) for name in files if name.endswith(".log"))
        last = max(batch.last_offset for batch in iter_batches(files[f"{bases[-1]:020d}.log"]))
        ends = [*bases[1:], last + 1]
        logs.append(
            GoldenLog(tuple(bases), tuple(ends), files, tuple(entry["read_committed_offsets"]))
        )
    return tuple(logs)


@dataclass
class FromFiles:
    """Provides the side files of a golden log, that is, its snapshots and indexes.

    `lose_snapshots` and `lose_indexes` contain the base offsets of segments whose file is lost, or
    are true if the files of all segments are lost.
    """

    log: GoldenLog
    lose_snapshots: bool | frozenset[int] = False
    lose_indexes: bool | frozenset[int] = False
    replayed: Counter[int] = field(default_factory=Counter)

    def snapshot(self, segment: RemoteSegment) -> tuple[ProducerStateEntry, ...] | None:
        data = self.log.files.get(f"{segment.stop_offset:020d}.snapshot")
        if _is_lost(self.lose_snapshots, segment) or data is None:
            return None
        return parse_producer_snapshot(data)

    def aborted(self, segment: RemoteSegment) -> tuple[AbortedTxn, ...] | None:
        if _is_lost(self.lose_indexes, segment):
            return None
        return parse_transaction_index(
            self.log.files.get(f"{segment.start_offset:020d}.txnindex", b"")
        )

    def first_ends(
        self, span: SegmentRange, open_before: Mapping[int, int]
    ) -> tuple[AbortedTxn, ...]:
        return first_ends(self.log.batches(span.segment.start_offset), span, open_before)

    def replay(self, span: SegmentRange, open_before: Mapping[int, int]) -> Replay:
        self.replayed[span.start] += 1
        return replay_batches(self.log.batches(span.segment.start_offset), span, open_before)


def as_side_files(files: FromFiles) -> SideFiles:
    return cast("SideFiles", files)


def _is_lost(lost: bool | frozenset[int], segment: RemoteSegment) -> bool:
    return segment.start_offset in lost if isinstance(lost, frozenset) else lost


def read(log: GoldenLog, tier: PartitionLog, state: FromFiles, start: int, stop: int) -> list[int]:
    """Returns the offsets of the records that a `read_committed` reader of `tier` gets from [start,
    stop). The reader uses the side files in `state`.
    """
    decisions = decide(tier, start, stop, as_side_files(state))
    return [
        record.offset
        for span in tier.ranges
        for batch in log.batches(span.segment.start_offset)
        if not batch.is_control_batch
        and not (
            batch.is_transactional
            and decisions.aborted.is_aborted(batch.producer_id, batch.base_offset)
        )
        for record in batch.records
        if start <= record.offset < decisions.stop
    ]


def find_undecided_start(log: GoldenLog, stop: int) -> int:
    """Returns the first offset of the oldest transaction without a marker below `stop`, or `stop`
    if all transactions have a marker.
    """
    open_transactions: dict[int, int] = {}
    for base in log.bases:
        for batch in log.batches(base):
            if batch.base_offset >= stop:
                continue
            if batch.is_control_batch:
                open_transactions.pop(batch.producer_id, None)
            elif batch.is_transactional:
                open_transactions.setdefault(batch.producer_id, batch.base_offset)
    return min([stop, *open_transactions.values()])


@pytest.mark.parametrize("number", range(12))
@pytest.mark.parametrize("lost", ["nothing", "snapshots", "indexes", "both"])
def test_read_of_tier_with_lost_side_files_returns_committed_offsets(
    number: int, lost: str
) -> None:
    log = load_golden_logs()[number]
    state = FromFiles(log, lost in ("snapshots", "both"), lost in ("indexes", "both"))
    # Reads with lost files are slow, so the test tries only two numbers of segments.
    prefixes = range(1, len(log.bases) + 1) if lost == "nothing" else [2, len(log.bases)]
    for segments in prefixes:
        tier = log.tier(segments)
        end = find_undecided_start(log, tier.stop)
        expected = [offset for offset in log.read_committed if offset < end]
        assert read(log, tier, state, tier.log_start, tier.stop) == expected


@pytest.mark.parametrize("number", range(12))
def test_read_of_adjacent_segments_returns_committed_offsets(number: int) -> None:
    log = load_golden_logs()[number]
    tier = log.tier(len(log.bases))
    borders = [*log.bases, tier.stop]
    for first, start in enumerate(borders[:-1]):
        for stop in borders[first + 1 :: 3]:
            expected = [offset for offset in log.read_committed if start <= offset < stop]
            assert read(log, tier, FromFiles(log), start, stop) == expected


@pytest.mark.parametrize("number", range(12))
def test_transaction_outcomes_do_not_depend_on_lost_side_files(number: int) -> None:
    log = load_golden_logs()[number]
    source = random.Random(number)
    tier = log.tier(len(log.bases))
    borders = [*log.bases, tier.stop]
    for share in (0.2, 0.5, 0.9):
        start, stop = sorted(source.sample(borders, 2))
        state = FromFiles(
            log,
            frozenset(base for base in log.bases if source.random() < share),
            frozenset(base for base in log.bases if source.random() < share),
        )
        decisions = decide(tier, start, stop, as_side_files(state))
        expected = decide(tier, start, stop, as_side_files(FromFiles(log)))
        assert decisions == expected
        assert not state.replayed or max(state.replayed.values()) == 1


def build_log_open_since_0(count: int) -> tuple[PartitionLog, FromFiles]:
    """Builds a log of `count` segments with one offset each, and the side files of the log.

    A transaction begins at offset 0 and never ends.
    """
    builder = LogBuilder()
    builder.send(7, [SimpleRecord(b"open")])
    for _ in range(count - 1):
        builder.roll()
        builder.append([SimpleRecord(b"plain")])
    files: dict[str, bytes] = {}
    for segment_files in builder.build().segments:
        files[f"{segment_files.base_offset:020d}.log"] = segment_files.log
        files[f"{segment_files.next_offset:020d}.snapshot"] = segment_files.snapshot
    log = GoldenLog(tuple(range(count)), tuple(range(1, count + 1)), files, ())
    return log.tier(count), FromFiles(log)


def test_segments_without_snapshots_are_decoded_only_once() -> None:
    tier, state = build_log_open_since_0(3000)
    state.lose_snapshots = True
    decisions = decide(tier, 2000, 2001, as_side_files(state))
    assert decisions.stop == 2000
    assert [txn.first_offset for txn in decisions.undecided] == [0]
    assert max(state.replayed.values()) == 1


@pytest.mark.parametrize("first", [1, 4, 8])
def test_partial_log_without_snapshots_raises_unknown_start_error(first: int) -> None:
    tier, state = build_log_open_since_0(10)
    window = replace(tier, ranges=tier.ranges[first:])
    state.lose_snapshots = frozenset(range(first, 10))
    with pytest.raises(UnknownStartError):
        decide(window, 8, 9, as_side_files(state))
    # With a valid snapshot, the segments below the snapshot are not needed.
    state.lose_snapshots = frozenset(range(first + 1, 10))
    decisions = decide(window, 8, 9, as_side_files(state))
    assert decisions.stop == 8


@pytest.mark.parametrize("is_exact", [True, False])
def test_open_transactions_after_gap_without_snapshots_are_unknown(is_exact: bool) -> None:
    tier, state = build_log_open_since_0(10)
    tier = partition_log(
        [
            make_segment(base, base, end_is_exact=is_exact)
            for base in range(10)
            if base not in (3, 4)
        ],
        make_lineage(e0=0),
    )
    assert len(tier.missing) == 1
    state.lose_snapshots = frozenset(range(5, 10))
    decisions = decide(tier, 7, 9, as_side_files(state))
    assert decisions.unknown_after is not None
    assert (decisions.unknown_after.start, decisions.unknown_after.stop) == (3, 5)
    state.lose_snapshots = frozenset(range(6, 10))
    decisions = decide(tier, 7, 9, as_side_files(state))
    assert (decisions.unknown_after, decisions.stop) == (None, 7)


def test_transaction_whose_marker_is_in_a_hole_is_not_treated_as_committed() -> None:
    # Some transactions cross the missing segment. Their records before the hole must not be
    # returned, even if they were committed.
    crossing_count = 0
    for log in load_golden_logs():
        for missing in range(1, len(log.bases) - 1):
            described = [
                make_segment(base, stop - 1)
                for n, (base, stop) in enumerate(zip(log.bases, log.stops, strict=True))
                if n != missing
            ]
            tier = partition_log(described, make_lineage(e0=0))
            offsets = read(log, tier, FromFiles(log), 0, tier.stop)
            assert set(offsets) <= set(log.read_committed)
            decisions = decide(tier, 0, tier.stop, as_side_files(FromFiles(log)))
            crossing_count += bool(decisions.lost)
    assert crossing_count > 0
