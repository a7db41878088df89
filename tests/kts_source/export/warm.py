"""Runs a scan when the fork server imports this module, so that forked processes start fast."""

from __future__ import annotations

from tests.kts_source.export.exporting import source
from tests.kts_source.planning.scanning import scan

ROWS = scan(source()).num_rows
