"""Whether waiting may mend what a library raised that writes tables.

Libraries have classes of their own for it, which are not imported here: they need not be installed.
Those in Rust and C++ tell it by text alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLASSES: Final = frozenset(
    {
        "ConnectionError",  # of Python, and of requests
        "TimeoutError",
        "Timeout",  # requests
        "EndpointConnectionError",  # botocore
        "ConnectionClosedError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "ClientConnectionError",  # aiohttp
        "ServerError",  # PyIceberg
        "ServiceUnavailableError",
        "CommitStateUnknownException",
    }
)
_TEXTS: Final = re.compile(
    r"error sending request"  # object_store, of delta-rs
    r"|\b50[0234] (?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Timeout)"
    r"|AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE"
    r"|REQUEST_TIMEOUT)"  # Arrow
)


def is_outage(error: BaseException) -> bool:
    """Whether a store or a catalog did not answer, or only that it cannot now."""
    return any(
        _CLASSES & {kind.__name__ for kind in type(one).__mro__}
        or (isinstance(one, Exception) and _TEXTS.search(str(one)))
        for one in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
