"""Tests that every row is committed exactly once if runs are killed at any step, or run
concurrently.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from pyiceberg.catalog import load_catalog

from kts_source.errors import (
    CommitConflictError,
    ExportError,
    FingerprintError,
    TieredKafkaError,
    UnsupportedTargetError,
)
from kts_source.export.run import clean
from kts_source.export.tables import parquet_folder
from kts_source.export.tables.delta import DeltaExportTable
from kts_source.export.tables.iceberg import IcebergExportTable
from kts_source.export.tables.parquet_folder import ParquetFolder
from kts_source.export.tables.target_store import LocalTarget, open_target
from kts_source.export.task_writer import LocalExecutor
from tests.golden_data import expected_table
from tests.kts_source.export.exporting import (
    FORMATS,
    Lake,
    assert_at_most_once,
    assert_holds,
    row_locations,
    source,
)
from tests.kts_source.export.killing import Killed, Steps, killable_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kts_source.export.tables.export_table import Commit
    from kts_source.export.task import ExportJob, RunnableTask, TaskReport


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


PARTITIONS: dict[str, Any] = {"partition_by": ["date(timestamp)"]}


FIRST_900 = '{"txn": {"0": 900, "1": 900}}'


def export_until(lake: Lake, steps: Steps) -> None:
    settings = lake.settings(**PARTITIONS)
    table = killable_folder(settings, open_target(settings.target, settings.storage), steps)
    lake.export(source(), table=table, **PARTITIONS)


def count_steps(tmp_path: Path) -> list[str]:
    steps = Steps(None)
    export_until(Lake(tmp_path / "count", "parquet"), steps)
    return steps.names


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_folder_export_killed_at_any_step_writes_each_row_once_after_resume(
    tmp_path: Path, after: bool
) -> None:
    names = count_steps(tmp_path)
    assert {"create json", "create published", "publish", "list", "read"} <= set(names)
    for fatal in range(len(names)):
        lake = Lake(tmp_path / f"{fatal}", "parquet")
        with pytest.raises(Killed):
            export_until(lake, Steps(fatal, after=after))
        assert_at_most_once(lake)
        lake.export(source(), **PARTITIONS)
        assert_holds(lake.read(), ["txn"])


def test_folder_export_killed_during_recovery_writes_each_row_once_after_resume(
    tmp_path: Path,
) -> None:
    names = count_steps(tmp_path)
    first = names.index("create json")
    for second in range(8):
        lake = Lake(tmp_path / f"{second}", "parquet")
        with pytest.raises(Killed):
            export_until(lake, Steps(first, after=True))
        with contextlib.suppress(Killed):
            export_until(lake, Steps(second, after=True))
        assert_at_most_once(lake)
        lake.export(source(), **PARTITIONS)
        assert_holds(lake.read(), ["txn"])


def test_readers_do_not_see_unpublished_files(tmp_path: Path) -> None:
    names = count_steps(tmp_path)
    lake = Lake(tmp_path / "lake", "parquet")
    with pytest.raises(Killed):
        export_until(lake, Steps(names.index("create json"), after=False))
    assert list((lake.folder / "table" / "_kts" / "attempts").rglob("*.part"))
    assert ds.dataset(lake.target, format="parquet").to_table().num_rows == 0
    assert not list((lake.folder / "table").rglob("*.parquet"))


class Interposed(LocalExecutor):
    """Runs tasks, and calls `between` once, after the tasks of the first commit and before the
    commit itself.
    """

    def __init__(self, between: Any) -> None:  # noqa: ANN401
        super().__init__(1)
        self._between = between

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        yield from super().run(tasks, job)
        between, self._between = self._between, None
        if between is not None:
            between()


def test_second_of_two_exports_of_same_offsets_raises_commit_conflict(lake: Lake) -> None:
    with pytest.raises(
        CommitConflictError, match=r"txn-\d \[.* planned for a table that has no off"
    ):
        lake.export(source(), executor=Interposed(lambda: lake.export(source())))
    assert_holds(lake.read(), ["txn"])


def test_second_export_of_same_offsets_into_existing_table_raises_commit_conflict(
    lake: Lake,
) -> None:
    ends = '{"txn": {"0": 500, "1": 500}}'
    lake.export(source(endingOffsets=ends))
    with pytest.raises(CommitConflictError, match="planned for a table that ends at offset 500"):
        lake.export(source(), executor=Interposed(lambda: lake.export(source())))
    assert_holds(lake.read(), ["txn"])


def test_two_exports_of_different_topics_both_commit(lake: Lake) -> None:
    other = source("timeline")
    lake.export(source("txn"), executor=Interposed(lambda: lake.export(other)))
    assert_holds(lake.read(), ["txn", "timeline"])


def test_export_fails_if_concurrent_export_used_a_different_isolation_level(lake: Lake) -> None:
    other = source("timeline", isolationLevel="read_uncommitted")
    with pytest.raises(FingerprintError, match="isolationLevel"):
        lake.export(source("txn"), executor=Interposed(lambda: lake.export(other)))
    assert_holds(lake.read(), ["timeline"], "read_uncommitted")


class Racing:
    """Calls `act` once, when a commit calls the method `name` of the class `owner`. The commit has
    already compared the offset ranges, so another export can commit at this moment.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, act: Any) -> None:  # noqa: ANN401
        original = getattr(owner, name)
        acts = [act]

        def wrapped(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            if acts:
                acts.pop()()
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, wrapped)


