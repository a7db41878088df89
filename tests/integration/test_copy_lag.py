"""Tests topics whose closed segments stay on the brokers for a while, with `remote.copy.lag.ms`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.auditing.report import Severity
from tests.integration.cluster import Cluster, ClusterSpec
from tests.integration.filler import Filler
from tests.integration.hybrid import (
    assert_as_consumed,
    consume_rows,
    hybrid_options,
    make_plan,
    read_rows,
)
from tests.integration.kafka_jars import NEWEST_KAFKA
from tests.needs import needs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

COPY_LAG = {"remote_copy_lag_ms": "86400000", "remote_copy_lag_bytes": "-1"}
"""Uploads a day later. -1 is the default: the limit of newer bytes is the local retention, which is
unlimited.
"""


def test_closed_segments_kept_by_copy_lag_are_read_and_are_no_finding(tmp_path: Path) -> None:
    needs("java", "mvn")
    with Cluster(tmp_path / "cluster", ClusterSpec(version=NEWEST_KAFKA)) as cluster:
        admin = cluster.admin
        filler = Filler(cluster.bootstrap, random.SystemRandom().getrandbits(31))

        def write(topic: str) -> int:
            """Closes three segments. Returns the first offset of the active segment."""
            before = len(admin.local_bases(1, topic))
            while len(bases := admin.local_bases(1, topic)) < before + 3:
                filler.send(filler.plain("none"), topic, 0, 40)
            admin.wait_stable(topic)
            return bases[-1]

        for topic in ("held", "other"):
            admin.create_topic(
                topic, local_retention_bytes="-2", message_timestamp_type="LogAppendTime"
            )
        tier_end = write("held")
        admin.wait_tiered("held", 0, tier_end)
        admin.alter_topic("held", **COPY_LAG)
        active = write("held")
        assert active > tier_end
        # The broker copies the segments of both topics at the same intervals.
        admin.wait_tiered("other", 0, write("other"))

        options = hybrid_options(cluster.bootstrap, cluster.tier, subscribe="held")
        for level in ("listing", "metadata", "bytes"):
            report = kts_source.audit(options, level=level, grace_ms=0)
            assert [f.name for f in report.findings if f.severity is not Severity.INFO] == []
            assert report.exit_code == 0
        (partition,) = kts_source.describe(options).partitions
        assert partition.tier_end == tier_end
        assert partition.broker_offsets == admin.offsets("held").latest - tier_end
        plan = make_plan(options)
        assert_as_consumed(
            read_rows(plan, options), consume_rows(cluster.bootstrap, plan, "read_uncommitted")
        )
        del options["kafka.bootstrap.servers"]
        (planned,) = make_plan(options).partitions
        assert planned.stop == tier_end
