"""Tests scans while brokers are slow, throttle clients, restart or reject logins.

The scans must wait and continue, or raise an error.
"""

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
    consume_rows,
    group_by_partition,
    hybrid_options,
    make_plan,
    read_rows,
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
"""Timeout for errors about rejected logins. They take a second, but longer on a busy machine."""
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Creates certificates for brokers and clients, and an authority that signed none of them."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Cluster]:
    """Runs one node with a partly tiered topic.

    Clients need no login on the plaintext listener; they need one on every other listener.
    """
    needs("java", "mvn")
    users = {"reader": PASSWORD, "describer": PASSWORD, "nobody": PASSWORD}
    # Measure quotas over only two seconds, so that a client exceeds its quota quickly.
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
        print(f"seed {seed}")  # noqa: T201  # shown if the test fails
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
def test_scan_with_login_over_tls_returns_rows_of_consumer(
    secured: Cluster, certificates: Certificates, mechanism: str, level: str
) -> None:
    for tier in (secured.tier, None):
        options = _login(secured, certificates.authority, mechanism, "reader", tier=tier)
        options["isolationLevel"] = level
        plan = make_plan(options)
        assert_as_consumed(read_rows(plan, options), consume_rows(secured.bootstrap, plan, level))


def test_wrong_password_raises_broker_error(secured: Cluster, certificates: Certificates) -> None:
    for mechanism in _MODULES:
        options = _login(secured, certificates.authority, mechanism, "reader", "a bad one")
        _assert_rejected(options, "refused the login", secret="a bad one")


def test_broker_certificate_of_untrusted_authority_raises_broker_error(
    secured: Cluster, certificates: Certificates
) -> None:
    options = _login(secured, certificates.other_authority, "PLAIN", "reader")
    _assert_rejected(
        options, r"is not trusted: .*kafka\.ssl\.truststore\.location", secret=PASSWORD
    )


def test_wrong_security_protocol_raises_broker_error(
    secured: Cluster, certificates: Certificates
) -> None:
    options = _login(secured, certificates.authority, "PLAIN", "reader")
    options["kafka.request.timeout.ms"] = "2000"
    options["kafka.security.protocol"] = "SASL_PLAINTEXT"
    del options["kafka.ssl.truststore.type"], options["kafka.ssl.truststore.location"]
    _assert_rejected(options, "no broker of kafka.bootstrap.servers answers", secret=PASSWORD)


def test_missing_acls_raise_broker_error(secured: Cluster, certificates: Certificates) -> None:
    options = _login(secured, certificates.authority, "PLAIN", "nobody")
    _assert_rejected(options, "Describe and Read", secret=PASSWORD)
    for tier in (secured.tier, None):
        options = _login(secured, certificates.authority, "PLAIN", "describer", tier=tier)
        _assert_rejected(options, "Read on it.*topic orders, partition 0", secret=PASSWORD)


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
def test_scan_returns_all_rows_if_brokers_wait_only_briefly_for_the_tier(
    secured: Cluster, level: str
) -> None:
    secured.admin.alter_brokers(remote_fetch_max_wait_ms="1")
    try:
        options = hybrid_options(secured.bootstrap, subscribe="orders", isolationLevel=level)
        plan = make_plan(options)
        assert plan.partitions[0].start < secured.admin.offsets("orders").earliest_local
        rows = read_rows(plan, options)
    finally:
        secured.admin.alter_brokers(remote_fetch_max_wait_ms="500")
    assert_as_consumed(rows, consume_rows(secured.bootstrap, plan, level))


def test_scan_with_exhausted_quota_waits_and_returns_all_rows(
    secured: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    plan = make_plan(options)
    receive = Connection.receive
    waits: list[int] = []

    def record_wait(connection: Connection, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401
        response = receive(connection, *arguments, **more)
        waits.append(response.throttle_time_ms)
        return response

    monkeypatch.setattr(Connection, "receive", record_wait)
    rows = read_rows(plan, options)
    assert sum(waits) > 0
    assert_as_consumed(rows, consume_rows(secured.bootstrap, plan, "read_committed"))
    assert len(rows["large", 0]) == 6_000


def test_scan_continues_after_broker_is_killed_and_restarted(secured: Cluster) -> None:
    scans = {}
    for level in ISOLATION_LEVELS:
        options = hybrid_options(secured.bootstrap, subscribe="orders", isolationLevel=level)
        options["kafka.max.partition.fetch.bytes"] = "3000"
        plan = make_plan(options)
        expected = consume_rows(secured.bootstrap, plan, level)
        parsed = parse_options(options)
        small = BatchLimits(50, 1 << 11)
        rows = (row for task in plan.tasks for row in run_task(task, parsed, batches=small))
        scans[level] = expected, rows, [next(rows)]
    secured.restart_node(1, is_clean=False)
    for expected, rows, batches in scans.values():
        with closing(rows):
            batches += rows
        assert_as_consumed(group_by_partition(batches), expected)


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


def _assert_rejected(options: dict[str, str], words: str, *, secret: str) -> None:
    started = time.monotonic()
    with pytest.raises(BrokerError, match=words) as caught:
        read_rows(make_plan(options), options)
    assert time.monotonic() - started < ERROR_SECONDS
    assert secret not in str(caught.value)
