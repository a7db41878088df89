"""Schemas by their id or subject: from a schema registry's URL, or from a folder.

A folder holds `<id>.avsc`, `<id>.json` (JSON Schema), or `<id>.desc` (a FileDescriptorSet of protoc
with --include_imports, whose last file is the schema's). A registry is asked as Confluent's REST
API has it: `/schemas/ids/<id>?subject=<subject>`, `/schemas/guids/<guid>`,
`/subjects/<subject>/versions/<version>` for what a schema refers to, and `?format=serialized` for
Protobuf schemas, which then come as FileDescriptorProtos in base64. Registries that do not know
that give their text. Apicurio's own API
is asked for `/ids/globalIds/<id>` or `/ids/contentIds/<id>`, with Avro only.

Ids are unique per context, which a qualified subject (`:.context:subject`) names. References that
are not qualified are looked up in the context of the schema that has them, as Confluent does.

Ids keep their meaning, so what a registry said of one is kept on disk (`kept_schemas`).
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from kts_source.errors import InvalidOptionError, RegistryError
from kts_source.extras import require
from kts_source.registry.client import UnknownSchemaError, ask, ask_text
from kts_source.registry.kept_schemas import keep_parts, kept_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.registry.place import RegistryPlace

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"

EXTRA: Final = "registry"
"""The extra of this package that brings what decodes Avro and Protobuf."""

_MAX_REFERENCES: Final = 256
_SERIALIZED: Final = "format=serialized"
_QUALIFIED: Final = re.compile(r"(:[^:]*:).*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema and what it refers to.

    Attributes:
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        parts: Name and bytes of what it refers to, dependencies first, and of itself, last: Avro
            and JSON Schemas as JSON, Protobuf as FileDescriptorProtos.
    """

    kind: str
    parts: tuple[tuple[str, bytes], ...]


def check_registry(registry: str) -> None:
    """Raises InvalidOptionError, without the URL, for one that shows a password."""
    if re.match(r"https?://[^/]*@", registry):
        raise InvalidOptionError("the registry's URL holds user and password: give auth=Secret(…)")


def find_schema(registry: RegistryPlace, schema_id: int | str) -> RegisteredSchema:
    """The schema of an id.

    Args:
        registry: Where.
        schema_id: A number, or a GUID in lower case with hyphens; of files in a folder, any name.

    Raises:
        LookupError: There is no such schema.
        RegistryError: The registry does not answer as it should, or there is no such folder.
        InvalidOptionError: The library that a schema needs is not installed here.
    """
    if registry.is_url:
        kept = kept_parts(registry, schema_id)
        if kept is not None:
            return RegisteredSchema(*kept)
        if registry.ids:
            found = _of_apicurio(registry, schema_id)
        else:
            found = _schema(registry, schema_id, _asked(registry, schema_id))
        keep_parts(registry, schema_id, found.kind, found.parts)
        return found
    try:
        return _read(Path(registry.place), schema_id)
    except OSError as error:  # the file's schema is not to blame, nor are the rows
        raise RegistryError(
            f"the folder of schemas cannot be read on this machine: {type(error).__name__}"
        ) from None


def _asked(registry: RegistryPlace, schema_id: int | str, how: str = "") -> dict[str, Any]:
    """Returns the registry's answer for an id or a GUID.

    Args:
        registry: A URL, and the subject where it is known.
        schema_id: A number, or a GUID, which is unique in all contexts.
        how: A parameter of the query.
    """
    if not isinstance(schema_id, int):
        return ask(registry, _with_query(f"/schemas/guids/{schema_id}", how), is_new=True)
    path = f"/schemas/ids/{schema_id}"
    if not registry.subject:
        return ask(registry, _with_query(path, how))
    subject = f"subject={quote(registry.subject, safe='')}"
    try:
        return ask(registry, _with_query(path, how, subject))
    except UnknownSchemaError:
        if _context_of(registry.subject):
            raise
        # Producers may register under another name; without a context the id means the same.
        return ask(registry, _with_query(path, how))


def _with_query(path: str, *parameters: str) -> str:
    query = "&".join(filter(None, parameters))
    return f"{path}?{query}" if query else path


def _context_of(subject: str) -> str:
    """Returns the context of a qualified subject, such as `:.staging:`; empty for others."""
    match = _QUALIFIED.fullmatch(subject)
    return match[1] if match else ""


