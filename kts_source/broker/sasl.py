"""SASL authentication with the mechanisms of kafka-python.

A login consists of these requests:

    SaslHandshake(mechanism), then SaslAuthenticate(auth_bytes) until the exchange is done

A `SaslClient` creates the bytes of each SaslAuthenticate request and reads the bytes of the
response. `Connection` sends and receives these bytes.

Tokens for OAUTHBEARER come from an endpoint (OAuth's client credentials grant) or from a user's
function. The process that opens the connection fetches them. A token of an endpoint is reused for
80 % of its lifetime.

An import of any module of kafka-python runs the package's `__init__`, which also imports the
consumer, producer and admin client. This takes 0.50 s instead of 0.22 s per process. So
`load_messages` imports the messages without this `__init__`, which runs only when an attribute of
the package is used.
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import re
import ssl
import sys
import threading
import time
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote_plus, urlencode, urlsplit

from kts_source.broker.kafka_table import KAFKA
from kts_source.broker.settings import (
    OAUTHBEARER,
    SCRAM_MECHANISMS,
    AwsCredentials,
    Kerberos,
    Password,
    TokenCallback,
    TokenEndpoint,
)
from kts_source.errors import (
    BrokerError,
    BrokerUnavailableError,
    InvalidOptionError,
    MissingExtraError,
)
from kts_source.libraries import missing_extra
from kts_source.secret import call_callback
from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.broker.settings import Security


_PACKAGE: Final = "kafka"
_OF_THE_PACKAGE: Final = ("__all__", "__version__")
_package_lock = threading.RLock()
_loading = False

_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # b64token of RFC 6750, 2.1
_MAX_ANSWER_BYTES: Final = 1 << 20
_TIMEOUT_SECONDS: Final = 10.0
_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.2
_USED_SHARE_OF_LIFE: Final = 0.8
_LONGEST_LIFE_SECONDS: Final = 1e9

_held: dict[TokenEndpoint, tuple[str, float]] = {}
"""Maps an endpoint to its token, and to the time until which the token is reused."""
_lock: Final = threading.Lock()


def token(source: TokenEndpoint | TokenCallback) -> str:
    """Returns a valid token for OAUTHBEARER. `source` is an OAuth endpoint or a user's function.

    Raises:
        BrokerUnavailableError: The endpoint cannot be reached, or returns a server error.
        BrokerError: The endpoint rejects the client, or the endpoint or the function returns no
            token.
    """
    if isinstance(source, TokenCallback):
        return _from_callback(source)
    with _lock:  # one request serves all threads
        held = _held.get(source)
        if held is None or time.monotonic() >= held[1]:
            began = time.monotonic()
            text, seconds = _fetch_token(source)
            held = _held[source] = (text, began + seconds * _USED_SHARE_OF_LIFE)
        return held[0]


def forget(source: TokenEndpoint | TokenCallback) -> None:
    """Drops the cached token of an endpoint after a broker rejected it, so that the next connection
    fetches a new one.
    """
    with _lock:
        if isinstance(source, TokenEndpoint):
            _held.pop(source, None)


def _from_callback(source: TokenCallback) -> str:
    try:
        token = call_callback(source.function)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        # The user's error is not chained, because its text may contain a credential.
        raise BrokerError(
            f"the callback {source.function} failed to return a token: {type(error).__name__}"
        ) from None
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise BrokerError(
            f"the callback {source.function} returned a {type(token).__name__} that is not a token:"
            " a token must be a str of letters, digits and -._~+/="
        )
    return token


def _fetch_token(source: TokenEndpoint) -> tuple[str, float]:
    """Fetches a token from an OAuth endpoint. Returns the token and its lifetime in seconds; the
    lifetime is 0 if the endpoint does not state it.
    """
    endpoint = f"the token endpoint at {urlsplit(source.url).hostname}"
    problem = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS * 2**attempt)
        try:
            status, body = _post_token_request(source)
        except ssl.SSLCertVerificationError as error:
            raise BrokerError(
                f"the certificate of {endpoint} is not trusted: {error.verify_message}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            problem = f"{endpoint} does not answer: {type(error).__name__}"
            continue
        if status == 200:
            return _parsed(endpoint, body)
        if status < 500 and status != 429:
            raise BrokerError(
                f"{endpoint} returned HTTP {status}{_oauth_error(body)}: check the client id, its"
                " secret and the scope"
            )
        problem = f"{endpoint} returned HTTP {status}"
    raise BrokerUnavailableError(f"{problem}; all {_ATTEMPTS} attempts failed")


def _post_token_request(source: TokenEndpoint) -> tuple[int, bytes]:
    """Sends one request to the endpoint. Returns the HTTP status and the body. Does not follow
    redirects, because the client secret would be sent to another server.
    """
    url = urlsplit(source.url)
    assert url.hostname is not None
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            url.hostname, url.port, timeout=_TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=_TIMEOUT_SECONDS)
    form = {"grant_type": "client_credentials"}
    if source.scope:
        form["scope"] = source.scope
    pair = (source.client_id, source.client_secret)
    if source.urlencoded:
        pair = (quote_plus(pair[0]), quote_plus(pair[1]))
    headers = {
        "Authorization": f"Basic {base64.b64encode(':'.join(pair).encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    try:
        target = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
        connection.request("POST", target, urlencode(form), headers)
        answer = connection.getresponse()
        body = b""
        while len(body) <= _MAX_ANSWER_BYTES and (data := answer.read1(65_536)):
            body += data
            if time.monotonic() > deadline:
                raise TimeoutError
        return answer.status, body
    finally:
        connection.close()


def _parsed(endpoint: str, body: bytes) -> tuple[str, float]:
    try:
        answer = json.loads(body) if len(body) <= _MAX_ANSWER_BYTES else None
    except (ValueError, RecursionError):
        answer = None
    token = answer.get("access_token") if isinstance(answer, dict) else None
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise BrokerError(f"{endpoint} returned no access_token")
    assert isinstance(answer, dict)
    seconds = answer.get("expires_in")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return token, 0.0
    return token, float(seconds) if 0 < seconds < _LONGEST_LIFE_SECONDS else 0.0


def _oauth_error(body: bytes) -> str:
    """Returns the OAuth error code (RFC 6749, 5.2) of a response in parentheses; an empty text if
    the response has none. Other texts of the response may quote the request, so they are not used.
    """
    try:
        code = json.loads(body[:_MAX_ANSWER_BYTES]).get("error")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return f" ({code})" if isinstance(code, str) and re.fullmatch(r"[a-z_]{1,40}", code) else ""


_MIN_ITERATIONS: Final = 4096
"""Kafka's minimum for SCRAM (`ScramMechanism`). A request for fewer may be an attempt to guess the
password from its proof.
"""
_MAX_ANSWERS: Final = 16  # Kerberos needs three
_SCRAM_FIRST: Final = re.compile(rb"r=[!-+\--~]+,s=[A-Za-z0-9+/]+=*,i=([1-9][0-9]{0,8})")
"""The server's first message as Kafka's `ScramMessages` writes it. The check is strict, since
kafka-python accepts repeated iteration counts and numbers in Python's syntax.
"""
_MSK_REGION: Final = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")


class SaslClient(Protocol):
    """The client side of one login. Its methods raise no error except `BrokerError`, and error
    texts contain no credentials.
    """

    def auth_bytes(self) -> bytes:
        """Returns the bytes of the next SaslAuthenticate request."""

    def receive(self, auth_bytes: bytes) -> None:
        """Processes the bytes of a SaslAuthenticate response."""

    def is_done(self) -> bool:
        """Returns whether the login is complete."""


def sasl_client(security: Security, host: str) -> SaslClient:
    """Creates the client for one login with the mechanism in the security settings. `host` is the
    host name of the broker, as used for the connection.

    Raises:
        InvalidOptionError: A package that the mechanism needs is not installed.
        BrokerError: There are no credentials for the mechanism on this machine.
    """
    require_kafka()
    name = security.mechanism
    with _as_broker_error(name, "cannot begin"):
        match security.login:
            case Password():
                mechanism = _password_mechanism(name, security.login)
            case TokenEndpoint() | TokenCallback():
                mechanism = _token_mechanism(security.login)
            case AwsCredentials():
                mechanism = _MskIam(security.login, host)
            case Kerberos():
                mechanism = _kerberos_mechanism(security.login, host)
            case _:
                raise AssertionError(name)
    return _Client(security, mechanism)


class _Client:
    """A `SaslClient` that uses a mechanism of kafka-python. Checks the broker's responses, and
    converts errors to `BrokerError`.
    """

    def __init__(self, security: Security, mechanism: Any) -> None:  # noqa: ANN401  # untyped in kafka-python
        self._name = security.mechanism
        self._login = security.login
        self._mechanism = mechanism
        self._awaits_scram = security.mechanism in SCRAM_MECHANISMS
        self._answers = 0

    def auth_bytes(self) -> bytes:
        with _as_broker_error(self._name, "cannot go on"):
            return bytes(self._mechanism.auth_bytes())

    def receive(self, auth_bytes: bytes) -> None:
        self._answers += 1
        if self._answers > _MAX_ANSWERS:
            raise BrokerError(f"login by {self._name} failed: the broker sent too many responses")
        if self._awaits_scram:
            self._awaits_scram = False
            _check_scram(self._name, auth_bytes)
        if isinstance(self._login, TokenEndpoint) and auth_bytes:
            forget(self._login)  # rejected: the broker closes the connection after this response
        with _as_broker_error(
            self._name, "failed: the broker does not prove that it knows the password"
        ):
            self._mechanism.receive(auth_bytes)

    def is_done(self) -> bool:
        return bool(self._mechanism.is_done())


def _check_scram(name: str, message: bytes) -> None:
    first = _SCRAM_FIRST.fullmatch(message)
    if first is None:
        raise BrokerError(f"login by {name} failed: the broker's first answer is not SCRAM")
    count = int(first[1])
    if count < _MIN_ITERATIONS:
        raise BrokerError(
            f"login by {name} failed: the broker asks for {count} iterations, less than Kafka's"
            f" minimum of {_MIN_ITERATIONS}, so no proof of the password is sent"
        )


@contextmanager
def _as_broker_error(name: str, what: str) -> Iterator[None]:
    """Converts errors of the `with` block to `BrokerError`, except errors about options and missing
    packages. The new text contains only the class name of the error, because the message may quote
    the request.
    """
    try:
        yield
    except (BrokerError, InvalidOptionError, MissingExtraError):
        raise
    except Exception as error:  # noqa: BLE001  # every library has its own
        raise BrokerError(f"login by {name} {what}: {type(error).__name__}") from None


def _password_mechanism(name: str, login: Password) -> Any:  # noqa: ANN401
    from kafka.net.sasl import get_sasl_mechanism

    username = login.username
    if name in SCRAM_MECHANISMS:  # saslname of RFC 5802, which kafka-python leaves to its callers
        username = username.replace("=", "=3D").replace(",", "=2C")
    return get_sasl_mechanism(name)(
        sasl_mechanism=name, sasl_plain_username=username, sasl_plain_password=login.password
    )


def _token_mechanism(login: TokenEndpoint | TokenCallback) -> Any:  # noqa: ANN401
    from kafka.net.sasl import get_sasl_mechanism
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python is not typed
        def token(self) -> str:
            return token(login)

        def extensions(self) -> dict[str, str]:
            return dict(login.extensions)

    return get_sasl_mechanism(OAUTHBEARER)(sasl_oauth_token_provider=Provider())


class _MskIam:
    """AWS_MSK_IAM: sends one message, signed with the credentials that botocore finds on this
    machine.

    kafka-python's own class is not used, because it supports neither profiles nor the region in a
    broker's host name.
    """

    def __init__(self, login: AwsCredentials, host: str) -> None:
        from botocore.session import Session
        from kafka.net.sasl.msk import AwsMskIamClient

        session = Session(profile=login.profile or None)
        credentials = session.get_credentials()
        if credentials is None:
            raise BrokerError(
                "no AWS credentials for AWS_MSK_IAM on this machine: set them in the environment,"
                " a profile or a role"
            )
        in_name = _MSK_REGION.search(host)
        region = in_name[1] if in_name else session.get_config_variable("region")
        if not region:
            raise BrokerError(
                f"the AWS region of broker {host} is unknown: set AWS_REGION or a profile"
            )
        frozen = credentials.get_frozen_credentials()
        self._message = AwsMskIamClient(
            host=host,
            access_key=frozen.access_key,
            secret_key=frozen.secret_key,
            region=region,
            token=frozen.token,
        ).first_message()
        self._is_done = False

    def auth_bytes(self) -> bytes:
        return bytes(self._message)

    def receive(self, auth_bytes: bytes) -> None:
        self._is_done = True

    def is_done(self) -> bool:
        return self._is_done


def _kerberos_mechanism(login: Kerberos, host: str) -> Any:  # noqa: ANN401
    try:
        import gssapi
    except (ImportError, OSError):  # the package, or the library below it
        raise MissingExtraError(
            "option kafka.sasl.mechanism=GSSAPI needs Kerberos and its Python binding:"
            " pip install gssapi"
        ) from None
    from kafka.net.sasl.gssapi import SaslMechanismGSSAPI

    class Mechanism(SaslMechanismGSSAPI):  # type: ignore[misc]  # kafka-python is not typed
        """The GSSAPI mechanism of kafka-python, extended by the configured credentials."""

        def __init__(self) -> None:
            self._is_done = self._is_authenticated = False
            self.auth_id = f"{login.service}@{host}"
            kinds = gssapi.NameType
            self.gssapi_name = gssapi.Name(self.auth_id, name_type=kinds.hostbased_service)
            ours = gssapi.Name(login.principal, name_type=kinds.user) if login.principal else None
            store = {"client_keytab": login.keytab} if login.keytab else None
            credentials = None
            if ours is not None or store is not None:
                credentials = gssapi.Credentials(name=ours, usage="initiate", store=store)
            self._client_ctx = gssapi.SecurityContext(
                name=self.gssapi_name.canonicalize(gssapi.MechType.kerberos),
                creds=credentials,
                usage="initiate",
            )
            self._next_token = self._client_ctx.step(None)

    return Mechanism()


def require_kafka() -> None:
    """Raises MissingExtraError if kafka-python is not installed."""
    try:
        load_messages()
    except ImportError:
        raise missing_extra(*KAFKA) from None


class _EmptyPackage(ModuleType):
    """Placeholder for the package `kafka`. Imports of submodules do not run the `__init__` of the
    package. The first use of an attribute of the package runs it.
    """

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        global _loading
        with _package_lock:
            # Code that scans `sys.modules` reads special names such as `__file__` of every module
            # without using the package.
            is_used = not name.startswith("__") or name in _OF_THE_PACKAGE
            if type(self) is _EmptyPackage and is_used and not _loading:
                _loading = True
                try:
                    _execute(self)
                finally:
                    _loading = False
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")


def _execute(package: ModuleType) -> None:
    spec = package.__spec__
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(package)
    package.__class__ = ModuleType


def load_messages() -> None:
    """Imports the message classes of Kafka's protocol without the rest of kafka-python.

    With `KTS_TUNING=off` (see `docs/tuning.md`), imports the whole package instead.

    Raises:
        ImportError: kafka-python is missing, or another package with the name `kafka` is installed.
    """
    with _package_lock:
        if is_on() and _PACKAGE not in sys.modules:
            spec = importlib.util.find_spec(_PACKAGE)
            if spec is not None and spec.submodule_search_locations:
                package = importlib.util.module_from_spec(spec)
                package.__class__ = _EmptyPackage
                sys.modules[_PACKAGE] = package
    import kafka.protocol.broker_version_data
    import kafka.protocol.consumer  # noqa: F401
