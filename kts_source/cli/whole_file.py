"""Files that appear as a whole."""

from __future__ import annotations

import os

from kts_source.errors import InvalidOptionError
from kts_source.store.open_store import local_file


def write_whole(path: str, text: str) -> None:
    """Writes a file as a whole: who reads it meanwhile sees the one before.

    Raises:
        InvalidOptionError: It cannot be written.
    """
    target = local_file(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(text, encoding="utf-8", newline="\n")
        fresh.replace(target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise InvalidOptionError(f"{path} cannot be written: {error.strerror}") from None


def remove_file(path: str) -> None:
    """Removes a file that is about to be written, if it is there.

    Raises:
        InvalidOptionError: It cannot be removed.
    """
    try:
        local_file(path).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be written: {error.strerror}") from None
