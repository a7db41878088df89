"""Runs every notebook on the sample tier and checks its output."""

from __future__ import annotations

import json
import random
import re
import sys
from typing import TYPE_CHECKING

import nbformat
import pytest

from tests.golden_data import expected_table, partition_summaries
from tools.run_notebooks import NOTEBOOKS, executed

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


def read(name: str) -> nbformat.NotebookNode:
    notebook: nbformat.NotebookNode = nbformat.reads(  # type: ignore[no-untyped-call]
        (NOTEBOOKS / name).read_text(), as_version=4
    )
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, str]]:
    """Yields (MIME type, text) of all outputs of the cells."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                yield "text/plain", output.text
            else:
                yield from output.get("data", {}).items()


def test_notebook_folder_contains_expected_files() -> None:
    assert NAMES == [
        "01_read_a_topic.ipynb",
        "02_backfill_to_delta.ipynb",
        "03_from_history_to_live.ipynb",
        "04_typed_topic.ipynb",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_stored_notebooks_have_outputs_without_local_paths(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "run `make notebooks`"
    shown = list(outputs(notebook))
    assert "image/png" in {kind for kind, _ in shown}, "no plot"
    texts = [text for kind, text in shown if kind.startswith("text/")]
    assert not [text for text in texts if re.search(r"/(tmp|root|home|work|Users)/", text)]


@pytest.mark.notebook
@pytest.mark.timeout(230)
# Warnings of Jupyter's client and its sockets.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs_without_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    shown = list(outputs(executed(NOTEBOOKS / name)))
    kinds = {kind for kind, _ in shown}
    assert "image/png" in kinds, "no plot"
    text = "\n".join(value for kind, value in shown if kind == "text/plain")
    if name == "01_read_a_topic.ipynb":
        partitions = partition_summaries("txn").values()
        for level in ("read_committed", "read_uncommitted"):
            rows = sum(partition[f"rows_in_tier_{level}"] for partition in partitions)
            assert f"'{level}': {rows}" in text
        assert f"|{expected_table('codecs', 'read_committed').num_rows:>5}|" in text
    if name == "02_backfill_to_delta.ipynb":
        assert re.search(r"\d+ tasks.*\$", text, re.DOTALL), "no cost"
        first_run = re.search(r"([\d,]+) rows after the kill", text)
        assert first_run is not None
        total = sum(
            expected_table(topic, "read_committed").num_rows for topic in ("timeline", "txn")
        )
        remaining = total - int(first_run[1].replace(",", ""))
        assert 0 < remaining < total, "nothing was interrupted"
        assert f"{total:,} rows, of them {remaining:,} by the second run" in text
        assert "once more: 0 rows" in text
        assert sum(kind == "image/png" for kind, _ in shown) == 2
    if name == "03_from_history_to_live.ipynb":
        batches = [int(count) for count in re.findall(r"(\d+) batches of", text)]
        assert len(batches) == 2
        assert batches[0] > 1
        assert batches[1] > 0
        assert "lag at the end: 0" in text
        expected = expected_table("txn", "read_committed")
        assert f"{expected.num_rows} rows, 0 twice, 0 missing" in text
        handed_over = re.search(r'^\{"txn": .*\}$', text, re.MULTILINE)
        assert handed_over is not None, "no offsets to hand over"
        ends = json.loads(handed_over[0])["txn"]
        last = expected.group_by("partition").aggregate([("offset", "max")]).to_pylist()
        assert {str(row["partition"]) for row in last} == set(ends)
        assert all(ends[str(row["partition"])] > row["offset_max"] for row in last)
    if name == "04_typed_topic.ipynb":
        # The same random orders as in the notebook.
        random_source = random.Random(4)
        large: dict[str, list[tuple[float, bool]]] = {}
        for number in range(4000):
            country = random_source.choice(["CH", "CH", "DE", "FR"])
            amount = round(random_source.expovariate(1 / 60), 2)
            coupon = random_source.choice([None, "WELCOME"])
            if amount > 100:
                # The first half was written before orders had coupons.
                has_coupon = coupon is not None and number >= 2000
                large.setdefault(country, []).append((amount, has_coupon))
        for country, orders in large.items():
            total = round(sum(amount for amount, _ in orders), 2)
            coupons = sum(has_coupon for _, has_coupon in orders)
            row = rf"\| +{country}\| +{len(orders)}\| *{total}\| +{coupons}\|"
            assert re.search(row, text), row
        assert " |-- user: struct (nullable = true)\n |    |-- id: long" in text
