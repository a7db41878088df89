"""What registries said of ids, on this machine's disk, for ever: an id keeps its meaning.

An entry of the cache `schemas` is JSON: `{"kind": …, "parts": [[name, base64], …]}`, named by its
form, the registry's address, who asks (`RegistryAccess.tenant`), the kind of ids where there are
several, the subject that was asked with, and the id. Nothing is kept of a
registry of this machine unless a cache folder is given, as for tiers: one that is begun anew for a
test gives its ids again.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kts_source.cache.caches import opened_cache

if TYPE_CHECKING:
    from kts_source.cache.caches import CacheSettings
    from kts_source.cache.disk_cache import DiskCache
    from kts_source.registry.place import RegistryPlace

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
