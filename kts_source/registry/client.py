"""Defines the location and credentials of a registry, sends HTTP requests to it, and retries them.

Credentials are only sent to the configured address: a redirect of a request with credentials is an
error.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from kts_source.cache.caches import NO_CACHE
from kts_source.errors import RegistryError, RegistryUnavailableError, StoreUnavailableError
from kts_source.store.object_store import Tally
from kts_source.store.request_policy import RetryPolicy, TransientError

if TYPE_CHECKING:
    from kts_source.broker.settings import Tls
    from kts_source.cache.caches import CacheSettings
    from kts_source.secret import Secret

RETRY: Final = RetryPolicy(
    max_attempts=4, first_pause_seconds=0.2, max_pause_seconds=2.0, give_up_after_seconds=30.0
)
_TIMEOUT_SECONDS: Final = 10.0
_BODY_SECONDS: Final = 30.0
_MAX_BODY_BYTES: Final = 16 << 20
_MAX_ERROR_BYTES: Final = 1 << 16
_RETRIED: Final = (408, 429, 500, 502, 503, 504)
"""HTTP status codes after which a request is retried."""
_UNKNOWN: Final = (40401, 40402, 40403)
_LOGIN: Final = (
    "check the login: user and password in schema-registry.basic.auth.user.info or in the URL, or"
    " schema-registry.bearer.auth.token"
)
_ADVICE: Final = {
    401: f": {_LOGIN}",
    403: f": check the permissions of this login, or {_LOGIN}",
}
"""Error codes for an unknown subject, version or schema."""
_UNKNOWN_IN_APICURIO: Final = ("ArtifactNotFoundException", "ContentNotFoundException")
"""Error names of Apicurio's own API for an unknown global id or content id."""


