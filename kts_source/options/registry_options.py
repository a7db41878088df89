"""Options `value.schema-registry.…`: where schemas are, and what a registry is shown. Named as
confluent-kafka names them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import Option, parse_choice, parse_text
from kts_source.registry.by_id import RegistryAccess, RegistryPlace
from kts_source.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.broker.settings import Tls
    from kts_source.cache.caches import CacheSettings

URL: Final = "schema-registry.url"
USE_ID: Final = "schema-registry.use-id"
_USER_INFO: Final = "schema-registry.basic.auth.user.info"
_TOKEN: Final = "schema-registry.bearer.auth.token"
_CLUSTER: Final = "schema-registry.bearer.auth.logical.cluster"
_POOL: Final = "schema-registry.bearer.auth.identity.pool.id"
_CA: Final = "schema-registry.ssl.ca.location"
_CERTIFICATE: Final = "schema-registry.ssl.certificate.location"
_KEY: Final = "schema-registry.ssl.key.location"
_KEY_PASSWORD: Final = "schema-registry.ssl.key.password"
FURTHER: Final = (_USER_INFO, _TOKEN, _CLUSTER, _POOL, _CA, _CERTIFICATE, _KEY, _KEY_PASSWORD)
"""Names of what may be said of a registry, behind `value.` or `key.`."""

_MAX_FILE_BYTES: Final = 16 << 20
_OF_A_HEADER: Final = re.compile(r"[\x21-\x7e]+")


def registry_options(column: str) -> Iterator[Option]:
    """The rows of the table of options for `key` or `value`."""
    yield Option(
        f"{column}.{URL}",
        _parse_place,
        "With the `-confluent` formats: where schemas are, by id: `http(s)://…` as Confluent's API"
        " has it, or a folder of `<id>.avsc` (`.desc` with Protobuf) that every worker sees. User"
        " and password in the URL are kept secret. With `avro-glue`: a folder of `<uuid>.avsc`."
        " With `avro-apicurio`: the URL of Apicurio's own API (`…/apis/registry/v2`), or a folder.",
    )
    yield Option(
        f"{column}.{USE_ID}",
        _parse_kind,
        "With `avro-apicurio`: the ids that name schemas, `globalId` or `contentId`, as the"
        " serializer's `apicurio.registry.use-id` says.",
        default="globalId",
    )
    yield Option(
        f"{column}.{_USER_INFO}", _parse_secret, "The registry's `user:password`, kept secret."
    )
    yield Option(
        f"{column}.{_TOKEN}", _parse_header, "Instead: a bearer token for it, kept secret."
    )
    yield Option(
        f"{column}.{_CLUSTER}",
        _parse_header,
        "With a token: the logical cluster of the registry, as Confluent Cloud calls it.",
    )
    yield Option(f"{column}.{_POOL}", _parse_header, "With a token: the id of an identity pool.")
    yield Option(
        f"{column}.{_CA}",
        parse_text,
        "A file (PEM) of certificates that the registry is believed by; those of the machine"
        " otherwise. The driver reads it, as the next two.",
    )
    yield Option(
        f"{column}.{_CERTIFICATE}", parse_text, "A file (PEM) of the certificate that it is shown."
    )
    yield Option(f"{column}.{_KEY}", parse_text, "A file (PEM, PKCS#8) of that certificate's key.")
    yield Option(f"{column}.{_KEY_PASSWORD}", _parse_secret, "The password of that file.")


def registry_place(
    column: str, values: Mapping[str, Any], cache: CacheSettings
) -> RegistryPlace | None:
    """Where the schemas of a column are; `None` where no option says so.

    Args:
        column: `key` or `value`.
        values: Parsed options by name.
        cache: What is kept on this machine's disk.

    Raises:
        InvalidOptionError: Options that contradict each other, or files that cannot be read.
    """
    found: _Place | None = values[f"{column}.{URL}"]
    given = [name for name in FURTHER if values[f"{column}.{name}"] is not None]
    if given and (found is None or not found.is_url):
        raise _invalid(column, given[0], f"needs a registry's URL in '{column}.{URL}'")
    if found is None:
        return None
    if not found.is_url:
        return RegistryPlace(found.place)
    access = _access(column, values, found)
    shown = None if access == RegistryAccess() else Secret(access)
    return RegistryPlace(found.place, shown, cache)


def _access(column: str, values: Mapping[str, Any], place: _Place) -> RegistryAccess:
    def given(name: str) -> Any:  # noqa: ANN401  # of an option
        return values[f"{column}.{name}"]

    ways = [place.user_info, given(_USER_INFO), given(_TOKEN)]
    if sum(way is not None for way in ways) > 1:
        raise InvalidOptionError(
            f"user and password in '{column}.{URL}', option '{column}.{_USER_INFO}' and option"
            f" '{column}.{_TOKEN}' mean the same: give one"
        )
    for name in (_CLUSTER, _POOL):
        if given(name) is not None and given(_TOKEN) is None:
            raise _invalid(column, name, f"needs option '{column}.{_TOKEN}'")
    user, password = "", ""
    if place.user_info is not None:
        user, password = place.user_info.reveal()
    elif given(_USER_INFO) is not None:
        user, colon, password = given(_USER_INFO).reveal().partition(":")
        if not colon:
            raise _invalid(column, _USER_INFO, "is not user:password")
    token = given(_TOKEN)
    headers = (("target-sr-cluster", given(_CLUSTER)), ("Confluent-Identity-Pool-Id", given(_POOL)))
    return RegistryAccess(
        user,
        password,
        "" if token is None else token.reveal(),
        tuple((name, text.reveal()) for name, text in headers if text is not None),
        _tls(column, values, place),
    )


def _tls(column: str, values: Mapping[str, Any], place: _Place) -> Tls | None:
    names = (_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD)
    of_tls = [name for name in names if values[f"{column}.{name}"] is not None]
    if not of_tls:
        return None
    # Not at import time: most scans have no registry.
    from kts_source.broker.settings import TLS_1_2, TLS_1_3, Tls
    from kts_source.broker.tls import KeyStoreError, pem_certificates, pem_key
    from kts_source.registry.client import registry_context

    if not place.place.startswith("https:"):
        raise _invalid(column, of_tls[0], f"needs https:// in '{column}.{URL}'")
    for name, other in ((_CERTIFICATE, _KEY), (_KEY, _CERTIFICATE), (_KEY_PASSWORD, _KEY)):
        if name in of_tls and other not in of_tls:
            raise _invalid(column, name, f"needs option '{column}.{other}'")
    word = values[f"{column}.{_KEY_PASSWORD}"]
    reading = _CA
    trusted: tuple[bytes, ...] = ()
    chain: tuple[bytes, ...] = ()
    key = b""
    try:
        if _CA in of_tls:
            trusted = pem_certificates(_pem(column, _CA, values))
        if _KEY in of_tls:
            reading = _CERTIFICATE
            chain = pem_certificates(_pem(column, _CERTIFICATE, values))
            reading = _KEY
            key = pem_key(_pem(column, _KEY, values), None if word is None else word.reveal())
    except KeyStoreError as error:
        raise _invalid(column, reading, str(error)) from None
    tls = Tls(trusted, chain, key, check_host_name=True, oldest=TLS_1_2, newest=TLS_1_3)
    registry_context(tls)  # a key that is not the certificate's fails here
    return tls


def _pem(column: str, name: str, values: Mapping[str, Any]) -> str:
    try:
        with Path(values[f"{column}.{name}"]).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise _invalid(column, name, "names a file of more than 16 MiB")
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise _invalid(column, name, "names a file that is no PEM") from None
    except (OSError, ValueError) as error:
        raise _invalid(
            column, name, f"names no file that the driver can read: {type(error).__name__}"
        ) from None


def _invalid(column: str, name: str, reason: str) -> InvalidOptionError:
    return InvalidOptionError(f"option '{column}.{name}' {reason}")


@dataclass(frozen=True, slots=True)
class _Place:
    """A URL without user and password, or a folder; and user and password."""

    place: str
    is_url: bool
    user_info: Secret[tuple[str, str]] | None = None


def _parse_kind(name: str, text: str) -> str:
    kinds = {"globalid": "globalId", "contentid": "contentId"}
    return kinds[parse_choice(name, text, choices=tuple(kinds))]


def _parse_secret(name: str, text: str) -> Secret[str]:
    return Secret(parse_text(name, text))


def _parse_header(name: str, text: str) -> Secret[str]:
    stripped = parse_text(name, text)
    if not _OF_A_HEADER.fullmatch(stripped):  # not shown
        raise InvalidOptionError(f"option {name!r} has characters that no header can hold")
    return Secret(stripped)


def _parse_place(name: str, text: str) -> _Place:
    place = parse_text(name, text)
    if not place.lower().startswith(("http://", "https://")):
        if "://" in place:  # not shown: it may hold a password
            raise InvalidOptionError(
                f"option {name!r} is neither http://…, https://…, nor a folder's path"
            )
        return _Place(place, is_url=False)
    try:
        parts = urlsplit(place)
    except ValueError:
        raise InvalidOptionError(f"option {name!r} is not a URL") from None
    info, at, host = parts.netloc.rpartition("@")
    try:
        _ = parts.port
    except ValueError:
        host = ""
    # An @ behind the host is of a password that holds a slash: it would be shown as a path.
    if not host or parts.query or parts.fragment or "@" in parts.path or re.search(r"\s", place):
        raise InvalidOptionError(f"option {name!r} is no URL of a registry: https://host/path")
    user, _, password = info.partition(":")
    user_info = Secret((unquote(user), unquote(password))) if at else None
    return _Place(urlunsplit(parts._replace(netloc=host)), is_url=True, user_info=user_info)
