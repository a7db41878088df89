"""Brokers that are slow, throttle, restart or refuse: progress or a named error, never a hang."""

from __future__ import annotations

import random
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from kts_source.broker.connection import Connection
from kts_source.errors import BrokerError
from kts_source.options import parse_options
from kts_source.read.read_settings import BatchLimits
from kts_source.read.read_task import run_task
from tests.golden_data import ISOLATION_LEVELS
from tests.integration.background import RandomWork
from tests.integration.certificates import make_certificates
from tests.integration.cluster import Cluster, ClusterSpec
from tests.integration.hybrid import (
    assert_as_consumed,
    by_partition,
    consumed_rows,
    hybrid_options,
    planned,
    rows_of,
)
from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from tests.integration.certificates import Certificates

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]

PASSWORD = "a good one"
QUOTA = 2_000_000
ERROR_SECONDS = 60
"""A refusal takes a second; a machine that is busy takes its time."""
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """What the brokers show, and what they do not."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Cluster]:
    """One node that wants logins, but of plaintext clients; with a topic that is tiered in part."""
    needs("java", "mvn")
    users = {"reader": PASSWORD, "describer": PASSWORD, "nobody": PASSWORD}
    # A quota counts the last two seconds, so that it is used up soon.
    spec = ClusterSpec(
        certificates=certificates,
        passwords=users,
        has_acls=True,
        settings={"quota.window.num": "2"},
    )
    with Cluster(tmp_path_factory.mktemp("secured") / "cluster", spec) as cluster:
        cluster.admin.create_topic("orders")
        cluster.admin.add_scram_user("reader", PASSWORD)
        cluster.admin.allow("reader", "orders", "READ", "DESCRIBE")
        cluster.admin.allow("describer", "orders", "DESCRIBE")
        seed = random.SystemRandom().randrange(1 << 31)
        print(f"seed {seed}")  # noqa: T201  # shown where the test fails
        work = RandomWork(cluster.bootstrap, [("orders", 0)], seed)
        while len(cluster.admin.local_bases(1, "orders")) < 4:
            work.step()
        work.finish()
        cluster.admin.wait_stable("orders")
        active = cluster.admin.local_bases(1, "orders")[-1]
        cluster.admin.wait_tiered("orders", 0, active)
        cluster.admin.wait_local_deleted("orders", 0, active)
        yield cluster


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
@pytest.mark.parametrize("mechanism", _MODULES)
def test_a_login_over_tls(
    secured: Cluster, certificates: Certificates, mechanism: str, level: str
) -> None:
    for tier in (secured.tier, None):
        options = _login(secured, certificates.authority, mechanism, "reader", tier=tier)
        options["isolationLevel"] = level
        plan = planned(options)
        assert_as_consumed(rows_of(plan, options), consumed_rows(secured.bootstrap, plan, level))


def test_a_wrong_password(secured: Cluster, certificates: Certificates) -> None:
    for mechanism in _MODULES:
        options = _login(secured, certificates.authority, mechanism, "reader", "a bad one")
        _refused(options, "refused the login", secret="a bad one")


def test_an_unknown_authority(secured: Cluster, certificates: Certificates) -> None:
    options = _login(secured, certificates.other_authority, "PLAIN", "reader")
    _refused(options, r"is not trusted: .*kafka\.ssl\.truststore\.location", secret=PASSWORD)


def test_a_listener_that_wants_something_else(secured: Cluster, certificates: Certificates) -> None:
    options = _login(secured, certificates.authority, "PLAIN", "reader")
    options["kafka.request.timeout.ms"] = "2000"
    options["kafka.security.protocol"] = "SASL_PLAINTEXT"
    del options["kafka.ssl.truststore.type"], options["kafka.ssl.truststore.location"]
    _refused(options, "no broker of kafka.bootstrap.servers answers", secret=PASSWORD)


def test_rights_that_are_missing(secured: Cluster, certificates: Certificates) -> None:
    options = _login(secured, certificates.authority, "PLAIN", "nobody")
    _refused(options, "Describe and Read", secret=PASSWORD)
    for tier in (secured.tier, None):
        options = _login(secured, certificates.authority, "PLAIN", "describer", tier=tier)
        _refused(options, "Read on it.*topic orders, partition 0", secret=PASSWORD)


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
def test_a_broker_that_does_not_wait_for_its_tier(secured: Cluster, level: str) -> None:
    secured.admin.alter_brokers(remote_fetch_max_wait_ms="1")
    try:
        options = hybrid_options(secured.bootstrap, subscribe="orders", isolationLevel=level)
        plan = planned(options)
        assert plan.partitions[0].start < secured.admin.offsets("orders").earliest_local
        found = rows_of(plan, options)
    finally:
        secured.admin.alter_brokers(remote_fetch_max_wait_ms="500")
    assert_as_consumed(found, consumed_rows(secured.bootstrap, plan, level))


def test_a_quota(secured: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    secured.admin.create_topic("large", internal_segment_bytes="4000000")
    work = RandomWork(secured.bootstrap, [("large", 0)], 1)
    producer = work.filler.plain("none")
    noise = random.Random(1)
    for number in range(6_000):
        producer.produce("large", noise.randbytes(1_000), partition=0)
        if number % 500 == 0:
            producer.flush(30)
    producer.flush(30)
    secured.admin.set_client_quota("slow", QUOTA)
    options = hybrid_options(
        secured.bootstrap,
        subscribe="large",
        kafka__client__id="slow",
        kafka__max__partition__fetch__bytes="4000000",
    )
    plan = planned(options)
    receive = Connection.receive
    waits: list[int] = []

    def noted(connection: Connection, *given: Any, **more: Any) -> Any:  # noqa: ANN401
        answer = receive(connection, *given, **more)
        waits.append(answer.throttle_time_ms)
        return answer

    monkeypatch.setattr(Connection, "receive", noted)
    found = rows_of(plan, options)
    assert sum(waits) > 0
    assert_as_consumed(found, consumed_rows(secured.bootstrap, plan, "read_committed"))
    assert len(found["large", 0]) == 6_000


def test_a_broker_that_restarts_in_mid_range(secured: Cluster) -> None:
    begun = {}
    for level in ISOLATION_LEVELS:
        options = hybrid_options(secured.bootstrap, subscribe="orders", isolationLevel=level)
        options["kafka.max.partition.fetch.bytes"] = "3000"
        plan = planned(options)
        expected = consumed_rows(secured.bootstrap, plan, level)
        parsed = parse_options(options)
        small = BatchLimits(50, 1 << 11)
        rows = (row for task in plan.tasks for row in run_task(task, parsed, batches=small))
        begun[level] = expected, rows, [next(rows)]
    secured.restart_node(1, is_clean=False)
    for expected, rows, batches in begun.values():
        with closing(rows):
            batches += rows
        assert_as_consumed(by_partition(batches), expected)


def _login(
    cluster: Cluster,
    authority: Path,
    mechanism: str,
    user: str,
    password: str = PASSWORD,
    *,
    tier: Path | None = None,
) -> dict[str, str]:
    module = _MODULES[mechanism]
    return hybrid_options(cluster.address("SASL_SSL"), tier, subscribe="orders") | {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority),
    }


def _refused(options: dict[str, str], words: str, *, secret: str) -> None:
    began = time.monotonic()
    with pytest.raises(BrokerError, match=words) as caught:
        rows_of(planned(options), options)
    assert time.monotonic() - began < ERROR_SECONDS
    assert secret not in str(caught.value)
