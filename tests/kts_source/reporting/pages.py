"""Parses a report page from its HTML alone, without code of the product."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, Final

_EXACT: Final = (1 << 53) - 1


@dataclass(frozen=True, slots=True)
class Page:
    """The parsed content of a report page.

    Attributes:
        facts: The JSON document that the page contains in compressed form.
        columns: The columns of the segments, which the page contains in the same compressed data.
        tags: Every start tag with its attributes.
        texts: Maps a tag to the texts inside it.
    """

    facts: dict[str, Any]
    columns: dict[str, list[int]]
    tags: tuple[tuple[str, dict[str, str | None]], ...]
    texts: dict[str, list[str]]

    @property
    def partitions(self) -> list[dict[str, Any]]:
        """Returns a dictionary of names and values for each partition."""
        table = self.facts["partitions"]
        return [dict(zip(table["names"], row, strict=True)) for row in table["rows"]]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags:
            self.texts.setdefault(self.tags[-1][0], []).append(data)


def read_page(html: str) -> Page:
    """Parses the page as a browser would."""
    reader = _Reader()
    reader.feed(html)
    (text,) = re.findall(r'<script type="application/octet-stream" id="facts">([^<]*)<', html)
    data = zlib.decompress(base64.b64decode(text, validate=True))
    size = int.from_bytes(data[:4], "little")
    facts = json.loads(data[4 : 4 + size])
    count, names, rest = facts["count"], facts["columns"], data[4 + size :]
    assert len(rest) == 8 * count * len(names)
    columns = {}
    for number, name in enumerate(names):
        planes = rest[8 * count * number : 8 * count * (number + 1)]
        total, values = 0, []
        for row in range(count):
            folded = int.from_bytes(planes[row::count], "little")
            total += -(folded + 1) // 2 if folded % 2 else folded // 2
            values.append(total)
        columns[name] = values
    start, stop, position = [], [], 0
    for gap, length in zip(columns["gap"], columns["length"], strict=True):
        start.append(position + gap)
        position = start[-1] + length
        stop.append(position)
    stored = [a - b for a, b in zip(columns["original"], columns["saved"], strict=True)]
    copied = [a + b for a, b in zip(columns["newest"], columns["delay"], strict=True)]
    more = {"start": start, "stop": stop, "stored": stored, "copied": copied}
    return Page(facts, columns | more, tuple(reader.tags), reader.texts)


def as_shown(value: Any) -> Any:  # noqa: ANN401  # of JSON
    """Returns a value as the page contains it: integers that are too large for JavaScript are
    texts.
    """
    if isinstance(value, list | tuple):
        return [as_shown(item) for item in value]
    if type(value) is int and abs(value) > _EXACT:
        return str(value)
    return value
