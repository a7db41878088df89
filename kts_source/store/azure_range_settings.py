"""What obstore is told about a container: the same as adlfs, or why it cannot be.

adlfs has read its options and the environment already: its client of the service knows the address
and the credentials. obstore would look into the environment for itself, so all that it could take
from there is set.
"""

from __future__ import annotations

import os
import re
import urllib.parse
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
    from collections.abc import Callable, Mapping

    from obstore.store import AzureCredential, ClientConfig

    from kts_source.store.retry import RetryPolicy

_ARGUMENTS: Final = {
    *("account_name", "account_key", "sas_token", "connection_string", "credential", "anon"),
    *("client_id", "client_secret", "tenant_id", "account_host", "assume_container_exists"),
    *("use_listings_cache", "listings_expiry_time", "max_paths", "blocksize", "max_concurrency"),
    *("default_fill_cache", "default_cache_type"),
}
_CONTAINER: Final = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")
# Of Azure's clouds.
_OWN: Final = re.compile(
    r"https://[^/]+\.(core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)|storage\.azure\.net)"
)
_SCOPE: Final = "https://storage.azure.com/.default"


@dataclass(frozen=True, slots=True)
class AzureRangeSettings:
    """What opens obstore's store of a container.

    Attributes:
        endpoint: URL of the account, without a query.
        container: Its name.
        account: Its name.
        keys: An account key or a shared access signature, as obstore takes them; a secret `None`:
            there are none, or `token` gives them.
        token: Gives tokens of Entra ID; `None` where nobody does.
        client_options: Of obstore's client.
    """

    endpoint: str
    container: str
    account: str
    keys: Secret[tuple[str, str] | None]
    token: Any
    client_options: ClientConfig

    @property
    def may_wait(self) -> bool:
        """See `RangeSettings`: not here."""
        return False

    def credentials(self) -> Secret[tuple[str, str] | None]:
        """The same always: tokens are renewed by who gives them."""
        return self.keys

    def renew(self) -> bool:
        """Never: Azure's library keeps its tokens to itself, and renews them in time."""
        return False

    def open(self, credentials: Secret[tuple[str, str] | None]) -> Any:  # noqa: ANN401
        """A store that tries each request once."""
        from obstore.store import AzureStore

        provider = self._provider(credentials)
        # As a provider: beside keys, obstore takes what the environment has, too.
        named: dict[str, Any] = {} if provider is None else {"credential_provider": provider}
        return AzureStore(
            container_name=self.container,
            account_name=self.account,
            endpoint=self.endpoint,
            use_emulator=False,
            **named,
            skip_signature=provider is None,
            client_options=self.client_options,
            retry_config={"max_retries": 0},
        )

    def _provider(self, credentials: Secret[tuple[str, str] | None]) -> Callable[[], Any] | None:
        keys = credentials.reveal()
        if keys is not None:
            name, text = keys
            return lambda: {name: text, "expires_at": None}
        if self.token is None:
            return None

        async def renewed() -> AzureCredential:
            found = await self.token.get_token(_SCOPE)
            return {
                "token": found.token,
                "expires_at": datetime.fromtimestamp(found.expires_on, UTC),
            }

        return renewed


def azure_range_settings(
    container: str,
    client: Any,  # noqa: ANN401  # Azure's
    arguments: Mapping[str, Any],
    policy: RetryPolicy,
) -> AzureRangeSettings:
    """The settings that are to obstore what adlfs has made of its arguments. Nothing is asked.

    Args:
        container: Its name.
        client: adlfs' `BlobServiceClient`.
        arguments: As given to adlfs.
        policy: Deadlines.

    Raises:
        LeftToFsspecError: obstore cannot do all of it.
    """
    require_obstore_can(arguments.keys() - _ARGUMENTS, ("abfs", "abfss", "az"), "AZURE_")
    if not _CONTAINER.fullmatch(container) and container != "$root":
        raise LeftToFsspecError("the container's name is not an ordinary one")
    if os.environ.get("AZURE_ENCRYPTION_KEY"):
        raise LeftToFsspecError("AZURE_ENCRYPTION_KEY is set")
    address = urllib.parse.urlsplit(client.url)
    endpoint = address._replace(query="", path=address.path.rstrip("/")).geturl()
    require_no_bundle(endpoint)
    keys, token = _keys(client.credential, address.query)
    if token is not None and address.scheme != "https":
        raise LeftToFsspecError("tokens go through encrypted connections only")
    if keys is not None and keys[0] == "sas_token" and not _OWN.fullmatch(endpoint):
        # A redirect may lead anywhere, and obstore names there the address that it comes from.
        raise LeftToFsspecError("a signature at an address of one's own")
    return AzureRangeSettings(
        endpoint,
        container,
        getattr(client.credential, "account_name", None) or client.account_name or "unknown",
        Secret(keys),
        token,
        client_options(
            endpoint, policy.connect_timeout_seconds, policy.read_timeout_seconds, policy
        ),
    )


def _keys(credential: Any, query: str) -> tuple[tuple[str, str] | None, Any]:  # noqa: ANN401
    """An account key or a signature; else what gives tokens; else nothing."""
    if credential is None:
        if not query:
            return None, None
        if "sig" in urllib.parse.parse_qs(query):
            return ("sas_token", query), None
    elif isinstance(key := getattr(credential, "account_key", None), str):
        return ("access_key", key), None
    elif hasattr(credential, "get_token"):
        return None, credential
    raise LeftToFsspecError("its credentials are of a kind of their own")
