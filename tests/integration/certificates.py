"""Creates PEM certificates for tests and the broker settings that use them."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of a certificate authority and of the certificates that it signed.

    Attributes:
        authority: Certificate of the authority. Clients must trust it to accept the broker.
        broker: Key and certificate of a broker at 127.0.0.1 or localhost.
        client: Key and certificate of a client.
        other_authority: Certificate of an authority that signed neither broker nor client.
    """

    authority: Path
    broker: Path
    client: Path
    other_authority: Path

    def server_context(self) -> ssl.SSLContext:
        """Returns TLS settings for a server that uses the broker's certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.broker)
        return context

    def broker_settings(self, passwords: Mapping[str, str]) -> dict[str, str]:
        """Returns broker settings for the listeners SASL_SSL and SSL.

        SASL_SSL accepts PLAIN for the users in `passwords`, and SCRAM for users created later."""
        module = "org.apache.kafka.common.security"
        users = "".join(f' user_{user}="{password}"' for user, password in passwords.items())
        scram = f"{module}.scram.ScramLoginModule required;"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.broker),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "ssl.client.auth": "requested",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f"{module}.plain.PlainLoginModule required{users};"
            ),
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": scram,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
        }


def make_certificates(folder: Path) -> Certificates:
    """Creates an authority and writes the PEM files to `folder`.

    The authority signs a certificate for a broker and one for a client. Also creates a second
    authority, which signs neither of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key, authority = _authority("tests")
    _, other = _authority("others")
    certificates = Certificates(
        folder / "authority.pem", folder / "broker.pem", folder / "client.pem", folder / "other.pem"
    )
    certificates.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    certificates.other_authority.write_bytes(other.public_bytes(serialization.Encoding.PEM))
    for path, name in ((certificates.broker, "broker"), (certificates.client, "client")):
        path.write_bytes(_signed(name, key, authority))
    return certificates


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{name} authority")
    basic = x509.BasicConstraints(ca=True, path_length=0)
    builder = _builder(subject, subject, key).add_extension(basic, critical=True)
    return key, builder.sign(key, hashes.SHA256())


def _signed(name: str, key: ec.EllipticCurvePrivateKey, authority: x509.Certificate) -> bytes:
    own = ec.generate_private_key(ec.SECP256R1())
    hosts = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    builder = _builder(_name(name), authority.subject, own).add_extension(hosts, critical=False)
    private = own.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    certificate = builder.sign(key, hashes.SHA256())
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 30 * _DAY)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
