"""Questions to a registry over HTTP: retried within bounds, answered by one JSON object.

What shows who we are goes to the address that was given and nowhere else: with it, a redirect is an
error.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kts_source.errors import RegistryError, RegistryUnavailableError, StoreUnavailableError
from kts_source.store.object_store import Tally
from kts_source.store.request_policy import RetryPolicy, TransientError

if TYPE_CHECKING:
    from kts_source.broker.settings import Tls
    from kts_source.registry.by_id import RegistryAccess, RegistryPlace

RETRY: Final = RetryPolicy(
    max_attempts=4, first_pause_seconds=0.2, max_pause_seconds=2.0, give_up_after_seconds=30.0
)
_TIMEOUT_SECONDS: Final = 10.0
_WHOLE_ANSWER_SECONDS: Final = 30.0
_MAX_ANSWER_BYTES: Final = 16 << 20
_MAX_ERROR_BYTES: Final = 1 << 16
_PASSING: Final = (408, 429, 500, 502, 503, 504)
"""Answers after which it is worth to ask again."""
_UNKNOWN: Final = (40401, 40402, 40403)
"""What registries call a subject, a version and a schema that they do not have."""
_UNKNOWN_OF_APICURIO: Final = ("ArtifactNotFoundException", "ContentNotFoundException")
"""What Apicurio's own API calls a global id and the id of a content that it does not have."""


class UnknownSchemaError(LookupError):
    """The registry's own word that it does not have what it was asked for."""


class _NoSuchPathError(Exception):
    """A 404 that is not the registry's word on a schema: it, or whoever it is, has no such path."""


def ask(registry: RegistryPlace, path: str, *, is_new: bool = False) -> dict[str, Any]:
    """The answer to one question, an object.

    Args:
        registry: A URL.
        path: Behind the URL, quoted.
        is_new: Whether there are registries that do not know such questions.

    Raises:
        UnknownSchemaError: See `ask_text`; so are the next two.
        RegistryUnavailableError: It does not answer.
        RegistryError: It does not answer as it should.
    """
    try:
        document = json.loads(ask_text(registry, path, is_new=is_new))
    except (ValueError, RecursionError) as error:
        raise RegistryError(
            f"the registry's answer to {path} is no JSON: {type(error).__name__}"
        ) from None
    if not isinstance(document, dict):
        raise RegistryError(f"the registry's answer to {path} is not an object")
    return document


def ask_text(registry: RegistryPlace, path: str, *, is_new: bool = False) -> bytes:
    """The answer to one question, whatever it is.

    Args:
        registry: A URL.
        path: Behind the URL, quoted.
        is_new: See `ask`.

    Raises:
        UnknownSchemaError: The registry says that it has no such thing, or knows no such question.
        RegistryUnavailableError: It does not answer, or only that it cannot now.
        RegistryError: It does not answer as it should.
    """
    try:
        return RETRY.run(
            lambda: _asked_once(registry, path), uri=f"{registry.place}{path}", tally=Tally()
        )
    except StoreUnavailableError as error:
        last = error.attempts[-1].partition(": ")[2]
        raise RegistryUnavailableError(
            f"the registry does not answer: {last} to {path}; asked {len(error.attempts)} times"
        ) from None
    except _NoSuchPathError:
        if not is_new:
            raise RegistryError(
                f"the registry answers 404 to {path}: is the URL that of a registry?"
            ) from None
    with contextlib.suppress(UnknownSchemaError):
        ask_text(registry, "/schemas/ids/1")  # fails where it is no registry
    raise UnknownSchemaError(f"the registry is too old for {path}")


def _asked_once(registry: RegistryPlace, path: str) -> bytes:
    access = registry.shown()
    request = urllib.request.Request(f"{registry.place.rstrip('/')}{path}")
    request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
    for name, text in _headers(access):
        request.add_unredirected_header(name, text)
    try:
        with _opener(access.is_shown, access.tls).open(request, timeout=_TIMEOUT_SECONDS) as answer:
            return _whole(answer, path)
    except urllib.error.HTTPError as error:
        with error:
            unknown = error.code == 404 and _says_unknown(error)
        if unknown:
            raise UnknownSchemaError(f"the registry does not know {path}") from None
        if error.code in _PASSING:
            raise TransientError(f"it answers {error.code}") from None
        if error.code == 404:
            raise _NoSuchPathError from None
        raise RegistryError(f"the registry answers {error.code} to {path}") from None
    except ssl.SSLCertVerificationError as error:
        raise _not_trusted(error) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise _not_trusted(reason) from None
        raise TransientError(type(reason).__name__) from None
    except ValueError as error:  # of a header that no request can hold
        raise RegistryError(f"the registry cannot be asked: {type(error).__name__}") from None


def _not_trusted(error: ssl.SSLCertVerificationError) -> RegistryError:
    return RegistryError(f"the registry is not trusted: {error.verify_message}")


def _headers(access: RegistryAccess) -> list[tuple[str, str]]:
    found = [*access.headers]
    if access.token:
        found.append(("Authorization", f"Bearer {access.token}"))
    elif access.user or access.password:
        pair = base64.b64encode(f"{access.user}:{access.password}".encode()).decode()
        found.append(("Authorization", f"Basic {pair}"))
    return found


def _whole(answer: http.client.HTTPResponse, path: str) -> bytes:
    """The body, however slowly it comes: bounded in bytes and in time."""
    deadline = time.monotonic() + _WHOLE_ANSWER_SECONDS
    parts: list[bytes] = []
    size = 0
    while part := answer.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > _MAX_ANSWER_BYTES:
            raise RegistryError(f"the registry's answer to {path} has more than 16 MiB")
        if time.monotonic() > deadline:
            raise TransientError("an answer that does not end")
    if answer.length:
        raise TransientError("an answer that is cut")
    return b"".join(parts)


def _says_unknown(answer: urllib.error.HTTPError) -> bool:
    """Whether a 404 is a registry's word on a schema, not that of whoever serves a wrong URL."""
    try:
        document = json.loads(answer.read(_MAX_ERROR_BYTES))
    except (OSError, ValueError, http.client.HTTPException, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    return document.get("error_code") in _UNKNOWN or document.get("name") in _UNKNOWN_OF_APICURIO


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only where nothing shows who we are."""

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:  # noqa: ANN401  # as it is called
        """See the base class; the second argument is the answer, the last one is where to."""
        to = urlsplit(args[-1])
        if self._is_shown or to.scheme not in ("http", "https"):
            args[1].close()
            raise RegistryError(
                f"the registry redirects to {to.scheme}://{to.hostname}: credentials are not sent"
                " on; give the URL that it is to be asked at"
            )
        return super().redirect_request(*args)


@functools.lru_cache(16)
def _opener(is_shown: bool, tls: Tls | None) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_Redirects(is_shown=is_shown)]
    if tls is not None:
        handlers.append(urllib.request.HTTPSHandler(context=registry_context(tls)))
    return urllib.request.build_opener(*handlers)


def registry_context(tls: Tls) -> ssl.SSLContext:
    """What wraps the sockets to a registry.

    Raises:
        InvalidOptionError: See `tls_context`.
    """
    from kts_source.broker.tls import tls_context

    names = ("ca.location", "certificate.location and schema-registry.ssl.key.location")
    trusted, shown = (f"schema-registry.ssl.{name}" for name in names)
    return tls_context(tls, trusted, shown)