LAST_MOMENT = {
    "parquet": (LocalTarget, "create"),
    "delta": (DeltaExportTable, "_properties"),
    "iceberg": (IcebergExportTable, "_commit_once"),
}


def last_moment(lake: Lake) -> tuple[type, str]:
    return LAST_MOMENT[lake.table_format]


@pytest.mark.parametrize("begun", [False, True], ids=["new table", "existing table"])
def test_concurrent_commits_of_same_offsets_have_one_winner(
    lake: Lake, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if begun:
        lake.export(source(endingOffsets='{"txn": {"0": 500, "1": 500}}'))
    if lake.table_format == "parquet":
        # `create` also probes the store, but this test is about the commit.
        monkeypatch.setattr(parquet_folder, "require_create", lambda target: None)
    owner, name = last_moment(lake)
    Racing(monkeypatch, owner, name, lambda: lake.export(source()))
    with pytest.raises(CommitConflictError):
        lake.export(source())
    assert_holds(lake.read(), ["txn"])


def test_concurrent_commits_of_different_topics_both_succeed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.export(source(endingOffsets='{"txn": {"0": 500, "1": 500}}'))
    if lake.table_format == "parquet":
        monkeypatch.setattr(parquet_folder, "require_create", lambda target: None)
    owner, name = last_moment(lake)
    Racing(monkeypatch, owner, name, lambda: lake.export(source("timeline")))
    lake.export(source())
    assert_holds(lake.read(), ["txn", "timeline"])


class DiesAtCommit:
    """Wraps a table. Raises `Killed` before or after the commit with index `number`."""

    def __init__(self, table: Any, number: int, *, after: bool) -> None:  # noqa: ANN401
        self._table = table
        self._number = number
        self._after = after

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._table, name)

    def commit(self, commit: Commit) -> bool:
        self._number -= 1
        if self._number < 0:
            if self._after:
                self._table.commit(commit)
            raise Killed
        return bool(self._table.commit(commit))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_run_killed_before_or_after_commit_writes_each_row_once_after_resume(
    lake: Lake, number: int, after: bool
) -> None:
    table: Any = DiesAtCommit(lake.table(), number, after=after)
    with pytest.raises(Killed):
        lake.export(source(), table=table)
    assert_at_most_once(lake)
    lake.export(source())
    assert_holds(lake.read(), ["txn"])


