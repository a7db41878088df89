"""Fixtures that tests of several folders share."""

from __future__ import annotations

from tests.s3 import s3_server
from tests.spark_session import spark

__all__ = ["s3_server", "spark"]
