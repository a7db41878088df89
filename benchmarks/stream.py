"""Measures streams: the time of a poll if there is no or little new data, and the speed of reading
old data (catching up).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from unittest import mock

from benchmarks.bench import NEWEST_SPARK, SPARK_4_0, Bench, Contestant
from benchmarks.report import Row, at_least, at_most
from benchmarks.session import Query
from benchmarks.simulated import TOPIC, SimulatedTier
from benchmarks.tiers import TierShape, make_tier
from kts_source.options import check_for_stream, parse_options
from kts_source.streaming import tier_look
from kts_source.streaming.offsets import INITIAL, position_from_json, position_to_json
from kts_source.streaming.tier_stream import TierStream
from kts_source.tier import Tier

if TYPE_CHECKING:
    from kts_source.streaming.offsets import StreamPosition

_LATENCY: Final = 0.02
_PAGE_KEYS: Final = 1000
_OBJECTS: Final = 3


def run(bench: Bench) -> list[Row]:
    """Returns the rows of all cases. A quick run has a tenth of the partitions; the goals stay the
    same.
    """
    share = 10 if bench.quick else 1
    return [
        *_measure_new_segment(10, 1000 // share, 7),
        *_measure_idle_poll(1000 // share, 10, 3),
        *_catching_up(bench, (14 << 30) // share),
        *_against_kafka(bench),
    ]


def _catching_up(bench: Bench, log_bytes: int) -> list[Row]:
    """Compares a stream that reads all records in two batches with one scan."""
    tier = make_tier(TierShape(100, log_bytes, partitions=6, segment_bytes=log_bytes // 48))
    half = {"maxOffsetsPerTrigger": str(tier.records * 11 // 20)}
    timings = bench.in_turns(
        {
            "scan": Contestant(NEWEST_SPARK, Query("tiered-kafka", tier.options)),
            "stream": Contestant(
                NEWEST_SPARK, Query("tiered-kafka", {**tier.options, **half}, sink="stream")
            ),
        },
        repeats=3,
    )
    ours = timings["stream"]
    label = f"catching up {tier.records / 1e6:.0f} million records of 100 B"
    return [
        Row(label, tier.records / ours.seconds / 1e6, "M records/s"),
        at_least(
            f"{label}, against one batch scan", ours.times_faster_than(timings["scan"]), "×", 0.9
        ).noted(f"two batches of {ours.seconds / 2:.0f} s"),
    ]


def _against_kafka(bench: Bench) -> list[Row]:
    """Compares a stream of this library with a stream of Spark's Kafka source. Both read data that
    a real broker has tiered.
    """
    broker = bench.broker()
    topic = broker.topics["small"]
    half = {"maxOffsetsPerTrigger": str(topic.records * 11 // 20)}
    theirs = broker.through_broker(topic.name, sink="stream", options=half)
    unbounded = {name: text for name, text in theirs.options.items() if name != "endingOffsets"}
    timings = bench.in_turns(
        {
            "stream": Contestant(
                SPARK_4_0, broker.from_tier(topic.name, sink="stream", options=half)
            ),
            "kafka": Contestant(
                SPARK_4_0, replace(theirs, options=unbounded), other_pid=broker.broker.pid
            ),
        }
    )
    ours = timings["stream"]
    label = f"catching up {topic.records / 1e6:.1f} million records of {topic.value_bytes} B"
    return [
        at_least(
            f"{label}, against a stream of Spark's Kafka source, data in the tier",
            ours.times_faster_than(timings["kafka"]),
            "×",
            2.5,
        ).noted(f"two batches of {ours.seconds / 2:.1f} s; a batch costs both about the same more"),
    ]


@dataclass(slots=True)
class _Polled:
    """A stream over a simulated tier, called as Spark calls it.

    Attributes:
        position: The current offsets.
    """

    tier: SimulatedTier
    stream: TierStream
    position: StreamPosition = INITIAL

    def poll(self) -> float:
        """Returns the seconds of a poll, including the plan of its batch if there is one."""
        started = time.perf_counter()
        end = self.stream.next(self.position, limited=False)
        if end is not self.position:
            end = position_from_json(position_to_json(end))
            self.stream.plan(self.position, end)
            self.position = end
        self.stream.lag()
        return time.perf_counter() - started


def _polled(tier: SimulatedTier) -> _Polled:
    options = parse_options(
        {"path": "s3://simulated", "subscribe": TOPIC, "minListingIntervalMs": "0"}
    )
    check_for_stream(options)
    with mock.patch.object(tier_look, "open_tier", return_value=Tier(tier)):
        polled = _Polled(tier, TierStream(options))
    polled.poll()
    return polled


def _measure_new_segment(partitions: int, segments: int, repeats: int) -> list[Row]:
    """Measures a batch with one new segment. The simulated requests take no time, because only the
    library's own work is measured.
    """
    tier = SimulatedTier(partitions, segments + repeats, latency_seconds=0)
    tier.listed_segments = [segments] * partitions
    tier.prepare()
    polled = _polled(tier)
    seconds, lists, others = [], [], []
    for _ in range(repeats):
        tier.listed_segments[0] += 1
        before = tier.counters
        seconds.append(polled.poll())
        lists.append(tier.counters.list_requests - before.list_requests)
        others.append(tier.counters.requests - before.requests)
    # The folders of topics and of partitions are listed as well.
    listings = (max(lists) - 2) / partitions
    label = f"a batch in a tier of {partitions * segments:,} segments, one new"
    return [
        at_most(
            f"{label}: driver work without the store's time",
            statistics.median(seconds) * 1e3,
            "ms",
            60,
        ).noted(f"{statistics.median(others):g} reads of manifests and side files"),
        at_most(f"{label}: listings for each of {partitions} partitions", listings, "", 2),
    ]


def _measure_idle_poll(partitions: int, segments: int, repeats: int) -> list[Row]:
    """Measures a poll without new data."""
    tier = SimulatedTier(partitions, segments, latency_seconds=_LATENCY)
    tier.prepare()
    polled = _polled(tier)
    before = tier.counters
    seconds = [polled.poll() for _ in range(repeats)]
    used = tier.counters.list_requests - before.list_requests
    assert tier.counters.requests == before.requests, "a manifest was read"
    pages = -(-partitions * segments * _OBJECTS // _PAGE_KEYS)
    label = (
        f"a poll of {partitions:,} partitions of {segments} segments, nothing new, store of 20 ms"
    )
    return [
        at_most(label, statistics.median(seconds), "s", 2),
        at_most(
            f"{label}: requests, of the pages of one flat listing",
            used / repeats / pages,
            "×",
            1.1,
        ).noted(f"{used / repeats:g} listings, no manifest"),
    ]
