"""Options of schemas: `value.schema`, `value.subject` and `value.schema-registry.…`. Option names
after `schema-registry` are those of confluent-kafka.

The reader's schema is requested or read once, when options are parsed, and stored with the options.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import Option, parse_choice, parse_text
from kts_source.options.selection import Assign, Subscribe
from kts_source.registry.client import RegistryAccess, RegistryPlace
from kts_source.registry.schema_registry import AVRO, JSON, PROTOBUF, latest_schema
from kts_source.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.broker.settings import Tls
    from kts_source.cache.caches import CacheSettings
    from kts_source.options.selection import Selection
    from kts_source.registry.schema_registry import RegisteredSchema

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

_MAX_FILE_BYTES: Final = 16 << 20
_HEADER_CHARACTERS: Final = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class _Location:
    """The location of schemas: the URL of a registry, without user and password, or a folder."""

    place: str
    is_url: bool
    user_info: Secret[tuple[str, str]] | None = None


def _parse_location(name: str, text: str) -> _Location:
    location = parse_text(name, text)
    if not location.lower().startswith(("http://", "https://")):
        if "://" in location:  # not shown: it may have a password
            raise InvalidOptionError(
                f"option {name!r} must be http://…, https://… or the path of a folder"
            )
        return _Location(location, is_url=False)
    try:
        url = urlsplit(location)
    except ValueError:
        raise InvalidOptionError(f"option {name!r} is not a URL") from None
    info, at_sign, host = url.netloc.rpartition("@")
    try:
        _ = url.port
    except ValueError:
        host = ""
    # If there is an @ after the host, the password contains a slash, and errors would show a part
    # of it as a path.
    if not host or url.query or url.fragment or "@" in url.path or re.search(r"\s", location):
        raise InvalidOptionError(
            f"option {name!r} is not a URL of a registry, such as https://host/path"
        )
    user, _, password = info.partition(":")
    user_info = Secret((unquote(user), unquote(password))) if at_sign else None
    return _Location(urlunsplit(url._replace(netloc=host)), is_url=True, user_info=user_info)


def _parse_id_kind(name: str, text: str) -> str:
    kinds = {"globalid": "globalId", "contentid": "contentId"}
    return kinds[parse_choice(name, text, choices=tuple(kinds))]


def _parse_secret(name: str, text: str) -> Secret[str]:
    return Secret(parse_text(name, text))


def _parse_header(name: str, text: str) -> Secret[str]:
    stripped = parse_text(name, text)
    if not _HEADER_CHARACTERS.fullmatch(stripped):  # not shown
        raise InvalidOptionError(f"option {name!r} has characters that HTTP headers cannot contain")
    return Secret(stripped)


_ACCESS_OPTIONS: Final = (
    (_USER_INFO, _parse_secret, "The registry's `user:password`, kept secret."),
    (_TOKEN, _parse_header, "A bearer token instead of user and password, kept secret."),
    (
        _CLUSTER,
        _parse_header,
        "With a token: the logical cluster of the registry, as Confluent Cloud calls it.",
    ),
    (_POOL, _parse_header, "With a token: the id of an identity pool."),
    (
        _CA,
        parse_text,
        "PEM file with trusted certificates for the registry; default: the certificates of the"
        " machine. The driver reads this file and the next two.",
    ),
    (_CERTIFICATE, parse_text, "PEM file with the client certificate."),
    (_KEY, parse_text, "PEM file (PKCS#8) with the key of the client certificate."),
    (_KEY_PASSWORD, _parse_secret, "The password of the key file."),
)
"""Options that need a registry's URL: name without the prefix `value.` or `key.`, parser and
meaning.
"""
ACCESS_NAMES: Final = tuple(name for name, _, _ in _ACCESS_OPTIONS)


def registry_options(column: str) -> Iterator[Option]:
    """Yields the options that describe the registry of column `key` or `value`, as rows of the
    table of options.
    """
    yield Option(
        f"{column}.{URL}",
        _parse_location,
        "With the `-confluent` formats: source of schemas by id, `http(s)://…` with Confluent's"
        " API, or a folder of `<id>.avsc` (`.desc` with Protobuf) that every worker can read. User"
        " and password in the URL are kept secret. With `avro-glue`: a folder of `<uuid>.avsc`."
        " With `avro-apicurio`: the URL of Apicurio's own API (`…/apis/registry/v2`), or a folder.",
    )
    yield Option(
        f"{column}.{USE_ID}",
        _parse_id_kind,
        "With `avro-apicurio`: the ids that name schemas, `globalId` or `contentId`, like the"
        " serializer's `apicurio.registry.use-id`.",
        default="globalId",
    )
    for name, parse, doc in _ACCESS_OPTIONS:
        yield Option(f"{column}.{name}", parse, doc)


def registry_place(
    column: str, values: Mapping[str, Any], cache: CacheSettings
) -> RegistryPlace | None:
    """Returns the registry or folder with the schemas of `column` (`key` or `value`); `None` if no
    option names one.

    Raises:
        InvalidOptionError: Options contradict each other, or a file cannot be read.
    """
    location: _Location | None = values[f"{column}.{URL}"]
    options = {
        name: values[f"{column}.{name}"]
        for name in ACCESS_NAMES
        if values[f"{column}.{name}"] is not None
    }
    if options and (location is None or not location.is_url):
        raise _invalid(column, next(iter(options)), f"needs a registry's URL in '{column}.{URL}'")
    if location is None:
        return None
    if not location.is_url:
        return RegistryPlace(location.place)
    access = _access(column, options, location)
    return RegistryPlace(
        location.place, None if access == RegistryAccess() else Secret(access), cache
    )


def _access(column: str, options: Mapping[str, Any], location: _Location) -> RegistryAccess:
    ways = [location.user_info, options.get(_USER_INFO), options.get(_TOKEN)]
    if sum(way is not None for way in ways) > 1:
        raise InvalidOptionError(
            f"user and password in '{column}.{URL}', option '{column}.{_USER_INFO}' and option"
            f" '{column}.{_TOKEN}' exclude each other: set only one of them"
        )
    _check_needs(column, options, ((_CLUSTER, _TOKEN), (_POOL, _TOKEN)))
    user, password = "", ""
    if location.user_info is not None:
        user, password = location.user_info.reveal()
    elif _USER_INFO in options:
        user, colon, password = options[_USER_INFO].reveal().partition(":")
        if not colon:
            raise _invalid(column, _USER_INFO, "must have the form user:password")
    headers = (("target-sr-cluster", _CLUSTER), ("Confluent-Identity-Pool-Id", _POOL))
    return RegistryAccess(
        user,
        password,
        options[_TOKEN].reveal() if _TOKEN in options else "",
        tuple((header, options[name].reveal()) for header, name in headers if name in options),
        _tls(column, options, location),
    )


def _tls(column: str, options: Mapping[str, Any], location: _Location) -> Tls | None:
    tls_names = [name for name in (_CA, _CERTIFICATE, _KEY, _KEY_PASSWORD) if name in options]
    if not tls_names:
        return None
    # Do not import this at module level, because most scans use no registry.
    from kts_source.broker.settings import TLS_1_2, TLS_1_3, Tls
    from kts_source.broker.tls import KeyStoreError, pem_certificates, pem_key
    from kts_source.registry.client import registry_context

    if not location.place.startswith("https:"):
        raise _invalid(column, tls_names[0], f"needs https:// in '{column}.{URL}'")
    _check_needs(
        column, options, ((_CERTIFICATE, _KEY), (_KEY, _CERTIFICATE), (_KEY_PASSWORD, _KEY))
    )
    trusted: tuple[bytes, ...] = ()
    chain: tuple[bytes, ...] = ()
    key = b""
    name = _CA
    try:
        if _CA in options:
            trusted = pem_certificates(_read_pem(column, _CA, options))
        if _KEY in options:
            name = _CERTIFICATE
            chain = pem_certificates(_read_pem(column, _CERTIFICATE, options))
            name = _KEY
            password = options[_KEY_PASSWORD].reveal() if _KEY_PASSWORD in options else None
            key = pem_key(_read_pem(column, _KEY, options), password)
    except KeyStoreError as error:
        raise _invalid(column, name, str(error)) from None
    tls = Tls(trusted, chain, key, check_host_name=True, oldest=TLS_1_2, newest=TLS_1_3)
    registry_context(tls)  # a key that does not match the certificate fails here
    return tls


def _check_needs(
    column: str, options: Mapping[str, Any], pairs: tuple[tuple[str, str], ...]
) -> None:
    for name, needed in pairs:
        if name in options and needed not in options:
            raise _invalid(column, name, f"needs option '{column}.{needed}'")


def _read_pem(column: str, name: str, options: Mapping[str, Any]) -> str:
    try:
        with Path(options[name]).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise _invalid(column, name, "names a file of more than 16 MiB")
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise _invalid(column, name, "names a file that is not PEM") from None
    except InvalidOptionError:
        raise
    except (OSError, ValueError) as error:
        raise _invalid(
            column, name, f"names a file that the driver cannot read: {type(error).__name__}"
        ) from None


def _invalid(column: str, name: str, reason: str) -> InvalidOptionError:
    return InvalidOptionError(f"option '{column}.{name}' {reason}")


def schema_text(name: str, text: str) -> str:
    """Returns the Avro schema of an option: its text, or the content of the file that it names."""
    if re.match(r'[{\["]', text):
        return text
    return _read_text(name, text, "neither an Avro schema in JSON nor a file of one")


def ddl_text(name: str, text: str) -> str:
    """Returns the DDL of an option. The option's text is a DDL, a JSON Schema, or the name of a
    file that contains one of these.
    """
    from segment_format.values.json.ddl import parse_ddl, print_ddl
    from segment_format.values.json.json_schema import json_schema_type

    if not text.startswith("{"):
        try:
            parse_ddl(text)
        except ValueError as error:
            text = _read_text(name, text, f"neither a DDL ({error}) nor a file of one")
        if not text.lstrip().startswith("{"):
            return text
    try:
        return print_ddl(json_schema_type(text))
    except ValueError as error:
        raise InvalidOptionError(f"option {name!r}: {error}") from None


def _read_text(name: str, path: str, otherwise: str) -> str:
    try:
        return file_content(name, path, otherwise).decode()
    except UnicodeDecodeError:
        raise InvalidOptionError(f"option {name!r}: {path} is not UTF-8") from None


def file_content(name: str, path: str, otherwise: str) -> bytes:
    """Reads the file that an option names.

    Args:
        name: Name of the option.
        path: Text of the option: the path of the file.
        otherwise: Continues the error text "option … is" if the option does not name a readable
            file.

    Raises:
        InvalidOptionError: The file cannot be read, or has more than 16 MiB.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            f"option {name!r} is {otherwise}: {path[:200]!r} ({type(error).__name__})"
        ) from None
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidOptionError(f"option {name!r}: {path} has more than 16 MiB")
    return data


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """The schema with which a column is decoded. `ColumnFormat` describes the attributes."""

    schema: str = ""
    references: tuple[str, ...] = ()
    descriptors: bytes = b""
    message: str = ""


