"""Tests `kts export --spark --follow`: its rounds are Spark jobs, and a signal ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.small_tier import SmallTier, table_offsets

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_export_stopped_by_signal_is_continued_by_next_export(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    tier = SmallTier(tmp_path / "tier").grow(3)
    flags = [word for pair in tier.options().items() for word in ("-o", "=".join(pair))]
    export = [sys.executable, "-m", "kts_source.cli", "export", str(lake.target), *flags]
    # One segment per round.
    follow_flags = ["--spark", "--follow", "--interval", "1s", "--round-bytes", "1"]
    child = subprocess.Popen([*export, *follow_flags], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        rounds = [json.loads(child.stdout.readline()) for _ in range(3)]
        assert [(metrics["outcome"], metrics["rows"]) for metrics in rounds] == [("done", 10)] * 3
        tier.grow(60)
        while json.loads(child.stdout.readline())["outcome"] == "idle":
            pass
        child.terminate()
        out, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    # The signal may also arrive between two rounds.
    last = [json.loads(line)["outcome"] for line in out.splitlines()][-1:]
    assert last in (["abandoned"], ["done"], [])
    before = table_offsets(lake)
    assert before == list(range(len(before)))
    assert 40 <= len(before) < 630
    subprocess.run([*export, "--workers", "1"], cwd=ROOT, check=True, capture_output=True)
    assert table_offsets(lake) == list(range(630))
