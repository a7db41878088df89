"""Inside `kts_source`, rooms import only rooms further in (see ARCHITECTURE.md)."""

from __future__ import annotations

from tests.test_rings import ALL_IMPORTS

# The rooms of ring 1 and what is around them, inner ones first: each imports only those before it.
ROOMS = (
    ("texts",),
    ("errors", "secret", "columns", "processes"),
    ("libraries",),
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
    ("metrics", "reporting"),
    ("spark",),
    ("cli",),
)


def test_rooms_import_only_rooms_further_in() -> None:
    level = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}

    def room(module: str) -> str | None:
        parts = module.split(".")
        return parts[1] if parts[0] == "kts_source" and len(parts) > 1 else None

    inside = [
        (found, importer, imported)
        for found in ALL_IMPORTS
        if (importer := room(found.importer)) and (imported := room(found.imported))
    ]
    assert {name for _, *pair in inside for name in pair} <= level.keys()
    wrong = [
        str(found)
        for found, importer, imported in inside
        if importer != imported and level[imported] >= level[importer]
    ]
    assert wrong == []
