r"""Parses the `kafka.*` options of one `load()` into `BrokerSettings`. Also reads the key stores
that the options name.

Error texts contain no values and no paths, because users may put a password into the wrong option.

`sasl.jaas.config` contains one login module and its options:

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";

It is parsed like Kafka's `JaasConfig`, which uses Java's `StreamTokenizer`: values are plain words,
or texts in double or single quotes with backslash escapes (`\n`, `\"`, `\101`). Comments are `//`
and `/* */`. Line ends in quotes, repeated names and several modules are errors. Error texts never
contain words of the configuration, because a password without quotes may look like an option name.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from kts_source.broker.kafka_table import COUNTED, KAFKA, PREFIX, refusal
from kts_source.broker.settings import (
    AWS_MSK_IAM,
    GSSAPI,
    MAX_FETCH_BYTES,
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    PLAINTEXT,
    PROTOCOLS,
    SASL_SSL,
    SCRAM_MECHANISMS,
    TLS_1_2,
    TLS_1_3,
    AwsCredentials,
    BrokerSettings,
    FirstResponseTimeouts,
    Kerberos,
    Password,
    Security,
    Tls,
    TokenCallback,
    TokenEndpoint,
)
from kts_source.broker.tls import (
    JKS,
    PEM,
    PKCS12,
    KeyStoreError,
    key_entry,
    pem_certificates,
    pem_key,
    trusted_certificates,
)
from kts_source.errors import InvalidOptionError
from kts_source.libraries import missing_extra
from kts_source.secret import Secret, is_callback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.broker.settings import Login


_JAAS: Final = "sasl.jaas.config"
JAAS_OPTION: Final = f"{PREFIX}{_JAAS}"

_LOGIN_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": (PLAIN,),
    "org.apache.kafka.common.security.scram.ScramLoginModule": SCRAM_MECHANISMS,
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": (OAUTHBEARER,),
    "software.amazon.msk.auth.iam.IAMLoginModule": (AWS_MSK_IAM,),
    "com.sun.security.auth.module.Krb5LoginModule": (GSSAPI,),
}
"""Maps the class name of a login module to its SASL mechanisms."""
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""(?P<blank>[\s]+|//[^\r\n]*|/\*.*?\*/)
    |"(?P<double>(?:[^"\\\r\n]|\\.)*)"
    |'(?P<single>(?:[^'\\\r\n]|\\.)*)'
    |(?P<word>[\w$.-]+)
    |(?P<mark>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROLS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NAME: Final = re.compile(r"[A-Za-z_][\w$.-]{0,80}", re.ASCII)
# Package prefixes of class names on platforms that bundle a relocated Kafka client.
_SHADED: Final = re.compile(r"(?:kafkashaded|shadedmskiam)\.")


@dataclass(frozen=True, slots=True, repr=False)
class LoginModule:
    """A login module of `sasl.jaas.config`.

    Attributes:
        mechanisms: SASL mechanisms for which the module can be used.
    """

    mechanisms: tuple[str, ...]
    options: Mapping[str, str]


def parse_jaas(text: str) -> LoginModule:
    """Parses the text of `sasl.jaas.config`. It must contain exactly one login module.

    Raises:
        InvalidOptionError: The syntax is invalid, the module is unknown, or there are several
            modules.
    """
    tokens = _tokens(text)
    if not tokens:
        raise _invalid(_JAAS, "is empty")
    module = _SHADED.sub("", tokens[0][1], count=1)
    if tokens[0][0] != "word" or module not in _LOGIN_MODULES:
        modules = ", ".join(_LOGIN_MODULES)
        raise _invalid(_JAAS, f"must begin with one of the login modules {modules}")
    if len(tokens) < 2 or tokens[1][0] != "word" or tokens[1][1].lower() not in _FLAGS:
        raise _invalid(_JAAS, "must have 'required' after the login module")
    options: dict[str, str] = {}
    next_token = 2
    while next_token < len(tokens) and tokens[next_token] != ("mark", ";"):
        kind, name = tokens[next_token]
        if kind != "word" or not _NAME.fullmatch(name):
            raise _invalid(_JAAS, "has an invalid option name")
        number = len(options) + 1
        pair = tokens[next_token + 1 : next_token + 3]
        if len(pair) < 2 or pair[0] != ("mark", "=") or pair[1][0] == "mark":
            # The name is not shown, because it may be part of a password without quotes.
            raise _invalid(_JAAS, f'must have the form name="value" in its option number {number}')
        if name in options:
            raise _invalid(_JAAS, f"has an option twice: number {number} repeats a name")
        options[name] = pair[1][1]
        next_token += 3
    if next_token == len(tokens):
        raise _invalid(_JAAS, "must end with a semicolon")
    if next_token != len(tokens) - 1:
        raise _invalid(_JAAS, "must contain only one login module and end with a semicolon")
    return LoginModule(_LOGIN_MODULES[module], options)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Splits a JAAS text into tokens and drops comments. Each token has two values: its kind
    (`word`, `text` or `mark`) and its text.
    """
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            quoted = text[position] in "\"'"
            what = "a quote that is not closed" if quoted else "a character that needs quotes"
            raise _invalid(_JAAS, f"has {what} at character {position}")
        position = match.end()
        kind = match.lastgroup
        if kind in ("double", "single"):
            tokens.append(("text", _ESCAPE.sub(_unescaped, match[kind])))
        elif kind in ("word", "mark"):
            tokens.append((kind, match[kind]))
    return tokens


