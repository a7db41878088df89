"""Runs fuzz targets sequentially, each in a new process and with its own time limit."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tests.fuzz.worker import COUNTS, CURRENT, FAILURE, HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.fuzz.targets import Target

Engine = Literal["mutation", "coverage"]
FOLDER: Final = Path("build") / "fuzz"
START_SECONDS: Final = 240
"""Time limit in seconds for importing modules and for compiling the kernels if they are not
cached.
"""
HANG_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a target.

    Attributes:
        inputs: Number of inputs that ran.
        outcomes: Number of inputs by outcome.
        slowest_seconds: CPU time of the slowest input.
        growth_bytes: Largest increase of memory by one input.
        failure: File with the failing input; `None` if no input failed.
        text: Error message with the failing input in base64; empty if no input failed.
    """

    target: str
    engine: Engine
    inputs: int
    outcomes: Mapping[str, int]
    slowest_seconds: float
    growth_bytes: int
    failure: Path | None = None
    text: str = ""


def has_coverage() -> bool:
    """Returns whether atheris, which measures coverage, is installed."""
    return importlib.util.find_spec("atheris") is not None


def run_target(
    name: str,
    engine: Engine,
    *,
    seconds: float,
    seed: int,
    folder: Path = FOLDER,
    hang_seconds: float = HANG_SECONDS,
) -> Result:
    """Runs a target until `seconds` are over or an input fails.

    `seconds` does not include the start of the process. `folder` gets failing inputs and the files
    of the worker process. `hang_seconds` is the timeout for one input.
    """
    work = folder / f"{name}-{engine}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.fuzz.worker", name, "--engine", engine]
    command += ["--seconds", str(seconds), "--seed", str(seed), "--folder", str(work)]
    with (work / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            verdict = _watch(process, work, seconds, hang_seconds)
        finally:
            process.kill()
            process.wait()
    return _result(name, engine, work, folder, verdict, seed)


def _watch(
    process: subprocess.Popen[bytes], work: Path, seconds: float, hang_seconds: float
) -> str | None:
    """Waits until a worker process ends or takes too long. Returns `None` if the process ended with
    exit code 0, or else a description of the error, for example that one input took more than
    `hang_seconds`.
    """
    last_number, started = 0, time.monotonic()
    while True:
        try:
            code = process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            code = None
        if code is not None:
            return None if code == 0 else f"the worker ended with code {code}"
        now, number = time.monotonic(), _current_input(work)[0]
        if number != last_number:
            last_number, started = number, now
        timeout = hang_seconds if last_number else START_SECONDS
        if now - started > timeout:
            return f"one input took more than {timeout:.0f} s" if last_number else "it never began"


def _current_input(work: Path) -> tuple[int, bytes]:
    """Returns the number and the bytes of the input that the worker runs, or (0, b"") if the worker
    has not started its first input.
    """
    try:
        data = (work / CURRENT).read_bytes()
    except FileNotFoundError:
        return 0, b""
    if len(data) < HEADER.size:
        return 0, b""
    number, size = HEADER.unpack_from(data)
    return number, data[HEADER.size : HEADER.size + size]


def _result(
    name: str, engine: Engine, work: Path, folder: Path, verdict: str | None, seed: int
) -> Result:
    facts: dict[str, Any] = {
        "inputs": 0,
        "outcomes": {},
        "slowest_seconds": 0.0,
        "largest_growth_bytes": 0,
    }
    if (work / COUNTS).exists():
        facts = json.loads((work / COUNTS).read_text())
    failing = None
    text = ""
    if verdict is not None:
        saved = work / FAILURE
        data = saved.read_bytes() if saved.exists() else _current_input(work)[1]
        failing = folder / "failures" / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}"
        failing.parent.mkdir(parents=True, exist_ok=True)
        failing.write_bytes(data)
        output = (work / "output.txt").read_text(errors="replace")[-3000:]
        text = (
            f"{name}, {engine}, seed {seed}: {verdict}\n{output}\n"
            f"the input is in {failing}, in base64: {base64.b64encode(data).decode()[:6000]}"
        )
    return Result(
        name,
        engine,
        facts["inputs"],
        facts["outcomes"],
        facts["slowest_seconds"],
        facts["largest_growth_bytes"],
        failing,
        text,
    )


def shares(chosen: Sequence[Target], seconds: float) -> Mapping[str, float]:
    """Divides `seconds` among targets in proportion to their weights; returns seconds by name."""
    total = sum(target.weight for target in chosen)
    return {target.name: seconds * target.weight / total for target in chosen}


def run_all(
    chosen: Sequence[Target],
    engines: Sequence[Engine],
    *,
    seconds: float,
    seed: int,
    folder: Path = FOLDER,
) -> Iterator[Result]:
    """Yields the result of every target with every engine; continues after failures."""
    for name, share in shares(chosen, seconds / len(engines)).items():
        for number, engine in enumerate(engines):
            yield run_target(name, engine, seconds=share, seed=seed + number, folder=folder)
