"""Runs the shell examples of the docs in this process.

`kts` commands and `export` are executed. Arguments of other commands are only checked. No command
starts a process, because starting Python for every `kts` would take most of the tests' time.
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


def run_shell(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the shell commands in `text` line by line, with `folder` as the current folder. Returns
    the output of `kts`.

    Raises:
        AssertionError: A command failed or is unknown.
    """
    lines = text.replace("\\\n", " ").splitlines()
    commands = (shlex.split(line, comments=True) for line in lines)
    return "".join(_run(words, folder, monkeypatch) for words in commands if words)


def _run(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    command, *arguments = words
    if command == "export":
        for pair in arguments:
            monkeypatch.setenv(*pair.split("=", 1))
    elif words == ["kts", "demo"]:
        pass  # stops the Spark session of the test; tests/test_demo.py runs it
    elif command == "kts":
        target = None
        if ">" in arguments:
            redirection = arguments.index(">")
            target, arguments = folder / arguments[redirection + 1], arguments[:redirection]
        output = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
        with contextlib.redirect_stdout(output):
            code = kts(arguments)
        assert code == 0, f"{shlex.join(words)} returned {code}: {_text(output)}"
        if target is None:
            return _text(output)
        target.write_text(_text(output))
    elif command == "pip":
        _check_pip(arguments)
    elif command == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(f"^{name}:", makefile, re.MULTILINE) for name in arguments)
    elif command == "jupyter":
        assert (arguments[0], (ROOT / arguments[1]).is_dir()) == ("lab", True), words
    elif command == "python3":
        assert arguments[:-1] == ["-m", "venv"], words
    elif command == ".":
        assert arguments[0].endswith("/bin/activate"), words
    else:
        raise AssertionError(f"an example runs {command!r}; add this command to {__name__}")
    return ""


def _text(output: io.TextIOWrapper[io.BytesIO]) -> str:
    return output.buffer.getvalue().decode()


def _check_pip(arguments: list[str]) -> None:
    """Checks the arguments of a pip command without installing anything.

    Asserts that `pyproject.toml` defines the package and the extras that the command names.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    command, *requirements = arguments
    assert command == "install"
    for requirement in requirements:
        if requirement in ("jupyterlab", "pandas<3"):
            continue
        match = re.fullmatch(r"(?P<name>[\w.-]+)(\[(?P<extras>[\w,-]+)\])?", requirement)
        assert match is not None, requirement
        assert match["name"] in (".", project["name"]), requirement
        extras = set((match["extras"] or "").split(",")) - {""}
        assert extras <= set(project["optional-dependencies"]), requirement
