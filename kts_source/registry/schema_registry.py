"""Looks up schemas by id or subject, in a schema registry or in a folder.

A folder contains files `<id>.avsc`, `<id>.json` (JSON Schema) or `<id>.desc`. A `.desc` file is a
FileDescriptorSet that protoc wrote with --include_imports; the last file in the set contains the
schema.

The schema registry is requested with these paths of Confluent's REST API:

* `/schemas/ids/<id>?subject=<subject>` and `/schemas/guids/<guid>`
* `/subjects/<subject>/versions/<version>` for references
* for Protobuf, the same paths with `?format=serialized`. The response then contains
  FileDescriptorProtos in base64. Registries that do not support this parameter return the schema as
  text. protoc (from grpcio-tools) compiles it in a separate process, because some texts crash
  protoc.

Apicurio's own API is used only for Avro. Its paths are `/ids/globalIds/<id>` and
`/ids/contentIds/<id>`.

Ids are unique only within a context of the registry. A qualified subject (`:.context:subject`)
names its context. If a reference is not qualified, it is looked up in the context of the schema
that contains it, as in Confluent's clients.

The schema of an id never changes, so schemas are cached on disk. An entry of the cache `schemas` is
JSON: `{"kind": …, "parts": [[name, base64], …]}`. The name of an entry consists of format version,
registry address, tenant (`RegistryAccess.tenant`), kind of ids (for Apicurio's own API), subject
and id. Schemas of a registry on this machine are cached only if a cache folder is configured,
because a test registry that is recreated assigns the same ids to other schemas.

`ById` caches the objects that are created from schemas, such as decoders, in memory. Each id is
requested only once. Memory and number of requests are limited, even if malicious values contain
many different ids.
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
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

from kts_source.cache.caches import opened_cache
from kts_source.errors import RegistryError, TieredKafkaError
from kts_source.libraries import require
from kts_source.registry.client import UnknownSchemaError, ask, ask_text
from kts_source.texts import one_line
from segment_format.values.protobuf.schema import read_fields, read_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kts_source.cache.caches import CacheSettings
    from kts_source.cache.disk_cache import DiskCache
    from kts_source.registry.client import RegistryPlace


log = logging.getLogger(__name__)

K = TypeVar("K", bound="int | str")
T = TypeVar("T")

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"

EXTRA: Final = "registry"
"""The extra of this package with the libraries for Avro and Protobuf."""

MAX_SCHEMAS: Final = 1000
"""Size of the LRU cache of schemas."""
MAX_UNKNOWN: Final = 1000
"""Maximum number of failed lookups of ids within `UNKNOWN_SECONDS`. Malformed values may contain
any id.
"""
UNKNOWN_SECONDS: Final = 300.0

_CACHE_FORMAT: Final = "schema 1"
_PROTOC_SECONDS: Final = 60.0
_MAX_REFERENCES: Final = 256
_SERIALIZED: Final = "format=serialized"
_QUALIFIED: Final = re.compile(r"(:[^:]*:).*", re.DOTALL)
_FILE = b"\x0a"
"""Tag of a file in a FileDescriptorSet, and of the name in a FileDescriptorProto."""

_Parts = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema and its references.

    Attributes:
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        parts: Name and bytes of each schema. Each schema comes after the schemas to which it
            refers, so the schema itself is last. Avro and JSON Schemas are JSON, Protobuf schemas
            are FileDescriptorProtos.
    """

    kind: str
    parts: _Parts


def find_schema(registry: RegistryPlace, schema_id: int | str) -> RegisteredSchema:
    """Returns the schema with an id.

    Args:
        registry: A registry or a folder.
        schema_id: A number, or a GUID in lower case with hyphens. In a folder, the name of a file
            without its suffix.

    Raises:
        LookupError: The registry or folder has no such schema.
        RegistryError: The registry's response is not valid, or the folder does not exist.
        InvalidOptionError: A library that this type of schema needs is not installed.
    """
    if registry.is_url:
        cached = _cached_schema(registry, schema_id)
        if cached is not None:
            return cached
        if registry.ids:
            schema = _apicurio_schema(registry, schema_id)
        else:
            schema = _with_references(registry, schema_id, _ask_for_id(registry, schema_id))
        _cache_schema(registry, schema_id, schema)
        return schema
    try:
        return _read_file(Path(registry.place), schema_id)
    except OSError as error:  # not a fault of the schema or the rows
        raise RegistryError(
            f"the folder of schemas cannot be read on this machine: {type(error).__name__}"
        ) from None


