"""Imported by the process that others are forked from, so that all have the kernels loaded."""

from __future__ import annotations

from tests.kts_source.export.exporting import source
from tests.kts_source.planning.scanning import scan

ROWS = scan(source()).num_rows
