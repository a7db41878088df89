"""Runs every Python and shell example of README and docs, each page in a separate folder."""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.cli.demo import sample_folder, write_shop
from tests.docs import sample_tier
from tests.docs.checks import CHECKS
from tests.docs.fences import EXECUTED, PAGES, PYTHON, SHOWN, Block, blocks
from tests.docs.shell import run_shell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.s3 import S3Server

WITH_OUTPUT = (
    "audit.md",
    "cli.md",
    "cost.md",
    "find.md",
    "from-console-consumer.md",
    "getting-started.md",
    "index.md",
    "operations.md",
    "troubleshooting.md",
    "where.md",
)
"""Pages whose `text` blocks are the output of the examples before them, except commands (`$ …`)."""
VARYING = re.compile(r"[\d.,]+ (B|bytes|[KMG]iB|minutes|hours|days|years)\b")
BUCKETS = ("bucket", "mirror", "lake")


def _has_examples(page: Path) -> bool:
    return any(block.language in EXECUTED for block in blocks(page))


def _needs_spark(page: Path) -> bool:
    return any(block.needs_spark for block in blocks(page))


WITH_SPARK = [page for page in PAGES if _has_examples(page) and _needs_spark(page)]
WITHOUT_SPARK = [page for page in PAGES if _has_examples(page) and not _needs_spark(page)]


@pytest.fixture(scope="session")
def filled(s3_server: S3Server) -> S3Server:
    """Creates the buckets that the examples use and copies the sample tier into two of them."""
    for bucket in BUCKETS:
        s3_server.make_bucket(bucket)
    for bucket in ("bucket", "mirror"):
        for key, data in sample_tier.objects().items():
            s3_server.put(bucket, key, data)
    return s3_server


@pytest.fixture
def aws(filled: S3Server) -> dict[str, str]:
    """Returns AWS environment variables that make clients use the test server."""
    return {
        "AWS_ENDPOINT_URL": filled.endpoint,
        "AWS_ACCESS_KEY_ID": filled.access_key,
        "AWS_SECRET_ACCESS_KEY": filled.secret_key,
        "AWS_REGION": filled.region,
        "AWS_DEFAULT_REGION": filled.region,
        "AWS_ALLOW_HTTP": "true",  # delta-rs
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture(scope="session")
def demo_tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes the tier of `kts demo`, which many examples read."""
    folder = tmp_path_factory.mktemp("demo") / "tier"
    write_shop(folder)
    return folder


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws: dict[str, str], demo_tier: Path
) -> Callable[[Path, dict[str, Any]], None]:
    """Returns a function that runs all examples of a page in order.

    The Python examples of a page share their variables.
    """
    for name, value in aws.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key1.pem").write_bytes(sample_tier.PRIVATE_KEY)
    for key, data in sample_tier.objects().items():
        path = tmp_path / "tier" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    sample_folder().parent.mkdir()
    sample_folder().symlink_to(demo_tier)

    def run_page(page: Path, names: dict[str, Any]) -> None:
        namespace = {"__name__": "__main__", **names}
        output = ""
        for block in blocks(page):
            if block.language == PYTHON:
                output = _run_python(page, block, namespace)
                continue
            if block.language in EXECUTED:
                output = run_shell(block.text, tmp_path, monkeypatch)
                continue
            if output and page.name in WITH_OUTPUT and not block.text.startswith("$ "):
                _check_output(page, block, output)
            output = ""
        for check in CHECKS.get(page.name, ()):
            assert eval(check, namespace), f"{page.name}: {check}"

    return run_page


def _check_output(page: Path, block: Block, output: str) -> None:
    """Compares the output of an example with the text block after it. `…` stands for any text.

    Ignores sizes, which depend on the version of zstd, and ages.
    """
    expected, actual = (
        " ".join(VARYING.sub("VARYING", text).split()) for text in (block.text, output)
    )
    pattern = re.escape(expected).replace("…", ".*?")
    assert re.fullmatch(pattern, actual), f"{page.name}:{block.line}: the output is {output}"


def _run_python(page: Path, block: Block, namespace: dict[str, Any]) -> str:
    """Runs a Python block so that tracebacks and `inspect` show line numbers of the page. Returns
    the printed text.
    """
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), namespace)
    return output.getvalue()


@pytest.mark.s3
@pytest.mark.parametrize("page", WITHOUT_SPARK, ids=lambda page: page.name)
def test_examples_run_without_spark(
    page: Path, run: Callable[[Path, dict[str, Any]], None]
) -> None:
    run(page, {})


def _with_options(load: Any, options: Mapping[str, str]) -> Any:  # noqa: ANN401
    return lambda reader, *arguments, **keywords: load(
        reader.options(**options), *arguments, **keywords
    )


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("page", WITH_SPARK, ids=lambda page: page.name)
def test_examples_run_with_spark(
    page: Path,
    run: Callable[[Path, dict[str, Any]], None],
    spark: SparkSession,
    aws: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark.sql import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

    # Python workers of Spark get their variables from this mapping.
    for name, value in {**aws, "HOME": os.environ["HOME"]}.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    # Streams, and batch queries after them, are planned in a process that inherits the environment
    # of the JVM. The JVM started before these variables existed, so pass the path without `~`.
    if page.name == "streaming.md":
        located = {"path": str(sample_folder())}
        for kind in (DataFrameReader, DataStreamReader):
            monkeypatch.setattr(kind, "load", _with_options(kind.load, located))
    before = spark.conf.getAll
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            run(page, {"spark": spark})
    finally:
        # Other tests use the same session.
        _restore(spark, before)


def _restore(spark: SparkSession, before: Mapping[str, str]) -> None:
    """Resets the Spark settings to `before`, their values before the examples of a page ran."""
    for name in spark.conf.getAll.keys() - before.keys():
        spark.conf.unset(name)
    for name, value in before.items():
        if spark.conf.get(name, None) != value:
            spark.conf.set(name, value)


def test_every_fence_has_a_known_language() -> None:
    unknown = [
        f"{page.name}:{block.line}: {block.language!r}"
        for page in PAGES
        for block in blocks(page)
        if block.language not in (*EXECUTED, *SHOWN)
    ]
    assert unknown == []


def test_every_page_with_examples_is_executed() -> None:
    executed = {*WITH_SPARK, *WITHOUT_SPARK}
    assert [
        page.name
        for page in PAGES
        if page not in executed and ("```python" in page.read_text() or "```sh" in page.read_text())
    ] == []
    assert len(executed) > 5


def test_failing_example_of_a_page_raises_assertion_error(
    tmp_path: Path, run: Callable[[Path, dict[str, Any]], None]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError):
        run(page, {})
    page.write_text("```sh\nkts topics nowhere\n```\n")
    with pytest.raises(AssertionError, match="kts topics nowhere returned"):
        run(page, {})


@pytest.mark.parametrize(
    "text", ["    x = 1\n", "```python\nx = 1\n", "~~~python\nx = 1\n~~~\n", " ```\n ```\n"]
)
def test_page_with_invalid_fence_raises_value_error(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=r"page\.md:[12]"):
        blocks(page)
