"""Runs random scans for a short time while the topics change.

`python -m tools.soak --only hybrid` runs them longer.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.hybrid_soak import Soak
from tests.integration.moving_topics import MovingTopics
from tests.needs import needs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCANS = int(os.environ.get("KTS_HYBRID_SCANS", "100000"))
SECONDS = float(os.environ.get("KTS_HYBRID_SECONDS", "25"))


@pytest.mark.timeout(SECONDS + 240)
def test_random_scans_of_changing_topics_return_rows_of_consumer(tmp_path: Path) -> None:
    needs("java", "mvn")
    seed = int(os.environ.get("KTS_HYBRID_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"KTS_HYBRID_SEED={seed}")  # noqa: T201  # shown if the test fails
    spec = ClusterSpec(settings=BUSY)
    with Cluster(tmp_path / "cluster", spec) as cluster, MovingTopics(cluster, seed) as topics:
        soak = Soak(topics, tmp_path, seed)
        deadline = time.monotonic() + SECONDS
        for number in range(SCANS):
            soak.scan(number)
            if time.monotonic() > deadline or len(soak.result.failures) > 4:
                break
    result = soak.result
    print(f"{result.scans} scans, {result.rows} rows, {topics.trimmed} trims")  # noqa: T201
    for word, count in result.outcomes.most_common():
        print(f"{count:9,} {word}")  # noqa: T201
    assert not result.failures, "\n".join(result.failures)
    assert result.rows > 0
    assert result.outcomes["equal"] > result.scans // 4
    assert result.outcomes["slices of the tier"] > 0
    assert result.outcomes["ranges of brokers"] > 0
    assert topics.trimmed > 0
