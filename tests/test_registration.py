"""Tests `pyspark_tiered_kafka`, which Spark imports to register the data source."""

from __future__ import annotations

import subprocess
import sys

import pytest

BROKEN = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "kts_source":
            raise ImportError("numpy of another version")
sys.meta_path.insert(0, Broken())
import pyspark_tiered_kafka
print(hasattr(pyspark_tiered_kafka, "DefaultSource"))
"""


@pytest.mark.parametrize("warnings", ["default", "error", "ignore"])
def test_failed_registration_warns_and_does_not_raise(warnings: str) -> None:
    run = subprocess.run(
        [sys.executable, "-W", warnings, "-c", BROKEN], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout.strip()) == (0, "False"), run.stderr
    if warnings == "default":
        assert "ImportError: numpy of another version" in run.stderr
        assert sys.executable in run.stderr
