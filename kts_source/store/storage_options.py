"""Options of stores: the `s3.*` options, named as in PyIceberg, and `storageOptions` for other
settings.

The options are passed on as one `Secret` mapping of strings. They are converted to arguments of a
client library only when a store is opened.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from kts_source.errors import InvalidOptionError
from kts_source.secret import Secret
from kts_source.store.request_policy import DEFAULT_RETRY_POLICY, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STORAGE_OPTIONS = "storageOptions"
CHECKSUM_VARIABLES = ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION")
"""Environment variables of the AWS SDKs for checksums of uploads and of downloads."""

# Names and meanings of the options, for the table in the documentation.
S3_OPTIONS: tuple[tuple[str, str], ...] = (
    ("s3.endpoint", "URL of the S3 service; default: AWS"),
    (
        "s3.access-key-id",
        "access key; default: the AWS chain (environment, profile, instance role)",
    ),
    ("s3.secret-access-key", "secret key that belongs to the access key"),
    ("s3.session-token", "session token of temporary credentials"),
    ("s3.region", "region of the bucket; default: the AWS chain"),
    ("s3.anonymous", "true sends unsigned requests; default false"),
    (
        "s3.path-style-access",
        "true puts the bucket into the path; default: for custom endpoints only",
    ),
    ("s3.force-virtual-addressing", "true puts the bucket into the host name"),
    ("s3.connect-timeout", "seconds to wait for a connection; default `fetchConnectTimeoutMs`"),
    (
        "s3.request-timeout",
        "max seconds between two received bytes of a response; default `fetchReadTimeoutMs`",
    ),
    ("s3.proxy-uri", "URL of an HTTP proxy"),
    ("s3.profile-name", "profile of the AWS configuration files"),
)

_S3_NAMES = tuple(name for name, _ in S3_OPTIONS)

_S3FS_NAMES = {
    "key": "s3.access-key-id",
    "secret": "s3.secret-access-key",
    "token": "s3.session-token",
    "endpoint_url": "s3.endpoint",
    "profile": "s3.profile-name",
}

_MAX_SECONDS = 2_147_483  # the maximum of clients, which count ms in 32 bits
# Planning sends this many requests concurrently; tasks send fewer. With botocore's default of 10,
# requests would wait for a connection.
MAX_POOL_CONNECTIONS = 96

_SECRETS_OF_CONNECTION: Final = re.compile(
    r"(?:AccountKey|SharedAccessSignature)=([^;]+)", re.IGNORECASE
)
# Messages may show the values of these options. All other values are masked in messages.
_PUBLIC_NAMES = frozenset(
    {
        "s3.endpoint",
        "s3.region",
        "s3.anonymous",
        "s3.path-style-access",
        "s3.force-virtual-addressing",
        "s3.connect-timeout",
        "s3.request-timeout",
        "s3.profile-name",
        "endpoint_url",
        "region_name",
        "addressing_style",
        "account_name",
        "project",
        "profile",
        "host",
        "port",
        "protocol",
    }
)


def storage_options_from(options: Mapping[str, str]) -> Secret[Mapping[str, str]]:
    """Selects the storage options from all options of a data source.

    Args:
        options: All options. Names are compared without regard to case.

    Returns:
        `storageOptions` and the options `s3.*`, with names in lower case.

    Raises:
        InvalidOptionError: An `s3.*` name is unknown, a value is invalid, or two values contradict
            each other. The text contains the option's name, but not its value.
    """
    storage: dict[str, str] = {}
    for original_name, text in options.items():
        name = original_name.lower()
        if name == STORAGE_OPTIONS.lower():
            storage[STORAGE_OPTIONS] = text
        elif name.startswith("s3."):
            if name not in _S3_NAMES:
                near = difflib.get_close_matches(name, _S3_NAMES, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_S3_NAMES)}"
                raise InvalidOptionError(f"unknown option {original_name}: {hint}")
            storage[name] = text
    s3_arguments(storage)
    return Secret(storage)


def extra_arguments(storage: Mapping[str, str]) -> dict[str, Any]:
    """Parses `storageOptions`, which contains arguments of the path's fsspec file system.

    Raises:
        InvalidOptionError: `storageOptions` is not a JSON object.
    """
    text = storage.get(STORAGE_OPTIONS, "")
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        # Not chained, because the cause contains the whole document with its secrets.
        problem = f"{error.msg} at character {error.pos}"
    except (ValueError, RecursionError):
        problem = "a number is too long, or it is nested too deeply"
    else:
        if isinstance(value, dict):
            return value
        problem = f"a {type(value).__name__}"
    raise InvalidOptionError(f"{STORAGE_OPTIONS} must be a JSON object, but is not: {problem}")


def expiry_advice(storage: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Returns a text for errors about expired credentials of S3: which credentials were used, why
    they were not renewed, and the alternatives.
    """
    if "s3.access-key-id" in storage:
        name = "s3.session-token" if "s3.session-token" in storage else "s3.access-key-id"
        return (
            f"The credentials of option {name} have expired, and options cannot be renewed. Set new"
            " values and start again, or remove the options s3.access-key-id,"
            " s3.secret-access-key and s3.session-token. The AWS chain then takes credentials from"
            " s3.profile-name or from the role of the machine, and renews them"
        )
    if "s3.profile-name" in storage:
        return (
            f"The credentials of s3.profile-name {storage['s3.profile-name']!r} have expired. Log"
            " in again (`aws sso login`), or use a profile with a credential_process or a role,"
            " which the AWS chain renews"
        )
    if "AWS_SESSION_TOKEN" in environment:
        return (
            "The credentials of the environment variable AWS_SESSION_TOKEN have expired, and"
            " variables cannot be renewed. Restart the process with new values, or remove the"
            " variables and use a profile or a role, which the AWS chain renews"
        )
    return (
        "The AWS chain has no newer credentials. Log in again, or use a profile with a"
        " credential_process or a role, which the chain renews"
    )


