"""Tests the behavior with a Spark version without Python data sources (EMR 7, Glue 5).

The fake PySpark has a version and no module `pyspark.sql.datasource`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_data import expected_table, tier_options

ROOT = Path(__file__).resolve().parents[2]
REFUSAL = (
    "Spark 3.5.6 has no Python data sources; they need Spark 4.0 or later."
    " The command `kts` and backfill(None, ...) need no Spark"
)


@pytest.fixture
def old_spark(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "old" / "pyspark" / "sql").mkdir(parents=True)
    (tmp_path / "old" / "pyspark" / "__init__.py").write_text('__version__ = "3.5.6"\n')
    (tmp_path / "old" / "pyspark" / "cloudpickle.py").touch()
    (tmp_path / "old" / "pyspark" / "sql" / "__init__.py").touch()
    (tmp_path / "old" / "pyspark" / "sql" / "types.py").write_text(
        "IntegerType = StringType = StructField = StructType = None\n"
    )
    path = os.pathsep.join([str(tmp_path / "old"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


def run(old_spark: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env=old_spark, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "expression",
    [
        "kts_source.register",
        "kts_source.TieredKafkaDataSource",
        "kts_source.backfill(object(), source={'path': '/x'}, target='/y')",
    ],
)
def test_old_spark_is_refused_with_a_reason(old_spark: dict[str, str], expression: str) -> None:
    done = run(old_spark, "-c", f"import kts_source; {expression}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"kts_source.errors.UnsupportedSparkError: {REFUSAL}"


def test_command_refuses_old_spark_before_it_starts(old_spark: dict[str, str]) -> None:
    done = run(
        old_spark, "-m", "kts_source.cli", "export", "orders", "/y", "--spark", "--path", "/x"
    )
    assert done.returncode != 0
    assert REFUSAL in done.stderr
    assert "Traceback" not in done.stderr


def test_backfill_without_spark_session_succeeds_if_old_spark_is_installed(
    old_spark: dict[str, str], tmp_path: Path
) -> None:
    program = (
        "import json, sys, kts_source\n"
        "if __name__ == '__main__':\n"
        "    report = kts_source.backfill(\n"
        "        None, source=json.loads(sys.argv[1]), target=sys.argv[2], progress=False)\n"
        "    print(report)\n"
    )
    script = tmp_path / "export.py"
    script.write_text(program)
    options = json.dumps(tier_options("epochs"))
    done = run(old_spark, str(script), options, str(tmp_path / "lake"))
    assert f"{expected_table('epochs', 'read_uncommitted').num_rows:,} rows" in done.stdout, (
        done.stderr
    )
    assert list((tmp_path / "lake").glob("*.parquet"))
