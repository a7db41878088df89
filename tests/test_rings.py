"""Imports point inward only: `segment_format` <- reading and planning <- the Spark classes.

Seen in the import statements of every module; `test_loaded_modules.py` sees it in an interpreter.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("segment_format", "kts_source")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# Ring 0 turns bytes into values and reaches no file, network, process or environment.
RING_0_THIRD_PARTY = {
    "numpy",
    "pyarrow",
    "numba",
    "llvmlite",
    "zstandard",
    "lz4",
    "cramjam",
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
# What a module of ring 0 may import besides, and why.
RING_0_EXCEPTIONS: dict[str, tuple[set[str], str]] = {
    "segment_format.kernels.code_folder": (
        {"os", "pathlib", "tempfile"},
        "chooses the folder where machine code is kept; data does not pass through it",
    ),
    "segment_format.kernels.compiled": ({"pathlib"}, "passes that folder on"),
    "segment_format.kernels.object_code": (
        {"os", "pathlib", "tempfile"},
        "keeps the kernel's object file in that folder",
    ),
    "segment_format.reused_memory": ({"os"}, "os.getpid: what a fork inherits is not reused"),
    "segment_format.tuning": ({"os"}, "os.environ: KTS_TUNING"),
    "segment_format.testing.tiers": (
        {"os", "pathlib"},
        "writes tiers into folders, for tests; os.urandom: nonces and data keys",
    ),
}
# Imported inside a function, by those who have it; no dependency of ours.
OPTIONAL: dict[str, tuple[set[str], str]] = {
    "kts_source.metrics": ({"matplotlib"}, "a plot for the notebook that asks for one"),
    "kts_source.engines.scan": ({"pandas"}, "a frame for those who have it"),
    "kts_source.broker.sasl": ({"gssapi"}, "Kerberos, for which Linux has no wheels"),
}
# Parts of a declared dependency that come as packages of their own.
COMES_WITH = {
    "llvmlite": "numba",
    "aiobotocore": "s3fs",
    "botocore": "s3fs",
    "aiohttp": "s3fs",
    "py4j": "pyspark",
}

# Where pyspark may be imported, and whether only inside functions.
SPARK_RING = "kts_source.spark"
SPARK_INSIDE_FUNCTIONS = ("kts_source.cli",)
LAZY_SPARK_MODULES = {"kts_source"}  # __getattr__ hands out the data source


# What is imported inside their functions is only handed on to the user who asks for it.
FACES: dict[str, str] = {
    "kts_source": "`__getattr__` brings in what a name stands for",
    "kts_source.export.report": "`BackfillReport.save_png` draws with another module",
}


class Import(NamedTuple):
    """One imported name: the module that imports, the module imported, where and how."""

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
    """Every import of a file; relative ones are reported with their leading dots."""
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
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield from walk(child, False, for_types_only)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for statement in child.body:
                    yield from walk(ast.Module([statement], []), at_import_time, True)
                for statement in child.orelse:
                    yield from walk(ast.Module([statement], []), at_import_time, for_types_only)
            else:
                yield from walk(child, at_import_time, for_types_only)

    yield from walk(ast.parse(path.read_text(), str(path)), True, False)


def is_module(dotted: str) -> bool:
    """Whether a dotted name is a module of this repository."""
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def top(module: str) -> str:
    return module.split(".", 1)[0]


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


ALL_IMPORTS = [found for path in MODULES for found in imports_of(path)]


def third_party(found: Import) -> bool:
    name = top(found.imported)
    return name not in sys.stdlib_module_names and name not in PACKAGES


def exceptions_of(found: Import) -> set[str]:
    return RING_0_EXCEPTIONS.get(found.importer, (set(), ""))[0]


def optional_of(found: Import) -> set[str]:
    return OPTIONAL.get(found.importer, (set(), ""))[0]


def test_there_is_something_to_check() -> None:
    names = {module_name(path) for path in MODULES}
    assert {"segment_format.errors", "kts_source"} <= names
    assert any(found.imported == "segment_format.errors" for found in ALL_IMPORTS)


def test_imports_are_absolute() -> None:
    assert [str(found) for found in ALL_IMPORTS if found.imported.startswith(".")] == []


def test_packages_do_not_import_tests_or_benchmarks() -> None:
    strangers = {"tests", "benchmarks", "notebooks", "pyspark_tiered_kafka"}
    assert [str(found) for found in ALL_IMPORTS if top(found.imported) in strangers] == []


def test_ring_0_imports_only_what_turns_bytes_into_values() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if within(found.importer, "segment_format")
        and top(found.imported) not in exceptions_of(found)
        and (
            within(found.imported, "kts_source")
            or top(found.imported) in RING_0_FORBIDDEN_STDLIB
            or (third_party(found) and top(found.imported) not in RING_0_THIRD_PARTY)
        )
    ]
    assert wrong == []


def test_exceptions_are_needed() -> None:
    used = {(found.importer, top(found.imported)) for found in ALL_IMPORTS}
    listed = {
        (name, module) for name, (modules, _) in RING_0_EXCEPTIONS.items() for module in modules
    }
    assert {(name, module) for name, module in listed if is_module(name)} - used == set()


def test_ring_0_opens_no_files() -> None:
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


def test_reading_and_planning_know_no_spark() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if within(found.imported, "pyspark", SPARK_RING)
        and not within(found.importer, SPARK_RING)
        and not (found.importer in LAZY_SPARK_MODULES and not found.at_import_time)
        and not (found.importer in LAZY_SPARK_MODULES and found.for_types_only)
        and not (
            within(found.importer, *SPARK_INSIDE_FUNCTIONS)
            and (not found.at_import_time or found.for_types_only)
        )
    ]
    assert wrong == []


def test_only_the_command_line_imports_the_command_line() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if within(found.imported, "kts_source.cli") and not within(found.importer, "kts_source.cli")
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
        str(found)
        for found in ALL_IMPORTS
        if third_party(found)
        and top(found.imported) not in exceptions_of(found)
        and not (top(found.imported) in optional_of(found) and not found.at_import_time)
        and COMES_WITH.get(top(found.imported)) not in declared
        and top(found.imported) not in declared
        and not declared & {name.lower() for name in providers.get(top(found.imported), [])}
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    follows: dict[str, set[str]] = {}
    for found in ALL_IMPORTS:
        if not found.for_types_only and top(found.imported) in PACKAGES:
            follows.setdefault(found.importer, set()).add(found.imported)
    for face in FACES:
        follows[face] = {
            found.imported
            for found in ALL_IMPORTS
            if found.importer == face and found.at_import_time and not found.for_types_only
        }
    in_circles = [module for module in follows if module in _reached(follows, module)]
    assert in_circles == []


def _reached(follows: dict[str, set[str]], start: str) -> set[str]:
    """The modules that an import of one brings in, sooner or later."""
    seen: set[str] = set()
    left = list(follows[start])
    while left:
        module = left.pop()
        if module not in seen:
            seen.add(module)
            left += follows.get(module, ())
    return seen
