"""Schemas by their id: from a schema registry's URL, or from a folder.

A folder holds `<id>.avsc`, `<id>.json` (JSON Schema), or `<id>.desc` (a FileDescriptorSet of protoc
with --include_imports, whose last file is the schema's). A registry is asked as Confluent's REST
API has it: `/schemas/ids/<id>`, `/subjects/<subject>/versions/<version>` for what a schema refers
to, and `?format=serialized` for Protobuf schemas, which then come as FileDescriptorProtos in
base64.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from kts_source.errors import ExportError, InvalidOptionError
from kts_source.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.secret import Secret

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"

EXTRA: Final = "registry"
"""The extra of this package that brings what decodes Avro and Protobuf."""

_MAX_SCHEMA_BYTES: Final = 16 << 20
_MAX_ERROR_BYTES: Final = 1 << 16
_UNKNOWN: Final = (40401, 40402, 40403)
"""What registries call a subject, a version and a schema that they do not have."""
_MAX_REFERENCES: Final = 256
_TIMEOUT_SECONDS: Final = 10.0


class RegistryError(ExportError):
    """A schema registry that does not answer; the rows are not to blame."""


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


def find_schema(
    registry: str, schema_id: int, auth: Secret[tuple[str, str]] | None
) -> RegisteredSchema:
    """The schema of an id, from a registry's URL or a folder.

    Raises:
        LookupError: There is no such schema.
        RegistryError: The registry does not answer as it should, or there is no such folder.
        InvalidOptionError: The library that a folder's file needs is not installed here.
    """
    if registry.startswith(("http://", "https://")):
        return _Client(registry.rstrip("/"), auth).schema(schema_id)
    try:
        return _read(Path(registry), schema_id)
    except OSError as error:  # the file's schema is not to blame, nor are the rows
        raise RegistryError(
            f"the folder of schemas cannot be read on this machine: {type(error).__name__}"
        ) from None


def _read(folder: Path, schema_id: int) -> RegisteredSchema:
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


@dataclass(frozen=True, slots=True)
class _Client:
    url: str
    auth: Secret[tuple[str, str]] | None

    def schema(self, schema_id: int) -> RegisteredSchema:
        document = self._get(f"/schemas/ids/{schema_id}")
        kind = document.get("schemaType", AVRO)
        if kind == PROTOBUF:
            document = self._get(f"/schemas/ids/{schema_id}?format=serialized")
        if kind not in (AVRO, JSON, PROTOBUF):
            raise RegistryError(f"schema {schema_id} is of type {kind!r}, which is not known")
        parts: dict[str, bytes] = {}
        for name, content in self._parts(f"schema {schema_id}", document, kind, set()):
            parts.setdefault(name, content)
        return RegisteredSchema(kind, tuple(parts.items()))

    def _parts(
        self, name: str, document: dict[str, Any], kind: str, seen: set[str]
    ) -> Iterator[tuple[str, bytes]]:
        """What a schema refers to, depth first, then the schema."""
        try:
            for reference in document.get("references") or ():
                called = str(reference["name"])
                if called in seen:
                    continue
                if len(seen) >= _MAX_REFERENCES:
                    raise RegistryError(f"{name} refers to more than {_MAX_REFERENCES} schemas")
                seen.add(called)
                subject = quote(str(reference["subject"]), safe="")
                path = f"/subjects/{subject}/versions/{int(reference['version'])}"
                if kind == PROTOBUF:
                    path += "?format=serialized"
                yield from self._parts(called, self._get(path), kind, seen)
            text = document["schema"]
            yield name, base64.b64decode(text) if kind == PROTOBUF else text.encode()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RegistryError(
                f"the registry's answer for {name} is not as it should be: {type(error).__name__}"
            ) from None

    def _get(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(f"{self.url}{path}")
        if self.auth is not None:
            token = base64.b64encode(":".join(self.auth.reveal()).encode()).decode()
            # Not for the place that an answer redirects to.
            request.add_unredirected_header("Authorization", f"Basic {token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                document = json.loads(answer.read(_MAX_SCHEMA_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                unknown = error.code == 404 and _says_unknown(error)
            if unknown:
                raise LookupError(f"the registry does not know {path}") from None
            hint = ": is the URL that of a registry?" if error.code == 404 else ""
            raise RegistryError(f"the registry answers {error.code} to {path}{hint}") from None
        except (OSError, ValueError, http.client.HTTPException, RecursionError) as error:
            raise RegistryError(f"the registry does not answer: {type(error).__name__}") from None
        if not isinstance(document, dict):
            raise RegistryError(f"the registry's answer to {path} is not an object")
        return document


def _says_unknown(answer: urllib.error.HTTPError) -> bool:
    """Whether a 404 is a registry's word on a schema, not that of whoever serves a wrong URL."""
    try:
        document = json.loads(answer.read(_MAX_ERROR_BYTES))
    except (OSError, ValueError, http.client.HTTPException, RecursionError):
        return False
    return isinstance(document, dict) and document.get("error_code") in _UNKNOWN
