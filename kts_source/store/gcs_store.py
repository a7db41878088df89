"""Google Cloud Storage, through gcsfs and obstore. The version of an object is its generation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kts_source.store.client_exchange import watch_google
from kts_source.store.gcs_range_settings import GcsRangeSettings, gcs_range_settings
from kts_source.store.range_reader import RangeError
from kts_source.store.ranged_store import RangedStore

if TYPE_CHECKING:
    from collections.abc import Mapping


class GcsStore(RangedStore):
    """Objects of `gs://bucket[/prefix]`."""

    pinning = "reads of a generation, or the generation looked up after every read"
    _version_names = ("generation", "etag", "md5Hash")
    _place = "bucket"
    _library = "gcsfs"
    _extra = "gcs"
    _by_generation = True
    # A generation that was overwritten is missing, as are all objects at an endpoint without the
    # XML interface; a zonal bucket has none.
    _doubted = frozenset({400, 404})

    _session_argument = "session_kwargs"

    def _connect(self) -> Any:  # noqa: ANN401  # gcsfs ships no types
        filesystem = super()._connect()
        watch_google(filesystem, self._bucket)
        return filesystem

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

    def _settings_of(self, filesystem: Any, arguments: Mapping[str, Any]) -> GcsRangeSettings:  # noqa: ANN401
        return gcs_range_settings(self._bucket, filesystem, arguments, self._retry_policy)

    def _can_pin(self, version: str) -> bool:
        return version.isdecimal()

    def _version_of(self, entry: Mapping[str, Any], planned: str | None) -> str | None:
        if planned is not None and not self._can_pin(planned):
            return str(entry.get("etag"))  # of a plan from when versions were ETags
        return super()._version_of(entry, planned)
