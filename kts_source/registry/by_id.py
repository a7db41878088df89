"""Defines the location and credentials of a registry, and a cache that maps schema ids to objects
created from the schemas.

Each id is requested only once. Memory and number of requests are limited, even if malicious values
contain many different ids.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from kts_source.cache.caches import NO_CACHE
from kts_source.errors import RegistryError, TieredKafkaError
from kts_source.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.broker.settings import Tls
    from kts_source.cache.caches import CacheSettings
    from kts_source.secret import Secret


@dataclass(frozen=True, slots=True, repr=False)
class RegistryAccess:
    """Credentials and TLS settings for a registry.

    Attributes:
        user: User name for Basic authentication; empty if it is not used.
        token: Bearer token; empty if it is not used.
        headers: Names and values of HTTP headers that select one of several registries at the same
            address.
        tls: Trusted certificate authorities and client certificate; `None` = trust the authorities
            of this machine.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    tls: Tls | None = None

    @property
    def has_credentials(self) -> bool:
        """True if requests carry credentials. Redirects of such requests are not followed."""
        return bool(self.user or self.password or self.token or (self.tls and self.tls.chain))

    @property
    def tenant(self) -> str | None:
        """A text that distinguishes the registries at one address. It contains no secret.

        Confluent Cloud serves many registries at one address, and selects one by the user or a
        header. The result is `None` if only a token selects the registry, because a text derived
        from the token would reveal information about it.
        """
        if self.token and not self.headers:
            return None
        chain = hashlib.blake2b(b"".join(self.tls.chain if self.tls else ()), digest_size=16)
        return repr((self.user, self.headers, chain.hexdigest()))


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """A registry or a folder of schemas.

    Attributes:
        place: URL of the registry, without user and password, or path of the folder.
        access: Credentials for the URL; `None` if no credentials are needed.
        cache: Settings of the cache on this machine's disk.
        ids: Kind of ids to look up with Apicurio's own API; empty to use Confluent's API.
        subject: Subject to send with each id; empty if unknown. Ids are unique only within a
            context of a registry, and a subject such as `:.staging:orders-value` names its context.
    """

    place: str
    access: Secret[RegistryAccess] | None = field(default=None, hash=False)
    cache: CacheSettings = NO_CACHE
    ids: Literal["", "globalId", "contentId"] = ""
    subject: str = ""

    @property
    def is_url(self) -> bool:
        """True if schemas come from a registry, not from a folder."""
        return self.place.lower().startswith(("http://", "https://"))

    @property
    def is_near(self) -> bool:
        """True if the registry is on this machine. Then a disk cache saves no time."""
        host = urlsplit(self.place).hostname or "" if self.is_url else "localhost"
        return host in ("localhost", "::1") or host.startswith("127.")

    def revealed_access(self) -> RegistryAccess:
        """Returns the credentials in plain text. Returns an empty `RegistryAccess` without
        credentials.
        """
        return RegistryAccess() if self.access is None else self.access.reveal()


K = TypeVar("K", bound="int | str")
T = TypeVar("T")

MAX_SCHEMAS: Final = 1000
"""Size of the LRU cache of schemas."""
MAX_UNKNOWN: Final = 1000
"""Maximum number of failed lookups of ids within `UNKNOWN_SECONDS`. Malformed values may contain
any id.
"""
UNKNOWN_SECONDS: Final = 300.0


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
