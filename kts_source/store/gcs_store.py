"""Google Cloud Storage, through gcsfs and obstore. The version of an object is its generation."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kts_source.store.http_exchange import watch_google
from kts_source.store.obstore_ranges import ObstoreStore, client_options, require_supported
from kts_source.store.range_reader import FsspecOnlyError, RangeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import ClientConfig, GCSCredential

# Arguments of gcsfs that have the same effect here.
_ARGUMENTS: Final = {
    *("project", "access", "token", "endpoint_url", "default_location", "consistency"),
    *("use_listings_cache", "listings_expiry_time", "max_paths", "cache_timeout", "block_size"),
}
_EXPIRED: Final = datetime(2000, 1, 1)  # Google's library compares without a time zone
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class GcsSettings:
    """Settings of obstore's store of a bucket.

    Attributes:
        endpoint: URL of the service.
        bucket: Name of the bucket.
        login: `GoogleCredentials` of gcsfs, which renew their tokens; `None` for unsigned requests.
        client_options: Options of obstore's HTTP client.
    """

    endpoint: str
    bucket: str
    login: Any
    client_options: ClientConfig

    def renew(self) -> bool:
        """Requests another token. A token from the options cannot be renewed."""
        if self.login is None:
            return False
        credentials = self.login.credentials
        expiry, credentials.expiry = credentials.expiry, _EXPIRED
        try:
            self.login.maybe_refresh()
        except Exception:  # noqa: BLE001  # the refusal is the better error
            credentials.expiry = expiry
            return False
        return True

    def open(self) -> Any:  # noqa: ANN401
        """See `ObstoreSettings.open`."""
        from obstore.store import GCSStore

        async def issue() -> GCSCredential:
            await asyncio.to_thread(self.login.maybe_refresh)
            credentials = self.login.credentials
            expiry = credentials.expiry
            expires_at = None if expiry is None else expiry.replace(tzinfo=UTC)
            return {"token": credentials.token, "expires_at": expires_at}

        named: dict[str, Any] = {} if self.login is None else {"credential_provider": issue}
        return GCSStore(
            self.bucket,
            base_url=self.endpoint,
            **named,
            skip_signature=self.login is None,
            client_options=self.client_options,
            retry_config={"max_retries": 0},
        )


class GcsStore(ObstoreStore):
    """Objects of `gs://bucket[/prefix]`."""

    pinning = "reads of a generation, or the generation looked up after every read"
    _version_names = ("generation", "etag", "md5Hash")
    _root_name = "bucket"
    _library = "gcsfs"
    _extra = "gcs"
    _by_generation = True
    # 404 also means an overwritten generation, or an endpoint without the XML interface; a zonal
    # bucket answers 400.
    _doubted = frozenset({400, 404})
    _session_argument = "session_kwargs"

    def _connect(self) -> Any:  # noqa: ANN401  # gcsfs ships no types
        filesystem = super()._connect()
        watch_google(filesystem, self._bucket)
        return filesystem

    def _settings_of(self, filesystem: Any, arguments: Mapping[str, Any]) -> GcsSettings:  # noqa: ANN401
        # The environment and the universe are in the location.
        endpoint = str(filesystem._location).rstrip("/")  # noqa: SLF001
        require_supported(arguments.keys() - _ARGUMENTS, ("gs", "gcs"), "GOOGLE_", endpoint)
        if not _BUCKET.fullmatch(self._bucket):
            raise FsspecOnlyError("the bucket's name is not an ordinary one")
        if getattr(filesystem, "_use_client_cert", False):
            raise FsspecOnlyError("the client has a certificate of its own")
        login = filesystem.credentials
        if login.credentials is None:
            login = None
        elif not endpoint.startswith("https:"):
            raise FsspecOnlyError("tokens go through encrypted connections only")
        elif getattr(login.credentials, "quota_project_id", None):
            raise FsspecOnlyError("its credentials name a project that pays")
        return GcsSettings(
            endpoint, self._bucket, login, client_options(endpoint, self._retry_policy)
        )

    def _can_pin(self, version: str) -> bool:
        return version.isdecimal()

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        from gcsfs.retry import is_retriable

        status, text = super()._failure(error, key, listing=listing)
        if isinstance(error, RangeError):
            return status, text
        if type(error) is OSError and str(error).startswith("Forbidden"):
            status = 403  # gcsfs has no class for it
        elif status not in (401, 403) and (
            is_retriable(error) or getattr(error, "retryable", False)
        ):
            status = 503
        return status, text
