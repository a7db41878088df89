"""How a registry is asked: again, by whom, and never elsewhere with what shows who we are."""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import RegistryError, RegistryUnavailableError
from kts_source.options import parse_options
from kts_source.registry import client
from kts_source.registry.by_id import RegistryAccess, RegistryPlace
from kts_source.registry.client import UnknownSchemaError, ask
from kts_source.secret import Secret
from tests.integration.certificates import make_certificates
from tests.schema_registry import PASSWORD, USER, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATH = "/schemas/ids/1"
KNOWN = {PATH: {"schema": '"int"'}}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY", replace(client.RETRY, max_pause_seconds=0.0))


@pytest.fixture
def server() -> Iterator[Registry]:
    registry = Registry(dict(KNOWN))
    with registry.serving():
        yield registry


@pytest.fixture
def elsewhere() -> Iterator[Registry]:
    registry = Registry(dict(KNOWN))
    registry.authorization = None
    with registry.serving():
        yield registry


def place_of(options: dict[str, str]) -> RegistryPlace:
    """The registry as options say it."""
    given = {f"value.schema-registry.{name}": text for name, text in options.items()}
    record = {"value.format": "avro-confluent", "value.schema": '"int"'}
    (form,) = parse_options({"path": "/x", "subscribe": "t", **record, **given}).formats
    assert form.registry is not None
    return form.registry


def shown(server: Registry) -> RegistryPlace:
    return RegistryPlace(server.url, Secret(RegistryAccess(USER, PASSWORD)))


def test_what_may_pass_is_tried_again(server: Registry) -> None:
    server.failing = [503, 429, 408]
    assert ask(shown(server), PATH) == KNOWN[PATH]
    assert len(server.asked) == 4
    server.failing = [500] * 9
    with pytest.raises(
        RegistryUnavailableError, match=r"it answers 500 to /schemas/ids/1; asked 4 times"
    ):
        ask(shown(server), PATH)
    assert len(server.asked) == 8


def test_what_does_not_pass_is_not(server: Registry) -> None:
    with pytest.raises(RegistryError, match="401") as caught:
        ask(RegistryPlace(server.url), PATH)
    assert not caught.value.retriable
    with pytest.raises(UnknownSchemaError, match="/schemas/ids/2"):
        ask(shown(server), "/schemas/ids/2")
    assert len(server.asked) == 2


def test_a_registry_that_is_not_there_is_named_after_a_while() -> None:
    with pytest.raises(
        RegistryUnavailableError, match=r"does not answer: ConnectionRefusedError.*4 times"
    ):
        ask(RegistryPlace("http://127.0.0.1:1"), PATH)


def test_tokens_and_users(server: Registry) -> None:
    server.authorization = "Bearer t0ken-of-mine"
    place = place_of(
        {
            "url": server.url,
            "bearer.auth.token": "t0ken-of-mine",
            "bearer.auth.logical.cluster": "lsrc-1",
            "bearer.auth.identity.pool.id": "pool-2",
        }
    )
    assert ask(place, PATH) == KNOWN[PATH]
    assert server.headers["target-sr-cluster"] == "lsrc-1"
    assert server.headers["confluent-identity-pool-id"] == "pool-2"
    assert "t0ken" not in repr(place)
    server.authorization = "Basic bWU6YTpi"
    assert ask(place_of({"url": server.url, "basic.auth.user.info": "me:a:b"}), PATH)


def test_credentials_follow_no_redirect(server: Registry, elsewhere: Registry) -> None:
    server.moved_to = elsewhere.url
    for access in (RegistryAccess(USER, PASSWORD), RegistryAccess(token="t0ken-of-mine")):
        with pytest.raises(RegistryError, match=r"redirects to http://127.0.0.1: cred") as raised:
            ask(RegistryPlace(server.url, Secret(access)), PATH)
        assert PASSWORD not in str(raised.value)
        assert "t0ken" not in str(raised.value)
    assert elsewhere.asked == []
    assert ask(RegistryPlace(server.url), PATH) == KNOWN[PATH]  # who shows nothing may follow
    server.moved_to = "file:///etc"
    with pytest.raises(RegistryError, match="302"):
        ask(RegistryPlace(server.url), PATH)


def test_tls_with_certificates_of_both(server: Registry, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = made.server_context()
    context.load_verify_locations(made.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.authorization = None
    url = server.url.replace("http:", "https:")
    ours = {"ssl.certificate.location": str(made.client), "ssl.key.location": str(made.client)}
    trusted = {"url": url, "ssl.ca.location": str(made.authority)}
    place = place_of(trusted | ours)
    assert ask(place, PATH) == KNOWN[PATH]
    for path in (made.client, made.broker, made.authority, made.other_authority):
        path.unlink()  # the driver's files travel with the options
    assert ask(place, PATH) == KNOWN[PATH]
    server.moved_to = "https://127.0.0.1:1"
    with pytest.raises(RegistryError, match="redirects"):
        ask(place, PATH)


def test_a_registry_that_is_not_trusted_is_asked_nothing(server: Registry, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    server.socket = made.server_context().wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    for options in ({}, {"ssl.ca.location": str(made.other_authority)}):
        with pytest.raises(RegistryError, match="is not trusted: "):
            ask(place_of({"url": url, **options}), PATH)
    assert server.asked == []
