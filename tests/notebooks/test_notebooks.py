"""Runs every notebook on the sample shop and checks its output."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import nbformat
import pandas as pd
import pytest

from segment_format.testing.sample_shop import SampleShop
from tools.run_notebooks import NOTEBOOKS, executed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HISTORY_MONTHS = 60
LOST = "2023-07"


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


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Returns all orders that the sample shop produces, including those of the three months after
    the history that the notebooks read.
    """
    shop = SampleShop(str(tmp_path_factory.mktemp("shop")))
    shop.tier_months(HISTORY_MONTHS + 3)
    return pd.DataFrame(
        {
            **json.loads(row.value or b""),
            "month": pd.Timestamp(row.timestamp, unit="ms").strftime("%Y-%m"),
        }
        for (topic, _), log in shop.logs.items()
        if topic == "orders"
        for row in log.build().all_rows
    )


def check_first_look(text: str, orders: pd.DataFrame) -> None:
    history = orders[orders["month"] < "2026"]
    lost = history[history["month"] == LOST]
    assert f"{len(history):,} orders, {len(history) - len(lost):,} payments" in text
    assert f"{len(lost)} orders without a payment, from" in text
    assert f"{lost['amount'].sum():,.2f} in total" in text
    assert "error: hole at payments-0" in text


def check_backfill(text: str, orders: pd.DataFrame) -> None:
    history, january = (orders["month"] < "2026").sum(), (orders["month"] == "2026-01").sum()
    assert f"first night {history:,} rows, second 0, third {january:,}" in text
    assert re.search(r"\d+ tasks.*\$", text, re.DOTALL), "no cost"


def check_customer(text: str, orders: pd.DataFrame) -> None:
    of_customer = orders[(orders["month"] < "2026") & (orders["customer"] == "c007")]
    lost = (of_customer["month"] == LOST).sum()
    assert f"{2 * len(of_customer) - lost} records of " in text
    assert "complete: False" in text
    assert "payments-0 [" in text
    assert f"{len(of_customer)} orders, complete: True" in text


def check_live(text: str, orders: pd.DataFrame) -> None:
    assert f"{(orders['month'] < '2026').sum():,} orders of five years" in text
    for number, name in enumerate(("January", "February", "March"), 1):
        assert f"{name}: {(orders['month'] == f'2026-{number:02}').sum():,} orders" in text
    assert f"{len(orders):,} rows, 0 twice, 0 missing" in text
    assert re.search(r'^\{"orders": .*\}$', text, re.MULTILINE), "no offsets to hand over"


CHECKS = {
    "01_first_look_at_a_tier.ipynb": check_first_look,
    "02_five_years_of_orders_into_delta.ipynb": check_backfill,
    "03_one_customers_records.ipynb": check_customer,
    "04_from_history_to_live.ipynb": check_live,
}


def test_notebook_folder_contains_expected_files() -> None:
    assert {path.name for path in NOTEBOOKS.glob("*.ipynb")} == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_stored_notebooks_have_outputs_without_local_paths(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code), "run `make notebooks`"
    shown = list(outputs(notebook))
    assert "image/png" in {kind for kind, _ in shown}, "no plot"
    texts = [text for kind, text in shown if kind.startswith("text/")]
    assert not [text for text in texts if re.search(r"/(tmp|root|home|work|Users)/", text)]


@pytest.mark.parametrize("name", CHECKS)
def test_notebook_code_sets_paths_only_in_its_first_cell(name: str) -> None:
    code = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
    assert "FOLDER = " in code[0]
    later = "\n".join(code[1:])
    assert not re.search(r"\bFOLDER = |^TIER = |\.\./|getOrCreate", later, re.MULTILINE)
    assert not re.search(r"\b(subprocess|tempfile|signal|environ)\b", "\n".join(code))


@pytest.mark.parametrize("name", CHECKS)
def test_notebook_names_the_extras_that_its_code_needs(name: str) -> None:
    cells = read(name).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    needed = {"plot": "matplotlib", "pandas": r"to_?pandas\(|toPandas\(", "delta": "deltalake"}
    extras = {extra for extra, use in needed.items() if re.search(use, code)}
    named = re.search(r"with the extras `([\w,]+)`", cells[1].source)
    assert named is not None
    assert extras <= set(named[1].split(","))


@pytest.mark.parametrize(("name", "check"), CHECKS.items())
def test_stored_outputs_agree_with_the_shop(
    name: str, check: Callable[[str, pd.DataFrame], None], orders: pd.DataFrame
) -> None:
    check("\n".join(text for kind, text in outputs(read(name)) if kind == "text/plain"), orders)


@pytest.mark.notebook
@pytest.mark.timeout(230)
# Warnings of Jupyter's client and its sockets.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:unclosed:ResourceWarning")
@pytest.mark.parametrize(("name", "check"), CHECKS.items())
def test_notebook_runs_without_errors(
    name: str,
    check: Callable[[str, pd.DataFrame], None],
    orders: pd.DataFrame,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    shown = list(outputs(executed(NOTEBOOKS / name, tmp_path)))
    assert "image/png" in {kind for kind, _ in shown}, "no plot"
    check("\n".join(text for kind, text in shown if kind == "text/plain"), orders)
