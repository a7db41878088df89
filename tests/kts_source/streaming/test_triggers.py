"""Tests the triggers of batches, the end of a run, and the number of store requests."""

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
    TierNotFoundError,
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
    """Counts the requests of all local stores. Requests fail while an error is set."""

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

        def counted_range(store: LocalStore, *arguments: object, **version: object) -> object:
            self.read += 1
            if self.read_error is not None:
                raise self.read_error
            return get_range(store, *arguments, **version)  # type: ignore[arg-type]

        monkeypatch.setattr(LocalStore, "list_folders", counted)
        monkeypatch.setattr(LocalStore, "get_range", counted_range)


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> Listings:
    return Listings(monkeypatch)


def offsets_of(stream: Running) -> list[int]:
    """Returns for each batch the number of offsets by which the stream advances."""
    sums = []
    for number in range(len(stream.offset_log)):
        topics = stream.position(number)["topics"].values()
        sums.append(sum(sum(topic["p"].values()) for topic in topics))
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def test_each_batch_has_exactly_max_offsets_per_trigger() -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger="1000", isolationLevel="read_uncommitted")
    stream.all()
    assert offsets_of(stream) == [1000] * 7 + [(3963 + 3671) - 7000]


def listed_segments(topic: str) -> dict[str, list[tuple[int, int, int]]]:
    """Maps each partition to (maximum timestamp, end offset, original bytes) of its segments, in
    order.
    """
    segments: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for path in sorted(TIER.rglob(f"{topic}-*/*/*.rsm-manifest")):
        manifest = json.loads(path.read_text())
        metadata = manifest["remoteLogSegmentMetadata"]
        size = manifest["chunkIndex"]["originalFileSize"]
        segments[path.parent.name].append(
            (metadata["maxTimestampMs"], metadata["endOffset"] + 1, size)
        )
    return segments


@pytest.mark.parametrize(
    ("segments", "extra"), [(0, 1), (1, 0), (3, -1), (3, 0), (21, -1), (21, 0)]
)
def test_max_bytes_per_trigger_counts_bytes_of_manifests(segments: int, extra: int) -> None:
    remaining = listed_segments("txn")
    assert set(remaining) == {"0", "1"}
    # Timestamps ascend within each partition, so this is also the order of batches.
    by_time = sorted(segment for partition in remaining.values() for segment in partition)
    max_bytes = sum(size for _, _, size in by_time[:segments]) + extra
    position, batches = {}, []
    while any(remaining.values()):
        size = 0
        while any(remaining.values()):
            partition = min(
                remaining, key=lambda number: (remaining[number] or [(1 << 62, 0, 0)])[0][0]
            )
            _, stop, added = remaining[partition][0]
            if size and size + added > max_bytes:
                break
            position[partition], size = stop, size + added
            del remaining[partition][0]
        batches.append(dict(position))
    options = {"maxBytesPerTrigger": str(max_bytes), "isolationLevel": "read_uncommitted"}
    stream = Running(TIER, "txn", **options)
    stream.all()
    logged = [
        stream.position(batch)["topics"]["txn"]["p"] for batch in range(len(stream.offset_log))
    ]
    assert [
        {number: offset for number, offset in offsets.items() if offset} for offsets in logged
    ] == batches
    assert (len(batches) == 1) == ((segments, extra) == (21, 0))


def test_batch_with_limited_false_ignores_max_offsets_per_trigger() -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger="1000")
    assert stream.batch(limited=False)
    assert not stream.batch(limited=False)
    assert_same_rows(stream.rows(), expected_table("txn", "read_committed"))


@pytest.mark.parametrize("by_option", [True, False])
def test_stream_stops_at_its_fixed_end(tier: GrowingTier, by_option: bool) -> None:
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


@pytest.mark.parametrize("by_option", [True, False])
def test_restart_with_fixed_end_fails_if_the_folder_of_the_tier_is_missing(
    tier: GrowingTier, by_option: bool
) -> None:
    folder = tier.folder("txn")
    tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "txn")
    stream.all()
    moved = tier.path.rename(tier.path.with_name("moved"))
    stream.start(stopAtEnd="true" if by_option else "false")
    if not by_option:
        stream.stream.fix_end()
    with pytest.raises(TierNotFoundError, match="would look complete"):
        stream.batch()
    # Do what the error advises.
    moved.rename(tier.path)
    stream.start(stopAtEnd="true")
    assert stream.all() == 0
    stream.close()


def test_min_offsets_per_trigger_waits_for_offsets_or_delay(tier: GrowingTier) -> None:
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
    assert stream.batch(), "the first batch of a run does not wait"
    tier.add(folder, stems[:3])
    assert not stream.batch()
    stream.clock.seconds += 89
    assert not stream.batch()
    stream.clock.seconds += 2
    assert stream.batch(), "maxTriggerDelay has passed"
    tier.add(folder, stems[:4])
    assert not stream.batch()
    tier.add(folder, stems)
    assert stream.batch(), "the minimum is reached"
    assert not stream.batch()


