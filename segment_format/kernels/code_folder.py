"""Chooses the folder that caches compiled machine code. Each user has a separate folder, with mode
0700.

A user who can write the code controls the processes that load it. So a folder is used only if no
other user except root can write or replace it. The same is checked for the folders above it, and
for the targets of symbolic links in its path. Each CPU type has a separate folder, because machines
of a cluster may share a home folder. Each version of the sources has a separate folder, so that an
upgraded package does not run old code.
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

_MAX_LINKS: Final = 40
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_refused: set[str] = set()


def code_folder() -> Path | None:
    """Returns the folder for this version, user and CPU. Creates the folder if it does not exist.

    Returns `None` if no folder is safe, or if the sources are not files (the package is imported
    from a zip file).
    """
    try:
        digest = _sources_digest()
    except OSError:
        return None
    name = f"{llvm.get_host_cpu_name() or 'generic'}-{digest}"
    configured = os.environ.get("NUMBA_CACHE_DIR")
    for candidate in _candidates(configured):
        try:
            candidate.parent.mkdir(parents=True, exist_ok=True)
            folder = candidate
            _check_only_owner_can_replace(folder.parent)
            for level in ("", "numba", name):
                folder = folder / level
                folder.mkdir(mode=0o700, exist_ok=True)
                _check_private(folder)
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError as error:
            if configured and candidate.parent == Path(configured) and configured not in _refused:
                _refused.add(configured)
                log.warning("NUMBA_CACHE_DIR is not used for machine code: %s", error)
    return None


def _sources_digest() -> str:
    """Returns a digest of all kernel sources, the versions of numba, llvmlite and numpy, and the
    settings of numba.

    Numba's own check is not sufficient. It compares only the time stamp of the file that contains
    the outermost function, and all files of a wheel have the same time stamp.
    """
    texts = [f"{name} {version(name)}" for name in ("numba", "llvmlite", "numpy")]
    # Include numba's settings, because some of them change the machine code.
    texts += sorted(
        f"{name}={text}"
        for name, text in os.environ.items()
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    )
    digest = hashlib.sha256("\0".join(texts).encode())
    kernels = Path(__file__).parent
    for folder in (kernels, kernels.parent / "values"):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _candidates(configured: str | None) -> Iterator[Path]:
    if configured:
        yield Path(configured) / "tiered-kafka"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    if Path(home).is_absolute():
        yield Path(home) / "tiered-kafka"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"tiered-kafka-{user}"


def _check_private(folder: Path) -> None:
    """Raises `PermissionError` unless the folder belongs to this user and no other user can write
    it.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{folder} is not a folder")
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to user {status.st_uid}")
    if hasattr(os, "getuid") and status.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError(f"others can write {folder} (mode {stat.S_IMODE(status.st_mode):o})")


def _check_only_owner_can_replace(folder: Path) -> None:
    """Raises `PermissionError` if another user can replace the content of `folder`.

    Another user can do so if that user can write the folder, a folder above it, or the target of a
    symbolic link in its path. In folders with the sticky bit, such as `/tmp`, users cannot replace
    files of others.
    """
    if not hasattr(os, "getuid"):
        return
    trusted = (0, os.getuid())
    left = list(reversed((Path.cwd() / folder).parts))
    links = 0
    path = Path(left.pop())
    while True:
        facts = path.lstat()
        if facts.st_uid not in trusted:
            raise PermissionError(f"{path} belongs to user {facts.st_uid}")
        if stat.S_ISLNK(facts.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise PermissionError(f"the path {folder} has too many symbolic links")
            target = path.readlink()
            left += reversed(target.parts)
            path = path.parent
        elif facts.st_mode & _WRITABLE_BY_OTHERS and not facts.st_mode & stat.S_ISVTX:
            raise PermissionError(f"others can write {path} (mode {stat.S_IMODE(facts.st_mode):o})")
        if not left:
            return
        step = left.pop()
        # The target of `..` was checked before, or is above a checked folder.
        path = path.parent if step == ".." else path / step
