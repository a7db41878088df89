"""What Spark repeats between tasks in a worker that it uses again, kept short.

After a task it collects garbage, before the next it may let importers look at their archives again:
work that grows with the modules a worker has loaded and is the same every time. All of it leans on
what Spark's workers do today: it is left alone in processes that are no workers of Spark 4's
daemon, and with `KTS_TUNING=off` (`docs/tuning.md`).

What a task says where the Python of Spark's workers lacks this package or what it needs.

Workers run the interpreter that `PYSPARK_PYTHON` names, else the `python3` they find. Unpickling a
class of this package there would end in a bare `ModuleNotFoundError` that names no interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import zipimport
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.cloudpickle import register_pickle_by_value

from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Iterator


def load(module: str, name: str) -> Any:  # noqa: ANN401  # whatever has the name
    """What a module of this package calls `name`.

    It travels to workers as code, and so runs where the package is missing, too.

    Raises:
        ModuleNotFoundError: The package or one of its dependencies is not installed; names the
            interpreter and says what to set.
    """
    with explained_imports():
        return getattr(importlib.import_module(module), name)


@contextmanager
def explained_imports() -> Iterator[None]:
    """Explains a module that is missed later, where an import waits for its first use.

    Raises:
        ModuleNotFoundError: See `load`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        version = ".".join(str(number) for number in sys.version_info[:3])
        raise ModuleNotFoundError(
            f"{error}: Spark runs its Python workers with {sys.executable} (Python {version}),"
            " where tiered-kafka is not installed, or not with all it needs. Install it there, or"
            " set PYSPARK_PYTHON to the path of a Python that has it (on every machine of the"
            " cluster) before the Spark session starts",
            name=error.name,
        ) from error


register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


_PACKAGE_IN_HOME: Final = os.path.join(os.sep, "python", "lib", "pyspark.zip")  # noqa: PTH118  # text
_DAEMONS: Final = ("pyspark.daemon", "kts_source.spark.daemon")

_modules_frozen = 0


@contextlib.contextmanager
def garbage_left_alone() -> Iterator[None]:
    """No collection before a worker's first rows, nor one of all that was imported for them right
    then: it is many objects and no garbage, and looking through it took a fifth of the time.
    """
    if _modules_frozen or not gc.isenabled() or not _collects_between_tasks():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # until the task has ended
        gc.enable()


def end_task() -> None:
    """To be called when a task has done its work: the first one imports most modules late.

    Spark collects garbage after every task, and passes frozen objects over: those of a module's
    code are many and stay.
    """
    global _modules_frozen
    if _collects_between_tasks() and len(sys.modules) != _modules_frozen:
        if not _modules_frozen:
            gc.unfreeze()  # the first task's own objects were frozen with the modules
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)
    forget_finders_of_sparks_archives()


def _collects_between_tasks() -> bool:
    """Whether this process was forked by the daemon of a Spark whose workers collect garbage after
    every task: other processes' collectors are not ours to direct.
    """
    import pyspark

    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    forked = getattr(main, "name", None) in _DAEMONS
    return forked and pyspark.__version__.startswith("4.") and is_on()


def forget_finders_of_sparks_archives() -> None:
    """Spark 4.0 invalidates import caches before every task. Up to Python 3.12 the finders of its
    archives on the path (`pyspark.zip` has one for each package; a jar is among them) then read
    their directories anew, which takes longer than many a task. Nobody needs them before the next
    import from there, which makes new ones from the directory that `zipimport` keeps.

    To be called in workers that plan as well. Other versions of Spark and Python do not read them.
    """
    import pyspark

    if not is_on() or not _reads_archives_anew(pyspark.__version__, sys.version_info[:2]):
        return
    archive = getattr(pyspark.__loader__, "archive", None)
    if archive is None:
        return
    home = f"{archive.removesuffix(_PACKAGE_IN_HOME)}{os.sep}"
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter) and finder.archive.startswith(home):
            del sys.path_importer_cache[path]


def _reads_archives_anew(spark: str, python: tuple[int, ...]) -> bool:
    return spark.startswith("4.0.") and python < (3, 13)
