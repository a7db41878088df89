"""Checks that `clean` removes the files of killed runs, and keeps the files of active runs."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from kts_source.errors import ExportError
from kts_source.export.dead_letters import check_dead_letters
from kts_source.export.run import clean, export
from kts_source.export.tables.target_store import LocalTarget
from kts_source.export.task_writer import LocalExecutor
from kts_source.secret import Secret
from tests.kts_source.export.exporting import (
    FORMATS,
    Lake,
    assert_holds,
    replaced,
    row_locations,
    source,
)
from tests.kts_source.export.killing import Killed
from tests.kts_source.export.tables.test_protocol import DiesAtCommit, Interposed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.export.tables.export_table import Commit


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def aged(lake: Lake, hours: float, *, kept: int = 0) -> list[Path]:
    """Makes data files `hours` hours older by changing their modification times, except for the
    `kept` newest ones. Returns all data files, oldest first.
    """
    files = sorted(
        (path for path in lake.folder.rglob("*.par*") if "_delta_log" not in path.parts),
        key=lambda path: path.stat().st_mtime_ns,
    )
    for path in files[: len(files) - kept]:
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))
    return files


def test_clean_keeps_files_of_an_active_run(lake: Lake) -> None:
    # If a commit takes long, its first files are already old when its last file is written.
    cleaned: list[object] = []

    def clean_up() -> None:
        assert len(aged(lake, 10, kept=1)) > 1
        cleaned.append(clean(lake.settings(), older_than_hours=5, remove=True))

    lake.export(source(), executor=Interposed(clean_up), commit_bytes=1 << 40)
    assert cleaned == [()]
    assert_holds(lake.read(), ["txn"])


def test_clean_keeps_files_committed_during_its_listing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = LocalTarget.list_objects
    waiting: list[Any] = []
    under_way: list[str] = []

    def listed(self: LocalTarget, prefix: str, *, after: str | None = None) -> Iterator[Any]:
        under_way.append(prefix)
        yield from list(original(self, prefix, after=after))
        under_way.pop()
        # `clean` has just listed a folder, so the commit happens now.
        if waiting and not under_way and not prefix.endswith("commits/"):
            waiting.pop()()

    class Committing(DiesAtCommit):
        """Calls `clean` instead of committing. After `clean` has listed a folder, the commit runs
        and the export is killed.
        """

        def commit(self, commit: Commit) -> bool:
            waiting.append(lambda: self._table.commit(commit))
            monkeypatch.setattr(LocalTarget, "list_objects", listed)
            clean(lake.settings(), older_than_hours=-1, remove=True)
            monkeypatch.setattr(LocalTarget, "list_objects", original)
            raise Killed

    table: Any = Committing(lake.table(), 0, after=True)
    with pytest.raises(Killed):
        lake.export(source(), table=table)
    assert not waiting
    assert len(row_locations(lake.read())) > 0
    lake.export(source())
    assert_holds(lake.read(), ["txn"])


def test_clean_removes_test_file_of_a_killed_check_of_dead_letters(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Killed

    settings = lake.settings(dead_letters=str(lake.folder / "letters"))
    with monkeypatch.context() as patch:
        patch.setattr(LocalTarget, "delete", killed)
        with pytest.raises(Killed):
            check_dead_letters(settings)
    assert len(clean(settings, older_than_hours=-1, remove=True)) == 1
    assert not [path for path in (lake.folder / "letters").rglob("*") if path.is_file()]


def test_clean_without_partition_options_keeps_committed_files(lake: Lake) -> None:
    letters = str(lake.folder / "letters")
    lake.export(source(), partition_by=["topic"], dead_letters=letters)
    assert clean(lake.settings(dead_letters=letters), older_than_hours=-1, remove=True) == ()
    assert_holds(lake.read(), ["txn"])


@pytest.mark.parametrize("exported", [True, False])
def test_clean_keeps_files_of_another_iceberg_table_in_the_same_folder(
    tmp_path: Path, exported: bool
) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.export(source())
    # A SQL catalog stores the name of the catalog with each table.
    renamed = replaced(lake.settings(), catalog=Secret({**lake.catalog, "name": "other"}))
    if exported:
        export(source(), renamed, LocalExecutor(1))
    for settings in [renamed, lake.settings()] if exported else [renamed]:
        with pytest.raises(ExportError, match=r"Nothing was removed\. Check the property 'name'"):
            clean(settings, older_than_hours=-1, remove=True)
    assert_holds(lake.read(), ["txn"])
    if not exported:
        assert clean(lake.settings(), older_than_hours=-1) == ()


BOMB = gzip.compress(bytes(1 << 20), mtime=0) * 300
DAMAGED_METADATA = {
    "empty": b"",
    "list": b"[]",
    "truncated": b"{",
    "wrong type": b'{"snapshots": [1]}',
    "not utf-8": b"\xff\xfe",
    "gzip header": b"\x1f\x8b\x08",
    "truncated gzip": BOMB[:-9],
    "gzip of 300 MiB": BOMB,
}


@pytest.mark.parametrize("metadata", DAMAGED_METADATA.values(), ids=DAMAGED_METADATA)
def test_clean_refuses_unreadable_metadata_in_the_folder_of_an_iceberg_table(
    tmp_path: Path, metadata: bytes
) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.export(source())
    (kept,) = lake.folder.rglob("metadata")
    (kept / "00009-lost.metadata.json").write_bytes(metadata)
    unused = next(lake.folder.rglob("*.parquet")).parent / "unused.parquet"
    unused.write_bytes(b"PAR1")
    with pytest.raises(ExportError, match=r"cannot be read .* Nothing was removed") as caught:
        clean(lake.settings(), older_than_hours=-1, remove=True)
    assert "00009-lost.metadata.json" in str(caught.value)
    assert unused.exists()


def test_clean_of_iceberg_table_continues_after_the_dropped_table_is_deleted(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path, "iceberg")
    lake.export(source())
    old = list(lake.folder.rglob("*.parquet"))
    catalog = load_catalog("lake", **lake.catalog)
    dropped_id = str(catalog.load_table(lake.target).metadata.table_uuid)
    catalog.drop_table(lake.target)
    catalog.close()
    lake.export(source())
    with pytest.raises(ExportError, match=rf"metadata of the table {dropped_id}"):
        clean(lake.settings(), older_than_hours=-1, remove=True)
    # Do what the error advises.
    for path in lake.folder.rglob("*.metadata.json"):
        if dropped_id in path.read_text():
            path.unlink()
    assert len(clean(lake.settings(), older_than_hours=-1, remove=True)) == len(old)
    assert_holds(lake.read(), ["txn"])
