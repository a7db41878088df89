"""Tests that the checks of examples belong to pages with examples."""

from __future__ import annotations

from tests.docs.checks import CHECKS
from tests.docs.fences import EXECUTED, PAGES, blocks


def test_checks_name_pages_with_examples() -> None:
    pages = {
        page.name for page in PAGES if any(block.language in EXECUTED for block in blocks(page))
    }
    assert set(CHECKS) <= pages
