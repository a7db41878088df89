"""Tests in this folder, which all carry the marker `spark`, share one small Spark."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
PYSPARK_LEAK = "ignore:unclosed <socket:ResourceWarning"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook, too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests below this folder and keeps them in one worker: a Spark fills the machine."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.filterwarnings(PYSPARK_LEAK))


@pytest.fixture(autouse=True)
def collect_what_pyspark_leaves() -> Iterator[None]:
    """PySpark leaves sockets to the garbage collector; they must not fail a test of others."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
