"""Libraries that only some exports need, and a clear error where one is missing."""

from __future__ import annotations

import importlib.util

from kts_source.errors import InvalidOptionError


def require(library: str, extra: str, what: str) -> None:
    """Does nothing where the library is installed.

    Args:
        library: Name to import.
        extra: Extra of this package that brings it.
        what: What needs it.

    Raises:
        InvalidOptionError: It is not installed; says what to install.
    """
    try:
        found = importlib.util.find_spec(library)
    except ModuleNotFoundError:  # the package that it lies in
        found = None
    if found is None:
        raise InvalidOptionError(f"{what} needs {library}: pip install 'tiered-kafka[{extra}]'")