@dataclass(frozen=True, slots=True, repr=False)
class RegistryAccess:
    """Credentials and TLS settings for a registry.

    Attributes:
        user: User name for Basic authentication; empty if it is not used.
        token: Bearer token; empty if it is not used.
        headers: Names and values of HTTP headers that select one of several registries at the same
            address.
        tls: Trusted certificate authorities and client certificate; `None` = trust the authorities
            of this machine.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    tls: Tls | None = None

    @property
    def has_credentials(self) -> bool:
        """True if requests carry credentials. Redirects of such requests are not followed."""
        return bool(self.user or self.password or self.token or (self.tls and self.tls.chain))

    @property
    def tenant(self) -> str | None:
        """A text that distinguishes the registries at one address. It contains no secret.

        Confluent Cloud serves many registries at one address, and selects one by the user or a
        header. The result is `None` if only a token selects the registry, because a text derived
        from the token would reveal information about it.
        """
        if self.token and not self.headers:
            return None
        chain = hashlib.blake2b(b"".join(self.tls.chain if self.tls else ()), digest_size=16)
        return repr((self.user, self.headers, chain.hexdigest()))


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """A registry or a folder of schemas.

    Attributes:
        place: URL of the registry, without user and password, or path of the folder.
        access: Credentials for the URL; `None` if no credentials are needed.
        cache: Settings of the cache on this machine's disk.
        ids: Kind of ids to look up with Apicurio's own API; empty to use Confluent's API.
        subject: Subject to send with each id; empty if unknown. Ids are unique only within a
            context of a registry, and a subject such as `:.staging:orders-value` names its context.
    """

    place: str
    access: Secret[RegistryAccess] | None = field(default=None, hash=False)
    cache: CacheSettings = NO_CACHE
    ids: Literal["", "globalId", "contentId"] = ""
    subject: str = ""

    @property
    def is_url(self) -> bool:
        """True if schemas come from a registry, not from a folder."""
        return self.place.lower().startswith(("http://", "https://"))

    @property
    def is_near(self) -> bool:
        """True if the registry is on this machine. Then a disk cache saves no time."""
        host = urlsplit(self.place).hostname or "" if self.is_url else "localhost"
        return host in ("localhost", "::1") or host.startswith("127.")

    def revealed_access(self) -> RegistryAccess:
        """Returns the credentials in plain text. Returns an empty `RegistryAccess` without
        credentials.
        """
        return RegistryAccess() if self.access is None else self.access.reveal()


class UnknownSchemaError(LookupError):
    """The registry reports that it does not have a schema."""


class _NoSuchPathError(Exception):
    """The server does not support a path, and reports HTTP status 404. If only the schema is
    missing, `UnknownSchemaError` is raised instead.
    """


def ask(registry: RegistryPlace, path: str, *, is_new: bool = False) -> dict[str, Any]:
    """Requests a path from the registry, and returns the JSON object in the response.

    Args:
        registry: A registry with a URL, not a folder.
        path: Path to append to the URL, percent-encoded.
        is_new: True if registries of older versions may not support this path.

    Raises:
        UnknownSchemaError: The registry does not have the schema, or is too old to support the
            path.
        RegistryUnavailableError: The registry does not answer, or reports a temporary failure.
        RegistryError: The response is not valid, or is not a JSON object.
    """
    try:
        document = json.loads(ask_text(registry, path, is_new=is_new))
    except (ValueError, RecursionError) as error:
        raise RegistryError(
            f"the registry's response to {path} is not JSON: {type(error).__name__}. Check that"
            " schema-registry.url is the URL of a registry, and not of a login page or proxy"
        ) from None
    if not isinstance(document, dict):
        raise RegistryError(f"the registry's response to {path} is not a JSON object")
    return document


def ask_text(registry: RegistryPlace, path: str, *, is_new: bool = False) -> bytes:
    """Requests a path from the registry, and returns the body of the response. Has the arguments of
    `ask`.

    Raises:
        UnknownSchemaError: The registry does not have the schema, or is too old to support the
            path.
        RegistryUnavailableError: The registry does not answer, or reports a temporary failure.
        RegistryError: The response is not valid.
    """
    try:
        return RETRY.run(
            lambda: _request(registry, path), uri=f"{registry.place}{path}", tally=Tally()
        )
    except StoreUnavailableError as error:
        raise RegistryUnavailableError(
            f"the registry does not answer requests for {path}: {error.message}"
        ) from None
    except _NoSuchPathError:
        if not is_new:
            raise RegistryError(
                f"the registry answers 404 to {path}: check that the URL is the URL of a registry"
            ) from None
    with contextlib.suppress(UnknownSchemaError):
        ask_text(registry, "/schemas/ids/1")  # fails if the URL is not a registry
    raise UnknownSchemaError(f"the registry is too old to support {path}")


def _request(registry: RegistryPlace, path: str) -> bytes:
    access = registry.revealed_access()
    request = urllib.request.Request(f"{registry.place.rstrip('/')}{path}")
    request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
    for name, text in _headers(access):
        request.add_unredirected_header(name, text)
    try:
        with _opener(access.has_credentials, access.tls).open(
            request, timeout=_TIMEOUT_SECONDS
        ) as answer:
            return _read_body(answer, path)
    except urllib.error.HTTPError as error:
        with error:
            unknown = error.code == 404 and _is_about_schema(error)
        if unknown:
            raise UnknownSchemaError(f"the registry has no schema at {path}") from None
        if error.code in _RETRIED:
            raise TransientError(f"it answers {error.code}") from None
        if error.code == 404:
            raise _NoSuchPathError from None
        raise RegistryError(
            f"the registry answers {error.code} to {path}{_ADVICE.get(error.code, '')}"
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise _untrusted(error) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise _untrusted(reason) from None
        raise TransientError(type(reason).__name__) from None
    except ValueError as error:  # a header with characters that HTTP does not allow
        raise RegistryError(
            f"the request to the registry is invalid: {type(error).__name__}"
        ) from None


def _untrusted(error: ssl.SSLCertVerificationError) -> RegistryError:
    return RegistryError(f"the registry is not trusted: {error.verify_message}")


def _headers(access: RegistryAccess) -> list[tuple[str, str]]:
    headers = [*access.headers]
    if access.token:
        headers.append(("Authorization", f"Bearer {access.token}"))
    elif access.user or access.password:
        pair = base64.b64encode(f"{access.user}:{access.password}".encode()).decode()
        headers.append(("Authorization", f"Basic {pair}"))
    return headers


def _read_body(answer: http.client.HTTPResponse, path: str) -> bytes:
    """Reads the body of a response. Raises `RegistryError` if the body is too large. Raises
    `TransientError` if the body takes too long or is truncated.
    """
    deadline = time.monotonic() + _BODY_SECONDS
    chunks: list[bytes] = []
    size = 0
    while chunk := answer.read1(1 << 16):
        chunks.append(chunk)
        size += len(chunk)
        if size > _MAX_BODY_BYTES:
            raise RegistryError(f"the registry's response to {path} has more than 16 MiB")
        if time.monotonic() > deadline:
            raise TransientError("the response did not end in time")
    if answer.length:
        raise TransientError("the response is truncated")
    return b"".join(chunks)


def _is_about_schema(answer: urllib.error.HTTPError) -> bool:
    """Returns whether a response with status 404 reports a missing schema. Otherwise, the URL is
    wrong.
    """
    try:
        document = json.loads(answer.read(_MAX_ERROR_BYTES))
    except (OSError, ValueError, http.client.HTTPException, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    return document.get("error_code") in _UNKNOWN or document.get("name") in _UNKNOWN_IN_APICURIO


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTP and HTTPS URLs, but only if requests carry no credentials."""

    def __init__(self, *, has_credentials: bool) -> None:
        self._has_credentials = has_credentials

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:  # noqa: ANN401  # as urllib calls it
        """Returns the request for the new URL. `urllib` passes the response as second argument, and
        the new URL as last argument.

        Raises:
            RegistryError: The redirect must not be followed.
        """
        to = urlsplit(args[-1])
        if self._has_credentials or to.scheme not in ("http", "https"):
            args[1].close()
            raise RegistryError(
                f"the registry redirects to {to.scheme}://{to.hostname}, but credentials are only"
                " sent to the configured address. Configure the new URL as the registry's URL."
            )
        return super().redirect_request(*args)


@functools.lru_cache(16)
def _opener(has_credentials: bool, tls: Tls | None) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_Redirects(has_credentials=has_credentials)]
    if tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=registry_context(tls)))
    return urllib.request.build_opener(*handlers)


def registry_context(tls: Tls) -> ssl.SSLContext:
    """Returns the TLS context for a registry.

    Raises:
        InvalidOptionError: The certificates or the key cannot be used.
    """
    from kts_source.broker.tls import tls_context

    names = ("ca.location", "certificate.location and schema-registry.ssl.key.location")
    trusted, shown = (f"schema-registry.ssl.{name}" for name in names)
    return tls_context(tls, trusted, shown)
