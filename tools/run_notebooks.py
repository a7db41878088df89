"""Runs the named notebooks, or all notebooks, and stores the outputs of their cells.

Replaces paths of this machine by `…`, so that committed files do not contain them.
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


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Runs the notebook with the interpreter of this environment and returns it. The notebook
    writes its sample tier to its working folder `folder`.
    """
    notebook: nbformat.NotebookNode = nbformat.reads(path.read_text(), as_version=4)  # type: ignore[no-untyped-call]
    nbclient.NotebookClient(
        notebook,
        timeout=200,
        kernel_name="python3",
        coalesce_streams=True,  # a slow kernel sends one print in several messages
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    return notebook


def without_local_paths(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Returns a copy of the notebook without warnings, run times and paths of this machine."""
    working_folder = re.escape(tempfile.gettempdir()) + r"(?:/tmp\w+)?"
    local_paths = re.compile(
        "|".join([re.escape(str(ROOT)), working_folder, re.escape(str(Path.home()))])
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
                output.text = local_paths.sub("…", output.text)
            for kind, text in output.get("data", {}).items():
                if kind.startswith("text/"):
                    output.data[kind] = local_paths.sub("…", text)
        if cell.cell_type == "code":
            cell.outputs = shown
    return notebook


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    for notebook_path in [Path(name) for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as working:
            notebook_run = without_local_paths(executed(notebook_path, Path(working)))
        nbformat.write(notebook_run, notebook_path)  # type: ignore[no-untyped-call]
        print(notebook_path.name)  # noqa: T201 - a command's output
