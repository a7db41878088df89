"""Settings of connections to brokers: addresses, timeouts, sizes and authentication.

`BrokerSettings` may be printed and logged. Its attribute `security` contains all secrets and hides
them when it is printed. Values that expire (tokens, AWS credentials, Kerberos tickets) are not part
of the settings. The worker that opens a connection fetches them.
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
"""Brokers' default of `fetch.max.bytes`, the maximum size of a fetch response."""


@dataclass(frozen=True, slots=True, repr=False)
class Tls:
    """Certificates and TLS versions of connections.

    Attributes:
        trusted: Trusted certificates (X.509, DER); empty = trust the machine's certificate
            authorities.
        chain: The client's certificate, followed by intermediate certificates (X.509, DER); empty =
            the client sends no certificate.
        key: The client's private key (PKCS#8, DER, not encrypted); empty if `chain` is empty.
        check_host_name: True if a broker's certificate must match its host name.
        oldest: Oldest allowed TLS version, inclusive.
        newest: Newest allowed TLS version, inclusive.
    """

    trusted: tuple[bytes, ...]
    chain: tuple[bytes, ...]
    key: bytes
    check_host_name: bool
    oldest: str
    newest: str


@dataclass(frozen=True, slots=True, repr=False)
class Password:
    """User name and password, for the mechanisms PLAIN and SCRAM."""

    username: str
    password: str


@dataclass(frozen=True, slots=True, repr=False)
class TokenEndpoint:
    """An OAuth endpoint for OAUTHBEARER (client credentials grant, RFC 6749, 4.4).

    Attributes:
        url: URL of the endpoint. http is allowed only for an endpoint on this machine.
        scope: Requested scope; empty = the endpoint's default.
        urlencoded: True if id and secret are URL-encoded in the Authorization header.
        extensions: Names and values of SASL extensions, which are sent to the broker with the
            token.
    """

    url: str
    client_id: str
    client_secret: str
    scope: str
    urlencoded: bool
    extensions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, repr=False)
class TokenCallback:
    """A user's function that returns a token for OAUTHBEARER.

    Attributes:
        function: `module:function`, called without arguments when a connection is opened.
        extensions: Names and values of SASL extensions, which are sent to the broker with the
            token.
    """

    function: str
    extensions: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, repr=False)
class AwsCredentials:
    """Settings of AWS_MSK_IAM. The credentials come from botocore's default chain on the machine
    that opens the connection.

    Attributes:
        profile: Profile in the AWS configuration files; empty = the default profile.
    """

    profile: str


@dataclass(frozen=True, slots=True, repr=False)
class Kerberos:
    """Settings of GSSAPI, which authenticates with a Kerberos ticket.

    Attributes:
        service: Service name of the brokers, which is the first part of their Kerberos principal.
        principal: The client's principal; empty = the principal of the ticket cache.
        keytab: Path of a keytab file with the principal's keys, on the machine that opens the
            connection; empty = use the ticket cache.
    """

    service: str
    principal: str
    keytab: str


Login: TypeAlias = Password | TokenEndpoint | TokenCallback | AwsCredentials | Kerberos


@dataclass(frozen=True, slots=True, repr=False)
class Security:
    """Encryption and authentication of connections. Contains secrets, so pass it only inside a
    `Secret`.

    Attributes:
        protocol: One of `PROTOCOLS`.
        tls: TLS settings for the protocols SSL and SASL_SSL; otherwise `None`.
        mechanism: One of `MECHANISMS` for the protocols SASL_PLAINTEXT and SASL_SSL; otherwise
            empty.
        login: Credentials for the mechanism; `None` without a mechanism.
    """

    protocol: str = PLAINTEXT
    tls: Tls | None = None
    mechanism: str = ""
    login: Login | None = None

    def secret_values(self) -> frozenset[str]:
        """Returns the texts that must be erased from messages of libraries and brokers, because
        they are secret. See `secret.scrub`.
        """
        match self.login:
            case Password(password=value) | TokenEndpoint(client_secret=value):
                return frozenset({value})
        return frozenset()


@dataclass(frozen=True, slots=True)
class FirstResponseTimeouts:
    """Timeouts until a broker has answered for the first time. They are short, because a failure
    before that is probably due to a wrong address or a firewall, and retries do not help.

    Attributes:
        seconds: Total time to try bootstrap brokers. The brokers share this time.
        answer_seconds: Timeout of the first response after a connection was opened.
    """

    seconds: float = 4.5
    answer_seconds: float = 8.0


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The parsed `kafka.*` options.

    Attributes:
        bootstrap: Host and port of each bootstrap broker. A host is a name, an IPv4 address, or an
            IPv6 address without brackets.
        security: Encryption and authentication, including credentials.
        client_id: Client id, which brokers use in logs and for quotas.
        rack: Rack of this client. Brokers use it to recommend a nearby follower; empty = unknown.
        request_timeout_seconds: Timeout of one request in seconds.
        connect_timeout_seconds: Timeout of opening one connection in seconds.
        first_response: Shorter timeouts until a broker has answered for the first time; `None` =
            the other timeouts apply from the start.
        fetch_max_wait_ms: Maximum time in ms that a broker waits for more records if a response has
            less than `fetch_min_bytes`.
        fetch_max_bytes: Maximum size of the records in one response, in bytes.
        partition_fetch_bytes: Maximum size of the records of one partition in a response, in bytes;
            at most `MAX_FETCH_BYTES`.
    """

    bootstrap: tuple[tuple[str, int], ...]
    security: Secret[Security]
    client_id: str = "tiered-kafka"
    rack: str = ""
    request_timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 10.0
    first_response: FirstResponseTimeouts | None = None
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 << 20
    partition_fetch_bytes: int = 8 << 20
