"""Azure Blob Storage, through adlfs and obstore. The version of a blob is its ETag."""

from __future__ import annotations

import os
import re
import urllib.parse
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import ArchivedObjectError
from kts_source.secret import Secret
from kts_source.store.http_exchange import watch_azure
from kts_source.store.obstore_ranges import ObstoreStore, client_options, require_supported
from kts_source.store.range_reader import FsspecOnlyError, RangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obstore.store import AzureCredential, ClientConfig

# Azure's errors for failed connections and garbled answers.
_TRANSIENT: Final = ("ServiceRequestError", "ServiceResponseError", "DecodeError")
_ETAG: Final = re.compile(r'"[^"]+"')
# Arguments of adlfs that have the same effect here.
_ARGUMENTS: Final = {
    *("account_name", "account_key", "sas_token", "connection_string", "credential", "anon"),
    *("client_id", "client_secret", "tenant_id", "account_host", "assume_container_exists"),
    *("use_listings_cache", "listings_expiry_time", "max_paths", "blocksize", "max_concurrency"),
    *("default_fill_cache", "default_cache_type"),
}
_CONTAINER: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
_AZURE_HOST: Final = re.compile(
    r"https://[^/]+\.(core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)|storage\.azure\.net)"
)
_SCOPE: Final = "https://storage.azure.com/.default"


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """Settings of obstore's store of a container.

    Attributes:
        endpoint: URL of the account, without a query.
        container: Name of the container.
        account: Name of the account.
        keys: obstore's name and value of an account key or a shared access signature, or `None`.
        token: Credential that issues tokens of Entra ID, or `None`.
        client_options: Options of obstore's HTTP client.
    """

    endpoint: str
    container: str
    account: str
    keys: Secret[tuple[str, str] | None]
    token: Any
    client_options: ClientConfig

    def renew(self) -> bool:
        """Returns False: Azure's library renews its tokens in time, and cannot be asked to."""
        return False

    def open(self) -> Any:  # noqa: ANN401
        """See `ObstoreSettings.open`."""
        from obstore.store import AzureStore as Store

        provider = self._provider()
        # A provider, because obstore would mix explicit keys with the environment.
        named: dict[str, Any] = {} if provider is None else {"credential_provider": provider}
        return Store(
            container_name=self.container,
            account_name=self.account,
            endpoint=self.endpoint,
            use_emulator=False,
            **named,
            skip_signature=provider is None,
            client_options=self.client_options,
            retry_config={"max_retries": 0},
        )

    def _provider(self) -> Callable[[], Any] | None:
        keys = self.keys.reveal()
        if keys is not None:
            name, value = keys
            return lambda: {name: value, "expires_at": None}
        if self.token is None:
            return None

        async def issue() -> AzureCredential:
            token = await self.token.get_token(_SCOPE)
            return {
                "token": token.token,
                "expires_at": datetime.fromtimestamp(token.expires_on, UTC),
            }

        return issue


class AzureStore(ObstoreStore):
    """Objects of `abfs://container[/prefix]`."""

    pinning = "conditional reads (If-Match), or the ETag looked up after every read"
    _root_name = "container"
    _library = "adlfs"
    _extra = "azure"

    def _connect(self) -> Any:  # noqa: ANN401  # adlfs ships no types
        filesystem = super()._connect()
        watch_azure(filesystem.service_client)
        return filesystem

    def _settings_of(self, filesystem: Any, arguments: Mapping[str, Any]) -> AzureSettings:  # noqa: ANN401
        client = filesystem.service_client
        address = urllib.parse.urlsplit(client.url)
        endpoint = address._replace(query="", path=address.path.rstrip("/")).geturl()
        schemes = ("abfs", "abfss", "az")
        require_supported(arguments.keys() - _ARGUMENTS, schemes, "AZURE_", endpoint)
        if not _CONTAINER.fullmatch(self._bucket) and self._bucket != "$root":
            raise FsspecOnlyError("the container's name is not an ordinary one")
        if os.environ.get("AZURE_ENCRYPTION_KEY"):
            raise FsspecOnlyError("AZURE_ENCRYPTION_KEY is set")
        keys, token = _credentials(client.credential, address.query)
        if token is not None and address.scheme != "https":
            raise FsspecOnlyError("tokens go through encrypted connections only")
        if keys is not None and keys[0] == "sas_token" and not _AZURE_HOST.fullmatch(endpoint):
            # obstore follows redirects to any host and sends the signed URL along as `Referer`.
            raise FsspecOnlyError("a signature at an address of one's own")
        return AzureSettings(
            endpoint,
            self._bucket,
            getattr(client.credential, "account_name", None) or client.account_name or "unknown",
            Secret(keys),
            token,
            client_options(endpoint, self._retry_policy),
        )

    def _can_pin(self, version: str) -> bool:
        return _ETAG.fullmatch(version) is not None  # older versions of adlfs drop the quotes

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        status, text = super()._failure(error, key, listing=listing)
        if any(base.__name__ in _TRANSIENT for base in type(error).__mro__):
            status = 503
        if isinstance(error, RangeError) and error.code == "BlobArchived":
            raise ArchivedObjectError(
                f"the object is archived and must be restored first: {text}", uri=self.uri(key)
            ) from None
        return status, text


def _credentials(credential: Any, query: str) -> tuple[tuple[str, str] | None, Any]:  # noqa: ANN401
    """Returns an account key or a signature, and what issues tokens; `None` for each missing."""
    if credential is None:
        if not query:
            return None, None
        if "sig" in urllib.parse.parse_qs(query):
            return ("sas_token", query), None
    elif isinstance(key := getattr(credential, "account_key", None), str):
        return ("access_key", key), None
    elif hasattr(credential, "get_token"):
        return None, credential
    raise FsspecOnlyError("its credentials are of a kind of their own")