def latest_schema(registry: RegistryPlace, subject: str) -> RegisteredSchema:
    """Returns the latest version of the schema of a subject. `registry` must be a registry with a
    URL, not a folder.

    Raises:
        LookupError: The registry has no such subject.
        RegistryError: The registry's response is not valid.
        InvalidOptionError: A library that this type of schema needs is not installed.
    """
    path = f"/subjects/{quote(subject, safe='')}/versions/latest"
    document = ask(registry, path)
    schema_id = document.get("id")
    if not isinstance(schema_id, int):
        raise RegistryError(f"the registry's response to {path} has no id")
    return _with_references(replace(registry, subject=subject), schema_id, document)


def _ask_for_id(
    registry: RegistryPlace, schema_id: int | str, parameter: str = ""
) -> dict[str, Any]:
    """Requests a schema by its number, or by its GUID, which is unique in all contexts. Adds the
    subject of `registry`, if it is known, and the query `parameter`. Returns the registry's
    response.
    """
    if not isinstance(schema_id, int):
        return ask(registry, _with_query(f"/schemas/guids/{schema_id}", parameter), is_new=True)
    path = f"/schemas/ids/{schema_id}"
    if not registry.subject:
        return ask(registry, _with_query(path, parameter))
    subject = f"subject={quote(registry.subject, safe='')}"
    try:
        return ask(registry, _with_query(path, parameter, subject))
    except UnknownSchemaError:
        if _context_of(registry.subject):
            raise
        # The producer may have registered the schema under another subject. Without a context, the
        # id alone identifies the schema.
        return ask(registry, _with_query(path, parameter))


def _with_query(path: str, *parameters: str) -> str:
    query = "&".join(filter(None, parameters))
    return f"{path}?{query}" if query else path


def _context_of(subject: str) -> str:
    """Returns the context in a qualified subject, such as `:.staging:`; an empty text for other
    subjects.
    """
    match = _QUALIFIED.fullmatch(subject)
    return match[1] if match else ""


def _apicurio_schema(registry: RegistryPlace, schema_id: int | str) -> RegisteredSchema:
    """Requests an Avro schema with Apicurio's own API, which returns the schema with its references
    included.
    """
    text = ask_text(registry, f"/ids/{registry.ids}s/{schema_id}?dereference=true")
    return RegisteredSchema(AVRO, ((f"schema {schema_id}", text),))


def _read_file(folder: Path, schema_id: int | str) -> RegisteredSchema:
    for suffix, kind in ((".avsc", AVRO), (".json", JSON)):
        path = folder / f"{schema_id}{suffix}"
        if path.is_file():
            return RegisteredSchema(kind, ((path.name, path.read_bytes()),))
    path = folder / f"{schema_id}.desc"
    if path.is_file():
        require("google.protobuf", EXTRA, "Protobuf")
        from google.protobuf import descriptor_pb2

        files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
        files_data = tuple((file.name, file.SerializeToString()) for file in files)
        return RegisteredSchema(PROTOBUF, files_data)
    if not folder.is_dir():
        raise RegistryError(f"the folder of schemas {folder} does not exist on this machine")
    raise LookupError(f"the folder has no schema {schema_id}")


class _Part(NamedTuple):
    """A schema that a registry returned: the requested schema, or a reference.

    Attributes:
        name: Name by which other schemas refer to this schema.
        context: Context of the unqualified references of this schema; empty for the default
            context.
    """

    name: str
    text: str
    context: str


def _with_references(
    registry: RegistryPlace, schema_id: int | str, document: dict[str, Any]
) -> RegisteredSchema:
    kind = document.get("schemaType", AVRO)
    if kind not in (AVRO, JSON, PROTOBUF):
        raise RegistryError(f"schema {schema_id} has the unsupported type {kind!r}")
    if kind == PROTOBUF:
        serialized = _ask_for_id(registry, schema_id, _SERIALIZED)
        document = {"subject": document.get("subject"), **serialized}
    context = _context_of(str(document.get("subject") or "")) or _context_of(registry.subject)
    schemas: dict[str, _Part] = {}
    root = _Part(f"schema {schema_id}", "", context)
    for schema in _walk_references(registry, root, document, kind, set()):
        schemas.setdefault(schema.name, schema)
    if kind == PROTOBUF:
        return RegisteredSchema(kind, _descriptors(list(schemas.values())))
    return RegisteredSchema(
        kind, tuple((schema.name, schema.text.encode()) for schema in schemas.values())
    )