def _unescaped(match: re.Match[str]) -> str:
    text = match[1]
    return chr(int(text, 8)) if text[0] in "01234567" else _CONTROLS.get(text, text)


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

# Options of Java's login modules that have no effect here.
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
"""Unsupported options of MSK's and Java's login modules whose names errors may show."""


def login_from(options: Mapping[str, str], mechanism: str, protocol: str) -> Login:
    """Returns the credentials for a mechanism. For credentials that expire, returns the settings
    with which they are fetched when a connection is opened.

    Args:
        options: Maps the name of each `kafka.*` option (lower case, without `kafka.`) to its text.
        mechanism: One of `MECHANISMS`.
        protocol: The security protocol, SASL_PLAINTEXT or SASL_SSL.

    Raises:
        InvalidOptionError: Options are malformed, missing or contradictory.
    """
    module_options = _module_options(options, mechanism)
    _check_handlers(options, mechanism)
    if mechanism == OAUTHBEARER:
        return _token_source(options, module_options)
    if mechanism == AWS_MSK_IAM:
        if protocol != SASL_SSL:
            raise _invalid("security.protocol", f"must be {SASL_SSL} for {AWS_MSK_IAM}")
        return AwsCredentials(module_options.get("awsProfileName", ""))
    if mechanism == GSSAPI:
        return _kerberos(options, module_options)
    if module_options.get("tokenauth", "false").strip().lower() != "false":
        raise _invalid(
            _JAAS,
            "has tokenauth: delegation tokens are not supported, set the"
            " user's own name and password",
        )
    missing = [name for name in ("username", "password") if not module_options.get(name)]
    if missing:
        raise _invalid(_JAAS, f"needs options {' and '.join(missing)}")
    if any("\0" in module_options[name] for name in ("username", "password")):
        raise _invalid(_JAAS, "has a zero byte in name or password")
    return Password(module_options["username"], module_options["password"])


def _module_options(options: Mapping[str, str], mechanism: str) -> Mapping[str, str]:
    text = options.get(_JAAS)
    if text is None:
        if mechanism == PLAIN or mechanism in SCRAM_MECHANISMS:
            raise _invalid(_JAAS, f"is needed for {mechanism}")
        return {}
    module = parse_jaas(text)
    if mechanism not in module.mechanisms:
        raise _invalid(
            _JAAS,
            f"has the login module of {' and '.join(module.mechanisms)},"
            f" but {PREFIX}sasl.mechanism is {mechanism}",
        )
    possible = _REFUSED.union(*_TAKEN.values())
    for number, name in enumerate(module.options, 1):
        taken = name in _TAKEN[mechanism] or name in _WITHOUT_EFFECT
        if taken or (mechanism == OAUTHBEARER and name.startswith(_EXTENSION)):
            continue
        if mechanism == PLAIN and name.startswith("user_"):  # accounts on brokers
            continue
        # An unknown name is not shown, because it may be the rest of a password that contains a
        # quote.
        shown = name if name in possible else f"an option, number {number},"
        raise _invalid(
            _JAAS,
            f"has {shown} which is not supported; for {mechanism} the supported options"
            f" are {', '.join(sorted(_TAKEN[mechanism]))}",
        )
    return module.options


