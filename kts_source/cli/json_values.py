"""Typed keys and values as what JSON can say."""

from __future__ import annotations

import base64
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.cli.tables import time_text

if TYPE_CHECKING:
    import pyarrow as pa

_MICROSECONDS_OF_A_DAY: Final = 86_400_000_000


def json_values(array: pa.Array) -> list[Any]:
    """Structs and maps as objects, lists as arrays, decimals, dates and times as text, bytes as
    text where they are UTF-8 and as `{"base64": …}` elsewhere.
    """
    import pyarrow as pa

    kind = array.type
    if pa.types.is_struct(kind):
        names = [kind.field(number).name for number in range(kind.num_fields)]
        fields = [json_values(field) for field in array.flatten()]
        rows: list[Any] = [
            dict(zip(names, (field[row] for field in fields), strict=True))
            for row in range(len(array))
        ]
    elif pa.types.is_map(kind):
        keys, items = json_values(array.keys), json_values(array.items)
        rows = [
            dict(zip(keys[start:stop], items[start:stop], strict=True))
            for start, stop in _spans(array)
        ]
    elif pa.types.is_list(kind):
        items = json_values(array.values)
        rows = [items[start:stop] for start, stop in _spans(array)]
    elif pa.types.is_timestamp(kind):
        texts = [_time(value) for value in array.view(pa.int64()).to_pylist()]
        # Of a local time nobody knows the zone.
        rows = texts if kind.tz else [text and text.removesuffix("+00:00") for text in texts]
    elif pa.types.is_date(kind):
        days = array.view(pa.int32()).to_pylist()
        texts = [None if day is None else _time(day * _MICROSECONDS_OF_A_DAY) for day in days]
        rows = [text and text.partition("T")[0] for text in texts]
    else:
        rows = [_plain(value) for value in array.to_pylist()]
    if not array.null_count:
        return rows
    valid = array.is_valid().to_pylist()
    return [row if present else None for row, present in zip(rows, valid, strict=True)]


def _spans(array: pa.Array) -> list[tuple[int, int]]:
    return list(pairwise(np.asarray(array.offsets).tolist()))


def _time(microseconds: int | None) -> str | None:
    return None if microseconds is None else time_text(microseconds, "microseconds")


def _plain(value: Any) -> Any:  # noqa: ANN401  # whatever Arrow holds
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return str(value)
