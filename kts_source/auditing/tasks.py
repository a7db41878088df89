"""The audit of a partition as a task: in this process, in others, or on other machines."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kts_source.auditing.kinds import BYTES
from kts_source.auditing.partition import PartitionAudit
from kts_source.auditing.report import Finding, PartitionStatement
from kts_source.auditing.state import NO_STATE, PartitionState, appending
from kts_source.errors import StoreError
from kts_source.layout.find_layout import find_layout
from kts_source.planning.gc_pause import paused_collector
from kts_source.planning.segment_catalog import PLANNING_THREADS
from kts_source.processes import in_processes
from kts_source.tier import open_uncached_tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.auditing.place import PartitionObjects
    from kts_source.options import ScanOptions


@dataclass(frozen=True, slots=True)
class AuditJob:
    """What all tasks share. It holds credentials, so it travels in pickles only.

    Attributes:
        options: Of the audit, key ring loaded.
        level: How far to look.
        grace_ms: Copies that are younger may be under way.
        now_ms: The time in ms since 1970.
        has_state: Whether what is proven is kept.
        state: The file, where the task can write into it.
    """

    options: ScanOptions
    level: str
    grace_ms: int
    now_ms: int
    has_state: bool
    state: str | None = None


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """What the audit of a partition gave.

    Attributes:
        number: Of the task.
        lines: For the state.
        read_bytes: Original bytes of the segments that were read, at level `bytes`.
    """

    number: int
    statement: PartitionStatement
    findings: tuple[Finding, ...]
    lines: tuple[str, ...]
    read_bytes: int

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> AuditOutcome:
        """What `to_text` gave."""
        value: dict[str, Any] = json.loads(text)
        findings = (
            Finding(**{**one, "objects": tuple(one["objects"])}) for one in value["findings"]
        )
        return cls(
            value["number"],
            PartitionStatement(**value["statement"]),
            tuple(findings),
            tuple(value["lines"]),
            value["read_bytes"],
        )


@dataclass(frozen=True, slots=True)
class AuditTask:
    """The audit of one partition. It holds no credentials.

    Attributes:
        part: The objects of the partition.
        lines: What the state knows of it.
    """

    number: int
    part: PartitionObjects
    lines: Mapping[str, str]

    def run(self, job: AuditJob) -> AuditOutcome:
        """Audits the partition.

        Raises:
            TieredKafkaError: See `PartitionAudit.audit`.
        """
        lines: list[str] = []
        read: list[int] = []
        with (
            closing(open_uncached_tier(job.options)) as tier,
            ThreadPoolExecutor(PLANNING_THREADS, "kts-describe") as pool,
            nullcontext() if job.state is None else appending(job.state) as write,
            nullcontext() if job.level == BYTES else paused_collector(),
        ):

            def keep(more: Sequence[str]) -> None:
                lines.extend(more)
                if write is not None:
                    write(more)

            layout = find_layout(job.options.layout)
            times = job.grace_ms, job.now_ms
            run = PartitionAudit(job.options, job.level, *times, tier, layout, pool, read.append)
            state = PartitionState(self.part.place, dict(self.lines), keep)
            found = run.audit(self.part, state if job.has_state else NO_STATE)
        return AuditOutcome(self.number, found[0], tuple(found[1]), tuple(lines), sum(read))


class AuditExecutor(Protocol):
    """Runs the tasks of an audit somewhere.

    Attributes:
        is_near: Whether tasks can write into files of this machine.
    """

    is_near: bool

    def run(self, tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        """One outcome a task, in any order, as they become known.

        Raises:
            Exception: What a task raised.
        """
        ...


class AuditProcesses:
    """Tasks in processes of this machine.

    Args:
        workers: How many.
    """

    is_near = True

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def run(self, tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        """See `AuditExecutor.run`."""
        if not tasks:
            return
        # The longest first: what is left at the end is short.
        tasks = sorted(tasks, key=lambda one: -one.part.stored_bytes)
        try:
            yield from in_processes(partial(_run, job), tasks, min(self._workers, len(tasks)))
        except BrokenProcessPool as error:
            raise StoreError("a process of the audit died; with a state it goes on") from error


def _run(job: AuditJob, task: AuditTask) -> AuditOutcome:
    return task.run(job)
