"""Imports the messages of kafka-python without its client.

Importing any module of the package also imports consumer, producer and admin client, which takes
more than twice as long (0.50 s instead of 0.22 s per process). So the package stays empty until
another of its attributes is used.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any, Final

from segment_format.tuning import is_on

_PACKAGE: Final = "kafka"
_OF_THE_PACKAGE: Final = ("__all__", "__version__")
_lock = threading.RLock()
_loading = False


class _EmptyPackage(ModuleType):
    """A package that runs its `__init__` only when an attribute other than a module is used."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        global _loading
        with _lock:
            # Code that scans `sys.modules` looks such names up, and does not use the package.
            is_used = not name.startswith("__") or name in _OF_THE_PACKAGE
            if type(self) is _EmptyPackage and is_used and not _loading:
                _loading = True
                try:
                    _execute(self)
                finally:
                    _loading = False
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")


def _execute(package: ModuleType) -> None:
    spec = package.__spec__
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(package)
    package.__class__ = ModuleType


def load_messages() -> None:
    """Imports the messages of Kafka's protocol.

    With `KTS_TUNING=off` (`docs/tuning.md`) the whole package is imported.

    Raises:
        ImportError: kafka-python is missing, or another package has its name.
    """
    with _lock:
        if is_on() and _PACKAGE not in sys.modules:
            spec = importlib.util.find_spec(_PACKAGE)
            if spec is not None and spec.submodule_search_locations:
                package = importlib.util.module_from_spec(spec)
                package.__class__ = _EmptyPackage
                sys.modules[_PACKAGE] = package
    import kafka.protocol.broker_version_data
    import kafka.protocol.consumer  # noqa: F401
