"""Opens the store of a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError, UnsupportedTargetError
from kts_source.export.tables.target_store import LocalTarget
from kts_source.store.local_store import local_root
from kts_source.store.open_store import refuse_credentials, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.export.tables.target_store import TargetStore
    from kts_source.secret import Secret


def open_target(path: str, storage: Secret[Mapping[str, str]]) -> TargetStore:
    """Opens the store of a target path, without sending a request.

    Args:
        path: A local folder (plain or `file:///…`) or `s3://bucket/prefix`.
        storage: As for `kts_source.store.open_store.open_store`.

    Raises:
        InvalidOptionError: The path is empty or contains credentials.
        UnsupportedTargetError: The scheme is neither `file` nor `s3`.
    """
    path = path.strip()
    if not path:
        raise InvalidOptionError("the target is empty: give a folder or s3://bucket/prefix")
    scheme = scheme_of(path)
    if scheme == "file":
        return LocalTarget(local_root(path))
    refuse_credentials(path)
    if scheme == "s3":
        from kts_source.export.tables.target_s3 import S3Target

        bucket, _, prefix = path.partition("://")[2].partition("/")
        return S3Target(f"s3://{bucket}/{prefix.strip('/')}", storage)
    raise UnsupportedTargetError(
        f"cannot export to {scheme}://: targets are local folders and s3://bucket/prefix"
    )
