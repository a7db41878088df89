"""Files of a local target: on the disk before anybody hears of them, without a wait at the end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kts_source.export.tables import target_store
from kts_source.export.tables.target_store import LocalTarget

if TYPE_CHECKING:
    from pathlib import Path


def test_a_closed_file_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert 1000 in synced  # with all its bytes, not before some were handed over


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system knows no posix_fadvise")
def test_the_disk_begins_before_the_file_ends(
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
