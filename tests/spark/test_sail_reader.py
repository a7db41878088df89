"""Tests how the reader for Sail applies the filters of a query. The tests do not need Sail."""

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
from tests.quick import examples

pytestmark = pytest.mark.skipif(
    not hasattr(datasource, "EqualTo"),
    reason="this PySpark has no filter classes, which Sail needs",
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


def _filter(name: str, *arguments: object) -> object:
    return getattr(datasource, name)(*arguments)


@st.composite
def filters(draw: st.DrawFn) -> Any:  # noqa: ANN401  # PySpark 4.0 has no such classes
    path = (draw(st.sampled_from(COLUMNS)),)
    name = draw(st.sampled_from([*COMPARISONS, "In", "IsNull", "IsNotNull"]))
    if name in COMPARISONS:
        return _filter(name, path, draw(NUMBERS))
    if name == "In":
        return _filter(name, path, tuple(draw(st.lists(st.none() | NUMBERS, max_size=3))))
    return _filter(name, path)


def _accepts(pushed_filter: Any, row: dict[str, Any]) -> bool:  # noqa: ANN401
    """Returns whether a filter is true for a row by the rules of SQL, in which null is not true."""
    name, cell = type(pushed_filter).__name__, row[pushed_filter.attribute[0]]
    if name == "IsNull":
        return cell is None
    if name == "IsNotNull":
        return cell is not None
    if cell is None:
        return False
    if name == "In":
        return cell in pushed_filter.value
    return bool(COMPARISONS[name](cell, pushed_filter.value))


@settings(max_examples=examples(300), deadline=None)
@given(pushed_filters=st.lists(filters(), max_size=3))
def test_pushed_condition_keeps_every_row_that_its_filters_accept(
    pushed_filters: list[Any],
) -> None:
    condition = conjunction(*map(condition_of, pushed_filters))
    mask = [True] * len(ROWS) if condition is None else evaluate(condition, BATCH).to_pylist()
    for row, kept in zip(ROWS, mask, strict=True):
        is_accepted = all(_accepts(pushed_filter, row) for pushed_filter in pushed_filters)
        assert kept or not is_accepted, "a row of the query is lost"
        if all(condition_of(pushed_filter) is not None for pushed_filter in pushed_filters):
            assert bool(kept) == is_accepted


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
def test_unsupported_filter_is_not_pushed_down(name: str, arguments: tuple[object, ...]) -> None:
    assert condition_of(_filter(name, *arguments)) is None


def test_negated_filter_is_not_pushed_down() -> None:
    assert condition_of(_filter("Not", _filter("EqualTo", ("offset",), 1))) is None


def test_pushed_filters_are_combined_with_where_option() -> None:
    source = TieredKafkaDataSource(tier_options("txn", where="offset < 50"))
    reader = FilteringSailReader(source._options_for(source.schema()))
    pushed_filters = [
        _filter("GreaterThan", ("offset",), 48),
        _filter("StringContains", ("key",), "x"),
    ]
    assert list(reader.pushFilters(pushed_filters)) == pushed_filters
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
def test_filters_are_pushed_down_only_with_tested_sail_versions(
    monkeypatch: pytest.MonkeyPatch, version: str | None, expected: bool
) -> None:
    def installed_version(name: str) -> str:
        if version is None:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(sail, "version", installed_version)
    source = TieredKafkaDataSource(tier_options("txn"))
    on_sail = source.reader(pa.schema({"offset": pa.int64()}))
    assert isinstance(on_sail, FilteringSailReader) == expected
    on_spark = source.reader(StructType().add("offset", LongType()))
    assert type(on_spark) is TieredKafkaBatchReader
