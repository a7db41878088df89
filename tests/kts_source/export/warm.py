"""Loads the kernels in the fork server, so that all forked processes have them."""

from __future__ import annotations

from tests.kts_source.export.exporting import source
from tests.kts_source.planning.scanning import scan

ROWS = scan(source()).num_rows
