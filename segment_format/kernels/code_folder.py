"""Where machine code is kept: one folder per user, mode 0700.

Whoever writes the code controls the process that loads it. So a folder is used only if nobody but
this user and root can write or replace it. The same holds for every folder above it, and for the
targets of links on the way. Each CPU type has a folder of its own, for clusters that share a home,
and so has each version of the sources, so that an upgrade does not run older code.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import llvmlite.binding as llvm

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

_MOST_LINKS: Final = 40
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_refused: set[str] = set()


def code_folder() -> Path | None:
    """Where this version's machine code for this user and CPU is kept, made if missing.

    None if the sources cannot be read as files (a zip on the path), or no folder is safe to use.
    """
    try:
        digest = _sources_digest()
    except OSError:
        return None
    name = f"{llvm.get_host_cpu_name() or 'generic'}-{digest}"
    given = os.environ.get("NUMBA_CACHE_DIR")
    for candidate in _candidates(given):
        try:
            candidate.parent.mkdir(parents=True, exist_ok=True)
            folder = candidate
            _check_nobody_else_replaces(folder.parent)
            for level in ("", "numba", name):
                folder = folder / level
                folder.mkdir(mode=0o700, exist_ok=True)
                _check_private(folder)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError as error:
            if given and candidate.parent == Path(given) and given not in _refused:
                _refused.add(given)
                log.warning("NUMBA_CACHE_DIR is not used for machine code: %s", error)
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
    kernels = Path(__file__).parent
    for folder in (kernels, kernels.parent / "values"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _candidates(given: str | None) -> Iterator[Path]:
    if given:
        yield Path(given) / "tiered-kafka"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    if Path(home).is_absolute():
        yield Path(home) / "tiered-kafka"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"tiered-kafka-{user}"


def _check_private(folder: Path) -> None:
    """Raises `PermissionError` unless it is a folder of this user's that no other can write."""
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        raise PermissionError(f"{folder} is not a folder")
    if hasattr(os, "getuid") and facts.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to user {facts.st_uid}")
    if hasattr(os, "getuid") and facts.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError(f"others can write {folder} (mode {stat.S_IMODE(facts.st_mode):o})")


def _check_nobody_else_replaces(folder: Path) -> None:
    """Raises `PermissionError` if another user can put something else in the place of what is in
    `folder`, by writing it, one above it, or one that a link on the way names.

    Where the sticky bit is set, as in `/tmp`, others cannot replace what is not theirs.
    """
    if not hasattr(os, "getuid"):
        return
    trusted = (0, os.getuid())
    left = list(reversed((Path.cwd() / folder).parts))
    links = 0
    place = Path(left.pop())
    while True:
        facts = place.lstat()
        if facts.st_uid not in trusted:
            raise PermissionError(f"{place} belongs to user {facts.st_uid}")
        if stat.S_ISLNK(facts.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise PermissionError(f"{folder} has too many links on the way")
            target = place.readlink()
            left += reversed(target.parts)
            place = place.parent
        elif facts.st_mode & _WRITABLE_BY_OTHERS and not facts.st_mode & stat.S_ISVTX:
            raise PermissionError(
                f"others can write {place} (mode {stat.S_IMODE(facts.st_mode):o})"
            )
        if not left:
            return
        step = left.pop()
        # What `..` leads to was looked at on the way down, or is above what was.
        place = place.parent if step == ".." else place / step
