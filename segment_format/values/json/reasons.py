"""What is wrong with a bad row, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from segment_format.values.json import contract as c

if TYPE_CHECKING:
    from segment_format.values.json.program import Node

_REASONS: Final = {
    c.BAD_END: "the text ends too early",
    c.BAD_TOKEN: "no JSON value begins here",
    c.BAD_KEY: "the name of a field in double quotes must stand here",
    c.BAD_COLON: "a colon must follow the name of a field",
    c.BAD_NEXT: "a comma or the closing bracket must follow",
    c.BAD_REST: "something follows the value",
    c.BAD_DEPTH: f"more than {c.MAX_DEPTH} objects and arrays are inside each other",
    c.BAD_STRING_END: "a string does not end",
    c.BAD_CONTROL: "a string holds a control character that is not escaped",
    c.BAD_ESCAPE: "a string holds an escape that JSON does not have",
    c.BAD_SURROGATE: "a string holds half a surrogate pair",
    c.BAD_UTF8: "a string is not UTF-8",
    c.BAD_NUMBER: "this is not how JSON writes a number",
    c.MISSING: "the field may not be null, and is missing",
    c.NULL: "the value may not be null",
    c.TOO_MANY_ITEMS: "its arrays and objects take more memory than one batch may",
    c.BAD_BASE64: "a binary value must be base64 with padding",
    c.BAD_DATE: "a date must be YYYY-MM-DD",
    c.BAD_TIME: "a timestamp must be YYYY-MM-DDThh:mm:ss, with up to 9 digits of a second",
    c.OUT_OF_RANGE: "the number is too large for {kind}",
    c.NOT_EXACT: "the number has digits that {kind} does not hold",
}
_FOUND: Final = {
    '"': "a string",
    "{": "an object",
    "[": "an array",
    "t": "a boolean",
    "f": "a boolean",
    "n": "null",
    "-": "a number",
}
_WANTED: Final = {
    c.STRUCT: "an object",
    c.MAP: "an object",
    c.LIST: "an array",
    c.BOOL: "a boolean",
    **dict.fromkeys((c.INT64, c.INT32, c.DOUBLE, c.SINGLE, c.DECIMAL), "a number"),
}


def reason(code: int, node: Node, byte: bytes, position: int) -> str:
    """What is wrong at a position of a text, where `byte` stands; the data itself is not told."""
    if code == c.WRONG_TYPE:
        first = byte.decode("latin-1")
        found = _FOUND.get(first, "a number" if first.isdecimal() else "no JSON value")
        kind = f" for {node.type}" if node.op < c.STRUCT else ""
        words = f"{_WANTED.get(node.op, 'a string')} is wanted{kind}, not {found}"
    elif code == c.BAD_ZONE:
        words = (
            "the timestamp has no time zone; without one it is a timestamp_ntz"
            if node.op == c.TIMESTAMP
            else "the timestamp has a time zone; with one it is a timestamp"
        )
    else:
        words = _REASONS[code].format(kind=node.type)
    return f"{words} (byte {position})"