def _check_handlers(options: Mapping[str, str], mechanism: str) -> None:
    handler = options.get(_CLIENT_HANDLER)
    if handler is not None and (mechanism != AWS_MSK_IAM or not _MSK_HANDLER.fullmatch(handler)):
        raise _invalid(
            _CLIENT_HANDLER,
            "supports only MSK's IAMClientCallbackHandler, with mechanism AWS_MSK_IAM: other Java"
            " classes cannot run here",
        )
    handler = options.get(_LOGIN_HANDLER)
    if handler is not None and (
        mechanism != OAUTHBEARER
        or not (is_callback(handler) or _OWN_LOGIN_HANDLER.fullmatch(handler))
    ):
        raise _invalid(
            _LOGIN_HANDLER,
            "supports only mechanism OAUTHBEARER, with module:function of Python or Kafka's own"
            " OAuthBearerLoginCallbackHandler: other Java classes cannot run here",
        )


def _token_source(
    options: Mapping[str, str], module_options: Mapping[str, str]
) -> TokenEndpoint | TokenCallback:
    extensions = _extensions(module_options)
    handler = options.get(_LOGIN_HANDLER, "")
    if is_callback(handler):
        if _ENDPOINT in options:
            raise _invalid(
                _ENDPOINT,
                f"and the function in {PREFIX}{_LOGIN_HANDLER} both return tokens: remove one",
            )
        return TokenCallback(handler, extensions)
    if _ENDPOINT not in options:
        raise InvalidOptionError(
            f"OAUTHBEARER needs option {PREFIX}{_ENDPOINT}, or module:function in"
            f" {PREFIX}{_LOGIN_HANDLER}"
        )
    _check_url(options[_ENDPOINT])
    credentials = "sasl.oauthbearer.client.credentials.client"
    client_id = options.get(f"{credentials}.id", module_options.get("clientId", ""))
    client_secret = options.get(f"{credentials}.secret", module_options.get("clientSecret", ""))
    if not client_id or not client_secret:
        raise _invalid(_ENDPOINT, f"needs clientId and clientSecret in {JAAS_OPTION}")
    urlencoded = options.get("sasl.oauthbearer.header.urlencode", "false").strip().lower()
    if urlencoded not in ("true", "false"):
        raise _invalid("sasl.oauthbearer.header.urlencode", "must be true or false")
    if ":" in client_id and urlencoded == "false":  # RFC 7617, 2
        raise _invalid(_ENDPOINT, "needs a clientId without a colon, or urlencode=true")
    return TokenEndpoint(
        url=options[_ENDPOINT].strip(),
        client_id=client_id,
        client_secret=client_secret,
        scope=options.get("sasl.oauthbearer.scope", module_options.get("scope", "")),
        urlencoded=urlencoded == "true",
        extensions=extensions,
    )


def _check_url(text: str) -> None:
    try:
        url = urlsplit(text.strip())
        is_sound = bool(url.hostname) and url.port != 0
    except ValueError:
        raise _invalid(_ENDPOINT, "is not a URL") from None
    if not is_sound or not re.fullmatch(r"[!-~]+", text.strip()):
        raise _invalid(_ENDPOINT, "is not a URL")
    if url.username is not None or url.password is not None:
        raise _invalid(_ENDPOINT, f"must not have a user: clientId goes into {JAAS_OPTION}")
    if url.scheme != "https" and (url.scheme != "http" or url.hostname not in _LOOPBACK):
        raise _invalid(_ENDPOINT, "must be an https URL, because the client's secret is sent to it")


