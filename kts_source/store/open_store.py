"""Opens the store that the option `path` names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError
from kts_source.secret import Secret
from kts_source.store.request_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from kts_source.store.storage_options import (
    AZURE_SCHEMES,
    STORAGE_OPTIONS,
    is_presigned,
    names_account,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.store.object_store import ObjectStore

_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*):/")
_WITH_BUCKET: Final = frozenset(
    {"s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "az", "adl", "wasb", "wasbs"}
)
_NEARLY_URL: Final = re.compile(
    rf"(?P<scheme>{'|'.join(sorted(_WITH_BUCKET))}|hdfs|https?|ftp|sftp|memory|file):",
    re.IGNORECASE,
)


def scheme_of(path: str) -> str:
    """Returns the scheme of a path: `file` for a plain path, `s3` also for `s3a` and `s3n`.

    Raises:
        InvalidOptionError: The path looks like a misspelled URL, such as `s3:bucket/x` or
            `"s3://bucket"`. It must not be opened as a local folder.
    """
    path = path.strip()
    match = _SCHEME.match(path)
    if match is None:
        if nearly := _NEARLY_URL.match(path):
            raise _invalid_url(path, nearly["scheme"])
        if "://" in path and not path.startswith(("/", ".", "~")):
            shown = "the path" if "@" in path else repr(path)
            raise InvalidOptionError(
                f"{shown} is not a URL: there is no scheme before ://. Remove quotes and the like,"
                " or put ./ in front for a local folder of that name"
            )
        return "file"
    scheme = match["scheme"].lower()
    if scheme in _WITH_BUCKET:
        slashes, _, bucket = path[match.end() - 1 :].partition("//")
        if slashes or not bucket:
            raise _invalid_url(path, scheme)
        if bucket.startswith("/"):
            raise InvalidOptionError(
                f"{path} names no bucket; write {scheme}://bucket or {scheme}://bucket/prefix"
            )
    return "s3" if scheme in ("s3a", "s3n") else scheme


def _invalid_url(path: str, scheme: str) -> InvalidOptionError:
    shown = f"{scheme}:…" if "@" in path else path
    if scheme.lower() not in _WITH_BUCKET:
        slashes = "///" if scheme.lower() == "file" else "//"
        return InvalidOptionError(
            f"{shown} is not a URL: write {scheme}:{slashes}…, or ./{shown} for a local folder of"
            " that name"
        )
    return InvalidOptionError(
        f"{shown} names no bucket; write {scheme}://bucket or {scheme}://bucket/prefix, or"
        f" ./{shown} for a local folder of that name"
    )


def expand_home(path: str) -> str:
    """Returns a local path with `~` or `~user` at its start replaced by the home folder. Call it
    where the user's options are parsed, because workers may have another home folder.
    """
    return os.path.expanduser(path)  # noqa: PTH111  # `Path.expanduser` fails without a home


def local_file(path: str | Path) -> Path:
    """Returns the local file of a path or a `file:` URL.

    Raises:
        InvalidOptionError: The path is the URL of a remote store.
    """
    if isinstance(path, Path):
        return path
    path = expand_home(path.strip())
    if (scheme := scheme_of(path)) != "file":
        raise InvalidOptionError(
            f"the file must be on this machine, but the path begins with {scheme}://: give a local"
            " path, and copy the file to the store afterwards"
        )
    from kts_source.store.local_store import local_root

    return local_root(path)


def refuse_credentials(path: str) -> None:
    """Raises `InvalidOptionError` if a URL contains a user, a password or a shared access
    signature, because messages and plans show paths. The container in
    `abfss://container@account.dfs.core.windows.net` is not a user.
    """
    _, is_url, rest = path.partition("://")
    if not is_url:
        return
    scheme = scheme_of(path)
    has_user = "@" in rest.split("/", 1)[0] and not names_account(path)
    if has_user or (scheme in AZURE_SCHEMES and "sig=" in rest.partition("?")[2]):
        hint = (
            "; write abfss://container@account.dfs.core.windows.net/path, and the credentials into"
            " storageOptions"
            if scheme in AZURE_SCHEMES
            else ": give them as options"
        )
        raise InvalidOptionError(f"the path ({scheme}://…) holds credentials{hint}")


def storage_of_other_path(
    path: str, other: str, storage: Secret[Mapping[str, str]]
) -> Secret[Mapping[str, str]]:
    """Returns the storage options of the store at `path` that also apply to the store at `other`.
    Omits `storageOptions` if the schemes differ, because they are arguments of one fsspec file
    system.
    """
    schemes = {scheme_of(path), scheme_of(other)}
    if len(schemes) == 1 or schemes <= AZURE_SCHEMES or schemes <= {"gs", "gcs"}:
        return storage
    options = storage.reveal().items()
    return Secret({name: text for name, text in options if name != STORAGE_OPTIONS})


def open_store(
    path: str,
    storage: Secret[Mapping[str, str]],
    *,
    retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
) -> ObjectStore:
    """Opens the store that a path names. Sends no request.

    Args:
        path: A local folder (plain or `file:///…`), `s3://bucket[/prefix]`, a list of presigned
            URLs (see `presigned_store`), or any other URL that fsspec supports.
        storage: Result of `storage_options.storage_options_from`.
        retry_policy: Retries and timeouts.

    Raises:
        InvalidOptionError: The path is empty, has credentials, or has an unknown scheme.
    """
    path = path.strip()
    if not path:
        raise InvalidOptionError("the path is empty: give a folder, s3://bucket or another URL")
    if is_presigned(path):
        from kts_source.store.presigned_store import PresignedStore

        return PresignedStore(path, storage, retry_policy)
    scheme = scheme_of(path)
    if scheme == "file":
        from kts_source.store.local_store import LocalStore, local_root

        return LocalStore(local_root(path))
    refuse_credentials(path)
    if scheme == "s3":
        from kts_source.store.s3_store import S3Store

        return S3Store(path, storage, retry_policy)
    if scheme in ("gs", "gcs"):
        from kts_source.store.obstore_stores import GcsStore

        return GcsStore(path, storage, retry_policy)
    if scheme in AZURE_SCHEMES:
        from kts_source.store.obstore_stores import AzureStore

        return AzureStore(path, storage, retry_policy)
    from kts_source.store.fsspec_store import FsspecStore

    return FsspecStore(path, storage, retry_policy)
