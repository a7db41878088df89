"""Tests the error of workers whose Python does not have the package installed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import py4j
import pyspark
import pytest
from pyspark import cloudpickle

from kts_source.spark.datasource import TieredKafkaDataSource
from kts_source.spark.jobs import ExportReader, export_data_source
from kts_source.spark.readers import TieredKafkaBatchReader
from tests.quick import sample

ROOT = Path(__file__).resolve().parents[2]
ADVICE = "set PYSPARK_PYTHON to the path of a Python that has it"

SESSION = """
import os, sys
from pyspark.sql import SparkSession
from kts_source import backfill, register
from tests.golden_data import tier_options
from tests.quick import sample

os.environ["PYTHONPATH"] = sys.argv[3]  # Spark passes it to its workers
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
try:
    if sys.argv[1] == "scan":
        register(spark)
        spark.read.format("tiered-kafka").options(**tier_options("epochs")).load().count()
    else:
        backfill(spark, source=tier_options("epochs"), target=sys.argv[2], progress=False)
except Exception as error:
    print(error)
else:
    print("no error")
spark.stop()
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates an interpreter of the same version without packages."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    return home / "bin" / "python"


@pytest.mark.parametrize(
    "pickled_object",
    [
        TieredKafkaDataSource,
        TieredKafkaBatchReader,
        ExportReader((), None),
        export_data_source("export", (), None),
    ],
    ids=["source", "reader", "export reader", "export"],
)
def test_unpickling_without_package_raises_error_with_advice(
    bare_python: Path, tmp_path: Path, pickled_object: object
) -> None:
    for package in (pyspark, py4j):
        assert package.__file__ is not None
        (tmp_path / package.__name__).symlink_to(Path(package.__file__).parent)
    (tmp_path / "pickled").write_bytes(cloudpickle.dumps(pickled_object))  # type: ignore[no-untyped-call]
    program = (
        "import pickle; found = pickle.load(open('pickled', 'rb'));"
        " found({}).schema() if isinstance(found, type) else None"
    )
    done = subprocess.run(
        [bare_python, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ModuleNotFoundError: No module named 'kts_source': Spark runs its" in done.stderr
    assert f"Python workers with {bare_python} (Python 3." in done.stderr
    assert ADVICE in done.stderr


def test_pickled_class_unpickles_to_itself_where_package_is_installed() -> None:
    for pickled_class in (TieredKafkaDataSource, TieredKafkaBatchReader, ExportReader):
        data: bytes = cloudpickle.dumps(pickled_class)  # type: ignore[no-untyped-call]
        assert pickle.loads(data) is pickled_class


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "python_path", "missing"),
    sample(
        2,
        [
            (command, python_path, missing)
            for command in ("scan", "backfill")
            for python_path, missing in (("", "kts_source"), (str(ROOT), ""))
        ],
    ),
)
def test_spark_reports_missing_package(
    bare_python: Path, tmp_path: Path, command: str, python_path: str, missing: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SESSION, command, str(tmp_path / "lake"), python_path],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": str(bare_python), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"No module named '{missing}" in done.stdout, done.stderr
    assert f"Python workers with {bare_python} (Python 3." in done.stdout
    assert ADVICE in done.stdout
    assert not (tmp_path / "lake").exists() or not list((tmp_path / "lake").glob("*.parquet"))


@pytest.mark.parametrize("configured", [None, "/opt/python"])
def test_session_builder_sets_interpreters(
    monkeypatch: pytest.MonkeyPatch, configured: str | None
) -> None:
    from kts_source.spark.datasource import session_builder

    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # monkeypatch restores it at the end
        monkeypatch.delenv(name)
    if configured is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", configured)
    session_builder()
    assert os.environ["PYSPARK_PYTHON"] == (configured or sys.executable)
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
