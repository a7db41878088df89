"""Builds the site and opens it in a real browser, with the widths of a desktop and a phone, and in
the light and dark color scheme.

`KTS_SCREENSHOTS=folder` stores the pictures.
"""

from __future__ import annotations

import asyncio
import functools
import html
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from kts_source.broker.kafka_table import COUNTED, PREFIX
from kts_source.options import OPTIONS
from tests.browser import Browser, browser, chromium
from tests.docs.fences import ROOT
from tests.notebooks.test_notebooks import CHECKS, outputs, read
from tools.finish_site import anchor, finish, with_addresses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

PAGES: Final = (
    "",
    "quickstart/",
    "options/",
    "api/scan/",
    "from-kcat/",
    "troubleshooting-reference/",
)
WIDTHS: Final = (1280, 390)
SCHEMES: Final = ("light", "dark")

TABLE = """<table>
<thead><tr><th>option</th><th>default</th><th>meaning</th></tr></thead>
<tbody>
<tr>
<td><code>key.pairs.&lt;id&gt;.file</code></td>
<td><code>x</code></td>
<td>A <em>file</em>.</td>
</tr>
</tbody>
</table>"""


def test_finished_page_has_an_address_for_each_option() -> None:
    page, entries = with_addresses(f"<p>before</p>{TABLE}<p>after</p>", "options/")
    assert '<table class="names">' in page
    assert '<tr id="key-pairs-id-file">' in page
    assert (page.startswith("<p>before</p>"), page.endswith("<p>after</p>")) == (True, True)
    assert [(entry["location"], entry["title"]) for entry in entries] == [
        ("options/#key-pairs-id-file", "key.pairs.&lt;id&gt;.file")
    ]
    assert "A <em>file</em>. Default: <code>x</code>." in entries[0]["text"]


