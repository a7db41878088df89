"""Defines fixtures and settings that the tests of several folders use."""

from __future__ import annotations

import gc
import math
import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests import quick  # importing it sets the seed before xdist workers start
from tests.s3 import s3_server
from tests.spark_session import spark

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["quick", "s3_server", "spark"]

# No deadline: the run time of an example depends on the machine, not on the code.
settings.register_profile("no deadline", deadline=None, max_examples=quick.examples(100))
settings.load_profile("no deadline")


def pytest_report_header() -> str:
    """Returns a line with the random seed of this run. To repeat the run, set the variable that the
    line names.
    """
    return f"KTS_EXAMPLES_SEED={os.environ['KTS_EXAMPLES_SEED']}"


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> Generator[None]:
    """Makes `os.fsync` return immediately: tests kill processes, but never the machine. Exports
    would wait for the disk thousands of times.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.hookimpl(trylast=True)  # after `-m` has deselected tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of random files if `KTS_SHARE` is below 1: the share of files to run.

    Splits the files, in the order of their tests, into blocks and runs one file of each block. So
    the duration varies little if files of similar duration are neighbors.
    """
    share = float(os.environ.get("KTS_SHARE", "1"))
    files = list(dict.fromkeys(item.path for item in items))
    chosen = set(files)
    if share < 1:
        source = quick.examples_source("share of files")
        count = math.ceil(len(files) * share)
        bounds = [len(files) * block // count for block in range(count + 1)] if count else []
        chosen = {source.choice(files[start:stop]) for start, stop in pairwise(bounds)}
    deselected = [item for item in items if item.path not in chosen]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item.path in chosen]


def pytest_runtest_teardown() -> None:
    """Undoes `gc.freeze` of the Spark worker's code. With a frozen heap as large as that of the
    tests, each later plan of the process would count its objects, which takes 0.1 s.
    """
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disables garbage collection while tests are collected: it would search for cycles in 600,000
    objects that all stay.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
