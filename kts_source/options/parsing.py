"""Texts to values, one function per kind; every error names the option and shows what was given."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import tzinfo

MAX_INT32: Final = (1 << 31) - 1
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BYTE_SIZE = re.compile(r"([0-9]+)\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)


def check_characters(name: str, text: str) -> None:
    """Refuses what no path, key or name can hold.

    Raises:
        InvalidOptionError: A zero byte or half a character. The text is not shown.
    """
    try:
        text.encode("utf-8", "surrogateescape")  # what file names may be is let through
    except UnicodeEncodeError:
        pass
    else:
        if "\0" not in text:
            return
    raise InvalidOptionError(f"option {name!r} has a zero byte or half a character")


def parse_text(name: str, text: str) -> str:
    """`text` without surrounding blanks; empty is an error."""
    stripped = text.strip()
    if not stripped:
        raise InvalidOptionError(f"option {name!r} is empty")
    return stripped


def parse_bool(name: str, text: str) -> bool:
    """`true` or `false`, in any case."""
    lower = text.strip().lower()
    if lower not in ("true", "false"):
        raise InvalidOptionError(f"option {name!r} must be true or false, not {text!r}")
    return lower == "true"


def parse_int(name: str, text: str) -> int:
    """A decimal integer that fits 64 bits."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise InvalidOptionError(f"option {name!r} must be a whole number, not {text!r}")
    return int(text)


def parse_positive_int(name: str, text: str) -> int:
    """A whole number above 0."""
    value = parse_int(name, text)
    if value <= 0:
        raise InvalidOptionError(f"option {name!r} must be positive, not {text!r}")
    return value


def parse_positive_up_to(most: int) -> Callable[[str, str], int]:
    """A parser of whole numbers above 0, up to and including `most`."""

    def parse(name: str, text: str) -> int:
        value = parse_positive_int(name, text)
        if value > most:
            raise InvalidOptionError(f"option {name!r} must be at most {most}, not {text!r}")
        return value

    return parse


def parse_byte_size(name: str, text: str) -> int:
    """Bytes: a number above 0, or one with a unit in powers of 1024 (`64m`, `1g`, `512 KiB`)."""
    match = _BYTE_SIZE.fullmatch(text.strip())
    value = int(match[1]) * _UNITS[(match[2] or "").lower()] if match and len(match[1]) < 20 else 0
    if not 0 < value < 1 << 63:
        raise InvalidOptionError(
            f"option {name!r} must be a size such as 134217728 or 128m, not {text!r}"
        )
    return value


def parse_byte_size_within(least: int, most: int) -> Callable[[str, str], int]:
    """A parser of sizes from `least` to `most` bytes, both inclusive."""

    def parse(name: str, text: str) -> int:
        value = parse_byte_size(name, text)
        if not least <= value <= most:
            raise InvalidOptionError(
                f"option {name!r} must be from {least} to {most} bytes, not {text!r}"
            )
        return value

    return parse


def parse_time_zone(name: str, text: str) -> tzinfo:
    """A time zone by its name or offset."""
    from kts_source.predicate.literals import time_zone

    try:
        return time_zone(text)
    except ValueError as error:
        raise InvalidOptionError(f"option {name!r}: {error}") from None


def parse_choice(*choices: str) -> Callable[[str, str], str]:
    """A parser that accepts one of `choices` in any case."""

    def parse(name: str, text: str) -> str:
        for choice in choices:
            if text.strip().lower() == choice.lower():
                return choice
        raise InvalidOptionError(f"option {name!r} must be {' or '.join(choices)}, not {text!r}")

    return parse


def parse_names(name: str, text: str) -> tuple[str, ...]:
    """Names separated by commas, blanks around them dropped, at least one."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise InvalidOptionError(f"option {name!r} names nothing: {text!r}")
    return names


def parse_columns(name: str, text: str) -> tuple[str, ...]:
    """Names separated by commas, each with or without Spark's backticks."""
    return tuple(column.strip("`") for column in parse_names(name, text))


def parse_json_object(name: str, text: str, *, example: str) -> Mapping[str, Any]:
    """A JSON object whose keys are all different."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise InvalidOptionError(f"option {name!r} has a key twice: {text!r}")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise InvalidOptionError(
            f"option {name!r} must be JSON like {example}, not {text!r}: {error}"
        ) from error
    if not isinstance(value, dict):
        raise InvalidOptionError(
            f"option {name!r} must be a JSON object like {example}, not {text!r}"
        )
    return value


def parse_partition_number(name: str, value: object) -> int:
    """A partition number in JSON, as a number or (object keys) as text."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,10}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise InvalidOptionError(f"option {name!r} has {value!r} where a partition number belongs")
    return value
