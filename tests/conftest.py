"""Defines fixtures and settings that the tests of several folders use."""

from __future__ import annotations

import os

from hypothesis import settings

from tests import quick  # importing it sets the seed before xdist workers start
from tests.s3 import s3_server
from tests.spark_session import spark

__all__ = ["quick", "s3_server", "spark"]

# No deadline: the run time of an example depends on the machine, not on the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_report_header() -> str:
    """Returns a line with the random seed of this run. To repeat the run, set the variable that the
    line names.
    """
    return f"KTS_EXAMPLES_SEED={os.environ['KTS_EXAMPLES_SEED']}"
