"""Tests that key stores and trust stores are opened in the same way as Java opens them.

Every invalid file must raise `KeyStoreError`.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.broker.tls import (
    KeyStoreError,
    key_entry,
    pem_certificates,
    pem_key,
    trusted_certificates,
)
from tests.kts_source.broker.certificates import (
    PASSWORD,
    authority,
    client,
    intermediate,
    jks,
    jks_digest,
    server,
    stranger,
    trust_pkcs12,
)
from tests.quick import examples

if TYPE_CHECKING:
    from pathlib import Path

ROOTS = (authority().chain_der[0], stranger().chain_der[0])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("password", [PASSWORD, None])
def test_jks_store_returns_trusted_certificates(version: int, password: str | None) -> None:
    assert trusted_certificates(jks(ROOTS, version=version), password) == ROOTS


def test_jks_store_trusts_first_certificate_of_a_key_entry() -> None:
    store = jks(ROOTS, key_chain=client().chain_der)
    assert trusted_certificates(store, PASSWORD) == (client().chain_der[0], *ROOTS)


def test_pkcs12_store_returns_trusted_certificates() -> None:
    store = trust_pkcs12([authority().chain[0], stranger().chain[0]])
    assert set(trusted_certificates(store, PASSWORD)) == set(ROOTS)
    assert set(trusted_certificates(client().pkcs12(), PASSWORD)) == set(client().chain_der)


@pytest.mark.parametrize(
    "store", [jks(ROOTS), trust_pkcs12(authority().chain)], ids=["JKS", "PKCS12"]
)
def test_wrong_password_of_trust_store_is_an_error(store: bytes) -> None:
    with pytest.raises(KeyStoreError, match="wrong password") as caught:
        trusted_certificates(store, "wr0ng-secret")
    assert "wr0ng" not in str(caught.value)


def test_pkcs12_store_without_password_is_an_error() -> None:
    with pytest.raises(KeyStoreError, match="needs its password"):
        trusted_certificates(trust_pkcs12(authority().chain), None)


def test_pkcs12_store_returns_key_and_chain() -> None:
    entry = key_entry(client().pkcs12(), PASSWORD)
    assert entry.key == client().key_der
    assert entry.chain == client().chain_der  # client, intermediate, authority
    assert len(entry.chain) == 3


def test_pkcs12_chain_contains_only_issuers_of_the_key() -> None:
    certificate = intermediate().chain[0]
    assert stranger().chain[0] not in client().chain
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    mixed = pkcs12.serialize_key_and_certificates(
        b"me",
        client().key,
        client().chain[0],
        [stranger().chain[0], certificate],
        BestAvailableEncryption(PASSWORD.encode()),
    )
    assert key_entry(mixed, PASSWORD).chain == client().chain_der[:2]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (client().pkcs12("another-password"), "wrong password"),
        (trust_pkcs12(authority().chain), "no private key"),
        (jks(ROOTS, key_chain=client().chain_der), "keytool -importkeystore"),
        (b"\xce\xce\xce\xce" + bytes(40), "JCEKS"),
        (b"", "neither PKCS12 nor JKS"),
        (b"-----BEGIN CERTIFICATE-----", "set the type to PEM"),
    ],
    ids=["other password", "no key", "JKS", "JCEKS", "empty", "PEM"],
)
def test_key_store_without_usable_key_is_an_error(data: bytes, message: str) -> None:
    with pytest.raises(KeyStoreError, match=message):
        key_entry(data, PASSWORD)


def test_pem_on_one_line_is_parsed() -> None:
    for text in (client().chain_pem, client().chain_pem.replace("\n", " ")):
        assert pem_certificates(f"subject: me\n{text}") == client().chain_der
    for text in (client().key_pem(), client().key_pem().replace("\n", "   ")):
        assert pem_key(text + client().chain_pem, None) == client().key_der


def test_encrypted_pem_key_needs_its_password() -> None:
    text = client().key_pem(PASSWORD)
    assert pem_key(text, PASSWORD) == client().key_der
    with pytest.raises(KeyStoreError, match="cannot be opened") as caught:
        pem_key(text, "wr0ng-secret")
    assert "wr0ng" not in str(caught.value)
    with pytest.raises(KeyStoreError, match=r"needs kafka\.ssl\.key\.password"):
        pem_key(text, None)
    assert pem_key(client().key_pem(), "a password that is not needed") == client().key_der


def test_unsupported_or_malformed_pem_key_is_an_error() -> None:
    key = rsa.generate_private_key(65537, 2048)
    older = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    with pytest.raises(KeyStoreError, match="openssl pkcs8 -topk8"):
        pem_key(older.decode(), None)
    with pytest.raises(KeyStoreError, match="has 2"):
        pem_key(client().key_pem() + server().key_pem(), None)
    with pytest.raises(KeyStoreError, match="has 0"):
        pem_key(client().chain_pem, None)
    broken = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----"
    with pytest.raises(KeyStoreError, match="not a private key in PKCS#8"):
        pem_key(broken, None)
    with pytest.raises(KeyStoreError, match="not base64"):
        pem_key(broken.replace("MIIB", "M?"), None)


def test_pem_without_certificates_is_refused() -> None:
    with pytest.raises(KeyStoreError, match="no BEGIN CERTIFICATE"):
        pem_certificates(client().key_pem())
    with pytest.raises(KeyStoreError, match="cannot be read"):
        pem_certificates("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----")


def test_trust_store_without_certificates_is_an_error() -> None:
    """With an empty trust store, `ssl` would trust the system authorities instead."""
    with pytest.raises(KeyStoreError, match="no certificate"):
        trusted_certificates(jks([]), PASSWORD)


@pytest.mark.parametrize("size", range(0, 60, 3))
def test_truncated_key_store_is_an_error(size: int) -> None:
    body = jks(ROOTS)[: 12 + size]
    with pytest.raises(KeyStoreError, match=r"truncated|unknown"):
        trusted_certificates(body + jks_digest(body), PASSWORD)


@settings(max_examples=examples(300))
@given(st.data())
def test_randomly_damaged_key_store_raises_or_returns_certificates(data: st.DataObject) -> None:
    body = bytearray(jks(ROOTS, key_chain=client().chain_der)[:-20])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(body) - 1))
        body[position] = data.draw(st.integers(0, 255))
    try:
        certificates = trusted_certificates(bytes(body) + jks_digest(bytes(body)), PASSWORD)
    except KeyStoreError:
        return
    assert 0 < sum(map(len, certificates)) < len(body)


@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs keytool")
@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_stores_written_by_keytool_are_read(kind: str, tmp_path: Path) -> None:
    store, certificate = tmp_path / "store", tmp_path / "ca.pem"
    certificate.write_text(authority().chain_pem)

    def keytool(*arguments: str) -> None:
        common = ("-keystore", store, "-storetype", kind, "-storepass", "keytool-1")
        subprocess.run(["keytool", *arguments, *common], check=True, capture_output=True)

    keytool("-importcert", "-noprompt", "-alias", "ca", "-file", str(certificate))
    assert trusted_certificates(store.read_bytes(), "keytool-1") == authority().chain_der
    name = ("-dname", "CN=me", "-keyalg", "EC", "-alias", "me", "-keypass", "keytool-1")
    keytool("-genkeypair", *name)
    certificates = trusted_certificates(store.read_bytes(), "keytool-1")
    assert len(certificates) == 2
    assert authority().chain_der[0] in certificates
    if kind == "PKCS12":
        (own,) = set(certificates) - set(authority().chain_der)
        assert key_entry(store.read_bytes(), "keytool-1").chain == (own,)
    else:
        with pytest.raises(KeyStoreError, match="only Java can decrypt"):
            key_entry(store.read_bytes(), "keytool-1")
