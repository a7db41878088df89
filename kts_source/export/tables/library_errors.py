"""Converts exceptions of the libraries that write tables to errors of this package."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from kts_source.errors import ExportError, StoreUnavailableError, TieredKafkaError
from kts_source.secret import scrub
from kts_source.store.http_exchange import access_denied
from kts_source.store.storage_options import expiry_advice, secret_values
from kts_source.texts import whole_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.secret import Secret


_EXPIRED: Final = re.compile("ExpiredToken|TokenRefreshRequired")
_REFUSED_LOGINS: Final = frozenset(
    {"UnauthorizedError", "AuthorizationExpiredError", "ForbiddenError", "OAuthError"}
)
"""Exceptions of PyIceberg if a REST catalog refuses a login or a request."""
_CREDENTIAL: Final = re.compile("key|secret|token|password|credential")
_DENIED: Final = re.compile(
    "lacked (?:the necessary privileges|valid authentication credentials)"  # of delta-rs
)
_OUTAGE_CLASSES: Final = frozenset(
    {
        "ConnectionError",  # of Python, and of requests
        "TimeoutError",
        "Timeout",  # requests
        "EndpointConnectionError",  # botocore
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ClientConnectionError",  # aiohttp
        "ServiceRequestError",  # Azure
        "ServiceResponseError",
        "ServerError",  # PyIceberg
        "ServiceUnavailableError",
        "CommitStateUnknownException",
    }
)
_OUTAGE_TEXTS: Final = re.compile(
    r"error sending request"  # object_store, of delta-rs
    r"|\b50[0234] (?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Timeout)"
    r"|AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE"
    r"|REQUEST_TIMEOUT)"  # Arrow
    r"|\(sqlite3\.OperationalError\) database is locked"  # SQLAlchemy
)


def is_outage(error: BaseException) -> bool:
    """Returns True if an exception of a library means that a store or catalog is unavailable.

    Compares the names of exception classes, because the libraries may not be installed. Also
    searches the text of the exception, because libraries in Rust and C++ report outages only in the
    text.
    """
    return any(
        _OUTAGE_CLASSES & {kind.__name__ for kind in type(cause).__mro__}
        or (isinstance(cause, Exception) and _OUTAGE_TEXTS.search(str(cause)))
        for cause in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def library_error(
    text: str,
    error: Exception,
    storage: Secret[Mapping[str, str]],
    catalog: Secret[Mapping[str, str]],
    uri: str,
) -> TieredKafkaError:
    """Converts an exception of a library to an error of this package. The message is `text` and the
    message of the exception, without credentials.

    Args:
        text: What failed.
        error: The exception.
        storage: Options of the store.
        catalog: Properties of the catalog.
        uri: The table.
    """
    properties = catalog.reveal().items()
    hidden = {value for name, value in properties if _CREDENTIAL.search(name)}
    # A login to a REST catalog is "id:secret".
    hidden |= {value.partition(":")[2] for name, value in properties if name == "credential"}
    hidden |= secret_values(storage.reveal())
    kind = StoreUnavailableError if is_outage(error) else ExportError
    reason = _library_text(scrub(f"{type(error).__name__}: {error}", hidden))
    if kind is StoreUnavailableError:
        text += ", because its store or catalog is unavailable; wait for the end of the outage"
    is_expired = _EXPIRED.search(reason)
    if is_expired:
        reason = f"{reason.rstrip('. ')}. {expiry_advice(storage.reveal(), os.environ)}"
    if is_expired or _DENIED.search(reason):
        return access_denied(f"{text}: {reason}", uri=uri)
    if type(error).__name__ in _REFUSED_LOGINS:
        reason += ". Check token or credential in catalog=… and the permissions of this login"
    return kind(f"{text}: {reason}", uri=uri)


_ESCAPE_CODE: Final = re.compile(r"\x1b\[[0-9;]*m")
_XML_ERROR: Final = re.compile(
    r"(?:<\?xml[^>]*>\s*)?<Error>.*?<Code>(?P<code>[^<]*)</Code>"
    r"(?:\s*<Message>(?P<message>[^<]*)</Message>)?.*</Error>",
    re.DOTALL,
)
_STACK_TRACE: Final = re.compile(r"\n *0: .*", re.DOTALL)


def _library_text(text: str) -> str:
    """Returns the text of a library's error as one line, without colors and stack traces. delta-rs
    writes causes after `↳`, each after its effect; the result begins with the last cause. Of a
    response of S3, only its code and its message are kept.
    """
    text = _XML_ERROR.sub(r"\g<code>: \g<message>", text)
    plain = _STACK_TRACE.sub("", _ESCAPE_CODE.sub("", text))
    *effects, cause = (whole_line(part) for part in plain.split("↳"))
    return f"{cause} ({': '.join(effects)})" if effects else cause