def _walk_references(
    registry: RegistryPlace, schema: _Part, document: dict[str, Any], kind: str, seen: set[str]
) -> Iterator[_Part]:
    """Yields a schema and all schemas to which it refers, directly or through others. Each schema
    comes after its references, so the given schema is last.

    `document` is the registry's response for the schema, whose text is not used. Names in `seen`
    were already requested; adds the new names.
    """
    try:
        for reference in document.get("references") or ():
            name = str(reference["name"])
            if name in seen:
                continue
            if len(seen) >= _MAX_REFERENCES:
                raise RegistryError(f"{schema.name} refers to more than {_MAX_REFERENCES} schemas")
            seen.add(name)
            subject = str(reference["subject"])
            if not _context_of(subject):
                subject = schema.context + subject
            path = f"/subjects/{quote(subject, safe='')}/versions/{int(reference['version'])}"
            if kind == PROTOBUF:
                path = _with_query(path, _SERIALIZED)
            try:
                answer = ask(registry, path)
            except LookupError as error:
                raise LookupError(f"{schema.name} refers to {name}: {error}") from None
            referenced = _Part(name, "", _context_of(subject))
            yield from _walk_references(registry, referenced, answer, kind, seen)
        text = document["schema"]
        if not isinstance(text, str):
            raise TypeError(type(text).__name__)
        text.encode()
        yield schema._replace(text=text)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RegistryError(
            f"the registry's response for {schema.name} is malformed: {type(error).__name__}"
        ) from None


def _cached_schema(registry: RegistryPlace, schema_id: int | str) -> RegisteredSchema | None:
    cache, name = _cache_entry(registry, schema_id)
    data = None if cache is None else cache.get(name)
    if data is None:
        return None
    try:
        entry = json.loads(data)
        schemas = tuple((str(name), base64.b64decode(text)) for name, text in entry["parts"])
        return RegisteredSchema(str(entry["kind"]), schemas)
    except (ValueError, TypeError, KeyError):
        log.warning("a cached schema cannot be read, so it is requested from the registry again")
        return None


def _cache_schema(registry: RegistryPlace, schema_id: int | str, schema: RegisteredSchema) -> None:
    cache, name = _cache_entry(registry, schema_id)
    if cache is not None:
        texts = [(name, base64.b64encode(data).decode()) for name, data in schema.parts]
        cache.put(name, json.dumps({"kind": schema.kind, "parts": texts}).encode())


def _cache_entry(registry: RegistryPlace, schema_id: int | str) -> tuple[DiskCache | None, str]:
    """Returns the cache for a schema and the name of its entry. The cache is `None` if the schema
    must not be stored on disk.
    """
    settings, tenant = registry.cache, registry.revealed_access().tenant
    is_skipped = registry.is_near and settings.folder is None
    cache = None
    if not is_skipped and tenant is not None:
        cache = _cache(replace(settings, index=None, chunks=None))
    kind = (registry.ids,) if registry.ids else ()
    # Quote the subject, so that it cannot look like the kind and id of another entry.
    subject = (f"subject={registry.subject!r}",) if registry.subject else ()
    address = registry.place.rstrip("/")
    names = (_CACHE_FORMAT, address, tenant or "", *kind, *subject, str(schema_id))
    return cache, "\n".join(names)


@functools.lru_cache(8)
def _cache(settings: CacheSettings) -> DiskCache | None:
    return opened_cache(settings, "schemas", settings.schemas)


def descriptor_set(schema: RegisteredSchema) -> bytes:
    """Returns a FileDescriptorSet with the files of a Protobuf schema. Each file gets the name that
    import statements use for it.
    """
    return b"".join(
        _FILE + _varint(len(named)) + named
        for name, file in schema.parts
        # The appended field replaces the file's own name: if a field occurs twice, the last counts.
        for named in [file + _FILE + _varint(len(name.encode())) + name.encode()]
    )


def messages_of(schema: RegisteredSchema) -> dict[tuple[int, ...], str]:
    """Returns the full name of each message in a Protobuf schema, by message index (see
    `segment_format.values.protobuf.decoder`). Omits messages of imported files.

    Raises:
        ValueError: The descriptors are invalid.
    """
    name, _ = schema.parts[-1]
    messages = read_schema(descriptor_set(schema)).messages.values()
    return {message.path: message.name for message in messages if message.file == name}


