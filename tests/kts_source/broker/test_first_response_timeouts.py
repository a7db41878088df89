"""Tests how fast a scan fails if no bootstrap broker can be reached, or if the server is not a
Kafka broker.

The first contact is the first request of a client to the bootstrap brokers. It has shorter timeouts
than later requests.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.broker.cluster import Cluster
from kts_source.broker.kafka_options import broker_settings
from kts_source.broker.settings import FirstResponseTimeouts
from kts_source.errors import BrokerUnavailableError
from tests.kts_source.broker.fake_broker import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.broker.settings import BrokerSettings

SHORT = FirstResponseTimeouts(seconds=0.3, answer_seconds=0.4)


def settings_of(*ports: int, **options: str) -> BrokerSettings:
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    settings, _ = broker_settings({"kafka.bootstrap.servers": servers, **options})
    assert settings is not None
    return settings


def failure(settings: BrokerSettings) -> tuple[str, float]:
    """Returns the error of the first request, and the seconds until it was raised."""
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError) as caught:
        Cluster(settings).topics(["t"])
    return str(caught.value), time.monotonic() - began


@contextlib.contextmanager
def listening(answer: bytes | None) -> Iterator[int]:
    """Listens on a port during a `with` block and yields the port. Sends `answer` to each client
    and closes the connection, or sends nothing if `answer` is None.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connections.append(connection)
                    if answer is not None:
                        connection.sendall(answer)
                        connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_default_first_response_timeouts_are_at_most_ten_seconds() -> None:
    first = settings_of(1).first_response
    assert first is not None
    assert first.seconds < 5
    assert first.answer_seconds <= 10


@pytest.mark.parametrize("option", ["request.timeout.ms", "socket.connection.setup.timeout.ms"])
def test_timeout_option_of_user_disables_first_response_timeouts(option: str) -> None:
    assert settings_of(1, **{f"kafka.{option}": "20000"}).first_response is None


def test_refused_connection_fails_the_first_request() -> None:
    text, seconds = failure(replace(settings_of(closed_port()), first_response=SHORT))
    assert "Connection refused" in text
    assert seconds < 10


def test_server_that_is_not_kafka_fails_the_first_request() -> None:
    with listening(b"HTTP/1.1 400 Bad Request") as port:
        text, seconds = failure(replace(settings_of(port), first_response=SHORT))
    assert "not a Kafka broker" in text
    assert seconds < 10


def test_silent_server_fails_the_first_request() -> None:
    with listening(None) as port:
        text, seconds = failure(replace(settings_of(port), first_response=SHORT))
    assert "did not answer in time" in text
    assert seconds < 10


def test_silent_tls_server_fails_the_first_request() -> None:
    with listening(None) as port:
        settings = settings_of(port, **{"kafka.security.protocol": "SSL"})
        text, seconds = failure(replace(settings, first_response=SHORT))
    assert "TLS failed" in text
    assert seconds < 8  # the timeout of opening a connection is 10 s


def test_first_response_timeout_is_divided_among_bootstrap_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timeouts: list[float] = []

    def time_out(_address: object, timeout: float) -> None:
        timeouts.append(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", time_out)
    failure(replace(settings_of(1, 2), first_response=FirstResponseTimeouts(seconds=2.5)))
    assert set(timeouts) == {1.25}


def test_client_that_reached_its_broker_once_waits_for_a_stopped_broker() -> None:
    # A client that has reached the cluster once waits for a restarted broker.
    with FakeCluster() as brokers:
        settings = replace(brokers.settings(), first_response=FirstResponseTimeouts(0.0, 0.4))
        cluster = Cluster(settings)
        cluster.topics([])
        cluster.close()
        brokers.stop_node(0)
        began = time.monotonic()
        with pytest.raises(BrokerUnavailableError):
            cluster.topics([])
        assert time.monotonic() - began >= settings.request_timeout_seconds / 2
