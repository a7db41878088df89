"""Serves the golden tier from fsspec's memory file system with injected faults."""

from __future__ import annotations

import time
from typing import Any, ClassVar, Final

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from tests.faults.trials import Injector, flipped, repeated
from tests.golden_data import TIER

ROOT: Final = "/faulty-tier"
KINDS: Final = (
    "500",
    "503",
    "reset",
    "slow",
    "short",
    "range ignored",
    "bytes repeated",
    "bit flipped",
    "listing lag",
    "credentials expired",
    "gone",
    "manifest gone",
    "changed",
)
_FAILURES: Final = ("500", "503", "reset", "slow", "credentials expired")
_READS: Final = (*_FAILURES, "short", "range ignored")
_CONTENT: Final = ("bytes repeated", "bit flipped")


class StatusError(Exception):
    """Imitates an HTTP error of a cloud client."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class FaultyFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Memory file system that fails or returns damaged bytes if `injector` chooses a fault."""

    protocol = "faulty"
    injector: ClassVar[Injector]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("faulty://", "memory://")))

    def cat_file(self, path: str, start: int, end: int, **named: object) -> bytes:
        content = _CONTENT if path.endswith(".log") else ()
        kind = self.injector.draw((*_READS, *content, _gone(path)))
        _fail(kind)
        data = bytes(super().cat_file(path, start=start, end=end))
        key = path.removeprefix(f"{ROOT}/")
        if kind == "short":
            return data[: len(data) // 2]
        if kind == "range ignored":
            return bytes(super().cat_file(path, start=None, end=None))
        if kind == "bit flipped":
            return flipped(data, key, start, self.injector.random)
        if kind == "bytes repeated":
            return repeated(data, self.injector.random)
        return data

    def info(self, path: str, **named: object) -> dict[str, Any]:
        kind = self.injector.draw((*_FAILURES, _gone(path), "changed"))
        _fail(kind)
        entry: dict[str, Any] = dict(super().info(path, **named))
        if kind == "changed" and "created" in entry:
            entry["created"] = entry["created"].replace(year=2001)
        return entry

    def ls(self, path: str, detail: bool = True, **named: object) -> Any:  # noqa: ANN401
        _fail(self.injector.draw(_FAILURES))
        return super().ls(path, detail=detail, **named)

    def find(self, path: str, **named: object) -> Any:  # noqa: ANN401
        kind = self.injector.draw((*_FAILURES, "listing lag"))
        _fail(kind)
        entries = dict(super().find(path, **named))
        if kind == "listing lag" and entries:
            del entries[self.injector.random.choice(sorted(entries))]
        return entries


def _gone(path: str) -> str:
    # A missing manifest has its own fault name, because readers ignore segments without manifest.
    return "manifest gone" if path.endswith(".rsm-manifest") else "gone"


def _fail(kind: str | None) -> None:
    match kind:
        case "500" | "503":
            raise StatusError(int(kind))
        case "reset":
            raise ConnectionResetError("reset")
        case "credentials expired":
            raise PermissionError("the token has expired")
        case "gone" | "manifest gone":
            raise FileNotFoundError
        case "slow":
            time.sleep(0.005)


def fill() -> None:
    """Registers the file system with fsspec and copies the golden tier into it."""
    fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
    memory = MemoryFileSystem()
    for path in TIER.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"{ROOT}/{path.relative_to(TIER).as_posix()}", path.read_bytes())


def empty() -> None:
    """Removes the golden tier from the file system."""
    MemoryFileSystem().rm(ROOT, recursive=True)
