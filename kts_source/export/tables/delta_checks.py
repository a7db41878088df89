"""What an existing Delta table must be, so that an export's files are whole in it.

delta-rs adds files as it is told: it compares neither partition columns nor constraints with them.
So whatever a table may ask of its writers beyond plain files and bounds is refused here, by name.

Source: Delta's PROTOCOL.md, "Requirements for Writers" and "Table Features".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import ExportError, UnsupportedTargetError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from deltalake import DeltaTable, Schema

    from kts_source.export.settings import ExportSettings

_WRITABLE: Final = frozenset(
    {
        # These ask nothing of files that are added.
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "timestampNanos",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # These do where a column or a property uses them, which is looked for.
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "invariants",
    }
)
_LAST_LEGACY_VERSION: Final = 5
"""Writer version 6 asks for identity columns; from 7 on tables list their features."""
_TXN_RETENTION: Final = "delta.setTransactionRetentionDuration"
_ELSEWHERE: Final = "Export into another table"


def check_demands(table: DeltaTable, settings: ExportSettings, uri: str) -> None:
    """Looks for what a table asks of its writers.

    Raises:
        UnsupportedTargetError: More than an export does.
    """
    metadata = table.metadata()
    if wanting := ", ".join(_unwritable(table, metadata.configuration)):
        raise UnsupportedTargetError(
            f"the table asks its writers for {wanting}, and an export writes plain files only."
            f" {_ELSEWHERE}",
            uri=uri,
        )
    if duration := metadata.configuration.get(_TXN_RETENTION):
        raise UnsupportedTargetError(
            f"the table forgets txn actions after a while ({_TXN_RETENTION} = {duration}), and with"
            " them the offsets that were exported: they would be written again. Unset the property",
            uri=uri,
        )
    append_only = metadata.configuration.get("delta.appendOnly", "").lower() == "true"
    if settings.compaction is not None and append_only:
        raise UnsupportedTargetError(
            "the table is only appended to (delta.appendOnly), and compact=True replaces its files."
            " Unset the property, or export without compact",
            uri=uri,
        )


def check_schema(table: DeltaTable, schema: pa.Schema, uri: str) -> None:
    """Compares the columns of the rows, partition columns included, with the table's.

    Raises:
        ExportError: The table lacks a column, or has it otherwise, or needs one that they lack.
    """
    rows = {field.name: field for field in delta_schema(schema, uri).fields}
    known = {field.name: field for field in table.schema().fields}
    different = [f"it has no column {name}" for name in rows if name not in known]
    for name, field in known.items():
        if name not in rows:
            if not field.nullable:
                different.append(f"its column {name} must not be null, and the rows have none")
        elif rows[name].type != field.type:
            different.append(f"{name} is {_type(field)} there and {_type(rows[name])} in the rows")
        elif rows[name].nullable and not field.nullable:
            different.append(f"{name} must not be null there and may be null in the rows")
    if different:
        raise ExportError(
            f"the rows do not fit the table: {'; '.join(different)}. {_ELSEWHERE}, or give the rows"
            " its columns with columns=… or a transform",
            uri=uri,
        )


def delta_schema(schema: pa.Schema, uri: str) -> Schema:
    """Returns the columns as Delta has them.

    Raises:
        ExportError: Delta lacks the type of a column.
    """
    from deltalake import Schema

    try:
        return Schema.from_arrow(schema)
    except Exception as error:  # noqa: BLE001  # delta-rs raises Exception itself
        reason = str(error).partition("\n")[0]
        raise ExportError(
            f"Delta cannot hold the columns of the rows: {reason}. Cast them to other types in the"
            " transform, or drop them",
            uri=uri,
        ) from None


def _unwritable(table: DeltaTable, properties: dict[str, str]) -> Iterator[str]:
    protocol: Any = table.protocol()
    features = set(protocol.writer_features or ()) | set(protocol.reader_features or ())
    yield from sorted(features - _WRITABLE)
    if not features and protocol.min_writer_version > _LAST_LEGACY_VERSION:
        yield f"writer version {protocol.min_writer_version}"
    for name in sorted(properties):
        if name.startswith("delta.constraints."):
            yield f"a constraint ({name})"
    if properties.get("delta.columnMapping.mode", "none").lower() != "none":
        yield "column mapping (delta.columnMapping.mode)"
    yield from sorted(set(_column_rules(json.loads(table.schema().to_json()))))


def _column_rules(value: object) -> Iterator[str]:
    """Invariants, generated and identity columns and the like, of columns at any depth."""
    if isinstance(value, list):
        for one in value:
            yield from _column_rules(one)
    elif isinstance(value, dict):
        for rule in value.get("metadata", {}):
            if rule.startswith("delta."):
                yield f"a rule of column {value['name']} ({rule})"
        for name, one in value.items():
            if name != "metadata":
                yield from _column_rules(one)


def _type(field: Any) -> str:  # noqa: ANN401  # delta-rs has no name for a field's type
    return str(json.loads(field.to_json())["type"])
