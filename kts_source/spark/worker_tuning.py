"""What Spark repeats between tasks in a worker that it uses again, kept short.

After a task it collects garbage, before the next it may let importers look at their archives again:
work that grows with the modules a worker has loaded and is the same every time.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import zipimport
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE_IN_HOME: Final = os.path.join(os.sep, "python", "lib", "pyspark.zip")  # noqa: PTH118  # text

_modules_frozen = 0


@contextlib.contextmanager
def garbage_left_alone() -> Iterator[None]:
    """No collection before a worker's first rows, nor one of all that was imported for them right
    then: it is many objects and no garbage, and looking through it took a fifth of the time.
    """
    if _modules_frozen or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # until the task has ended
        gc.enable()


def end_task() -> None:
    """To be called when a task has done its work: the first one imports most modules late."""
    _keep_garbage_collector_short()
    forget_finders_of_sparks_archives()


def _keep_garbage_collector_short() -> None:
    """Spark collects garbage after every task, and passes frozen objects over: those of a module's
    code are many and stay.
    """
    global _modules_frozen
    if len(sys.modules) != _modules_frozen:
        if not _modules_frozen:
            gc.unfreeze()  # the first task's own objects were frozen with the modules
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)


def forget_finders_of_sparks_archives() -> None:
    """Spark 4.0 invalidates import caches before every task. On Python 3.11 the finders of its own
    archives on the path (`pyspark.zip` has one for each package; a jar is among them) then read
    their directories anew, which takes longer than many a task. Nobody needs them before the next
    import from there, which makes new ones from the directory that `zipimport` keeps.

    To be called in workers that plan as well.
    """
    import pyspark

    archive = getattr(pyspark.__loader__, "archive", None)
    if archive is None:
        return
    home = f"{archive.removesuffix(_PACKAGE_IN_HOME)}{os.sep}"
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter) and finder.archive.startswith(home):
            del sys.path_importer_cache[path]
