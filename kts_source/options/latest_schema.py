"""The reader's schema where options give none: the latest version that the registry has. It is
looked up once, when options are parsed, and travels with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError
from kts_source.options.selection import Assign, Subscribe
from kts_source.registry.schema_registry import AVRO, JSON, PROTOBUF, latest_schema

if TYPE_CHECKING:
    from kts_source.options.selection import Selection
    from kts_source.registry.place import RegistryPlace
    from kts_source.registry.schema_registry import RegisteredSchema


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
    from kts_source.registry.descriptors import descriptor_set, messages_of

    first = messages_of(found).get((0,), "")
    return ReaderSchema(descriptors=descriptor_set(found), message=first)


_READERS = {AVRO: _avro, JSON: _json, PROTOBUF: _protobuf}
