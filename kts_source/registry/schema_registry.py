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

Protobuf files of a registry as one descriptor set, and the messages in them.

Protobuf schemas as text, made into descriptors by protoc, which grpcio-tools brings.

It runs as a process of its own: a text that it chokes on costs that process.

What registries said of ids, on this machine's disk, for ever: an id keeps its meaning.

An entry of the cache `schemas` is JSON: `{"kind": …, "parts": [[name, base64], …]}`, named by its
form, the registry's address, who asks (`RegistryAccess.tenant`), the kind of ids where there are
several, the subject that was asked with, and the id. Nothing is kept of a
registry of this machine unless a cache folder is given, as for tiers: one that is begun anew for a
test gives its ids again.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import logging
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from kts_source.cache.caches import opened_cache
from kts_source.errors import InvalidOptionError, RegistryError
from kts_source.libraries import require
from kts_source.registry.client import UnknownSchemaError, ask, ask_text
from segment_format.values.protobuf.schema import read_fields, read_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.cache.caches import CacheSettings
    from kts_source.cache.disk_cache import DiskCache
    from kts_source.registry.by_id import RegistryPlace


_FILE = b"\x0a"
"""Tag of a file in a FileDescriptorSet, and of the name in a FileDescriptorProto."""


def descriptor_set(found: RegisteredSchema) -> bytes:
    """A FileDescriptorSet of a schema's files, each by the name that others refer to it by."""
    return b"".join(
        _FILE + _length(named) + named
        for name, file in found.parts
        # Of a field that is there twice, the last counts.
        for named in [file + _FILE + _length(name.encode()) + name.encode()]
    )


def messages_of(found: RegisteredSchema) -> dict[tuple[int, ...], str]:
    """Full names of the messages of the schema's own file, by message index, see
    `segment_format.values.protobuf.confluent`.

    Args:
        found: A schema of Protobuf.

    Raises:
        ValueError: The files cannot be read.
    """
    name, _ = found.parts[-1]
    every = read_schema(descriptor_set(found)).messages.values()
    return {message.path: message.name for message in every if message.file == name}


def _length(data: bytes) -> bytes:
    size, out = len(data), bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


_SECONDS: Final = 60.0


def compiled(files: Sequence[tuple[str, str]]) -> tuple[tuple[str, bytes], ...]:
    """Files as FileDescriptorProtos, and those that they import, each behind what it imports.

    Args:
        files: Name and text; the last is the schema's.

    Raises:
        ValueError: protoc does not take them.
        RegistryError: A name leads elsewhere, or protoc does not end.
        InvalidOptionError: grpcio-tools is not installed here.
    """
    require("grpc_tools", "proto", "a Protobuf schema that the registry gives as text")
    *imported, (_, text) = files
    with tempfile.TemporaryDirectory(prefix="schema-") as folder:
        for name, content in imported:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.name or "\0" in name:
                raise RegistryError(f"a schema of the registry is called {name[:200]!r}")
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content, "utf-8")
        # A name that no other file has.
        main = Path(folder, _main_name({name for name, _ in imported}))
        main.write_text(text, "utf-8")
        return _run(Path(folder), main.name)


def _main_name(taken: set[str]) -> str:
    name = "schema.proto"
    while name in taken:
        name = f"_{name}"
    return name


def _run(folder: Path, main: str) -> tuple[tuple[str, bytes], ...]:
    import importlib.resources

    known = importlib.resources.files("grpc_tools") / "_proto"
    out = folder / ".out"
    try:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{known}"),
                *("--include_imports", f"--descriptor_set_out={out}", main),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RegistryError(f"protoc did not end within {_SECONDS:.0f} s") from None
    if run.returncode or not out.is_file():
        raise ValueError(f"protoc does not take the schema: {run.stderr[:1000]}")
    files = [data for number, data in read_fields(out.read_bytes()) if number == 1]
    return tuple((_name(data), data) for data in files if isinstance(data, bytes))


def _name(file: bytes) -> str:
    names = [value for number, value in read_fields(file) if number == 1]
    return names[-1].decode() if names and isinstance(names[-1], bytes) else ""


log = logging.getLogger(__name__)

_FORM: Final = "schema 1"
_Parts = tuple[tuple[str, bytes], ...]


def kept_parts(registry: RegistryPlace, schema_id: int | str) -> tuple[str, _Parts] | None:
    """Kind and parts of a schema, see `RegisteredSchema`; `None` if they are not kept."""
    cache, name = _entry(registry, schema_id)
    data = None if cache is None else cache.get(name)
    if data is None:
        return None
    try:
        entry = json.loads(data)
        parts = tuple((str(part), base64.b64decode(text)) for part, text in entry["parts"])
        return str(entry["kind"]), parts
    except (ValueError, TypeError, KeyError):
        log.warning("a schema that is kept cannot be read: it is asked for again")
        return None


def keep_parts(registry: RegistryPlace, schema_id: int | str, kind: str, parts: _Parts) -> None:
    """Keeps a schema, if the settings say so."""
    cache, name = _entry(registry, schema_id)
    if cache is not None:
        texts = [(part, base64.b64encode(data).decode()) for part, data in parts]
        cache.put(name, json.dumps({"kind": kind, "parts": texts}).encode())


def _entry(registry: RegistryPlace, schema_id: int | str) -> tuple[DiskCache | None, str]:
    settings, tenant = registry.cache, registry.shown().tenant
    near = registry.is_near and settings.folder is None
    cache = None if near or tenant is None else _cache(replace(settings, index=None, chunks=None))
    kind = (registry.ids,) if registry.ids else ()
    # Quoted, so that no subject reads like another one's kind and id.
    subject = (f"subject={registry.subject!r}",) if registry.subject else ()
    names = (_FORM, registry.place.rstrip("/"), tenant or "", *kind, *subject, str(schema_id))
    return cache, "\n".join(names)


@functools.lru_cache(8)
def _cache(settings: CacheSettings) -> DiskCache | None:
    return opened_cache(settings, "schemas", settings.schemas)


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
        return compiled([(name, text) for name, text, _ in parts])
