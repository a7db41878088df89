"""Tests that the docs are complete and agree with the code and the benchmark results.

The docs must name every error class, flag and public name. Link anchors must match headings.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import tomllib
from typing import TYPE_CHECKING, is_typeddict

import pytest

import kts_source
import segment_format
from kts_source.cli.app import all_commands
from kts_source.errors import TieredKafkaError
from kts_source.export.settings import ExportArguments
from segment_format.errors import SegmentFormatError
from tests.docs.fences import PAGES, ROOT
from tools.api_pages import names_of
from tools.update_docs import own_flags

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import ModuleType

    import click

DOCS = ROOT / "docs"
PEER = "against Spark's Kafka source"
CPU = "processor time of Spark's Kafka source's and its broker's"
HOT = "brokers only"
CLIENT = "brokers → Arrow without Spark, against confluent-kafka → Arrow, by core"
LIMIT = "limit(10) of 100 GiB, 60 ms away, warm Spark, after planning"
PACKAGES = (ROOT / "kts_source", ROOT / "segment_format")


def _page(name: str) -> str:
    return (DOCS / name).read_text()


def _error_classes() -> set[str]:
    """Returns the names of all error classes that the source text of the product defines.

    `__subclasses__` would miss the classes of modules that this process has not imported.
    """
    bases = {"TieredKafkaError", "SegmentFormatError"}
    names = set(bases)
    texts = [path.read_text() for package in PACKAGES for path in package.rglob("*.py")]
    classes = [
        (match["name"], {base.strip() for base in match["bases"].split(",")})
        for text in texts
        for match in re.finditer(r"^class (?P<name>\w+)\((?P<bases>[^)]*)\)", text, re.MULTILINE)
    ]
    while derived := {name for name, parents in classes if parents & names} - names:
        names |= derived
    return names


# The product catches these errors itself; users see only errors of their base class.
INTERNAL_ERRORS = {"ContradictedIntervalsError"}


def test_troubleshooting_page_has_one_entry_per_error_class() -> None:
    entries = re.findall(r"^### `(\w+)`$", _page("troubleshooting-reference.md"), re.MULTILINE)
    assert len(entries) == len(set(entries))
    assert _error_classes() - set(entries) == INTERNAL_ERRORS
    assert set(entries) <= _error_classes()


def test_error_classes_found_in_source_text_include_all_importable_ones() -> None:
    for module, root in (
        ("kts_source.errors", TieredKafkaError),
        ("segment_format.errors", SegmentFormatError),
    ):
        defined = inspect.getmembers(importlib.import_module(module), inspect.isclass)
        assert {name for name, value in defined if issubclass(value, root)} <= _error_classes()


def _flags(parameters: Iterable[click.Parameter]) -> set[str]:
    """Returns all spellings of flags that begin with `--`."""
    return {
        flag
        for parameter in parameters
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("--")
    }


@pytest.mark.parametrize("name", sorted(all_commands()))
def test_cli_page_contains_every_flag(name: str) -> None:
    page = _page("cli.md")
    sections = re.split(r"^## ", page, flags=re.MULTILINE)
    (section,) = [text for text in sections if text.startswith(f"`kts {name}`\n")]
    named = set(re.findall(r"(--[a-z][\w-]*)", section))
    assert _flags(own_flags(all_commands()[name])) <= named
    known = {flag for command in all_commands().values() for flag in _flags(command.params)}
    assert named <= known


@pytest.mark.parametrize("package", [kts_source, segment_format])
def test_api_pages_contain_every_public_name(package: ModuleType) -> None:
    shown = [name for page in (DOCS / "api").glob("*.md") for name in names_of(page)]
    assert len(shown) == len(set(shown))
    assert {f"{package.__name__}.{name}" for name in package.__all__} <= set(shown)


def _described_names(section: str) -> set[str]:
    return {name.lstrip("*") for name in re.findall(r"^\| `([*\w]+)` \|", section, re.MULTILINE)}


@pytest.mark.parametrize("page", sorted((DOCS / "api").glob("*.md")), ids=lambda page: page.name)
def test_api_page_describes_every_argument_and_field(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"^#+ .*__\w+__`$", text, re.MULTILINE)
    for name in names_of(page):
        module, _, attribute = name.rpartition(".")
        value = getattr(importlib.import_module(module), attribute)
        section = text.partition(f"<!-- {name}:begin -->")[2].partition(f"<!-- {name}:end -->")[0]
        described = _described_names(section)
        if is_typeddict(value) or getattr(value, "_is_protocol", False):
            wanted = set(value.__annotations__)
        elif dataclasses.is_dataclass(value):
            wanted = {each.name for each in dataclasses.fields(value) if each.name[0] != "_"}
        else:
            parameters = inspect.signature(value).parameters.values()
            wanted = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
        assert wanted <= described, name


def test_api_page_of_exports_gives_a_meaning_for_every_argument_of_backfill() -> None:
    section = _page("api/exports.md").partition("<!-- kts_source.backfill:end -->")[0]
    assert ExportArguments.__annotations__.keys() <= _described_names(section)
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert all(re.search(r"\| [^|]*\w[^|]* \|$", row.replace("\\|", "")) for row in rows)
    assert "| `progress` | `bool` | `True` | True to show the progress on stderr." in section


@pytest.mark.parametrize(
    ("row", "page", "text"),
    [
        ("100 B records, all columns |", "performance.md", "{} million records a second"),
        ("1000 B records, all columns |", "performance.md", "{} GB a second"),
        (f"{PEER}, data in the tier, 100 B, all columns", "performance.md", "{} × as fast"),
        (f"{CPU}, 100 B, all columns", "performance.md", "{} of the processor time"),
        (f"{PEER}, data in the tier, 1000 B, all columns", "performance.md", "{} × as fast"),
        (f"{CPU}, 1000 B, all columns", "performance.md", "{} of the processor time"),
        (f"{PEER}, 100 B → zstd Parquet<br>", "performance.md", "{} × as fast"),
        (f"{HOT}, against Spark's Kafka source, 100 B", "performance.md", "{} × as fast"),
        (f"{HOT}, against Spark's Kafka source, 100 B", "brokers.md", "{} × as fast"),
        (
            f"{HOT}, processor time of Spark's Kafka source's",
            "performance.md",
            "{} of the processor",
        ),
        (f"{CLIENT}, 100 B, codec none", "performance.md", "{} × and"),
        (f"{CLIENT}, 100 B, zstd batches", "performance.md", "and {} × as fast"),
        ("cold plan |", "performance.md", "{} s and"),
        ("warm plan |", "performance.md", "and {} s"),
        ("columns=offset against all columns, 100 B<br>", "performance.md", "{} × as fast as all"),
        (f"{LIMIT}, a worker that has read before of pyspark", "performance.md", "takes {} s"),
        (f"{LIMIT}, a new worker of kts_source", "performance.md", "and {} s in a new worker"),
        ("100 B records, all columns |", "../README.md", "{} million records of 100 bytes"),
        (f"{PEER}, data in the tier, 100 B, all columns", "../README.md", "{:.0f} times as fast"),
        (f"{CPU}, 100 B, all columns", "../README.md", "{:.1f} of the processor time"),
        *(
            (f"task's process, {size} B records, prefetchBytes={mib}m: peak memory |", page, cell)
            for mib in (8, 32, 128)
            for size, page, cell in (
                (100, "operations.md", f"| `{mib}m`{' (default)' * (mib == 128)} | {{}} MiB |"),
                (1000, "operations.md", "MiB | {} MiB |"),
            )
        ),
        ("export, 1000 B records, codec none: peak memory", "operations.md", "reaches {} MiB"),
    ],
)
def test_documented_speeds_match_benchmark_results(row: str, page: str, text: str) -> None:
    pages = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    results = "\n".join(page.read_text() for page in pages)
    match = re.search(rf"^\| {re.escape(row)}.*?\| (?P<figure>[\d.]+) ", results, re.MULTILINE)
    if match is None:  # the label itself ends with `|`
        match = re.search(rf"^\| {re.escape(row)} (?P<figure>[\d.]+) ", results, re.MULTILINE)
    assert match is not None, f"no page of results has a row {row!r}"
    figure = float(match["figure"]) if ":" in text else match["figure"]
    words = " ".join(_page(page).split())
    assert text.format(figure) in words


def test_capacity_on_paper_uses_measured_cost_of_scans_over_tls() -> None:
    results = (ROOT / "benchmarks" / "results" / "tls_s3.md").read_text()
    measured = re.findall(r"JVM and Python: (\d+) ns a record over TLS", results)
    stated = re.findall(r"([\d,]+) ns a\s+record of", _page("capacity.md"))
    assert len(measured) == 2
    assert [float(figure.replace(",", "")) for figure in stated] == pytest.approx(
        [float(figure) for figure in measured], rel=0.1
    )


def test_each_platform_has_page_and_package_list() -> None:
    lists = {path.name.split("-")[0] for path in (ROOT / "tests" / "platforms").glob("*.txt")}
    assert {page.stem for page in (DOCS / "platforms").glob("*.md")} == lists


def test_navigation_lists_every_page() -> None:
    document = tomllib.loads((ROOT / "zensical.toml").read_text())
    names = set(re.findall(r"[\w/-]+\.md", str(document["project"]["nav"])))
    assert names == {path.relative_to(DOCS).as_posix() for path in PAGES if DOCS in path.parents}


def test_pages_load_nothing_from_other_servers() -> None:
    loading = re.compile(r"<(script|img|link|iframe)\b|!\[[^]]*\]\(https?:", re.IGNORECASE)
    assert [
        path.name
        for path in DOCS.rglob("*")
        if path.suffix == ".md" and loading.search(path.read_text())
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_link_anchors_match_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([\w.-]+)\)", page.read_text()):
        other = (page.parent / target).read_text() if target else page.read_text()
        headings = re.findall(r"^#+ (.+)$", other, re.MULTILINE)
        slugs = set(re.findall(r'<a id="([\w.]+)">', other)) | {
            re.sub(r"[^\w\s-]", "", text).strip().lower().replace(" ", "-") for text in headings
        }
        assert anchor in slugs, f"{page.name}: {target}#{anchor}"


def test_pages_name_no_wheel_without_compiled_kernels() -> None:
    assert not [page for page in PAGES if "py3-none-any" in page.read_text()]


def test_options_page_shows_the_error_of_an_unknown_option() -> None:
    match = re.search(r"^InvalidOptionError: (.*)$", _page("options.md"), re.MULTILINE)
    assert match is not None
    with pytest.raises(TieredKafkaError, match=f"^{re.escape(match[1])}$"):
        kts_source.scan("tier", subscribe="orders", startingOffset="earliest")


def test_getting_started_lists_exactly_the_extras_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (table,) = re.findall(r"^\| Extra \|.*?\n\n", _page("getting-started.md"), re.M | re.S)
    cells = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(project["optional-dependencies"])
    others = [page.name for page in DOCS.glob("*.md") if "\n| Extra |" in page.read_text()]
    assert others == ["getting-started.md"]


def test_help_of_the_package_names_every_function_and_module() -> None:
    text = inspect.getdoc(kts_source) or ""
    functions = {name for name in kts_source.__all__ if name.islower()}
    assert functions <= set(re.findall(r"\w+", text))
    for name in ("errors", "export", "metrics", "secret", "streaming"):
        assert f"`{name}`" in text
        assert getattr(kts_source, name) is importlib.import_module(f"kts_source.{name}")
