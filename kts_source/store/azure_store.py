"""Azure Blob Storage, through adlfs and obstore. The version of a blob is its ETag."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import ArchivedObjectError
from kts_source.store.azure_range_settings import AzureRangeSettings, azure_range_settings
from kts_source.store.client_exchange import watch_azure
from kts_source.store.range_reader import RangeError
from kts_source.store.ranged_store import RangedStore

if TYPE_CHECKING:
    from collections.abc import Mapping

# Azure's errors for a connection that failed and for an answer that is garbled.
_PASSING: Final = ("ServiceRequestError", "ServiceResponseError", "DecodeError")
_ETAG: Final = re.compile(r'"[^"]+"')


class AzureStore(RangedStore):
    """Objects of `abfs://container[/prefix]`."""

    pinning = "conditional reads (If-Match), or the ETag looked up after every read"
    _place = "container"
    _library = "adlfs"
    _extra = "azure"

    def _connect(self) -> Any:  # noqa: ANN401  # adlfs ships no types
        filesystem = super()._connect()
        watch_azure(filesystem.service_client)
        return filesystem

    def _settings_of(self, filesystem: Any, arguments: Mapping[str, Any]) -> AzureRangeSettings:  # noqa: ANN401
        client = filesystem.service_client
        return azure_range_settings(self._bucket, client, arguments, self._retry_policy)

    def _can_pin(self, version: str) -> bool:
        return _ETAG.fullmatch(version) is not None  # older versions of adlfs leave the quotes out

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        status, text = super()._failure(error, key, listing=listing)
        if any(base.__name__ in _PASSING for base in type(error).__mro__):
            status = 503
        if isinstance(error, RangeError) and error.code == "BlobArchived":
            raise ArchivedObjectError(
                f"the object is archived and must be restored first: {text}", uri=self.uri(key)
            ) from None
        return status, text
