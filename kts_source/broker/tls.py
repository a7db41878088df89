"""Reads Java key stores and trust stores (PEM, PKCS12, JKS), and creates SSL contexts from them.

Format of JKS (`sun.security.provider.JavaKeyStore`), big-endian:

    u4 0xFEEDFEED, u4 version (1 or 2), u4 count, entries,
    20 bytes SHA-1(password in UTF-16BE, "Mighty Aphrodite", all bytes before)
    entry: u4 tag, UTF alias (u2 length), u8 date, then
        tag 2, a trusted certificate: certificate
        tag 1, a private key: u4 length, encrypted key, u4 count, certificates
    certificate: UTF type (version 2 only), u4 length, DER

Private keys in JKS are encrypted with a proprietary cipher of Sun, so they are rejected. As in
Java, the store type JKS (the default) also accepts PKCS12 files: the first bytes of the file show
which format it has.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import os
import re
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.broker.settings import TLS_1_2, TLS_1_3
from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

    from kts_source.broker.settings import Security, Tls


PEM: Final = "PEM"
PKCS12: Final = "PKCS12"
JKS: Final = "JKS"

_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_JKS_SALT: Final = b"Mighty Aphrodite"
_DIGEST_BYTES: Final = 20
_PRIVATE_KEY_TAG: Final = 1
_CERTIFICATE_TAG: Final = 2
_CONVERT: Final = (
    "convert it: keytool -importkeystore -srckeystore OLD -destkeystore NEW -deststoretype PKCS12"
)
_PEM_BLOCK: Final = re.compile(
    r"-----BEGIN (?P<label>[A-Z0-9 ]{1,40})-----(?P<body>[^-]*)-----END (?P=label)-----"
)
_PEM_KEYS: Final = ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY")


class KeyStoreError(Exception):
    """A key store or trust store cannot be opened. The text contains no password and no key."""


@dataclass(frozen=True, slots=True, repr=False)
class KeyEntry:
    """A private key and its certificate chain.

    Attributes:
        key: The private key (PKCS#8, DER, not encrypted).
        chain: The certificate of the key, followed by intermediate certificates (X.509, DER).
    """

    key: bytes
    chain: tuple[bytes, ...]


def pem_certificates(text: str) -> tuple[bytes, ...]:
    """Returns all certificates in a PEM text as DER. Also accepts a text that has spaces instead of
    line ends.

    Raises:
        KeyStoreError: The text contains no certificate or an invalid certificate.
    """
    certificates = tuple(
        _der(match) for match in _PEM_BLOCK.finditer(text) if match["label"] == "CERTIFICATE"
    )
    if not certificates:
        raise KeyStoreError("has no BEGIN CERTIFICATE block")
    for der in certificates:
        _check_certificate(der)
    return certificates


def pem_key(text: str, password: str | None) -> bytes:
    """Returns the private key in a PEM text as PKCS#8 (DER). Decrypts it with `password` if it is
    encrypted. The text must contain exactly one key.

    Raises:
        KeyStoreError: The text does not contain exactly one key, the key is not PKCS#8, or the
            password is wrong.
    """
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    blocks = [match for match in _PEM_BLOCK.finditer(text) if "PRIVATE KEY" in match["label"]]
    if len(blocks) != 1:
        raise KeyStoreError(f"must have one BEGIN PRIVATE KEY block, and has {len(blocks)}")
    label = blocks[0]["label"]
    if label not in _PEM_KEYS:
        raise KeyStoreError(
            f"has a key of the older form {label}: convert it by openssl pkcs8 -topk8"
        )
    is_encrypted = label == _PEM_KEYS[1]
    if is_encrypted and password is None:
        raise KeyStoreError("is encrypted and needs kafka.ssl.key.password")
    secret = password.encode() if is_encrypted and password is not None else None
    try:
        return _pkcs8(load_der_private_key(_der(blocks[0]), secret))
    except KeyStoreError:
        raise
    except Exception:  # noqa: BLE001  # many kinds; their texts are of no use to the user
        raise KeyStoreError(
            "cannot be opened with kafka.ssl.key.password"
            if is_encrypted
            else "is not a private key in PKCS#8"
        ) from None


def key_entry(data: bytes, password: str) -> KeyEntry:
    """Returns the private key in a PKCS12 store with its certificate chain.

    Raises:
        KeyStoreError: The store is not PKCS12, contains no key, or the password is wrong.
    """
    if data.startswith(_JKS_MAGIC):
        raise KeyStoreError(f"is a JKS key store, whose keys only Java can decrypt; {_CONVERT}")
    store = _pkcs12(data, password)
    if store.key is None or store.cert is None:
        raise KeyStoreError("has no private key with a certificate")
    issuers = {entry.certificate.subject: entry.certificate for entry in store.additional_certs}
    chain = [store.cert.certificate]
    while (issuer := issuers.pop(chain[-1].issuer, None)) is not None and issuer not in chain:
        chain.append(issuer)
    return KeyEntry(
        _pkcs8(store.key), tuple(_certificate_der(certificate) for certificate in chain)
    )


def trusted_certificates(data: bytes, password: str | None) -> tuple[bytes, ...]:
    """Returns the trusted certificates in a PKCS12 or JKS store, as DER. Without a password, the
    checksum of a JKS store is not verified, as in Java.

    Raises:
        KeyStoreError: The store is neither PKCS12 nor JKS, is damaged or empty, or the password is
            wrong.
    """
    if data.startswith(_JKS_MAGIC):
        certificates = _jks_certificates(data, password)
    else:
        store = _pkcs12(data, password)
        every = [*([store.cert] if store.cert else []), *store.additional_certs]
        certificates = tuple(_certificate_der(entry.certificate) for entry in every)
    if not certificates:
        raise KeyStoreError("has no certificate")
    for der in certificates:
        _check_certificate(der)
    return certificates


def _jks_certificates(data: bytes, password: str | None) -> tuple[bytes, ...]:
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        secret = password.encode("utf-16-be", "surrogatepass")
        wanted = hashlib.sha1(secret + _JKS_SALT + body, usedforsecurity=False).digest()
        if not hmac.compare_digest(wanted, digest):
            raise KeyStoreError("cannot be opened: wrong password, or damaged")
    position = len(_JKS_MAGIC)

    def take(size: int) -> bytes:
        nonlocal position
        position += size
        if position > len(body):
            raise KeyStoreError("is truncated or damaged")
        return body[position - size : position]

    def number(size: int) -> int:
        return int.from_bytes(take(size), "big")

    def certificate() -> bytes:
        if version == 2 and take(number(2)) != b"X.509":
            raise KeyStoreError("has certificates that are not X.509")
        return take(number(4))

    version = number(4)
    if version not in (1, 2):
        raise KeyStoreError(f"is a JKS store of unknown version {version}")
    certificates = []
    for _ in range(number(4)):  # with a wrong count, the data end first
        tag = number(4)
        take(number(2))  # alias
        take(8)  # date
        if tag == _CERTIFICATE_TAG:
            certificates.append(certificate())
        elif tag == _PRIVATE_KEY_TAG:
            take(number(4))
            chain = [certificate() for _ in range(number(4))]
            certificates += chain[:1]  # Java trusts only the certificate of the key
        else:
            raise KeyStoreError(f"has an entry of unknown kind {tag}")
    if position != len(body):
        raise KeyStoreError("has bytes after its last entry")
    return tuple(certificates)


def _pkcs12(data: bytes, password: str | None) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization import pkcs12

    if data.startswith(_JCEKS_MAGIC):
        raise KeyStoreError(f"is a JCEKS store; {_CONVERT}")
    if not data.startswith(b"\x30"):
        hint = "; it looks like PEM: set the type to PEM" if b"-----BEGIN" in data else ""
        raise KeyStoreError(f"is neither PKCS12 nor JKS{hint}")
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except Exception:  # noqa: BLE001  # many kinds; their texts are of no use to the user
        reason = "it needs its password" if password is None else "wrong password"
        raise KeyStoreError(f"cannot be opened: {reason}, or damaged") from None


def _der(match: re.Match[str]) -> bytes:
    try:
        return base64.b64decode("".join(match["body"].split()), validate=True)
    except (binascii.Error, ValueError):
        raise KeyStoreError(f"has a {match['label']} block that is not base64") from None


def _check_certificate(der: bytes) -> None:
    from cryptography import x509

    try:
        x509.load_der_x509_certificate(der)
    except Exception:  # noqa: BLE001  # as for keys
        raise KeyStoreError("has a certificate that cannot be read") from None


def _pkcs8(key: object) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    kinds = (
        rsa.RSAPrivateKey,
        ec.EllipticCurvePrivateKey,
        ed25519.Ed25519PrivateKey,
        ed448.Ed448PrivateKey,
    )
    if not isinstance(key, kinds):
        raise KeyStoreError("has a key that is not RSA or an elliptic curve")
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def _certificate_der(certificate: object) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    assert isinstance(certificate, x509.Certificate)
    return certificate.public_bytes(Encoding.DER)


def ssl_context(security: Security) -> ssl.SSLContext:
    """Returns the SSL context for connections to brokers. Raises the same errors as
    `tls_context`.
    """
    assert security.tls is not None, security.protocol
    return tls_context(security.tls, "kafka.ssl.truststore.…", "kafka.ssl.keystore.…")


@functools.lru_cache(maxsize=8)
def tls_context(tls: Tls, trust_options: str, key_options: str) -> ssl.SSLContext:
    """Returns an SSL context. Contexts are cached, because loading the machine's certificate
    authorities takes as long as a TLS handshake.

    Args:
        tls: Certificates and TLS versions.
        trust_options: Names of the options that set the trusted certificates, for error texts.
        key_options: Names of the options that set the client's key, for error texts.

    Raises:
        InvalidOptionError: OpenSSL rejects the certificates or the key, or the key does not belong
            to the client's certificate.
    """
    import ssl  # not at import time: most scans open no connection to a broker

    versions = {TLS_1_2: ssl.TLSVersion.TLSv1_2, TLS_1_3: ssl.TLSVersion.TLSv1_3}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_host_name
    context.minimum_version = versions[tls.oldest]
    context.maximum_version = versions[tls.newest]
    # Allows a trust store to contain only an intermediate certificate, as in Java.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.trusted:
        try:
            context.load_verify_locations(cadata=b"".join(tls.trusted))
        except ssl.SSLError:
            raise InvalidOptionError(
                f"OpenSSL rejects the certificates of options {trust_options}"
            ) from None
    else:
        context.load_default_certs()
    if tls.chain:
        _load_identity(context, tls, key_options)
    return context


def _load_identity(context: ssl.SSLContext, tls: Tls, options: str) -> None:
    """Loads the client's certificate and key into a context. Writes both to a file, because `ssl`
    cannot load them from memory.
    """
    import ssl

    blocks = [_pem("PRIVATE KEY", tls.key), *(_pem("CERTIFICATE", der) for der in tls.chain)]
    try:
        with _file_of("".join(blocks).encode()) as path:
            context.load_cert_chain(path)
    except ssl.SSLError:
        raise InvalidOptionError(
            f"OpenSSL rejects the key and the certificates of options {options}: the key must"
            " belong to the first certificate"
        ) from None


@contextmanager
def _file_of(data: bytes) -> Iterator[str]:
    """Yields the path of a file that contains `data`. If the system supports it, the file exists
    only in memory. Otherwise it is a temporary file with mode 0600, which is deleted afterwards.
    """
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    descriptor, path = tempfile.mkstemp(prefix="tls-")  # 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        yield path
    finally:
        Path(path).unlink()


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(der).decode()}-----END {label}-----\n"
