"""Schemas that options give: as text, or as a file that the driver reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from kts_source.errors import InvalidOptionError

_MAX_SCHEMA_BYTES: Final = 16 << 20


def schema_text(name: str, text: str) -> str:
    """A schema of Avro.

    Args:
        name: Of the option.
        text: What it says: the schema, or a file of one.

    Raises:
        InvalidOptionError: Neither the beginning of one nor a file.
    """
    if re.match(r'[{\["]', text):
        return text
    return _text_of(name, text, "neither an Avro schema in JSON nor a file of one")


def ddl_text(name: str, text: str) -> str:
    """A DDL: the one given, or what a JSON Schema stands for.

    Args:
        name: Of the option.
        text: What it says: one of them, or a file of one.

    Raises:
        InvalidOptionError: None of these; or a JSON Schema that stands for no type.
    """
    from segment_format.values.json.ddl import parse_ddl, print_ddl
    from segment_format.values.json.json_schema import json_schema_type

    if not text.startswith("{"):
        try:
            parse_ddl(text)
        except ValueError as error:
            text = _text_of(name, text, f"neither a DDL ({error}) nor a file of one")
        if not text.lstrip().startswith("{"):
            return text
    try:
        return print_ddl(json_schema_type(text))
    except ValueError as error:
        raise InvalidOptionError(f"option {name!r}: {error}") from None


def _text_of(name: str, path: str, otherwise: str) -> str:
    try:
        return file_content(name, path, otherwise).decode()
    except UnicodeDecodeError:
        raise InvalidOptionError(f"option {name!r}: {path} is not UTF-8") from None


def file_content(name: str, path: str, otherwise: str) -> bytes:
    """The bytes of a file.

    Args:
        name: Of the option.
        path: What it says.
        otherwise: What that is if there is no such file.

    Raises:
        InvalidOptionError: It cannot be read, or has more than 16 MiB.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_SCHEMA_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            f"option {name!r} is {otherwise}: {path[:200]!r} ({type(error).__name__})"
        ) from None
    if len(data) > _MAX_SCHEMA_BYTES:
        raise InvalidOptionError(f"option {name!r}: {path} has more than 16 MiB")
    return data
