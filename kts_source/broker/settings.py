"""Settings of connections to brokers: addresses, timeouts, sizes and authentication.

`BrokerSettings` may be shown and logged: all secrets are in its `security`. Values that expire
(tokens, AWS credentials, Kerberos tickets) are not part of it: the worker that opens a connection
fetches them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from kts_source.secret import Secret

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
AWS_MSK_IAM: Final = "AWS_MSK_IAM"
GSSAPI: Final = "GSSAPI"
SCRAM_MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
MECHANISMS: Final = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER, AWS_MSK_IAM, GSSAPI)

TLS_1_2: Final = "TLSv1.2"
TLS_1_3: Final = "TLSv1.3"

MAX_FETCH_BYTES: Final = 57_671_680
"""Maximum size of a fetch response by the brokers' default of `fetch.max.bytes`."""


@dataclass(frozen=True, slots=True, repr=False)
class Tls:
    """Certificates and versions of TLS.

    Attributes:
        trusted: Trusted certificates (X.509, DER); empty = the machine's certificate authorities.
        chain: The client's certificate and its intermediates (X.509, DER), its own first; empty =
            none is sent.
        key: The client's private key (PKCS#8, DER, not encrypted); empty without a chain.
        check_host_name: True if a broker's certificate must match its host name.
        oldest: Oldest version of TLS, inclusive.
        newest: Newest version of TLS, inclusive.
    """

    trusted: tuple[bytes, ...]
    chain: tuple[bytes, ...]
    key: bytes
    check_host_name: bool
    oldest: str
    newest: str


@dataclass(frozen=True, slots=True, repr=False)
class Password:
    """Name and password, for PLAIN and SCRAM."""

    username: str
    password: str


@dataclass(frozen=True, slots=True, repr=False)
class TokenEndpoint:
    """An OAuth endpoint for OAUTHBEARER (client credentials grant, RFC 6749, 4.4).

    Attributes:
        url: The endpoint: https, or http on this machine.
        client_id: Id of the client.
        client_secret: Secret of the client.
        scope: Requested scope; empty = the server's default.
        urlencoded: True if id and secret are URL-encoded in the header.
        extensions: Names and values sent to the broker with the token.
    """

    url: str
    client_id: str
    client_secret: str
    scope: str
    urlencoded: bool
    extensions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, repr=False)
class TokenCallback:
    """A user's function that returns OAUTHBEARER's token.

    Attributes:
        function: `module:function`, called without arguments when a connection is opened.
        extensions: Names and values sent to the broker with the token.
    """

    function: str
    extensions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, repr=False)
class AwsCredentials:
    """Credentials of AWS_MSK_IAM: botocore's chain on the machine that connects.

    Attributes:
        profile: Profile of the AWS configuration files; empty = the default of the chain.
    """

    profile: str


@dataclass(frozen=True, slots=True, repr=False)
class Kerberos:
    """The Kerberos ticket for GSSAPI.

    Attributes:
        service: The brokers' service name, the first part of their principal.
        principal: The client's principal; empty = the one of the ticket cache.
        keytab: Path of its keys on the machine that connects; empty = the ticket cache.
    """

    service: str
    principal: str
    keytab: str


Login: TypeAlias = Password | TokenEndpoint | TokenCallback | AwsCredentials | Kerberos


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """Encryption and authentication of connections. Pass it around inside `Secret` only.

    Attributes:
        protocol: One of `PROTOCOLS`.
        tls: With SSL and SASL_SSL, else `None`.
        mechanism: One of `MECHANISMS` with SASL_PLAINTEXT and SASL_SSL, else empty.
        login: Credentials of the mechanism, or `None`.
    """

    protocol: str = PLAINTEXT
    tls: Tls | None = None
    mechanism: str = ""
    login: Login | None = None

    def secret_values(self) -> frozenset[str]:
        """Returns texts to erase from messages of libraries and brokers (`secret.scrub`)."""
        match self.login:
            case Password(password=value) | TokenEndpoint(client_secret=value):
                return frozenset({value})
        return frozenset()


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The effective `kafka.*` options, typed.

    Attributes:
        bootstrap: Hosts (names, IPv4, or IPv6 without brackets) and ports.
        security: Encryption and authentication, including credentials.
        client_id: Name for logs and quotas of brokers.
        rack: Rack of this client, so that nearby followers serve it; empty = unknown.
        request_timeout_seconds: Timeout of one request.
        connect_timeout_seconds: Timeout of opening one connection.
        fetch_max_wait_ms: Maximum time that a broker waits for `fetch_min_bytes`.
        fetch_max_bytes: Maximum size of one response.
        partition_fetch_bytes: Maximum size of one partition in a response; at most
            `MAX_FETCH_BYTES`.
    """

    bootstrap: tuple[tuple[str, int], ...]
    security: Secret[Security]
    client_id: str = "tiered-kafka"
    rack: str = ""
    request_timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 10.0
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 << 20
    partition_fetch_bytes: int = 8 << 20
