"""Converts a JSON Schema to an Arrow type.

| JSON Schema | becomes |
|---|---|
| boolean, integer, number, string | bool, int64, double, string |
| integer of format int32; number of format float | int32; float |
| string of format date, date-time; of contentEncoding base64 | date, timestamp[us, UTC]; binary |
| object with properties | struct; a required property that does not allow null is not nullable |
| object without properties, with additionalProperties | map |
| array of items | list |
| enum, const | the type of its values |
| several types, oneOf, anyOf | the type besides null; double if they are integer and number |
| $ref within the document | the type that it refers to |

Items of lists and values of maps are always nullable, because the type is converted to DDL, and DDL
cannot express that items are not nullable. Restrictions of values (minimum, pattern, the values of
an enum, …) are ignored.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

import pyarrow as pa

_MAX_TYPES: Final = 1 << 13
"""Maximum number of types, each counted as often as it is referenced."""
_MAX_LEVELS: Final = 64
_NULL: Final = "null"
_OBJECT: Final = "object"
_ARRAY: Final = "array"
_INTEGER: Final = "integer"
_NUMBER: Final = "number"
_STRING: Final = "string"
_PLAIN: Final = {
    "boolean": pa.bool_(),
    _INTEGER: pa.int64(),
    _NUMBER: pa.float64(),
    _STRING: pa.string(),
}
_FORMATS: Final = {
    (_INTEGER, "int32"): pa.int32(),
    (_NUMBER, "float"): pa.float32(),
    (_STRING, "date"): pa.date32(),
    (_STRING, "date-time"): pa.timestamp("us", "UTC"),
}
_BRANCHES: Final = ("oneOf", "anyOf", "allOf")
_SHAPES: Final = ("$ref", *_BRANCHES, "properties", "additionalProperties", "items")
_REFUSED: Final = (
    *("patternProperties", "prefixItems", "if", "then", "else", "dependentSchemas"),
    *("dependencies", "$dynamicRef", "$recursiveRef"),
)
"""Keywords that may add fields to a value, or choose between types."""

Found = tuple[pa.DataType | None, bool]
"""A type (`None` if all values are null), and whether values may be null."""


def json_schema_type(text: str) -> pa.DataType:
    """Returns the Arrow type of values that follow a JSON Schema. All drafts from 4 on are
    supported.

    Args:
        text: JSON text of the JSON Schema.

    Raises:
        ValueError: The text is not a valid JSON Schema, or columns cannot represent its values.
    """
    try:
        document = json.loads(text)
        json.dumps(document, ensure_ascii=False).encode()  # fails for half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON Schema: {type(error).__name__}: {error}") from None
    reader = _Reader(document)
    kind, _ = reader.convert(document)
    if kind is None:
        raise ValueError("the JSON Schema allows only null")
    return kind


class _Reader:
    """Converts the schemas of one document, in which references (`$ref`) are looked up."""

    def __init__(self, document: Any) -> None:  # noqa: ANN401  # any JSON
        self._document = document
        self._types = 0
        self._path: list[str] = []
        self._open: list[str] = []  # references being followed
        self._levels = 0

    def convert(self, schema: Any) -> Found:  # noqa: ANN401
        """Converts a schema. Returns two values: the type (`None` if only null is allowed), and
        whether the schema allows null.
        """
        self._types += 1
        if self._types > _MAX_TYPES:
            raise ValueError(f"the JSON Schema has more than {_MAX_TYPES:,} types")
        if self._levels == _MAX_LEVELS:
            raise ValueError(f"the JSON Schema has more than {_MAX_LEVELS} levels")
        self._levels += 1
        try:
            return self._convert(schema)
        finally:
            self._levels -= 1

    def _convert(self, schema: Any) -> Found:  # noqa: ANN401
        if not isinstance(schema, dict):
            self._refuse("a schema has no type")
        for word in _REFUSED:
            if word in schema:
                self._refuse(f"{word!r} does not describe a single type")
        shapes = [word for word in _SHAPES if word in schema]
        if "$ref" in shapes or any(word in shapes for word in _BRANCHES):
            if len(shapes) > 1:
                self._refuse(f"{' and '.join(shapes)} do not describe a single type")
            (word,) = shapes
            return self._from_reference(schema) if word == "$ref" else self._branches(word, schema)
        kinds, nullable = self._kinds(schema)
        if not kinds:
            return None, True
        if kinds == {_INTEGER, _NUMBER}:
            kinds = {_NUMBER}
        if len(kinds) > 1:
            self._refuse(f"values have several types: {', '.join(sorted(kinds))}")
        (kind,) = kinds
        if kind == _OBJECT:
            return self._object(schema), nullable
        if kind == _ARRAY:
            return self._array(schema), nullable
        if kind not in _PLAIN:
            self._refuse(f"unknown type {_shown(kind)}")
        if kind == _STRING and schema.get("contentEncoding") == "base64":
            return pa.binary(), nullable
        form = schema.get("format")
        named = _FORMATS.get((kind, form)) if isinstance(form, str) else None
        return _PLAIN[kind] if named is None else named, nullable

    def _kinds(self, schema: dict[str, Any]) -> tuple[set[str], bool]:
        """Returns two values: the types other than null that a schema allows, and whether it allows
        null.
        """
        declared = schema.get("type")
        if isinstance(declared, str):
            names = {declared}
        elif (
            isinstance(declared, list)
            and declared
            and all(isinstance(name, str) for name in declared)
        ):
            names = set(declared)
        elif declared is not None:
            self._refuse(f"invalid type: {_shown(declared)}")
        elif "enum" in schema or "const" in schema:
            names = self._types_of_values(schema)
        elif "properties" in schema or "additionalProperties" in schema:
            names = {_OBJECT}
        elif "items" in schema:
            names = {_ARRAY}
        else:
            self._refuse("a schema has no type")
        nullable = _NULL in names
        values = schema.get("enum")
        if nullable and isinstance(values, list):
            nullable = None in values
        return names - {_NULL}, nullable

    def _types_of_values(self, schema: dict[str, Any]) -> set[str]:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(values, list) or not values:
            self._refuse(f"an enum has no values: {_shown(values)}")
        names = {_name_of(value) for value in values}
        if names & {_OBJECT, _ARRAY}:
            self._refuse("an enum has objects or arrays; specify their type")
        return names

    def _object(self, schema: dict[str, Any]) -> pa.DataType:
        properties = schema.get("properties")
        others = schema.get("additionalProperties")
        if properties is None or properties == {}:
            if not isinstance(others, dict):
                self._refuse("an object has neither properties nor a type of additionalProperties")
            return pa.map_(pa.string(), self._item(others))
        if not isinstance(properties, dict):
            self._refuse(f"properties are not an object: {_shown(properties)}")
        if isinstance(others, dict) and others:
            self._refuse("an object has properties and a type of additionalProperties")
        required = schema.get("required") or []
        if not isinstance(required, list):  # draft 3 has a boolean in the property
            self._refuse(f"'required' is not a list: {_shown(required)}")
        fields = []
        for name, below in properties.items():
            self._path.append(name)
            kind, nullable = self.convert(below)
            if kind is None:
                self._refuse("only null is allowed")
            self._path.pop()
            fields.append(pa.field(name, kind, nullable=nullable or name not in required))
        return pa.struct(fields)

    def _array(self, schema: dict[str, Any]) -> pa.DataType:
        items = schema.get("items")
        if not isinstance(items, dict):
            self._refuse("the items of an array have no single type")
        return pa.list_(pa.field("element", self._item(items)))

    def _item(self, schema: dict[str, Any]) -> pa.DataType:
        kind, _ = self.convert(schema)
        if kind is None:
            self._refuse("only null is allowed")
        return kind

    def _branches(self, word: str, schema: dict[str, Any]) -> Found:
        branches = schema[word]
        if not isinstance(branches, list) or not branches:
            self._refuse(f"{word} has no schemas: {_shown(branches)}")
        if word == "allOf" and len(branches) > 1:
            self._refuse("allOf has several schemas")
        converted = [self.convert(branch) for branch in branches]
        kinds = [kind for kind, _ in converted if kind is not None]
        nullable = any(null for _, null in converted)
        if any(kind != kinds[0] for kind in kinds):
            if not all(kind in (pa.int64(), pa.float64()) for kind in kinds):
                self._refuse(f"{word} has several types")
            return pa.float64(), nullable
        return kinds[0] if kinds else None, nullable

    def _from_reference(self, schema: dict[str, Any]) -> Found:
        reference = schema["$ref"]
        if not isinstance(reference, str) or not (reference == "#" or reference[:2] == "#/"):
            self._refuse(f"a reference leads out of the document: {_shown(reference)}")
        if reference in self._open:
            self._refuse(f"{reference} contains itself, which columns cannot represent")
        target: Any = self._document
        for step in reference[2:].split("/") if reference != "#" else ():
            name = _unquoted(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                self._refuse(f"{reference} does not exist")
        self._open.append(reference)
        try:
            return self.convert(target)
        finally:
            self._open.pop()

    def _refuse(self, reason: str) -> NoReturn:
        where = f"field {'.'.join(self._path)!r}" if self._path else "the value"
        raise ValueError(f"{where} of the JSON Schema: {reason}")


def _unquoted(text: str) -> str:
    """Decodes percent-encoded text, such as `%20`."""
    data = re.sub(
        rb"%([0-9A-Fa-f]{2})", lambda match: bytes.fromhex(match[1].decode()), text.encode()
    )
    return data.decode(errors="replace")


def _name_of(value: Any) -> str:  # noqa: ANN401
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return _INTEGER
    if isinstance(value, float):
        return _NUMBER
    if isinstance(value, str):
        return _STRING
    return _OBJECT if isinstance(value, dict) else _ARRAY


def _shown(document: object) -> str:
    text = json.dumps(document)
    return text if len(text) <= 100 else f"{text[:100]}…"
