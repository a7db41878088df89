"""Tests the repository: texts, file sizes, dependencies, golden files and test suites."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.options import OPTIONS
from tools import update_docs

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
README = ROOT / "README.md"

MAX_LINES = 800
MAX_FUNCTION_LINES = 60
KERNELS = {"kernel", "helper", "inlined", "instruction"}
"""Decorators of compiled functions, see `segment_format/kernels/compiled.py`."""

MAX_GOLDEN_BYTES = 30 << 20

# Files must not name paths outside the repository. The paths are split so that this file passes.
FOREIGN_TEXT = re.compile(
    "|".join([r"\.\./" + "shared", r"/wo" + r"rk/", r"/ro" + r"ot/", r"/tmp" + "/plan"])
)
MAY_NAME_PATHS = {"requirements.lock"}


def tracked_files() -> list[str]:
    """Returns the paths of all tracked files, relative to the root."""
    run = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return [name for name in run.stdout.split("\0") if name and (ROOT / name).exists()]


TRACKED = tracked_files()
PYTHON_FILES = [name for name in TRACKED if name.endswith(".py")]


def text_of(name: str) -> str | None:
    """Returns the text of the tracked file `name`, or None if the file is binary."""
    data = (ROOT / name).read_bytes()
    if b"\0" in data[:8192]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def test_files_name_no_paths_outside_repository() -> None:
    matches = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name in TRACKED
        if name not in MAY_NAME_PATHS
        for number, line in enumerate((text_of(name) or "").splitlines(), 1)
        if FOREIGN_TEXT.search(line)
    ]
    assert matches == []


def test_modules_have_at_most_max_lines() -> None:
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in PYTHON_FILES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields all statements below a node, without their expressions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def long_functions(source: str) -> list[str]:
    """Returns the names of functions with more than `MAX_FUNCTION_LINES` lines, except kernels."""
    return [
        function.name
        for function in statements(ast.parse(source))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and (function.end_lineno or 0) - function.lineno >= MAX_FUNCTION_LINES
        and not KERNELS & {ast.unparse(each).partition("(")[0] for each in function.decorator_list}
    ]


def test_long_functions_returns_only_non_kernels_above_the_limit() -> None:
    def text(decorator: str, lines: int) -> str:
        return f"{decorator}\ndef work():\n" + "    pass\n" * (lines - 1)

    assert long_functions(text("", 61)) == ["work"]
    assert long_functions(text("@property", 61)) == ["work"]
    assert long_functions(text("", 60)) == []
    assert long_functions(text("@helper", 61)) == []
    assert long_functions(text("@kernel", 61)) == []


def test_functions_have_at_most_max_function_lines() -> None:
    names = {name: long_functions((ROOT / name).read_text()) for name in PYTHON_FILES}
    assert {name: functions for name, functions in names.items() if functions} == {}


def requirement_lines() -> list[str]:
    """Returns the lines of pyproject.toml that name a dependency."""
    return [
        line
        for line in PYPROJECT.read_text().splitlines()
        if re.match(r'\s+"[A-Za-z0-9._-]+(\[[^]]+\])?\s*[<>=~!]', line)
    ]


def direct_requirements() -> list[str]:
    """Returns all requirements in pyproject.toml, including extras and groups."""
    document = tomllib.loads(PYPROJECT.read_text())
    extras = document["project"]["optional-dependencies"]
    return [
        *document["project"]["dependencies"],
        *itertools.chain.from_iterable(extras[name] for name in extras if name != "all"),
        *(
            entry
            for group in document["dependency-groups"].values()
            for entry in group
            if isinstance(entry, str)
        ),
    ]


def direct_dependencies() -> dict[str, str]:
    """Returns the requirement text of each direct dependency, by normalized package name."""
    return {normalize(re.split(r"[\[<>=~!; ]", text)[0]): text for text in direct_requirements()}


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_has_a_comment_with_its_reason() -> None:
    lines = requirement_lines()
    assert len(lines) == len(direct_requirements())
    assert [line for line in lines if not re.search(r'",?\s+# \S.{9,}', line)] == []


def test_extra_named_all_contains_every_extra_for_users() -> None:
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    (text,) = extras["all"]
    match = re.fullmatch(r"tiered-kafka\[(.*)\]", text)
    assert match is not None
    # A runtime of Java, Ray and a compiler are large, and most users have no use for them.
    assert sorted(match[1].split(",")) == sorted(extras.keys() - {"all", "jdk", "ray", "jit"})
    assert "fuzz" not in extras


LARGE = {"ray"}
"""Dependencies that are not installed in every checkout, but pinned for the suite that needs
them.
"""
ENGINES = ROOT / ".ci" / "engines.txt"


def read_lock() -> dict[str, dict[str, int]]:
    """Returns the number of hashes (one per platform) for each locked name and version."""
    hashes: dict[str, dict[str, int]] = {}
    name = version = ""
    for line in LOCK.read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)(\[[^]]+\])?==(\S+)", line):
            name, version = normalize(match[1]), match[3]
            hashes.setdefault(name, {})[version] = 0
        elif "--hash=sha256:" in line:
            hashes[name][version] += 1
    return hashes


def test_lock_pins_every_direct_dependency_with_hashes() -> None:
    from packaging.requirements import Requirement  # comes with pytest

    pinned = read_lock()
    for name, text in direct_dependencies().items():
        if name in LARGE:
            assert re.search(rf"^{name}(\[.*\])?==", ENGINES.read_text(), re.MULTILINE), name
            continue
        assert name in pinned, f"{name} is not locked: run `make lock`"
        fitting = [Requirement(text).specifier.contains(version) for version in pinned[name]]
        assert any(fitting), f"{text} is locked at {', '.join(pinned[name])}"
    assert [name for name, versions in pinned.items() if 0 in versions.values()] == []


def test_oldest_tested_spark_is_the_lower_bound_in_pyproject() -> None:
    text = (ROOT / ".ci" / "spark40.txt").read_text()
    pin = re.search(r"^pyspark==(\S+) ", text, re.MULTILINE)
    assert pin is not None
    requirement = direct_dependencies()["pyspark"]
    assert pin[1].startswith(re.split(">=|,", requirement)[1] + ".")


def test_golden_files_are_tracked() -> None:
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for folder in ("golden", "golden44")
        for path in (ROOT / "tests" / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    tracked = {name for name in TRACKED if name.startswith(("tests/golden/", "tests/golden44/"))}
    assert on_disk - tracked == set()
    # Global ignore rules often contain `.log` and `.pem`.
    suffixes = {Path(name).suffix for name in tracked}
    assert {".log", ".pem", ".indexes", ".rsm-manifest", ".parquet"} <= suffixes


def test_golden_files_are_at_most_max_bytes() -> None:
    total = sum(
        (ROOT / name).stat().st_size for name in TRACKED if name.startswith("tests/golden/")
    )
    assert total < MAX_GOLDEN_BYTES


def test_objects_of_golden_manifests_exist() -> None:
    tier = ROOT / "tests" / "golden" / "tier"
    manifests = sorted(tier.rglob("*.rsm-manifest"))
    assert len(manifests) > 100
    assert [
        str(manifest.relative_to(tier))
        for manifest in manifests
        for suffix in (".log", ".indexes")
        if not manifest.with_suffix(suffix).is_file()
    ] == []


def test_shell_scripts_are_executable() -> None:
    scripts = [
        name
        for name in TRACKED
        if (text_of(name) or "").startswith(("#!/usr/bin/env bash", "#!/bin/"))
    ]
    assert ".ci/run" in scripts
    assert "tools/with_java.sh" in scripts
    assert [name for name in scripts if not (ROOT / name).stat().st_mode & 0o100] == []


def marker_selections() -> list[str]:
    """Returns the `-m` expressions of `make test` and of every suite in `.ci/run`."""
    makefile = re.search(r"^UNIT := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert makefile is not None
    suites = re.findall(
        r'^ *(?:KTS_\w+=\S+ )?suite .*-m "([^"]+)"',
        (ROOT / ".ci" / "run").read_text(),
        re.MULTILINE,
    )
    assert len(suites) > 5
    return [makefile[1], *suites]


def test_every_marker_combination_belongs_to_a_suite() -> None:
    document = tomllib.loads(PYPROJECT.read_text())
    markers = [
        text.partition(":")[0] for text in document["tool"]["pytest"]["ini_options"]["markers"]
    ]
    selections = [compile(text, text, "eval") for text in marker_selections()]
    for marks in itertools.product([False, True], repeat=len(markers)):
        names = dict(zip(markers, marks, strict=True))
        assert any(eval(selection, {}, names) for selection in selections), names


def suite_folders() -> dict[str, list[str]]:
    """Returns the folders of the suites in `.ci/run` that run all tests with a marker, by marker.
    Excludes suites that name files.
    """
    text = (ROOT / ".ci" / "run").read_text().replace("\\\n", " ")
    suites = re.findall(
        r'^ *(?:KTS_\w+=\S+ )?suite .*-m "(?!not )(\w+)[^"]*" (.+)$', text, re.MULTILINE
    )
    return {
        marker: paths.split()
        for marker, paths in suites
        if not any(path.endswith(".py") or path.startswith("-") for path in paths.split())
    }


def test_suites_of_a_marker_name_all_folders_with_its_tests() -> None:
    folders = suite_folders()
    assert {"spark", "engines", "integration", "faults", "kills", "fuzz"} <= folders.keys()
    tests = [name for name in PYTHON_FILES if name.startswith("tests/")]
    missing = [
        (marker, name)
        for marker, paths in folders.items()
        for name in tests
        if re.search(rf"\bmark\.{marker}\b|\badd_marker\(\"{marker}\"\)", text_of(name) or "")
        and not name.startswith(tuple(f"{path}/" for path in paths))
    ]
    assert missing == []


def test_documented_options_match_the_option_table() -> None:
    for path in update_docs.PAGES:
        assert update_docs.renewed(path) == path.read_text(), "run `make docs`"
    page = (ROOT / "docs" / "options.md").read_text()
    names = [option.name for option in OPTIONS]
    assert all(page.count(f"\n| `{name}` |") == 1 for name in names)


@pytest.mark.parametrize(
    "name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
)
def test_targets_of_links_in_documents_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []
