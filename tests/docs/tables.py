"""Reads tables of a documentation page."""

from __future__ import annotations

from tests.docs.fences import ROOT


def read_table(page: str, heading: str) -> dict[str, tuple[str, ...]]:
    """Reads the first table after the heading with the text `heading` of the page `page` in
    `docs/`. Maps the first cell of each row to the remaining cells of the row.
    """
    lines = iter((ROOT / "docs" / page).read_text().splitlines())
    for line in lines:
        if line.strip("# ") == heading:
            break
    table: list[tuple[str, ...]] = []
    for line in lines:
        if line.startswith("|"):
            table.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
        elif table or line.startswith("#"):
            break
    _head, _dashes, *rows = table
    return {first: tuple(others) for first, *others in rows}
