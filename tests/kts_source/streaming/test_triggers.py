"""When there is a batch, where a run ends, and how often the tier is asked."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import (
    AccessDeniedError,
    DataLossError,
    InvalidOptionError,
    StoreUnavailableError,
)
from kts_source.options import check_for_stream, parse_any_options, parse_options
from kts_source.store.local_store import LocalStore
from kts_source.streaming.offsets import position_from_json
from tests.golden_data import TIER, assert_same_rows, expected_table, tier_options
from tests.kts_source.streaming.running import GrowingTier, Running

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path / "tier")


class Listings:
    """Counts what all local stores are asked, and fails it while an error is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.read = 0
        self.error: Exception | None = None
        self.read_error: Exception | None = None
        list_folders, get_range = LocalStore.list_folders, LocalStore.get_range

        def counted(store: LocalStore, prefix: str) -> list[str]:
            self.count += 1
            if self.error is not None:
                raise self.error
            return list_folders(store, prefix)

        def counted_range(store: LocalStore, *place: object, **version: object) -> object:
            self.read += 1
            if self.read_error is not None:
                raise self.read_error
            return get_range(store, *place, **version)  # type: ignore[arg-type]

        monkeypatch.setattr(LocalStore, "list_folders", counted)
        monkeypatch.setattr(LocalStore, "get_range", counted_range)


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> Listings:
    return Listings(monkeypatch)


def offsets_of(stream: Running) -> list[int]:
    """How many offsets each batch of one topic moved."""
    sums = []
    for at in range(len(stream.offset_log)):
        topics = stream.position(at)["topics"].values()
        sums.append(sum(sum(topic["p"].values()) for topic in topics))
    return [now - before for before, now in zip([0, *sums], sums, strict=False)]


def test_offsets_of_a_batch_are_cut_exactly() -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger="1000", isolationLevel="read_uncommitted")
    stream.all()
    assert offsets_of(stream) == [1000] * 7 + [(3963 + 3671) - 7000]