def s3_arguments(
    storage: Mapping[str, str], policy: RetryPolicy = DEFAULT_RETRY_POLICY
) -> dict[str, Any]:
    """Converts storage options to arguments of `s3fs.S3FileSystem`.

    Precedence, highest first: `storageOptions`, the `s3.*` options, the timeouts of the policy.

    Raises:
        InvalidOptionError: A value is invalid, or two values contradict each other.
    """
    has_key = "s3.access-key-id" in storage
    anonymous = _boolean(storage, "s3.anonymous")
    if has_key != ("s3.secret-access-key" in storage):
        raise InvalidOptionError(
            "s3.access-key-id and s3.secret-access-key go together: set both or neither"
        )
    if "s3.session-token" in storage and not has_key:
        raise InvalidOptionError("s3.session-token needs s3.access-key-id and s3.secret-access-key")
    if anonymous and has_key:
        raise InvalidOptionError(
            "s3.anonymous=true contradicts s3.access-key-id: set only one of them"
        )
    config: dict[str, Any] = {
        "connect_timeout": _seconds(storage, "s3.connect-timeout", policy.connect_timeout_seconds),
        "read_timeout": _seconds(storage, "s3.request-timeout", policy.read_timeout_seconds),
        "max_pool_connections": MAX_POOL_CONNECTIONS,
        # Checksums of S3 are not compared, because the records have their own.
        "response_checksum_validation": "when_required",
    }
    if CHECKSUM_VARIABLES[0] not in os.environ:
        # Uploads have no `x-amz-checksum-*` headers, because stores other than AWS may reject them.
        config["request_checksum_calculation"] = "when_required"
    style = _addressing_style(storage)
    if style:
        config["s3"] = {"addressing_style": style}
    if proxy := storage.get("s3.proxy-uri"):
        config["proxies"] = {"http": proxy, "https": proxy}
    arguments: dict[str, Any] = {
        "anon": bool(anonymous),
        "config_kwargs": config,
        "client_kwargs": {},
        "use_listings_cache": False,
        **{name: storage[option] for name, option in _S3FS_NAMES.items() if option in storage},
    }
    if region := storage.get("s3.region"):
        arguments["client_kwargs"]["region_name"] = region
    merged = _merge(arguments, extra_arguments(storage))
    # Options cannot change this: retries by the library would multiply with those of `RetryPolicy`.
    merged["config_kwargs"]["retries"] = {"total_max_attempts": 1}
    return merged


def secret_values(storage: Mapping[str, str]) -> frozenset[str]:
    """Returns all strings in the storage options that messages must not contain."""
    return frozenset(_secrets_in({**storage, STORAGE_OPTIONS: extra_arguments(storage)}))


