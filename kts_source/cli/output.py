"""Records as lines on standard output.

Files that appear as a whole.

Output for people and machines: tables, JSON, sizes, byte strings, times.

Typed keys and values as what JSON can say.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kts_source.errors import InvalidOptionError
from kts_source.store.open_store import local_file
from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa


def write_whole(path: str, text: str) -> None:
    """Writes a file as a whole: who reads it meanwhile sees the one before.

    Raises:
        InvalidOptionError: It cannot be written.
    """
    target = local_file(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(text, encoding="utf-8", newline="\n")
        fresh.replace(target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise InvalidOptionError(f"{path} cannot be written: {error.strerror}") from None


def remove_file(path: str) -> None:
    """Removes a file that is about to be written, if it is there.

    Raises:
        InvalidOptionError: It cannot be removed.
    """
    try:
        local_file(path).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidOptionError(f"{path} cannot be written: {error.strerror}") from None


_WIDEST: Final = 10_000
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECONDS_OF_400_YEARS: Final = 146_097 * 86_400_000_000
_LAST_YEAR: Final = 9999


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    click.echo(json_text(value, indent=1))


def json_text(value: object, indent: int | None = None) -> str:
    """JSON that a terminal only shows: what it would obey is escaped, as JSON has it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    lines = (line if line.isprintable() else _escaped(line) for line in text.split("\n"))
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns on standard output; numbers to the right, with thousands marked."""
    table = Table(box=None, header_style="bold")
    for number, name in enumerate(header):
        numeric = any(isinstance(row[number], int) for row in rows)
        table.add_column(printable(name), no_wrap=True, justify="right" if numeric else "left")
    for row in rows:
        # As `Text`, so that nothing in a value is markup.
        table.add_row(*(Text(_shown(cell)) for cell in row))
    console = Console()
    # Ids must stay whole: a table wider than the terminal is the terminal's to wrap.
    needed = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
    Console(width=max(needed, console.width)).print(table)


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else printable(str(cell))


def preview_bytes(value: bytes | None, width: int) -> str:
    """A byte string cut to `width` characters: text where it is printable, else hexadecimal."""
    if value is None:
        return "null"
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError:
        text = ""
    shown = (
        text if text.isprintable() and (text or not value) else f"0x{bytes(value[:width]).hex()}"
    )
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def time_text(microseconds: int, precision: str = "milliseconds") -> str:
    """A time since the epoch as ISO 8601 in UTC with milliseconds, or microseconds, of any year:
    one beyond 9999 has its sign and more digits, one before the year 1 is 0 or negative.
    """
    # The calendar repeats every 400 years; Python has the years from 1 to 9999.
    cycles, rest = divmod(microseconds, _MICROSECONDS_OF_400_YEARS)
    time = _EPOCH + datetime.timedelta(microseconds=rest)
    year = time.year + 400 * cycles
    years = f"{year:04d}" if 0 <= year <= _LAST_YEAR else f"{year:+05d}"
    return f"{years}{time.isoformat(timespec=precision)[4:]}"


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


def write_records(batch: pa.RecordBatch, form: str) -> None:
    """Writes records to standard output: with form `raw` values alone, else lines of JSON."""
    out = sys.stdout.buffer
    if form == "raw":
        for value in batch.column("value"):
            out.write((value.as_py() or b"") + b"\n")
        return
    typed = {
        field.name: json_values(batch.column(field.name))
        for field in batch.schema
        if field.name in ("key", "value") and not is_bytes(field)
    }
    names = batch.schema.names
    plain = batch.select([name for name in names if name not in typed])
    for number, row in enumerate(dated_rows(plain)):
        record = _json_record(row)
        if typed:
            found = record | {name: values[number] for name, values in typed.items()}
            first = {name: found.pop(name) for name in names if name in found}
            record = first | found
        out.write(json_text(record).encode() + b"\n")


def is_bytes(field: pa.Field) -> bool:
    """Whether a column holds bytes as they are stored."""
    import pyarrow as pa

    return bool(pa.types.is_binary(field.type))


def dated_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows in Python's types, timestamps as text: records may be dated when Python has no time,
    such as by producers that send microseconds as milliseconds.
    """
    import pyarrow as pa

    stamps = [field.name for field in batch.schema if pa.types.is_timestamp(field.type)]
    for name in stamps:
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, name, batch.column(place).cast(pa.int64()))
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        row.update({name: None if row[name] is None else time_text(row[name]) for name in stamps})
    return rows


def _json_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its bytes as text where they are UTF-8, else as base64 under `<name>Base64`."""
    record: dict[str, Any] = {}
    for name, value in row.items():
        if name == "headers" and value is not None:
            record[name] = [_json_record(header) for header in value]
        elif isinstance(value, bytes):
            try:
                record[name] = value.decode()
            except UnicodeDecodeError:
                record[f"{name}Base64"] = base64.b64encode(value).decode()
        else:
            record[name] = value
    return record