def listed_segments(topic: str) -> dict[str, list[tuple[int, int, int]]]:
    """Of each partition its segments in order: newest date, end, original bytes."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for path in sorted(TIER.rglob(f"{topic}-*/*/*.rsm-manifest")):
        manifest = json.loads(path.read_text())
        told = manifest["remoteLogSegmentMetadata"]
        size = manifest["chunkIndex"]["originalFileSize"]
        found[path.parent.name].append((told["maxTimestampMs"], told["endOffset"] + 1, size))
    return found


@pytest.mark.parametrize(("segments", "more"), [(0, 1), (1, 0), (3, -1), (3, 0), (21, -1), (21, 0)])
def test_bytes_of_a_batch_are_those_of_manifests(segments: int, more: int) -> None:
    left = listed_segments("txn")
    assert set(left) == {"0", "1"}
    # Dates ascend within each, so this is the order of batches, too.
    in_turn = sorted(one for part in left.values() for one in part)
    most = sum(size for _, _, size in in_turn[:segments]) + more
    at, batches = {}, []
    while any(left.values()):
        size = 0
        while any(left.values()):
            partition = min(left, key=lambda one: (left[one] or [(1 << 62, 0, 0)])[0][0])
            _, stop, added = left[partition][0]
            if size and size + added > most:
                break
            at[partition], size = stop, size + added
            del left[partition][0]
        batches.append(dict(at))
    options = {"maxBytesPerTrigger": str(most), "isolationLevel": "read_uncommitted"}
    stream = Running(TIER, "txn", **options)
    stream.all()
    found = [stream.position(at)["topics"]["txn"]["p"] for at in range(len(stream.offset_log))]
    assert [{n: at for n, at in one.items() if at} for one in found] == batches
    assert (len(batches) == 1) == ((segments, more) == (21, 0))


def test_without_a_limit_all_is_one_batch_and_limits_may_be_overruled() -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger="1000")
    assert stream.batch(limited=False)
    assert not stream.batch(limited=False)
    assert_same_rows(stream.rows(), expected_table("txn", "read_committed"))


@pytest.mark.parametrize("by_option", [True, False])
def test_an_end_that_is_fixed(tier: GrowingTier, by_option: bool) -> None:
    first, second = tier.folder("txn", 0), tier.folder("txn", 1)
    stems = tier.stems(first)
    tier.add(first, stems[:6])
    stream = Running(
        tier.path, "txn", maxSegmentsPerTrigger="2", stopAtEnd="true" if by_option else "false"
    )
    if not by_option:
        stream.stream.fix_end()
    assert stream.batch()
    tier.add(first, stems)
    tier.add(second, tier.stems(second))
    assert stream.all() == 2
    assert stream.rows()["offset"].to_numpy().max() < int(stems[6][:20])
    assert set(stream.last["topics"]["txn"]["p"]) == {"0"}
    stream.start(stopAtEnd="false")
    stream.all()
    assert_same_rows(stream.rows(), expected_table("txn", "read_committed"))


def test_a_batch_waits_for_enough_offsets(tier: GrowingTier) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:1])
    stream = Running(
        tier.path,
        "txn",
        minOffsetsPerTrigger="1000",
        maxTriggerDelay="90s",
        isolationLevel="read_uncommitted",
    )
    assert stream.batch(), "the first one of a run does not wait"
    tier.add(folder, stems[:3])
    assert not stream.batch()
    stream.clock.seconds += 89
    assert not stream.batch()
    stream.clock.seconds += 2
    assert stream.batch(), "it has waited long enough"
    tier.add(folder, stems[:4])
    assert not stream.batch()
    tier.add(folder, stems)
    assert stream.batch(), "enough is there"
    assert not stream.batch()


def test_what_waits_is_read_when_all_is_wanted(tier: GrowingTier) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:1])
    stream = Running(tier.path, "txn", minOffsetsPerTrigger="100000")
    assert stream.batch()
    tier.add(folder, stems)
    assert not stream.batch()
    assert stream.batch(limited=False)
    tier.add(tier.folder("txn", 1), tier.stems(tier.folder("txn", 1)))
    stream.start()
    stream.clock.seconds += 1
    stream.stream.fix_end()
    stream.all()
    assert_same_rows(stream.rows(), expected_table("txn", "read_committed"))


def test_a_run_with_a_fixed_end_waits_for_nothing() -> None:
    stream = Running(
        TIER,
        "txn",
        stopAtEnd="true",
        minOffsetsPerTrigger="1000",
        maxOffsetsPerTrigger="1500",
        isolationLevel="read_uncommitted",
    )
    stream.all()
    assert offsets_of(stream) == [1500] * 5 + [(3963 + 3671) - 7500]


def test_the_tier_is_listed_once_in_an_interval(tier: GrowingTier, listings: Listings) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:5])
    stream = Running(tier.path, "txn", minListingIntervalMs="10s")
    assert stream.batch()
    once, read = listings.count, listings.read
    for _ in range(500):
        stream.clock.seconds += 0.012
        assert not stream.batch()
    assert listings.count == once, "6 seconds of polling"
    stream.clock.seconds += 10
    assert not stream.batch()
    assert listings.count == 2 * once
    assert listings.read == read, "nothing new: no manifest is read again"
    tier.add(folder, stems)
    assert not stream.batch()
    stream.clock.seconds += 10
    assert stream.batch()


def test_a_second_answer_is_the_first_one() -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger="500", minOffsetsPerTrigger="10")
    stream.batch()
    position = position_from_json(stream.last)
    assert stream.stream.next(position) == stream.stream.next(position) != position


def test_a_clock_that_is_set_back_keeps_nothing_back(tier: GrowingTier) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:5])
    stream = Running(tier.path, "txn", minListingIntervalMs="10s", minOffsetsPerTrigger="1000000")
    assert stream.batch()
    tier.add(folder, stems)
    stream.clock.seconds -= 86_400
    assert stream.batch()


def test_another_batch_is_planned_than_the_one_that_was_chosen_last() -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger="500")
    assert stream.batch()
    assert stream.batch()
    again, last = (position_from_json(stream.position(at)) for at in (0, 1))
    assert stream.stream.next(last) is not last
    plan = stream.stream.plan(again, last)
    assert plan is not None
    assert sum(part.stop - part.start for part in plan.partitions) == 500
    assert {part.partition: part.stop for part in plan.partitions} == {
        number: last.topics["txn"].offsets[number]
        for number in last.topics["txn"].offsets
        if last.topics["txn"].offsets[number] != again.topics["txn"].offsets.get(number)
    }


# -- a store that is down


def test_a_stream_waits_for_its_store(
    tier: GrowingTier, listings: Listings, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:5])
    stream = Running(tier.path, "txn")
    assert stream.batch()
    tier.add(folder, stems)
    listings.error = StoreUnavailableError("no answer")
    assert not stream.batch()
    assert "waits for its store: no answer" in caplog.text
    listings.error = None
    assert stream.batch()


def test_a_stream_waits_for_manifests_that_do_not_come(
    tier: GrowingTier, listings: Listings
) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:5])
    stream = Running(tier.path, "txn", minListingIntervalMs="10s")
    assert stream.batch()
    stream.clock.seconds += 10
    tier.add(folder, stems)
    listings.read_error = StoreUnavailableError("no answer")
    assert not stream.batch()
    listings.read_error = None
    assert not stream.batch(), "not before the next listing"
    stream.clock.seconds += 10
    assert stream.batch()


def test_a_run_with_a_fixed_end_does_not_end_early(tier: GrowingTier, listings: Listings) -> None:
    folder = tier.folder("txn")
    tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "txn", maxSegmentsPerTrigger="1", stopAtEnd="true")
    assert stream.batch()
    listings.error = StoreUnavailableError("no answer")
    with pytest.raises(StoreUnavailableError):
        stream.batch()


@pytest.mark.parametrize("left", [0, 3])
def test_a_run_with_a_fixed_end_does_not_end_before_it(tier: GrowingTier, left: int) -> None:
    folder = tier.folder("codecs")
    stems = tier.stems(folder)
    tier.add(folder, stems)
    strict, lenient = (
        Running(
            tier.path,
            "codecs",
            maxSegmentsPerTrigger="1",
            stopAtEnd="true",
            failOnDataLoss=text,
        )
        for text in ("true", "false")
    )
    for stream in (strict, lenient):
        assert stream.batch()
    tier.remove(folder, stems[left:])
    at = int(stems[max(left, 1)][:20])
    with pytest.raises(DataLossError, match=rf"offsets \[{at}, 23962\) .* gone unread"):
        strict.all()
    lenient.all()
    assert lenient.rows().num_rows == strict.rows().num_rows == at


def test_a_store_that_never_answered_and_one_that_refuses(
    tier: GrowingTier, listings: Listings
) -> None:
    folder = tier.folder("txn")
    tier.add(folder, tier.stems(folder))
    listings.error = StoreUnavailableError("no answer")
    stream = Running(tier.path, "txn", maxSegmentsPerTrigger="1")
    with pytest.raises(StoreUnavailableError):
        stream.batch()
    listings.error = None
    assert stream.batch()
    listings.error = AccessDeniedError("403")
    with pytest.raises(AccessDeniedError):
        stream.batch()


# -- options


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' is not valid in a stream"),
        ({"endingTimestamp": "5"}, "'endingTimestamp' is not valid in a stream"),
        ({"planFile": "plan.json"}, "'planFile' is not valid in a stream"),
        ({"tailPath": "/disks"}, "'tailPath' is not valid in a stream"),
    ],
)
def test_options_that_a_stream_cannot_have(options: dict[str, str], says: str) -> None:
    parsed = parse_any_options(tier_options("txn", **options))
    with pytest.raises(InvalidOptionError, match=says):
        check_for_stream(parsed)


def test_options_of_streams_do_nothing_in_a_batch_and_are_checked() -> None:
    parse_options(tier_options("txn", maxOffsetsPerTrigger="5", maxTriggerDelay="15m"))
    for wrong in (
        {"maxTriggerDelay": "soon"},
        {"maxTriggerDelay": "5 weeks"},
        {"maxOffsetsPerTrigger": "0"},
        {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
    ):
        with pytest.raises(InvalidOptionError, match=min(wrong)):
            parse_options(tier_options("txn", **wrong))


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("7", 7),
        ("7ms", 7),
        ("90s", 90_000),
        ("15m", 900_000),
        ("15min", 900_000),
        ("2 h", 7_200_000),
    ],
)
def test_durations_as_spark_writes_them(text: str, milliseconds: int) -> None:
    parsed = parse_any_options(tier_options("txn", maxTriggerDelay=text))
    assert parsed.stream.max_delay_ms == milliseconds
