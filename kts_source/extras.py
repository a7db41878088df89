"""Libraries that not everybody needs, and a clear error where one is missing."""

from __future__ import annotations

import importlib.util

from kts_source.errors import InvalidOptionError


def require(library: str, extra: str, what: str) -> None:
    """Raises InvalidOptionError unless a library is installed; it says what needs the library, and
    which extra of this package brings it.
    """
    try:
        found = importlib.util.find_spec(library)
    except ModuleNotFoundError:  # the package that it lies in
        found = None
    if found is None:
        raise InvalidOptionError(f"{what} needs {library}: pip install 'tiered-kafka[{extra}]'")
