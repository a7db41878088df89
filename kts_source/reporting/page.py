"""The page: one HTML file that loads nothing and runs nothing but its own script."""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
from importlib import resources
from typing import TYPE_CHECKING, Final

from kts_source.reporting.packing import packed
from kts_source.texts import printable

if TYPE_CHECKING:
    from kts_source.reporting.facts import TierFacts

_STYLE: Final = "report.css"
_SCRIPTS: Final = (
    "unpack.js",
    "texts.js",
    "elements.js",
    "palette.js",
    "axes.js",
    "lanes.js",
    "pointing.js",
    "charts.js",
    "tables.js",
    "app.js",
)


def page(facts: TierFacts) -> str:
    """The whole file.

    Texts of the tier are in it twice: escaped in the heading, and in the packed facts, whose
    base64 nothing can leave. The script makes elements of them, and no HTML: the policy lets it
    not even try.
    """
    style = _asset(_STYLE)
    script = '"use strict";\n' + "\n".join(map(_asset, _SCRIPTS))
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}';"
        " base-uri 'none'; form-action 'none'; require-trusted-types-for 'script';"
        " trusted-types 'none'"
    )
    uri = html.escape(printable(facts.uri))
    made = datetime.datetime.fromtimestamp(facts.made_ms // 1000, datetime.UTC)
    data = packed(facts.to_dict(), facts.segments)
    when = f"{made:%Y-%m-%d %H:%M:%S} UTC"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{uri} · tier report</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1><small>Tier report, {when}</small>{uri}</h1></header>\n"
        "<main><noscript>The picture needs JavaScript; kts topics has the same numbers as a table."
        "</noscript></main>\n"
        "<footer>Made by kts report. Costs are at list prices and without manifests.</footer>\n"
        f'<script type="application/octet-stream" id="facts">{data}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
