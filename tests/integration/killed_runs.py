"""Runs functions of `kts_source.restore` in processes that are killed at a chosen step."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVER = """
import ast, os, signal, sys, traceback
from kts_source.engines import scan
from kts_source.layout import aiven, local_tiered
from kts_source.restore import committing, journal, serving, writing
from kafka.protocol import consumer, metadata, producer

MODULES = {"committing": committing, "journal": journal, "serving": serving, "writing": writing}
passed = 0

def killing(run, limit):
    def step(*args, **more):
        reach(limit)
        result = run(*args, **more)
        reach(limit)
        return result
    return step

def reach(limit):
    global passed
    passed += 1
    if passed == limit:
        os.kill(os.getpid(), signal.SIGKILL)

def find(name):
    module, *names = name.split(".")
    owner = MODULES[module]
    for inner in names[:-1]:
        owner = getattr(owner, inner)
    return owner, names[-1]

def run(limit, steps, name, arguments, more):
    for step in steps:
        owner, attribute = find(step)
        setattr(owner, attribute, killing(getattr(owner, attribute), limit))
    owner, attribute = find(name)
    getattr(owner, attribute)(*arguments, **more)

for line in sys.stdin:
    call = ast.literal_eval(line)
    child = os.fork()
    if not child:
        try:
            run(*call)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class KilledRuns:
    """Context manager with a process that has imported the product. It forks a child for each run,
    which takes less time than a new process.

    Attributes:
        kills: Number of runs that were killed.
    """

    def __init__(self) -> None:
        self.kills = 0
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.communicate()

    def is_killed(
        self, limit: int, steps: Sequence[str], function: str, *arguments: object, **more: object
    ) -> bool:
        """Runs a function in a process that is killed at a step. Returns False if the function
        returns before.

        Args:
            limit: Number of the step, from 1. The start and the end of each call in `steps` count.
            steps: Functions whose calls are steps, such as `journal.Journal.add`.
            function: The function to run, such as `writing.write_restore`.
            arguments: Arguments of the function: literals of Python.
            more: Keyword arguments of the function.
        """
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(repr((limit, steps, function, arguments, more)) + "\n")
        stdin.flush()
        code = int(stdout.readline())
        assert code in (0, -signal.SIGKILL), f"{function} failed: see the standard error stream"
        self.kills += code != 0
        return code != 0
