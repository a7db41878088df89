"""Where schemas are, and who asks for them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from kts_source.cache.caches import NO_CACHE

if TYPE_CHECKING:
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
