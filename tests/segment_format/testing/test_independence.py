"""Checks that the test writer shares no code with the readers that it tests."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import segment_format.testing

FOLDER = Path(segment_format.testing.__file__).parent
SHARED = {"segment_format.kafka_uuid"}


def test_writers_import_no_parser() -> None:
    modules = sorted(FOLDER.glob("*.py"))
    assert modules
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path.name
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            foreign = {
                name
                for name in names
                if name.startswith("segment_format")
                and not name.startswith("segment_format.testing")
            }
            assert foreign <= SHARED, path.name


def test_import_loads_no_optional_library() -> None:
    code = (
        "import sys, segment_format.testing;"
        "print(sorted({'hypothesis', 'cryptography', 'numba', 'pyarrow'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
