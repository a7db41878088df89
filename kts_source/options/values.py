"""Converts Python values of options to texts, which all parsers read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TypeAlias

from kts_source.errors import InvalidOptionError

OptionValue: TypeAlias = (
    "str | bool | int | date | os.PathLike[str] | Sequence[object] | Mapping[str, object]"
)
"""Value of an option: a text, or a Python value that `option_texts` converts."""
Options: TypeAlias = "Mapping[str, OptionValue]"
"""Options by name."""
PathOrOptions: TypeAlias = "Options | str | os.PathLike[str]"
"""Options by name, or the value of option `path` alone."""


def option_texts(source: PathOrOptions, /, **more: OptionValue) -> dict[str, str]:
    """Returns the text of each option, as in Spark.

    Numbers are written in decimal, booleans as `true` and `false`, dates and datetimes in ISO 8601.
    The items of a list are separated by commas. A dict becomes JSON.

    Args:
        source: Options, or a path.
        **more: Options in addition to those in `source`.

    Raises:
        InvalidOptionError: A value has another type, or an option occurs twice. The message does
            not contain values, because they may be secret.
    """
    options: Options = {"path": source} if isinstance(source, str | os.PathLike) else source
    texts: dict[str, str] = {}
    names: set[str] = set()
    for name, value in (*options.items(), *more.items()):
        if not isinstance(name, str):
            raise InvalidOptionError(
                f"the name of an option must be a text, not a value of type {_type(name)}"
            )
        if name.lower() in names:
            raise InvalidOptionError(
                f"option {name!r} is set twice: remove one of both. Upper and lower case are equal"
            )
        names.add(name.lower())
        texts[name] = _text(name, value)
    return texts


def _text(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        try:
            return json.dumps(dict(value), default=_json_value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidOptionError(
                f"option {name!r} is a dict that cannot be written as JSON: {error}"
            ) from None
    if isinstance(value, list | tuple):
        items = [_scalar_text(name, item) for item in value]
        if any("," in item for item in items):
            raise InvalidOptionError(
                f"option {name!r} is a list with a comma in an item, but items are separated by"
                " commas"
            )
        return ",".join(items)
    return _scalar_text(name, value)


def _scalar_text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, date):
        return _date_text(value)
    path = os.fspath(value) if isinstance(value, os.PathLike) else None
    if isinstance(path, str):
        return path
    raise InvalidOptionError(
        f"option {name!r} must be a text, a bool, an int, a path, a date, a datetime, or a list or"
        f" dict of these, not a value of type {_type(value)}"
    )


def _date_text(value: date) -> str:
    if not isinstance(value, datetime):
        return value.isoformat()
    if value.tzinfo is not None:
        value = value.astimezone(UTC)
    return value.isoformat(timespec="microseconds")


def _json_value(value: object) -> str:
    if isinstance(value, date):
        return _date_text(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise TypeError(f"it has a value of type {_type(value)}")


def _type(value: object) -> str:
    return type(value).__name__
