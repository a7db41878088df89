"""What the reader on Sail takes of a query's conditions, without Sail: never a row too few."""

from __future__ import annotations

import operator
from importlib.metadata import PackageNotFoundError
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource
from pyspark.sql.types import LongType, StructType

from kts_source.planning.slicing import conjunction
from kts_source.predicate.evaluate import evaluate
from kts_source.spark import sail
from kts_source.spark.datasource import TieredKafkaDataSource
from kts_source.spark.readers import TieredKafkaBatchReader
from kts_source.spark.sail import FilteringSailReader, condition_of
from tests.golden_data import tier_options

pytestmark = pytest.mark.skipif(
    not hasattr(datasource, "EqualTo"),
    reason="this PySpark has no filters; Sail needs one that has",
)

COLUMNS = ("offset", "partition", "timestamp")
MICROS = 1_700_000_000_000_000
ROWS = [
    {
        "offset": offset,
        "partition": offset % 3,
        "timestamp": MICROS + offset if offset % 4 else None,
    }
    for offset in range(-2, 12)
]
BATCH = pa.RecordBatch.from_pylist(
    ROWS,
    pa.schema(
        {"offset": pa.int64(), "partition": pa.int32(), "timestamp": pa.timestamp("us", "UTC")}
    ),
)
COMPARISONS = {
    "EqualTo": operator.eq,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
}
NUMBERS = st.one_of(st.integers(-3, 12), st.integers(MICROS - 3, MICROS + 12), st.integers())


def _made(name: str, *arguments: object) -> object:
    return getattr(datasource, name)(*arguments)


@st.composite
def filters(draw: st.DrawFn) -> Any:  # noqa: ANN401  # PySpark 4.0 has no such classes
    path = (draw(st.sampled_from(COLUMNS)),)
    name = draw(st.sampled_from([*COMPARISONS, "In", "IsNull", "IsNotNull"]))
    if name in COMPARISONS:
        return _made(name, path, draw(NUMBERS))
    if name == "In":
        return _made(name, path, tuple(draw(st.lists(st.none() | NUMBERS, max_size=3))))
    return _made(name, path)


def _takes(one: Any, row: dict[str, Any]) -> bool:  # noqa: ANN401
    """Whether a filter is true for a row, as SQL has it."""
    name, cell = type(one).__name__, row[one.attribute[0]]
    if name == "IsNull":
        return cell is None
    if name == "IsNotNull":
        return cell is not None
    if cell is None:
        return False
    if name == "In":
        return cell in one.value
    return bool(COMPARISONS[name](cell, one.value))


@settings(max_examples=300, deadline=None)
@given(given_filters=st.lists(filters(), max_size=3))
def test_it_leaves_out_what_no_filter_takes_and_nothing_else(given_filters: list[Any]) -> None:
    condition = conjunction(*map(condition_of, given_filters))
    found = [True] * len(ROWS) if condition is None else evaluate(condition, BATCH).to_pylist()
    for row, kept in zip(ROWS, found, strict=True):
        taken = all(_takes(one, row) for one in given_filters)
        assert kept or not taken, "a row that the query wants is lost"
        if all(condition_of(one) is not None for one in given_filters):
            assert bool(kept) == taken


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("StringContains", (("topic",), "b")),
        ("StringStartsWith", (("offset",), "1")),
        ("EqualTo", (("topic",), "orders")),
        ("EqualTo", (("value",), b"1")),
        ("EqualTo", (("offset",), None)),
        ("EqualTo", (("offset",), True)),
        ("EqualTo", (("offset",), 1.0)),
        ("EqualTo", (("offset",), 1 << 63)),
        ("EqualTo", (("timestamp",), "2024-01-01")),
        ("EqualTo", (("headers", "offset"), 1)),
        ("In", (("offset",), (1, "2"))),
    ],
)
def test_it_takes_nothing_else(name: str, arguments: tuple[object, ...]) -> None:
    assert condition_of(_made(name, *arguments)) is None


def test_it_takes_no_negation() -> None:
    assert condition_of(_made("Not", _made("EqualTo", ("offset",), 1))) is None


def test_a_condition_of_the_options_stays() -> None:
    source = TieredKafkaDataSource(tier_options("txn", where="offset < 50"))
    reader = FilteringSailReader(source._options_for(source.schema()))
    given_filters = [_made("GreaterThan", ("offset",), 48), _made("StringContains", ("key",), "x")]
    assert list(reader.pushFilters(given_filters)) == given_filters
    offsets = [
        offset
        for task in reader.partitions()
        for batch in reader.read(task)
        for offset in batch.column("offset").to_pylist()
    ]
    assert set(offsets) == {49}


@pytest.mark.parametrize(
    ("version", "expected"), [("0.7.2", True), ("0.7.3", False), (None, False)]
)
def test_other_versions_hand_nothing_over(
    monkeypatch: pytest.MonkeyPatch, version: str | None, expected: bool
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(sail, "version", installed)
    source = TieredKafkaDataSource(tier_options("txn"))
    on_sail = source.reader(pa.schema({"offset": pa.int64()}))
    assert isinstance(on_sail, FilteringSailReader) == expected
    on_spark = source.reader(StructType().add("offset", LongType()))
    assert type(on_spark) is TieredKafkaBatchReader
