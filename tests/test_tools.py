"""Tests `tools/with_java.sh`, which selects a JVM, and `.ci/summary.py`, which sums up a CI run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def fake_java(folder: Path, version: str) -> Path:
    """Creates a `java` that only prints its version."""
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
    program.chmod(0o755)
    return program


def java_home_of(env: dict[str, str]) -> str:
    """Returns the JAVA_HOME that `tools/with_java.sh` sets for its command."""
    run = subprocess.run(
        [ROOT / "tools" / "with_java.sh", "sh", "-c", 'echo "${JAVA_HOME:-unset}"'],
        env={"VENV": sys.prefix, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return run.stdout.strip()


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "24"])
def test_with_java_uses_supported_java(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "bin", version)
    assert java_home_of({"PATH": f"{tmp_path / 'bin'}:{os.defpath}"}) == "unset"
    assert java_home_of({"PATH": os.defpath, "JAVA_HOME": str(tmp_path)}) == str(tmp_path)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "25.0.1"])
def test_with_java_ignores_unsupported_java(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "bin", version)
    bundled = str(Path(sys.prefix, "java"))
    assert java_home_of({"PATH": f"{tmp_path / 'bin'}:{os.defpath}"}) == bundled
    assert java_home_of({"PATH": os.defpath, "JAVA_HOME": str(tmp_path)}) == bundled


def test_with_java_drops_add_modules_option_for_java_from_pip(tmp_path: Path) -> None:
    fake_java(tmp_path / "bin", "11.0.21")
    home = java_home_of({"PATH": f"{tmp_path / 'bin'}:{os.defpath}"})
    run = subprocess.run(
        [
            ROOT / "tools" / "with_java.sh",
            f"{home}/bin/java",
            "--add-modules=jdk.incubator.vector",
            "-version",
        ],
        env={"PATH": f"{tmp_path / 'bin'}:{os.defpath}", "VENV": sys.prefix},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert 'version "21.' in run.stderr


@pytest.fixture(scope="module")
def summary() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_summary", ROOT / ".ci" / "summary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(tests: int, failures: int = 0, errors: int = 0, skipped: int = 0) -> str:
    return (
        f'<testsuites><testsuite tests="{tests}" failures="{failures}" errors="{errors}"'
        f' skipped="{skipped}"/></testsuites>'
    )


@pytest.mark.parametrize(
    ("steps", "reports", "is_success", "last_line"),
    [
        pytest.param(
            [("lint", "passed"), ("test", "passed"), ("kills", "no tests")],
            {"test": report(10, skipped=2), "kills": report(0)},
            True,
            "8 passed, 0 failed, 2 skipped",
            id="all-passed",
        ),
        pytest.param(
            [("test", "failed (1)"), ("demo", "passed")],
            {"test": report(10, failures=1, errors=2), "demo": report(1)},
            False,
            "8 passed, 3 failed, 0 skipped",
            id="tests-failed",
        ),
        pytest.param(
            [("lint", "failed (2)"), ("test", "passed")],
            {"test": report(10)},
            False,
            "10 passed, 1 failed, 0 skipped",
            id="step-without-tests-failed",
        ),
        pytest.param(
            [("test", "passed"), ("broker", "out of time")],
            {"test": report(10)},
            False,
            "10 passed, 1 failed, 0 skipped",
            id="timeout-before-report",
        ),
        pytest.param(
            [("test", "failed (1)")],
            {"test": report(10)[:-20]},
            False,
            "0 passed, 1 failed, 0 skipped",
            id="truncated-report",
        ),
        pytest.param(
            [("test", "no tests"), ("demo", "passed")],
            {"test": report(0), "demo": report(1)},
            False,
            "1 passed, 1 failed, 0 skipped",
            id="main-suite-without-tests",
        ),
    ],
)
def test_summary_counts_results_of_run(
    summary: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    steps: list[tuple[str, str]],
    reports: dict[str, str],
    is_success: bool,
    last_line: str,
) -> None:
    (tmp_path / "steps.tsv").write_text(
        "".join(f"{name}\t{status}\t61\n" for name, status in steps)
    )
    for name, text in reports.items():
        (tmp_path / f"{name}.xml").write_text(text)
    assert summary.summarise(tmp_path) is is_success
    assert capsys.readouterr().out.splitlines()[-1] == last_line
