"""Where machine code is kept: one folder per user, mode 0700, whose owner and mode are checked.

Loading code hands this process to whoever wrote it, so a folder that others can write is not used.
One folder per CPU type below it keeps mixed clusters with a shared home from mistaking each other's
code, and one per version of the sources keeps an upgrade from running what was there before.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import llvmlite.binding as llvm

if TYPE_CHECKING:
    from collections.abc import Iterator


def code_folder() -> Path | None:
    """Where this version's machine code for this user and CPU is kept, made if missing.

    None if the sources cannot be read as files (a zip on the path), or no folder is safe to use.
    """
    try:
        version = _sources_digest()
    except OSError:
        return None
    name = f"{llvm.get_host_cpu_name() or 'generic'}-{version}"
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(given) / "tiered-kafka" / name
    for candidate in _candidates():
        try:
            candidate.parent.mkdir(parents=True, exist_ok=True)
            folder = candidate
            for level in ("", "numba", name):
                folder = folder / level
                folder.mkdir(mode=0o700, exist_ok=True)
                if not _is_private(folder):
                    raise PermissionError(str(folder))
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            continue
    return None


def _sources_digest() -> str:
    """Numba looks at the file of the outermost function only, and wheels have equal file times."""
    parts = [f"{name} {version(name)}" for name in ("numba", "llvmlite", "numpy")]
    # Some of numba's settings choose other code.
    parts += sorted(
        f"{name}={text}"
        for name, text in os.environ.items()
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    )
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.suffix == ".py":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _candidates() -> Iterator[Path]:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    if Path(home).is_absolute():
        yield Path(home) / "tiered-kafka"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"tiered-kafka-{user}"


def _is_private(folder: Path) -> bool:
    facts = folder.lstat()
    mine = not hasattr(os, "getuid") or facts.st_uid == os.getuid()
    return stat.S_ISDIR(facts.st_mode) and mine and not facts.st_mode & 0o022
