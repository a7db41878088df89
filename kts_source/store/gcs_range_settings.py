"""What obstore is told about a bucket of Google Cloud Storage: the same as gcsfs, or why it cannot
be.

gcsfs has read its options and the environment already, and found its credentials. obstore would
look into the environment for itself, so all that it could take from there is set.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kts_source.secret import Secret
from kts_source.store.obstore_settings import (
    client_options,
    require_no_bundle,
    require_obstore_can,
)
from kts_source.store.range_settings import LeftToFsspecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import ClientConfig, GCSCredential

    from kts_source.store.retry import RetryPolicy

_ARGUMENTS: Final = {
    *("project", "access", "token", "endpoint_url", "default_location", "consistency"),
    *("use_listings_cache", "listings_expiry_time", "max_paths", "cache_timeout", "block_size"),
}
_LONG_AGO: Final = datetime(2000, 1, 1)  # Google's library compares without a zone
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class GcsRangeSettings:
    """What opens obstore's store of a bucket.

    Attributes:
        endpoint: URL of the service.
        bucket: Its name.
        login: gcsfs' `GoogleCredentials`, which renews its tokens; `None`: nobody asks.
        client_options: Of obstore's client.
    """

    endpoint: str
    bucket: str
    login: Any
    client_options: ClientConfig

    @property
    def may_wait(self) -> bool:
        """See `RangeSettings`: not here."""
        return False

    def credentials(self) -> Secret[None]:
        """The same always: tokens are renewed by who gives them."""
        return Secret(None)

    def renew(self) -> bool:
        """Asks who gives the tokens for another one; a token that was given as it is has nobody."""
        if self.login is None:
            return False
        credentials = self.login.credentials
        expiry, credentials.expiry = credentials.expiry, _LONG_AGO
        try:
            self.login.maybe_refresh()
        except Exception:  # noqa: BLE001  # the refusal is the better error
            credentials.expiry = expiry
            return False
        return True

    def open(self, _credentials: Secret[None]) -> Any:  # noqa: ANN401
        """A store that tries each request once."""
        from obstore.store import GCSStore

        async def renewed() -> GCSCredential:
            await asyncio.to_thread(self.login.maybe_refresh)
            found = self.login.credentials
            expires = None if found.expiry is None else found.expiry.replace(tzinfo=UTC)
            return {"token": found.token, "expires_at": expires}

        named: dict[str, Any] = {} if self.login is None else {"credential_provider": renewed}
        return GCSStore(
            self.bucket,
            base_url=self.endpoint,
            **named,
            skip_signature=self.login is None,
            client_options=self.client_options,
            retry_config={"max_retries": 0},
        )


def gcs_range_settings(
    bucket: str,
    filesystem: Any,  # noqa: ANN401  # gcsfs ships no types
    arguments: Mapping[str, Any],
    policy: RetryPolicy,
) -> GcsRangeSettings:
    """The settings that are to obstore what gcsfs has made of its arguments. Nothing is asked.

    Args:
        bucket: Its name.
        filesystem: gcsfs'.
        arguments: As given to gcsfs.
        policy: Deadlines.

    Raises:
        LeftToFsspecError: obstore cannot do all of it.
    """
    require_obstore_can(arguments.keys() - _ARGUMENTS, ("gs", "gcs"), "GOOGLE_")
    if not _BUCKET.fullmatch(bucket):
        raise LeftToFsspecError("the bucket's name is not an ordinary one")
    endpoint = str(filesystem._location).rstrip("/")  # noqa: SLF001  # environment and universe are in it
    require_no_bundle(endpoint)
    if getattr(filesystem, "_use_client_cert", False):
        raise LeftToFsspecError("the client has a certificate of its own")
    login = filesystem.credentials
    if login.credentials is None:
        login = None
    elif not endpoint.startswith("https:"):
        raise LeftToFsspecError("tokens go through encrypted connections only")
    elif getattr(login.credentials, "quota_project_id", None):
        raise LeftToFsspecError("its credentials name a project that pays")
    return GcsRangeSettings(
        endpoint,
        bucket,
        login,
        client_options(
            endpoint, policy.connect_timeout_seconds, policy.read_timeout_seconds, policy
        ),
    )
