"""Functions of the user's that options name as `module:function`."""

from __future__ import annotations

import importlib
import re
from typing import Final

_CALLBACK: Final = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")


def is_callback(text: str) -> bool:
    """Whether a text is written as `module:function`."""
    return _CALLBACK.fullmatch(text) is not None


def called(callback: str, *arguments: str) -> object:
    """What the function gives. Whatever it raises is the caller's to hide: it may quote a secret.

    Args:
        callback: As `is_callback` has it.
        arguments: What the function is called with.
    """
    match = _CALLBACK.fullmatch(callback)
    assert match is not None
    return getattr(importlib.import_module(match["module"]), match["function"])(*arguments)
