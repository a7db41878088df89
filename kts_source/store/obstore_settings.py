"""What obstore is told, whichever cloud it reads, and where it would listen to the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kts_source.store.range_settings import LeftToFsspecError, require_known, require_no_proxy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from obstore.store import ClientConfig

    from kts_source.store.retry import RetryPolicy


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


def require_obstore_can(unknown: Iterable[str], schemes: Iterable[str], prefix: str) -> None:
    """Refuses what only the other library knows, and what the environment says of connections.

    Args:
        unknown: As for `require_known`, as are `schemes`.
        schemes: See there.
        prefix: Of the environment variables that obstore reads.

    Raises:
        LeftToFsspecError: There is such a thing.
    """
    require_known(unknown, schemes)
    # obstore's own names for what the other library would not see.
    for name in (
        "ALLOW_INVALID_CERTIFICATES",
        "PROXY_URL",
        "PROXY_EXCLUDES",
        "PROXY_CA_CERTIFICATE",
    ):
        if os.environ.get(prefix + name):
            raise LeftToFsspecError(f"{prefix}{name} is set")
    require_no_proxy()


def require_no_bundle(endpoint: str) -> None:
    """Refuses certificates of one's own.

    Args:
        endpoint: URL of the service.

    Raises:
        LeftToFsspecError: There are some, and the connections are encrypted.
    """
    if endpoint.startswith("https:") and os.environ.get("REQUESTS_CA_BUNDLE"):
        raise LeftToFsspecError("a bundle of certificates is named")
