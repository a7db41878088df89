"""Tests that imports point inward, from the Spark classes to reading and planning, and from there
to `segment_format`.

This module parses import statements; `test_loaded_modules.py` imports in an interpreter.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("segment_format", "kts_source")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

pytestmark = pytest.mark.xdist_group("imports")  # one process parses the modules for all tests

# Ring 0 converts bytes to values; it uses no files, network, processes or environment variables.
RING_0_THIRD_PARTY = {
    "numpy",
    "pyarrow",
    "numba",
    "llvmlite",
    "backports",
    "lz4",
    "google_crc32c",
    "cryptography",
}
RING_0_FORBIDDEN_STDLIB = {
    "asyncio",
    "ftplib",
    "glob",
    "http",
    "multiprocessing",
    "os",
    "pathlib",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "urllib",
}
NEW_IN_STDLIB = {"compression"}  # Python 3.14; earlier versions use a package instead
# Additional imports that modules of ring 0 may have, with the reasons.
RING_0_EXCEPTIONS: dict[str, tuple[set[str], str]] = {
    "segment_format.kernels.native": (
        {"os", "pathlib"},
        "reads the library of kernels, its sources and /proc/cpuinfo; os.environ: KTS_KERNELS;"
        " chooses the folder for machine code that numba compiles; no record data",
    ),
    "segment_format.reused_memory": ({"os"}, "os.getpid: no reuse of memory after a fork"),
    "segment_format.tuning": ({"os"}, "os.environ: KTS_TUNING"),
    "segment_format.testing.tiers": (
        {"os", "pathlib"},
        "writes tiers into folders, for tests; os.urandom: nonces and data keys",
    ),
}
# Optional packages, imported inside functions; they are not declared dependencies.
OPTIONAL: dict[str, tuple[set[str], str]] = {
    "kts_source.metrics": ({"matplotlib"}, "plots in notebooks"),
    "kts_source.engines.scan": ({"pandas"}, "converts rows to a pandas data frame"),
    "kts_source.broker.sasl": ({"gssapi"}, "Kerberos; there are no wheels for Linux"),
}
# Packages that are installed as dependencies of a declared dependency.
COMES_WITH = {
    "llvmlite": "numba",
    "aiobotocore": "s3fs",
    "botocore": "s3fs",
    "aiohttp": "s3fs",
    "py4j": "pyspark",
}

# `SPARK_RING` may import pyspark anywhere, `SPARK_INSIDE_FUNCTIONS` only inside functions.
SPARK_RING = "kts_source.spark"
SPARK_INSIDE_FUNCTIONS = ("kts_source.cli",)
LAZY_SPARK_MODULES = {"kts_source"}  # __getattr__ imports the data source


# Modules with functions that import other modules only on behalf of the caller.
FACES: dict[str, str] = {
    "kts_source": "`__getattr__` imports the module of a public name",
    "kts_source.export.report": "`BackfillReport.save_png` plots with another module",
}


class Import(NamedTuple):
    """One import of a name in a module.

    Attributes:
        importer: Module that contains the import.
        imported: Imported module.
        line: Line of the import.
        at_import_time: Whether the import runs when `importer` is imported.
        for_types_only: Whether only type checkers run the import.
    """

    importer: str
    imported: str
    line: int
    at_import_time: bool
    for_types_only: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[Import]:
    """Yields every import of a file. Relative imports keep their leading dots."""
    name = module_name(path)

    def walk(node: ast.AST, at_import_time: bool, for_types_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(name, alias.name, child.lineno, at_import_time, for_types_only)
            elif isinstance(child, ast.ImportFrom):
                target = "." * child.level + (child.module or "")
                for alias in child.names:
                    full = target
                    if child.level == 0 and is_module(f"{target}.{alias.name}"):
                        full = f"{target}.{alias.name}"
                    yield Import(name, full, child.lineno, at_import_time, for_types_only)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child, False, for_types_only)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for statement in child.body:
                    yield from walk(ast.Module([statement], []), at_import_time, True)
                for statement in child.orelse:
                    yield from walk(ast.Module([statement], []), at_import_time, for_types_only)
            elif not isinstance(child, ast.expr):
                yield from walk(child, at_import_time, for_types_only)

    yield from walk(ast.parse(path.read_text(), str(path)), True, False)


@functools.cache
def is_module(dotted: str) -> bool:
    """Returns whether a dotted name is a module of this repository."""
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def top(module: str) -> str:
    return module.split(".", 1)[0]


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


@functools.cache
def all_imports() -> list[Import]:
    """Returns the imports of all modules. The modules are parsed once, when the first test needs
    them.
    """
    return [entry for path in MODULES for entry in imports_of(path)]


def third_party(entry: Import) -> bool:
    name = top(entry.imported)
    return name not in {*sys.stdlib_module_names, *NEW_IN_STDLIB, *PACKAGES}


def exceptions_of(entry: Import) -> set[str]:
    return RING_0_EXCEPTIONS.get(entry.importer, (set(), ""))[0]


def optional_of(entry: Import) -> set[str]:
    return OPTIONAL.get(entry.importer, (set(), ""))[0]


def test_modules_and_imports_are_collected() -> None:
    names = {module_name(path) for path in MODULES}
    assert {"segment_format.errors", "kts_source"} <= names
    assert any(entry.imported == "segment_format.errors" for entry in all_imports())


def test_imports_are_absolute() -> None:
    assert [str(entry) for entry in all_imports() if entry.imported.startswith(".")] == []


def test_packages_do_not_import_tests_or_benchmarks() -> None:
    strangers = {"tests", "benchmarks", "notebooks", "pyspark_tiered_kafka"}
    assert [str(entry) for entry in all_imports() if top(entry.imported) in strangers] == []


def test_segment_format_imports_only_allowed_modules() -> None:
    wrong = [
        str(entry)
        for entry in all_imports()
        if within(entry.importer, "segment_format")
        and top(entry.imported) not in exceptions_of(entry)
        and (
            within(entry.imported, "kts_source")
            or top(entry.imported) in RING_0_FORBIDDEN_STDLIB
            or (third_party(entry) and top(entry.imported) not in RING_0_THIRD_PARTY)
        )
    ]
    assert wrong == []


def test_every_import_exception_of_segment_format_is_used() -> None:
    used = {(entry.importer, top(entry.imported)) for entry in all_imports()}
    listed = {
        (name, module) for name, (modules, _) in RING_0_EXCEPTIONS.items() for module in modules
    }
    assert {(name, module) for name, module in listed if is_module(name)} - used == set()


def test_segment_format_opens_no_files() -> None:
    calls = [
        f"{module_name(path)}:{node.lineno} calls {ast.unparse(node.func)}"
        for path in MODULES
        if within(module_name(path), "segment_format")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func)
        in {
            "open",
            "io.open",
            "io.FileIO",
            "pa.memory_map",
            "pa.OSFile",
            "np.fromfile",
            "np.memmap",
        }
    ]
    assert calls == []


def test_reading_and_planning_do_not_import_spark() -> None:
    wrong = [
        str(entry)
        for entry in all_imports()
        if within(entry.imported, "pyspark", SPARK_RING)
        and not within(entry.importer, SPARK_RING)
        and not (entry.importer in LAZY_SPARK_MODULES and not entry.at_import_time)
        and not (entry.importer in LAZY_SPARK_MODULES and entry.for_types_only)
        and not (
            within(entry.importer, *SPARK_INSIDE_FUNCTIONS)
            and (not entry.at_import_time or entry.for_types_only)
        )
    ]
    assert wrong == []


def test_command_line_is_imported_only_by_itself() -> None:
    wrong = [
        str(entry)
        for entry in all_imports()
        if within(entry.imported, "kts_source.cli") and not within(entry.importer, "kts_source.cli")
    ]
    assert wrong == []


def test_every_third_party_import_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower()
        for requirement in [
            *project["dependencies"],
            *(name for extra in project["optional-dependencies"].values() for name in extra),
        ]
    }
    providers = importlib.metadata.packages_distributions()
    wrong = [
        str(entry)
        for entry in all_imports()
        if third_party(entry)
        and top(entry.imported) not in exceptions_of(entry)
        and not (top(entry.imported) in optional_of(entry) and not entry.at_import_time)
        and COMES_WITH.get(top(entry.imported)) not in declared
        and top(entry.imported) not in declared
        and not declared & {name.lower() for name in providers.get(top(entry.imported), [])}
    ]
    assert wrong == []


def test_modules_have_no_circular_imports() -> None:
    imported_by_module: dict[str, set[str]] = {}
    for entry in all_imports():
        if not entry.for_types_only and top(entry.imported) in PACKAGES:
            imported_by_module.setdefault(entry.importer, set()).add(entry.imported)
    for face in FACES:
        imported_by_module[face] = {
            entry.imported
            for entry in all_imports()
            if entry.importer == face and entry.at_import_time and not entry.for_types_only
        }
    circular = [
        module for module in imported_by_module if module in _reachable(imported_by_module, module)
    ]
    assert circular == []


def _reachable(imported_by_module: dict[str, set[str]], start: str) -> set[str]:
    """Returns all modules that importing `start` imports, directly or indirectly."""
    reached: set[str] = set()
    pending = list(imported_by_module[start])
    while pending:
        module = pending.pop()
        if module not in reached:
            reached.add(module)
            pending += imported_by_module.get(module, ())
    return reached
