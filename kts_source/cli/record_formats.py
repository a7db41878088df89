r"""Prints records as lines of JSON, as CSV, as a table, as raw values, or in a format of kcat (the
command-line client of Kafka).

A format of kcat is a text with these tokens:

    %t topic          %p partition   %o offset   %T timestamp in ms since 1970
    %k key            %K size of the key in bytes, -1 without a key
    %s or %v value    %S size of the value in bytes, -1 without a value
    %h headers, as name=value,…
    %% a percent sign
    \n \r \t \\ and \xHH are the characters of these escapes
"""

from __future__ import annotations

import base64
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

from kts_source.cli.output import (
    dated_rows,
    is_bytes,
    json_text,
    json_values,
)
from kts_source.errors import InvalidOptionError
from kts_source.texts import preview_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

JSON: Final = "json"
CSV: Final = "csv"
TABLE: Final = "table"
RAW: Final = "raw"
FORMATS: Final = (JSON, CSV, TABLE, RAW)


_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class RecordWriter(Protocol):
    """Writes batches of records to standard output."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the records of a batch."""


def default_format() -> str:
    """Returns the format for this standard output: a table on a terminal, otherwise JSON."""
    return TABLE if sys.stdout.isatty() else JSON


def record_writer(form: str, schema: pa.Schema) -> RecordWriter:
    """Returns the writer of a format.

    Args:
        form: One of `FORMATS`, or a format of kcat, which contains `%`.
        schema: Schema of the records.

    Raises:
        InvalidOptionError: The format is unknown or does not fit the schema.
    """
    if form == JSON:
        return JsonLines()
    if form == CSV:
        return _Csv(schema)
    if form == TABLE:
        return _Table(schema)
    if form == RAW:
        if not is_bytes(schema.field("value")):
            raise InvalidOptionError("--format raw needs values as bytes: remove --value-format")
        return _Raw()
    if "%" not in form:
        raise InvalidOptionError(
            f"--format must be {', '.join(FORMATS)} or a text with tokens such as"
            f" '%k %v\\n', not {form!r}"
        )
    return _Template(form)


class JsonLines:
    """Writes one line of JSON for each record."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the records of a batch."""
        out = sys.stdout.buffer
        for record in json_records(batch):
            out.write(json_text(record).encode() + b"\n")


class _Raw:
    """Writes values only, each followed by a line feed."""

    def write(self, batch: pa.RecordBatch) -> None:
        for value in batch.column("value"):
            sys.stdout.buffer.write((value.as_py() or b"") + b"\n")


