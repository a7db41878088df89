"""The page: one HTML file that loads nothing and runs nothing but its own script.

Facts and columns in a text that is small enough for a page.

    base64 of zlib of
        int32, little-endian: length of the JSON that follows
        JSON: the facts; `columns` names each column and `count` tells its rows
        for each column: 8 planes of `count` bytes

The planes of a column are the bytes of its numbers, the least first: of each number the difference
from the one before, as an unsigned 64-bit integer that is even for differences from 0 up and odd
for those below (0, −1, 1, −2, …). High bytes are mostly zeros in a row, which cost nothing.

A report from its options to its page.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
import json
import time
import zlib
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.errors import InvalidOptionError
from kts_source.libraries import errors_only
from kts_source.options import ScanOptions, parse_options
from kts_source.planning.describe import described_plan
from kts_source.planning.gc_pause import paused_collector
from kts_source.planning.locked import (
    LockedPartition,
    locked_partition,
    only,
    partitions_with_keys,
    unless_locked,
)
from kts_source.reporting.facts import TierFacts, tier_facts
from kts_source.store.open_store import local_file
from kts_source.texts import printable
from kts_source.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy.typing as npt

    from kts_source.auditing.report import AuditReport
    from kts_source.planning.describe import DescribedPlan
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.reporting.segments import SegmentColumns
    from kts_source.store.object_store import ObjectStore


MAX_IDS: Final = 20_000
"""Segments up to which the page knows all ids; above, it knows those of unserved segments."""
_EXACT: Final = 1 << 52


def packed(facts: Mapping[str, Any], segments: SegmentColumns) -> str:
    """The text that the page's script unpacks, see above.

    Offsets travel as lengths and as gaps to the row before, times of copies as delays, which are
    smaller than the numbers themselves.
    """
    before = np.concatenate([[0], segments.stop[:-1]]) if len(segments) else segments.stop
    columns = {
        "partition": segments.partition,
        "gap": segments.start - before,
        "length": segments.stop - segments.start,
        "original": segments.original,
        "saved": segments.original - segments.stored,
        "newest": segments.newest_s,
        "delay": segments.copied_s - segments.newest_s,
        "state": segments.state,
        "epoch": segments.epoch,
        "flags": segments.flags,
        "storageClass": segments.storage_class,
    }
    offsets = max(
        (int(np.abs(one).max(initial=0)) for one in (segments.start, segments.stop)), default=0
    )
    head = {
        **facts,
        "columns": list(columns),
        "count": len(segments),
        "exact": offsets < _EXACT,
        "ids": _ids(segments),
    }
    document = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    data = [len(document).to_bytes(4, "little"), document, *map(_planes, columns.values())]
    return base64.b64encode(zlib.compress(b"".join(data), 9)).decode()


def _ids(segments: SegmentColumns) -> dict[int, str]:
    """Row to segment id, as many as there is room for."""
    rows = range(len(segments))
    if len(segments) > MAX_IDS:
        rows_left = np.flatnonzero(~segments.is_served)[:MAX_IDS]
        return {int(row): printable(segments.ids[row]) for row in rows_left}
    return {row: printable(segments.ids[row]) for row in rows}


def _planes(column: npt.NDArray[np.int64]) -> bytes:
    steps = np.diff(column, prepend=np.int64(0))
    folded = ((steps << 1) ^ (steps >> 63)).astype("<i8")
    return folded.view(np.uint8).reshape(len(column), 8).T.tobytes()


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


@dataclass(frozen=True, slots=True, eq=False)
class TierReport:
    """A tier as a page.

    Attributes:
        facts: What the page shows.
    """

    facts: TierFacts

    def to_html(self) -> str:
        """The page: one file that loads nothing from elsewhere."""
        return page(self.facts)

    def save(self, path: str | Path) -> None:
        """Writes the page, as UTF-8.

        Raises:
            InvalidOptionError: The path is the URL of a store, or nearly one.
            OSError: The file cannot be written.
        """
        local_file(path).write_text(self.to_html(), encoding="utf-8", newline="\n")


def report(
    source: Mapping[str, str] | ScanOptions,
    *,
    audit: AuditReport | None = None,
    store: ObjectStore | None = None,
    now_ms: int | None = None,
) -> TierReport:
    """Draws the selected topics of a tier: their segments over time and offsets, and what they
    hold, cost and lack.

    It reads what `describe` reads, and its numbers are those of `describe`. Partitions that cannot
    be described for want of a private key are named, with what their manifests tell.

    Args:
        source: Options as for the data source; bounds among them are ignored.
        audit: What `audit` found in the same tier, to be shown beside.
        store: The tier; opened from the options when not given.
        now_ms: The time in ms since 1970 that ages are counted from; the clock's unless given.

    Raises:
        InvalidOptionError: The audit is of another tier.
        TieredKafkaError: As planning does, holes aside.
    """
    made_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    options = source if isinstance(source, ScanOptions) else parse_options(source)
    described, locked = _described(options, None if store is None else Tier(store))
    if audit is not None and audit.path != described.uri:
        told, found = printable(audit.path), printable(described.uri)
        raise InvalidOptionError(f"the audit is of {told}, the report of {found}")
    with paused_collector():
        return TierReport(tier_facts(described, made_ms, audit, locked))


def _described(
    options: ScanOptions, tier: Tier | None
) -> tuple[DescribedPlan, tuple[LockedPartition, ...]]:
    """What can be described, and what cannot for want of a key."""
    if options.by_metadata_topic:  # what follows lists
        return described_plan(options, tier), ()
    made = unless_locked(lambda: described_plan(options, tier))
    if made is not None:
        return made, ()
    with errors_only("kts_source"):  # the first attempt has said what there is to say
        found = partitions_with_keys(replace(options, fail_on_data_loss=False), tier)

        def is_locked(part: ListedPartition) -> bool:
            one = only(options, [part])
            return unless_locked(lambda: described_plan(one, tier)) is None

        # Old segments may be encrypted where nothing that describing needs is.
        locked = [(part, keys) for part, keys in found if keys and is_locked(part)]
        shut = {id(part) for part, _ in locked}
        open_ones = [part for part, _ in found if id(part) not in shut]
        # Where all are locked, the error says so.
        whole = described_plan(only(options, open_ones) if open_ones else options, tier)
    return whole, tuple(locked_partition(part, keys) for part, keys in locked)
