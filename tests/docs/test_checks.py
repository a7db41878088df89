"""Tests that every page in `CHECKS` has examples, and that modules named in the docs exist."""

from __future__ import annotations

import re

from tests.docs.checks import CHECKS
from tests.docs.fences import EXECUTED, PAGES, ROOT, blocks


def test_every_check_belongs_to_a_page_with_examples() -> None:
    pages = {
        page.name for page in PAGES if any(block.language in EXECUTED for block in blocks(page))
    }
    assert set(CHECKS) <= pages


def test_modules_named_in_docs_exist() -> None:
    folders = (
        ROOT,
        *(ROOT / name for name in ("kts_source", "segment_format", "kts_source/planning")),
    )
    missing = [
        f"{page.name}: {module}"
        for page in PAGES
        for module in re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+\.py)`", page.read_text())
        if not any((folder / module).exists() for folder in folders)
    ]
    assert missing == []