def known_subject(column: str, subject: str | None, selection: Selection) -> str:
    """Returns option `subject` if it is set. Otherwise, if only one topic is read, returns the
    default subject of producers, such as `<topic>-value`. Returns an empty text if several topics
    are read.
    """
    if subject is not None:
        return subject
    topics: tuple[str, ...] = ()
    if isinstance(selection, Subscribe):
        topics = selection.topics
    elif isinstance(selection, Assign):
        topics = tuple(selection.partitions)
    return f"{topics[0]}-{column}" if len(set(topics)) == 1 else ""


def latest_of(column: str, kind: str, registry: RegistryPlace, subject: str) -> ReaderSchema:
    """Requests the latest schema of a subject from a registry.

    Args:
        column: `key` or `value`.
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        registry: A registry with a URL.
        subject: Name of the subject; empty if unknown.

    Raises:
        InvalidOptionError: The subject is unknown or does not exist, or its schema has another kind
            or cannot be used.
        RegistryError: The registry does not answer.
    """
    if not subject:
        raise InvalidOptionError(
            f"set option '{column}.schema' or '{column}.subject': the default subject depends on"
            " the topic, and the options do not select a single topic"
        )
    try:
        registered = latest_schema(registry, subject)
        if registered.kind != kind:
            raise ValueError(f"its kind is {registered.kind}, not {kind}")
        return _READERS[kind](registered)
    except LookupError as error:
        raise InvalidOptionError(
            f"option '{column}.schema' is not given, and the registry has no subject {subject!r}"
            f" ({error}): set option '{column}.schema' or '{column}.subject'"
        ) from None
    except ValueError as error:
        raise InvalidOptionError(
            f"option '{column}.schema' is not given, and the latest schema of subject {subject!r}"
            f" cannot be used: {error}"
        ) from None


def _avro(registered: RegisteredSchema) -> ReaderSchema:
    *references, text = [content.decode() for _, content in registered.parts]
    return ReaderSchema(schema=text, references=tuple(references))


def _json(registered: RegisteredSchema) -> ReaderSchema:
    from segment_format.values.json.ddl import print_ddl
    from segment_format.values.json.json_schema import json_schema_type

    *references, (_, text) = registered.parts
    if references:
        raise ValueError("it refers to other schemas, which is not supported for JSON Schema")
    return ReaderSchema(schema=print_ddl(json_schema_type(text.decode())))


def _protobuf(registered: RegisteredSchema) -> ReaderSchema:
    from kts_source.registry.schema_registry import descriptor_set, messages_of

    first = messages_of(registered).get((0,), "")
    return ReaderSchema(descriptors=descriptor_set(registered), message=first)


_READERS = {AVRO: _avro, JSON: _json, PROTOBUF: _protobuf}
