"""What obstore is told about a bucket, whichever cloud it is in, and what is never left to it."""

from __future__ import annotations

import os
import urllib.request
from typing import TYPE_CHECKING, Any, Protocol

from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Iterable

    from obstore.store import ClientConfig

    from kts_source.secret import Secret
    from kts_source.store.retry import RetryPolicy


class LeftToFsspecError(Exception):
    """What is asked for is left to the cloud's library behind fsspec. The text says what, and holds
    no value of an option.

    Args:
        reason: The text.
        was_asked: Whether a request was made.
    """

    def __init__(self, reason: str, *, was_asked: bool = False) -> None:
        super().__init__(reason)
        self.was_asked = was_asked


class RangeSettings(Protocol):
    """What opens obstore's store of a bucket or container."""

    @property
    def endpoint(self) -> str:
        """URL of the service."""
        ...

    def credentials(self) -> Secret[Any]:
        """Those of now; another value opens another store. Not for several threads at a time.

        Raises:
            LeftToFsspecError: There are none, or they are not obstore's to have.
        """
        ...

    def renew(self) -> bool:
        """Takes new credentials in place of those that were refused, however long they should have
        held. False where there are none to be had. May wait for who gives them.
        """
        ...

    def open(self, credentials: Secret[Any]) -> Any:  # noqa: ANN401  # obstore's stores have no base
        """A store that tries each request once."""
        ...


def client_options(
    endpoint: str, connect_seconds: float, read_seconds: float, policy: RetryPolicy
) -> ClientConfig:
    """Of obstore's HTTP client.

    Args:
        endpoint: URL of the service.
        connect_seconds: How long a connection may take.
        read_seconds: How long an answer may be silent.
        policy: The deadline of a request.
    """
    return {
        "allow_http": endpoint.startswith("http:"),
        "connect_timeout": f"{round(connect_seconds * 1e6)}us",
        "read_timeout": f"{round(read_seconds * 1e6)}us",
        # Ours ends sooner.
        "timeout": f"{round(policy.request_deadline_seconds * 1e6) + 5_000_000}us",
        "http1_only": True,
    }


def require_known(unknown: Iterable[str], schemes: Iterable[str], prefix: str) -> None:
    """Refuses what only the other library knows.

    Args:
        unknown: Arguments that obstore would not see.
        schemes: Under which fsspec's own configuration may hold more.
        prefix: Of the environment variables that obstore reads.

    Raises:
        LeftToFsspecError: There is such a thing.
    """
    import fsspec.config

    if not is_on():
        raise LeftToFsspecError("KTS_TUNING=off")
    if names := sorted(unknown):
        raise LeftToFsspecError(f"storageOptions name {', '.join(names)}")
    for scheme in schemes:
        if fsspec.config.conf.get(scheme):
            raise LeftToFsspecError(f"fsspec's configuration speaks of {scheme}://")
    # obstore's own names for what the other library would not see.
    for name in (
        "ALLOW_INVALID_CERTIFICATES",
        "PROXY_URL",
        "PROXY_EXCLUDES",
        "PROXY_CA_CERTIFICATE",
    ):
        if os.environ.get(prefix + name):
            raise LeftToFsspecError(f"{prefix}{name} is set")


def require_no_proxy() -> None:
    """Refuses a proxy that the environment names.

    Raises:
        LeftToFsspecError: It does.
    """
    if urllib.request.getproxies().keys() & {"http", "https", "all"}:
        raise LeftToFsspecError("the environment names a proxy")


def require_no_bundle(endpoint: str, named: object = None) -> None:
    """Refuses certificates of one's own.

    Args:
        endpoint: URL of the service.
        named: Where they are, as far as the other library says.

    Raises:
        LeftToFsspecError: There are some, and the connections are encrypted.
    """
    if endpoint.startswith("https:") and (named or os.environ.get("REQUESTS_CA_BUNDLE")):
        raise LeftToFsspecError("a bundle of certificates is named")
