"""Checks that a local target syncs files to disk when they are closed, and follows no symbolic
links out of its folder.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import InvalidKeyError
from kts_source.export.tables import target_store
from kts_source.export.tables.target_store import LocalTarget

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_closed_file_is_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    output = LocalTarget(tmp_path).open_output("a/b.parquet")
    output.write(b"x" * 1000)
    assert 1000 not in synced
    output.close()
    assert 1000 in synced  # with all its bytes, not earlier


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system knows no posix_fadvise")
def test_writing_to_disk_starts_before_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    original = os.posix_fadvise

    def posix_fadvise(descriptor: int, offset: int, length: int, advice: int) -> None:
        begun.append(os.fstat(descriptor).st_size)
        original(descriptor, offset, length, advice)

    monkeypatch.setattr(os, "posix_fadvise", posix_fadvise)
    monkeypatch.setattr(target_store, "_WRITE_BACK_BYTES", 2500)
    pieces = [bytes([number]) * 1000 for number in range(7)]
    output = LocalTarget(tmp_path).open_output("rows")
    for piece in pieces:
        output.write(piece)
    output.close()
    assert begun == [3000, 6000]
    assert (tmp_path / "rows").read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("name", ["create", "open_output", "publish", "delete"])
def test_link_to_a_path_outside_the_target_is_not_followed(tmp_path: Path, name: str) -> None:
    root, outside = tmp_path / "table", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    root.mkdir()
    (root / "draft").write_bytes(b"draft")
    (root / "linked").symlink_to(outside)
    target = LocalTarget(root)
    writes: dict[str, Callable[[], object]] = {
        "create": lambda: target.create("linked/new/file", b"x"),
        "open_output": lambda: target.open_output("linked/file"),
        "publish": lambda: target.publish("draft", "linked/file", 5),
        "delete": lambda: target.delete("linked/kept"),
    }
    with pytest.raises(InvalidKeyError, match="symbolic link leads out of the root folder"):
        writes[name]()
    assert [path.name for path in outside.iterdir()] == ["kept"]


def test_links_to_and_inside_the_target_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "alias").symlink_to("inner")
    (tmp_path / "table").symlink_to(folder)
    target = LocalTarget(tmp_path / "table")
    assert target.create("alias/file", b"x")
    assert (folder / "inner" / "file").read_bytes() == b"x"
    target.delete("alias/file")
    assert not (folder / "inner" / "file").exists()
