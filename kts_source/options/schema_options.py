"""The reader's schema where options give none: the latest version that the registry has. It is
looked up once, when options are parsed, and travels with them.

Schemas that options give: as text, or as a file that the driver reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError
from kts_source.options.selection import Assign, Subscribe
from kts_source.registry.schema_registry import AVRO, JSON, PROTOBUF, latest_schema

if TYPE_CHECKING:
    from kts_source.options.selection import Selection
    from kts_source.registry.by_id import RegistryPlace
    from kts_source.registry.schema_registry import RegisteredSchema


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


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """What a registry has of a subject, as `ColumnFormat` takes it."""

    schema: str = ""
    references: tuple[str, ...] = ()
    descriptors: bytes = b""
    message: str = ""


def known_subject(column: str, given: str | None, selection: Selection) -> str:
    """Returns the subject of a column: the option's, or `<topic>-value` of the only topic.

    Producers name it so by default. Empty if more than one topic may be read.
    """
    if given is not None:
        return given
    topics: tuple[str, ...] = ()
    if isinstance(selection, Subscribe):
        topics = selection.topics
    elif isinstance(selection, Assign):
        topics = tuple(selection.partitions)
    return f"{topics[0]}-{column}" if len(set(topics)) == 1 else ""


def subject_of(column: str, given: str | None, selection: Selection) -> str:
    """Returns the subject of a column, see `known_subject`.

    Raises:
        InvalidOptionError: No option names it, and more than one topic may be read.
    """
    subject = known_subject(column, given, selection)
    if not subject:
        raise InvalidOptionError(
            f"option '{column}.schema' or '{column}.subject' is needed: it is not one topic that is"
            " read, so none names the subject"
        )
    return subject


def latest_of(column: str, kind: str, registry: RegistryPlace, subject: str) -> ReaderSchema:
    """The latest schema of a subject.

    Args:
        column: `key` or `value`.
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        registry: A URL.
        subject: Its subject.

    Raises:
        InvalidOptionError: There is none, or not of this kind, or it cannot be used.
        RegistryError: The registry does not answer.
    """
    try:
        found = latest_schema(registry, subject)
        if found.kind != kind:
            raise ValueError(f"it is of {found.kind}, not of {kind}")
        return _READERS[kind](found)
    except LookupError as error:
        raise InvalidOptionError(
            f"option '{column}.schema' is not given, and the registry has no subject {subject!r}"
            f" ({error}): give it, or option '{column}.subject'"
        ) from None
    except ValueError as error:
        raise InvalidOptionError(
            f"option '{column}.schema' is not given, and the latest schema of subject {subject!r}"
            f" cannot be used: {error}"
        ) from None


def _avro(found: RegisteredSchema) -> ReaderSchema:
    *references, text = [part.decode() for _, part in found.parts]
    return ReaderSchema(schema=text, references=tuple(references))


def _json(found: RegisteredSchema) -> ReaderSchema:
    from segment_format.values.json.ddl import print_ddl
    from segment_format.values.json.json_schema import json_schema_type

    *references, (_, text) = found.parts
    if references:
        raise ValueError("it refers to other schemas")
    return ReaderSchema(schema=print_ddl(json_schema_type(text.decode())))


def _protobuf(found: RegisteredSchema) -> ReaderSchema:
    from kts_source.registry.schema_registry import descriptor_set, messages_of

    first = messages_of(found).get((0,), "")
    return ReaderSchema(descriptors=descriptor_set(found), message=first)


_READERS = {AVRO: _avro, JSON: _json, PROTOBUF: _protobuf}