def _secrets_in(value: object, name: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for inner, item in value.items():
            yield from _secrets_in(item, inner)
    elif isinstance(value, list):
        for item in value:
            yield from _secrets_in(item, name)
    elif isinstance(value, str) and name not in _PUBLIC_NAMES:
        yield value
        if name == "connection_string":
            yield from _SECRETS_OF_CONNECTION.findall(value)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for name, value in over.items():
        old = result.get(name)
        nested = isinstance(old, dict) and isinstance(value, dict)
        result[name] = _merge(result[name], value) if nested else value
    return result


def _addressing_style(storage: Mapping[str, str]) -> str | None:
    path = _boolean(storage, "s3.path-style-access")
    virtual = _boolean(storage, "s3.force-virtual-addressing")
    if path and virtual:
        raise InvalidOptionError(
            "s3.path-style-access=true contradicts s3.force-virtual-addressing=true: set only one"
        )
    if path or virtual is False:
        return "path"
    return "virtual" if virtual or path is False else None


def _boolean(storage: Mapping[str, str], name: str) -> bool | None:
    text = storage.get(name)
    if text is None:
        return None
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise InvalidOptionError(f"{name} must be true or false")
    return value


def _seconds(storage: Mapping[str, str], name: str, default: float) -> float:
    text = storage.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _MAX_SECONDS:
        raise InvalidOptionError(
            f"{name} must be a positive number of seconds, at most {_MAX_SECONDS}"
        )
    return value


_PRESIGNED: Final = "presigned+"
_URL_LIST: Final = re.compile(r"https?://[^?#]+\.(json|txt|urls)(\?.*)?", re.IGNORECASE | re.DOTALL)
PATH_SECRET: Final = "presigned.path"
"""Name of the storage option that contains the path with its secret query string."""


def is_presigned(path: str) -> bool:
    """Returns whether a path names a list of presigned URLs, see `presigned_store`."""
    return path.lower().startswith(_PRESIGNED) or _URL_LIST.fullmatch(path) is not None


def hide_query(
    path: str, storage: Secret[Mapping[str, str]]
) -> tuple[str, Secret[Mapping[str, str]]]:
    """Removes the query string from a path that names a list of presigned URLs, because it may
    contain a secret, and stores the original path in the storage options. Returns the new path and
    the new storage options. Does not change other paths.
    """
    if not is_presigned(path) or "?" not in path:
        return path, storage
    prefix = _PRESIGNED if path.lower().startswith(_PRESIGNED) else ""
    return prefix + without_query(path), Secret({**storage.reveal(), PATH_SECRET: path})


def without_query(path: str) -> str:
    """Removes the prefix `presigned+`, the query string, user and password from the location of a
    list of URLs.
    """
    url_parts = urlsplit(without_presigned(path))
    if not url_parts.netloc:
        return path.partition("?")[0]
    return urlunsplit(
        (url_parts.scheme, url_parts.netloc.rpartition("@")[2], url_parts.path, "", "")
    )


def without_presigned(path: str) -> str:
    """Removes the prefix `presigned+` from the location of a list of URLs."""
    return path[len(_PRESIGNED) :] if path.lower().startswith(_PRESIGNED) else path


AZURE_SCHEMES: Final = frozenset({"abfs", "abfss", "az"})
_ACCOUNT_URL: Final = re.compile(
    rf"(?:{'|'.join(sorted(AZURE_SCHEMES))})://[A-Za-z0-9$][A-Za-z0-9-]*@"
    r"(?P<account>[a-z0-9]{3,24})\.(?:dfs|blob)\.(?P<domain>[a-z0-9-]+(?:\.[a-z0-9-]+)+)(?:/.*)?",
    re.IGNORECASE | re.DOTALL,
)
"""An Azure URL that names the storage account, as Spark and Hadoop write it:
`abfss://container@account.dfs.core.windows.net/path`.
"""
_DEFAULT_DOMAIN: Final = "core.windows.net"
_ACCOUNT_NAME: Final = re.compile(r"(?:^|;)\s*AccountName=([^;]*)", re.IGNORECASE)


def names_account(url: str) -> bool:
    """Returns whether the part before the `@` of a URL is an Azure container, not a user."""
    return _ACCOUNT_URL.fullmatch(url.strip()) is not None


def filesystem_arguments(url: str, storage: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments of the fsspec file system for a URL: the arguments in `storageOptions`,
    and the storage account that an Azure URL names.

    Raises:
        InvalidOptionError: `storageOptions` is not a JSON object, or names another account than the
            URL.
    """
    arguments = extra_arguments(storage)
    match = _ACCOUNT_URL.fullmatch(url.strip())
    if match is None:
        return arguments
    account, domain = match["account"].lower(), match["domain"].lower()
    in_connection = _ACCOUNT_NAME.search(str(arguments.get("connection_string", "")))
    for other in (arguments.get("account_name"), in_connection and in_connection[1]):
        if other and other != account:
            raise InvalidOptionError(
                f"the path names the storage account {account!r}, but storageOptions name another"
                " one. Remove account_name and connection_string from storageOptions, or correct"
                " the path"
            )
    if "connection_string" in arguments:
        return arguments
    named = {"account_name": account}
    if domain != _DEFAULT_DOMAIN:  # adlfs derives only the addresses of the public cloud
        named["account_host"] = f"{account}.blob.{domain}"
    return named | arguments
