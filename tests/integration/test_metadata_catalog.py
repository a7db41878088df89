"""Tests scans that find segments in the topic `__remote_log_metadata` of a cluster."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from kts_source.errors import AccessDeniedError, BrokerAccessError
from kts_source.planning.describe import describe
from kts_source.store.local_store import LocalStore
from segment_format.kafka_uuid import uuid_to_text
from segment_format.metadata.model import RemoteLogSegmentState
from segment_format.metadata.remote_log_segment_metadata import parse_metadata_record
from tests.integration.certificates import make_certificates
from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.hybrid import (
    assert_as_consumed,
    consume_rows,
    hybrid_options,
    make_plan,
    read_rows,
)
from tests.integration.moving_topics import MovingTopics
from tests.integration.tier_mischief import list_tiered_segments
from tests.needs import needs
from tests.segment_format.metadata.readable_segments import known_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.planning.scan_plan import ScanPlan
    from tests.integration.certificates import Certificates

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

METADATA = "__remote_log_metadata"
PARTITIONS = 5
EVERY = "keep,short,local"
MOVING_SECONDS = 8


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Cluster]:
    """Runs a cluster of one node whose metadata topic has several partitions."""
    needs("java", "mvn")
    spec = ClusterSpec(
        certificates=certificates,
        passwords={"alice": "alice's"},
        has_acls=True,
        settings={
            "rlmm.config.remote.log.metadata.topic.num.partitions": str(PARTITIONS),
            **BUSY,
        },
    )
    with Cluster(tmp_path_factory.mktemp("catalog") / "cluster", spec) as cluster:
        yield cluster


@pytest.fixture
def no_listing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Makes listing the tier raise `AccessDeniedError`; returns `monkeypatch`."""

    def refuse(*_: object, **__: object) -> None:
        raise AccessDeniedError("the test denies listing")

    for name in ("list_objects", "list_folders"):
        monkeypatch.setattr(LocalStore, name, refuse)
    return monkeypatch


def test_plans_without_listing_match_metadata_records_of_changing_topics(
    cluster: Cluster, no_listing: pytest.MonkeyPatch
) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown if the test fails
    options = _options(cluster, isolationLevel="read_uncommitted")
    plans: list[ScanPlan] = []
    with MovingTopics(cluster, seed):  # the soak compares rows during changes
        ended = time.monotonic() + MOVING_SECONDS
        while time.monotonic() < ended:
            plans.append(make_plan(options))
    # Each plan must match the metadata records before the offset at which it stopped reading.
    records = _read_all_records(cluster)
    for plan in plans:
        assert all(partition.catalog is not None for partition in plan.partitions)
        assert not any("lacks entries" in note for note in plan.notes)
        for partition in plan.partitions:
            catalog = partition.catalog
            assert catalog is not None
            assert catalog.start == 0
            segments = [
                segment
                for segment in known_segments(
                    parse_metadata_record(value)
                    for offset, value in records[catalog.partition]
                    if offset < catalog.stop
                )
                if uuid_to_text(segment.segment_id.topic_id_partition.topic_id)
                == partition.topic_id
                and segment.segment_id.topic_id_partition.partition == partition.partition
            ]
            states = [segment.state for segment in segments]
            started, finished, deleting, _ = RemoteLogSegmentState
            assert (catalog.live, catalog.copying, catalog.deleting) == tuple(
                states.count(state) for state in (finished, started, deleting)
            )
            assert {span.segment.segment_id for span in partition.surviving.ranges} <= {
                uuid_to_text(segment.segment_id.id)
                for segment in segments
                if segment.state is finished
            }
    # The following tests need a tier that does not change.
    _wait_until_quiet(cluster)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_plan_by_metadata_topic_reads_same_segments_as_plan_by_listing(
    cluster: Cluster, level: str
) -> None:
    by_listing = make_plan(_options(cluster, catalog="listing", isolationLevel=level))
    options = _options(cluster, isolationLevel=level)
    by_topic = make_plan(options)

    def segments_of(plan: ScanPlan) -> dict[tuple[str, int], list[tuple[str, int]]]:
        return {
            (partition.topic, partition.partition): [
                (span.segment.segment_id, span.start) for span in partition.surviving.ranges
            ]
            for partition in plan.partitions
        }

    assert segments_of(by_topic) == segments_of(by_listing)
    assert sum(map(len, segments_of(by_topic).values())) > 12
    assert (
        len({partition.catalog.partition for partition in by_topic.partitions if partition.catalog})
        > 1
    )
    assert_as_consumed(
        read_rows(by_topic, options), consume_rows(cluster.bootstrap, by_topic, level)
    )


