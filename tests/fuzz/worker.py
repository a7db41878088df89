"""Runs one fuzz target in this process until the time is over or an input fails.

    python -m tests.fuzz.worker TARGET --engine mutation --seconds 10 --seed 7 --folder FOLDER

Before an input runs, it is written to a file, so that it is still available after a crash.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import random
import resource
import struct
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fuzz.targets import Target

CURRENT: Final = "current"
COUNTS: Final = "counts.json"
FAILURE: Final = "failure"
CURRENT_BYTES: Final = 1 << 20
HEADER: Final = struct.Struct("<QQ")  # number of the current input, its size
MAX_SECONDS: Final = 5.0
"""Limit of the CPU time for one input, in seconds. Normal inputs take milliseconds."""
MAX_GROWTH: Final = 192 << 20
"""Limit of the memory increase by one input, in bytes. zstd windows may have 128 MiB."""
ADDRESS_SPACE: Final = 2 << 30
_REPORT_EVERY: Final = 0.5


class Worker:
    """Runs inputs and counts their outcomes.

    Args:
        target: The target to run.
        folder: Folder for the counts, the current input and a failing input.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        from tests.fuzz.mutate import without_numbers

        folder.mkdir(parents=True, exist_ok=True)
        self._target = target
        self._folder = folder
        self._without_numbers = without_numbers
        with (folder / CURRENT).open("w+b") as file:
            file.truncate(CURRENT_BYTES)
            self._current = mmap.mmap(file.fileno(), CURRENT_BYTES)
        self._counts: Counter[str] = Counter()
        self._inputs = 0
        self._slowest = 0.0
        self._growth = 0
        self._peak = _peak_memory()
        self._reported = time.monotonic()

    def run(self, data: bytes) -> str:
        """Runs the target on one input and returns the outcome; placeholders replace numbers and
        quoted values.

        Raises:
            AssertionError: The input took more than `MAX_SECONDS` or `MAX_GROWTH`.
            Exception: Any error of the target.
        """
        self._inputs += 1
        HEADER.pack_into(self._current, 0, self._inputs, len(data))
        self._current[HEADER.size : HEADER.size + len(data)] = data
        began = time.thread_time()
        outcome = self._target.run(data)
        taken = time.thread_time() - began
        self._slowest = max(self._slowest, taken)
        if taken > MAX_SECONDS:
            raise AssertionError(
                f"one input took {taken:.1f} s of CPU time; the limit is {MAX_SECONDS} s"
            )
        peak = _peak_memory()
        if peak != self._peak:
            self._growth = max(self._growth, peak - self._peak)
            if peak - self._peak > MAX_GROWTH:
                raise AssertionError(f"one input took {(peak - self._peak) >> 20} MiB of memory")
            self._peak = peak
        word, colon, text = outcome.partition(":")
        self._counts[word] += 1
        if time.monotonic() - self._reported > _REPORT_EVERY:
            self.report()
        return word + self._without_numbers(text) if colon else word

    def report(self) -> None:
        """Writes a JSON file with the results: the number of inputs, the number of inputs by
        outcome, the time of the slowest input and the largest increase of memory.
        """
        self._reported = time.monotonic()
        facts = {
            "inputs": self._inputs,
            "outcomes": dict(self._counts),
            "slowest_seconds": round(self._slowest, 4),
            "largest_growth_bytes": self._growth,
        }
        (self._folder / f"{COUNTS}.new").write_text(json.dumps(facts))
        (self._folder / f"{COUNTS}.new").replace(self._folder / COUNTS)

    def save_failure(self, data: bytes, text: str) -> None:
        """Writes a failing input and its error to files."""
        (self._folder / FAILURE).write_bytes(data)
        (self._folder / f"{FAILURE}.txt").write_text(text)
        self.report()


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def limit_memory() -> None:
    """Limits the address space of this process to its current size plus `ADDRESS_SPACE` bytes."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, resource.RLIM_INFINITY))


def run_mutations(worker: Worker, seeds: list[bytes], seconds: float, seed: int) -> None:
    """Runs all seeds. Then runs mutated inputs until `seconds` are over."""
    from tests.fuzz.mutate import Mutator

    deadline = time.monotonic() + seconds
    mutator = Mutator(seeds, random.Random(seed))

    def run_input(data: bytes) -> None:
        try:
            mutator.learn(data, worker.run(data))
        except BaseException:
            worker.save_failure(data, traceback.format_exc())
            raise

    for data in seeds:
        run_input(data)
    while time.monotonic() < deadline:
        for _ in range(16):
            run_input(mutator.mutated())
    worker.report()


def run_coverage(worker: Worker, seeds: list[bytes], seconds: float, seed: int) -> NoReturn:
    """Runs the target with inputs that libFuzzer creates from `seeds`.

    atheris measures which Python code an input runs. libFuzzer prefers inputs that run new code.
    """
    import atheris

    corpus = worker._folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(seeds):
        (corpus / f"seed-{number:04d}").write_bytes(data)

    def run_input(data: bytes) -> None:
        try:
            worker.run(data)
        except BaseException:
            worker.save_failure(data, traceback.format_exc())
            raise

    arguments = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={max(1, int(seconds))}",
        f"-seed={seed % (1 << 31) or 1}",
        "-max_len=6000",
        "-rss_limit_mb=4096",
        "-timeout=60",
        f"-artifact_prefix={worker._folder}/libfuzzer-",
        "-verbosity=0",
    ]
    atheris.Setup(arguments, run_input)
    atheris.Fuzz()
    raise SystemExit(0)


def main() -> None:
    """Runs the target that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--engine", choices=("mutation", "coverage"), default="mutation")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    faulthandler.enable()
    engine: Callable[[Worker, list[bytes], float, int], None] = run_mutations
    if arguments.engine == "coverage":
        import atheris

        engine = run_coverage
        # Do not instrument the source of the kernels: that would change the compiled code.
        with atheris.instrument_imports(
            include=["segment_format"],
            exclude=["segment_format.kernels"],
            enable_loader_override=False,
        ):
            target = _load(arguments.target)
    else:
        target = _load(arguments.target)
    from tests.fuzz.seeds import seeds

    inputs = seeds(arguments.target)
    target.run(inputs[0])  # compiles the kernels, which takes additional memory and time
    worker = Worker(target, arguments.folder)
    limit_memory()
    try:
        engine(worker, inputs, arguments.seconds, arguments.seed)
    except Exception:  # noqa: BLE001  # saved and printed; the exit code reports it
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)


def _load(name: str) -> Target:
    from tests.fuzz.targets import target_named

    return target_named(name)


if __name__ == "__main__":
    main()
