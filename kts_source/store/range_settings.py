"""What a reader of ranges is told about a bucket in any cloud, and what it is never asked for."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any, Protocol

from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.secret import Secret


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
    """What opens a client for ranges of a bucket or container. Equal ones open alike."""

    @property
    def endpoint(self) -> str:
        """URL of the service."""
        ...

    @property
    def may_wait(self) -> bool:
        """Whether `credentials` may wait for who gives them."""
        ...

    def credentials(self) -> Secret[Any]:
        """Those of now; another value opens another client. Not for several threads at a time.

        Raises:
            LeftToFsspecError: There are none, or they are not the reader's to have.
        """
        ...

    def renew(self) -> bool:
        """Takes new credentials in place of those that were refused, however long they should have
        held. False where there are none to be had. May wait for who gives them.
        """
        ...

    def open(self, credentials: Secret[Any]) -> Any:  # noqa: ANN401  # as its reader knows it
        """A client that tries each request once. Asks nothing.

        Raises:
            OSError: A file is not readable.
            ValueError: A text is not what it should be.
        """
        ...


def require_known(unknown: Iterable[str], schemes: Iterable[str]) -> None:
    """Refuses what only the other library knows.

    Args:
        unknown: Arguments that the reader would not see.
        schemes: Under which fsspec's own configuration may hold more.

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


def require_no_proxy() -> None:
    """Refuses a proxy that the environment names.

    Raises:
        LeftToFsspecError: It does.
    """
    if urllib.request.getproxies().keys() & {"http", "https", "all"}:
        raise LeftToFsspecError("the environment names a proxy")
