"""Tests commits that succeed although the library reports an error. Also tests that `clean` keeps
the files of a running export, and that a commit fails if its files were removed or changed.
"""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from kts_source.errors import (
    AccessDeniedError,
    CommitConflictError,
    ExportError,
    StoreUnavailableError,
)
from kts_source.export.run import clean
from kts_source.export.tables import export_table
from kts_source.export.tables.target_store import LocalTarget
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.fates import without_answers
from tests.kts_source.export.small_tier import SmallTier, ranges, table_offsets
from tests.kts_source.export.tables.test_protocol import Interposed


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


@pytest.fixture
def tier(tmp_path: Path) -> SmallTier:
    return SmallTier(tmp_path / "tier").grow(3)


@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_commit_with_lost_response_succeeds(
    lake: Lake, tier: SmallTier, number: int, is_error: bool
) -> None:
    table = without_answers(lake.table(), number, is_error=is_error)
    report = lake.export(tier.options(), table=table, commit_bytes=1)
    assert (report.commits, ranges(report)) == (3, [(0, 30)])
    assert table_offsets(lake) == list(range(30))
    assert lake.export(tier.options()).commits == 0


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.parametrize("is_error", [False, True])
def test_compaction_with_lost_response_succeeds(
    table_format: str, tier: SmallTier, tmp_path: Path, is_error: bool
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(tier.options(), compact=True)
    table = without_answers(lake.table(compact=True), 0, is_error=is_error)
    assert lake.export(tier.grow(1).options(), table=table, compact=True).commits == 1
    assert table_offsets(lake) == [39]


def test_conflict_is_not_treated_as_lost_response(lake: Lake, tier: SmallTier) -> None:
    with pytest.raises(CommitConflictError):
        lake.export(tier.options(), executor=Interposed(lambda: lake.export(tier.options())))
    assert table_offsets(lake) == list(range(30))


def test_failed_commit_raises(lake: Lake, tier: SmallTier, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.export(tier.options())
    table = lake.table()

    def fail(*_: object) -> bool:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr(table, "_try_commit", fail)
    with pytest.raises(StoreUnavailableError, match="no answer"):
        lake.export(tier.grow(1).options(), table=table)
    assert table_offsets(lake) == list(range(30))


@pytest.mark.parametrize("method", ["commit_table", "create_table"])
def test_export_succeeds_if_iceberg_commit_with_unknown_state_was_written(
    method: str, tier: SmallTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path, "iceberg")
    original = getattr(SqlCatalog, method)
    remaining = [1]

    def lost(self: SqlCatalog, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        answer = original(self, *arguments, **named)
        remaining[0] -= 1
        if remaining[0] == 0:
            raise CommitStateUnknownException("502")
        return answer

    monkeypatch.setattr(SqlCatalog, method, lost)
    report = lake.export(tier.options())
    assert ranges(report) == [(0, 30)]
    assert table_offsets(lake) == list(range(30))


# -- files of a running export


def test_missing_file_is_not_committed(lake: Lake, tier: SmallTier) -> None:
    lake.export(tier.options())

    def remove() -> None:
        table = lake.table()
        table.remove([entry for entry in table.orphans() if "/runs/" not in entry.key][:1])

    with pytest.raises(ExportError, match="nothing was committed"):
        lake.export(tier.grow(2).options(), executor=Interposed(remove), commit_bytes=1 << 40)
    assert table_offsets(lake) == list(range(30))
    assert ranges(lake.export(tier.options())) == [(30, 50)]


def test_file_truncated_before_commit_is_not_committed(lake: Lake, tier: SmallTier) -> None:
    lake.export(tier.options())

    def truncate() -> None:
        table = lake.table()
        (file,) = (entry for entry in table.orphans() if "/runs/" not in entry.key)
        path = next(lake.folder.rglob(file.key.rpartition("/")[2]))
        path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(ExportError, match="nothing was committed"):
        lake.export(tier.grow(1).options(), executor=Interposed(truncate))
    assert table_offsets(lake) == list(range(30))


def test_clean_keeps_all_files_of_a_running_export(lake: Lake, tier: SmallTier) -> None:
    cleaned: list[object] = []

    def clean_up() -> None:
        cleaned.append(clean(lake.settings(), older_than_hours=-1, remove=True))

    lake.export(tier.options(), executor=Interposed(clean_up))
    assert cleaned == [()]
    assert table_offsets(lake) == list(range(30))
    assert clean(lake.settings(), older_than_hours=-1) == ()


def test_clean_removes_files_of_a_dead_export(lake: Lake, tier: SmallTier) -> None:
    lake.export(tier.options())

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.export(tier.grow(1).options(), executor=Interposed(die))
    # A killed run leaves the file that marks it as running, but its file lock is released.
    folder = Path(lake.table()._root().removeprefix("file://")) / export_table.MARKS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("0" * 32)).touch()
    assert len(clean(lake.settings(), older_than_hours=-1, remove=True)) == 2
    assert clean(lake.settings(), older_than_hours=-1) == ()
    assert table_offsets(lake) == list(range(30))


def test_clean_of_iceberg_table_created_again_needs_removal_of_old_metadata(
    tmp_path: Path, tier: SmallTier
) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.export(tier.options())
    catalog = SqlCatalog("lake", **lake.catalog)
    old = catalog.load_table(lake.target)
    catalog.drop_table(lake.target)
    catalog.create_table(lake.target, old.schema())
    catalog.close()
    old_id = str(old.metadata.table_uuid)
    with pytest.raises(ExportError, match=f"metadata of the table {old_id}"):
        clean(lake.settings(), older_than_hours=-1)
    for path in tmp_path.rglob("*.metadata.json"):
        if old_id in path.read_text():
            path.unlink()
    assert len(clean(lake.settings(), older_than_hours=-1)) == 3


def test_run_without_delete_permission_succeeds() -> None:
    written: list[str] = []

    class AppendOnly:
        def put(self, key: str, content: bytes) -> None:
            assert content
            written.append(key)

        def delete(self, key: str) -> None:
            raise AccessDeniedError("no right to delete", uri=key)

    target: Any = AppendOnly()
    with export_table._renewed(target, "_kts/runs/1"):
        assert written == ["_kts/runs/1"]


def test_clean_keeps_files_of_export_whose_id_looks_like_a_run_id(
    lake: Lake, tier: SmallTier
) -> None:
    export_id = "a" * 32
    cleaned: list[object] = []

    def clean_up() -> None:
        settings = lake.settings(export_id=export_id)
        cleaned.append(clean(settings, older_than_hours=-1, remove=True))

    lake.export(tier.options(), executor=Interposed(clean_up), export_id=export_id)
    assert cleaned == [()]
    assert table_offsets(lake) == list(range(30))


def test_export_into_folder_without_file_locks_warns(
    lake: Lake, tier: SmallTier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cleaned: list[object] = []

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    def clean_up() -> None:
        cleaned.append(clean(lake.settings(), older_than_hours=-1, remove=True))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lake.export(tier.options(), executor=Interposed(clean_up))
    assert "cannot be locked (Operation not supported)" in caplog.text
    assert cleaned == [()]
    assert table_offsets(lake) == list(range(30))
    assert clean(lake.settings(), older_than_hours=-1) == ()


def test_export_warns_if_it_cannot_delete_the_mark_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = LocalTarget(tmp_path)

    def refuse(_key: str) -> None:
        raise StoreUnavailableError("access denied")

    monkeypatch.setattr(target, "delete", refuse)
    with export_table._renewed(target, "_kts/runs/1"):
        assert (tmp_path / "_kts/runs/1").exists()
    assert "the mark _kts/runs/1 of this run cannot be deleted" in caplog.text
