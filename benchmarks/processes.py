"""Measures the processor time of process trees, such as a broker, or a Spark driver with its JVM
and Python workers.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """User and system seconds of a process tree since its start.

    Attributes:
        jvm: Seconds of the Java processes in the tree.
        python: Seconds of all other processes, including ended processes.
    """

    jvm: float
    python: float

    @property
    def total(self) -> float:
        """Returns the seconds of all processes."""
        return self.jvm + self.python

    def __sub__(self, earlier: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(self.jvm - earlier.jvm, self.python - earlier.python)


def processor_time(pid: int) -> ProcessorTime:
    """Returns the time of a process and its descendants. A descendant that has ended counts only
    after its parent has reaped it.
    """
    jvm = python = 0.0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            own = times.user + times.system
            # The children of the JVM are Python's daemon and planning processes.
            python += times.children_user + times.children_system
            if process.name() == "java":
                jvm += own
            else:
                python += own
    return ProcessorTime(jvm, python)
