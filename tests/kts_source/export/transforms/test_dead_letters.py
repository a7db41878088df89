"""Checks that each rejected row is in exactly one published file, even if a run is killed directly
before or after its commit.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from kts_source.errors import CommitConflictError
from kts_source.export import dead_letters
from kts_source.export.run import clean
from kts_source.export.tables.target_store import open_target
from tests.golden_data import expected_table
from tests.kts_source.export.exporting import FORMATS, Lake, source
from tests.kts_source.export.killing import KillableTarget, Killed, Steps
from tests.kts_source.export.transforms.test_transforms import EvenOffsets

if TYPE_CHECKING:
    from kts_source.export.tables.export_table import Commit

ALL = Counter(
    (row["partition"], row["offset"])
    for row in expected_table("txn", "read_committed").to_pylist()
    if row["offset"] % 2
)


class OddOnly(EvenOffsets):
    """Row transform that rejects odd offsets and drops even offsets. An export with it writes only
    dead letters.
    """

    fingerprint = "odd"

    def apply(self, batch: pa.RecordBatch) -> Any:  # noqa: ANN401
        done = super().apply(batch)
        return type(done)(batch.slice(0, 0), done.rejected)


class Exports:
    """Runs exports with a transform that rejects odd offsets, and reads the dead letters of these
    exports.
    """

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.letters = lake.folder / "letters"
        self.arguments: dict[str, Any] = {
            "transform": EvenOffsets(),
            "dead_letters": str(self.letters),
            "max_rejected": "100%",
        }

    def run(self, **arguments: Any) -> None:  # noqa: ANN401
        self.lake.export(source(), **{**self.arguments, **arguments})

    def found(self) -> Counter[tuple[int, int]]:
        if not self.letters.exists():
            return Counter()
        rows = ds.dataset(str(self.letters), format="parquet").to_table()
        if rows.num_rows == 0:
            return Counter()
        return Counter(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))

    def unnamed(self) -> list[Path]:
        return list(self.letters.rglob("*.letters.*"))


@pytest.fixture(params=FORMATS)
def exports(request: pytest.FixtureRequest, tmp_path: Path) -> Exports:
    return Exports(Lake(tmp_path, request.param))


def test_rejected_rows_are_written_only_once(exports: Exports) -> None:
    for _ in range(2):
        exports.run()
        assert exports.found() == ALL
        assert not exports.unnamed()


def test_next_run_does_not_read_rejected_rows_again(exports: Exports) -> None:
    for _ in range(2):
        exports.run(transform=OddOnly())
        assert exports.found() == ALL
    assert exports.lake.read().num_rows == 0


@pytest.mark.parametrize("after", [False, True])
def test_run_killed_at_commit_writes_dead_letters_once(
    exports: Exports, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table: Any = exports.lake.table(**exports.arguments)
    commit = table.commit

    def dies(commit_data: Commit) -> bool:
        if after:
            commit(commit_data)
        raise Killed("commit")

    monkeypatch.setattr(table, "commit", dies)
    with pytest.raises(Killed):
        exports.run(table=table)
    assert exports.found() == Counter()
    exports.run()
    assert exports.found() == ALL
    exports.run()
    assert exports.found() == ALL


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fatal", [0, 1, 2])
def test_run_killed_while_publishing_writes_dead_letters_once(
    tmp_path: Path, fatal: int, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = Exports(Lake(tmp_path, "delta"))
    steps = Steps(fatal, after=after)
    with monkeypatch.context() as patched:
        patched.setattr(
            dead_letters,
            "open_target",
            lambda *arguments: KillableTarget(open_target(*arguments), steps),
        )
        with pytest.raises(Killed):
            exports.run()
    assert all(count == 1 for count in exports.found().values())
    exports.run()
    assert exports.found() == ALL
    clean(exports.lake.settings(**exports.arguments), older_than_hours=-1, remove=True)
    assert exports.found() == ALL
    assert not exports.unnamed()


def test_dead_letters_of_killed_run_are_published_if_next_commit_conflicts(
    exports: Exports,
) -> None:
    first = '{"txn":{"0":500,"1":500,"2":500}}'
    late: Any = exports.lake.table(**exports.arguments)
    commit = late.commit

    def meanwhile(_given: Commit) -> Any:  # noqa: ANN401
        table: Any = exports.lake.table(**exports.arguments)
        table.commit = lambda commit_data: commit(commit_data) and _die()
        with pytest.raises(Killed):
            exports.lake.export(source(endingOffsets=first), table=table, **exports.arguments)
        # This export was planned before the commit of the killed run, so it is refused.
        return commit(_given)

    late.commit = meanwhile
    with pytest.raises(CommitConflictError):
        exports.run(table=late)
    below = Counter({location: 1 for location in ALL if location[1] < 500})
    assert exports.found() == below
    assert not exports.unnamed()
    exports.run()
    assert exports.found() == ALL


def _die() -> bool:
    raise Killed("behind the commit")


def test_clean_keeps_dead_letters_of_run_killed_after_commit(exports: Exports) -> None:
    table: Any = exports.lake.table(**exports.arguments)
    commit = table.commit
    table.commit = lambda commit_data: commit(commit_data) and _die()
    with pytest.raises(Killed):
        exports.run(table=table)
    clean(exports.lake.settings(**exports.arguments), older_than_hours=-1, remove=True)
    unnamed_files = exports.found()
    assert unnamed_files
    exports.run()
    assert exports.found() == ALL


@pytest.mark.parametrize("cleaned", ["another table", "another export", "no dead letters"])
def test_clean_of_another_export_keeps_committed_dead_letters(
    exports: Exports, tmp_path: Path, cleaned: str
) -> None:
    """`clean` runs with the same folder of dead letters for another table or export id, or without
    this folder.
    """
    arguments = exports.arguments
    lake = exports.lake
    if cleaned == "no dead letters" and lake.table_format != "parquet":  # Parquet refuses it
        target = lake.table().write_target("0" * 32)
        arguments["dead_letters"] = target.path
        exports.letters = Path(target.path.removeprefix("file://"))
    table: Any = lake.table(**arguments)
    commit = table.commit
    table.commit = lambda commit_data: commit(commit_data) and _die()
    with pytest.raises(Killed):
        exports.run(table=table)
    if cleaned == "another table":
        lake = Lake(tmp_path / "other", lake.table_format)
        lake.folder.mkdir()
    other = {
        "another table": arguments,
        "another export": {**arguments, "export_id": "other"},
        "no dead letters": {"transform": EvenOffsets()},
    }
    waiting = exports.unnamed()
    assert waiting
    clean(lake.settings(**other[cleaned]), older_than_hours=-1, remove=True)
    assert exports.unnamed() == waiting
    exports.run()
    assert not exports.unnamed()


def test_dead_letters_of_killed_export_are_published_by_concurrent_export(exports: Exports) -> None:
    """Two exports of different partitions run concurrently. The first is killed after its commit,
    and the second must also publish the dead letters of the first.
    """

    def source_of(number: int) -> dict[str, str]:
        options = {name: text for name, text in source().items() if name != "subscribe"}
        return {**options, "assign": f'{{"txn":[{number}]}}'}

    tables: list[Any] = [exports.lake.table(**exports.arguments) for _ in range(2)]
    commits = [table.commit for table in tables]

    def overtaken(commit_data: Commit) -> Any:  # noqa: ANN401
        tables[1].commit = commits[1]
        with pytest.raises(Killed):
            exports.lake.export(source_of(0), table=tables[0], **exports.arguments)
        return commits[1](commit_data)

    tables[0].commit = lambda commit_data: commits[0](commit_data) and _die()
    tables[1].commit = overtaken
    exports.lake.export(source_of(1), table=tables[1], **exports.arguments)
    partitions = {partition for partition, _ in exports.found()}
    assert partitions == {0, 1}
    for number in (0, 1):
        exports.lake.export(source_of(number), **exports.arguments)
    assert exports.found() == Counter({location: 1 for location in ALL if location[0] < 2})
