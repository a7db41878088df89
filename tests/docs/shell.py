"""Shell examples, run in this process: `kts` as it is, other commands checked.

Starting Python for every `kts` would take longer than all else in these tests.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from typing import TYPE_CHECKING

from kts_source.cli.app import main as kts
from tests.docs.fences import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def run_shell(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the commands of a block, line by line; any that fails or is not known is an error."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            _run(words, folder, monkeypatch)


def _run(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, *arguments = words
    if command == "export":
        for pair in arguments:
            monkeypatch.setenv(*pair.split("=", 1))
    elif command == "kts":
        target = None
        if ">" in arguments:
            at = arguments.index(">")
            target, arguments = folder / arguments[at + 1], arguments[:at]
        output = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        with contextlib.redirect_stdout(output):
            code = kts(arguments)
        assert code == 0, f"{shlex.join(words)} gave {code}: {_text(output)}"
        if target is not None:
            target.write_text(_text(output))
    elif command == "pip":
        _check_pip(arguments)
    elif command == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(f"^{name}:", makefile, re.MULTILINE) for name in arguments)
    else:
        raise AssertionError(f"an example runs {command!r}, which no test knows")


def _text(output: io.TextIOWrapper[io.BytesIO]) -> str:
    return output.buffer.getvalue().decode()


def _check_pip(arguments: list[str]) -> None:
    """Only the extras can be wrong without a network."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    command, *requirements = arguments
    assert command == "install"
    for requirement in requirements:
        match = re.fullmatch(r"(?P<name>[\w.-]+)(\[(?P<extras>[\w,-]+)\])?", requirement)
        assert match is not None, requirement
        assert match["name"] in (".", project["name"]), requirement
        wanted = set((match["extras"] or "").split(",")) - {""}
        assert wanted <= set(project["optional-dependencies"]), requirement
