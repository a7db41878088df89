"""Skips tests if a tool is missing, or fails them in CI runs that require all tools."""

from __future__ import annotations

import os
import shutil

import pytest


def needs(*tools: str) -> None:
    """Skips the calling test if one of these executables is not on PATH; fails it if
    `KTS_CI_FULL=1`.

    `.ci/run` sets `KTS_CI_FULL=1` if java, mvn, go and npm all exist. A skip would then hide a
    suite that should have run.
    """
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return
    reason = f"not on PATH: {', '.join(missing)}"
    if os.environ.get("KTS_CI_FULL") == "1":
        pytest.fail(f"KTS_CI_FULL=1, but {reason}")
    pytest.skip(reason)
