"""Tests the reports of benchmark runs and the generated tiers that benchmarks read.

Reports are JSON files. Result pages are written from them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import plot, results, tiers
from benchmarks.__main__ import LONG_PARTS, PARTS
from benchmarks.processes import processor_time
from benchmarks.report import (
    Report,
    Row,
    at_least,
    at_most,
    joined,
    machine,
    read_json,
    write_json,
)
from benchmarks.tiers import TierShape, make_tier
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes benchmarks write generated tiers to a folder that does not exist yet; yields its
    path.
    """
    monkeypatch.setenv("KTS_BENCH_CACHE", str(tmp_path / "cache"))
    tiers.cache_folder.cache_clear()
    yield tmp_path / "cache"
    tiers.cache_folder.cache_clear()


def test_report_written_as_json_is_read_back_unchanged(tmp_path: Path) -> None:
    report = Report(
        {"scan": [at_least("fast", 3.0, "×", 2), at_most("small", 9.5, "MiB", 4).noted("why")]},
        {"a topic": {"JVM": 1.5, "ceiling": 2.0}},
        {"peers": "not on PATH: java"},
        {"where": "ValueError: no"},
        {"scan": 1.25},
    )
    write_json(report, machine(), tmp_path / "new" / "results.json", quick=True)
    restored, about, quick = read_json(tmp_path / "new" / "results.json")
    assert restored == report
    assert about["cpus"] == os.cpu_count()
    assert quick
    assert [row.name for row in restored.missed] == ["small"]


def test_result_pages_list_missed_goals_and_rows_slower_than_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "HERE", tmp_path)
    rows = [
        at_least("reached", 3.0, "×", 2),
        at_least("out of reach", 1.5, "×", 2).noted("the disk"),
        Row("against a peer", 0.5, "×"),
        Row("against another", 1.5, "×"),
    ]
    stages = {"decode": 5.0, "JVM": 90.0, "ceiling": 100.0}
    report = Report({"scan": rows}, {"a topic": stages}, {"peers": "no java"})
    results.write_results(report, machine(), quick=True)
    first = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert "1 of 2 goals are met" in first
    assert "[scan](results/scan.md)" in first
    assert "* peers: no java" in first
    assert "A quick run" in first
    assert "RESULTS.png" not in first
    assert not (tmp_path / "RESULTS.png").exists()
    text = (tmp_path / "results" / "scan.md").read_text(encoding="utf-8")
    assert "1 of 2 goals are met" in text
    assert "* out of reach: 1.5 × instead of ≥ 2: the disk" in text
    slower = text.split("## Slower than a peer")[1].split("##")[0]
    assert "against a peer" in slower
    assert "against another" not in slower
    assert "| a topic | 5 | **90** | 100 | 0.95 × |" in text


def test_first_results_page_shows_headlines_with_value_and_upper_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "HERE", tmp_path)
    scan, audit = results.HEADLINES[0], results.HEADLINES[-1]
    report = Report(
        {
            scan.part: [at_least(scan.row, 4.2, "×", 3).noted("ready batches: 5.49 ×; more")],
            audit.part: [at_least(audit.row, 0.95, "×", 0.8)],
        }
    )
    results.write_results(report, machine(), quick=False)
    text = (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert f"| {scan.label} | **4.2 ×** | {scan.peer} | 5.49 × |" in text
    assert f"| {audit.label} | **0.95 ×** | {audit.peer} | 1 × |" in text


def test_first_results_page_embeds_picture_if_its_rows_were_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "HERE", tmp_path)
    rows = [
        Row(name, 1.0 + number, "M records/s")
        for number, name in enumerate(plot.PICTURES[0][1].values())
    ]
    results.write_results(Report({"peers": rows}), machine(), quick=False)
    assert "(RESULTS.png)" in (tmp_path / "RESULTS.md").read_text(encoding="utf-8")
    assert (tmp_path / "RESULTS.png").stat().st_size > 1000


def committed_pages() -> str:
    """Returns the joined text of all result pages in `benchmarks/results`."""
    pages = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def test_rows_shown_in_pictures_exist_on_committed_result_pages() -> None:
    text = committed_pages()
    names = [name for _, bars in plot.PICTURES for name in bars.values()]
    assert [name for name in names if f"\n| {name} | " not in text] == []


def test_committed_first_results_page_shows_every_headline() -> None:
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert len(results.HEADLINES) == 15
    assert [line.label for line in results.HEADLINES if f"| {line.label} | " not in text] == []


@pytest.mark.parametrize("encryption", [False, True])
def test_make_tier_reuses_tier_of_same_shape_and_removes_tiers_written_by_other_code(
    cache: Path, *, encryption: bool
) -> None:
    (cache / "0123456789abcdef").mkdir(parents=True)
    shape = TierShape(
        100,
        256 << 10,
        codec="zstd",
        payload="json",
        compression=True,
        segment_bytes=64 << 10,
        encryption=encryption,
    )
    tier = make_tier(shape)
    assert scan(tier.options).num_rows == tier.records > 1000
    assert [path.name for path in cache.iterdir()] == [tier.path.parent.name]
    done = tier.path / "done"
    before = done.stat().st_mtime_ns
    assert make_tier(shape) == tier
    assert done.stat().st_mtime_ns == before


def test_processor_time_includes_child_processes_that_ended() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])"
    before = processor_time(os.getpid())
    subprocess.run([sys.executable, "-c", code], check=True)
    used = processor_time(os.getpid()) - before
    assert used.jvm == 0
    assert used.total == used.python > 0.02


def test_joined_report_contains_latest_rows_of_each_benchmark() -> None:
    first = Report(rows={"decode": [Row("a", 1, "s")], "plan": [Row("b", 2, "s")]})
    second = Report(rows={"plan": [Row("c", 3, "s")]}, seconds={"plan": 4.0})
    same = {"processor": "x"}
    merged, about, quick = joined(
        [
            (first, {**same, "system": "a", "date": "1st", "others": {"broker": "4"}}, False),
            (second, {**same, "system": "b", "date": "2nd", "others": {}}, True),
        ]
    )
    assert merged.rows == {"decode": [Row("a", 1, "s")], "plan": [Row("c", 3, "s")]}
    assert merged.seconds == {"plan": 4.0}
    assert about == {
        "processor": "x",
        "system": "a and b",
        "dates": {"decode": "1st", "plan": "2nd"},
        "date": "decode: 1st; plan: 2nd",
        "others": {"broker": "4"},
    }
    assert quick


def test_every_benchmark_has_a_title() -> None:
    assert {*PARTS} == results.TITLES.keys()
    assert {*PARTS} > LONG_PARTS
