"""Helpers for installed packages: their version, whether they exist, the command that installs
them, and their log lines.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from kts_source.errors import MissingExtraError
from kts_source.secret import scrub

if TYPE_CHECKING:
    from collections.abc import Iterator


_PACKAGE: Final = "tiered-kafka"


def install_command(extra: str) -> str:
    """Returns the shell command that installs an extra of this package from where the package was
    installed (PEP 610): a checkout, a wheel file, a URL or an index.
    """
    try:
        record = metadata.distribution(_PACKAGE).read_text("direct_url.json")
        source = json.loads(record or "{}")
        url = str(source.get("url", ""))
        is_editable = bool(source.get("dir_info", {}).get("editable"))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        url, is_editable = "", False
    if url.startswith("file:"):
        path = unquote(urlsplit(url).path)
        return f"pip install {'-e ' * is_editable}'{path}[{extra}]'"
    return f"pip install '{_PACKAGE}[{extra}]{f' @ {scrub(url)}' if url else ''}'"


def missing_extra(library: str, extra: str, what: str) -> MissingExtraError:
    """Returns the error for a feature that needs a library which is not installed. `what` is the
    name of the feature.
    """
    return MissingExtraError(f"{what} needs {library}. Install it with: {install_command(extra)}")


def package_version() -> str:
    """Returns the version of this package; `unknown` if it is not installed."""
    try:
        return metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:  # run from a source folder
        return "unknown"


def require(library: str, extra: str, what: str) -> None:
    """Raises MissingExtraError if the module `library` is not installed. The message names `what`,
    the feature that needs it, and `extra`, the extra of this package that installs it.
    """
    try:
        spec = importlib.util.find_spec(library)
    except ModuleNotFoundError:  # its parent package is missing
        spec = None
    if spec is None:
        raise missing_extra(library, extra, what)


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
