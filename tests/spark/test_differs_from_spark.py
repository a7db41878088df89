"""Tests the table of differences from Spark's `from_json` in `docs/typed-reference.md`."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest

from segment_format.values.json.ddl import parse_ddl
from segment_format.values.json.decoder import JsonDecoder
from tests.docs.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MALFORMED = "malformed"


class Case(NamedTuple):
    """A JSON text, and the fields that this decoder and Spark return for it."""

    ddl: str
    text: bytes
    our_fields: Any
    spark_fields: Any


CASES = {
    "a wrong type in a field": Case("a int, b int", b'{"a": "x", "b": 1}', MALFORMED, (None, 1)),
    "not JSON": Case("a int", b"{", MALFORMED, (None,)),
    "empty text": Case("a int", b"", MALFORMED, None),
    "the text null": Case("a int", b"null", None, (None,)),
    "text after the value": Case("a int", b'{"a": 1} x', MALFORMED, (1,)),
    "single quotes": Case("a int", b"{'a': 1}", MALFORMED, (1,)),
    "1.0 as an integer": Case("a int", b'{"a": 1.0}', (1,), (None,)),
    "1e2 as an integer": Case("a bigint", b'{"a": 1e2}', (100,), (None,)),
    "too many digits": Case("a decimal(4,2)", b'{"a": 1.235}', MALFORMED, ("1.24",)),
    "1e400": Case("a double", b'{"a": 1e400}', MALFORMED, (math.inf,)),
    "NaN": Case("a double", b'{"a": NaN}', MALFORMED, (math.nan,)),
    '"NaN"': Case("a double", b'{"a": "NaN"}', MALFORMED, (math.nan,)),
    "a number as a string": Case("a string", b'{"a": 1.50}', MALFORMED, ("1.5",)),
    "an object as a string": Case("a string", b'{"a": {"b": 1}}', MALFORMED, ('{"b":1}',)),
    "a number as a timestamp": Case("a timestamp", b'{"a": 60}', MALFORMED, (60.0,)),
    "a missing field that is not null": Case("a int not null", b"{}", MALFORMED, (None,)),
    "not UTF-8": Case("a string", b'{"a": "\xff"}', MALFORMED, ("\ufffd",)),
    "half a surrogate pair": Case("a string", b'{"a": "\\ud800"}', MALFORMED, ("?",)),
}


ROWS = {
    "a wrong type in a field": ["a wrong type in a field"],
    "`PERMISSIVE`, not JSON": ["not JSON"],
    "empty text": ["empty text"],
    "the text `null`": ["the text null"],
    "text after the value, single quotes": ["text after the value", "single quotes"],
    "`1.0`, `1e2` as an integer": ["1.0 as an integer", "1e2 as an integer"],
    "a number with too many digits for its decimal": ["too many digits"],
    '1e400, `NaN`, `"NaN"` as a double': ["1e400", "NaN", '"NaN"'],
    "numbers and objects as a string": ["a number as a string", "an object as a string"],
    "a number as a timestamp": ["a number as a timestamp"],
    "a field that is `not null` and missing": ["a missing field that is not null"],
    "text that is not UTF-8, half a surrogate pair": ["not UTF-8", "half a surrogate pair"],
}
"""Maps each row of the table in the docs to its cases."""


def test_cases_match_the_table_in_the_docs() -> None:
    rows = read_table("typed-reference.md", "Differences from `from_json`")
    assert list(rows) == list(ROWS)
    assert [name for names in ROWS.values() for name in names] == list(CASES)


def test_decoder_returns_the_documented_result() -> None:
    for name, case in CASES.items():
        decoded = JsonDecoder(parse_ddl(case.ddl)).decode(pa.array([case.text], pa.binary()))
        (value,) = decoded.array.to_pylist()
        result = MALFORMED if decoded.bad else value and tuple(value.values())
        assert result == case.our_fields, name


def test_from_json_of_spark_returns_the_documented_result(spark: SparkSession) -> None:
    columns = [
        f"from_json(CAST(X'{case.text.hex()}' AS STRING), '{case.ddl}', map('timeZone', 'UTC'))"
        f" AS c{number}"
        for number, case in enumerate(CASES.values())
    ]
    (row,) = spark.sql(f"SELECT {', '.join(columns)}").collect()
    for (name, case), value in zip(CASES.items(), row, strict=True):
        result = None if value is None else tuple(value)
        assert repr(comparable(result)) == repr(comparable(case.spark_fields)), name


def comparable(row: tuple[Any, ...] | None) -> list[Any] | None:
    """Converts decimals to text and timestamps to seconds."""
    if row is None:
        return None
    seconds = [field.timestamp() if isinstance(field, datetime) else field for field in row]
    return [str(field) if isinstance(field, Decimal) else field for field in seconds]
