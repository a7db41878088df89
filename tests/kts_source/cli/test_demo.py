"""Tests the errors of `kts demo` if no tier exists, and its start with `python -m`."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kts_source.cli import demo
from kts_source.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path


def test_demo_without_sample_tier_prints_hint_about_path_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SAMPLE_TIER", tmp_path / "no" / "tier")
    assert main(["demo", "--all"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "in a checkout" in said.err
    assert "--path" in said.err


def test_demo_without_tier_fails_without_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--path", str(tmp_path), "--key-prefix", "tiered/"]) == 1
    said = capsys.readouterr()
    assert "no tier at" in said.err
    assert "tiered/" in said.err
    assert "Traceback" not in said.err


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_demo_module_can_be_run_with_python_m(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["demo", "--path", str(tmp_path), "--key-prefix", "tiered/"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("kts_source.cli.demo", run_name="__main__")
    assert ended.value.code == 1
    assert "no tier at" in capsys.readouterr().err


def test_demo_shows_the_orders_of_the_sample_tier(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from kts_source.cli.app import main; sys.exit(main(['demo']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    tier = f"{tmp_path}/tiered-kafka-sample"
    assert f"1. The topic orders in the tier at {tier}" in lines
    rows = [line.split() for line in lines]
    partitions = [row for row in rows if row[:1] == ["orders"]]
    assert [(row[1], row[2], row[4]) for row in partitions] == [
        (f"{n}", "0", "12") for n in range(3)
    ]
    total = sum(int(row[3].replace(",", "")) for row in partitions)
    assert next(row for row in rows if row[-2:] == ["orders", "match."])[2] == f"{total:,}"
    amounts = [
        (float(row[-1]), row[-2]) for row in rows if len(row) == 8 and row[2].startswith("2021-")
    ]
    assert len(amounts) == 10 + 3
    assert all(amount > 150 and country == "CH" for amount, country in amounts[10:])
    assert len([line for line in lines if "█" in line]) == 12
    assert any("pip install" in line and "[spark]" in line for line in lines)
    commands = [line for line in lines if f" {tier}" in line and "kts" in line]
    assert [row.split()[1] for row in commands] == ["cat", "find", "report"]


@pytest.mark.parametrize("is_active", [True, False])
def test_next_steps_name_the_folder_of_kts_unless_its_environment_is_active(
    is_active: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "kts"
    command.touch(mode=0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path if is_active else tmp_path / "other"))
    assert demo._command() == ("kts" if is_active else str(command))
