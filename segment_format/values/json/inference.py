"""A type for JSON values, from a sample of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

_INT64: Final = range(-(2**63), 2**63)
_MAX_FIELDS: Final = 5000
_MAX_DEPTH: Final = 100
_MAX_DIGITS: Final = 20  # with a sign
_BOOL: Final = "a boolean"
_INTEGER: Final = "an integer"
_NUMBER: Final = "a number"
_STRING: Final = "a string"
_OBJECT: Final = "an object"
_ARRAY: Final = "an array"
_SCALARS: Final = {
    _BOOL: pa.bool_(),
    _INTEGER: pa.int64(),
    _NUMBER: pa.float64(),
    _STRING: pa.string(),
}


class _BadSampleError(Exception):
    """A sample that is no JSON."""


@dataclass(slots=True)
class _Seen:
    """What has been seen at a path: its kind, empty for only nulls, and what is below it."""

    path: str
    kind: str = ""
    fields: dict[str, _Seen] = field(default_factory=dict)
    item: _Seen | None = None


def infer(samples: Iterable[bytes | None]) -> pa.DataType:
    """The type that all of some JSON values have.

    Integers are int64, and double where other numbers stand at the same place, or ones beyond
    int64. Objects are structs of all fields seen, in the order they came in; arrays are lists of
    what fits all their items. Fields and items may all be null.

    Where two samples disagree otherwise (a number here, a string there), nothing is chosen: a
    string would quietly hold both. It is an error that names the place, and a schema settles it.
    A field that was null, an empty array or an empty object in all samples tells no type, and is
    left out.

    Args:
        samples: Values, as many as may be looked at. Null ones, and those that are no JSON, tell
            nothing.

    Raises:
        ValueError: The samples disagree, none of them tells anything, or they have more than 5,000
            fields or 100 levels.
    """
    root = _Seen("")
    fields = [0]
    reason = "there is no sample"
    for sample in samples:
        if sample is None:
            continue
        try:
            value = _parsed(sample)
        except _BadSampleError as error:
            reason = f"no sample is JSON: {error}"
            continue
        _look(root, value, fields, 0)
        reason = "all samples are null or empty"
    kind = _type(root)
    if kind is None:
        raise ValueError(f"no type can be found: {reason}")
    return kind


def _parsed(sample: bytes) -> Any:  # noqa: ANN401
    try:
        value = json.loads(sample.decode(), parse_constant=_refuse, parse_int=_integer)
        json.dumps(value, ensure_ascii=False).encode()  # fails where there is half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise _BadSampleError(type(error).__name__) from error
    return value


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= _MAX_DIGITS else float(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _look(seen: _Seen, value: Any, fields: list[int], depth: int) -> None:  # noqa: ANN401
    """Adds a value to what was seen at its path."""
    if value is None:
        return
    if depth > _MAX_DEPTH:
        raise ValueError(f"{seen.path}: more than {_MAX_DEPTH} levels; give a schema")
    kind = _kind(value)
    if {kind, seen.kind} == {_INTEGER, _NUMBER}:
        kind = _NUMBER
    elif seen.kind not in ("", kind):
        raise ValueError(
            f"{seen.path or 'the value'} is {seen.kind} in some samples and {kind} in others;"
            " give a schema"
        )
    seen.kind = kind
    if kind == _OBJECT:
        for name, below in value.items():
            if name not in seen.fields:
                fields[0] += 1
                if fields[0] > _MAX_FIELDS:
                    raise ValueError(f"more than {_MAX_FIELDS} fields; give a schema")
                path = f"{seen.path}.{name}" if seen.path else name
                seen.fields[name] = _Seen(path)
            _look(seen.fields[name], below, fields, depth + 1)
    elif kind == _ARRAY:
        if seen.item is None:
            seen.item = _Seen(seen.path)
        for below in value:
            _look(seen.item, below, fields, depth + 1)


def _kind(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _INTEGER if value in _INT64 else _NUMBER
    if isinstance(value, float):
        return _NUMBER
    if isinstance(value, str):
        return _STRING
    return _OBJECT if isinstance(value, dict) else _ARRAY


def _type(seen: _Seen) -> pa.DataType | None:
    if seen.kind in _SCALARS:
        return _SCALARS[seen.kind]
    if seen.kind == _ARRAY and seen.item is not None:
        item = _type(seen.item)
        return None if item is None else pa.list_(pa.field("element", item))
    if seen.kind == _OBJECT:
        found = {name: _type(below) for name, below in seen.fields.items()}
        fields = [(name, kind) for name, kind in found.items() if kind is not None]
        return pa.struct(fields) if fields else None
    return None
