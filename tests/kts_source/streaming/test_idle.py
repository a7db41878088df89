"""A stream that waits costs one listing per interval, and nothing that grows."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from benchmarks.simulated import TOPIC, SimulatedTier
from kts_source.options import parse_options
from kts_source.streaming import tier_look
from kts_source.streaming.offsets import INITIAL
from kts_source.streaming.tier_stream import TierStream
from kts_source.tier import Tier
from tests.golden_data import TIER
from tests.kts_source.streaming.running import Clock, Running

if TYPE_CHECKING:
    from collections.abc import Callable

POLLS = 10_000
WARM = 300


def grown(poll: Callable[[], None], polls: int) -> int:
    """By how many blocks of memory Python holds more after so many polls."""
    for _ in range(WARM):
        poll()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(polls):
        poll()
    gc.collect()
    return sys.getallocatedblocks() - before


def _stream(tier: SimulatedTier, clock: Clock) -> TierStream:
    options = parse_options({"path": "s3://nowhere", "subscribe": TOPIC})
    with mock.patch.object(tier_look, "open_tier", return_value=Tier(tier)):
        return TierStream(options, clock)


@pytest.mark.slow
def test_ten_thousand_polls_of_a_folder_grow_nothing() -> None:
    stream = Running(TIER, "txn")
    stream.all()
    assert grown(lambda: assert_nothing(stream), POLLS) < POLLS // 10
    stream.close()


def assert_nothing(stream: Running) -> None:
    assert not stream.choose()
    assert stream.stream.lag() is not None


@pytest.mark.slow
def test_ten_thousand_polls_of_a_store_that_lists_in_pages_grow_nothing() -> None:
    tier, clock = SimulatedTier(2, 500, latency_seconds=0), Clock()
    tier.prepare()
    stream = _stream(tier, clock)
    end = stream.next(INITIAL)
    asked = tier.counters.requests
    listings = WARM + POLLS
    before = tier.counters.list_requests

    def poll() -> None:
        clock.seconds += 11
        for _ in range(2):  # the second is answered from memory
            assert stream.next(end) is end
            assert stream.lag() is not None

    assert grown(poll, POLLS) < POLLS // 10
    # The topic, its partitions, and of each its first page and what is behind the last known
    # segment; or, now and then, all of it, which is two pages.
    assert tier.counters.list_requests - before == listings * (2 + 2 * 2)
    assert tier.counters.requests == asked, "no manifest is read again"
    stream.close()


def test_one_listing_per_interval() -> None:
    tier, clock = SimulatedTier(3, 4, latency_seconds=0), Clock()
    stream = _stream(tier, clock)
    end = stream.next(INITIAL)
    clock.seconds += 11
    before = tier.counters.list_requests
    for _ in range(830):  # ten seconds of polls without a trigger
        assert stream.next(end) is end
        stream.lag()
    assert tier.counters.list_requests - before == 2 + 3
    clock.seconds += 11
    assert stream.next(end) is end
    assert tier.counters.list_requests - before == 2 * (2 + 3)
    stream.close()
