"""Tests requests to a registry: retries, credentials, and that credentials are not sent to other
hosts.
"""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import RegistryError, RegistryUnavailableError
from kts_source.options import parse_options
from kts_source.registry import client
from kts_source.registry.client import RegistryAccess, RegistryPlace, UnknownSchemaError, ask
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


def registry_from(options: dict[str, str]) -> RegistryPlace:
    """Returns the registry that `options` define. The names in `options` omit the prefix
    `value.schema-registry.`.
    """
    source_options = {f"value.schema-registry.{name}": text for name, text in options.items()}
    record = {"value.format": "avro-confluent", "value.schema": '"int"'}
    (form,) = parse_options({"path": "/x", "subscribe": "t", **record, **source_options}).formats
    assert form.registry is not None
    return form.registry


def with_credentials(server: Registry) -> RegistryPlace:
    return RegistryPlace(server.url, Secret(RegistryAccess(USER, PASSWORD)))


def test_temporary_error_is_retried(server: Registry) -> None:
    server.failing = [503, 429, 408]
    assert ask(with_credentials(server), PATH) == KNOWN[PATH]
    assert len(server.asked) == 4
    server.failing = [500] * 9
    with pytest.raises(
        RegistryUnavailableError, match=r"/schemas/ids/1: all 4 attempts .*: it answers 500"
    ):
        ask(with_credentials(server), PATH)
    assert len(server.asked) == 8


def test_permanent_error_is_not_retried(server: Registry) -> None:
    with pytest.raises(RegistryError, match="401") as caught:
        ask(RegistryPlace(server.url), PATH)
    assert not caught.value.retriable
    with pytest.raises(UnknownSchemaError, match="/schemas/ids/2"):
        ask(with_credentials(server), "/schemas/ids/2")
    assert len(server.asked) == 2


def test_unreachable_registry_raises_error_after_retries() -> None:
    with pytest.raises(RegistryUnavailableError, match=r"all 4 attempts .*ConnectionRefusedError"):
        ask(RegistryPlace("http://127.0.0.1:1"), PATH)


def test_tokens_and_passwords_are_sent(server: Registry) -> None:
    server.authorization = "Bearer t0ken-of-mine"
    registry = registry_from(
        {
            "url": server.url,
            "bearer.auth.token": "t0ken-of-mine",
            "bearer.auth.logical.cluster": "lsrc-1",
            "bearer.auth.identity.pool.id": "pool-2",
        }
    )
    assert ask(registry, PATH) == KNOWN[PATH]
    assert server.headers["target-sr-cluster"] == "lsrc-1"
    assert server.headers["confluent-identity-pool-id"] == "pool-2"
    assert "t0ken" not in repr(registry)
    server.authorization = "Basic bWU6YTpi"
    assert ask(registry_from({"url": server.url, "basic.auth.user.info": "me:a:b"}), PATH)


def test_credentials_are_not_sent_after_a_redirect(server: Registry, elsewhere: Registry) -> None:
    server.moved_to = elsewhere.url
    for access in (RegistryAccess(USER, PASSWORD), RegistryAccess(token="t0ken-of-mine")):
        with pytest.raises(
            RegistryError, match=r"redirects to http://127.0.0.1, but cred"
        ) as raised:
            ask(RegistryPlace(server.url, Secret(access)), PATH)
        assert PASSWORD not in str(raised.value)
        assert "t0ken" not in str(raised.value)
    assert elsewhere.asked == []
    # Without credentials, redirects are followed.
    assert ask(RegistryPlace(server.url), PATH) == KNOWN[PATH]
    server.moved_to = "file:///etc"
    with pytest.raises(RegistryError, match="302"):
        ask(RegistryPlace(server.url), PATH)


def test_mutual_tls_is_supported(server: Registry, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    context = certificates.server_context()
    context.load_verify_locations(certificates.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.authorization = None
    url = server.url.replace("http:", "https:")
    client_files = {
        "ssl.certificate.location": str(certificates.client),
        "ssl.key.location": str(certificates.client),
    }
    trusted = {"url": url, "ssl.ca.location": str(certificates.authority)}
    registry = registry_from(trusted | client_files)
    assert ask(registry, PATH) == KNOWN[PATH]
    for path in (
        certificates.client,
        certificates.broker,
        certificates.authority,
        certificates.other_authority,
    ):
        path.unlink()  # the options contain the content of the driver's files
    assert ask(registry, PATH) == KNOWN[PATH]
    server.moved_to = "https://127.0.0.1:1"
    with pytest.raises(RegistryError, match="redirects"):
        ask(registry, PATH)


def test_registry_with_untrusted_certificate_receives_no_request(
    server: Registry, tmp_path: Path
) -> None:
    certificates = make_certificates(tmp_path)
    server.socket = certificates.server_context().wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    for options in ({}, {"ssl.ca.location": str(certificates.other_authority)}):
        with pytest.raises(RegistryError, match="is not trusted: "):
            ask(registry_from({"url": url, **options}), PATH)
    assert server.asked == []
