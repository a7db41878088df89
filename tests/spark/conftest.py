"""Configures the Spark tests, which share one small Spark and have the marker `spark`."""

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
    """Marks the tests in this folder and runs them in one worker, because Spark uses all cores."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("spark")
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.filterwarnings(PYSPARK_LEAK))


@pytest.fixture(scope="module", autouse=True)
def collect_pyspark_garbage() -> Iterator[None]:
    """Closes sockets that PySpark leaves to the garbage collector, so that no test in another
    folder fails. Tests in this folder ignore them. A collection takes up to two seconds.
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
