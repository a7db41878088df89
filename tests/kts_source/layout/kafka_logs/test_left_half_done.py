"""What a cleaner or a deletion left half done, as Kafka's `LogLoader` completes or undoes it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import CorruptSegmentError
from tests.kts_source.layout.kafka_logs.disk import Disk, expected, offsets, transactions

if TYPE_CHECKING:
    from pathlib import Path

LOG = transactions(segments=4)
KINDS = ("log", "index", "timeindex", "txnindex")


@pytest.fixture(params=[True, False])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Disk:
    """A whole disk, shut down cleanly or not."""
    return Disk(tmp_path).write(LOG, clean=request.param)


def copies(disk: Disk, number: int, state: str) -> list[Path]:
    """Copies of a segment's files under names of a change under way."""
    made = []
    for kind in KINDS:
        path = disk.folder / f"{LOG.segments[number].base_offset:020d}.{kind}"
        if path.exists():
            made.append(shutil.copyfile(path, path.with_name(f"{path.name}.{state}")))
    return made


@pytest.mark.parametrize("state", ["deleted", "cleaned"])
def test_files_on_their_way_out_or_in_are_dropped(disk: Disk, state: str) -> None:
    for path in copies(disk, 1, state):
        path.write_bytes(b"anything")
    assert offsets(disk.root) == expected(LOG)


def test_swap_files_take_the_place_of_what_they_were_made_from(disk: Disk) -> None:
    """Two segments were cleaned into one; the broker stopped before it removed them."""
    first, second = LOG.segments[1:3]
    swaps = copies(disk, 1, "swap")
    (swap,) = [path for path in swaps if ".log" in path.name]
    swap.write_bytes(first.log + second.log)
    for path in swaps:
        if ".log" not in path.name:
            path.unlink()
    for segment in (first, second):  # what a broker would drop must not be looked at
        (disk.folder / f"{segment.base_offset:020d}.log").write_bytes(b"old")
        (disk.folder / f"{segment.next_offset:020d}.snapshot").unlink(missing_ok=True)
    assert offsets(disk.root) == expected(LOG)


def test_swap_files_whose_old_segments_are_gone_are_read(disk: Disk) -> None:
    copies(disk, 1, "swap")
    base = LOG.segments[1].base_offset
    for kind in KINDS:
        (disk.folder / f"{base:020d}.{kind}").unlink(missing_ok=True)
    assert offsets(disk.root) == expected(LOG)


def test_swap_files_of_a_split_that_did_not_end_are_dropped(disk: Disk) -> None:
    copies(disk, 0, "cleaned")
    for path in copies(disk, 2, "swap"):
        path.write_bytes(b"anything")
    assert offsets(disk.root) == expected(LOG)


def test_swap_file_that_is_no_log_is_an_error_that_names_it(disk: Disk) -> None:
    for path in copies(disk, 2, "swap"):
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptSegmentError, match=r"log\.swap"):
        offsets(disk.root)


def test_indexes_of_a_log_on_its_way_out_are_dropped(disk: Disk) -> None:
    disk.put(f"{5:020d}.index", b"x" * 8)
    disk.put(f"{5:020d}.log.deleted", b"")
    assert offsets(disk.root) == expected(LOG)


def test_empty_segment_in_between_has_no_rows(disk: Disk) -> None:
    """A cleaner that removed everything of a segment leaves an empty file."""
    base, following = LOG.segments[1].base_offset, LOG.segments[2].base_offset
    for kind in ("log", "index", "timeindex"):
        disk.put(f"{base:020d}.{kind}", b"")
    (disk.folder / f"{base:020d}.txnindex").unlink(missing_ok=True)
    want = [o for o in expected(LOG, "read_uncommitted") if not base <= o < following]
    assert offsets(disk.root, "read_uncommitted") == want
