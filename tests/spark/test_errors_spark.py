"""Checks the errors that users see in Spark after a mistake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PythonException

from kts_source import TieredKafkaDataSource, register
from kts_source.errors import InvalidOptionError
from tests.golden_data import KEY_PREFIX, TIER, tier_options

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def load(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("tiered-kafka").options(**options).load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "codecs"}, "'path' is missing"),
        ({"path": str(TIER), "subscrib": "codecs"}, "did you mean 'subscribe'"),
        ({"path": str(TIER), "subscribe": "a", "subscribePattern": "b"}, "exactly one of"),
    ],
)
def test_invalid_options_raise_at_load(
    registered: SparkSession, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        load(registered, **options)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("ofset bigint", "did you mean 'offset'"),
        pytest.param(
            "offset int",
            "'offset' has type bigint, but the schema has type int",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "value string",
            "has type string: use the type of the column, or set value.format=utf8",
            marks=pytest.mark.slow,
        ),
        pytest.param("offset bigint, nosuch binary", "nosuch", marks=pytest.mark.slow),
        pytest.param("value binary not null", "NOT NULL", marks=pytest.mark.slow),
    ],
)
def test_invalid_schema_raises_analysis_exception(
    registered: SparkSession, schema: str, message: str
) -> None:
    frame = (
        registered.read.format("tiered-kafka")
        .options(**tier_options("codecs"))
        .schema(schema)
        .load()
    )
    with pytest.raises(AnalysisException, match=message):
        frame.count()


def test_unknown_topic_raises_at_planning(registered: SparkSession) -> None:
    frame = load(registered, **tier_options("codexx"))
    with pytest.raises(AnalysisException, match=r"no topic 'codexx'.*appendtime, codecs"):
        frame.count()


def test_corrupt_bytes_raise_error_with_location(registered: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(TIER, tmp_path / "tier")
    (log,) = (tmp_path / "tier" / KEY_PREFIX).glob("codecs-*/0/00000000000000000000-*.log")
    data = bytearray(log.read_bytes())
    data[300_000] ^= 0xFF
    log.write_bytes(data)
    options = {**tier_options("codecs"), "path": str(tmp_path / "tier")}
    with pytest.raises(PythonException) as error:
        load(registered, **options).count()
    text = str(error.value)
    for fragment in ("topic codecs", "partition 0", "offset", str(log), "byte"):
        assert fragment in text


@pytest.mark.slow
def test_data_source_is_found_without_register(tmp_path: Path) -> None:
    """Runs in a separate process, because registration changes the shared session and its JVM."""
    program = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
options = {tier_options("epochs")!r}
print("rows:", spark.read.format("tiered-kafka").options(**options).load().count())
spark.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "rows: 865" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("options", [tier_options("codecs"), {}], ids=["options", "no_options"])
def test_write_is_refused_as_read_only(registered: SparkSession, options: dict[str, str]) -> None:
    frame = registered.range(1).write.format("tiered-kafka").options(**options)
    with pytest.raises(
        AnalysisException, match=r"'tiered-kafka' is read-only.* kts_source\.backfill"
    ):
        frame.mode("append").save()


@pytest.mark.parametrize("method", ["writer", "streamWriter"])
def test_writer_is_refused_as_read_only(method: str) -> None:
    source = TieredKafkaDataSource(tier_options("codecs"))
    with pytest.raises(InvalidOptionError, match="is read-only"):
        getattr(source, method)(source.schema(), overwrite=False)


def test_create_table_names_temporary_views(registered: SparkSession) -> None:
    options = ", ".join(f"`{name}` '{text}'" for name, text in tier_options("codecs").items())
    with pytest.raises(AnalysisException, match="Use CREATE TEMPORARY VIEW") as caught:
        registered.sql(f"CREATE TABLE codecs USING `tiered-kafka` OPTIONS ({options})")
    assert "often used are" not in str(caught.value)
