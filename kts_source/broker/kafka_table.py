"""The `kafka.*` options: which count, which are refused and why, which have no effect.

The one table that the parser, the errors and the page on brokers come from. Names are those of
Kafka's consumer (`ConsumerConfig`, `SaslConfigs`, `SslConfigs`), without `kafka.` in front.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX: Final = "kafka."
NEEDS_KAFKA: Final = (
    "option 'kafka.bootstrap.servers' needs kafka-python 3.0: pip install 'tiered-kafka[kafka]'"
)

PLAIN_OPTIONS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "bootstrap.servers",
        "",
        "Brokers to ask first, `host:port,[::1]:9092`. It turns brokers on; without it no other"
        " `kafka.` option has an effect, but for the two aliases.",
    ),
    ("client.id", "tiered-kafka", "What brokers log, and set quotas by."),
    ("client.rack", "", "Where the workers are: nearer followers serve them (KIP-392)."),
    ("request.timeout.ms", "30000", "Time for the answer to one request."),
    ("socket.connection.setup.timeout.ms", "10000", "Time to open one connection."),
    ("fetch.max.wait.ms", "500", "A broker may wait so long for `fetch.min.bytes`."),
    ("fetch.min.bytes", "1", "A broker waits for so much."),
    ("fetch.max.bytes", "52428800", "Bytes of one answer; 57671680 at most count."),
    (
        "max.partition.fetch.bytes",
        "8388608",
        "Bytes of one partition in one answer; 57671680 at most count.",
    ),
    ("isolation.level", "", "Alias of `isolationLevel`."),
    ("check.crcs", "", "Alias of `checkCrcs`."),
)
"""Name, default and meaning of the options that count, but for security."""

SECURITY_OPTIONS: Final[tuple[tuple[str, str, str], ...]] = (
    ("security.protocol", "PLAINTEXT", "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."),
    (
        "sasl.mechanism",
        "GSSAPI",
        "`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`, `AWS_MSK_IAM` or `GSSAPI`.",
    ),
    ("sasl.jaas.config", "", "One login module with its options, as Java has it."),
    (
        "sasl.oauthbearer.token.endpoint.url",
        "",
        "Where OAUTHBEARER gets its token: https, or http on this machine.",
    ),
    (
        "sasl.oauthbearer.client.credentials.client.id",
        "",
        "Client id there; wins over the login module's `clientId`.",
    ),
    (
        "sasl.oauthbearer.client.credentials.client.secret",
        "",
        "Its secret; wins over `clientSecret`.",
    ),
    ("sasl.oauthbearer.scope", "", "Scope of the token; wins over `scope`."),
    (
        "sasl.oauthbearer.header.urlencode",
        "false",
        "`true` URL-encodes id and secret in the header.",
    ),
    (
        "sasl.login.callback.handler.class",
        "",
        "`module:function` of Python that gives OAUTHBEARER's token where a connection is opened;"
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
        "File of certificates that are trusted; without one, this machine's authorities are.",
    ),
    ("ssl.truststore.password", "", "Its password."),
    ("ssl.truststore.certificates", "", "The same in the option itself, with type `PEM`."),
    ("ssl.keystore.type", "JKS", "`PKCS12` or `PEM`; JKS opens PKCS12, as in Java."),
    ("ssl.keystore.location", "", "File of our key and its certificates (mutual TLS)."),
    ("ssl.keystore.password", "", "Its password."),
    ("ssl.keystore.key", "", "The key (PKCS#8) in the option itself, with type `PEM`."),
    ("ssl.keystore.certificate.chain", "", "Its certificates, the key's own first."),
    ("ssl.key.password", "", "Password of an encrypted key in PEM."),
    (
        "ssl.endpoint.identification.algorithm",
        "https",
        "Empty: the name in a broker's certificate is not checked.",
    ),
    (
        "ssl.enabled.protocols",
        "TLSv1.2,TLSv1.3",
        "Versions that may be spoken; older ones are left out.",
    ),
    ("ssl.protocol", "TLSv1.3", "`TLSv1.2` leaves TLSv1.3 out."),
)
"""Name, default and meaning of the options of security that count."""

REFUSED: Final[Mapping[str, str]] = {
    "sasl.login.*": "logins are made by Python, when a connection is opened; leave it out",
    "sasl.oauthbearer.assertion.*": "tokens come by client id and secret, or from the function of"
    " sasl.login.callback.handler.class",
    "sasl.oauthbearer.jwt.*": "Java classes cannot run here; sasl.login.callback.handler.class"
    " takes a function of Python",
    "security.providers": "Java classes cannot run here; leave it out",
    "ssl.cipher.suites": "the ciphers are those of Python's OpenSSL; leave it out",
    "ssl.engine.factory.class": "Java classes cannot run here; give ssl.truststore.… and"
    " ssl.keystore.…",
    "ssl.keymanager.algorithm": "TLS is Python's OpenSSL; leave it out",
    "ssl.provider": "TLS is Python's OpenSSL; leave it out",
    "ssl.secure.random.implementation": "TLS is Python's OpenSSL; leave it out",
    "ssl.trustmanager.algorithm": "TLS is Python's OpenSSL; leave it out",
}
"""Name, or its beginning before `*`, and what to do instead. What is named above is not refused."""

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
"""Names, or their beginnings before `*`: groups, commits, polling, Java's sockets and metrics, and
what brokers check. Other names that are not of security have none either.
"""

COUNTED: Final = frozenset(name for name, _, _ in (*PLAIN_OPTIONS, *SECURITY_OPTIONS))
_OF_SECURITY: Final = re.compile(r"(?:ssl|sasl|security)\.")


def refusal(name: str) -> str | None:
    """Why an option is refused, and what to do; `None` where it is not.

    Args:
        name: In lower case, without `kafka.`.
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


def kafka_tables() -> dict[str, str]:
    """The tables of `kafka.*` options in the docs, in Markdown."""
    return {
        "kafka-options": _table(("option", "default", "meaning"), _rows(PLAIN_OPTIONS)),
        "kafka-security": _table(("option", "default", "meaning"), _rows(SECURITY_OPTIONS)),
        "kafka-refused": _table(
            ("option", "why, and what to do"),
            ((f"`{PREFIX}{name}`", reason) for name, reason in REFUSED.items()),
        ),
        "kafka-ignored": ", ".join(f"`{PREFIX}{name}`" for name in WITHOUT_EFFECT),
    }


def _rows(options: Iterable[tuple[str, str, str]]) -> Iterable[tuple[str, str, str]]:
    for name, default, doc in options:
        yield f"`{PREFIX}{name}`", f"`{default}`" if default else "", doc


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
