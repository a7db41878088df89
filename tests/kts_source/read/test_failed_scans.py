"""Tests that a failed plan or read closes its files without waiting for garbage collection."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import CorruptSegmentError, TieredKafkaError
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def _no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_files(folder: Path) -> list[str]:
    """Returns the open files and folders of this process at or below `folder`."""
    paths = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names that vanish while listed
        try:
            paths.append(os.readlink(f"/proc/self/fd/{number}"))  # noqa: PTH115
        except FileNotFoundError:
            continue
    return [path for path in paths if path.startswith(str(folder))]


@pytest.mark.usefixtures("_no_gc")
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc on this system")
@pytest.mark.parametrize("suffix", [".log", ".rsm-manifest", ".indexes"])
def test_failed_scan_closes_its_files_without_garbage_collection(
    tmp_path: Path, suffix: str
) -> None:
    tier, cache = tmp_path / "tier", tmp_path / "cache"
    tier.mkdir()
    cache.mkdir(mode=0o700)
    log = LogBuilder()
    log.append([SimpleRecord(b"value%d" % row) for row in range(50)])
    segment = log.roll()
    assert segment is not None
    AivenTierWriter(
        str(tier), topic="orders", partition=0, topic_id="K9smgFCbQqqHK_5pkCGYjg"
    ).write_segment(segment)
    (damaged,) = tier.rglob(f"*{suffix}")
    damaged.write_bytes(b"\xff" * damaged.stat().st_size)
    scan = {"path": str(tier), "subscribe": "orders", "cacheDir": str(cache)}
    before = open_files(tmp_path)
    raised = None
    try:
        kts_source.scan(scan).to_table(threads=1)
    except TieredKafkaError as error:
        raised = type(error)
    assert raised is CorruptSegmentError
    assert open_files(tmp_path) == before