def _extensions(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns name and value of each SASL extension in the options (RFC 7628, 3.1), such as the id
    of a logical cluster in a cloud.
    """
    extensions = tuple(
        (name.removeprefix(_EXTENSION), value)
        for name, value in options.items()
        if name.startswith(_EXTENSION)
    )
    for name, value in extensions:
        is_name = re.fullmatch(r"[A-Za-z]+", name) and name != "auth"
        if not is_name or not re.fullmatch(r"[ -~\t\r\n]+", value):
            raise _invalid(
                _JAAS,
                "has an invalid option extension_…: the name after extension_ must be letters,"
                " and the value must be printable ASCII",
            )
    return extensions


def _kerberos(options: Mapping[str, str], module_options: Mapping[str, str]) -> Kerberos:
    name = "sasl.kerberos.service.name"
    services = {
        text.strip() for text in (options.get(name), module_options.get("serviceName")) if text
    }
    if len(services) != 1:
        problem = f"and serviceName in {JAAS_OPTION} differ" if services else "is needed for GSSAPI"
        raise _invalid(name, problem)
    keytab = ""
    if module_options.get("useKeyTab", "false").strip().lower() == "true":
        keytab = module_options.get("keyTab", "")
        if not keytab or not module_options.get("principal"):
            raise _invalid(_JAAS, "has useKeyTab=true, so it needs keyTab and principal")
    return Kerberos(services.pop(), module_options.get("principal", ""), keytab)


_MAX_FILE_BYTES: Final = 16 << 20
_OLDER_VERSIONS: Final = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")


def security_from(options: Mapping[str, str]) -> tuple[Security, frozenset[str]]:
    """Returns two values: the security settings of connections, and the names of the options that
    have no effect with these settings.

    Args:
        options: Maps the name of each `kafka.*` option (lower case, without `kafka.`) to its text.
            The caller has rejected unsupported options.

    Raises:
        InvalidOptionError: Options are malformed, missing or contradictory, or a file cannot be
            opened.
    """
    of_tls = frozenset(name for name in options if name.startswith("ssl."))
    of_sasl = frozenset(name for name in options if name.startswith("sasl."))
    if "security.protocol" not in options and (of_tls or of_sasl):
        raise _invalid(
            min(of_tls | of_sasl),
            f"needs {PREFIX}security.protocol, which defaults to {PLAINTEXT}: set it to"
            " SSL, SASL_PLAINTEXT or SASL_SSL",
        )
    protocol = _choice(options, "security.protocol", PLAINTEXT, PROTOCOLS)
    tls, mechanism, login = None, "", None
    idle: frozenset[str] = frozenset()
    if protocol.startswith("SASL"):
        mechanism = _choice(options, "sasl.mechanism", GSSAPI, MECHANISMS)
        login = login_from(options, mechanism, protocol)
    else:
        idle |= of_sasl
    if protocol.endswith("SSL"):
        tls = _tls(options)
    else:
        idle |= of_tls
    security = Security(protocol, tls, mechanism, login)
    if tls is not None:
        # Not imported at import time, because `ssl` is needed only with brokers.
        from kts_source.broker.tls import ssl_context

        ssl_context(security)  # a key that does not match the certificate fails here
    return security, idle


def _tls(options: Mapping[str, str]) -> Tls:
    algorithm = options.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in ("", "https"):
        raise _invalid("ssl.endpoint.identification.algorithm", "must be https, or empty")
    oldest, newest = _versions(options)
    chain, key = _client_key(options)
    return Tls(_trusted(options), chain, key, algorithm == "https", oldest, newest)


def _versions(options: Mapping[str, str]) -> tuple[str, str]:
    name = "ssl.enabled.protocols"
    versions = (TLS_1_2, TLS_1_3)
    texts = [text.strip() for text in options.get(name, ",".join(versions)).split(",")]
    if not all(text in versions or text in _OLDER_VERSIONS for text in texts):
        raise _invalid(name, f"must be {TLS_1_2}, {TLS_1_3} or both, separated by a comma")
    allowed = [version for version in versions if version in texts]
    if _choice(options, "ssl.protocol", TLS_1_3, ("TLS", *versions)) == TLS_1_2:
        allowed = [version for version in allowed if version == TLS_1_2]
    if not allowed:
        raise _invalid(
            name, f"and {PREFIX}ssl.protocol together allow neither {TLS_1_2} nor {TLS_1_3}"
        )
    return allowed[0], allowed[-1]


def _trusted(options: Mapping[str, str]) -> tuple[bytes, ...]:
    location, inline, word = (
        f"ssl.truststore.{last}" for last in ("location", "certificates", "password")
    )
    kind = _kind(options, "ssl.truststore.type")
    password = options.get(word)
    if inline in options:
        _check_inline(options, inline, location, "ssl.truststore.type", kind)
    if kind == PEM and password is not None:
        raise _invalid(word, "has no effect with PEM: remove it")
    if location not in options and password is not None:
        raise _invalid(word, f"needs {PREFIX}{location}")
    try:
        if inline in options:
            return pem_certificates(options[inline])
        if location not in options:
            return ()
        data = _file(options, location)
        if kind == PEM:
            return pem_certificates(_text(data))
        return trusted_certificates(data, password)
    except KeyStoreError as error:
        raise _invalid(inline if inline in options else location, str(error)) from None


def _client_key(options: Mapping[str, str]) -> tuple[tuple[bytes, ...], bytes]:
    """Returns the client's certificate chain and private key. Both are empty if the options name no
    key.
    """
    location, key, chain, word = (
        f"ssl.keystore.{last}" for last in ("location", "key", "certificate.chain", "password")
    )
    kind = _kind(options, "ssl.keystore.type")
    password = options.get(word)
    for name, other in ((key, chain), (chain, key)):
        if name in options:
            _check_inline(options, name, location, "ssl.keystore.type", kind)
            if other not in options:
                raise _invalid(name, f"needs {PREFIX}{other}")
    if kind == PEM and password is not None:
        raise _invalid(word, f"has no effect with PEM: set {PREFIX}ssl.key.password instead")
    if location not in options and password is not None:
        raise _invalid(word, f"needs {PREFIX}{location}")
    if location in options and kind != PEM and password is None:
        raise _invalid(location, f"needs {PREFIX}{word}")
    concerned = location
    try:
        if key in options:
            concerned = chain
            certificates = pem_certificates(options[chain])
            concerned = key
            return certificates, pem_key(options[key], options.get("ssl.key.password"))
        if location not in options:
            return (), b""
        data = _file(options, location)
        if kind == PEM:
            text = _text(data)
            return pem_certificates(text), pem_key(text, options.get("ssl.key.password"))
        assert password is not None
        entry = key_entry(data, password)
    except KeyStoreError as error:
        raise _invalid(concerned, str(error)) from None
    return entry.chain, entry.key


def _check_inline(
    options: Mapping[str, str], name: str, location: str, type_name: str, kind: str
) -> None:
    if kind != PEM:
        raise _invalid(name, f"needs {PREFIX}{type_name} PEM")
    if location in options:
        raise _invalid(name, f"and {PREFIX}{location} have the same meaning: remove one of them")


def _kind(options: Mapping[str, str], name: str) -> str:
    return _choice(options, name, JKS, (JKS, PKCS12, PEM))


def _file(options: Mapping[str, str], name: str) -> bytes:
    text = options[name]
    if "-----BEGIN" in text:
        raise _invalid(name, "must be a path; put the PEM text into the options for inline PEM")
    path = Path(text)
    try:
        if not path.is_file():
            raise _invalid(name, "is not a file on the driver")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _invalid(name, f"names a file that cannot be read: {reason}") from None
    if len(data) > _MAX_FILE_BYTES:
        raise _invalid(name, f"names a file larger than the limit of {_MAX_FILE_BYTES >> 20} MiB")
    return data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise KeyStoreError("is not PEM, because it is not UTF-8 text") from None


def _choice(options: Mapping[str, str], name: str, default: str, choices: tuple[str, ...]) -> str:
    by_upper = {choice.upper(): choice for choice in choices}
    choice = by_upper.get(options.get(name, default).strip().upper())
    if choice is None:
        raise _invalid(name, f"must be {', '.join(choices[:-1])} or {choices[-1]}")
    return choice


def _invalid(name: str, problem: str) -> InvalidOptionError:
    return InvalidOptionError(f"option '{PREFIX}{name}' {problem}")


_BOOTSTRAP: Final = "bootstrap.servers"
_REQUEST_TIMEOUT: Final = "request.timeout.ms"
_SETUP_TIMEOUT: Final = "socket.connection.setup.timeout.ms"
_SERVER: Final = re.compile(
    r"(?:(?P<protocol>[A-Za-z][\w+.-]*)://)?"
    r"(?:\[(?P<ip6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[\w.-]+)):(?P<port>[0-9]{1,5})"
)
_MAX_INT32: Final = (1 << 31) - 1
_MAX_NAME: Final = 249


def broker_settings(
    kafka_texts: Mapping[str, str],
) -> tuple[BrokerSettings | None, tuple[str, ...]]:
    """Returns the settings of connections to brokers. Reads the files that options name.

    Args:
        kafka_texts: Maps the name of each option (lower case, including `kafka.`) to its text.

    Returns:
        Two values: the settings, or `None` if option `kafka.bootstrap.servers` is missing; the
        sorted names of the options that have no effect.

    Raises:
        InvalidOptionError: An option is malformed or unsupported, or needs another option that is
            missing, or a file cannot be opened.
    """
    options = {name.removeprefix(PREFIX): text for name, text in kafka_texts.items()}
    if _BOOTSTRAP not in options:
        return None, tuple(sorted(kafka_texts))
    for name in sorted(options):
        if reason := refusal(name):
            raise _invalid(name, f"is not supported: {reason}")
        _check_characters(name, options[name])
    if importlib.util.find_spec("kafka") is None:  # importing it is slow
        raise missing_extra(*KAFKA)
    security, idle = security_from(options)
    settings = BrokerSettings(
        bootstrap=_servers(options[_BOOTSTRAP], security.protocol),
        security=Secret(security),
        client_id=_name(options, "client.id", "tiered-kafka"),
        rack=_name(options, "client.rack", ""),
        request_timeout_seconds=_number(options, _REQUEST_TIMEOUT, 30_000) / 1000,
        connect_timeout_seconds=_number(options, _SETUP_TIMEOUT, 10_000) / 1000,
        first_response=None
        if {_REQUEST_TIMEOUT, _SETUP_TIMEOUT} & options.keys()
        else FirstResponseTimeouts(),
        fetch_max_wait_ms=_number(options, "fetch.max.wait.ms", 500, least=0),
        fetch_min_bytes=_number(options, "fetch.min.bytes", 1, least=0),
        fetch_max_bytes=min(_number(options, "fetch.max.bytes", 50 << 20), MAX_FETCH_BYTES),
        partition_fetch_bytes=min(
            _number(options, "max.partition.fetch.bytes", 8 << 20), MAX_FETCH_BYTES
        ),
    )
    if settings.fetch_max_wait_ms >= settings.request_timeout_seconds * 1000:
        raise InvalidOptionError(
            "option 'kafka.fetch.max.wait.ms' must be less than kafka.request.timeout.ms"
        )
    ignored = {PREFIX + name for name in options if name not in COUNTED or name in idle}
    return settings, tuple(sorted(ignored))


def _servers(text: str, protocol: str) -> tuple[tuple[str, int], ...]:
    servers: dict[tuple[str, int], None] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        match = _SERVER.fullmatch(entry)
        port = int(match["port"]) if match else 0
        if match is None or not 0 < port <= 65_535:
            raise _invalid(
                _BOOTSTRAP,
                f"must be like host:9092,[::1]:9092; its entry {len(servers) + 1} is invalid",
            )
        if match["protocol"] and match["protocol"].upper() != protocol:
            raise _invalid(
                _BOOTSTRAP,
                f"has a protocol before :// that differs from"
                f" kafka.security.protocol, which is {protocol}",
            )
        servers[(match["ip6"] or match["host"], port)] = None
    if not servers:
        raise _invalid(_BOOTSTRAP, "contains no broker address")
    return tuple(servers)


def _number(options: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    text = options.get(name, str(default)).strip()
    if not re.fullmatch(r"\+?[0-9]{1,10}", text) or not least <= int(text) <= _MAX_INT32:
        raise _invalid(name, f"must be a whole number from {least} to {_MAX_INT32}")
    return int(text)


def _name(options: Mapping[str, str], name: str, default: str) -> str:
    text = options.get(name, default)
    if len(text) > _MAX_NAME or not text.isprintable():
        raise _invalid(name, f"must be at most {_MAX_NAME} printable characters")
    return text


def _check_characters(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _invalid(name, "contains half of a surrogate pair, so it is not valid text") from None
    if "\0" in text:
        raise _invalid(name, "has a zero byte")
