"""Which store a path names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError
from kts_source.store.presigned_path import is_presigned
from kts_source.store.retry import DEFAULT_RETRY_POLICY, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.secret import Secret
    from kts_source.store.object_store import ObjectStore

S3_SCHEMES: Final = ("s3", "s3a", "s3n")

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*):(?P<rest>/.*)?", re.DOTALL)


def split_scheme(path: str) -> tuple[str | None, str]:
    """Scheme in lower case (None for a plain path) and the whole path as given."""
    match = _SCHEME.match(path)
    return (match["scheme"].lower(), path) if match and match["rest"] else (None, path)


def open_store(
    path: str,
    storage: Secret[Mapping[str, str]],
    *,
    retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
) -> ObjectStore:
    """The store that a path names. Nothing is asked of it yet.

    Args:
        path: A local folder (plain or `file:///…`), `s3://bucket[/prefix]`, a list of presigned
            URLs (see `presigned_store`), or any other URL that fsspec knows.
        storage: What `storage_options.storage_options_from` made of the data source's options.
        retry_policy: How failures that may pass are retried.

    Raises:
        InvalidOptionError: The path is empty, holds credentials, or its scheme is unknown.
    """
    if not path.strip():
        raise InvalidOptionError("the path is empty: give a folder, s3://bucket or another URL")
    scheme, _ = split_scheme(path)
    if is_presigned(path):
        from kts_source.store.presigned_store import open_presigned

        return open_presigned(path, storage, retry_policy=retry_policy)
    if scheme is None or scheme == "file":
        from kts_source.store.local_store import LocalStore, local_root

        return LocalStore(local_root(path))
    authority = path.split("://", 1)[-1].split("/", 1)[0]
    if "@" in authority:
        raise InvalidOptionError(
            f"the path ({scheme}://…) holds credentials: give them as options, paths are shown"
        )
    if scheme in S3_SCHEMES:
        from kts_source.store.s3_store import S3Store

        return S3Store.from_url(path, storage, retry_policy=retry_policy)
    from kts_source.store.fsspec_store import FsspecStore

    return FsspecStore(path, storage, retry_policy=retry_policy)
