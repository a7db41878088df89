"""Paths that name a list of presigned URLs; what is behind them: `presigned_store`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from kts_source.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "presigned+"
LIST_NAME: Final = re.compile(r"https?://[^?#]+\.(json|txt|urls)(\?.*)?", re.IGNORECASE | re.DOTALL)
PATH_SECRET: Final = "presigned.path"  # under this name the whole path travels with the secrets


def is_presigned(path: str) -> bool:
    """Whether a path names a list of presigned URLs."""
    return path.lower().startswith(PREFIX) or LIST_NAME.fullmatch(path) is not None


def hide_query(
    path: str, storage: Secret[Mapping[str, str]]
) -> tuple[str, Secret[Mapping[str, str]]]:
    """A path that may be shown, and storage options that carry what it lacks."""
    if not is_presigned(path) or "?" not in path:
        return path, storage
    prefix = PREFIX if path.lower().startswith(PREFIX) else ""
    return prefix + shown(path), Secret({**storage.reveal(), PATH_SECRET: path})


def shown(path: str) -> str:
    """A path without its query string and user."""
    parts = urlsplit(without_prefix(path))
    if not parts.netloc:
        return path.partition("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def without_prefix(path: str) -> str:
    """Where the list is."""
    return path[len(PREFIX) :] if path.lower().startswith(PREFIX) else path
