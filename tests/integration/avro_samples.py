"""Contains Avro schemas and test values.

A value is a row as the serializers of the tests accept it, mostly in Avro's JSON encoding.
`BASKETS` contains pairs: a value and the row that a reader must return for it.
"""

from __future__ import annotations

from typing import Any


def record(name: str, /, **fields: object) -> dict[str, Any]:
    """Returns the Avro schema of a record with these fields; nullable fields have null as their
    default.
    """
    avro_fields: list[dict[str, Any]] = []
    for field, kind in fields.items():
        avro_fields.append({"name": field, "type": kind})
        if isinstance(kind, list) and kind[0] == "null":
            avro_fields[-1]["default"] = None
    return {"type": "record", "name": name, "namespace": "shop", "fields": avro_fields}


TEXTS, NUMBERS = ("country", "city", "product", "customer"), ("amount", "quantity")
ORDER = record(
    "Order",
    **dict.fromkeys(TEXTS, "string"),
    **dict.fromkeys(NUMBERS, "long"),
    price="double",
    discount="double",
    paid="boolean",
    note=["null", "string"],
)
NEXT_ORDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "v", "type": "int", "default": 9}]}


def order(number: int) -> dict[str, Any]:
    return {
        **{name: f"{name} {number} ö" for name in TEXTS},
        **{name: number * 10**exponent - 3 for exponent, name in enumerate(NUMBERS)},
        "price": number / 7,
        "discount": -0.5 * number,
        "paid": number % 3 == 0,
        "note": None if number % 2 else f"n{number}",
    }


PERSON = record("Person", name="string", age=["null", "int"])
LINE = record("Line", sku="string", count="int")
BASKET = record(
    "Basket",
    buyer=PERSON,
    lines={"type": "array", "items": LINE},
    rates={"type": "map", "values": "double"},
    choice=["string", "long", "shop.Person"],
    maybe=["null", "long"],
    state={"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]},
    digest={"type": "fixed", "name": "Digest", "size": 4},
    raw="bytes",
)
ANNA, BEN = {"name": "Anna", "age": None}, {"name": "Ben", "age": {"int": 44}}
LINES = [{"sku": "a", "count": 1}, {"sku": "ß", "count": -7}]
FULL = {"state": "PAID", "digest": "\0\1\xfe\xff", "raw": "\x80"}
FULL_BYTES = {"state": "PAID", "digest": b"\0\1\xfe\xff", "raw": b"\x80"}
EMPTY = {"maybe": None, "state": "NEW", "digest": "abcd", "raw": ""}
EMPTY_BYTES = {**EMPTY, "digest": b"abcd", "raw": b""}
NO_CHOICE = {"member0": None, "member1": None, "member2": None}
BASKETS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            **FULL,
            "buyer": BEN,
            "lines": LINES,
            "rates": {"x": 0.5},
            "choice": {"string": "s"},
            "maybe": {"long": 1 << 40},
        },
        {
            **FULL_BYTES,
            "buyer": {"name": "Ben", "age": 44},
            "lines": LINES,
            "rates": [("x", 0.5)],
            "choice": {**NO_CHOICE, "member0": "s"},
            "maybe": 1 << 40,
        },
    ),
    (
        {**EMPTY, "buyer": ANNA, "lines": [], "rates": {}, "choice": {"shop.Person": ANNA}},
        {
            **EMPTY_BYTES,
            "buyer": ANNA,
            "lines": [],
            "rates": [],
            "choice": {**NO_CHOICE, "member2": ANNA},
        },
    ),
    (
        {**EMPTY, "buyer": ANNA, "lines": LINES[1:], "rates": {}, "choice": {"long": -5}},
        {
            **EMPTY_BYTES,
            "buyer": ANNA,
            "lines": LINES[1:],
            "rates": [],
            "choice": {**NO_CHOICE, "member1": -5},
        },
    ),
]
