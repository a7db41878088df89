"""Tests the wheel: its files, and that it works outside the checkout with its own dependencies."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.golden_data import TIER, expected_table, tier_options
from tests.needs import needs
from tests.test_loaded_modules import ADAPTERS

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).parent / "uv"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("wheel")]


def run(*command: str | Path, cwd: Path) -> str:
    """Runs a command and returns its output; fails with its error output."""
    done = subprocess.run(
        [str(argument) for argument in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(UV, "build", "--wheel", "--quiet", "--out-dir", out, ROOT, cwd=out)
    wheels = list(out.glob("*.whl"))
    assert len(wheels) == 1
    return wheels[0]


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the wheel and its locked dependencies into a new environment without pyspark.

    Returns the Python interpreter of the environment.
    """
    home = tmp_path_factory.mktemp("environment")
    run(UV, "venv", "--quiet", "--python", sys.executable, home / "venv", cwd=home)
    interpreter = home / "venv" / "bin" / "python"
    locked = ROOT / "requirements.lock"
    run(
        UV, "pip", "install", "--quiet", "--python", interpreter, "--constraints", locked, wheel,
        cwd=home,
    )  # fmt: skip
    return interpreter


@pytest.fixture(scope="module")
def cli_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the wheel with the extra `cli` and its locked dependencies. Returns the folder."""
    home = tmp_path_factory.mktemp("cli") / "venv"
    run(UV, "venv", "--quiet", "--python", sys.executable, home, cwd=home.parent)
    run(
        UV, "pip", "install", "--quiet", "--python", home / "bin" / "python",
        "--constraints", ROOT / "requirements.lock", f"{wheel}[cli]", cwd=home.parent,
    )  # fmt: skip
    return home


def tracked(*folders: str) -> set[str]:
    """Returns the paths of the tracked files in `folders`."""
    listed = run("git", "ls-files", "-z", "--", *folders, cwd=ROOT)
    return {name for name in listed.split("\0") if name}


def test_wheel_contains_only_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    info = {name for name in names if PurePosixPath(name).parts[0].endswith(".dist-info")}
    sources = tracked("segment_format", "kts_source", "pyspark_tiered_kafka.py")
    assert names - info == sources | {"segment_format/kernels/kernels.so"}
    assert {PurePosixPath(name).name for name in info} >= {"METADATA", "RECORD", "WHEEL", "LICENSE"}
    assert "segment_format/py.typed" in names
    assert "kts_source/py.typed" in names
    assets = {name for name in names if name.startswith("kts_source/reporting/assets/")}
    assert {PurePosixPath(name).suffix for name in assets} == {".js", ".css"}
    assert wheel.stat().st_size <= 3 << 20


def test_wheel_is_tagged_with_this_platform_for_all_pythons(wheel: Path) -> None:
    name = wheel.name.removesuffix(".whl")
    assert "-py3-none-" in name
    assert name.endswith((platform.machine(), "any")) == (sys.platform == "linux")
    assert not name.endswith("any")


def test_library_in_linux_wheel_needs_no_other_library(wheel: Path, tmp_path: Path) -> None:
    needs("readelf")
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("segment_format/kernels/kernels.so", tmp_path)
    dynamic = run("readelf", "--dynamic", "--dyn-syms", "--wide", library, cwd=tmp_path)
    assert "(NEEDED)" not in dynamic
    undefined = {line.split()[-1] for line in dynamic.splitlines() if " UND " in line}
    assert undefined - {"UND"} <= {"memcpy", "memmove", "memset"}  # without versions of glibc


def needs_numba(module: Path) -> bool:
    """Returns whether the module contains functions that numba compiles."""
    return module.name == "compiled.py" or "kernels.compiled import" in module.read_text()


def test_modules_import_from_wheel_without_spark(python: Path, tmp_path: Path) -> None:
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in tracked("segment_format", "kts_source")
        if name.endswith(".py")
        and not name.endswith("__main__.py")
        and not needs_numba(ROOT / name)
    )
    # Modules that need more than the core dependencies: Spark, the commands and the engines.
    excluded = ("kts_source.spark", "kts_source.cli.", *ADAPTERS)
    modules = [name for name in modules if not name.startswith(excluded)]
    assert len(modules) > 10
    program = "\n".join(
        [
            *(f"import {name}" for name in modules),
            "import sys, segment_format, kts_source",
            "print(segment_format.__file__, kts_source.__file__)",
        ]
    )
    paths = run(python, "-I", "-c", program, cwd=tmp_path)
    assert all("site-packages" in path for path in paths.split())


def test_command_without_cli_extra_reports_the_missing_extra(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(python.parent / "kts"), "topics", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    # The command names the wheel file, because the package was installed from it.
    assert re.search(r"pip install '/.*/tiered_kafka-[^/]*\.whl\[cli\]'", done.stderr)


def test_command_runs_with_cli_extra(cli_environment: Path, tmp_path: Path) -> None:
    options = tier_options("codecs")
    flags = [text for name in options for text in ("-o", f"{name}={options[name]}")]
    kts = cli_environment / "bin" / "kts"
    assert "codecs" in run(kts, "topics", *flags, cwd=tmp_path)
    run(kts, "report", *flags, "--output", "report.html", cwd=tmp_path)
    assert "DecompressionStream" in (tmp_path / "report.html").read_text()
    printed = run(kts, "cat", *flags, "--limit", "2", cwd=tmp_path)
    assert [json.loads(line)["offset"] for line in printed.splitlines()] == [0, 1]
    assert "23,962 rows" in run(kts, "export", "lake", *flags, cwd=tmp_path)
    assert list(tmp_path.glob("lake/*.parquet"))


def test_installation_with_cli_extra_has_at_most_315_mib(cli_environment: Path) -> None:
    """pip, setuptools and compiled modules add about 65 MiB, so 380 MiB in total."""
    files = [
        file
        for file in cli_environment.rglob("*")
        if file.is_file() and not file.is_symlink() and "__pycache__" not in file.parts
    ]
    assert sum(file.stat().st_blocks * 512 for file in files) <= 315 << 20


def test_auto_registration_is_silent_without_spark(python: Path, tmp_path: Path) -> None:
    program = "import pyspark_tiered_kafka as m; print(hasattr(m, 'DefaultSource'))"
    assert run(python, "-I", "-c", program, cwd=tmp_path).strip() == "False"


def test_installed_dependencies_are_compatible(python: Path, tmp_path: Path) -> None:
    run(UV, "pip", "check", "--python", python, cwd=tmp_path)


TO_PANDAS = """
import sys, kts_source
options = {"keyPrefix": "tiered/", "subscribe": "codecs", "includeHeaders": True}
frame = kts_source.scan(sys.argv[1], **options).to_pandas()
marks = kts_source.describe(sys.argv[1], **options).to_pandas()
repr(frame), frame._repr_html_(), frame["timestamp"].dt.floor("D"), frame.groupby("offset").size()
print(len(frame), frame["offset"].dtype, len(marks))
"""


@pytest.mark.parametrize("pandas", ["pandas<3", "pandas>=3"])
def test_wheel_installation_keeps_pandas_and_numpy_and_compatible_boto3(
    wheel: Path, tmp_path: Path, pandas: str
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    install = (UV, "pip", "install", "--quiet", "--python", python)
    run(*install, "boto3", pandas, "numpy>=2", cwd=tmp_path)
    before = installed(python, tmp_path)
    # aiobotocore requires a range of botocore, so an older boto3 may be chosen, but never a boto3
    # that does not fit its botocore.
    run(*install, wheel, "boto3", cwd=tmp_path)
    after = installed(python, tmp_path)
    expected_rows = expected_table("codecs", "read_committed").num_rows
    assert {name: after[name] for name in ("pandas", "numpy")} == {
        name: before[name] for name in ("pandas", "numpy")
    }
    run(UV, "pip", "check", "--python", python, cwd=tmp_path)
    # Warnings are errors, so that deprecated calls fail the test.
    read = (python, "-I", "-W", "error", "-c", TO_PANDAS, TIER)
    assert run(*read, cwd=tmp_path).split() == [str(expected_rows), "int64[pyarrow]", "1"]


def installed(python: Path, folder: Path) -> dict[str, str]:
    """Returns the version of each installed package by name."""
    listed = json.loads(run(UV, "pip", "list", "--format", "json", "--python", python, cwd=folder))
    return {package["name"]: package["version"] for package in listed}
