"""Tests the decoding of JSON numbers.

A floating-point column contains the nearest value. Integers and decimals are exact; a number
without an exact value makes the row bad.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from segment_format.values.json import contract as c
from segment_format.values.json.contract import MAX_POWER, MIN_POWER, powers
from segment_format.values.json.decoder import JsonDecoder
from tests.segment_format.values.json import oracle

DOUBLES = JsonDecoder(pa.float64())
SINGLES = JsonDecoder(pa.float32())


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def check_doubles(texts: list[str]) -> None:
    result = DOUBLES.decode(pa.array([text.encode() for text in texts], pa.binary()))
    bad = {error.row for error in result.bad}
    for row, (text, value) in enumerate(zip(texts, result.array.to_pylist(), strict=True)):
        expected = float(text)
        assert (row in bad) == math.isinf(expected), text
        assert row in bad or bits(value) == bits(expected), text


def any_double(random: Random) -> float:
    value = math.inf
    while not math.isfinite(value):
        (value,) = struct.unpack("<d", random.randbytes(8))
    return float(value)


def halfway(value: float) -> str:
    """Returns the exact decimal text of the middle between a double and the next double."""
    middle = (Fraction(value) + Fraction(math.nextafter(value, math.inf))) / 2
    power = middle.denominator.bit_length() - 1
    digits = str(abs(middle.numerator) * 5**power)
    return f"{'-' if middle < 0 else ''}{digits}e-{power}"


def test_doubles_in_python_repr_decode() -> None:
    random = Random(1)
    check_doubles([repr(any_double(random)) for _ in range(5000)])


def test_doubles_of_many_digits_decode() -> None:
    random = Random(2)
    texts = []
    for size in range(17, 41):
        for _ in range(100):
            digits = "".join(random.choice("0123456789") for _ in range(size))
            point = random.randint(1, size - 1)
            texts.append(f"{int(digits[:point])}.{digits[point:]}e{random.randint(-340, 320)}")
    check_doubles(texts)


def test_numbers_halfway_between_two_doubles_round_correctly() -> None:
    random = Random(3)
    values = [random.uniform(-1e6, 1e6) for _ in range(60)]
    values += [any_double(random) for _ in range(60)]
    values += [5e-324 * random.randint(0, 1 << 40) for _ in range(60)]
    values += [0.0, 5e-324, 2.2250738585072009e-308, 2.2250738585072014e-308, 1.0, 2.0**53]
    texts = []
    for value in values:
        middle = halfway(value)
        digits, power = middle.split("e")
        texts.append(middle)
        texts.append(f"{digits}{'0' * 30}1e{int(power) - 31}")
        last = max(int(digits[-1]) - 1, 0)
        texts.append(f"{digits[:-1]}{last}{'9' * 9}e{int(power) - 9}")
    check_doubles(texts)


@pytest.mark.parametrize(
    "text",
    [
        "0", "-0", "-0.0", "0e999999999", "-0e-999999999", "1e-999999999", "1e309", "-1e309",
        "1e99999999999999999999", "1e-99999999999999999999", "1.7976931348623157e308",
        "1.7976931348623158e308", "1.7976931348623159e308", "179769313486231580793e289",
        "4.9e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "2.5e-324",
        "2.2250738585072011e-308", "2.2250738585072014e-308", "9007199254740993",
        "9007199254740992.5", "9007199254740993.00000000000000000000001", "1" + "0" * 400,
        "0." + "0" * 400 + "1", "1" + "0" * 400 + "e-400", "0." + "0" * 400 + "1e401",
        "18446744073709551615", "18446744073709551616", "9999999999999999999", "0.1e1", "1E+2",
    ],
)  # fmt: skip
def test_doubles_at_range_limits_decode(text: str) -> None:
    check_doubles([text])


def test_double_that_needs_more_than_19_digits_rounds_correctly() -> None:
    """Decodes a number exactly between two doubles, and numbers slightly above and below it, which
    differ only after the 19th digit.
    """
    middle = "9007199254740993"
    texts = [f"{middle}.{'0' * 50}", f"{middle}.{'0' * 50}1", f"{middle[:-1]}2.{'9' * 50}"]
    check_doubles(texts)
    values = [b'{"a":%s,"a":1}' % texts[1].encode(), b'{"a":%s,"b":[1,}' % texts[1].encode()]
    values += [b'{"a":1,"a":%s}' % texts[1].encode(), b'{"a":%s,"a":null}' % texts[0].encode()]
    result = JsonDecoder(pa.struct([("a", pa.float64())])).decode(pa.array(values, pa.binary()))
    assert result.array.to_pylist() == [{"a": 1.0}, None, {"a": float(texts[1])}, {"a": None}]
    assert [error.row for error in result.bad] == [1]


def test_many_doubles_that_need_more_than_19_digits_round_correctly() -> None:
    texts = [f"9007199254740993.{'0' * 40}{number}" for number in range(1000)]
    value = f"[{','.join(texts)}]".encode()
    result = JsonDecoder(pa.list_(pa.float64())).decode(pa.array([value, value], pa.binary()))
    assert result.array.to_pylist() == [[float(text) for text in texts]] * 2


def test_double_that_rounds_beyond_the_range_makes_row_bad() -> None:
    border = str(2**1024 - 2**970)  # half way to the next double, which would exceed the range
    texts = [f"{border}.0", str(int(border) - 1), f"{border}e0", f"{border}.{'0' * 400}1"]
    check_doubles(texts)
    values = [b'{"a":[%s],"b":"x"}' % text.encode() for text in texts]
    kind = pa.struct([("a", pa.list_(pa.float64())), ("b", pa.string())])
    result = JsonDecoder(kind).decode(pa.array(values, pa.binary()))
    result.array.validate(full=True)
    assert [(error.row, error.path) for error in result.bad] == [(0, "a"), (2, "a"), (3, "a")]
    assert result.array.is_valid().to_pylist() == [False, True, False, False]


def single_texts() -> list[str]:
    random = Random(4)
    texts = []
    for _ in range(300):
        pattern = random.getrandbits(31)
        (value,) = struct.unpack("<f", struct.pack("<I", pattern))
        if not math.isfinite(value):
            continue
        following = float(np.nextafter(np.float32(value), np.float32(np.inf)))
        following = min(following, 2.0**128)
        middle = (Fraction(value) + Fraction(following)) / 2
        power = middle.denominator.bit_length() - 1
        digits = str(middle.numerator * 5**power)
        texts += [f"{digits}e-{power}", f"{digits}{'0' * 40}1e-{power + 41}", repr(value)]
        texts.append(f"{int(digits) * 10**40 - 1}e-{power + 40}")
    texts += [
        "3.4028235e38",
        "3.4028236e38",
        "1e39",
        "-0",
        "1e-50",
        "16777217",
        "16777217.00000001",
    ]
    return texts


def test_float32_is_rounded_directly_from_the_text() -> None:
    texts = single_texts()
    result = SINGLES.decode(pa.array([text.encode() for text in texts], pa.binary()))
    bad = {error.row for error in result.bad}
    for row, (text, value) in enumerate(zip(texts, result.array.to_pylist(), strict=True)):
        expected, is_bad = oracle.decoded(text.encode(), pa.float32())
        assert (row in bad) == is_bad, text
        assert oracle.same(value, expected), text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.0", 1), ("1e2", 100), ("-1E+2", -100), ("100e-2", 1), ("0.1e1", 1), ("0e-999", 0),
        ("-0", 0), ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)),
        ("9223372036854775807.000", 2**63 - 1), ("922337203685477580700e-2", 2**63 - 1),
        ("1" + "0" * 400 + "e-400", 1), ("0." + "0" * 400 + "1e401", 1),
        ("9223372036854775808", None), ("-9223372036854775809", None), ("1.5", None),
        ("1e-1", None), ("1e19", None), ("1e999999999999", None), ("1e-999999999999", None),
        ("18446744073709551616", None), ("18446744073709551617", None),
        ("1.00000000000000000001", None),
    ],
)  # fmt: skip
def test_number_text_decodes_to_int64_or_makes_row_bad(text: str, value: int | None) -> None:
    result = JsonDecoder(pa.int64()).decode(pa.array([text.encode()], pa.binary()))
    assert result.array.to_pylist() == [value]
    assert len(result.bad) == (value is None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2147483647", 2**31 - 1), ("-2147483648", -(2**31)), ("2147483648", None),
        ("-2147483649", None), ("4294967297", None), ("1e1", 10),
    ],
)  # fmt: skip
def test_number_text_decodes_to_int32_or_makes_row_bad(text: str, value: int | None) -> None:
    result = JsonDecoder(pa.int32()).decode(pa.array([text.encode()], pa.binary()))
    assert result.array.to_pylist() == [value]


@pytest.mark.parametrize(
    ("precision", "scale", "text", "good"),
    [
        (38, 0, "9" * 38, True), (38, 0, "-" + "9" * 38, True), (38, 0, "1" + "0" * 38, False),
        (38, 38, "0." + "9" * 38, True), (38, 38, "1", False), (10, 2, "99999999.99", True),
        (10, 2, "100000000", False), (10, 2, "1.234", False), (10, 2, "1.230000000000", True),
        (10, 2, "1e7", True), (10, 2, "1e8", False), (10, 2, "0.00", True), (1, 0, "9", True),
        (1, 0, "10", False), (18, 9, "0.000000001", True),
        (38, 10, "-1234567890123456789012345678.5", True),
        (20, 1, "1844674407370955161.6", True), (38, 0, "1e37", True), (38, 0, "-1e38", False),
    ],
)  # fmt: skip
def test_decimals_are_exact(precision: int, scale: int, text: str, good: bool) -> None:
    kind = pa.decimal128(precision, scale)
    result = JsonDecoder(kind).decode(pa.array([text.encode()], pa.binary()))
    expected, bad = oracle.decoded(text.encode(), kind)
    assert bad is not good
    assert oracle.plain(result.array) == [expected]
    assert len(result.bad) == bad


@pytest.mark.parametrize(
    "text",
    ["01", "+1", ".5", "1.", "1.e2", "1e", "1e+", "-", "--1", "0x1", "1_0", "NaN", "Infinity",
     "-Infinity", "1,", "1 2", "00", "-01", "1.2.3", "1e2.5", "\uff11", "nan", "1f"],
)  # fmt: skip
@pytest.mark.parametrize("kind", [pa.float64(), pa.int64(), pa.decimal128(10, 2), pa.struct([])])
def test_invalid_number_makes_row_bad(text: str, kind: pa.DataType) -> None:
    value = text if kind != pa.struct([]) else f'{{"skipped":{text}}}'
    result = JsonDecoder(kind).decode(pa.array([value.encode()], pa.binary()))
    assert result.array.to_pylist() == [None]
    assert len(result.bad) == 1


def test_number_ends_at_row_end() -> None:
    """The decoder must not continue a number with the digits of the next row."""
    values = [b"1", b"2", b"", b"3", b"-", b"4.", b"5", b"1e", b"3" * 40, b"7"]
    result = DOUBLES.decode(pa.array(values, pa.binary()))
    assert result.array.to_pylist() == [1, 2, None, 3, None, None, 5, None, float("3" * 40), 7]


def test_stored_powers_of_five_differ_from_exact_values_by_at_most_one() -> None:
    fives = powers()[43:].tolist()
    for q in range(MIN_POWER, MAX_POWER + 1):
        high, low = fives[2 * (q - MIN_POWER)], fives[2 * (q - MIN_POWER) + 1]
        value = high << 64 | low
        exact = Fraction(5) ** q
        shift = value.bit_length() - 128 + 127 - math.floor(math.log2(5) * q)
        assert high >> 63 == 1
        scaled = exact * Fraction(2) ** shift
        assert min(abs(scaled - value), abs(scaled * 2 - value), abs(scaled / 2 - value)) <= 1


def test_no_error_code_exceeds_last_code() -> None:
    codes = [value for name, value in vars(c).items() if name.startswith(("BAD_", "WRONG_"))]
    assert max(value for value in codes if value < 1 << 20) <= c.LAST_CODE
