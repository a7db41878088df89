"""The table of `kafka.*` options: which options are supported, rejected (with the reason) and
ignored.

The parser, error texts and the documentation use the table. It contains the option names of Kafka's
consumer (`ConsumerConfig`, `SaslConfigs`, `SslConfigs`), without the prefix `kafka.`.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "kafka."

KAFKA: Final = ("kafka-python", "kafka", "option 'kafka.bootstrap.servers'")
"""Library, extra and feature, for the error that the library is missing."""

PLAIN_OPTIONS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "bootstrap.servers",
        "",
        "Brokers to contact first, `host:port,[::1]:9092`. Without it, no other `kafka.` option has"
        " an effect, except the two aliases.",
    ),
    ("client.id", "tiered-kafka", "Name of the client for logs and quotas of brokers."),
    ("client.rack", "", "Rack of the workers: nearby followers serve them (KIP-392)."),
    (
        "request.timeout.ms",
        "30000",
        "Timeout of one request. Set it to wait longer for the first response, which otherwise has"
        " a timeout of 8 s.",
    ),
    (
        "socket.connection.setup.timeout.ms",
        "10000",
        "Timeout of opening one connection. If neither this option nor `kafka.request.timeout.ms`"
        " is set, a scan fails after 5 s if no bootstrap broker accepts a connection.",
    ),
    ("fetch.max.wait.ms", "500", "Maximum time that a broker waits for `fetch.min.bytes`."),
    ("fetch.min.bytes", "1", "Minimum size of a response, before `fetch.max.wait.ms` passes."),
    ("fetch.max.bytes", "52428800", "Maximum bytes of one response; at most 57671680 are used."),
    (
        "max.partition.fetch.bytes",
        "8388608",
        "Maximum bytes of one partition in a response; at most 57671680 are used.",
    ),
    ("isolation.level", "", "Alias of `isolationLevel`."),
    ("check.crcs", "", "Alias of `checkCrcs`."),
)
"""Name, default and meaning of the supported options that are not about security."""

SECURITY_OPTIONS: Final[tuple[tuple[str, str, str], ...]] = (
    ("security.protocol", "PLAINTEXT", "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."),
    (
        "sasl.mechanism",
        "GSSAPI",
        "`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`, `AWS_MSK_IAM` or `GSSAPI`.",
    ),
    ("sasl.jaas.config", "", "One login module with its options, in Java's syntax."),
    (
        "sasl.oauthbearer.token.endpoint.url",
        "",
        "Endpoint of OAUTHBEARER's token: https, or http on this machine.",
    ),
    (
        "sasl.oauthbearer.client.credentials.client.id",
        "",
        "Client id for the endpoint. Overrides the login module's `clientId`.",
    ),
    (
        "sasl.oauthbearer.client.credentials.client.secret",
        "",
        "Client secret. Overrides `clientSecret`.",
    ),
    ("sasl.oauthbearer.scope", "", "Scope of the token. Overrides `scope`."),
    (
        "sasl.oauthbearer.header.urlencode",
        "false",
        "`true` URL-encodes id and secret in the header.",
    ),
    (
        "sasl.login.callback.handler.class",
        "",
        "`module:function` of Python that returns OAUTHBEARER's token when a connection is opened;"
        " Kafka's own `OAuthBearerLoginCallbackHandler` means the endpoint.",
    ),
    (
        "sasl.client.callback.handler.class",
        "",
        "Only MSK's `IAMClientCallbackHandler`, for AWS_MSK_IAM.",
    ),
    ("sasl.kerberos.service.name", "", "The brokers' service name, for GSSAPI."),
    ("ssl.truststore.type", "JKS", "`JKS`, `PKCS12` or `PEM`; JKS opens both, as in Java."),
    (
        "ssl.truststore.location",
        "",
        "File with trusted certificates; default: the authorities of this machine.",
    ),
    ("ssl.truststore.password", "", "Password of the truststore."),
    (
        "ssl.truststore.certificates",
        "",
        "Trusted certificates in the option itself, with type `PEM`.",
    ),
    ("ssl.keystore.type", "JKS", "`PKCS12` or `PEM`; JKS opens PKCS12, as in Java."),
    ("ssl.keystore.location", "", "File with the client's key and certificates (mutual TLS)."),
    ("ssl.keystore.password", "", "Password of the keystore."),
    ("ssl.keystore.key", "", "The key (PKCS#8) in the option itself, with type `PEM`."),
    ("ssl.keystore.certificate.chain", "", "Certificates of the key; the key's own comes first."),
    ("ssl.key.password", "", "Password of an encrypted key in PEM."),
    (
        "ssl.endpoint.identification.algorithm",
        "https",
        "Empty: host names in certificates of brokers are not checked.",
    ),
    (
        "ssl.enabled.protocols",
        "TLSv1.2,TLSv1.3",
        "Versions of TLS; older ones are ignored.",
    ),
    ("ssl.protocol", "TLSv1.3", "`TLSv1.2` excludes TLSv1.3."),
)
"""Name, default and meaning of the supported options about security."""

REFUSED: Final[Mapping[str, str]] = {
    "sasl.login.*": "logins are made by Python, when a connection is opened; remove it",
    "sasl.oauthbearer.assertion.*": "tokens come by client id and secret, or from the function of"
    " sasl.login.callback.handler.class",
    "sasl.oauthbearer.jwt.*": "Java classes cannot run here; sasl.login.callback.handler.class"
    " takes a function of Python",
    "security.providers": "Java classes cannot run here; remove it",
    "ssl.cipher.suites": "Python's OpenSSL chooses the ciphers; remove it",
    "ssl.engine.factory.class": "Java classes cannot run here; give ssl.truststore.… and"
    " ssl.keystore.…",
    "ssl.keymanager.algorithm": "TLS is Python's OpenSSL; remove it",
    "ssl.provider": "TLS is Python's OpenSSL; remove it",
    "ssl.secure.random.implementation": "TLS is Python's OpenSSL; remove it",
    "ssl.trustmanager.algorithm": "TLS is Python's OpenSSL; remove it",
}
"""Maps rejected options to the reason and to the alternative. A key is a name, or a prefix followed
by `*`. Supported options are not rejected, even if they match a prefix.
"""

WITHOUT_EFFECT: Final = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.include.jmx.reporter",
    "client.dns.lookup",
    "connections.max.idle.ms",
    "default.api.timeout.ms",
    "enable.metrics.push",
    "exclude.internal.topics",
    "group.*",
    "heartbeat.interval.ms",
    "max.poll.*",
    "metadata.*",
    "metric.reporters",
    "metrics.*",
    "partition.assignment.strategy",
    "receive.buffer.bytes",
    "reconnect.backoff.*",
    "retry.backoff.*",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.ticket.renew.*",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.*",
    "sasl.oauthbearer.jwks.*",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "send.buffer.bytes",
    "session.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
)
"""Ignored options, each a name or a prefix followed by `*`. They configure consumer groups,
commits, polling, metrics, Java's sockets, and checks that brokers make. Options that are in no
table and are not about security are ignored, too.
"""

COUNTED: Final = frozenset(name for name, _, _ in (*PLAIN_OPTIONS, *SECURITY_OPTIONS))
_OF_SECURITY: Final = re.compile(r"(?:ssl|sasl|security)\.")


def refusal(name: str) -> str | None:
    """Returns the reason why an option is rejected, and what to do instead; `None` if it is
    accepted or ignored. `name` is in lower case, without `kafka.`.
    """
    if name in COUNTED:
        return None
    for pattern, reason in REFUSED.items():
        if _fits(name, pattern):
            return reason
    if not _OF_SECURITY.match(name) or any(_fits(name, pattern) for pattern in WITHOUT_EFFECT):
        return None
    near = difflib.get_close_matches(name, sorted(COUNTED), n=1)
    return f"it is not known here; did you mean {PREFIX}{near[0]}?" if near else "it is not known"


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
