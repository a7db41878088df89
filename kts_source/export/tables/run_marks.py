"""Marks of running exports, so that `clean` deletes no file of one.

    _kts/runs/<run id>    exists while the run writes

In a local folder the mark is locked (`flock`), and the lock ends with the process. On a file system
without locks every mark counts as one of a running export. In a bucket the run renews its mark
every minute, and a run with a mark older than ten minutes is dead.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from kts_source.export.tables.open_target import open_target
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kts_source.export.tables.target_store import TargetStore
    from kts_source.secret import Secret

log = logging.getLogger(__name__)

MARKS: Final = "_kts/runs/"
_RENEW_SECONDS: Final = 60.0
_LEASE_SECONDS: Final = 600.0


@contextmanager
def marked(path: str, storage: Secret[Mapping[str, str]], run_id: str) -> Iterator[None]:
    """Marks a run as running until the block ends."""
    if scheme_of(path) == "file":
        with _locked(local_root(path) / MARKS / run_id):
            yield
        return
    with closing(open_target(path, storage)) as target, _renewed(target, f"{MARKS}{run_id}"):
        yield


def running(path: str, storage: Secret[Mapping[str, str]]) -> set[str]:
    """Returns the ids of the runs that write to a target now."""
    if scheme_of(path) == "file":
        folder = local_root(path) / MARKS
        marks = list(folder.iterdir()) if folder.is_dir() else []
        return {mark.name for mark in marks if _is_locked(mark)}
    oldest_ms = (time.time() - _LEASE_SECONDS) * 1000
    with closing(open_target(path, storage)) as target:
        return {
            mark.key.removeprefix(MARKS)
            for mark in target.list_objects(MARKS)
            if (mark.last_modified_ms or 0) >= oldest_ms
        }


@contextmanager
def _locked(mark: Path) -> Iterator[None]:
    mark.parent.mkdir(parents=True, exist_ok=True)
    with mark.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            log.warning(
                "%s cannot be locked (%s): clean keeps the files of this run as long as this file"
                " exists. Delete it if the run dies",
                mark,
                error.strerror,
            )
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)


def _is_locked(mark: Path) -> bool:
    try:
        with mark.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is locked, or the file system has no locks
        return True
    return False


@contextmanager
def _renewed(target: TargetStore, key: str) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        with target.open_output(key) as file:
            file.write(b"1")

    def renew() -> None:
        while not ended.wait(_RENEW_SECONDS):
            try:
                write()
            except Exception as error:  # noqa: BLE001  # a commit checks its files anyway
                log.warning("the mark %s of this run cannot be renewed: %s", key, error)

    write()
    thread = threading.Thread(target=renew, name="kts-run-mark", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            target.delete(key)
        except Exception as error:  # noqa: BLE001  # the commits are complete
            log.warning(
                "the mark %s of this run cannot be deleted, so clean keeps its files for %d s: %s",
                key,
                _LEASE_SECONDS,
                error,
            )
