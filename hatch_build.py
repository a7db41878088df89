"""Adds the library of compiled kernels to wheels.

`KTS_WHEEL_TARGET` in the environment names the platform (`TARGETS` in `tools/build_kernels.py`), or
`any` for a wheel without a library. The default is this machine's platform. On other platforms the
wheel has no library, and needs the extra `jit`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):
    """Builds the library, unless the checkout contains a current one for the platform."""

    def dependencies(self) -> list[str]:
        """Returns the packages that the build needs."""
        target, is_built = self._target()
        if target is None or is_built:
            return []
        numba: list[str] = self.metadata.core.optional_dependencies["jit"]
        is_cross = os.environ.get("KTS_WHEEL_TARGET") is not None
        return [*numba, "ziglang>=0.13"] if is_cross or not shutil.which("cc") else numba

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the library, and the platform to the name of the wheel."""
        if version == "editable":
            return  # `make kernels` builds it in the checkout
        target, is_built = self._target()
        if target is None:
            return
        from tools import build_kernels

        # The library of this machine stays in the checkout, because Python imports the checkout
        # instead of the installed package if it runs in that folder.
        library = build_kernels.LIBRARY
        if target != build_kernels.host_target():
            library = Path(self.root, "build", "kernels", f"{target}.so")
        if not is_built:
            build_kernels.build(target, library)
        inside = build_kernels.LIBRARY.relative_to(build_kernels.ROOT)
        build_data["force_include"][str(library)] = inside.as_posix()
        build_data["tag"] = f"py3-none-{build_kernels.TARGETS[target].tag}"

    def _target(self) -> tuple[str | None, bool]:
        """Returns the platform, and whether the checkout contains its current library."""
        sys.path.insert(0, self.root)
        from tools import build_kernels

        host = build_kernels.host_target()
        target = os.environ.get("KTS_WHEEL_TARGET") or host
        if target == "any":
            return None, False
        return target, target == host and build_kernels.is_current(build_kernels.LIBRARY)
