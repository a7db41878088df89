"""Checks the parsed form of predicates, and that errors quote unsupported syntax."""

from __future__ import annotations

import pickle

import pytest

from kts_source.errors import InvalidOptionError
from kts_source.predicate.literals import instant, string_literal, time_zone
from kts_source.predicate.model import (
    And,
    Column,
    Compare,
    Constant,
    HasText,
    Header,
    In,
    IsNull,
    Like,
    Not,
    Op,
    Or,
    Part,
    Predicate,
    Wildcard,
)
from kts_source.predicate.parse import parse_predicate

KEY, OFFSET, TIMESTAMP = Column("key"), Column("offset"), Column("timestamp")
NEW_YEAR = 1_704_067_200_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key = 'a'", Compare(Op.EQ, KEY, b"a")),
        ('`KEY` == "é"', Compare(Op.EQ, KEY, "é".encode())),
        ("'a' < key", Compare(Op.GT, KEY, b"a")),
        ("key <> X'fF0'", Compare(Op.NE, KEY, b"\x0f\xf0")),
        ("CAST(key AS STRING) = 'a'", Compare(Op.EQ, KEY, b"a")),
        ("key = value", Compare(Op.EQ, KEY, Column("value"))),
        ("header('h') <=> 'a'", Compare(Op.SAME, Header("h"), b"a")),
        ("key <=> NULL", IsNull(KEY)),
        ("key IS DISTINCT FROM 'a'", Not(Compare(Op.SAME, KEY, b"a"))),
        ("key = NULL", Constant(None)),
        ("offset >= -5", Compare(Op.GE, OFFSET, -5)),
        ("`offset` = 5L", Compare(Op.EQ, OFFSET, 5)),
        ("offset < 99999999999999999999", Constant(True)),
        ("offset = 99999999999999999999", Constant(False)),
        ("offset >= -99999999999999999999", Constant(True)),
        ("key IN ('a', NULL, 'a')", In(KEY, (b"a",), has_null=True)),
        ("offset NOT IN (1, 2)", Not(In(OFFSET, (1, 2), has_null=False))),
        (
            "offset BETWEEN 1 AND 2",
            And((Compare(Op.GE, OFFSET, 1), Compare(Op.LE, OFFSET, 2))),
        ),
        ("key IS NOT NULL", Not(IsNull(KEY))),
        ("isnull(key)", IsNull(KEY)),
        ("startswith(key, 'a')", HasText(Part.START, KEY, b"a")),
        ("endswith(key, X'00')", HasText(Part.END, KEY, b"\0")),
        ("contains(topic, '')", HasText(Part.ANYWHERE, Column("topic"), b"")),
        ("key LIKE 'a%%_'", Like(KEY, ("a", Wildcard.RUN, Wildcard.ONE))),
        (r"key NOT LIKE 'a\%b'", Not(Like(KEY, ("a%b",)))),
        ("key LIKE 'a/_' ESCAPE '/'", Like(KEY, ("a_",))),
        ("timestamp = '2024-01-01 00:00:00Z'", Compare(Op.EQ, TIMESTAMP, NEW_YEAR)),
        (
            "timestamp = TIMESTAMP '2024-01-01T01:00:00.000001+01:00'",
            Compare(Op.EQ, TIMESTAMP, NEW_YEAR + 1),
        ),
        ("timestamp = timestamp_millis(7)", Compare(Op.EQ, TIMESTAMP, 7000)),
        ("true", Constant(True)),
        ("key = 'a' -- and no more", Compare(Op.EQ, KEY, b"a")),
        (
            "NOT key = 'a' AND key = 'b' OR key = 'c'",
            Or(
                (
                    And((Not(Compare(Op.EQ, KEY, b"a")), Compare(Op.EQ, KEY, b"b"))),
                    Compare(Op.EQ, KEY, b"c"),
                )
            ),
        ),
    ],
)
def test_predicate_text_is_parsed_to_expected_predicate(text: str, expected: Predicate) -> None:
    assert parse_predicate(text) == expected
    assert pickle.loads(pickle.dumps(expected)) == expected


