"""Generates random column types, and random JSON texts of their values."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from random import Random

SCALARS: Final = (
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
)
NAMES: Final = ("a", "b", "name", "größe", "a.b", "", 'q"uote', "back\\slash", "x" * 40, "id", "😀")
SHORT: Final = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def any_type(random: Random, depth: int = 3) -> pa.DataType:
    """Returns a random type that the JSON decoder supports."""
    pick = random.randrange(16 if depth else 11)
    if pick < 10:
        return SCALARS[pick]
    if pick == 10:
        precision = random.randint(1, 38)
        return pa.decimal128(precision, random.randint(0, precision))
    if pick == 11:
        return pa.map_(pa.string(), any_field(random, "value", depth - 1))
    if pick in (12, 13):
        return pa.list_(any_field(random, "element", depth - 1))
    names = random.sample(NAMES, random.randint(0, 5))
    return pa.struct([any_field(random, name, depth - 1) for name in names])


def any_field(random: Random, name: str, depth: int) -> pa.Field:
    """Returns a random field; some fields are not nullable."""
    return pa.field(name, any_type(random, depth), nullable=random.random() < 0.85)


def any_struct(random: Random, depth: int = 3) -> pa.DataType:
    """Returns a struct of a few random fields."""
    names = random.sample(NAMES, random.randint(1, 7))
    return pa.struct([any_field(random, name, depth - 1) for name in names])


def _text(random: Random) -> str:
    pool = 'abc xyz/"\\\n\t\x00\x1fäßé€中😀\u007f'
    return "".join(random.choice(pool) for _ in range(random.choice((0, 1, 3, 8, 31, 33, 70))))


def _digits(random: Random, max_digits: int) -> str:
    return "".join(random.choice("0123456789") for _ in range(random.randint(1, max_digits)))


def integer(random: Random, bits: int) -> str:
    """Returns the text of a random integer that usually fits into `bits` bits."""
    edge = 1 << bits - 1
    value = random.choice(
        (
            random.randint(-9, 9),
            random.randint(-edge, edge - 1),
            random.choice((-edge, edge - 1, -edge - 1, edge)),
            random.randint(-(10**6), 10**6),
        )
    )
    return respell(random, str(value))


def respell(random: Random, number: str) -> str:
    """Returns another text of the same number, for example with added zeros, a point or an
    exponent.
    """
    pick = random.randrange(12)
    if pick == 0:
        return f"{number}.{'0' * random.randint(1, 25)}"
    if pick == 1 and number.endswith("0") and number.strip("-0"):
        bare = number.rstrip("0")
        return f"{bare}{random.choice('eE')}{random.choice(('', '+'))}{len(number) - len(bare)}"
    if pick == 2:
        zeros = random.randint(0, 25)
        return f"{number}{'0' * zeros}e-{zeros}" if number.strip("-0") else f"{number}e-{zeros}"
    return number


def floating(random: Random) -> str:
    """Returns the text of a random floating-point number."""
    integer_digits = str(int(_digits(random, random.choice((1, 3, 17, 25)))))
    fraction = f".{_digits(random, random.choice((2, 15, 30)))}" if random.random() < 0.7 else ""
    power = ""
    if random.random() < 0.4:
        size = random.choice((5, 30, 50, 330, 10**9))
        power = f"{random.choice('eE')}{random.choice(('', '+', '-'))}{random.randint(0, size)}"
    return f"{random.choice(('', '-'))}{integer_digits}{fraction}{power}"


def _time(random: Random, zone: str) -> str:
    day = f"{random.randint(1, 9999):04}-{random.randint(1, 12):02}-{random.randint(1, 29):02}"
    clock = f"{random.randint(0, 23):02}:{random.randint(0, 59):02}"
    if random.random() < 0.8:
        clock += f":{random.randint(0, 59):02}"
        if random.random() < 0.6:
            clock += f".{_digits(random, 9)}"
    return f"{day}{random.choice('T ')}{clock}{zone}"


def _zone(random: Random) -> str:
    east = f"{random.choice('+-')}{random.randint(0, 17):02}"
    minutes = f"{random.randint(0, 59):02}"
    return random.choice(("Z", "Z", east, east + minutes, f"{east}:{minutes}"))


def spelled(random: Random, kind: pa.DataType, *, nullable: bool = True, wrong: float = 0) -> str:
    """Returns the JSON text of a random value of type `kind` or, with probability `wrong`, of
    another type.
    """
    if random.random() < (0.15 if nullable else wrong / 2):
        return "null"
    if random.random() < wrong:
        return anything(random, 2)
    if pa.types.is_boolean(kind):
        return random.choice(("true", "false"))
    if pa.types.is_integer(kind):
        return integer(random, kind.bit_width)
    if pa.types.is_floating(kind):
        return floating(random)
    if pa.types.is_decimal(kind):
        scale = random.randint(0, kind.scale)
        integer_digits = str(int(_digits(random, max(kind.precision - kind.scale, 1))))
        if kind.precision == kind.scale and random.random() < 0.9:
            integer_digits = "0"
        number = f"{random.choice(('', '-'))}{integer_digits}"
        if scale:
            return f"{number}.{_digits(random, scale)}{'0' * random.choice((0, 0, 3, 30))}"
        return respell(random, number)
    if pa.types.is_string(kind):
        return string(random, _text(random))
    if pa.types.is_binary(kind):
        data = random.randbytes(random.choice((0, 1, 2, 3, 30, 61)))
        return string(random, base64.b64encode(data).decode())
    if pa.types.is_date(kind):
        return string(random, _time(random, "")[:10])
    if pa.types.is_timestamp(kind):
        return string(random, _time(random, _zone(random) if kind.tz else ""))
    if pa.types.is_list(kind):
        item = kind.value_field
        size = random.choice((0, 1, 2, 3, 3, 12))
        return joined(
            random,
            "[]",
            [spelled(random, item.type, nullable=item.nullable, wrong=wrong) for _ in range(size)],
        )
    if pa.types.is_map(kind):
        item = kind.item_field
        size = random.choice((0, 1, 2, 5, 9, 20))
        keys = [random.choice((_text(random), random.choice("abcde"))) for _ in range(size)]
        return joined(
            random,
            "{}",
            [
                pair(
                    random,
                    key,
                    spelled(random, item.type, nullable=item.nullable, wrong=wrong),
                )
                for key in keys
            ],
        )
    return _object(random, kind, wrong)


def _object(random: Random, kind: pa.DataType, wrong: float) -> str:
    fields = [field for field in kind if not (field.nullable and random.random() < 0.2)]
    if random.random() < wrong:
        fields = fields[1:]
    if random.random() < 0.3:
        random.shuffle(fields)
    if fields and random.random() < 0.2:
        fields.append(random.choice(fields))
    pairs = [
        pair(
            random,
            field.name,
            spelled(random, field.type, nullable=field.nullable, wrong=wrong),
        )
        for field in fields
    ]
    while random.random() < 0.2:
        key = _text(random) + "?"
        pairs.insert(random.randint(0, len(pairs)), pair(random, key, anything(random, 2)))
    return joined(random, "{}", pairs)


def anything(random: Random, depth: int) -> str:
    """Returns a random JSON value."""
    pick = random.randrange(7 if depth else 5)
    if pick == 0:
        return random.choice(("null", "true", "false"))
    if pick in (1, 2):
        return floating(random)
    if pick in (3, 4):
        return string(random, _text(random))
    size = random.randrange(4)
    if pick == 5:
        return joined(random, "[]", [anything(random, depth - 1) for _ in range(size)])
    return joined(
        random,
        "{}",
        [pair(random, _text(random), anything(random, depth - 1)) for _ in range(size)],
    )


def space(random: Random) -> str:
    """Returns random white space, usually an empty text."""
    if random.random() < 0.85:
        return ""
    return "".join(random.choice(" \t\n\r") for _ in range(random.randint(1, 3)))


def pair(random: Random, key: str, value: str) -> str:
    """Returns the text of a name and a value, as in a JSON object."""
    return f"{string(random, key)}{space(random)}:{space(random)}{value}"


def joined(random: Random, brackets: str, items: list[str]) -> str:
    """Returns the text of an array or object with these items."""
    body = ",".join(f"{space(random)}{item}{space(random)}" for item in items)
    return f"{brackets[0]}{space(random)}{body}{brackets[1]}"


def string(random: Random, text: str) -> str:
    """Returns the JSON string of a text, with random escape sequences."""
    style = random.randrange(4)
    if style == 0:
        return json.dumps(text)
    if style == 1:
        return json.dumps(text, ensure_ascii=False)
    return f'"{"".join(_character(random, character) for character in text)}"'


def _character(random: Random, character: str) -> str:
    if random.random() < 0.2:
        units = character.encode("utf-16-be")
        digits = random.choice(("{:04x}", "{:04X}"))
        return "".join(
            "\\u" + digits.format(int.from_bytes(units[i : i + 2])) for i in range(0, len(units), 2)
        )
    if character in SHORT and random.random() < 0.5:
        return SHORT[character]
    if character < " ":
        return f"\\u{ord(character):04x}"
    if character in '"\\' or (character == "/" and random.random() < 0.5):
        return f"\\{character}"
    return character


def damaged(random: Random, text: bytes) -> bytes:
    """Returns the JSON text with a small random change."""
    pick = random.randrange(5)
    position = random.randrange(len(text) + 1)
    if pick == 0:
        return text[:position]
    if pick == 1:
        return (
            text[:position]
            + bytes([random.choice(b'"\\{}[]:,0123456789eE+-.tfn \x00\x1f\x80\xff')])
            + text[position:]
        )
    if pick == 2:
        return text[:position] + text[position + 1 :]
    if pick == 3 and text:
        position = min(position, len(text) - 1)
        return text[:position] + bytes([random.randrange(256)]) + text[position + 1 :]
    other = random.randrange(len(text) + 1)
    return text[:position] + text[other:]


def any_values(random: Random, kind: pa.DataType, count: int, bad: float) -> list[Any]:
    """Returns JSON texts of random values; some are None, of another type, or damaged."""
    values: list[Any] = []
    for _ in range(count):
        wrong = 0.1 if random.random() < bad else 0.0
        text = (space(random) + spelled(random, kind, wrong=wrong) + space(random)).encode()
        if random.random() < bad:
            text = damaged(random, text)
        values.append(None if random.random() < 0.05 else text)
    return values
