"""Tests the errors of `kts demo` if no tier exists, and its start with `python -m`."""

from __future__ import annotations

import runpy
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
    assert main(["demo"]) == 1
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
