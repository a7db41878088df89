"""Writes the output of commands: tables, JSON, records and progress bars. Also writes files, which
are replaced atomically.
"""

from __future__ import annotations

import base64
import json
import math
import os
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

from kts_source.errors import InvalidOptionError
from kts_source.store.open_store import local_file
from kts_source.texts import camel_case, printable, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa


def check_output(path: str) -> None:
    """Checks that a file can be written at a path. Commands call it before they start to work.

    Raises:
        InvalidOptionError: The path is not local, or its folder does not exist.
    """
    folder = local_file(path).parent
    if not folder.is_dir():
        raise InvalidOptionError(
            f"{path} cannot be written: the folder {folder} does not exist. Create it, or choose"
            " another path"
        )


def write_atomically(path: str, text: str) -> None:
    """Replaces the contents of a file atomically. Raises `InvalidOptionError` if the file cannot be
    written.
    """
    target = local_file(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        fresh.write_text(text, encoding="utf-8", newline="\n")
        fresh.replace(target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise InvalidOptionError(
            f"{path} cannot be written: {error.strerror}. Choose another path"
        ) from None


def remove_file(path: str) -> None:
    """Removes an old output file, so that a failing command leaves no outdated output. Does nothing
    if the file does not exist.

    Raises:
        InvalidOptionError: The file cannot be removed.
    """
    try:
        local_file(path).unlink(missing_ok=True)
    except OSError as error:
        raise InvalidOptionError(
            f"{path} cannot be written: {error.strerror}. Choose another path"
        ) from None


@contextmanager
def progress_bar(name: str, *, is_shown: bool = True) -> Iterator[Callable[..., None]]:
    """Shows a progress bar in bytes if stderr is a terminal and `is_shown` is True. Yields a
    function that updates the bar, with the arguments of `rich.progress.Progress.update` except the
    task.
    """
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), DownloadColumn())
    is_hidden = not console.is_terminal or not is_shown
    with Progress(*columns, console=console, disable=is_hidden) as bar:
        yield partial(bar.update, bar.add_task(name, total=None))


def echo_printable(text: str, *, err: bool = False) -> None:
    """Prints a line. Escapes control characters in it."""
    click.echo(printable(text), err=err)


_MAX_WIDTH: Final = 10_000


def print_json(value: object) -> None:
    """Prints a JSON document."""
    click.echo(json_text(value, indent=1))


def camel_cased(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row with its names in camel case: `tier_end` becomes `tierEnd`."""
    return {camel_case(name): value for name, value in row.items()}


def json_text(value: object, indent: int | None = None) -> str:
    """Returns a value as JSON text. Control characters are escaped, because terminals interpret
    them.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isprintable():
        return text
    lines = (line if line.isprintable() else _escaped(line) for line in text.split("\n"))
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table with aligned columns. Columns with numbers are right-aligned, with thousands
    separators.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for number, name in enumerate(header):
        numeric = any(isinstance(row[number], int) for row in rows)
        table.add_column(printable(name), no_wrap=True, justify="right" if numeric else "left")
    for row in rows:
        # `Text`, because values must not be interpreted as markup.
        table.add_row(*(Text(_shown(cell)) for cell in row))
    console = Console()
    # Wide tables are not truncated, because ids must stay complete. The terminal wraps the lines.
    needed = Measurement.get(console, console.options.update(max_width=_MAX_WIDTH), table).maximum
    Console(width=max(needed, console.width)).print(table)


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else printable(str(cell))


_MICROSECONDS_OF_A_DAY: Final = 86_400_000_000


def json_values(array: pa.Array) -> list[Any]:
    """Converts an Arrow array to a list of JSON values.

    Structs and maps become objects, lists become arrays, and decimals, dates and times become
    texts. Bytes become text if they are UTF-8, otherwise `{"base64": …}`.
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
        # A timestamp column without a time zone contains local times.
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


def _plain(value: Any) -> Any:  # noqa: ANN401  # any value of Arrow
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


def is_bytes(field: pa.Field) -> bool:
    """Returns whether a column contains bytes."""
    import pyarrow as pa

    return bool(pa.types.is_binary(field.type))


def dated_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Converts a batch to a list of rows with Python values. Timestamps become texts.

    Python cannot represent years after 9999. Such timestamps exist if a producer sends microseconds
    instead of milliseconds.
    """
    import pyarrow as pa

    stamps = [field.name for field in batch.schema if pa.types.is_timestamp(field.type)]
    for name in stamps:
        number = batch.schema.get_field_index(name)
        batch = batch.set_column(number, name, batch.column(number).cast(pa.int64()))
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        row.update({name: None if row[name] is None else time_text(row[name]) for name in stamps})
    return rows
