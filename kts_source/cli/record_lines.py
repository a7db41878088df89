"""Records as lines on standard output."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any

from kts_source.cli.json_values import json_values
from kts_source.cli.tables import json_text, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa


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
