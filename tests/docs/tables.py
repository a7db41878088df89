"""Tables of a page of the documentation."""

from __future__ import annotations

from tests.docs.fences import ROOT


def rows_under(page: str, heading: str) -> dict[str, tuple[str, ...]]:
    """The first table behind a heading: first cell of each row -> the others.

    Args:
        page: Name of a file in `docs/`.
        heading: Its text, without marks.
    """
    lines = iter((ROOT / "docs" / page).read_text().splitlines())
    for line in lines:
        if line.strip("# ") == heading:
            break
    found: list[tuple[str, ...]] = []
    for line in lines:
        if line.startswith("|"):
            found.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
        elif found or line.startswith("#"):
            break
    _head, _dashes, *rows = found
    return {first: tuple(others) for first, *others in rows}
