"""Facts and columns in a text that is small enough for a page.

    base64 of zlib of
        int32, little-endian: length of the JSON that follows
        JSON: the facts; `columns` names each column and `count` tells its rows
        for each column: 8 planes of `count` bytes

The planes of a column are the bytes of its numbers, the least first: of each number the difference
from the one before, as an unsigned 64-bit integer that is even for differences from 0 up and odd
for those below (0, −1, 1, −2, …). High bytes are mostly zeros in a row, which cost nothing.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from kts_source.reporting.segments import SegmentColumns

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
