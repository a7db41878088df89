"""Holds the state that all parts of one run share, which are the Spark sessions and a broker. Runs
queries in turns.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.report import Report
from benchmarks.session import NEWEST, OLDEST, SAIL, Query, Run, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.brokers import FilledBroker
    from benchmarks.report import Row

SPARK_4_0: Final = "Spark 4.0"
NEWEST_SPARK: Final = "newest Spark"
SAIL_SERVER: Final = "Sail"
_FEWEST_ROUNDS: Final = 2
_LATE_SECONDS: Final = 20 * 60


class SkippedError(Exception):
    """Raised if this machine cannot run a part, or cannot run a program to which a part compares
    this library. The message is the reason.
    """


@dataclass(frozen=True, slots=True)
class Contestant:
    """A query in a session. Its time is compared with the times of other contestants.

    Attributes:
        session: Name of a session of `Bench`.
        query: The query to run.
        other_pid: An additional process, such as a broker, whose processor time is also measured.
    """

    session: str
    query: Query
    other_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Measured runs of one contestant, one run per round."""

    runs: tuple[Run, ...]

    @property
    def seconds(self) -> float:
        """Returns the median wall time."""
        return statistics.median(run.seconds for run in self.runs)

    @property
    def processor(self) -> float:
        """Returns the median processor time."""
        return statistics.median(run.processor for run in self.runs)

    def median(self, get: Callable[[Run], float]) -> float:
        """Returns the median of the values that `get` returns for the runs."""
        return statistics.median(get(run) for run in self.runs)

    def times_faster_than(self, other: Timings) -> float:
        """Returns how many times faster these runs are than the runs of `other`.

        Computes the ratio of the wall times for each round, and returns the median.
        """
        pairs = zip(self.runs, other.runs, strict=True)
        return statistics.median(theirs.seconds / ours.seconds for ours, theirs in pairs)

    def processor_share_of(self, other: Timings) -> float:
        """Returns the processor time of these runs divided by that of the runs of `other`.

        Computes the ratio for each round, and returns the median.
        """
        pairs = zip(self.runs, other.runs, strict=True)
        return statistics.median(ours.processor / theirs.processor for ours, theirs in pairs)