def _of_apicurio(registry: RegistryPlace, schema_id: int | str) -> RegisteredSchema:
    """An Avro schema of Apicurio's own API, which puts what it refers to into it."""
    text = ask_text(registry, f"/ids/{registry.ids}s/{schema_id}?dereference=true")
    return RegisteredSchema(AVRO, ((f"schema {schema_id}", text),))


def latest_schema(registry: RegistryPlace, subject: str) -> RegisteredSchema:
    """The schema of a subject's latest version, as the registry, a URL, says it now.

    Raises:
        LookupError: There is no such subject.
        RegistryError: The registry does not answer as it should.
        InvalidOptionError: The library that a schema needs is not installed here.
    """
    path = f"/subjects/{quote(subject, safe='')}/versions/latest"
    document = ask(registry, path)
    schema_id = document.get("id")
    if not isinstance(schema_id, int):
        raise RegistryError(f"the registry's answer to {path} has no id")
    return _schema(replace(registry, subject=subject), schema_id, document)


def _read(folder: Path, schema_id: int | str) -> RegisteredSchema:
    for suffix, kind in ((".avsc", AVRO), (".json", JSON)):
        path = folder / f"{schema_id}{suffix}"
        if path.is_file():
            return RegisteredSchema(kind, ((path.name, path.read_bytes()),))
    path = folder / f"{schema_id}.desc"
    if path.is_file():
        require("google.protobuf", EXTRA, "Protobuf")
        from google.protobuf import descriptor_pb2

        files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
        parts = tuple((file.name, file.SerializeToString()) for file in files)
        return RegisteredSchema(PROTOBUF, parts)
    if not folder.is_dir():
        raise RegistryError(f"there is no folder of schemas at {folder} on this machine")
    raise LookupError(f"the folder has no schema {schema_id}")


class _Part(NamedTuple):
    """A schema as a registry returns it.

    Attributes:
        name: As others refer to it.
        text: The schema.
        context: Where its references are looked up if they are not qualified; empty = the default.
    """

    name: str
    text: str
    context: str


def _schema(
    registry: RegistryPlace, schema_id: int | str, document: dict[str, Any]
) -> RegisteredSchema:
    kind = document.get("schemaType", AVRO)
    if kind not in (AVRO, JSON, PROTOBUF):
        raise RegistryError(f"schema {schema_id} is of type {kind!r}, which is not known")
    if kind == PROTOBUF:
        document = {"subject": document.get("subject"), **_asked(registry, schema_id, _SERIALIZED)}
    context = _context_of(str(document.get("subject") or "")) or _context_of(registry.subject)
    found: dict[str, _Part] = {}
    for part in _parts(registry, _Part(f"schema {schema_id}", "", context), document, kind, set()):
        found.setdefault(part.name, part)
    if kind == PROTOBUF:
        return RegisteredSchema(kind, _descriptors(list(found.values())))
    return RegisteredSchema(kind, tuple((part.name, part.text.encode()) for part in found.values()))


def _parts(
    registry: RegistryPlace, part: _Part, document: dict[str, Any], kind: str, seen: set[str]
) -> Iterator[_Part]:
    """What a schema refers to, depth first, then the schema."""
    try:
        for reference in document.get("references") or ():
            called = str(reference["name"])
            if called in seen:
                continue
            if len(seen) >= _MAX_REFERENCES:
                raise RegistryError(f"{part.name} refers to more than {_MAX_REFERENCES} schemas")
            seen.add(called)
            subject = str(reference["subject"])
            if not _context_of(subject):
                subject = part.context + subject
            path = f"/subjects/{quote(subject, safe='')}/versions/{int(reference['version'])}"
            if kind == PROTOBUF:
                path = _with_query(path, _SERIALIZED)
            try:
                answer = ask(registry, path)
            except LookupError as error:
                raise LookupError(f"{part.name} refers to {called}: {error}") from None
            referred = _Part(called, "", _context_of(subject))
            yield from _parts(registry, referred, answer, kind, seen)
        text = document["schema"]
        if not isinstance(text, str):
            raise TypeError(type(text).__name__)
        text.encode()
        yield part._replace(text=text)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RegistryError(
            f"the registry's answer for {part.name} is not as it should be: {type(error).__name__}"
        ) from None


def _descriptors(parts: list[_Part]) -> tuple[tuple[str, bytes], ...]:
    """Files of Protobuf, which came serialized or as text."""
    try:
        return tuple((name, base64.b64decode(text, validate=True)) for name, text, _ in parts)
    except (binascii.Error, ValueError):
        from kts_source.registry.proto_text import compiled

        return compiled([(name, text) for name, text, _ in parts])