def test_page_without_option_table_stays_unchanged() -> None:
    page = TABLE.replace("<th>option</th>", "<th>condition</th>")
    assert with_addresses(page, "find/") == (page, [])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the site and returns its folder."""
    chromium()
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    configuration = (ROOT / "zensical.toml").read_text()
    configuration = configuration.replace('paths = ["."]', f'paths = ["{ROOT}"]')
    (folder / "zensical.toml").write_text(configuration)
    program = Path(sys.executable).with_name("zensical")
    subprocess.run([program, "build", "--strict"], cwd=folder, check=True, capture_output=True)
    assert finish(folder / "build" / "site") > 100
    return folder / "build" / "site"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder on this machine; yields the address."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


def open_site(folder: Path, profile: Path, look: Callable[[Browser, str], Awaitable[None]]) -> None:
    """Serves a folder and calls `look` with a browser tab and the address of the site."""

    async def run(address: str) -> None:
        async with browser(profile) as tab:
            await look(tab, address)

    with served(folder) as address:
        asyncio.run(run(address))


async def _check_loaded(tab: Browser, address: str) -> None:
    """Checks that the page fits the screen, logs nothing and loads nothing from elsewhere."""
    assert tab.console == []
    assert [url for url in tab.requests if not url.startswith((address, "data:", "about:"))] == []
    overflow = await tab.run("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0


async def _keep(tab: Browser, name: str) -> None:
    if folder := os.environ.get("KTS_SCREENSHOTS"):
        (Path(folder) / f"{name}.png").write_bytes(await tab.screenshot())


@pytest.mark.slow
def test_pages_fit_desktop_and_phone_in_both_schemes(site: Path, tmp_path: Path) -> None:
    async def look(tab: Browser, address: str) -> None:
        for scheme in SCHEMES:
            await tab.emulate_media(prefers_color_scheme=scheme)
            for width in WIDTHS:
                for page in PAGES:
                    await tab.visit(address + page, width)
                    await tab.settle()
                    await _check_loaded(tab, address)
                    colour = await tab.run("getComputedStyle(document.body).backgroundColor")
                    (red, *_) = (int(part) for part in re.findall(r"\d+", colour))
                    assert (red < 64) == (scheme == "dark"), (page, colour)
                    await _keep(tab, f"site-{page.strip('/').replace('/', '-')}-{width}-{scheme}")

    open_site(site, tmp_path, look)


@pytest.mark.slow
def test_names_in_tables_are_shown_on_one_line(site: Path, tmp_path: Path) -> None:
    broken = """[...document.querySelectorAll('table.names td:first-child code')]
        .filter(code => code.getClientRects().length !== 1).map(code => code.textContent)"""
    seen = "document.querySelectorAll('table.names td:first-child code').length"

    async def look(tab: Browser, address: str) -> None:
        for page in ("options/", "brokers/", "python-api/"):
            for width in WIDTHS:
                await tab.visit(address + page, width)
                assert await tab.run(seen) > 20
                assert await tab.run(broken) == []

    open_site(site, tmp_path, look)


@pytest.mark.slow
def test_quickstart_page_has_working_palette_tabs_and_navigation_links(
    site: Path, tmp_path: Path
) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    shown = "[...document.querySelectorAll('.tabbed-block')].filter(block => block.offsetParent)"

    async def look(tab: Browser, address: str) -> None:
        await tab.emulate_media(prefers_color_scheme="light")
        await tab.visit(f"{address}quickstart/", 1280)
        light = await tab.run(background)
        for _ in range(2):  # from the system's scheme to light, then to dark
            await tab.run(
                "document.querySelector('[data-md-component=palette] label:not([hidden])').click()"
            )
            await tab.settle()
        assert await tab.run(background) != light
        assert "register(spark)" in await tab.run(f"{shown}[1].textContent")
        await tab.run("document.querySelectorAll('.tabbed-labels label')[1].click()")
        await tab.settle()
        texts = await tab.run(f"{shown}.map(block => block.textContent)")
        assert all("register" not in text for text in texts)
        assert any("to_lazy" in text for text in texts)
        links = "[...document.querySelectorAll('.md-footer__link')].map(a => a.pathname)"
        assert await tab.run(links) == ["/", "/getting-started/"]

    open_site(site, tmp_path, look)


@pytest.mark.slow
def test_search_for_option_name_lists_that_option_first(site: Path, tmp_path: Path) -> None:
    names = [*(option.name for option in OPTIONS), *(f"{PREFIX}{name}" for name in COUNTED)]
    # A name with the same word twice is no phrase for the search.
    names = [
        name for name in names if len(set(re.split(r"\W", name))) == len(re.split(r"\W", name))
    ]
    assert len(names) > 80
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    script = f"""(async () => {{
        const index = await (await fetch('/search.json')).json();
        const worker = new Worker('/assets/javascripts/workers/{worker.name}');
        const ask = message => new Promise(done => {{
            worker.onmessage = event => done(event.data);
            worker.postMessage(message);
        }});
        await ask({{type: 0, data: index}});
        const first = {{}};
        for (const name of {json.dumps(names)}) {{
            const answer = await ask({{type: 2, data: {{input: name}}}});
            first[name] = index.items[answer.data.items[0].id].location;
        }}
        window.found = JSON.stringify(first);
    }})(), null"""

    async def look(tab: Browser, address: str) -> None:
        await tab.visit(address, 1280)
        await tab.run(script)
        first = json.loads(await tab.wait_for("window.found ?? null"))
        wrong = {name: hit for name, hit in first.items() if not hit.endswith(f"#{anchor(name)}")}
        assert wrong == {}

    open_site(site, tmp_path, look)


def notebook_page(name: str) -> str:
    """Returns a page that lists the outputs of a notebook."""
    parts = []
    for kind, text in outputs(read(name)):
        if kind == "image/png":
            parts.append(f'<img style="max-width:100%" src="data:image/png;base64,{text}">')
        elif kind == "text/html":
            parts.append(f'<div style="overflow-x:auto">{text}</div>')
        elif kind == "text/plain":
            parts.append(f'<pre style="overflow-x:auto">{html.escape(text)}</pre>')
    viewport = '<meta name="viewport" content="width=device-width">'
    head = f'<meta charset="utf-8"><link rel="icon" href="data:,">{viewport}'
    return f"<!doctype html>{head}<body>{''.join(parts)}</body>"


@pytest.mark.slow
def test_outputs_of_notebooks_fit_desktop_and_phone(tmp_path: Path) -> None:
    chromium()
    for name in CHECKS:
        # Without the sandbox, the check can look into the frame of the report.
        page = notebook_page(name).replace(' sandbox="allow-scripts"', "")
        (tmp_path / f"{name}.html").write_text(page)
    report = (
        "document.querySelector('iframe').contentDocument.documentElement.dataset.ready ?? null"
    )
    unseen = "[...document.images].filter(image => image.naturalWidth < 600).length"

    async def look(tab: Browser, address: str) -> None:
        for scheme in SCHEMES:
            await tab.emulate_media(prefers_color_scheme=scheme)
            for width in WIDTHS:
                for name in CHECKS:
                    await tab.visit(f"{address}{name}.html", width)
                    if name.startswith("01"):
                        await tab.wait_for(report)
                    await _check_loaded(tab, address)
                    assert await tab.run(unseen) == 0
                    await _keep(tab, f"notebook-{name[:2]}-{width}-{scheme}")

    open_site(tmp_path, tmp_path, look)