@dataclass(slots=True)
class Bench:
    """One run of the benchmarks.

    Attributes:
        quick: True to use small inputs and few repeats.
        report: Receives the times per stage, and the parts that were skipped.
    """

    quick: bool
    report: Report = field(default_factory=Report)
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _sessions: dict[str, Session] = field(default_factory=dict)
    _broker: FilledBroker | None = None
    _began: float = field(default_factory=time.monotonic)

    @property
    def repeats(self) -> int:
        """Returns the number of measured rounds, after one warm-up round."""
        return 1 if self.quick else 5

    def session(self, name: str) -> Session:
        """Returns the session with the name `name`. The first call starts it.

        Raises:
            SkippedError: No Python environment for this session exists.
        """
        if name not in self._sessions:
            if name == NEWEST_SPARK:
                session = Session(NEWEST, unix_sockets=True)
            else:
                session = self._sail() if name == SAIL_SERVER else self._oldest()
            self._resources.callback(session.close)
            self._sessions[name] = session
            self.say(f"{name}: {session.spark_version} is up")
        return self._sessions[name]

    def broker(self) -> FilledBroker:
        """Returns a broker with topics. The first call starts it.

        Raises:
            SkippedError: Java or Maven is missing.
        """
        if self._broker is None:
            from benchmarks.brokers import filled_broker

            self.need("java", "mvn")
            folder = self.folder()
            filled = filled_broker(folder, quick=self.quick, say=self.say)
            self._broker = self._resources.enter_context(filled)
        return self._broker

    def say(self, text: str) -> None:
        """Writes progress to standard error."""
        passed = time.monotonic() - self._began
        print(f"{passed:7.1f} s  {text}", file=sys.stderr, flush=True)

    @property
    def _is_late(self) -> bool:
        limit = _LATE_SECONDS / 10 if self.quick else _LATE_SECONDS
        return time.monotonic() - self._began > limit

    @property
    def versions(self) -> dict[str, str]:
        """Returns the Spark version of each session by the session's name, and the versions of the
        broker and of Spark's Kafka connector, if a broker runs.
        """
        versions = {name: session.spark_version for name, session in self._sessions.items()}
        if self._broker is not None:
            from tests.integration.kafka_jars import KAFKA_VERSION, SPARK_KAFKA

            versions |= {
                "broker": f"Kafka {KAFKA_VERSION}",
                "its peer in Spark": SPARK_KAFKA["4.0"],
            }
        return versions

    def folder(self) -> Path:
        """Returns a new scratch folder, which is deleted after the run."""
        path = tempfile.mkdtemp(prefix="kts-bench-")
        self._resources.callback(shutil.rmtree, path, ignore_errors=True)
        return Path(path)

    def run(self, contestant: Contestant) -> Run:
        """Runs a contestant once."""
        run = self.session(contestant.session).run(contestant.query, other_pid=contestant.other_pid)
        query = contestant.query
        self.say(f"{contestant.session}, {query.source} → {query.sink}: {run.seconds:.2f} s")
        return run

    def in_turns(
        self, contestants: Mapping[str, Contestant], *, repeats: int | None = None
    ) -> dict[str, Timings]:
        """Runs every contestant once per round; the first round is a warm-up. Uses fewer rounds if
        the run has already taken longer than planned.
        """
        runs: dict[str, list[Run]] = {name: [] for name in contestants}
        for number in range((repeats or self.repeats) + 1):
            if number > _FEWEST_ROUNDS and self._is_late:
                self.say(f"the run takes long, so it ends after {number - 1} rounds")
                break
            for name, contestant in contestants.items():
                run = self.run(contestant)
                if number:
                    runs[name].append(run)
        return {name: Timings(tuple(measured)) for name, measured in runs.items()}

    def unless_skipped(self, title: str, part: Callable[[Bench], list[Row]]) -> list[Row]:
        """Returns the rows of a part. If this machine cannot run the part, records the reason under
        `title` and returns no rows.
        """
        try:
            return part(self)
        except SkippedError as skipped:
            self.report.skipped[title] = str(skipped)
            self.say(f"skipped: {title}: {skipped}")
            return []

    def close(self) -> None:
        """Ends sessions and broker, and removes scratch folders."""
        self._resources.close()

    @staticmethod
    def _sail() -> Session:
        if not SAIL.exists():
            raise SkippedError(
                f"environment {SAIL.parents[1].name} is missing: run .ci/engines_env"
            )
        return Session(SAIL, on_sail=True)

    def _oldest(self) -> Session:
        self.need("java", "mvn")
        if not OLDEST.exists():
            raise SkippedError(
                f"environment {OLDEST.parents[1].name} is missing: run .ci/spark_env"
            )
        from tests.integration.kafka_jars import spark_avro_jars, spark_kafka_jars

        return Session(OLDEST, jars=tuple({*spark_kafka_jars(), *spark_avro_jars()}))

    @staticmethod
    def need(*tools: str) -> None:
        """Raises `SkippedError` if a program is missing."""
        missing = [tool for tool in tools if shutil.which(tool) is None]
        if missing:
            raise SkippedError(f"programs missing on PATH: {', '.join(missing)}")


def ceiling(
    columns: Sequence[str],
    *,
    rows: int,
    tasks: int,
    value_bytes: int,
    logs: str = "",
    codec: str = "none",
    key: str = "",
) -> Query:
    """Returns a query of prebuilt batches. Its speed is the upper bound for any data source in
    Python.

    Args:
        columns: Columns of the table.
        rows: Rows of all tasks.
        tasks: Number of tasks.
        value_bytes: Size of each value.
        logs: Pattern of log files, or empty. While Spark reads the prebuilt batches, libraries
            read, decode, check and copy these files; see `LibraryWork`.
        codec: Codec of the batches in the log files.
        key: File of the private key of the log files.
    """
    shape = {
        "columns": ",".join(columns),
        "rows": str(rows),
        "tasks": str(tasks),
        "valueBytes": str(value_bytes),
        "logs": logs,
        "codec": codec,
        "key": key,
    }
    return Query("transport-ceiling", shape)