def json_records(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Converts a batch to objects for JSON. Bytes become text if they are UTF-8 without control
    characters other than tabs and line breaks; otherwise they become base64 in a field
    `<name>Base64`.
    """
    typed = {
        field.name: json_values(batch.column(field.name))
        for field in batch.schema
        if field.name in ("key", "value") and not is_bytes(field)
    }
    names = batch.schema.names
    plain = batch.select([name for name in names if name not in typed])
    records = []
    for number, row in enumerate(dated_rows(plain)):
        record = _json_record(row)
        if typed:
            record |= {name: values[number] for name, values in typed.items()}
            ordered = {name: record.pop(name) for name in names if name in record}
            record = ordered | record
        records.append(record)
    return records


def _json_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the bytes in a row for JSON, by the rules of `json_records`."""
    record: dict[str, Any] = {}
    for name, value in row.items():
        if name == "headers" and value is not None:
            record[name] = [_json_record(header) for header in value]
        elif isinstance(value, bytes):
            text = _as_text(value)
            if text is None:
                record[f"{name}Base64"] = base64.b64encode(value).decode()
            else:
                record[name] = text
        else:
            record[name] = value
    return record


def _as_text(value: bytes) -> str | None:
    """Returns the text of bytes. Returns `None` if they are not UTF-8 or have control characters,
    as small numbers in binary formats do.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROLS.search(text) else text


def columns_of_format(form: str) -> tuple[str, ...] | None:
    """Returns the columns that a format needs; `None` if the user chooses the columns."""
    if form == RAW:
        return ("value",)
    if form in FORMATS or "%" not in form:
        return None
    names = [
        _COLUMNS[match[1]] for match in re.finditer(r"%([a-zA-Z])", form) if match[1] in _COLUMNS
    ]
    return tuple(dict.fromkeys(names)) or ("offset",)


_COLUMNS: Final[Mapping[str, str]] = {
    **dict.fromkeys("kK", "key"),
    **dict.fromkeys("svS", "value"),
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp",
    "h": "headers",
}
_PARTS: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|([^%\\]+)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}


class _Template:
    r"""Writes records by a format string with kcat's tokens, such as `%k %v\n`. Keys and values are
    written as they are stored.
    """

    def __init__(self, form: str) -> None:
        self._parts: list[bytes | str] = []
        for match in _PARTS.finditer(form):
            token, escape, text = match.groups()
            if text is not None:
                self._parts.append(text.encode())
            elif token is None:
                self._parts.append(_escaped(escape))
            elif token == "%":
                self._parts.append(b"%")
            elif token in _COLUMNS:
                self._parts.append(token)
            else:
                raise InvalidOptionError(
                    f"--format contains %{token}: use"
                    f" {', '.join(f'%{name}' for name in _COLUMNS)} or %%"
                )

    def write(self, batch: pa.RecordBatch) -> None:
        out, is_terminal = sys.stdout.buffer, sys.stdout.isatty()
        values = {name: _cells(batch, name) for name in batch.schema.names}
        for number in range(batch.num_rows):
            for part in self._parts:
                if isinstance(part, bytes):
                    out.write(part)
                else:
                    cell = _token(part, values[_COLUMNS[part]][number])
                    # Terminals interpret control characters.
                    out.write(_safe(cell) if is_terminal else cell)


def _safe(cell: bytes) -> bytes:
    return printable(cell.decode("utf-8", "replace")).encode()


def _escaped(escape: str) -> bytes:
    if escape.startswith("x") and len(escape) == 3:
        return bytes.fromhex(escape[1:])
    if escape not in _ESCAPES:
        raise InvalidOptionError(f"--format contains \\{escape}: use \\n, \\r, \\t, \\xHH or \\\\")
    return _ESCAPES[escape]


def _token(token: str, value: Any) -> bytes:  # noqa: ANN401  # bytes, int or headers
    if token in "KS":
        return b"%d" % (-1 if value is None else len(value))
    if token == "h":
        return b",".join(
            header["key"].encode() + b"=" + (header["value"] or b"") for header in value or ()
        )
    if value is None:
        return b""
    return value if isinstance(value, bytes) else str(value).encode()


def _cells(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Returns the values of a column: bytes, numbers, texts or headers. Timestamps are in ms, and
    decoded values are JSON.
    """
    import pyarrow as pa

    column = batch.column(name)
    if name == "timestamp":
        return [None if us is None else us // 1000 for us in column.cast(pa.int64()).to_pylist()]
    if name in ("key", "value") and not is_bytes(batch.schema.field(name)):
        values = json_values(column)
        return [
            None
            if value is None
            else (value if isinstance(value, str) else json_text(value)).encode()
            for value in values
        ]
    cells: list[Any] = column.to_pylist()
    return cells


class _Csv:
    """Writes CSV with a header. Null becomes an empty field, and an empty text becomes `""`. Bytes
    that are not UTF-8, and texts that begin with `base64:`, become `base64:` and their base64.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._header: Sequence[str] | None = schema.names

    def write(self, batch: pa.RecordBatch) -> None:
        out = sys.stdout.buffer
        if self._header is not None:
            out.write(",".join(map(_quoted, self._header)).encode() + b"\r\n")
            self._header = None
        is_terminal = sys.stdout.isatty()
        columns = [_texts(batch, name) for name in batch.schema.names]
        for row in zip(*columns, strict=True):
            line = ",".join(map(_quoted, row))
            # Terminals interpret control characters.
            out.write((printable(line) if is_terminal else line).encode() + b"\r\n")


_BASE64: Final = "base64:"


def _texts(batch: pa.RecordBatch, name: str) -> list[str | None]:
    """Returns the values of a column as texts for CSV."""
    if is_bytes(batch.schema.field(name)):
        return [
            None if value is None else _field(value) for value in batch.column(name).to_pylist()
        ]
    rows = json_records(batch.select([name]))
    texts = [row.get(name) for row in rows]
    return [text if text is None or isinstance(text, str) else json_text(text) for text in texts]


def _field(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _BASE64
    return _BASE64 + base64.b64encode(value).decode() if text.startswith(_BASE64) else text


def _quoted(text: str | None) -> str:
    if text is None:
        return ""
    if text and not re.search(r'[,"\r\n]', text):
        return text
    return '"' + text.replace('"', '""') + '"'


_MIN_VALUE_WIDTH: Final = 20
_MAX_CELL_WIDTH: Final = 40


class _Table:
    """Writes a table whose columns are as wide as the first records need. Long keys and values are
    truncated.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._names = [name for name in schema.names if name != "timestampType"]
        self._widths: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        columns = [self._column(batch, name) for name in self._names]
        if not self._widths:
            self._widths = [
                min(max(len(name), *map(len, cells)), _MAX_CELL_WIDTH)
                for name, cells in zip(self._names, columns, strict=True)
            ]
            if "value" in self._names:  # the rest of the line
                width = shutil.get_terminal_size().columns
                at = self._names.index("value")
                others = sum(self._widths) - self._widths[at] + 2 * (len(self._names) - 1)
                self._widths[at] = max(_MIN_VALUE_WIDTH, width - others)
            self._print(self._names)
        for row in zip(*columns, strict=True):
            self._print(row)

    def _column(self, batch: pa.RecordBatch, name: str) -> list[str]:
        field = batch.schema.field(name)
        if is_bytes(field):
            return [preview_bytes(value, 10_000) for value in batch.column(name).to_pylist()]
        if name == "headers":
            return [
                ", ".join(f"{h['key']}={preview_bytes(h['value'], 20)}" for h in headers or ())
                for headers in batch.column(name).to_pylist()
            ]
        texts = _texts(batch, name)
        return ["null" if text is None else printable(text) for text in texts]

    def _print(self, cells: Sequence[str]) -> None:
        shown = []
        for name, cell, width in zip(self._names, cells, self._widths, strict=True):
            text = cell if len(cell) <= width else cell[: width - 1] + "…"
            is_number = name in ("partition", "offset")
            shown.append(text.rjust(width) if is_number else text.ljust(width))
        sys.stdout.buffer.write("  ".join(shown).rstrip().encode() + b"\n")
