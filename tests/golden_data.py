"""The golden tier and the rows it must give, in the shape and types of Spark's Kafka source.

A real broker wrote it and a real consumer was compared with it: see `tests/golden/README.md`.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

IsolationLevel = Literal["read_committed", "read_uncommitted"]

GOLDEN = Path(__file__).resolve().parent / "golden"
TIER = GOLDEN / "tier"
KEYS = GOLDEN / "keys"
VECTORS = GOLDEN / "vectors"
EXPECTED = GOLDEN / "expected"
LOCAL_TIER = GOLDEN / "localtier"
GOLDEN_44 = GOLDEN.with_name("golden44")
KEY_PREFIX = "tiered/"
CHUNK_SIZE = 16384

TOPICS = (
    "appendtime",
    "codecs",
    "compacted",
    "crashed",
    "encrypted",
    "epochs",
    "evolved",
    "recreated",
    "retained",
    "timeline",
    "trimmed",
    "txn",
    "wide",
)
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")

# Spark's Arrow types, spelled out here on purpose: the product's own schema must not judge itself.
SPARK_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        (
            "headers",
            pa.list_(
                pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
        ),
    ]
)

Row = tuple[Any, ...]


def encryption_options(keys: Path = KEYS) -> dict[str, str]:
    """Options that name every private key of the golden tier; the file name is the key id."""
    return {
        f"encryption.key.pairs.{path.name.removesuffix('.private.pem')}.private.key.file": str(path)
        for path in sorted(keys.glob("*.private.pem"))
    }


def tier_options(topics: str | Iterable[str], **options: str) -> dict[str, str]:
    """Data source options that read golden topics, keys included."""
    names = topics if isinstance(topics, str) else ",".join(topics)
    return {
        "path": TIER.as_uri(),
        "keyPrefix": KEY_PREFIX,
        "subscribe": names,
        **encryption_options(),
        **options,
    }


@functools.cache
def summary() -> dict[str, Any]:
    """The whole `summary.json`."""
    document: dict[str, Any] = json.loads((EXPECTED / "summary.json").read_text())
    return document


@functools.cache
def topic_summary(topic: str, incarnation: int = 0) -> dict[str, Any]:
    """One topic's part of `summary.json`: `topicId` and `partitions`.

    Args:
        topic: Its name.
        incarnation: 0 for the live one; `recreated` also has an older one, 1.
    """
    entries = [entry for entry in summary()["topics"] if entry["topic"] == topic]
    if not entries:
        raise KeyError(topic)
    entry: dict[str, Any] = entries[incarnation]
    return entry


def partition_summaries(topic: str) -> Mapping[int, dict[str, Any]]:
    """Partition number to its part of `summary.json`."""
    return {entry["partition"]: entry for entry in topic_summary(topic)["partitions"]}


@functools.cache
def expected_records(name: str, folder: Path = EXPECTED) -> pa.Table:
    """The file `expected/<name>.parquet` as it is: all records, with their epochs and fates."""
    return pq.read_table(folder / f"{name}.parquet")


def expected_table(
    name: str, isolation_level: IsolationLevel, *, folder: Path = EXPECTED
) -> pa.Table:
    """The rows a reader of the tier must return, in `SPARK_SCHEMA`, in partition and offset order.

    Args:
        name: A topic, or `recreated-previous` for the older incarnation.
        isolation_level: Which rows are visible.
        folder: Where the Parquet files are.
    """
    records = expected_records(name, folder)
    visible = {
        "read_committed": "visible_read_committed_offline",
        "read_uncommitted": "in_tier",
    }[isolation_level]
    records = records.filter(records[visible])
    columns = {
        **{column: records[column] for column in ("key", "value", "topic", "partition", "offset")},
        # Milliseconds since the epoch.
        "timestamp": records["timestamp_ms"].cast(pa.timestamp("ms", tz="UTC")),
        "timestampType": records["timestamp_type"],
        "headers": records["headers"],
    }
    table = pa.table([columns[field.name].cast(field.type) for field in SPARK_SCHEMA], SPARK_SCHEMA)
    return in_order(table)


def in_order(table: pa.Table) -> pa.Table:
    """The rows by topic, partition and offset, as far as the table has these columns."""
    keys = [
        (name, "ascending")
        for name in ("topic", "partition", "offset")
        if name in table.column_names
    ]
    return table.take(pc.sort_indices(table, sort_keys=keys)) if keys else table


def rows(table: pa.Table) -> list[Row]:
    """Rows as tuples of plain values that compare by value; headers as a list of (key, value)."""
    columns = [table[name].to_pylist() for name in table.column_names]
    if "headers" in table.column_names:
        where = table.column_names.index("headers")
        columns[where] = [
            None if headers is None else [(header["key"], header["value"]) for header in headers]
            for headers in columns[where]
        ]
    return list(zip(*columns, strict=True))


def assert_same_rows(actual: pa.Table, expected: pa.Table) -> None:
    """Fails with the first difference unless both hold the same rows, each once, in any order.

    The columns of `actual` decide which of `expected` are compared; both must carry `offset`.
    """
    unknown = set(actual.column_names) - set(expected.column_names)
    assert not unknown, f"columns nobody asked for: {sorted(unknown)}"
    assert "offset" in actual.column_names, "rows cannot be matched without their offset"
    expected = expected.select(actual.column_names)
    actual, expected = in_order(actual), in_order(expected)
    if actual.num_rows == expected.num_rows and all(
        actual[name].cast(expected[name].type).combine_chunks() == expected[name].combine_chunks()
        for name in actual.column_names
    ):
        return
    place = [name for name in ("topic", "partition", "offset") if name in actual.column_names]
    found, wanted = (rows(table.select(place)) for table in (actual, expected))
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    twice = len(found) - len(set(found))
    assert (missing, extra, twice) == ([], [], 0), (
        f"{len(missing)} rows missing, first {missing[:3]}; "
        f"{len(extra)} too many, first {extra[:3]}; {twice} repeated"
    )
    for found_row, wanted_row in zip(rows(actual), rows(expected), strict=True):
        for name, value, wanted_value in zip(
            actual.column_names, found_row, wanted_row, strict=True
        ):
            assert value == wanted_value, f"{name} of {wanted_row}: {value!r}"
    raise AssertionError("the tables differ in a way their rows do not show")
