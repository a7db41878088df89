"""Tests which modules an import loads in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.test_rings import MODULES, ROOT, SPARK_RING, is_module, module_name, top, within


def loaded_after(statements: str) -> set[str]:
    """Runs statements in a fresh interpreter and returns the names of all loaded modules."""
    program = f"{statements}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


def import_all(*packages: str, but: tuple[str, ...] = ()) -> str:
    names = [
        module_name(path)
        for path in MODULES
        if within(module_name(path), *packages)
        and not within(module_name(path), *but)
        and path.name != "__main__.py"
    ]
    assert names, packages
    return "\n".join(f"import {name}" for name in names)


ADAPTERS = tuple(
    f"kts_source.engines.{name}" for name in ("duckdb_dataset", "polars_source", "ray_source")
)
"""Modules that import an engine's library. They must be loaded only when the engine is used."""
NETWORK = {"fsspec", "s3fs", "obstore", "botocore", "aiohttp", "requests", "pyspark", "py4j"}


@pytest.mark.parametrize(
    ("statements", "absent"),
    [
        pytest.param(
            import_all("segment_format"),
            NETWORK | {"kts_source"},
            id="ring-0",
        ),
        pytest.param(
            import_all("kts_source", but=(SPARK_RING, *ADAPTERS)),
            {"pyspark", "py4j", "s3fs", "obstore", "pandas", "kafka"},
            id="ring-1-and-command-line",
        ),
        pytest.param("import segment_format", {"numba", "s3fs", "pandas"}, id="segment_format"),
        pytest.param("import kts_source", {"numba", "s3fs", "pandas", "pyspark"}, id="kts_source"),
        pytest.param(
            "import kts_source\nkts_source.metrics, kts_source.errors, kts_source.secret",
            {"numba", "s3fs", "pandas", "pyspark"},
            id="modules",
        ),
        pytest.param(
            "import kts_source\nkts_source.scan",
            {"numba", "s3fs", "pandas", "pyspark", "polars", "duckdb", "ray"},
            id="kts_source.scan",
        ),
        pytest.param(
            "import pyspark_tiered_kafka", {"numba", "s3fs", "pandas"}, id="auto-registration"
        ),
    ],
)
def test_import_does_not_load_unneeded_modules(statements: str, absent: set[str]) -> None:
    loaded = {top(name) for name in loaded_after(statements)}
    assert loaded & absent == set()


def test_options_and_planning_do_not_load_numba() -> None:
    statements = "\n".join(
        f"import {name}"
        for name in (
            "kts_source.options",
            "kts_source.planning",
            "kts_source.store",
            "kts_source.read",
            "kts_source.spark",
        )
        if is_module(name)
    )
    loaded = {top(name) for name in loaded_after(statements)}
    assert loaded & {"numba", "llvmlite", "s3fs", "pandas", "kafka"} == set()


READING = """
from kts_source.options import parse_options
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import open_tier
from kts_source.read.read_task import read_task
from kts_source.read.read_settings import ReadSettings
from kts_source.planning.planner import plan_scan
from tests.golden_data import TIER
options = parse_options({"path": str(TIER), "keyPrefix": "tiered/", "subscribe": "codecs"})
(task, *_) = plan_scan(options).tasks
reader = SegmentSource(open_tier(options), options.key_ring)
assert sum(batch.num_rows for batch in read_task(task, reader, ReadSettings.of(options))) > 0
"""


def test_reading_rows_loads_no_numba_pandas_or_s3fs() -> None:
    loaded = {top(name) for name in loaded_after(READING)}
    assert "segment_format" in loaded
    absent = {"numba", "llvmlite", "pandas", "s3fs", "sqlglot", "matplotlib"}
    assert loaded & absent == set()
