"""The demo's manners where there is nothing to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.cli import demo
from kts_source.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_without_the_sample_it_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SAMPLE_TIER", tmp_path / "no" / "tier")
    assert main(["demo"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "part of the checkout" in said.err
    assert "--path" in said.err


def test_a_path_without_a_tier_is_an_error_without_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--path", str(tmp_path), "--keyPrefix", "tiered/"]) == 1
    said = capsys.readouterr()
    assert "no tier at" in said.err
    assert "tiered/" in said.err
    assert "Traceback" not in said.err
