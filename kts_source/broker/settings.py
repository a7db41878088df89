"""How brokers are reached: addresses, patience, sizes, and what proves who is who.

`BrokerSettings` may be shown and logged: all that is secret is in its `security`. What expires
(tokens, AWS credentials, Kerberos tickets) is not in it; how to get it is, and the worker that
opens a connection gets it anew.
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
"""Brokers answer a fetch with no more, by their default of `fetch.max.bytes`."""


@dataclass(frozen=True, slots=True, repr=False)
class Tls:
    """Whom to believe, and who we are.

    Attributes:
        trusted: Certificates (X.509, DER) that are believed, and what they signed; empty = the
            authorities of the machine that connects.
        chain: Our certificate and those between it and its authority (X.509, DER), ours first;
            empty = none is shown.
        key: Our private key (PKCS#8, DER, not encrypted); empty without a chain.
        check_host_name: Whether a broker's certificate must be for the name it was reached by.
        oldest: Oldest version of TLS that is spoken, inclusive.
        newest: Newest one, inclusive.
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
    """Where OAUTHBEARER's tokens come from: OAuth's client credentials grant (RFC 6749, 4.4).

    Attributes:
        url: The endpoint: https, or http on this machine.
        client_id: Who asks.
        client_secret: What proves it.
        scope: Asked for; empty = the server's own.
        urlencoded: Whether id and secret are URL-encoded before they go into the header.
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
    """A function of the user's, `module:function`, that gives OAUTHBEARER's token.

    Attributes:
        function: Called without arguments wherever a connection is opened.
        extensions: Names and values sent to the broker with the token.
    """

    function: str
    extensions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, repr=False)
class AwsCredentials:
    """Where AWS_MSK_IAM's credentials come from: botocore's chain, on the machine that connects.

    Attributes:
        profile: Profile of the AWS configuration files; empty = the chain's own.
    """

    profile: str


@dataclass(frozen=True, slots=True, repr=False)
class Kerberos:
    """Whose ticket GSSAPI shows, to which service.

    Attributes:
        service: The brokers' service name, the part of their principal before the host.
        principal: Ours; empty = the one of the ticket cache.
        keytab: Path of its keys on the machine that connects; empty = the ticket cache.
    """

    service: str
    principal: str
    keytab: str


Login: TypeAlias = Password | TokenEndpoint | TokenCallback | AwsCredentials | Kerberos


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """What protects a connection. It travels inside `Secret` only.

    Attributes:
        protocol: One of `PROTOCOLS`.
        tls: For SSL and SASL_SSL, else `None`.
        mechanism: One of `MECHANISMS` for SASL_PLAINTEXT and SASL_SSL, else empty.
        login: What the mechanism needs; `None` without one.
    """

    protocol: str = PLAINTEXT
    tls: Tls | None = None
    mechanism: str = ""
    login: Login | None = None

    def secret_values(self) -> frozenset[str]:
        """Texts to erase from what libraries and brokers say (`secret.scrub`)."""
        match self.login:
            case Password(password=value) | TokenEndpoint(client_secret=value):
                return frozenset({value})
        return frozenset()


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The `kafka.*` options that count, typed.

    Attributes:
        bootstrap: Hosts (names, IPv4, or IPv6 without brackets) and ports.
        security: What protects connections, credentials included.
        client_id: What brokers log and set quotas by.
        rack: Where this client is, for followers that are nearer than the leader; empty = unknown.
        request_timeout_seconds: For the answer to one request.
        connect_timeout_seconds: To open one connection.
        fetch_max_wait_ms: A broker may wait so long for `fetch_min_bytes`.
        fetch_max_bytes: Of one answer.
        partition_fetch_bytes: Of one partition in one answer; at most `MAX_FETCH_BYTES`.
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
