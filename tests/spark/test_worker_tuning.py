"""Tests that reused workers do not repeat expensive steps.

Runs separate processes whose `pyspark` is in the archive that Spark puts on its workers' path.
"""

from __future__ import annotations

import gc
import importlib.machinery
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark.sql.datasource import InputPartition

from kts_source.options import parse_options
from kts_source.spark import jobs
from kts_source.spark import readers as batch_reader
from kts_source.spark import readers as task_rows
from kts_source.spark import worker as worker_tuning
from tests.golden_data import tier_options

if TYPE_CHECKING:
    from kts_source.export.task import TaskReport

ROOT = Path(__file__).parents[2]
ARCHIVES = sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip"))

PROGRAM = """
import importlib, sys, zipimport

import pyspark
assert "pyspark.zip" in pyspark.__file__
import pyspark.sql.types
import added_by_the_user

def archives():
    found = sys.path_importer_cache.values()
    return {each.archive for each in found if isinstance(each, zipimport.zipimporter)}

from kts_source.spark import worker as worker_tuning
from kts_source.spark.worker import forget_archive_finders

worker_tuning._rereads_archives = lambda *_: True
assert len(archives()) == 3, archives()
forget_archive_finders()
(left,) = archives()
assert left.endswith("user.zip"), left

read = []
original = zipimport._read_directory
zipimport._read_directory = lambda archive: read.append(archive) or original(archive)
importlib.invalidate_caches()
assert set(read) <= {left}, read  # later Pythons read again when they need it
import pyspark.sql.avro, py4j.version  # found as before
assert pyspark.sql.avro.__file__.startswith(pyspark.__loader__.archive)
print("fine")
"""


@pytest.mark.skipif(not ARCHIVES, reason="this pyspark contains no archive")
def test_import_finders_of_spark_archives_are_removed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "user.zip", "w") as file:
        file.writestr("added_by_the_user.py", "")
    # First on the path, as in Spark.
    path = os.pathsep.join(map(str, [*ARCHIVES, tmp_path / "user.zip", ROOT]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "fine\n", done.stderr


def test_import_finders_are_kept_if_pyspark_is_a_folder() -> None:
    program = """
import sys
import pyspark.sql.types
from kts_source.spark import worker as worker_tuning
from kts_source.spark.worker import forget_archive_finders

worker_tuning._rereads_archives = lambda *_: True
before = dict(sys.path_importer_cache)
forget_archive_finders()
assert before and sys.path_importer_cache == before
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize(
    ("spark", "python", "expected"),
    [
        ("4.0.1", (3, 11), True),
        ("4.0.1", (3, 12), True),
        ("4.0.1", (3, 13), False),  # the next import from an archive reads it
        ("4.1.1", (3, 11), False),
        ("3.5.6", (3, 11), False),
        ("5.0.0", (3, 11), False),
    ],
)
def test_archives_are_read_again_only_with_known_versions(
    spark: str, python: tuple[int, int], expected: bool
) -> None:
    assert worker_tuning._rereads_archives(spark, python) == expected


@pytest.fixture
def collector_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the calls to the garbage collector instead of executing them."""
    calls: list[str] = []
    for name in ("disable", "freeze", "unfreeze", "collect"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(worker_tuning, "_modules_frozen", 0)
    return calls


def _simulate_worker(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    spec = importlib.machinery.ModuleSpec(module, None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)


def _run_task() -> None:
    with worker_tuning.garbage_collection_paused():
        pass
    worker_tuning.end_task()


@pytest.mark.parametrize("daemon", ["pyspark.daemon", "kts_source.spark.daemon"])
def test_worker_of_spark_controls_garbage_collector(
    monkeypatch: pytest.MonkeyPatch, collector_calls: list[str], daemon: str
) -> None:
    _simulate_worker(monkeypatch, daemon)
    _run_task()
    assert collector_calls == ["disable", "freeze", "unfreeze", "collect", "freeze"]


@pytest.mark.parametrize(
    ("module", "spark", "tuning"),
    [
        ("somebodys.server", "4.1.1", ""),  # another engine, the driver
        ("pyspark.daemon", "5.0.0", ""),
        ("pyspark.daemon", "4.1.1", "off"),
    ],
)
def test_unknown_process_does_not_control_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
    collector_calls: list[str],
    module: str,
    spark: str,
    tuning: str,
) -> None:
    _simulate_worker(monkeypatch, module)
    monkeypatch.setattr(pyspark, "__version__", spark)
    monkeypatch.setenv("KTS_TUNING", tuning)
    _run_task()
    assert collector_calls == []


class _Failing:
    number = 0

    def run(self, job: object) -> TaskReport:
        raise OSError("broken")


def test_end_task_is_called_after_task_fails_or_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(jobs, "end_task", lambda: ended.append("export"))
    monkeypatch.setattr(task_rows, "end_task", lambda: ended.append("scan"))
    job: Any = object()
    rows = jobs.ExportReader((), job).read(InputPartition(_Failing()))
    with pytest.raises(OSError, match="broken"):
        next(rows)
    scan = batch_reader.TieredKafkaBatchReader(parse_options(tier_options("codecs")))
    (partition, *_) = scan.partitions()
    rows = scan.read(partition)
    next(rows)
    rows.close()  # type: ignore[attr-defined]  # a generator
    assert ended == ["export", "scan"]