def test_unlimited_batch_does_not_wait_for_min_offsets_per_trigger(tier: GrowingTier) -> None:
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


def test_batch_at_fixed_end_ignores_min_offsets_per_trigger() -> None:
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


def test_tier_is_listed_only_once_per_interval(tier: GrowingTier, listings: Listings) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:5])
    stream = Running(tier.path, "txn", minListingIntervalMs="10s")
    assert stream.batch()
    requests_per_listing, read = listings.count, listings.read
    for _ in range(500):
        stream.clock.seconds += 0.012
        assert not stream.batch()
    assert listings.count == requests_per_listing, "6 seconds of polling"
    stream.clock.seconds += 10
    assert not stream.batch()
    assert listings.count == 2 * requests_per_listing
    assert listings.read == read, "without new segments, no manifest is read again"
    tier.add(folder, stems)
    assert not stream.batch()
    stream.clock.seconds += 10
    assert stream.batch()


def test_repeated_request_for_next_offset_returns_equal_offsets() -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger="500", minOffsetsPerTrigger="10")
    stream.batch()
    position = position_from_json(stream.last)
    assert stream.stream.next(position) == stream.stream.next(position) != position


def test_batch_is_not_delayed_when_the_clock_is_set_back(tier: GrowingTier) -> None:
    folder = tier.folder("txn")
    stems = tier.stems(folder)
    tier.add(folder, stems[:5])
    stream = Running(tier.path, "txn", minListingIntervalMs="10s", minOffsetsPerTrigger="1000000")
    assert stream.batch()
    tier.add(folder, stems)
    stream.clock.seconds -= 86_400
    assert stream.batch()


def test_earlier_batch_can_be_planned_after_the_next_offset_was_chosen() -> None:
    stream = Running(TIER, "txn", maxOffsetsPerTrigger="500")
    assert stream.batch()
    assert stream.batch()
    first, last = (position_from_json(stream.position(number)) for number in (0, 1))
    assert stream.stream.next(last) is not last
    plan = stream.stream.plan(first, last)
    assert plan is not None
    assert sum(bounds.stop - bounds.start for bounds in plan.partitions) == 500
    assert {bounds.partition: bounds.stop for bounds in plan.partitions} == {
        number: last.topics["txn"].offsets[number]
        for number in last.topics["txn"].offsets
        if last.topics["txn"].offsets[number] != first.topics["txn"].offsets.get(number)
    }


# -- an unavailable store


def test_stream_waits_while_listing_is_unavailable(
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
    assert "waits for the store: no answer" in caplog.text
    listings.error = None
    assert stream.batch()


def test_stream_waits_while_manifests_are_unavailable(
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
    assert not stream.batch(), "the next listing is not due"
    stream.clock.seconds += 10
    assert stream.batch()


def test_stream_does_not_stop_at_fixed_end_while_store_is_unavailable(
    tier: GrowingTier, listings: Listings
) -> None:
    folder = tier.folder("txn")
    tier.add(folder, tier.stems(folder))
    stream = Running(tier.path, "txn", maxSegmentsPerTrigger="1", stopAtEnd="true")
    assert stream.batch()
    listings.error = StoreUnavailableError("no answer")
    with pytest.raises(StoreUnavailableError):
        stream.batch()


@pytest.mark.parametrize("remaining", [0, 3])
def test_fixed_end_in_deleted_segments_raises_data_loss_error(
    tier: GrowingTier, remaining: int
) -> None:
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
    tier.remove(folder, stems[remaining:])
    read = int(stems[max(remaining, 1)][:20])
    with pytest.raises(DataLossError, match=rf"offsets \[{read}, 23962\) were lost before"):
        strict.all()
    lenient.all()
    assert lenient.rows().num_rows == strict.rows().num_rows == read


def test_store_error_at_start_or_access_denied_fails_the_stream(
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
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' is not valid in a stream"),
        ({"endingTimestamp": "5"}, "'endingTimestamp' is not valid in a stream"),
        ({"planFile": "plan.json"}, "'planFile' is not valid in a stream"),
        ({"tailPath": "/disks"}, "'tailPath' is not valid in a stream"),
    ],
)
def test_check_for_stream_refuses_options_that_only_scans_support(
    options: dict[str, str], message: str
) -> None:
    parsed = parse_any_options(tier_options("txn", **options))
    with pytest.raises(InvalidOptionError, match=message):
        check_for_stream(parsed)


def test_invalid_stream_options_are_refused_for_scans() -> None:
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
def test_durations_in_spark_syntax_are_parsed(text: str, milliseconds: int) -> None:
    parsed = parse_any_options(tier_options("txn", maxTriggerDelay=text))
    assert parsed.stream.max_delay_ms == milliseconds
