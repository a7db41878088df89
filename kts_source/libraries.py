"""Helpers for installed packages: their version, whether they exist, and their log lines."""

from __future__ import annotations

import importlib.util
import logging
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator


def package_version() -> str:
    """Returns the version of this package; `unknown` if it is not installed."""
    try:
        return metadata.version("tiered-kafka")
    except metadata.PackageNotFoundError:  # run from a source folder
        return "unknown"


def require(library: str, extra: str, what: str) -> None:
    """Raises InvalidOptionError if a library is not installed.

    Args:
        library: Module to import.
        extra: Extra of this package that installs it.
        what: The feature that needs it, for the message.
    """
    try:
        spec = importlib.util.find_spec(library)
    except ModuleNotFoundError:  # its parent package is missing
        spec = None
    if spec is None:
        raise InvalidOptionError(f"{what} needs {library}: pip install 'tiered-kafka[{extra}]'")


@contextmanager
def errors_only(logger_name: str) -> Iterator[None]:
    """Hides log lines below level ERROR of a logger while the `with` block runs."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
