"""Defines functions that run in Spark's Python workers. They explain errors about missing packages
and missing memory, and reduce the work between tasks.

Workers run the interpreter that `PYSPARK_PYTHON` names, by default `python3`. If this package is
not installed there, unpickling its classes would raise a `ModuleNotFoundError` that does not name
the interpreter.

Between tasks, a worker collects garbage, and may read the directories of import archives. Both take
longer after more modules were imported. The functions of this module avoid this work, using
internals of Spark's workers. They have an effect only in workers that the daemon of Spark 4 has
started. `KTS_TUNING=off` (`docs/tuning.md`) disables them.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import logging
import os
import sys
import zipimport
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.cloudpickle import register_pickle_by_value

from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def load(module: str, name: str) -> Any:  # noqa: ANN401  # any attribute
    """Returns the attribute `name` of a module of this package.

    The code of this function is part of the pickle, so it can run in workers without this package.

    Raises:
        ModuleNotFoundError: This package or one of its dependencies is not installed. The message
            names the interpreter and the environment variable to set.
    """
    with explained_memory(), explained_imports():
        return getattr(importlib.import_module(module), name)


def call(module: str, name: str, *arguments: object) -> Any:  # noqa: ANN401  # any result
    """Calls a function of this package, like `load` also in workers without this package."""
    return load(module, name)(*arguments)


@contextmanager
def explained_imports() -> Iterator[None]:
    """Replaces a `ModuleNotFoundError` that the `with` block raises by an error that explains the
    problem.

    Raises:
        ModuleNotFoundError: A package is not installed. The message names the interpreter and the
            environment variable to set.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        version = ".".join(str(number) for number in sys.version_info[:3])
        raise ModuleNotFoundError(
            f"{error}: Spark runs its Python workers with {sys.executable} (Python {version}),"
            " where tiered-kafka is not installed, or lacks dependencies. Install it there, or"
            " set PYSPARK_PYTHON to the path of a Python that has it (on every machine of the"
            " cluster) before the Spark session starts",
            name=error.name,
        ) from error


_NEEDED_MIB: Final = 3072
"""Address space that a task with the default `prefetchBytes` needs; see `docs/operations.md`."""
_NO_MEMORY: Final = "failed to map segment", "cannot allocate memory", "can't start new thread"


@contextmanager
def explained_memory() -> Iterator[None]:
    """Raises `WorkerMemoryError` instead of errors that a limit of the address space causes.

    Spark limits the address space of a worker to `spark.executor.pyspark.memory`. Shared libraries
    and stacks of threads count, too, so the first failure is often an import.

    Raises:
        WorkerMemoryError: The limit is too low. The message names the setting and the value to set.
    """
    try:
        yield
    except Exception as error:
        limit = _address_space_mib()
        if limit is None or not _is_out_of_memory(error):
            raise
        from kts_source.errors import WorkerMemoryError

        setting, advice = _memory_setting()
        raise WorkerMemoryError(
            f"a Python worker of Spark cannot allocate memory ({type(error).__name__}: {error}):"
            f" {setting} limits its address space to {limit} MiB, and libraries alone need about"
            f" 1 GiB. {advice}"
        ) from error


def _address_space_mib() -> int | None:
    """Returns the limit of this process's address space in MiB; `None` if there is no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit >> 20


def _memory_setting() -> tuple[str, str]:
    """Returns the name of the setting that limits the address space, and how to change it."""
    if "PYSPARK_PLANNER_MEMORY_MB" in os.environ:
        name = "spark.sql.planner.pythonExecution.memory"
        return name, f"Set {name} to at least {_NEEDED_MIB}m, or leave it unset"
    if "PYSPARK_EXECUTOR_MEMORY_MB" in os.environ:
        name = "spark.executor.pyspark.memory"
        return name, (
            f"Set {name} to at least {_NEEDED_MIB}m per core of the executor, or leave it unset and"
            " set spark.executor.memoryOverhead to at least 512m per core"
        )
    return "`ulimit -v`", f"Raise it to at least {_NEEDED_MIB} MiB"


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Returns whether an error or one of its causes reports a failed allocation."""
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        text = str(error).lower()
        if any(phrase in text for phrase in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


_PACKAGE_IN_HOME: Final = os.path.join(os.sep, "python", "lib", "pyspark.zip")  # noqa: PTH118  # text
_DAEMONS: Final = ("pyspark.daemon", "kts_source.spark.daemon")

_modules_frozen = 0


@contextlib.contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Disables garbage collection while a worker imports modules and reads its first rows.
    Afterwards freezes the imported objects: collecting garbage among them took a fifth of the time
    of a query.
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
    """Freezes the objects of imported modules at the end of a task. Spark collects garbage after
    every task, and garbage collection skips frozen objects.
    """
    global _modules_frozen
    if _collects_between_tasks() and len(sys.modules) != _modules_frozen:
        if not _modules_frozen:
            gc.unfreeze()  # the first task's own objects were frozen with the modules
        gc.collect()
        gc.freeze()
        _modules_frozen = len(sys.modules)
    forget_archive_finders()


def _collects_between_tasks() -> bool:
    """Returns whether this process is a Spark worker that collects garbage after every task."""
    import pyspark

    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    forked = getattr(main, "name", None) in _DAEMONS
    return forked and pyspark.__version__.startswith("4.") and is_on()


def forget_archive_finders() -> None:
    """Removes the import finders of Spark's archives in Python workers. Call it also in workers
    that plan.

    Before every task, Spark 4.0 invalidates import caches. Up to Python 3.12, every finder of an
    archive on the Python path (one for each package in `pyspark.zip`) then reads the archive's
    directory again, which takes longer than many tasks. The next import from an archive creates a
    new finder, which uses the directory that `zipimport` has cached.
    """
    import pyspark

    if not is_on() or not _rereads_archives(pyspark.__version__, sys.version_info[:2]):
        return
    archive = getattr(pyspark.__loader__, "archive", None)
    if archive is None:
        return
    home = f"{archive.removesuffix(_PACKAGE_IN_HOME)}{os.sep}"
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter) and finder.archive.startswith(home):
            del sys.path_importer_cache[path]


def _rereads_archives(spark: str, python: tuple[int, ...]) -> bool:
    return spark.startswith("4.0.") and python < (3, 13)


def log_to_stderr(level: int) -> None:
    """Writes log lines of `level` and above to stderr, if this is a Python process of Spark and no
    log handler is configured in it.

    Spark appends the stderr of its Python processes to the log of the driver or the executor.
    Without a handler, Python drops lines below level WARNING, and writes all other lines without
    time and level.
    """
    ours = logging.getLogger("kts_source")
    if ours.hasHandlers() or not _is_spark_process():
        return
    handler = logging.StreamHandler()
    handler.setLevel(level)
    handler.setFormatter(logging.Formatter(_LINE))
    ours.addHandler(handler)
    if ours.level == logging.NOTSET:
        ours.setLevel(level)


def _is_spark_process() -> bool:
    """Returns whether Spark started this Python process, to plan queries or to run tasks."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return str(getattr(main, "name", "")).startswith(("pyspark.", "kts_source.spark.daemon"))
