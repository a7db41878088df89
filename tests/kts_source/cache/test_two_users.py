"""Tests that two users of a machine can scan with the same `cacheDir`. One user's scans must not
use the other user's cache.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from tests.golden_data import TIER, expected_table, tier_options
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users"),
    # Newer Python versions warn about forks of processes with threads.
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
]

TOPIC = "compacted"
FIRST_USER, SECOND_USER = 10_001, 10_002


@pytest.fixture
def machine() -> Iterator[Path]:
    """Yields a folder that every user can write to. It contains a copy of the golden tier."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        shutil.copytree(TIER, folder / "tier")
        for path in (folder / "tier", *(folder / "tier").rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield folder


def _offsets(options: dict[str, str]) -> list[tuple[int, int]]:
    parsed = parse_options(options)
    table = run(plan_scan(parsed), options)
    return sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


def _scan_as(user: int, options: dict[str, str]) -> list[tuple[int, int]]:
    os.setegid(user)
    os.seteuid(user)
    return _offsets(options)


def scan_as(user: int, options: dict[str, str]) -> list[tuple[int, int]]:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(_scan_as, (user, options)).get(60)


def test_second_user_reads_without_the_cache_of_the_first_user(machine: Path) -> None:
    cache = machine / "cache"
    options = tier_options(
        TOPIC,
        path=(machine / "tier").as_uri(),
        cacheDir=str(cache),
        cache="true",
        chunkCacheBytes="64m",
    )
    table = expected_table(TOPIC, "read_committed")
    expected = sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert _offsets({**options, "cache": "false"}) == expected
    assert scan_as(FIRST_USER, options) == expected
    files = {path: path.read_bytes() for path in cache.rglob("*.entry")}
    assert files, "the first user keeps something"
    assert {path.stat().st_uid for path in (cache, *cache.rglob("*"))} == {FIRST_USER}
    assert scan_as(SECOND_USER, options) == expected
    assert {path.stat().st_uid for path in (cache, *cache.rglob("*"))} == {FIRST_USER}
    assert {path: path.read_bytes() for path in cache.rglob("*.entry")} == files
    assert scan_as(FIRST_USER, options) == expected