def test_predicate_repr_is_stable() -> None:
    """Tables store the repr of the export's condition. A changed repr would break existing
    tables.
    """
    parsed = parse_predicate(
        "key IN ('a', NULL) AND (NOT endswith(value, 'b') OR header('h') = 'c')"
    )
    assert repr(parsed) == (
        "And(terms=(In(operand=Column(name='key'), values=(b'a',), has_null=True),"
        " Or(terms=(Not(term=HasText(part=<Part.END: 'endswith'>, operand=Column(name='value'),"
        " text=b'b')), Compare(op=<Op.EQ: '='>, left=Header(name='h'), right=b'c')))))"
    )
    like = parse_predicate("topic LIKE 'a%_' OR key IS NULL OR true")
    assert repr(like) == (
        "Or(terms=(Like(operand=Column(name='topic'), pattern=('a', <Wildcard.RUN: '%'>,"
        " <Wildcard.ONE: '_'>)), IsNull(operand=Column(name='key')), Constant(value=True)))"
    )


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("key RLIKE 'it'", "key RLIKE 'it'"),
        ("key ILIKE 'a'", "key ILIKE 'a'"),
        ("key LIKE ANY ('a', 'b')", "ANY ('a', 'b')"),
        ("length(key) = 1", "LENGTH(key)"),
        ("offset + 1 = 5", "offset + 1"),
        ("offset = 1.5", "1.5"),
        ("key = INTERVAL 1 DAY", "INTERVAL '1' DAY"),
        ("offset = 5 AND key = INTERVAL 0 DAY", "INTERVAL '0' DAY"),
        ("offset = '5'", "offset = '5'"),
        ("offset LIKE '5%'", "offset LIKE '5%'"),
        ("key = 5", "key = 5"),
        ("key = offset", "key = offset"),
        ("topic = 5", "topic = 5"),
        ("timestamp > 5", "timestamp > 5"),
        ("timestamp > 'yesterday'", "'yesterday'"),
        ("timestamp > '2024-01-01'", "timeZone"),
        ("timestamp > DATE '2024-01-01'", "timeZone"),
        ("timestamp > '2024-13-01 00:00:00Z'", "2024-13-01"),
        ("timestamp > '2024-01-01 00:00:00 Mars/Base'", "Mars/Base"),
        ("t.key = 'a'", "t.key"),
        ("kye = 'a'", "kye"),
        ("headers IS NULL", "header('name')"),
        ("header(key) = 'a'", "HEADER(key) is not valid; write header('name')"),
        ("header('a', 'b') = 'a'", "HEADER('a', 'b')"),
        ("key", "key"),
        ("1 = 1", "1 = 1"),
        ("(key, value) = ('a', 'b')", "(key, value)"),
        ("key IN (SELECT 1)", "SELECT 1"),
        ("key BETWEEN SYMMETRIC 'a' AND 'b'", "BETWEEN"),
        ("key = 'a' = true", "key = 'a'"),
        ("(key = 'a') IS TRUE", "IS TRUE"),
        ("key = 'it''s'", "'it'"),
        ("key = :p", ":p"),
        ("key = 'a'; DROP TABLE t", "one condition"),
        ("key = ", "key = "),
        ("key = 'a", "key = 'a"),
        ("SELECT 1", "SELECT 1"),
        (r"key LIKE 'a\\b'", "escape"),
        ("key LIKE '\ufffd'", "U+FFFD"),
        ("CASE WHEN key = 'a' THEN true END", "CASE"),
    ],
)
def test_unsupported_syntax_raises_error_that_quotes_it(text: str, quoted: str) -> None:
    with pytest.raises(InvalidOptionError) as error:
        parse_predicate(text)
    assert quoted in str(error.value)
    assert "'where'" in str(error.value)


def test_long_conditions_are_accepted_and_deep_nesting_is_rejected() -> None:
    chain = " OR ".join(f"key = '{number}'" for number in range(3000))
    predicate = parse_predicate(chain)
    assert isinstance(predicate, Or)
    assert [term.right for term in predicate.terms if isinstance(term, Compare)] == [
        str(number).encode() for number in range(3000)
    ]
    with pytest.raises(InvalidOptionError, match="nested too deep"):
        parse_predicate("(" * 5000 + "key = 'a'" + ")" * 5000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"'it\'s'", "it's"),
        (r"'\n\t\\\0\Z'", "\n\t\\\0\x1a"),
        (r"'\%\_'", r"\%\_"),
        (r"'\101é\q'", "Aéq"),
        (r"'\U0001F600'", "😀"),
        (r"r'\n'", r"\n"),
        ('"a\'b"', "a'b"),
        ("X''", b""),
    ],
)
def test_string_literal_decodes_escapes(text: str, value: str | bytes) -> None:
    assert string_literal(text) == value


@pytest.mark.parametrize("text", [r"'\uD800'", r"'\U00110000'", "X'0G'", "'a'b'"])
def test_invalid_string_literal_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        string_literal(text)


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2024-01-01", "UTC", NEW_YEAR),
        ("2024-1-1 1:0", "+01:00", NEW_YEAR),
        ("2024-01-01T00:00:00.5", "Z", NEW_YEAR + 500_000),
        ("2024-01-01 01:00:00", "Europe/Zurich", NEW_YEAR),
        # This local time does not exist, because summer time starts. It means 03:30.
        ("2024-03-31 02:30:00", "Europe/Zurich", 1_711_848_600_000_000),
        # This local time occurs twice, because summer time ends. It means the earlier time.
        ("2024-10-27 02:30:00", "Europe/Zurich", 1_729_989_000_000_000),
        ("1969-12-31 23:59:59.999", "UTC", -1000),
        ("2024-01-01 00:00:00 UTC", "+05:00", NEW_YEAR),
    ],
)
def test_timestamp_text_is_converted_to_microseconds(text: str, zone: str, expected: int) -> None:
    assert instant(text, time_zone(zone)) == expected
