"""Runs every notebook from top to bottom and keeps what its cells showed.

Paths of this machine become `…`: what is committed does not tell where it was made.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook after a run with the interpreter of this environment."""
    notebook: nbformat.NotebookNode = nbformat.reads(path.read_text(), as_version=4)  # type: ignore[no-untyped-call]
    nbclient.NotebookClient(
        notebook,
        timeout=200,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    ).execute()
    return notebook


def without_places(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without warnings, run times and paths of this machine."""
    places = re.compile(
        "|".join(re.escape(str(place)) for place in (ROOT, tempfile.gettempdir(), Path.home()))
    )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        shown = [
            output
            for output in cell.get("outputs", [])
            if not (output.output_type == "stream" and output.name == "stderr")
        ]
        for output in shown:
            if output.output_type == "stream":
                output.text = places.sub("…", output.text)
            for kind, text in output.get("data", {}).items():
                if kind.startswith("text/"):
                    output.data[kind] = places.sub("…", text)
        if cell.cell_type == "code":
            cell.outputs = shown
    return notebook


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for one in sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(without_places(executed(one)), one)  # type: ignore[no-untyped-call]
        print(one.name)  # noqa: T201 - a command's output
