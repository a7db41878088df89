"""Parses the texts of options. There is a function for each kind of value. Errors name the option
and show its text. `option_texts` converts Python values to these texts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.errors import InvalidOptionError
from kts_source.predicate.model import MAX_INT64, MIN_INT64

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo


OptionValue: TypeAlias = (
    "str | bool | int | date | os.PathLike[str] | Sequence[object] | Mapping[str, object]"
)
"""Value of an option: a text, or a Python value that `option_texts` converts."""
Options: TypeAlias = "Mapping[str, OptionValue]"
"""Options by name."""
PathOrOptions: TypeAlias = "Options | str | os.PathLike[str]"
"""Options by name, or the value of option `path` alone."""


def option_texts(source: PathOrOptions | None, /, **more: OptionValue) -> dict[str, str]:
    """Returns the text of each option, as in Spark.

    Numbers are written in decimal, booleans as `true` and `false`, dates and datetimes in ISO 8601.
    The items of a list are separated by commas. A dict becomes JSON.

    Args:
        source: Options, or a path; `None` = all options are in `more`.
        **more: Options in addition to those in `source`.

    Raises:
        InvalidOptionError: A value has another type, or an option occurs twice. The message does
            not contain values, because they may be secret.
    """
    options: Options = {"path": source} if isinstance(source, str | os.PathLike) else source or {}
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


@dataclass(frozen=True, slots=True)
class Option:
    """An option: a row of the table of options.

    Attributes:
        name: Name as users write it.
        parse: Converts option name and text to a value; raises `InvalidOptionError`.
        doc: One sentence for the docs.
        default: Default as a text, which is shown in the docs and parsed like a text from the user;
            `None` without a default.
    """

    name: str
    parse: Callable[[str, str], Any]
    doc: str
    default: str | None = None


MAX_INT32: Final = (1 << 31) - 1
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTE_SIZE = re.compile(r"([0-9]{1,19})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)


def check_characters(name: str, text: str) -> None:
    """Raises `InvalidOptionError` if a text has a zero byte or a lone surrogate. The error does not
    show the text.
    """
    try:
        text.encode("utf-8", "surrogateescape")  # file names may have any bytes
        valid = "\0" not in text
    except UnicodeEncodeError:
        valid = False
    if not valid:
        raise InvalidOptionError(f"option {name!r} has a zero byte or half of a surrogate pair")


def parse_text(name: str, text: str) -> str:
    """Strips blanks from a text. Rejects an empty text."""
    if not (stripped := text.strip()):
        raise InvalidOptionError(f"option {name!r} is empty: set a value, or remove the option")
    return stripped


def parse_bool(name: str, text: str) -> bool:
    """Parses `true` or `false`. Upper and lower case are not distinguished."""
    return parse_choice(name, text, choices=("true", "false")) == "true"


def parse_choice(name: str, text: str, *, choices: tuple[str, ...]) -> str:
    """Returns the text in lower case. It must be one of `choices`; upper and lower case are not
    distinguished.
    """
    lower = text.strip().lower()
    if lower not in choices:
        raise InvalidOptionError(f"option {name!r} must be {' or '.join(choices)}, not {text!r}")
    return lower


def parse_int(name: str, text: str) -> int:
    """Parses a decimal integer of 64 bits."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text) or not MIN_INT64 <= int(text) <= MAX_INT64:
        raise InvalidOptionError(f"option {name!r} must be a whole number, not {text!r}")
    return int(text)


def parse_positive_int(name: str, text: str, *, most: int = MAX_INT64) -> int:
    """Parses a whole number from 1 to `most`."""
    value = parse_int(name, text)
    if value <= 0:
        raise InvalidOptionError(f"option {name!r} must be positive, not {text!r}")
    if value > most:
        raise InvalidOptionError(f"option {name!r} must be at most {most}, not {text!r}")
    return value


parse_positive_int32 = partial(parse_positive_int, most=MAX_INT32)


def parse_byte_size(name: str, text: str, *, least: int = 1, most: int = MAX_INT64) -> int:
    """Parses a size in bytes, plain or with a unit in powers of 1024 (`64m`, `1g`, `512 KiB`)."""
    match = _BYTE_SIZE.fullmatch(text.strip())
    value = int(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0
    if not 0 < value <= MAX_INT64:
        raise InvalidOptionError(
            f"option {name!r} must be a size such as 134217728 or 128m, not {text!r}"
        )
    if not least <= value <= most:
        raise InvalidOptionError(
            f"option {name!r} must be from {least} to {most} bytes, not {text!r}"
        )
    return value


def parse_time_zone(name: str, text: str) -> tzinfo:
    """Parses a time zone by its name or offset."""
    # Do not import sqlglot at module level, because the import takes a quarter of a second.
    from kts_source.predicate.literals import time_zone

    try:
        return time_zone(text)
    except ValueError as error:
        raise InvalidOptionError(f"option {name!r}: {error}") from None


def parse_names(name: str, text: str) -> tuple[str, ...]:
    """Parses one or more names that are separated by commas."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise InvalidOptionError(f"option {name!r} must have at least one name, not {text!r}")
    return names


def parse_columns(name: str, text: str) -> tuple[str, ...]:
    """Parses names that are separated by commas. Names may be quoted with backticks, as in
    Spark.
    """
    return tuple(column.strip("`") for column in parse_names(name, text))


def parse_json_object(name: str, text: str, *, example: str) -> Mapping[str, Any]:
    """Parses a JSON object without repeated keys."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("it has a key twice")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=unique)
        if not isinstance(value, dict):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise InvalidOptionError(
            f"option {name!r} must be JSON like {example}, not {text!r}: {error}"
        ) from error
    return value


def parse_partition_number(name: str, value: object) -> int:
    """Parses a partition number in JSON. Also accepts a text, because keys of JSON objects are
    texts.
    """
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value):
        value = int(value)
    if type(value) is not int or not 0 <= value <= MAX_INT32:
        raise InvalidOptionError(f"option {name!r} has {value!r} instead of a partition number")
    return value
