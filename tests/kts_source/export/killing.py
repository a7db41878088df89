"""Provides a target store that simulates a kill before or after one step of a commit protocol.

After the kill, all later steps raise `Killed`, so clean-up code of the killed run has no effect.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from kts_source.export.tables.parquet_folder import ParquetFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.store.object_store import ObjectInfo


class Killed(BaseException):
    """Raised instead of a real SIGKILL, so that the test process survives."""


class Steps:
    """Counts the steps of a commit protocol, and kills the run at one of them.

    Args:
        fatal: Index of the step, from 0, at which the run is killed; None to never kill it.
        after: True to kill the run after the step, False to kill it before the step.
        really: True to kill this process with SIGKILL, False to raise `Killed`.
    """

    def __init__(self, fatal: int | None, *, after: bool = False, really: bool = False) -> None:
        self._fatal = fatal
        self._after = after
        self._really = really
        self.names: list[str] = []
        self.dead = False

    def step(self, name: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401
        if self.dead:
            raise Killed(name)
        number = len(self.names)
        self.names.append(name)
        if number != self._fatal:
            return call()
        if self._after:
            call()
        if self._really:
            os.kill(os.getpid(), signal.SIGKILL)
        self.dead = True
        raise Killed(name)


class KillableTarget:
    """Wraps a target store. Each create, read, publish, list or delete is a step of `steps`, which
    may kill the run.
    """

    def __init__(self, target: TargetStore, steps: Steps) -> None:
        self._target = target
        self._steps = steps

    def uri(self, key: str) -> str:
        return self._target.uri(key)

    def create(self, key: str, data: bytes) -> bool:
        kind = key.rpartition(".")[2]
        created: bool = self._steps.step(f"create {kind}", lambda: self._target.create(key, data))
        return created

    def open_output(self, key: str) -> Any:  # noqa: ANN401
        return self._target.open_output(key)

    def read(self, key: str) -> bytes:
        data: bytes = self._steps.step("read", lambda: self._target.read(key))
        return data

    def publish(self, source: str, destination: str, size: int) -> None:
        self._steps.step("publish", lambda: self._target.publish(source, destination, size))

    def list_objects(self, prefix: str) -> Iterator[ObjectInfo]:
        objects: list[ObjectInfo] = self._steps.step(
            "list", lambda: list(self._target.list_objects(prefix))
        )
        return iter(objects)

    def delete(self, key: str) -> None:
        self._steps.step("delete", lambda: self._target.delete(key))

    def close(self) -> None:
        self._target.close()


def killable_folder(settings: ExportSettings, target: TargetStore, steps: Steps) -> ParquetFolder:
    """Returns a Parquet folder that writes to `target`. `steps` kills the run at one step of the
    commit protocol.
    """
    mortal: Any = KillableTarget(target, steps)
    folder = ParquetFolder(settings)
    folder._target = mortal
    return folder