def test_scan_reads_from_brokers_if_objects_named_in_metadata_are_missing(
    cluster: Cluster, no_listing: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Remove objects only from a copy of the tier, because brokers need them.
    copy = Path(shutil.copytree(cluster.tier, tmp_path / "tier"))
    options = {**_options(cluster), "path": str(copy)}
    choose = random.Random(5)
    for topic, partition in MovingTopics.partition_keys:
        newest = list_tiered_segments(copy, topic, partition)[-1]
        choose.choice([path for path in newest.objects if path.suffix != ".txnindex"]).unlink()
    plan = make_plan(options)
    assert [len(partition.orphans) for partition in plan.partitions] == [1, 1, 1, 1]
    assert_as_consumed(
        read_rows(plan, options), consume_rows(cluster.bootstrap, plan, "read_committed")
    )


def test_plan_of_recreated_empty_topic_finds_no_segments(cluster: Cluster) -> None:
    admin = cluster.admin
    admin.delete_topic("local")
    admin.create_topic("local")
    options = _options(cluster, subscribe="local")
    (partition,) = make_plan(options).partitions
    assert partition.catalog is not None
    assert (partition.catalog.live, partition.start, partition.stop) == (0, 0, 0)


def test_describe_reports_counts_of_metadata_records_copies_and_deletions(
    cluster: Cluster, no_listing: pytest.MonkeyPatch
) -> None:
    marks = describe(_options(cluster, subscribe="keep")).to_arrow().to_pylist()
    assert [mark["partition"] for mark in marks] == [0, 1]
    for mark in marks:
        assert mark["catalog_records"] > mark["segments"] > 0
        assert (mark["copies_in_progress"], mark["deletions_in_progress"]) == (0, 0)


def test_reading_metadata_topic_without_acls_raises_broker_access_error(
    cluster: Cluster, certificates: Certificates
) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    options = {
        **_options(cluster, subscribe="keep"),
        "kafka.bootstrap.servers": cluster.address("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{module} required username="alice" password="alice\'s";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(certificates.authority),
    }
    cluster.admin.allow("alice", "keep", "READ", "DESCRIBE")
    for more in ((), ("DESCRIBE",)):
        if more:
            cluster.admin.allow("alice", METADATA, *more)
        with pytest.raises(BrokerAccessError, match=f"Describe and Read on the topic {METADATA}"):
            make_plan(options)
    cluster.admin.allow("alice", METADATA, "READ")
    plan = make_plan(options)
    assert all(partition.surviving.ranges for partition in plan.partitions)


def _options(cluster: Cluster, **more: str) -> dict[str, str]:
    options = {"subscribe": EVERY, "catalog": "metadata-topic", **more}
    return hybrid_options(cluster.bootstrap, cluster.tier, **options)


def _read_all_records(cluster: Cluster) -> list[list[tuple[int, bytes]]]:
    """Returns, for each partition of the metadata topic, a list of its records.

    Each record is a pair of offset and value.
    """
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": "false"}
    )
    records: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
    partitions = [TopicPartition(METADATA, number, 0) for number in range(PARTITIONS)]
    ends = {p.partition: consumer.get_watermark_offsets(p, timeout=20)[1] for p in partitions}
    consumer.assign(partitions)
    while any(ends[n] > (rows[-1][0] + 1 if rows else 0) for n, rows in enumerate(records)):
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        value, offset, number = message.value(), message.offset(), message.partition()
        assert value is not None
        assert offset is not None
        assert number is not None
        records[number].append((offset, value))
    consumer.close()
    return records


def _wait_until_quiet(cluster: Cluster) -> None:
    """Waits until all closed segments are tiered and the tier has not changed for two seconds."""
    for topic, partition in MovingTopics.partition_keys:
        cluster.admin.wait_stable(topic, partition)
        active = cluster.admin.local_bases(1, topic, partition)[-1]
        cluster.admin.wait_tiered(topic, partition, active)
    deadline = time.monotonic() + 60
    last_listing, quiet_since = "", time.monotonic()
    while time.monotonic() - quiet_since < 2:
        assert time.monotonic() < deadline
        listing = str(sorted(path.name for path in cluster.tier.rglob("*")))
        if listing != last_listing:
            last_listing, quiet_since = listing, time.monotonic()
        time.sleep(0.2)
