"""The options of SASL, checked: who logs in, and by what."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from kts_source.broker.jaas import JAAS_OPTION, parse_jaas
from kts_source.broker.kafka_table import PREFIX
from kts_source.broker.settings import (
    AWS_MSK_IAM,
    GSSAPI,
    OAUTHBEARER,
    PLAIN,
    SASL_SSL,
    SCRAM_MECHANISMS,
    AwsCredentials,
    Kerberos,
    Password,
    TokenCallback,
    TokenEndpoint,
)
from kts_source.callbacks import is_callback
from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.broker.settings import Login

_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_CLIENT_HANDLER: Final = "sasl.client.callback.handler.class"
_OWN_LOGIN_HANDLER: Final = re.compile(
    r"(?:kafkashaded\.)?org\.apache\.kafka\.common\.security\.oauthbearer\.(?:secured\.)?"
    r"OAuthBearerLoginCallbackHandler"
)
_MSK_HANDLER: Final = re.compile(
    r"(?:shadedmskiam\.)?software\.amazon\.msk\.auth\.iam\.IAMClientCallbackHandler"
)
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_EXTENSION: Final = "extension_"

# What a login module may be given, and what of it has no effect here: Java's ways to keep tickets.
_WITHOUT_EFFECT: Final = frozenset({"debug", "awsDebugCreds"})
_TAKEN: Final[Mapping[str, frozenset[str]]] = {
    PLAIN: frozenset({"username", "password", "serviceName"}),
    **{
        name: frozenset({"username", "password", "tokenauth", "serviceName"})
        for name in SCRAM_MECHANISMS
    },
    OAUTHBEARER: frozenset({"clientId", "clientSecret", "scope"}),
    AWS_MSK_IAM: frozenset({"awsProfileName"}),
    GSSAPI: frozenset(
        {
            *("serviceName", "principal", "keyTab", "useKeyTab", "useTicketCache"),
            *("storeKey", "doNotPrompt", "refreshKrb5Config", "renewTGT", "isInitiator"),
        }
    ),
}

_REFUSED: Final = frozenset(
    {
        *("awsRoleArn", "awsRoleSessionName", "awsRoleExternalId", "awsStsRegion"),
        *("awsMaxRetries", "awsMaxBackOffTimeMs", "ticketCache", "useDefaultCcache"),
    }
)
"""Names that errors may show besides: those of MSK's and Java's modules that are not taken."""


def login_from(given: Mapping[str, str], mechanism: str, protocol: str) -> Login:
    """What a mechanism needs.

    Args:
        given: Name in lower case, without `kafka.`, to text.
        mechanism: One of `MECHANISMS`.
        protocol: With SASL.

    Raises:
        InvalidOptionError: Malformed, missing or contradictory options.
    """
    options = _module_options(given, mechanism)
    _check_handlers(given, mechanism)
    if mechanism == OAUTHBEARER:
        return _token_source(given, options)
    if mechanism == AWS_MSK_IAM:
        if protocol != SASL_SSL:
            raise _invalid("security.protocol", f"must be {SASL_SSL} for {AWS_MSK_IAM}")
        return AwsCredentials(options.get("awsProfileName", ""))
    if mechanism == GSSAPI:
        return _kerberos(given, options)
    if options.get("tokenauth", "false").strip().lower() != "false":
        raise InvalidOptionError(
            f"option '{JAAS_OPTION}' has tokenauth: delegation tokens are not supported, give the"
            " user's own name and password"
        )
    missing = [name for name in ("username", "password") if not options.get(name)]
    if missing:
        raise InvalidOptionError(f"option '{JAAS_OPTION}' must give {' and '.join(missing)}")
    if any("\0" in options[name] for name in ("username", "password")):
        raise InvalidOptionError(f"option '{JAAS_OPTION}' has a zero byte in name or password")
    return Password(options["username"], options["password"])


def _module_options(given: Mapping[str, str], mechanism: str) -> Mapping[str, str]:
    text = given.get("sasl.jaas.config")
    if text is None:
        if mechanism == PLAIN or mechanism in SCRAM_MECHANISMS:
            raise InvalidOptionError(f"option '{JAAS_OPTION}' is needed for {mechanism}")
        return {}
    module = parse_jaas(text)
    if mechanism not in module.mechanisms:
        raise InvalidOptionError(
            f"option '{JAAS_OPTION}' has the login module of {' and '.join(module.mechanisms)},"
            f" but {PREFIX}sasl.mechanism is {mechanism}"
        )
    known = _REFUSED.union(*_TAKEN.values())
    for number, name in enumerate(module.options, 1):
        taken = name in _TAKEN[mechanism] or name in _WITHOUT_EFFECT
        if taken or (mechanism == OAUTHBEARER and name.startswith(_EXTENSION)):
            continue
        if mechanism == PLAIN and name.startswith("user_"):  # for brokers: whom they let in
            continue
        # An unknown name may be what is left of a password with a quote in it.
        shown = name if name in known else f"an option, number {number},"
        raise InvalidOptionError(
            f"option '{JAAS_OPTION}' has {shown} which is not supported; for {mechanism} it may"
            f" have {', '.join(sorted(_TAKEN[mechanism]))}"
        )
    return module.options


def _check_handlers(given: Mapping[str, str], mechanism: str) -> None:
    handler = given.get(_CLIENT_HANDLER)
    if handler is not None and (mechanism != AWS_MSK_IAM or not _MSK_HANDLER.fullmatch(handler)):
        raise _invalid(
            _CLIENT_HANDLER,
            "is not supported, but for MSK's IAMClientCallbackHandler with AWS_MSK_IAM: Java"
            " classes cannot run here",
        )
    handler = given.get(_LOGIN_HANDLER)
    if handler is not None and (
        mechanism != OAUTHBEARER
        or not (is_callback(handler) or _OWN_LOGIN_HANDLER.fullmatch(handler))
    ):
        raise _invalid(
            _LOGIN_HANDLER,
            "is not supported, but for OAUTHBEARER as module:function of Python, or as Kafka's own"
            " OAuthBearerLoginCallbackHandler: other Java classes cannot run here",
        )


def _token_source(
    given: Mapping[str, str], options: Mapping[str, str]
) -> TokenEndpoint | TokenCallback:
    extensions = _extensions(options)
    handler = given.get(_LOGIN_HANDLER, "")
    if is_callback(handler):
        if _ENDPOINT in given:
            raise _invalid(_ENDPOINT, f"and the function of {PREFIX}{_LOGIN_HANDLER}: give one")
        return TokenCallback(handler, extensions)
    if _ENDPOINT not in given:
        raise InvalidOptionError(
            f"OAUTHBEARER needs option {PREFIX}{_ENDPOINT}, or module:function in"
            f" {PREFIX}{_LOGIN_HANDLER}"
        )
    _check_url(given[_ENDPOINT])
    credentials = "sasl.oauthbearer.client.credentials.client"
    client_id = given.get(f"{credentials}.id", options.get("clientId", ""))
    client_secret = given.get(f"{credentials}.secret", options.get("clientSecret", ""))
    if not client_id or not client_secret:
        raise _invalid(_ENDPOINT, f"needs clientId and clientSecret in {JAAS_OPTION}")
    urlencoded = given.get("sasl.oauthbearer.header.urlencode", "false").strip().lower()
    if urlencoded not in ("true", "false"):
        raise _invalid("sasl.oauthbearer.header.urlencode", "must be true or false")
    if ":" in client_id and urlencoded == "false":  # RFC 7617, 2
        raise _invalid(_ENDPOINT, "is asked by a clientId without colon, or with urlencode=true")
    return TokenEndpoint(
        url=given[_ENDPOINT].strip(),
        client_id=client_id,
        client_secret=client_secret,
        scope=given.get("sasl.oauthbearer.scope", options.get("scope", "")),
        urlencoded=urlencoded == "true",
        extensions=extensions,
    )


def _check_url(text: str) -> None:
    try:
        url = urlsplit(text.strip())
        is_sound = bool(url.hostname) and url.port != 0
    except ValueError:
        raise _invalid(_ENDPOINT, "is no URL") from None
    if not is_sound or not re.fullmatch(r"[!-~]+", text.strip()):
        raise _invalid(_ENDPOINT, "is no URL")
    if url.username is not None or url.password is not None:
        raise _invalid(_ENDPOINT, f"must not hold a user: clientId goes into {JAAS_OPTION}")
    if url.scheme != "https" and (url.scheme != "http" or url.hostname not in _LOOPBACK):
        raise _invalid(_ENDPOINT, "must be https: the client's secret is sent there")


def _extensions(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """SASL extensions (RFC 7628, 3.1), such as the logical cluster of a cloud."""
    found = tuple(
        (name.removeprefix(_EXTENSION), value)
        for name, value in options.items()
        if name.startswith(_EXTENSION)
    )
    for name, value in found:
        is_name = re.fullmatch(r"[A-Za-z]+", name) and name != "auth"
        if not is_name or not re.fullmatch(r"[ -~\t\r\n]+", value):
            raise InvalidOptionError(
                f"option '{JAAS_OPTION}' has an extension_… that cannot be sent: letters name it,"
                " and its value is printable ASCII"
            )
    return found


def _kerberos(given: Mapping[str, str], options: Mapping[str, str]) -> Kerberos:
    name = "sasl.kerberos.service.name"
    found = {text.strip() for text in (given.get(name), options.get("serviceName")) if text}
    if len(found) != 1:
        problem = (
            "is needed for GSSAPI" if not found else f"and serviceName in {JAAS_OPTION} differ"
        )
        raise _invalid(name, problem)
    keytab = ""
    if options.get("useKeyTab", "false").strip().lower() == "true":
        keytab = options.get("keyTab", "")
        if not keytab or not options.get("principal"):
            raise InvalidOptionError(f"option '{JAAS_OPTION}' needs keyTab and principal")
    return Kerberos(found.pop(), options.get("principal", ""), keytab)


def _invalid(name: str, problem: str) -> InvalidOptionError:
    return InvalidOptionError(f"option '{PREFIX}{name}' {problem}")
