"""Decodes JSON values with Python's own parser, as a reference for the kernels."""

from __future__ import annotations

import base64
import binascii
import decimal
import json
import re
import struct
from datetime import date, datetime, timedelta
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa

NUMBER: Final = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"(?:(Z)|([+-])(\d\d)(?::?(\d\d))?)?",
    re.ASCII,
)
EPOCH: Final = datetime(1970, 1, 1)


class WrongError(Exception):
    """Raised if a value is invalid."""


class Number(str):
    """A number with its original spelling."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """The pairs of an object, including duplicate keys."""

    __slots__ = ()


def _refuse(constant: str) -> Any:  # noqa: ANN401
    raise WrongError(constant)


def _check_strings(value: Any) -> None:  # noqa: ANN401
    if isinstance(value, Pairs):
        for key, below in value:
            key.encode()
            _check_strings(below)
    elif isinstance(value, list):
        for below in value:
            _check_strings(below)
    elif isinstance(value, str):
        value.encode()


def parsed(text: bytes) -> Any:  # noqa: ANN401
    """Returns the parsed value, with numbers as `Number` and objects as `Pairs`."""
    try:
        value = json.loads(
            text.decode(),
            parse_constant=_refuse,
            parse_float=Number,
            parse_int=Number,
            object_pairs_hook=Pairs,
        )
        _check_strings(value)
    except ValueError as error:  # covers UTF-8, JSON and surrogate errors
        raise WrongError(str(error)) from error
    return value


def exact(text: str) -> tuple[int, int]:
    """Returns the value of a number as digits and exponent of ten, without trailing zeros.

    Raises:
        WrongError: The number has more than 100 significant digits, so no type can store it.
    """
    match = NUMBER.fullmatch(text)
    assert match, text
    sign, integer_digits, fraction, power = match.groups()
    digits = (integer_digits + (fraction or "")).lstrip("0")
    exponent = int(power or 0) - len(fraction or "")
    bare = digits.rstrip("0")
    if not bare:
        return 0, 0
    if len(bare) > 100:
        raise WrongError("too many digits")
    value = int(bare)
    return (-value if sign else value), exponent + len(digits) - len(bare)


def _integer(text: str, bits: int) -> int:
    digits, exponent = exact(text)
    if exponent < 0 or exponent > 40:
        raise WrongError("no integer")
    value: int = digits * 10**exponent
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise WrongError("out of range")
    return value


def _decimal(text: str, kind: pa.DataType) -> int:
    """Returns the number as the unscaled integer of a decimal type."""
    digits, exponent = exact(text)
    shift = exponent + kind.scale
    if digits and not 0 <= shift <= 40:
        raise WrongError("not exact")
    value: int = digits * 10**shift if digits else 0
    if abs(value) >= 10**kind.precision:
        raise WrongError("out of range")
    return value


def _double(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise WrongError("out of range")
    return value


def single(text: str) -> float:
    """Returns the float32 that is nearest to the number, by exact arithmetic."""
    if abs(float(text)) > 1e60:
        raise WrongError("out of range")
    with np.errstate(over="ignore"):
        middle = np.float32(float(text))
    if abs(float(text)) < 1e-60:  # avoids exact values that need too much memory
        return float(middle)
    match = NUMBER.fullmatch(text)
    assert match
    sign, integer_digits, fraction, power = match.groups()
    value = Fraction(int(integer_digits + (fraction or ""))) * Fraction(10) ** (
        int(power or 0) - len(fraction or "")
    )
    beyond = Fraction(2) ** 128

    def distance(candidate: np.float32) -> tuple[Fraction, int]:
        exactly = beyond if np.isinf(candidate) else Fraction(float(candidate))
        return abs(value - exactly), int(candidate.view(np.uint32)) & 1

    middle = abs(middle)
    with np.errstate(over="ignore"):
        up, down = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(0))
    best = min((down, middle, up), key=distance)
    if np.isinf(best):
        raise WrongError("out of range")
    return float(-best if sign else best)


def _days(text: str) -> int:
    if not DATE.fullmatch(text):
        raise WrongError("no date")
    try:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    except ValueError as error:
        raise WrongError(str(error)) from error


def _micros(text: str, zoned: bool) -> int:
    match = TIME.fullmatch(text)
    if not match:
        raise WrongError("no timestamp")
    day, hour, minute, second, fraction, utc, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(day).replace(
            hour=int(hour), minute=int(minute), second=int(second or 0)
        )
    except ValueError as error:
        raise WrongError(str(error)) from error
    if bool(utc or sign) != zoned or int(minutes or 0) > 59:
        raise WrongError("zone")
    east = int(hours or 0) * 60 + int(minutes or 0)
    if east > 18 * 60:
        raise WrongError("zone")
    seconds = (moment - EPOCH) // timedelta(seconds=1) - (-east if sign == "-" else east) * 60
    return seconds * 10**6 + int((fraction or "0").ljust(6, "0")[:6])


def _binary(text: str) -> bytes:
    if len(text) % 4:  # Python accepts padding after complete groups
        raise WrongError("padding")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WrongError(str(error)) from error


def _of(value: Any, expected_type: type) -> Any:  # noqa: ANN401
    if type(value) is not expected_type:
        raise WrongError(f"not {expected_type}")
    return value


def converted(value: Any, kind: pa.DataType, *, nullable: bool = True) -> Any:  # noqa: ANN401
    """Converts a parsed value to a type.

    Decimals, dates and timestamps become integers, and maps become lists of pairs.
    """
    if value is None:
        if not nullable:
            raise WrongError("null")
        return None
    if pa.types.is_boolean(kind):
        return _of(value, bool)
    if pa.types.is_integer(kind):
        return _integer(_of(value, Number), kind.bit_width)
    if pa.types.is_float32(kind):
        return single(_of(value, Number))
    if pa.types.is_float64(kind):
        return _double(_of(value, Number))
    if pa.types.is_decimal(kind):
        return _decimal(_of(value, Number), kind)
    if pa.types.is_string(kind):
        return _of(value, str)
    if pa.types.is_binary(kind):
        return _binary(_of(value, str))
    if pa.types.is_date(kind):
        return _days(_of(value, str))
    if pa.types.is_timestamp(kind):
        return _micros(_of(value, str), kind.tz is not None)
    if pa.types.is_list(kind):
        item = kind.value_field
        return [
            converted(item_value, item.type, nullable=item.nullable)
            for item_value in _of(value, list)
        ]
    if pa.types.is_map(kind):
        item = kind.item_field
        pairs: dict[str, Any] = {}
        for key, below in _of(value, Pairs):
            pairs.pop(key, None)
            pairs[key] = converted(below, item.type, nullable=item.nullable)
        return list(pairs.items())
    assert pa.types.is_struct(kind), kind
    fields = {field.name: field for field in kind}
    values: dict[str, Any] = dict.fromkeys(fields)
    for key, below in _of(value, Pairs):
        if key in fields:
            field = fields[key]
            values[key] = converted(below, field.type, nullable=field.nullable)
    for name, field in fields.items():
        if values[name] is None and not field.nullable:
            raise WrongError("missing")
    return values


def decoded(text: bytes | None, kind: pa.DataType) -> tuple[Any, bool]:
    """Returns the decoded value, and whether the text is invalid for type `kind`."""
    if text is None:
        return None, False
    try:
        return converted(parsed(text), kind), False
    except WrongError:
        return None, True


def plain(array: pa.Array) -> list[Any]:
    """Returns the values of an array in the form that `converted` returns."""
    kind = array.type
    if pa.types.is_decimal(kind):
        return _unscaled(array)
    if pa.types.is_date(kind):
        return list(array.view(pa.int32()).to_pylist())
    if pa.types.is_timestamp(kind):
        return list(array.view(pa.int64()).to_pylist())
    if pa.types.is_struct(kind):
        columns = [plain(array.field(i)) for i in range(kind.num_fields)]
        names = [field.name for field in kind]
        valid = array.is_valid().to_pylist()
        return [
            {name: column[row] for name, column in zip(names, columns, strict=True)}
            if valid[row]
            else None
            for row in range(len(array))
        ]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        if pa.types.is_map(kind):
            pairs = zip(plain(array.keys), plain(array.items), strict=True)
            items: list[Any] = list(pairs)
        else:
            items = plain(array.values)
        offsets = array.offsets.to_pylist()
        valid = array.is_valid().to_pylist()
        return [
            items[offsets[row] : offsets[row + 1]] if valid[row] else None
            for row in range(len(array))
        ]
    return list(array.to_pylist())


def _unscaled(array: pa.Array) -> list[int | None]:
    with decimal.localcontext() as context:
        context.prec = 80
        return [
            None if number is None else int(number.scaleb(array.type.scale))
            for number in array.to_pylist()
        ]


def same(first: Any, second: Any) -> bool:  # noqa: ANN401
    """Returns whether values are equal; 0.0 and -0.0 are different, and so are True and 1."""
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        return struct.pack("d", first) == struct.pack("d", second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)