def test_export_resumes_after_delta_removed_its_old_log(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    lake.export(source(endingOffsets=FIRST_900), commit_bytes=1)
    rows = len(row_locations(lake.read()))
    table = DeltaTable(lake.target)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    for path in (tmp_path / "table" / "_delta_log").glob("*.json"):
        os.utime(path, (0, 0))
    table = DeltaTable(lake.target)
    table.create_checkpoint()
    table.cleanup_metadata()
    remaining_logs = list((tmp_path / "table" / "_delta_log").glob("*.json"))
    assert len(remaining_logs) < table.version(), "the old log should be gone"
    report = lake.export(source())
    assert {span.start for span in report.ranges} == {900}
    assert len(row_locations(lake.read())) == rows + report.rows
    assert_holds(lake.read(), ["txn"])


def test_export_resumes_after_delta_optimize_compacted_the_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    lake.export(source(endingOffsets=FIRST_900))
    DeltaTable(lake.target).optimize.compact()
    lake.export(source())
    assert_holds(lake.read(), ["txn"])


def test_export_resumes_after_iceberg_expired_its_snapshots(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.export(source(endingOffsets=FIRST_900), commit_bytes=1)
    catalog = load_catalog("lake", **lake.catalog)
    table = catalog.load_table(lake.target)
    old = [snapshot.snapshot_id for snapshot in table.snapshots()][:-1]
    assert old
    expire = table.maintenance.expire_snapshots()
    for snapshot_id in old:
        expire = expire.by_id(snapshot_id)
    expire.commit()
    assert len(catalog.load_table(lake.target).snapshots()) == 1
    catalog.close()
    report = lake.export(source())
    assert {span.start for span in report.ranges} == {900}
    assert_holds(lake.read(), ["txn"])


def test_files_of_killed_run_are_listed_and_removed_by_clean(lake: Lake) -> None:
    table: Any = DiesAtCommit(lake.table(), 1, after=False)
    with pytest.raises(Killed):
        lake.export(source(), table=table)
    settings = lake.settings()
    assert clean(settings, remove=True) == (), "a run under way keeps its files"
    orphans = clean(settings, older_than_hours=-1)
    assert orphans
    before = sorted(row_locations(lake.read()))
    assert clean(settings, older_than_hours=-1, remove=True) == orphans
    assert clean(settings, older_than_hours=-1) == ()
    assert sorted(row_locations(lake.read())) == before
    lake.export(source())
    assert_holds(lake.read(), ["txn"])


class Speculative(LocalExecutor):
    """Runs two attempts of every task, but returns the report of only one of them. The other
    attempt runs first if the task number is odd, and second if it is even.
    """

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        for task in tasks:
            early = task.number % 2
            if early:
                task.run(job)
            yield task.run(job)
            if not early:
                task.run(job)


def test_two_attempts_of_every_task_write_each_row_once(lake: Lake) -> None:
    report = lake.export(source(), executor=Speculative(1))
    assert_holds(lake.read(), ["txn"])
    assert report.rows == lake.read().num_rows
    losers = clean(lake.settings(), older_than_hours=-1, remove=True)
    assert len(losers) == report.files
    assert_holds(lake.read(), ["txn"])


def test_run_commits_nothing_if_its_files_were_removed(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")

    def clean() -> None:
        table = lake.table()
        table.remove(table.orphans())

    with pytest.raises(ExportError, match="nothing was committed"):
        lake.export(source(), executor=Interposed(clean))
    lake.export(source())
    assert_holds(lake.read(), ["txn"])


class OverwritingTarget(LocalTarget):
    """A target whose `create` overwrites an existing object, and always returns true."""

    def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return True


def test_store_without_atomic_create_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    table = ParquetFolder(lake.settings())
    table._target = OverwritingTarget(tmp_path / "table")
    with pytest.raises(UnsupportedTargetError, match="replaces an existing one"):
        lake.export(source(), table=table)
    assert not list((tmp_path / "table").rglob("*.part*"))


def test_publish_refuses_another_file_with_a_committed_name(tmp_path: Path) -> None:
    names = count_steps(tmp_path)
    lake = Lake(tmp_path / "lake", "parquet")
    with pytest.raises(Killed):
        export_until(lake, Steps(names.index("publish")))
    (commit,) = (lake.folder / "table" / "_kts" / "commits").glob("*.json")
    (first, *_) = json.loads(commit.read_text())["files"]
    published = lake.folder / "table" / first["name"]
    published.parent.mkdir(exist_ok=True)
    published.write_bytes(b"mine")
    with pytest.raises(ExportError, match="another file has the name"):
        lake.export(source(), **PARTITIONS)
    assert published.read_bytes() == b"mine"


def test_failed_attempts_leave_no_readable_files(lake: Lake) -> None:
    calls = []

    def breaks(batch: Any) -> Any:  # noqa: ANN401
        calls.append(batch.num_rows)
        if len(calls) == 3:
            raise ValueError("third batch")
        return batch

    with pytest.raises(TieredKafkaError, match="third batch"):
        lake.export(source(targetPartitionBytes="10m"), transform=breaks)
    data = [
        path
        for suffix in ("*.parquet", "*.part")
        for path in lake.folder.rglob(suffix)
        if "_delta_log" not in path.parts
    ]
    assert data == []


def test_delta_rows_of_other_writers_are_kept(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    own_rows = expected_table("timeline", "read_committed")
    write_deltalake(
        lake.target,
        own_rows,
        commit_properties=CommitProperties(),
        post_commithook_properties=PostCommitHookProperties(),
    )
    lake.export(source("txn"))
    assert_holds(lake.read(), ["txn", "timeline"])
