"""Tests the daemon that loads modules before it forks workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys, threading
from kts_source.spark import daemon
from tests.golden_data import assert_same_rows, expected_table, tier_options

from segment_format.kernels.native import load_kernel

assert load_kernel.cache_info().currsize == 0
daemon.preload()
assert load_kernel.cache_info().currsize == 1
assert threading.enumerate() == [threading.main_thread()]
before = set(sys.modules)
child = os.fork()
if child == 0:
    code = 1
    try:
        from tests.kts_source.planning.scanning import scan

        rows = scan(tier_options("codecs", includeHeaders="true"))
        assert_same_rows(rows, expected_table("codecs", "read_committed"))
        heavy = ("numba", "pandas", "s3fs", "aiobotocore")
        late = sorted(n for n in set(sys.modules) - before if n.split(".")[0] in heavy)
        print(rows.num_rows, late, flush=True)
        code = 0
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_child_forked_by_daemon_reads_without_loading_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows, late = done.stdout.split(" ", 1)
    assert int(rows) > 0
    assert late.strip() == "[]"


def test_only_the_daemon_that_starts_tasks_preloads_modules() -> None:
    for kind, expected in (
        ("pyspark.worker", True),
        ("pyspark.sql.worker.lookup_data_sources", False),
    ):
        program = f"""
import runpy, sys
import pyspark.daemon
pyspark.daemon.manager = lambda: print("segment_format.kernels.native" in sys.modules)
sys.argv = ["daemon", {kind!r}]
runpy.run_module("kts_source.spark.daemon", run_name="__main__")
"""
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.stdout.strip() == str(expected), done.stderr
