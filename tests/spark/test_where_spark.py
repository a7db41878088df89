"""Tests that the option `where` keeps the same rows as Spark's `.where()`, for hundreds of
predicates.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from kts_source import register
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.predicate.parse import parse_predicate
from tests.golden_data import assert_same_rows, expected_table, tier_options
from tests.kts_source.planning.scanning import run
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

TOPICS: Final = ("codecs", "txn", "evolved")
PREDICATES: Final = 240
SAMPLED: Final = 400
"""Number of rows per topic from which the predicates take their values."""
ROW_KEY: Final = ("topic", "partition", "offset")
CHUNK_SIZE: Final = 40

_HEADER = re.compile(r"header\(('(?:[^'\\]|\\.)*')\)")
_OFFSET = re.compile(r"(?<![`\w])offset(?![`\w])")


def for_spark(condition: str) -> str:
    """Translates a condition to Spark SQL: replaces the function `header` and quotes `offset`.

    Without quotes, some Spark versions parse `offset` after WHERE as an OFFSET clause.
    """
    last = r"try_element_at(filter(headers, h -> h.key = \1), -1).value"
    return _OFFSET.sub("`offset`", _HEADER.sub(last, condition))


class Conditions:
    """Creates random SQL conditions that contain values of a table."""

    def __init__(self, table: pa.Table, seed: int) -> None:
        self._chance = random.Random(seed)
        self._rows = table.to_pylist()

    def condition(self, depth: int = 0) -> str:
        kind = self._chance.random()
        if depth < 3 and kind < 0.35:
            word = self._chance.choice([" AND ", " OR "])
            terms = [self.condition(depth + 1) for _ in range(self._chance.randint(2, 3))]
            return "(" + word.join(terms) + ")"
        if depth < 3 and kind < 0.5:
            word = self._chance.choice(["NOT ", "! "])
            return f"{word}({self.condition(depth + 1)})"
        if depth and kind > 0.98:
            return self._chance.choice(["NULL", "true", "false"])
        return self._leaf()

    def _leaf(self) -> str:
        leaves = [self._bytes, self._bytes, self._bytes, self._number, self._timestamp]
        return self._chance.choice(leaves)()

    def _value(self, column: str) -> Any:  # noqa: ANN401 - a value of any column
        row = self._chance.choice(self._rows)
        if column.startswith("header"):
            pairs = row["headers"]
            return self._chance.choice(pairs)["value"] if pairs else None
        value = row[column]
        return value.encode() if isinstance(value, str) else value

    def _bytes(self) -> str:
        column = self._chance.choice(
            ["key", "key", "value", "topic", "header('source')", "header('trace')", "header('x')"]
        )
        op = self._chance.choice(["=", "<>", "<", "<=", ">", ">=", "<=>", "=="])
        wrapped = self._chance.choice([column, column, f"CAST({column} AS STRING)"])
        choices = [
            lambda: f"{wrapped} {op} {self._literal(column)}",
            lambda: f"{self._literal(column)} {op} {wrapped}",
            lambda: f"{column} {self._not()}IN ({self._literals(column)})",
            lambda: (
                f"{wrapped} {self._not()}BETWEEN {self._literal(column)}"
                f" AND {self._literal(column)}"
            ),
            lambda: f"{column} IS {self._not()}NULL",
            lambda: f"isnull({column})",
            lambda: f"{wrapped} {self._not()}LIKE {self._pattern(column)}",
            lambda: f"{self._text_function()}({column}, {self._piece(column)})",
            lambda: f"{column} IS {self._not()}DISTINCT FROM {self._literal(column)}",
            lambda: f"key {op} value",
        ]
        return self._chance.choice(choices)()

    def _not(self) -> str:
        return self._chance.choice(["", "NOT "])

    def _text_function(self) -> str:
        return self._chance.choice(["startswith", "endswith", "contains"])

    def _literal(self, column: str, data: bytes | None = None) -> str:
        """Returns an SQL literal of `data`, or of a random value of the column by default. The
        literal is a string or, for bytes that are not UTF-8, hexadecimal. The last byte of a
        random value is sometimes changed.
        """
        value = self._value(column) if data is None else data
        if value is None:
            return "NULL" if self._chance.random() < 0.3 else "''"
        value = value[:40]
        if data is None and self._chance.random() < 0.2:
            value = value[:-1] + b"\xff" if self._chance.random() < 0.5 else value + b"0"
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return f"X'{value.hex()}'"
        if column == "topic" or not text.isprintable() or self._chance.random() < 0.7:
            return quoted(text)
        return f"X'{value.hex()}'"

    def _literals(self, column: str) -> str:
        literals = [self._literal(column) for _ in range(self._chance.randint(1, 4))]
        return ", ".join([*literals, *(["NULL"] if self._chance.random() < 0.2 else [])])

    def _piece(self, column: str) -> str:
        value = self._value(column) or b""
        start = self._chance.randint(0, max(0, len(value) - 1))
        size = self._chance.randint(0, 3)
        piece = value[:size] if self._chance.random() < 0.5 else value[start : start + size]
        return self._literal(column, piece)

    def _pattern(self, column: str) -> str:
        value = (self._value(column) or b"")[:6].decode(errors="ignore")
        text = "".join(character for character in value if character.isprintable())
        pieces = []
        for character in text or "a":
            pieces.append("\\" + character if character in "%_\\" else character)
            if self._chance.random() < 0.35:
                pieces[-1] = self._chance.choice(["%", "_", "%_", pieces[-1] + "%"])
        if self._chance.random() < 0.5:
            pieces.append("%")
        return quoted("".join(pieces))

    def _number(self) -> str:
        column = self._chance.choice(["offset", "offset", "partition", "timestampType"])
        value, other = self._value(column), self._value(column)
        op = self._chance.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
        return self._chance.choice(
            [
                f"{column} {op} {value}",
                f"{value} {op} {column}",
                f"{column} {op} {value}L",
                f"{column} > -{value + 1}",
                f"{column} {self._not()}IN ({value}, {other}, NULL)",
                f"{column} {self._not()}IN ({value}, {other})",
                f"{column} {self._not()}BETWEEN {min(value, other)} AND {max(value, other)}",
                f"partition {op} offset",
                f"{column} < 99999999999999999999",
            ]
        )

    def _timestamp(self) -> str:
        stamps = sorted(self._value("timestamp") for _ in range(2))
        zoned = [stamp.strftime("%Y-%m-%d %H:%M:%S.%f") + "Z" for stamp in stamps]
        op = self._chance.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
        # Timestamps without a time zone are UTC, by option timeZone and by Spark's session zone.
        plain = stamps[0].strftime("%Y-%m-%dT%H:%M:%S")
        return self._chance.choice(
            [
                f"timestamp {op} '{zoned[0]}'",
                f"timestamp {op} TIMESTAMP '{zoned[0]}'",
                f"timestamp {op} '{plain}'",
                f"timestamp {op} DATE '{plain[:10]}'",
                f"timestamp {self._not()}BETWEEN '{zoned[0]}' AND '{zoned[1]}'",
                f"timestamp {op} timestamp_millis({int(stamps[0].timestamp() * 1000)})",
                f"timestamp {self._not()}IN ('{zoned[0]}', '{zoned[1]}')",
            ]
        )


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def sample(topic: str) -> pa.Table:
    table = expected_table(topic, "read_committed")
    step = max(1, table.num_rows // SAMPLED)
    return table.take(pa.array(range(0, table.num_rows, step)))


def conditions_of(topic: str, count: int) -> list[str]:
    generator = Conditions(sample(topic), seed=len(topic))
    return list(dict.fromkeys(generator.condition() for _ in range(count)))


def evaluated_by_spark(frame: DataFrame, conditions: Sequence[str]) -> pa.Table:
    """Returns the columns `ROW_KEY` of each row, and one boolean column per condition."""
    from pyspark.sql import functions as f

    results = [
        f.coalesce(f.expr(f"({for_spark(condition)})"), f.lit(False)).alias(f"c{number}")
        for number, condition in enumerate(conditions)
    ]
    return frame.select(*(f.col(name) for name in ROW_KEY), *results).toArrow()


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def load(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("tiered-kafka").options(**options).load()


@pytest.mark.slow
@pytest.mark.timeout(900)  # two scans for each of many predicates
@pytest.mark.parametrize("topic", TOPICS)
def test_random_predicates_keep_the_same_rows_as_spark(
    registered: SparkSession, topic: str
) -> None:
    conditions = conditions_of(topic, PREDICATES // len(TOPICS))
    assert len(conditions) >= 0.9 * PREDICATES / len(TOPICS)
    expected = expected_table(topic, "read_committed")
    schema = ", ".join(
        f"`{name}` {kind}"
        for name, kind in load(registered, tier_options(topic, includeHeaders="true")).dtypes
    )
    # Spark evaluates the conditions on the broker's rows, not on rows that this source read.
    frame = registered.createDataFrame(expected, schema).cache()
    selective_count = 0
    for first in range(0, len(conditions), CHUNK_SIZE):
        chunk = conditions[first : first + CHUNK_SIZE]
        results = evaluated_by_spark(frame, chunk)
        for number, condition in enumerate(chunk):
            expected_rows = results.filter(results[f"c{number}"]).select(ROW_KEY)
            options = tier_options(topic, where=condition, timeZone="UTC")
            rows = run(plan_scan(parse_options(options)), options)
            assert rows.num_rows == expected_rows.num_rows, condition
            if expected_rows.num_rows:
                assert_same_rows(rows.select(ROW_KEY), expected_rows)
            selective_count += 0 < expected_rows.num_rows < expected.num_rows
    frame.unpersist()
    assert selective_count > len(conditions) // 4, "too many predicates match all or no rows"


HAND_MADE: Final = [
    "key = 'k997' OR key = X'6b31'",
    "value > X'ff' AND value <= X'fffe'",
    "value LIKE '_%' AND partition = 0",
    r"value LIKE '%\\%%' OR value LIKE '%\_%'",
    "value LIKE '%a_b%'",
    "header('source') = 'web' AND header('nope') IS NULL",
    "key NOT IN ('k1', NULL)",
    "! key = 'k997' AND offset < 50",
    "offset BETWEEN 10 AND 5",
    "timestamp < DATE '2026-02-25' OR offset = 7",
]


@pytest.mark.parametrize("condition", only(3, HAND_MADE))
def test_option_where_keeps_the_same_rows_as_where_of_spark(
    registered: SparkSession, condition: str
) -> None:
    options = tier_options("codecs", includeHeaders="true")
    expected = load(registered, options).where(for_spark(condition)).toArrow()
    rows = load(registered, {**options, "where": condition, "timeZone": "UTC"}).toArrow()
    assert rows.num_rows == expected.num_rows
    if expected.num_rows:
        assert_same_rows(rows, expected)


MALFORMED: Final = [
    b"",
    b"a",
    b"\xff",
    b"a\xffb",
    b"\xed\xa0\x80",
    b"\xed\xa0",
    b"\xe1\x80",
    b"\xe1\x80a",
    b"\xf0\x90\x80",
    b"\xf0\x80\x80\x80",
    b"\xc0\x80",
    b"\xf5\x80",
    b"\xe2\xc3\xa9",
    "é".encode(),
    "😀".encode(),
    b"a\nb",
]
PATTERNS: Final = ["_", "__", "___", "a_b", "%_", "_a", "%é", "_é", "a%b", "%a%b%", "%", "", "_%_"]


@pytest.mark.slow
def test_like_matches_malformed_text_like_spark(registered: SparkSession) -> None:
    """Spark must count the same number of characters in invalid UTF-8 as this data source."""
    from kts_source.predicate.evaluate import evaluate

    frame = registered.createDataFrame(
        [(number, bytearray(data)) for number, data in enumerate(MALFORMED)],
        "number int, value binary",
    ).cache()
    batch = pa.record_batch({"value": pa.array(MALFORMED, pa.binary())})
    for pattern in PATTERNS:
        condition = f"value LIKE '{pattern}'"
        expected = {row.number for row in frame.where(condition).collect()}
        mask = evaluate(parse_predicate(condition), batch).to_pylist()
        assert {number for number, is_match in enumerate(mask) if is_match} == expected, pattern
    frame.unpersist()
