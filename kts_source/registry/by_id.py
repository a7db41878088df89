"""What is made of a schema, by the schema's id, and why some ids have none.

A registry is asked once, not for every row, and neither memory nor requests grow with what hostile
values hold.

Where schemas are, and who asks for them.
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
    """What a registry is shown and believed by.

    Attributes:
        user: Name of Basic authentication; empty = none.
        password: Its password.
        token: A bearer token; empty = none.
        headers: Name and text of headers that choose among the registries behind one address.
        tls: Whom to believe, and our certificate; `None` = the authorities of the machine.
    """

    user: str = ""
    password: str = ""
    token: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    tls: Tls | None = None

    @property
    def is_shown(self) -> bool:
        """Whether a request shows who we are, so that it must go nowhere else."""
        return bool(self.user or self.password or self.token or (self.tls and self.tls.chain))

    @property
    def tenant(self) -> str | None:
        """What the meaning of an id may depend on, besides the address, without anything secret.

        Behind one address of Confluent Cloud are many registries, told apart by user or header.
        `None` = only a token says which, and a text that stands for it would be a trace of it.
        """
        if self.token and not self.headers:
            return None
        chain = hashlib.blake2b(b"".join(self.tls.chain if self.tls else ()), digest_size=16)
        return repr((self.user, self.headers, chain.hexdigest()))


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """A registry or a folder of schemas.

    Attributes:
        place: A URL without user and password, or a folder.
        access: For a URL; `None` = nothing is shown.
        cache: What is kept on this machine's disk.
        ids: The kind of ids that Apicurio's own API is asked for; empty = it is Confluent's API.
        subject: The subject of the schemas, sent with each id; empty = unknown. Ids are unique per
            context of a registry, and a subject such as `:.staging:orders-value` names its context.
    """

    place: str
    access: Secret[RegistryAccess] | None = field(default=None, hash=False)
    cache: CacheSettings = NO_CACHE
    ids: Literal["", "globalId", "contentId"] = ""
    subject: str = ""

    @property
    def is_url(self) -> bool:
        """Whether it is a registry, and no folder."""
        return self.place.lower().startswith(("http://", "https://"))

    @property
    def is_near(self) -> bool:
        """Whether it is on this machine: then it is as near as what is kept on its disk."""
        host = urlsplit(self.place).hostname or "" if self.is_url else "localhost"
        return host in ("localhost", "::1") or host.startswith("127.")

    def shown(self) -> RegistryAccess:
        """What requests show; nothing if there is none."""
        return RegistryAccess() if self.access is None else self.access.reveal()


K = TypeVar("K", bound="int | str")
T = TypeVar("T")

MAX_SCHEMAS: Final = 1000
"""Schemas that are kept; of more, those that were not used for longest are asked for again."""
MAX_UNKNOWN: Final = 1000
"""Ids without a usable schema that are asked for within `UNKNOWN_SECONDS`: values may hold any."""
UNKNOWN_SECONDS: Final = 300.0


class ById(Generic[K, T]):
    """Makes something of the schema of an id, once, whichever threads ask.

    Args:
        make: Makes it. What it raises says why there is none, but for a TieredKafkaError: then the
            id is not to blame.
    """

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make
        self._made: OrderedDict[K, T] = OrderedDict()
        self._unknown: dict[K, str] = {}
        self._since = 0.0
        self._lock = threading.Lock()

    def get(self, schema_id: K) -> T:
        """What was made for an id.

        Raises:
            LookupError: There is no usable schema; it was asked for within `UNKNOWN_SECONDS`.
            RegistryError: So many other ids had none that this one is not asked for: whether there
                is one nobody knows, so it does not count as unknown.
            TieredKafkaError: What `make` raised.
        """
        with self._lock:
            if schema_id not in self._made:
                self._made[schema_id] = self._asked(schema_id)
                if len(self._made) > MAX_SCHEMAS:
                    self._made.popitem(last=False)
            self._made.move_to_end(schema_id)
            return self._made[schema_id]

    def _asked(self, schema_id: K) -> T:
        if time.monotonic() - self._since > UNKNOWN_SECONDS:
            self._unknown, self._since = {}, time.monotonic()
        if (reason := self._unknown.get(schema_id)) is not None:
            raise LookupError(reason)
        if len(self._unknown) >= MAX_UNKNOWN:
            raise RegistryError(
                f"schema {schema_id} is not asked for: of {MAX_UNKNOWN:,} other ids within"
                f" {UNKNOWN_SECONDS:.0f} s there was no usable schema; is this the registry of the"
                " topic, and are its values in the format that is asked for?"
            )
        try:
            return self._make(schema_id)
        except TieredKafkaError:
            raise
        except Exception as error:  # noqa: BLE001  # no such schema, or one that cannot be used
            self._unknown[schema_id] = one_line(f"{type(error).__name__}: {error}")
            raise LookupError(self._unknown[schema_id]) from None
