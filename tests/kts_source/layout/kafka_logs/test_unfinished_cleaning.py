"""Checks scans of disks on which a broker stopped while it replaced or deleted segments.

Scans read the same files as Kafka's `LogLoader` after a restart.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import CorruptSegmentError
from tests.kts_source.layout.kafka_logs.disk import (
    Disk,
    build_transactions,
    list_expected_offsets,
    read_offsets,
)

if TYPE_CHECKING:
    from pathlib import Path

LOG = build_transactions(segments=4)
KINDS = ("log", "index", "timeindex", "txnindex")


@pytest.fixture(params=[True, False])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Disk:
    """Writes a broker's disk with all segments, as it looks after a clean shutdown or a crash."""
    return Disk(tmp_path).write(LOG, clean=request.param)


def copy_files(disk: Disk, number: int, state: str) -> list[Path]:
    """Copies the files of segment `number` and appends `.<state>` to the names of the copies.
    Brokers use such suffixes while they replace or delete segments.
    """
    paths = []
    for kind in KINDS:
        path = disk.folder / f"{LOG.segments[number].base_offset:020d}.{kind}"
        if path.exists():
            paths.append(shutil.copyfile(path, path.with_name(f"{path.name}.{state}")))
    return paths


@pytest.mark.parametrize("state", ["deleted", "cleaned"])
def test_deleted_and_cleaned_files_are_ignored(disk: Disk, state: str) -> None:
    for path in copy_files(disk, 1, state):
        path.write_bytes(b"anything")
    assert read_offsets(disk.root) == list_expected_offsets(LOG)


def test_swap_files_replace_their_source_segments(disk: Disk) -> None:
    """The cleaner merged two segments. The broker stopped before it removed the old segments."""
    first, second = LOG.segments[1:3]
    swaps = copy_files(disk, 1, "swap")
    (swap,) = [path for path in swaps if ".log" in path.name]
    swap.write_bytes(first.log + second.log)
    for path in swaps:
        if ".log" not in path.name:
            path.unlink()
    for segment in (first, second):  # a broker drops these files: they must not be read
        (disk.folder / f"{segment.base_offset:020d}.log").write_bytes(b"old")
        (disk.folder / f"{segment.next_offset:020d}.snapshot").unlink(missing_ok=True)
    assert read_offsets(disk.root) == list_expected_offsets(LOG)


def test_swap_files_without_old_segments_are_read(disk: Disk) -> None:
    copy_files(disk, 1, "swap")
    base = LOG.segments[1].base_offset
    for kind in KINDS:
        (disk.folder / f"{base:020d}.{kind}").unlink(missing_ok=True)
    assert read_offsets(disk.root) == list_expected_offsets(LOG)


def test_swap_files_of_unfinished_split_are_ignored(disk: Disk) -> None:
    copy_files(disk, 0, "cleaned")
    for path in copy_files(disk, 2, "swap"):
        path.write_bytes(b"anything")
    assert read_offsets(disk.root) == list_expected_offsets(LOG)


def test_damaged_swap_file_raises_error_with_its_name(disk: Disk) -> None:
    for path in copy_files(disk, 2, "swap"):
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptSegmentError, match=r"log\.swap"):
        read_offsets(disk.root)


def test_indexes_of_deleted_log_are_ignored(disk: Disk) -> None:
    disk.put(f"{5:020d}.index", b"x" * 8)
    disk.put(f"{5:020d}.log.deleted", b"")
    assert read_offsets(disk.root) == list_expected_offsets(LOG)


def test_empty_segment_between_two_segments_has_no_rows(disk: Disk) -> None:
    """The cleaner leaves an empty file if it removes all records of a segment."""
    base, following = LOG.segments[1].base_offset, LOG.segments[2].base_offset
    for kind in ("log", "index", "timeindex"):
        disk.put(f"{base:020d}.{kind}", b"")
    (disk.folder / f"{base:020d}.txnindex").unlink(missing_ok=True)
    rows = [o for o in list_expected_offsets(LOG, "read_uncommitted") if not base <= o < following]
    assert read_offsets(disk.root, "read_uncommitted") == rows
