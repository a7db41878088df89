"""Defines the arguments and expected rows of the stored samples, for the tests and for
`make_samples`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.golden_data import KEY_PREFIX, LOCAL_TIER, encryption_options
from tests.stored.topics import KEY_PREFIX as TABLE_KEY_PREFIX
from tests.stored.topics import NOT_JSON, expected_rows
from tests.stored.transforms import AtLeast, RejectNotJson, from_offset, from_three, with_length

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from segment_format.testing import ExpectedRow
    from tests.stored.topics import RowPosition

HERE = Path(__file__).resolve().parent
V1 = HERE / "v1"
V3 = HERE / "v3"
SCHEMAS = HERE / "schemas"
NAMESPACE = "lake"

Values = dict[str, Any]
WHERE = (
    "key IN ('k1', 'k2', 'k4') AND NOT value IS NULL AND value LIKE '{%'"
    " AND timestamp >= TIMESTAMP '2023-11-16 00:00:00+00:00' OR header('h') = 'v' AND offset < 12"
)
WHERE_START_MS = 1_700_092_800_000  # the timestamp in `WHERE`


# -- tables


def _record(row: ExpectedRow) -> Values:
    return {
        "key": row.key,
        "value": row.value,
        "timestamp": row.timestamp,
        "timestampType": 0,
        "headers": list(row.headers),
    }


def _matches_where(row: ExpectedRow) -> bool:
    is_object = row.value is not None and row.value.startswith(b"{")
    has_key = row.key in (b"k1", b"k2", b"k4")
    return (has_key and is_object and row.timestamp >= WHERE_START_MS) or (
        bool(row.headers) and row.offset < 12
    )


def _all(rows: Mapping[RowPosition, ExpectedRow]) -> dict[RowPosition, Values]:
    return {position: _record(row) for position, row in rows.items()}


def _latest(rows: Mapping[RowPosition, ExpectedRow]) -> dict[RowPosition, Values]:
    newest = {(*position[:2], row.key): position for position, row in sorted(rows.items())}
    return {position: _record(rows[position]) for position in newest.values()}


def _with_length(rows: Mapping[RowPosition, ExpectedRow]) -> dict[RowPosition, Values]:
    return {
        position: {**_record(row), "length": None if row.value is None else len(row.value)}
        for position, row in rows.items()
    }


def _from_three(rows: Mapping[RowPosition, ExpectedRow]) -> dict[RowPosition, Values]:
    return {position: _record(row) for position, row in rows.items() if row.offset >= 3}


def _matching(rows: Mapping[RowPosition, ExpectedRow]) -> dict[RowPosition, Values]:
    return {position: _record(row) for position, row in rows.items() if _matches_where(row)}


def _json_rows(rows: Mapping[RowPosition, ExpectedRow]) -> dict[RowPosition, Values]:
    return {position: _record(row) for position, row in rows.items() if row.value != NOT_JSON}


@dataclass(frozen=True)
class TableSample:
    """A table that a first export created.

    Attributes:
        arguments: Arguments of `backfill` except source, target, format and catalog.
        options: Options of the source except path and topics.
        rows: Maps the rows of the tier to the expected rows of the table.
        dead_letters: True if rejected rows are written to a folder next to the table.
        table_formats: Formats in which the table was stored.
    """

    name: str
    rows: Callable[[Mapping[RowPosition, ExpectedRow]], dict[RowPosition, Values]] = _all
    topics: tuple[str, ...] = ("orders", "refunds")
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    dead_letters: bool = False
    table_formats: tuple[str, ...] = ("parquet", "delta", "iceberg")

    def expected(self, *, first: bool = False) -> dict[RowPosition, Values]:
        """Returns the expected rows of the table after the first export if `first` is true, or
        after all exports.
        """
        return self.rows(expected_rows(self.topics, first=first))

    def source(self, tier: Path) -> dict[str, str]:
        """Returns the data source options that read the topics of the table from `tier`."""
        return {
            "path": tier.as_uri(),
            "keyPrefix": TABLE_KEY_PREFIX,
            "subscribe": ",".join(self.topics),
            "includeHeaders": "true",
            **self.options,
        }

    def backfill_arguments(self, table_format: str) -> dict[str, Any]:
        """Returns the arguments of `backfill` except the source; the target is a relative path.

        Iceberg's metadata contains the path of each file. Because the paths are relative to the
        current folder, a copy of the sample can be read from any folder.
        """
        arguments: dict[str, Any] = {
            "target": f"{self.name}/table",
            "table_format": table_format,
            "progress": False,
            **self.arguments,
        }
        if table_format == "iceberg":
            arguments["target"] = f"{NAMESPACE}.{self.name}"
            arguments["catalog"] = {
                "type": "sql",
                "name": "stored",
                "uri": "sqlite:///catalog.db",
                "warehouse": "warehouse",
            }
        if self.dead_letters:
            arguments["dead_letters"] = f"{self.name}/dead_letters"
            arguments["max_rejected"] = "100%"
        return arguments


TABLES = (
    TableSample("plain", arguments={"commit_bytes": 1}, options={"targetPartitionBytes": "1k"}),
    TableSample("partitioned", arguments={"partition_by": ["topic", "date(timestamp)"]}),
    TableSample("compacted", _latest, arguments={"compact": True}),
    TableSample("filtered", _matching, options={"where": WHERE}),
    TableSample(
        "rejecting", _json_rows, arguments={"transform": RejectNotJson()}, dead_letters=True
    ),
    TableSample("function", _with_length, arguments={"transform": with_length}),
    # Iceberg is omitted because it stores the transform's text like Parquet. Delta stores a digest.
    *(
        TableSample(
            name,
            _from_three,
            arguments={"transform": transform},
            table_formats=("parquet", "delta"),
        )
        for name, transform in {
            "callable": AtLeast(3),
            "method": AtLeast(3).applied,
            "closure": from_offset(3),
            "lambda": from_three,
        }.items()
    ),
)
TABLE_SAMPLES = tuple(
    (table_format, sample) for sample in TABLES for table_format in sample.table_formats
)
TABLE_FORMATS = ("parquet", "delta", "iceberg")


# -- plans, caches and metrics of golden topics


@dataclass(frozen=True)
class ScanSample:
    """A read of golden topics whose objects have the same URIs and versions on all machines.

    Attributes:
        store: `golden`, `local-tier` (see `stable_store`), or `folder` for a copy of golden topics.
        options: Options of the source except path, encryption keys and topics.
    """

    name: str
    topics: tuple[str, ...]
    store: str = "golden"
    options: Mapping[str, str] = field(default_factory=dict)

    def source(self, path: str) -> dict[str, str]:
        """Returns the data source options that read the topics of the sample from `path`."""
        layout = (
            {"layout": "local-tiered-storage"}
            if self.store == "local-tier"
            else {"keyPrefix": KEY_PREFIX, **encryption_options()}
        )
        return {
            "path": path,
            "subscribe": ",".join(self.topics),
            "includeHeaders": "true",
            **layout,
            **self.options,
        }

    @property
    def expected_folder(self) -> Path | None:
        """Returns the folder of the expected rows; None is the default folder of `golden_data`."""
        return LOCAL_TIER / "expected" if self.store == "local-tier" else None


PLAN_WHERE = "offset BETWEEN 100 AND 700 AND key IS NOT NULL"
PLANS = (
    ScanSample("plain", ("txn",), options={"targetPartitionBytes": "100k"}),
    ScanSample("uncommitted", ("txn",), options={"isolationLevel": "read_uncommitted"}),
    ScanSample("encrypted", ("encrypted", "retained"), options={"targetPartitionBytes": "100k"}),
    ScanSample("local-tiered-storage", ("txn",), "local-tier"),
    ScanSample("folder", ("trimmed", "crashed"), "folder"),
    ScanSample(
        "timestamps",
        ("timeline",),
        options={"startingTimestamp": "1765000000000", "endingTimestamp": "1767000000000"},
    ),
    ScanSample("where", ("compacted",), options={"where": PLAN_WHERE}),
)
CACHES = (
    ScanSample("index", ("txn", "encrypted")),
    ScanSample("index-local", ("txn",), "local-tier"),
    ScanSample("chunks", ("epochs",), options={"chunkCacheBytes": "1g"}),
    ScanSample(
        "plaintext", ("retained",), options={"chunkCacheBytes": "1g", "cachePlaintext": "true"}
    ),
)
METRICS = ScanSample("metrics", ("txn", "retained"), options={"targetPartitionBytes": "100k"})
CACHE_FOREVER = {"indexCacheTtlMs": "-1", "chunkCacheTtlMs": "-1"}
FOLDER_TIME_NS = 1_750_000_000_000_000_000
"""Modification time of all files in the `folder` store; the versions of files contain it."""
