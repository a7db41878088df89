"""Tests `kts audit` and `kts verify`: exit codes, files, and terminal output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kts_source.cli.app import main
from tests.kts_source.auditing.damaged_tier import TOPIC, healthy_segments, write_tier

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main([*arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_audit_returns_exit_codes_and_writes_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    path = str(tier.root)
    code, out, _ = run(capsys, "audit", path)
    assert code == 0
    assert "0 errors, 0 findings at level metadata" in out
    tier.flip(2, "log", 100)
    assert run(capsys, "audit", path, TOPIC)[0] == 0
    assert run(capsys, "audit", path, TOPIC, "--level", "bytes")[0] == 1
    report, metrics = tmp_path / "audit.json", tmp_path / "audit.prom"
    files = ("--report", str(report), "--prometheus", str(metrics))
    code, out, _ = run(capsys, "verify", path, *files, "--json")
    assert code == 1
    assert json.loads(out) == json.loads(report.read_text())
    assert [finding["kind"] for finding in json.loads(out)["findings"]] == ["crc"]
    assert 'kts_audit_findings{topic="t",partition="0",kind="crc",severity="error"} 1' in (
        metrics.read_text()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audit.json",
        "audit.prom",
        "tier",
    ]
    tier.lose(1, "log", "indexes", "rsm-manifest")
    code, out, _ = run(capsys, "verify", path)
    assert code == 3
    assert "ERROR hole: t-0, offsets [40, 82)" in out
    assert "To do:" in out


def test_audit_usage_errors_return_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    path = str(tier.root)
    assert run(capsys, "audit", path, "--level", "all")[0] == 2
    code, _, err = run(capsys, "verify", path, TOPIC, "--where", "offset > 5")
    assert code == 2
    assert "remove where" in err
    code, _, err = run(capsys, "audit", path, "--report", str(tmp_path / "no" / "audit.json"))
    assert code == 2
    assert "cannot be written" in err
    assert run(capsys, "audit", path, "u")[0] == 1


def test_audit_reports_copy_as_incomplete_after_grace_minutes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(4, "rsm-manifest")
    _, out, _ = run(capsys, "audit", str(tmp_path), "--level", "listing")
    assert "INFO copy-under-way" in out
    _, out, _ = run(capsys, "audit", str(tmp_path), "--grace-minutes", "0")
    assert "WARNING half-copy" in out


def test_audit_escapes_object_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.path(2, "log").with_name("x\x1b[2J\x9b.log").write_bytes(b"x")
    _, out, _ = run(capsys, "audit", str(tmp_path))
    assert "\x1b" not in out
    assert "\x9b" not in out
    assert "x\\x1b[2J\\x9b.log" in out
    _, out, _ = run(capsys, "audit", str(tmp_path), "--json")
    assert out.isascii()
    (finding,) = json.loads(out)["findings"]
    assert finding["objects"][0].endswith("x\x1b[2J\x9b.log")
