"""What a test asks of the machine: absent tools skip it, unless the run promised to have them."""

from __future__ import annotations

import os
import shutil

import pytest


def needs(*tools: str) -> None:
    """Skips the calling test when a tool is not on PATH; fails it when the run promised all tools.

    `.ci/run` sets `KTS_CI_FULL=1` where java, mvn, go and npm are all there: a skip would then
    hide a suite that was meant to run.

    Args:
        tools: Names of executables, such as `java` or `mvn`.
    """
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if not missing:
        return
    reason = f"not on PATH: {', '.join(missing)}"
    if os.environ.get("KTS_CI_FULL") == "1":
        pytest.fail(f"KTS_CI_FULL=1, but {reason}")
    pytest.skip(reason)
