"""Tests the layers inside `kts_source`: a package imports only packages of inner layers (see
ARCHITECTURE.md).
"""

from __future__ import annotations

import pytest

from tests.test_rings import all_imports

pytestmark = pytest.mark.xdist_group("imports")  # as in test_rings.py

# Packages and modules of `kts_source`, inner layers first: each imports only earlier layers.
LAYERS = (
    ("texts",),
    ("errors", "secret", "columns"),
    ("libraries", "processes"),
    ("store", "predicate", "keyring"),
    ("broker",),
    ("layout",),
    ("cache",),
    ("registry",),
    ("options",),
    ("tier",),
    ("read",),
    ("planning",),
    ("finding",),
    ("auditing", "export", "streaming", "engines"),
    ("metrics", "reporting", "restore"),
    ("spark",),
    ("cli",),
)


def test_packages_import_only_inner_layers() -> None:
    level = {name: number for number, names in enumerate(LAYERS) for name in names}

    def layer(module: str) -> str | None:
        parts = module.split(".")
        return parts[1] if parts[0] == "kts_source" and len(parts) > 1 else None

    internal_imports = [
        (entry, importer, imported)
        for entry in all_imports()
        if (importer := layer(entry.importer)) and (imported := layer(entry.imported))
    ]
    assert {name for _, *pair in internal_imports for name in pair} <= level.keys()
    wrong = [
        str(entry)
        for entry, importer, imported in internal_imports
        if importer != imported and level[imported] >= level[importer]
    ]
    assert wrong == []
