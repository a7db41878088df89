"""Reads the golden tier's expected rows, with the columns and types of Spark's Kafka source.

A Kafka broker wrote the tier, and a Kafka consumer read the rows; see `tests/golden/README.md`.
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

# Arrow types of Spark's Kafka source, written out so that tests do not use the product's schema.
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
    """Returns the options with all private keys of the golden tier.

    The name of a key file without suffix is the id of the key."""
    return {
        f"encryption.key.pairs.{path.name.removesuffix('.private.pem')}.private.key.file": str(path)
        for path in sorted(keys.glob("*.private.pem"))
    }


def tier_options(topics: str | Iterable[str], **options: str) -> dict[str, str]:
    """Returns data source options, including keys, to read topics of the golden tier."""
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
    """Returns the content of `summary.json`."""
    document: dict[str, Any] = json.loads((EXPECTED / "summary.json").read_text())
    return document


@functools.cache
def topic_summary(topic: str, incarnation: int = 0) -> dict[str, Any]:
    """Returns the entry of a topic in `summary.json`: `topicId` and `partitions`.

    `incarnation` is 0 for the current topic and 1 for a deleted topic with the same name. Only the
    topic `recreated` has incarnation 1.
    """
    entries = [entry for entry in summary()["topics"] if entry["topic"] == topic]
    if not entries:
        raise KeyError(topic)
    entry: dict[str, Any] = entries[incarnation]
    return entry


def partition_summaries(topic: str) -> Mapping[int, dict[str, Any]]:
    """Returns the entries of a topic's partitions in `summary.json`, by number."""
    return {entry["partition"]: entry for entry in topic_summary(topic)["partitions"]}


@functools.cache
def expected_records(name: str, folder: Path = EXPECTED) -> pa.Table:
    """Reads `expected/<name>.parquet`, which contains all records of a topic.

    Each record also has its leader epoch and flags that name the readers that must return it (see
    `tests/golden/README.md`).
    """
    return pq.read_table(folder / f"{name}.parquet")


def expected_table(
    name: str, isolation_level: IsolationLevel, *, folder: Path = EXPECTED
) -> pa.Table:
    """Returns the rows that a read of the tier must return, ordered by partition and offset, with
    the schema `SPARK_SCHEMA`.

    `name` is a topic, or `recreated-previous` for the deleted topic that was named `recreated`.
    """
    records = expected_records(name, folder)
    visible = {
        "read_committed": "visible_read_committed_offline",
        "read_uncommitted": "in_tier",
    }[isolation_level]
    records = records.filter(records[visible])
    columns = {
        **{column: records[column] for column in ("key", "value", "topic", "partition", "offset")},
        # The Parquet file stores milliseconds since 1970-01-01 UTC.
        "timestamp": records["timestamp_ms"].cast(pa.timestamp("ms", tz="UTC")),
        "timestampType": records["timestamp_type"],
        "headers": records["headers"],
    }
    table = pa.table([columns[field.name].cast(field.type) for field in SPARK_SCHEMA], SPARK_SCHEMA)
    return in_order(table)


def in_order(table: pa.Table) -> pa.Table:
    """Sorts rows by those of the columns topic, partition and offset that the table has."""
    keys = [
        (name, "ascending")
        for name in ("topic", "partition", "offset")
        if name in table.column_names
    ]
    return table.take(pc.sort_indices(table, sort_keys=keys)) if keys else table


def rows(table: pa.Table) -> list[Row]:
    """Returns the rows as tuples of Python values. Headers are lists of (key, value) pairs."""
    columns = [table[name].to_pylist() for name in table.column_names]
    if "headers" in table.column_names:
        position = table.column_names.index("headers")
        columns[position] = [
            None if headers is None else [(header["key"], header["value"]) for header in headers]
            for headers in columns[position]
        ]
    return list(zip(*columns, strict=True))


def assert_same_rows(actual: pa.Table, expected: pa.Table) -> None:
    """Asserts that both tables contain the same rows, each exactly once, in any order.

    Compares only the columns of `actual`. They must include `offset`.
    """
    unexpected = set(actual.column_names) - set(expected.column_names)
    assert not unexpected, f"unexpected columns: {sorted(unexpected)}"
    assert "offset" in actual.column_names, "rows cannot be compared without the offset column"
    expected = expected.select(actual.column_names)
    actual, expected = in_order(actual), in_order(expected)
    if actual.num_rows == expected.num_rows and all(
        actual[name].cast(expected[name].type).combine_chunks() == expected[name].combine_chunks()
        for name in actual.column_names
    ):
        return
    key = [name for name in ("topic", "partition", "offset") if name in actual.column_names]
    actual_keys, expected_keys = (rows(table.select(key)) for table in (actual, expected))
    missing = sorted(set(expected_keys) - set(actual_keys))
    extra = sorted(set(actual_keys) - set(expected_keys))
    repeated = len(actual_keys) - len(set(actual_keys))
    assert (missing, extra, repeated) == ([], [], 0), (
        f"{len(missing)} rows missing, first {missing[:3]}; "
        f"{len(extra)} unexpected, first {extra[:3]}; {repeated} repeated"
    )
    for actual_row, expected_row in zip(rows(actual), rows(expected), strict=True):
        for name, value, expected_value in zip(
            actual.column_names, actual_row, expected_row, strict=True
        ):
            assert value == expected_value, f"{name} of {expected_row}: {value!r}"
    raise AssertionError("the tables differ, but their rows compare equal")
