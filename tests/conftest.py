"""Fixtures and settings that tests of several folders share."""

from __future__ import annotations

from hypothesis import settings

from tests import quick  # sets the seed before workers start
from tests.s3 import s3_server
from tests.spark_session import spark

__all__ = ["quick", "s3_server", "spark"]

# How long an example takes says more about the machine than about the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
