"""Scans by `__remote_log_metadata` of a real cluster, beside listings and consumers."""

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
    consumed_rows,
    hybrid_options,
    planned,
    rows_of,
)
from tests.integration.moving_topics import MovingTopics
from tests.integration.tier_mischief import tiered_segments
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
    """A cluster of one node whose metadata topic has several partitions."""
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
    """The tier may not be listed."""

    def refuse(*_: object, **__: object) -> None:
        raise AccessDeniedError("listing is refused")

    for name in ("list_objects", "list_folders"):
        monkeypatch.setattr(LocalStore, name, refuse)
    return monkeypatch


def test_catalogs_while_segments_come_and_go(
    cluster: Cluster, no_listing: pytest.MonkeyPatch
) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")  # noqa: T201  # shown where the test fails
    options = _options(cluster, isolationLevel="read_uncommitted")
    plans: list[ScanPlan] = []
    with MovingTopics(cluster, seed):  # the soak compares rows meanwhile
        ended = time.monotonic() + MOVING_SECONDS
        while time.monotonic() < ended:
            plans.append(planned(options))
    # Each was a state that brokers were in: that of all events up to some offset.
    records = _all_records(cluster)
    for plan in plans:
        assert all(part.catalog is not None for part in plan.partitions)
        assert not any("lacks entries" in note for note in plan.notes)
        for part in plan.partitions:
            catalog = part.catalog
            assert catalog is not None
            assert catalog.start == 0
            known = [
                segment
                for segment in known_segments(
                    parse_metadata_record(value)
                    for offset, value in records[catalog.partition]
                    if offset < catalog.stop
                )
                if uuid_to_text(segment.segment_id.topic_id_partition.topic_id) == part.topic_id
                and segment.segment_id.topic_id_partition.partition == part.partition
            ]
            states = [segment.state for segment in known]
            started, finished, deleting, _ = RemoteLogSegmentState
            assert (catalog.live, catalog.copying, catalog.deleting) == tuple(
                states.count(state) for state in (finished, started, deleting)
            )
            assert {span.segment.segment_id for span in part.surviving.ranges} <= {
                uuid_to_text(segment.segment_id.id)
                for segment in known
                if segment.state is finished
            }
    # Now everything stands still.
    _wait_until_quiet(cluster)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_the_live_set_is_that_of_a_listing(cluster: Cluster, level: str) -> None:
    by_listing = planned(_options(cluster, catalog="listing", isolationLevel=level))
    options = _options(cluster, isolationLevel=level)
    by_topic = planned(options)

    def used(plan: ScanPlan) -> dict[tuple[str, int], list[tuple[str, int]]]:
        return {
            (part.topic, part.partition): [
                (span.segment.segment_id, span.start) for span in part.surviving.ranges
            ]
            for part in plan.partitions
        }

    assert used(by_topic) == used(by_listing)
    assert sum(map(len, used(by_topic).values())) > 12
    assert len({part.catalog.partition for part in by_topic.partitions if part.catalog}) > 1
    assert_as_consumed(
        rows_of(by_topic, options), consumed_rows(cluster.bootstrap, by_topic, level)
    )


def test_objects_that_are_named_and_not_there(
    cluster: Cluster, no_listing: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Brokers serve their offsets, for which they need them.
    copy = Path(shutil.copytree(cluster.tier, tmp_path / "tier"))
    options = {**_options(cluster), "path": str(copy)}
    choose = random.Random(5)
    for topic, partition in MovingTopics.places:
        newest = tiered_segments(copy, topic, partition)[-1]
        choose.choice([path for path in newest.objects if path.suffix != ".txnindex"]).unlink()
    plan = planned(options)
    assert [len(part.orphans) for part in plan.partitions] == [1, 1, 1, 1]
    assert_as_consumed(
        rows_of(plan, options), consumed_rows(cluster.bootstrap, plan, "read_committed")
    )


def test_a_topic_that_was_created_again(cluster: Cluster) -> None:
    admin = cluster.admin
    admin.delete_topic("local")
    admin.create_topic("local")
    options = _options(cluster, subscribe="local")
    (part,) = planned(options).partitions
    assert part.catalog is not None
    assert (part.catalog.live, part.start, part.stop) == (0, 0, 0)


def test_describe_shows_the_catalog(cluster: Cluster, no_listing: pytest.MonkeyPatch) -> None:
    marks = describe(_options(cluster, subscribe="keep")).to_arrow().to_pylist()
    assert [mark["partition"] for mark in marks] == [0, 1]
    for mark in marks:
        assert mark["catalog_records"] > mark["segments"] > 0
        assert (mark["copies_in_progress"], mark["deletions_in_progress"]) == (0, 0)


def test_without_rights_to_the_topic(cluster: Cluster, certificates: Certificates) -> None:
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
            planned(options)
    cluster.admin.allow("alice", METADATA, "READ")
    plan = planned(options)
    assert all(part.surviving.ranges for part in plan.partitions)


def _options(cluster: Cluster, **more: str) -> dict[str, str]:
    given = {"subscribe": EVERY, "catalog": "metadata-topic", **more}
    return hybrid_options(cluster.bootstrap, cluster.tier, **given)


def _all_records(cluster: Cluster) -> list[list[tuple[int, bytes]]]:
    """Offsets and values of each partition of the metadata topic, as a consumer has them."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": "false"}
    )
    records: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
    places = [TopicPartition(METADATA, number, 0) for number in range(PARTITIONS)]
    ends = {one.partition: consumer.get_watermark_offsets(one, timeout=20)[1] for one in places}
    consumer.assign(places)
    while any(ends[n] > (of[-1][0] + 1 if of else 0) for n, of in enumerate(records)):
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
    """Waits until all is copied that may be, and nothing is copied or deleted for two seconds."""
    for topic, partition in MovingTopics.places:
        cluster.admin.wait_stable(topic, partition)
        active = cluster.admin.local_bases(1, topic, partition)[-1]
        cluster.admin.wait_tiered(topic, partition, active)
    deadline = time.monotonic() + 60
    before, since = "", time.monotonic()
    while time.monotonic() - since < 2:
        assert time.monotonic() < deadline
        now = str(sorted(path.name for path in cluster.tier.rglob("*")))
        if now != before:
            before, since = now, time.monotonic()
        time.sleep(0.2)
