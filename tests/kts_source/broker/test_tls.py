"""Tests TLS handshakes with a loopback server.

Tests which server certificates are trusted, which client certificates are sent, and which TLS
versions are used.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.broker.kafka_options import broker_settings
from kts_source.broker.tls import ssl_context, tls_context
from kts_source.errors import InvalidOptionError
from tests.kts_source.broker.certificates import (
    PASSWORD,
    Identity,
    authority,
    client,
    intermediate,
    jks,
    server,
    stranger,
    trust_pkcs12,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kts_source.broker.settings import Security

BASE = {"kafka.bootstrap.servers": "a:1", "kafka.security.protocol": "SSL"}
ROOT = authority().chain_pem


@contextmanager
def serve_tls(
    folder: Path,
    identity: Identity,
    *,
    asks_for_certificate: bool = False,
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> Iterator[int]:
    """Runs a TLS server and yields its port. The server sends the common name of the client
    certificate and the TLS version, and closes the connection.
    """
    pem = folder / "server.pem"
    pem.write_text(identity.key_pem() + identity.chain_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.maximum_version = newest
    if asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=ROOT)

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with plain:
                plain.settimeout(10)
                try:
                    with context.wrap_socket(plain, server_side=True) as wrapped:
                        certificate: dict[str, Any] = dict(wrapped.getpeercert() or {})
                        names = [value for ((_, value),) in certificate.get("subject", ())]
                        wrapped.sendall(f"hello {names} {wrapped.version()}".encode())
                except OSError:  # the client or the server refused the handshake
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def read_greeting(security: Security, port: int, name: str = "localhost") -> str:
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        ssl_context(security).wrap_socket(plain, server_hostname=name) as wrapped,
    ):
        return wrapped.recv(1000).decode()


def parse_security(options: dict[str, str]) -> Security:
    settings, _ = broker_settings(BASE | {f"kafka.ssl.{name}": v for name, v in options.items()})
    assert settings is not None
    return settings.security.reveal()


def refusal_message(options: dict[str, str]) -> str:
    with pytest.raises(InvalidOptionError) as caught:
        parse_security(options)
    assert caught.value.__cause__ is None
    return str(caught.value)


def _write_file(folder: Path, name: str, data: bytes | str) -> str:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def _trust_options(
    kind: str, data: bytes | str, password: str | None
) -> Callable[[Path], dict[str, str]]:
    def options(folder: Path) -> dict[str, str]:
        password_option = {} if password is None else {"truststore.password": password}
        return {"truststore.location": _write_file(folder, "trust", data), **password_option} | (
            {"truststore.type": kind} if kind else {}
        )

    return options


TRUST_STORES: dict[str, Callable[[Path], dict[str, str]]] = {
    "JKS": _trust_options("JKS", jks(authority().chain_der), PASSWORD),
    "JKS by default": _trust_options("", jks(authority().chain_der), PASSWORD),
    "JKS without password": _trust_options("", jks(authority().chain_der), None),
    "PKCS12": _trust_options("pkcs12", trust_pkcs12(authority().chain), PASSWORD),
    "PKCS12 called JKS": _trust_options("JKS", trust_pkcs12(authority().chain), PASSWORD),
    "PEM": _trust_options("PEM", client().chain_pem, None),
    "PEM in the option": lambda _: {"truststore.type": "PEM", "truststore.certificates": ROOT},
    "the server's own certificate": lambda _: {
        "truststore.type": "PEM",
        "truststore.certificates": server().chain_pem.split("-----END")[0]
        + "-----END CERTIFICATE-----",
    },
}


@pytest.mark.parametrize("store", TRUST_STORES)
def test_tls_accepts_only_trusted_certificates(store: str, tmp_path: Path) -> None:
    client_security = parse_security(TRUST_STORES[store](tmp_path))
    with serve_tls(tmp_path, server()) as port:
        assert read_greeting(client_security, port) == "hello [] TLSv1.3"
        assert read_greeting(client_security, port, "127.0.0.1").startswith("hello")
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            read_greeting(client_security, port, "broker.example")
    with (
        serve_tls(tmp_path, stranger()) as port,
        pytest.raises(ssl.SSLCertVerificationError, match="verify failed"),
    ):
        read_greeting(client_security, port)


def test_tls_without_trust_store_uses_system_authorities(tmp_path: Path) -> None:
    with (
        serve_tls(tmp_path, server()) as port,
        pytest.raises(ssl.SSLCertVerificationError, match="verify failed"),
    ):
        read_greeting(parse_security({}), port)


def test_empty_endpoint_identification_option_skips_only_the_host_name_check(
    tmp_path: Path,
) -> None:
    options = {**TRUST_STORES["JKS"](tmp_path), "endpoint.identification.algorithm": ""}
    with serve_tls(tmp_path, server()) as port:
        assert read_greeting(parse_security(options), port, "broker.example").startswith("hello")
    with serve_tls(tmp_path, stranger()) as port, pytest.raises(ssl.SSLCertVerificationError):
        read_greeting(parse_security(options), port, "broker.example")


KEY_STORES: dict[str, Callable[[Path], dict[str, str]]] = {
    "PKCS12": lambda folder: {
        "keystore.type": "PKCS12",
        "keystore.location": _write_file(folder, "key", client().pkcs12()),
        "keystore.password": PASSWORD,
    },
    "PKCS12 called JKS": lambda folder: {
        "keystore.location": _write_file(folder, "key", client().pkcs12()),
        "keystore.password": PASSWORD,
    },
    "PEM": lambda folder: {
        "keystore.type": "PEM",
        "keystore.location": _write_file(folder, "key", client().chain_pem + client().key_pem()),
    },
    "encrypted PEM": lambda folder: {
        "keystore.type": "PEM",
        "keystore.location": _write_file(
            folder, "key", client().key_pem("k1") + client().chain_pem
        ),
        "key.password": "k1",
    },
    "PEM in the options": lambda _: {
        "keystore.type": "PEM",
        "keystore.key": client().key_pem("k1").replace("\n", " "),
        "keystore.certificate.chain": client().chain_pem,
        "key.password": "k1",
    },
}


@pytest.mark.parametrize("store", KEY_STORES)
@pytest.mark.parametrize("in_memory", [True, False])
def test_tls_client_certificate_is_sent(
    store: str, in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls_context.cache_clear()
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    client_security = parse_security(KEY_STORES[store](tmp_path) | TRUST_STORES["JKS"](tmp_path))
    with serve_tls(tmp_path, server(), asks_for_certificate=True) as port:
        # The server trusts only the root, so the client must also send the intermediate
        # certificate.
        assert read_greeting(client_security, port) == "hello ['client'] TLSv1.3"
    assert list((tmp_path / "temporary").iterdir()) == []


def test_temporary_key_file_is_private_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    created_files = []

    def spied(context: ssl.SSLContext, path: str) -> None:
        created_files.append((Path(path).parent, stat.S_IMODE(Path(path).stat().st_mode)))
        raise ssl.SSLError

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spied)
    tls_context.cache_clear()
    with pytest.raises(InvalidOptionError, match=r"kafka\.ssl\.keystore"):
        parse_security(KEY_STORES["PEM in the options"](tmp_path))
    assert created_files == [(tmp_path, 0o600)]
    assert list(tmp_path.iterdir()) == []


def test_tls_client_without_certificate_sends_no_certificate(tmp_path: Path) -> None:
    client_security = parse_security(TRUST_STORES["JKS"](tmp_path))
    with (
        serve_tls(tmp_path, server(), asks_for_certificate=True) as port,
        pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
    ):
        read_greeting(client_security, port)


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ({}, "TLSv1.3"),
        ({"enabled.protocols": "TLSv1.2"}, "TLSv1.2"),
        ({"enabled.protocols": "TLSv1,TLSv1.1,TLSv1.2"}, "TLSv1.2"),
        ({"enabled.protocols": "TLSv1.3"}, "TLSv1.3"),
        ({"protocol": "TLSv1.2"}, "TLSv1.2"),
        ({"protocol": "TLS"}, "TLSv1.3"),
    ],
)
def test_tls_version_follows_options(options: dict[str, str], version: str, tmp_path: Path) -> None:
    client_security = parse_security({**TRUST_STORES["JKS"](tmp_path), **options})
    with serve_tls(tmp_path, server()) as port:
        assert read_greeting(client_security, port) == f"hello [] {version}"


def test_tls_connection_fails_if_server_has_no_allowed_version(tmp_path: Path) -> None:
    client_security = parse_security(
        {**TRUST_STORES["JKS"](tmp_path), "enabled.protocols": "TLSv1.3"}
    )
    with (
        serve_tls(tmp_path, server(), newest=ssl.TLSVersion.TLSv1_2) as port,
        pytest.raises(ssl.SSLError),
    ):
        read_greeting(client_security, port)


P12 = {"keystore.type": "PKCS12", "keystore.password": "wr0ng-secret"}
INLINE = {"truststore.type": "PEM", "truststore.certificates": ROOT}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truststore.location": "/gone"}, "'kafka.ssl.truststore.location' is not a file"),
        ({"truststore.location": "/"}, "'kafka.ssl.truststore.location' is not a file"),
        ({"truststore.location": "/dev/zero"}, "'kafka.ssl.truststore.location' is not a file"),
        ({"truststore.location": ROOT}, "must be a path"),
        ({"truststore.type": "BCFKS"}, "'kafka.ssl.truststore.type' must be JKS, PKCS12 or PEM"),
        ({"truststore.password": "wr0ng-secret"}, "needs kafka.ssl.truststore.location"),
        ({"truststore.certificates": ROOT}, "needs kafka.ssl.truststore.type PEM"),
        (INLINE | {"truststore.location": "/a"}, "have the same meaning"),
        (INLINE | {"truststore.password": "wr0ng-secret"}, "no effect with PEM"),
        (INLINE | {"truststore.certificates": "wr0ng-secret"}, "no BEGIN CERTIFICATE"),
        (P12, "'kafka.ssl.keystore.password' needs kafka.ssl.keystore.location"),
        ({"keystore.location": "/a"}, "needs kafka.ssl.keystore.password"),
        ({"keystore.key": client().key_pem()}, "needs kafka.ssl.keystore.type PEM"),
        (
            {"keystore.type": "PEM", "keystore.key": client().key_pem()},
            "'kafka.ssl.keystore.key' needs kafka.ssl.keystore.certificate.chain",
        ),
        (
            {"keystore.type": "PEM", "keystore.certificate.chain": ROOT},
            "'kafka.ssl.keystore.certificate.chain' needs kafka.ssl.keystore.key",
        ),
        ({"keystore.type": "PEM", "keystore.password": "x"}, "set kafka.ssl.key.password"),
        ({"endpoint.identification.algorithm": "ldaps"}, "must be https, or empty"),
        ({"enabled.protocols": "TLSv1.1"}, "allow neither TLSv1.2 nor TLSv1.3"),
        ({"enabled.protocols": "TLSv1.3", "protocol": "TLSv1.2"}, "together allow neither"),
        ({"enabled.protocols": "wr0ng-secret"}, "must be TLSv1.2, TLSv1.3 or both"),
        ({"protocol": "TLSv1.1"}, "'kafka.ssl.protocol' must be TLS, TLSv1.2 or TLSv1.3"),
    ],
)
def test_tls_option_errors_explain_the_fix(options: dict[str, str], message: str) -> None:
    problem = refusal_message(options)
    assert message in problem
    assert "wr0ng" not in problem
    assert "BEGIN PRIVATE" not in problem


def test_tls_file_with_wrong_password_size_or_content_is_refused(tmp_path: Path) -> None:
    password = {"keystore.password": "wr0ng-secret"}
    for problem in (
        refusal_message(KEY_STORES["PKCS12"](tmp_path) | password),
        refusal_message(TRUST_STORES["JKS"](tmp_path) | {"truststore.password": "wr0ng-secret"}),
        refusal_message(KEY_STORES["encrypted PEM"](tmp_path) | {"key.password": "wr0ng-secret"}),
    ):
        assert ".location' cannot be opened" in problem
        assert "wr0ng" not in problem
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert "larger than the limit of 16 MiB" in refusal_message({"truststore.location": str(big)})
    big.write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in refusal_message(
        {"truststore.location": str(big), "truststore.type": "PEM"}
    )


def test_unreadable_trust_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = TRUST_STORES["JKS"](tmp_path)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "wr0ng-secret")

    monkeypatch.setattr(Path, "open", denied)
    assert "cannot be read: Permission denied" in refusal_message(options)


def test_key_without_matching_certificate_is_refused() -> None:
    options = {
        "keystore.type": "PEM",
        "keystore.key": server().key_pem(),
        "keystore.certificate.chain": client().chain_pem,
    }
    assert "the key must belong to the first certificate" in refusal_message(options)
    options["keystore.key"] = intermediate().key_pem()
    options["keystore.certificate.chain"] = intermediate().chain_pem
    assert parse_security(options).tls
