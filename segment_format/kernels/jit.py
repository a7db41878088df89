"""Compiles kernels with numba when they are first used, for platforms without a library of kernels.

Numba caches the machine code in the user's cache folder, in a separate subfolder for each version
of the sources. If the subfolder cannot be written, each process compiles the kernels.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE: Final = Path(__file__).parents[1]
_NOTICE: Final = "compiling kernels, once per machine, about 20 s"


def compile_kernel(name: str, module: str, signature: str, reason: str) -> Callable[..., int]:
    """Returns the kernel `name` of `module` (a module below `segment_format`), which numba compiles
    now, or has compiled before. `reason` says why the kernel is not taken from the library.

    Raises:
        ImportError: numba is not installed.
    """
    try:
        from segment_format.kernels.compiled import numba_config
    except ModuleNotFoundError as error:
        raise ImportError(
            f"No compiled kernels: {reason}. In a checkout, run `make kernels`."
            " On a platform without a wheel, install numba: the extra `jit` of tiered-kafka."
        ) from error
    dispatcher: Any = getattr(import_module(f"segment_format.{module}"), name)
    folder = _cache_folder()
    if folder is None or not any(folder.rglob(f"*.{name}-*.nbi")):
        sys.stderr.write(f"tiered-kafka: {_NOTICE} ({reason})\n")
    if folder is not None:
        numba_config.CACHE_DIR = str(folder)
        dispatcher.enable_caching()
    dispatcher.compile(signature)
    compiled: Callable[..., int] = dispatcher
    return compiled


def _cache_folder() -> Path | None:
    """Returns the folder for the machine code of these sources; `None` if other users could write
    to it.
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    digest = hashlib.sha256()
    try:
        for part in ("kernels", "values"):
            for path in sorted((_PACKAGE / part).rglob("*.py")):
                digest.update(path.read_bytes())
        folder = Path(home) / "tiered-kafka" / f"kernels-{digest.hexdigest()[:16]}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except (OSError, RuntimeError):
        return None
    is_private = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
    return folder if is_private else None
