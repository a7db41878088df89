"""Defines the events of random export histories, and the expected state of the table after them."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from kts_source.errors import StoreUnavailableError
from kts_source.export.task_writer import LocalExecutor
from kts_source.planning import isolation, planner
from kts_source.read import read_task
from kts_source.tier import Tier
from tests.kts_source.export.killing import Killed
from tests.kts_source.planning.history import History, Step, random_history
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.reading import without_threads

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from kts_source.export.ranges import PartitionKey
    from kts_source.export.tables.export_table import Commit
    from kts_source.export.task import ExportJob, RunnableTask, TaskReport
    from tests.kts_source.export.exporting import Lake
    from tests.kts_source.planning.history import World
    from tests.kts_source.planning.replica import Entry
    from tests.kts_source.planning.truth import PartitionTruth, Row


EXPORT: Final = "export"
# `step.a` is the index of an event in this list.
FATES: Final = (
    *("plain", "plain", "plain", "loss allowed", "plan file", "old plan file"),
    *("dies before a commit", "dies after a commit", "dies at a step", "dies at a step"),
    *("race", "race at the end", "vanishes", "vanishes, loss allowed", "later start", "plain"),
    *("lost answer", "lost answer", "rolled back", "rolled back", "clean during the run"),
)


def random_export_history(source: random.Random) -> History:
    """Returns a random history of a topic. It contains two to six exports at random steps, and a
    last export at the end.
    """
    drawn = random_history(source)
    # Damaged objects are tested by the scan histories; exports handle their errors alike.
    shape = replace(drawn.shape, local=False)
    steps = [step for step in drawn.steps if step.kind != "spoil"]
    for _ in range(source.randint(2, 6)):
        a, b, c = source.randrange(len(FATES)), source.randrange(16), source.randrange(16)
        steps.insert(source.randint(len(steps) // 4, len(steps)), Step(EXPORT, a, b, c))
    return History(shape, (*steps, Step(EXPORT)))


@dataclass(slots=True)
class TableState:
    """Expected state of the table.

    Attributes:
        ranges: Maps topic id and partition to the exported offsets [start, stop).
        rows: Maps each row to the number of its occurrences.
        logs: Maps topic id and partition to the batches that the log had at the last export.
        topic_id: Topic id of the last commit, or an empty text.
    """

    ranges: dict[PartitionKey, tuple[int, int]] = field(default_factory=dict)
    rows: Counter[Row] = field(default_factory=Counter)
    logs: dict[PartitionKey, tuple[Entry, ...]] = field(default_factory=dict)
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """Offsets [first, stop) that a run should write for a partition.

    Attributes:
        key: Topic id and partition.
        truth: Expected content of the partition.
        first: First offset to write.
        stop: One past the last offset to write.
    """

    key: PartitionKey
    truth: PartitionTruth
    first: int
    stop: int


class Dying:
    """Wraps a table. Simulates a process that is killed before or after a commit.

    Args:
        table: The real table.
        number: Number of commits that succeed before the commit at which the process is killed.
        after: True to kill the process after this commit, False to kill it before.
    """

    def __init__(self, table: Any, number: int, *, after: bool) -> None:  # noqa: ANN401
        self._table, self._number, self._after = table, number, after

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._table, name)

    def commit(self, commit: Commit) -> bool:
        self._number -= 1
        if self._number < 0 and not self._after:
            raise Killed
        done: bool = self._table.commit(commit)
        if self._number < 0:
            raise Killed
        return done


def without_answers(table: Any, number: int, *, is_error: bool) -> Any:  # noqa: ANN401
    """Changes and returns `table`: one commit succeeds, but the library reports a conflict or an
    error for it.

    `number` is the index of this commit, from 0. If `is_error` is true, the library raises an
    error; if false, it reports a conflict.
    """
    attempt, remaining = table._try_commit, [number]

    def try_commit(*arguments: Any) -> bool:  # noqa: ANN401
        done: bool = attempt(*arguments)
        remaining[0] -= done
        if remaining[0] < 0:
            remaining[0] = 1 << 30
            if is_error:
                raise StoreUnavailableError("the answer to the commit was lost")
            return False
        return done

    table._try_commit = try_commit
    return table


def rolled_back(lake: Lake, choice: int) -> bool:
    """Restores an earlier state of a Delta or Iceberg table with the library of its format.
    `choice` selects the state. Returns False if the table has no earlier state.
    """
    if lake.table_format == "delta":
        if not DeltaTable.is_deltatable(lake.target):
            return False
        table = DeltaTable(lake.target)
        if not table.version():
            return False
        table.restore(choice % table.version())
        return True
    catalog = load_catalog("lake", **lake.catalog)
    try:
        iceberg = catalog.load_table(lake.target)
        current = iceberg.current_snapshot()
        earlier = []
        by_id = {snapshot.snapshot_id: snapshot for snapshot in iceberg.metadata.snapshots}
        while current is not None and current.parent_snapshot_id is not None:
            current = by_id[current.parent_snapshot_id]
            earlier.append(current.snapshot_id)
        if not earlier:
            return False
        iceberg.manage_snapshots().rollback_to_snapshot(earlier[choice % len(earlier)]).commit()
    except NoSuchTableError:
        return False
    finally:
        catalog.close()
    return True


class Between(LocalExecutor):
    """Runs tasks, and calls `act` once during the first commit. If `before` is true, calls it
    before the tasks of the commit; if false, between the tasks and the commit.
    """

    def __init__(self, act: Callable[[], object], *, before: bool) -> None:
        super().__init__(1)
        self._acts, self._before = [act], before

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        if self._before and self._acts:
            self._acts.pop()()
        yield from super().run(tasks, job)
        if self._acts:
            self._acts.pop()()


@contextmanager
def memory_tier(world: World) -> Iterator[None]:
    """Inside the `with` block, every opened tier reads `world.store`, with the keys that the
    history has uploaded so far.
    """

    def opened(_options: object) -> Tier:
        modified = {
            key: copy.event_timestamp_ms
            for lives in world.incarnations.values()
            for life in lives
            for copy in life.uploads
            for key in copy.keys
        }
        return Tier(MemoryStore(world.store, modified))

    with (
        without_threads(),
        mock.patch.object(planner, "open_tier", opened),
        mock.patch.object(isolation, "open_tier", opened),
        mock.patch.object(read_task, "open_tier", opened),
    ):
        yield


def table_rows(lake: Lake) -> Counter[Row]:
    """Returns a map from each row of the table to the number of its occurrences."""
    if lake.table_format == "parquet" and not Path(lake.target).exists():
        return Counter()
    table = lake.read()
    if not table.num_rows:
        return Counter()
    columns: list[list[Any]] = [
        table["partition"].to_pylist(),
        table["offset"].to_pylist(),
        table["key"].to_pylist(),
        table["value"].to_pylist(),
        table["timestamp"].cast(pa.int64()).to_pylist(),
    ]
    return Counter(zip(*columns, strict=True))
