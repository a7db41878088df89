"""What a task says where the Python of Spark's workers lacks this package or what it needs.

Workers run the interpreter that `PYSPARK_PYTHON` names, else the `python3` they find. Unpickling a
class of this package there would end in a bare `ModuleNotFoundError` that names no interpreter.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import register_pickle_by_value

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
