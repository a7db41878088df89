"""The scripts around the code: which Java is taken, and how a CI run is summed up."""

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
    """A `java` that knows nothing but its version."""
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
    program.chmod(0o755)
    return program


def java_home_of(env: dict[str, str]) -> str:
    """JAVA_HOME as a command below `tools/with_java.sh` sees it."""
    done = subprocess.run(
        [ROOT / "tools" / "with_java.sh", "sh", "-c", 'echo "${JAVA_HOME:-unset}"'],
        env={"VENV": sys.prefix, **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "24"])
def test_a_java_that_spark_can_use_is_taken(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "bin", version)
    assert java_home_of({"PATH": f"{tmp_path / 'bin'}:{os.defpath}"}) == "unset"
    assert java_home_of({"PATH": os.defpath, "JAVA_HOME": str(tmp_path)}) == str(tmp_path)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "25.0.1"])
def test_a_java_that_spark_cannot_use_is_passed_over(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "bin", version)
    brought = str(Path(sys.prefix, "java"))
    assert java_home_of({"PATH": f"{tmp_path / 'bin'}:{os.defpath}"}) == brought
    assert java_home_of({"PATH": os.defpath, "JAVA_HOME": str(tmp_path)}) == brought


def test_the_java_that_pip_brought_runs_with_the_module_it_lacks(tmp_path: Path) -> None:
    fake_java(tmp_path / "bin", "11.0.21")
    home = java_home_of({"PATH": f"{tmp_path / 'bin'}:{os.defpath}"})
    done = subprocess.run(
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
    assert 'version "21.' in done.stderr


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
    ("steps", "reports", "good", "closing"),
    [
        pytest.param(
            [("lint", "passed"), ("test", "passed"), ("kills", "no tests")],
            {"test": report(10, skipped=2), "kills": report(0)},
            True,
            "8 passed, 0 failed, 2 skipped",
            id="all well",
        ),
        pytest.param(
            [("test", "failed (1)"), ("demo", "passed")],
            {"test": report(10, failures=1, errors=2), "demo": report(1)},
            False,
            "8 passed, 3 failed, 0 skipped",
            id="tests failed",
        ),
        pytest.param(
            [("lint", "failed (2)"), ("test", "passed")],
            {"test": report(10)},
            False,
            "10 passed, 1 failed, 0 skipped",
            id="a step without tests failed",
        ),
        pytest.param(
            [("test", "passed"), ("broker", "out of time")],
            {"test": report(10)},
            False,
            "10 passed, 1 failed, 0 skipped",
            id="out of time before a report",
        ),
        pytest.param(
            [("test", "failed (1)")],
            {"test": report(10)[:-20]},
            False,
            "0 passed, 1 failed, 0 skipped",
            id="a report cut short",
        ),
        pytest.param(
            [("test", "no tests"), ("demo", "passed")],
            {"test": report(0), "demo": report(1)},
            False,
            "1 passed, 1 failed, 0 skipped",
            id="the main suite found no tests",
        ),
    ],
)
def test_a_run_is_summed_up(
    summary: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    steps: list[tuple[str, str]],
    reports: dict[str, str],
    good: bool,
    closing: str,
) -> None:
    (tmp_path / "steps.tsv").write_text("".join(f"{name}\t{how}\t61\n" for name, how in steps))
    for name, text in reports.items():
        (tmp_path / f"{name}.xml").write_text(text)
    assert summary.summarise(tmp_path) is good
    assert capsys.readouterr().out.splitlines()[-1] == closing
