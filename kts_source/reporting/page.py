"""Writes the report of a tier as one HTML file. The file loads nothing else, and runs only its own
script.

Facts and segments are packed into one text:

    base64 of zlib of
        int32, little-endian: length of the JSON that follows
        JSON: the facts; `columns` names each column and `count` is the number of rows
        for each column: 8 planes of `count` bytes

The numbers of a column are stored as differences from the previous number, in zig-zag encoding (0,
−1, 1, −2, … become 0, 1, 2, 3, …), as unsigned 64-bit integers. The first plane of a column
contains the least significant byte of each of these integers, the last plane the most significant.
The upper planes are mostly zeros, so they compress well.
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
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.errors import InvalidOptionError
from kts_source.libraries import errors_only
from kts_source.options import options_of
from kts_source.planning.describe import (
    LockedPartition,
    TierDescription,
    described_plan,
    locked_partition,
    only,
    partitions_with_keys,
    unless_locked,
)
from kts_source.planning.planner import paused_collector
from kts_source.reporting.facts import TierFacts, tier_facts
from kts_source.store.open_store import local_file
from kts_source.texts import Displayed, Table, printable
from kts_source.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy.typing as npt

    from kts_source.auditing.report import AuditReport
    from kts_source.options import OptionValue, PathOrOptions, ScanOptions
    from kts_source.planning.describe import DescribedPlan
    from kts_source.reporting.facts import SegmentColumns
    from kts_source.store.object_store import ObjectStore


MAX_IDS: Final = 20_000
"""If there are more segments, the page has only the ids of those that are not served."""
_MAX_EXACT: Final = 1 << 52
_FRAME: Final = "width:100%;height:800px;border:0"


def packed(facts: Mapping[str, Any], segments: SegmentColumns) -> str:
    """Packs facts and segments into one text, in the layout that the module docstring describes.
    The script of the page unpacks it.

    Offsets are stored as the lengths of segments and the gaps between them. Copy times are stored
    as the delay after the newest record. These numbers are smaller, so they compress better.
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
        (int(np.abs(column).max(initial=0)) for column in (segments.start, segments.stop)),
        default=0,
    )
    head = {
        **facts,
        "columns": list(columns),
        "count": len(segments),
        "exact": offsets < _MAX_EXACT,
        "ids": _ids(segments),
    }
    document = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    data = [len(document).to_bytes(4, "little"), document, *map(_planes, columns.values())]
    return base64.b64encode(zlib.compress(b"".join(data), 9)).decode()


def _ids(segments: SegmentColumns) -> dict[int, str]:
    rows: Iterable[int] = range(len(segments))
    if len(segments) > MAX_IDS:
        rows = np.flatnonzero(~segments.is_served)[:MAX_IDS].tolist()
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
    """Returns the HTML file.

    Texts from the tier cannot inject HTML: they are escaped in the heading, and encoded as base64
    in the packed facts. The script creates elements from the facts, and never parses HTML. The
    content security policy enforces this.
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
        "<main><noscript>This page needs JavaScript. kts topics prints the same numbers."
        "</noscript></main>\n"
        "<footer>Made by kts report. Costs are list prices, without manifests.</footer>\n"
        f'<script type="application/octet-stream" id="facts">{data}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TierReport(Displayed):
    """The report of a tier.

    Attributes:
        facts: The facts that the page displays.
    """

    facts: TierFacts

    def to_html(self) -> str:
        """Returns the report as an HTML page that loads no other file."""
        return page(self.facts)

    def _tables(self) -> tuple[Table]:
        described = TierDescription(self.facts.partitions).table
        return (replace(described, title=f"Report of {self.facts.uri}"),)

    def _repr_html_(self) -> str:
        """Returns the page in a frame, which notebooks display."""
        # The frame has no access to the notebook: scripts of the page have an origin of their own.
        return (
            f'<iframe srcdoc="{html.escape(self.to_html())}" sandbox="allow-scripts"'
            f' title="Tier report" style="{_FRAME}"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Writes the report as an HTML file in UTF-8.

        Raises:
            InvalidOptionError: The path is a URL, or looks like one.
            OSError: The file cannot be written.
        """
        local_file(path).write_text(self.to_html(), encoding="utf-8", newline="\n")


def report(
    source: PathOrOptions | ScanOptions | None = None,
    *,
    audit: AuditReport | None = None,
    store: ObjectStore | None = None,
    now_ms: int | None = None,
    **more: OptionValue,
) -> TierReport:
    """Creates a report of the selected topics of a tier. The report shows segments over time and by
    offset, their contents, their cost, and holes.

    Reads the same files as `describe`, and reports the same numbers. If the private key of a
    partition is missing, the report shows only facts from the partition's manifests.

    Args:
        source: Options of the data source, or the path of the tier; `None` = they are in `more`.
            Bounds are ignored.
        audit: Result of an audit of the same tier, to include in the report.
        store: Store of the tier; by default it is opened from the options.
        now_ms: Current time in ms since 1970; by default the time of the clock.
        **more: Options in addition to those in `source`.

    Raises:
        InvalidOptionError: The audit is of another tier.
        TieredKafkaError: The tier cannot be planned. Holes are not errors.
    """
    made_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    options = options_of(source, **more)
    tier = None if store is None else Tier(store)
    described, locked = describe_unlocked(options, tier)
    if described is None:  # the error names the key
        described = described_plan(options, tier)
    if audit is not None and audit.path != described.uri:
        raise InvalidOptionError(
            f"the audit is of {printable(audit.path)}, but the report is of"
            f" {printable(described.uri)}; audit the tier of the report"
        )
    with paused_collector():
        return TierReport(tier_facts(described, made_ms, audit, locked))


def describe_unlocked(
    options: ScanOptions, tier: Tier | None = None
) -> tuple[DescribedPlan | None, tuple[LockedPartition, ...]]:
    """Describes the partitions whose keys are available. Returns two values: the description
    (`None` if each partition needs a missing key), and the partitions that need a missing key.

    Raises:
        TieredKafkaError: See `describe`. A missing key is no error.
    """
    if options.by_metadata_topic:  # the following needs listings
        return described_plan(options, tier), ()
    described = unless_locked(partial(described_plan, options, tier))
    if described is not None:
        return described, ()
    with errors_only("kts_source"):  # the first attempt has logged all warnings
        partitions = partitions_with_keys(replace(options, fail_on_data_loss=False), tier)
        unlocked, locked = [], []
        for partition, keys in partitions:
            alone = only(options, [partition])
            # The missing key may be needed only for old segments, which are not read here.
            if keys and unless_locked(partial(described_plan, alone, tier)) is None:
                locked.append(locked_partition(partition, keys))
            else:
                unlocked.append(partition)
        described = described_plan(only(options, unlocked), tier) if unlocked else None
    return described, tuple(locked)
