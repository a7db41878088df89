"""Gives every target its share of the time, each in a process of its own, one after the other."""

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
"""To import, and to compile the kernels when nobody has yet."""
HANG_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Result:
    """How one target went.

    Attributes:
        inputs: Tried.
        outcomes: What became of them, by word.
        slowest_seconds: CPU time of the slowest input.
        growth_bytes: Most memory that one input added.
        failure: Where the failing input is; `None` when all went well.
        text: What it failed with, and the input.
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
    """Whether atheris is there."""
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
    """Runs one target until the time is up or an input fails.

    Args:
        name: Of the target.
        engine: What makes the inputs.
        seconds: To spend on inputs; starting comes on top.
        seed: Of all chance.
        folder: Where failing inputs are kept, and where the worker works.
        hang_seconds: One input may take so long.
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
    """Waits for a worker; returns what is wrong with how it ended."""
    begun, since = 0, time.monotonic()
    while True:
        try:
            code = process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            code = None
        if code is not None:
            return None if code == 0 else f"the worker ended with code {code}"
        now, inputs = time.monotonic(), _under_way(work)[0]
        if inputs != begun:
            begun, since = inputs, now
        allowed = hang_seconds if begun else START_SECONDS
        if now - since > allowed:
            return f"one input took more than {allowed:.0f} s" if begun else "it never began"


def _under_way(work: Path) -> tuple[int, bytes]:
    """Number of the input under way, and the input."""
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
        data = saved.read_bytes() if saved.exists() else _under_way(work)[1]
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
    """Seconds of each target, by weight."""
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
    """Every target under every engine; a failure does not keep the others from running."""
    for name, share in shares(chosen, seconds / len(engines)).items():
        for number, engine in enumerate(engines):
            yield run_target(name, engine, seconds=share, seed=seed + number, folder=folder)
