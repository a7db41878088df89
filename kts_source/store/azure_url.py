"""Parses Azure URLs that name the storage account, as Spark and Hadoop write them:
`abfss://container@account.dfs.core.windows.net/path`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import InvalidOptionError
from kts_source.store.storage_options import extra_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

AZURE_SCHEMES: Final = frozenset({"abfs", "abfss", "az"})
_ACCOUNT_URL: Final = re.compile(
    rf"(?:{'|'.join(sorted(AZURE_SCHEMES))})://[A-Za-z0-9$][A-Za-z0-9-]*@"
    r"(?P<account>[a-z0-9]{3,24})\.(?:dfs|blob)\.(?P<domain>[a-z0-9-]+(?:\.[a-z0-9-]+)+)(?:/.*)?",
    re.IGNORECASE | re.DOTALL,
)
_DEFAULT_DOMAIN: Final = "core.windows.net"
_ACCOUNT_NAME: Final = re.compile(r"(?:^|;)\s*AccountName=([^;]*)", re.IGNORECASE)


def names_account(url: str) -> bool:
    """Returns whether the part before the `@` of a URL is an Azure container, not a user."""
    return _ACCOUNT_URL.fullmatch(url.strip()) is not None


def filesystem_arguments(url: str, storage: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of the fsspec file system for a URL: the arguments in `storageOptions`,
    and the storage account that an Azure URL names.

    Raises:
        InvalidOptionError: `storageOptions` is not a JSON object, or names another account than the
            URL.
    """
    arguments = extra_arguments(storage)
    match = _ACCOUNT_URL.fullmatch(url.strip())
    if match is None:
        return arguments
    account, domain = match["account"].lower(), match["domain"].lower()
    in_connection = _ACCOUNT_NAME.search(str(arguments.get("connection_string", "")))
    for other in (arguments.get("account_name"), in_connection and in_connection[1]):
        if other and other != account:
            raise InvalidOptionError(
                f"the path names the storage account {account!r}, but storageOptions name another"
                " one. Remove account_name and connection_string from storageOptions, or correct"
                " the path"
            )
    if "connection_string" in arguments:
        return arguments
    named = {"account_name": account}
    if domain != _DEFAULT_DOMAIN:  # adlfs derives only the addresses of the public cloud
        named["account_host"] = f"{account}.blob.{domain}"
    return named | arguments
