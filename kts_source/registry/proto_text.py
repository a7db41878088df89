"""Protobuf schemas as text, made into descriptors by protoc, which grpcio-tools brings.

It runs as a process of its own: a text that it chokes on costs that process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from kts_source.errors import RegistryError
from kts_source.extras import require
from segment_format.values.protobuf.wire import read_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS: Final = 60.0


def compiled(files: Sequence[tuple[str, str]]) -> tuple[tuple[str, bytes], ...]:
    """Files as FileDescriptorProtos, and those that they import, each behind what it imports.

    Args:
        files: Name and text; the last is the schema's.

    Raises:
        ValueError: protoc does not take them.
        RegistryError: A name leads elsewhere, or protoc does not end.
        InvalidOptionError: grpcio-tools is not installed here.
    """
    require("grpc_tools", "proto", "a Protobuf schema that the registry gives as text")
    *imported, (_, text) = files
    with tempfile.TemporaryDirectory(prefix="schema-") as folder:
        for name, content in imported:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.name or "\0" in name:
                raise RegistryError(f"a schema of the registry is called {name[:200]!r}")
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content, "utf-8")
        # A name that no other file has.
        main = Path(folder, _main_name({name for name, _ in imported}))
        main.write_text(text, "utf-8")
        return _run(Path(folder), main.name)


def _main_name(taken: set[str]) -> str:
    name = "schema.proto"
    while name in taken:
        name = f"_{name}"
    return name


def _run(folder: Path, main: str) -> tuple[tuple[str, bytes], ...]:
    import importlib.resources

    known = importlib.resources.files("grpc_tools") / "_proto"
    out = folder / ".out"
    try:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{known}"),
                *("--include_imports", f"--descriptor_set_out={out}", main),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RegistryError(f"protoc did not end within {_SECONDS:.0f} s") from None
    if run.returncode or not out.is_file():
        raise ValueError(f"protoc does not take the schema: {run.stderr[:1000]}")
    files = [data for number, data in read_fields(out.read_bytes()) if number == 1]
    return tuple((_name(data), data) for data in files if isinstance(data, bytes))


def _name(file: bytes) -> str:
    names = [value for number, value in read_fields(file) if number == 1]
    return names[-1].decode() if names and isinstance(names[-1], bytes) else ""
