"""Creates certificates, keys and key stores for tests."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

PASSWORD = "pass-Wörd"
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A private key and its certificate chain, which begins with the key's certificate."""

    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...]

    @property
    def chain_der(self) -> tuple[bytes, ...]:
        return tuple(certificate.public_bytes(Encoding.DER) for certificate in self.chain)

    @property
    def chain_pem(self) -> str:
        return "".join(
            certificate.public_bytes(Encoding.PEM).decode() for certificate in self.chain
        )

    @property
    def key_der(self) -> bytes:
        return self.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())

    def key_pem(self, password: str | None = None) -> str:
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def pkcs12(self, password: str = PASSWORD) -> bytes:
        encryption = BestAvailableEncryption(password.encode())
        # The order is reversed because readers must not rely on the certificate order of PKCS12.
        issuers = list(reversed(self.chain[1:]))
        return pkcs12.serialize_key_and_certificates(
            b"me", self.key, self.chain[0], issuers, encryption
        )


def create_identity(
    name: str, issuer: Identity | None = None, *, is_authority: bool = False, hosts: str = ""
) -> Identity:
    """Creates a key and a certificate with the common name `name` for the comma-separated host
    names and IP addresses in `hosts`.

    `issuer` signs the certificate. Without an issuer, the certificate is self-signed.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.chain[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            # `ssl.create_default_context` of Python 3.13+ requires this extension and key usage.
            x509.AuthorityKeyIdentifier.from_issuer_public_key(
                (issuer.key if issuer else key).public_key()
            ),
            critical=False,
        )
        .add_extension(_usage(is_authority), critical=True)
    )
    if hosts:
        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            for host in hosts.split(",")
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(issuer.key if issuer else key, hashes.SHA256())
    return Identity(key, (certificate, *(issuer.chain if issuer else ())))


def _usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


@cache
def authority() -> Identity:
    return create_identity("authority", is_authority=True)


@cache
def intermediate() -> Identity:
    return create_identity("intermediate", authority(), is_authority=True)


@cache
def server() -> Identity:
    return create_identity("server", authority(), hosts="localhost,127.0.0.1")


@cache
def client() -> Identity:
    """Returns an identity for clients. An intermediate authority signed its certificate.

    The client must send the intermediate certificate too, because servers trust only the root.
    """
    return create_identity("client", intermediate())


@cache
def stranger() -> Identity:
    return create_identity("stranger", is_authority=True, hosts="localhost")


def trust_pkcs12(certificates: Sequence[x509.Certificate], password: str = PASSWORD) -> bytes:
    return pkcs12.serialize_key_and_certificates(
        None, None, None, list(certificates), BestAvailableEncryption(password.encode())
    )


def jks(
    certificates: Sequence[bytes],
    password: str = PASSWORD,
    *,
    version: int = 2,
    key_chain: Sequence[bytes] = (),
) -> bytes:
    """Returns the bytes of a JKS store in which `certificates` are trusted.

    If `key_chain` is not empty, the store begins with a private key and this certificate chain.
    """

    def utf(text: str) -> bytes:
        return struct.pack(">H", len(text)) + text.encode()

    def certificate(der: bytes) -> bytes:
        kind = utf("X.509") if version == 2 else b""
        return kind + struct.pack(">I", len(der)) + der

    entries = []
    if key_chain:
        head = struct.pack(">I", 1) + utf("key") + struct.pack(">Q", 1)
        secret = b"sealed by Sun's own cipher"
        body = struct.pack(">I", len(secret)) + secret + struct.pack(">I", len(key_chain))
        entries.append(head + body + b"".join(map(certificate, key_chain)))
    entries += [
        struct.pack(">I", 2) + utf(f"ca{n}") + struct.pack(">Q", 1) + certificate(der)
        for n, der in enumerate(certificates)
    ]
    body = struct.pack(">III", 0xFEEDFEED, version, len(entries)) + b"".join(entries)
    return body + jks_digest(body, password)


def jks_digest(body: bytes, password: str = PASSWORD) -> bytes:
    return hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()