def _varint(size: int) -> bytes:
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def _descriptors(schemas: list[_Part]) -> _Parts:
    """Converts the Protobuf files that a registry has sent to FileDescriptorProtos. The files are
    either FileDescriptorProtos in base64, or text that must be compiled.
    """
    try:
        return tuple((name, base64.b64decode(text, validate=True)) for name, text, _ in schemas)
    except (binascii.Error, ValueError):
        return compile_protobuf([(name, text) for name, text, _ in schemas])


def compile_protobuf(files: Sequence[tuple[str, str]]) -> _Parts:
    """Compiles Protobuf files with protoc. Returns their FileDescriptorProtos, each after the files
    that it imports.

    Args:
        files: Name and text of each file. The last file contains the schema.

    Raises:
        ValueError: protoc rejects the files.
        RegistryError: The name of a file is not a safe relative path, or protoc does not end in
            time.
        MissingExtraError: grpcio-tools is not installed.
    """
    require("grpc_tools", "proto", "a Protobuf schema that the registry returns as text")
    *imported, (_, text) = files
    with tempfile.TemporaryDirectory(prefix="schema-") as folder:
        for name, content in imported:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.name or "\0" in name:
                raise RegistryError(f"a schema of the registry has the unsafe name {name[:200]!r}")
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content, "utf-8")
        main = "schema.proto"
        while main in {name for name, _ in imported}:
            main = f"_{main}"
        Path(folder, main).write_text(text, "utf-8")
        return _run_protoc(Path(folder), main)


def _run_protoc(folder: Path, main: str) -> _Parts:
    import importlib.resources

    well_known = importlib.resources.files("grpc_tools") / "_proto"
    out = folder / ".out"
    try:
        run = subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{well_known}"),
                *("--include_imports", f"--descriptor_set_out={out}", main),
            ],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROTOC_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RegistryError(f"protoc did not end within {_PROTOC_SECONDS:.0f} s") from None
    if run.returncode or not out.is_file():
        raise ValueError(f"protoc rejects the schema: {run.stderr[:1000]}")
    files = [data for number, data in read_fields(out.read_bytes()) if number == 1]
    return tuple((_file_name(data), data) for data in files if isinstance(data, bytes))


def _file_name(file: bytes) -> str:
    names = [value for number, value in read_fields(file) if number == 1]
    return names[-1].decode() if names and isinstance(names[-1], bytes) else ""


class ById(Generic[K, T]):
    """Creates objects from schemas, and caches them by schema id. Thread-safe: an object is created
    only once.

    Args:
        make: Creates the object for an id. `get` raises a `TieredKafkaError` of `make` unchanged.
            Any other error means that the id has no usable schema; this result is cached.
    """

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make
        self._objects: OrderedDict[K, T] = OrderedDict()
        self._unknown: dict[K, str] = {}
        self._unknown_since = 0.0
        self._lock = threading.Lock()

    def get(self, schema_id: K) -> T:
        """Returns the object for an id.

        Raises:
            LookupError: The id has no usable schema. This result is cached for up to
                `UNKNOWN_SECONDS`.
            RegistryError: The id is not looked up, because too many other ids had no usable schema.
                This result is not cached.
            TieredKafkaError: Raised by `make`.
        """
        with self._lock:
            if schema_id not in self._objects:
                self._objects[schema_id] = self._make_object(schema_id)
                if len(self._objects) > MAX_SCHEMAS:
                    self._objects.popitem(last=False)
            self._objects.move_to_end(schema_id)
            return self._objects[schema_id]

    def _make_object(self, schema_id: K) -> T:
        if time.monotonic() - self._unknown_since > UNKNOWN_SECONDS:
            self._unknown, self._unknown_since = {}, time.monotonic()
        if (reason := self._unknown.get(schema_id)) is not None:
            raise LookupError(reason)
        if len(self._unknown) >= MAX_UNKNOWN:
            raise RegistryError(
                f"schema {schema_id} is not requested, because {MAX_UNKNOWN:,} other ids within"
                f" {UNKNOWN_SECONDS:.0f} s had no usable schema. Check that this is the registry of"
                " the topic, and that the topic's values have the configured format."
            )
        try:
            return self._make(schema_id)
        except TieredKafkaError:
            raise
        except Exception as error:  # noqa: BLE001  # no such schema, or an unusable one
            self._unknown[schema_id] = one_line(f"{type(error).__name__}: {error}")
            raise LookupError(self._unknown[schema_id]) from None
