"""Tests that an idle stream lists the tier once per interval and does not use more memory over
time.
"""

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

POLLS = 3_000
WARM = 300


def count_new_blocks(poll: Callable[[], None], polls: int) -> int:
    """Returns the increase in the number of Python's allocated memory blocks during the polls."""
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
def test_thousands_of_polls_of_a_folder_keep_memory_constant() -> None:
    stream = Running(TIER, "txn")
    stream.all()
    assert count_new_blocks(lambda: assert_no_batch(stream), POLLS) < POLLS // 10
    stream.close()


def assert_no_batch(stream: Running) -> None:
    assert not stream.choose()
    assert stream.stream.lag() is not None


@pytest.mark.slow
def test_thousands_of_polls_of_a_paged_store_keep_memory_constant() -> None:
    tier, clock = SimulatedTier(2, 500, latency_seconds=0), Clock()
    tier.prepare()
    stream = _stream(tier, clock)
    end = stream.next(INITIAL)
    requests = tier.counters.requests
    listings = WARM + POLLS
    before = tier.counters.list_requests

    def poll() -> None:
        clock.seconds += 11
        for _ in range(2):  # the second poll uses the remembered listing
            assert stream.next(end) is end
            assert stream.lag() is not None

    assert count_new_blocks(poll, POLLS) < POLLS // 10
    # Two requests list the topic and its partitions. Each partition takes two more: its first page
    # and the keys after the last known segment, or sometimes both pages of a full listing.
    assert tier.counters.list_requests - before == listings * (2 + 2 * 2)
    assert tier.counters.requests == requests, "no manifest is read again"
    stream.close()


def test_polls_within_interval_use_one_listing() -> None:
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
