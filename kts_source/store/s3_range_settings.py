"""How ranges of a bucket's objects are asked for: as s3fs would, or why they are left to it.

s3fs' arguments and what botocore finds in the environment and the AWS configuration files decide.
"""

from __future__ import annotations

import os
import re
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.secret import Secret
from kts_source.store.botocore_log import hide_tokens
from kts_source.store.http_client import HttpSettings
from kts_source.store.range_settings import LeftToFsspecError, require_known, require_no_proxy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.store.s3_ranges import S3Ranges

_ARGUMENTS: Final = {
    *("anon", "key", "secret", "token", "profile", "endpoint_url", "requester_pays"),
    *("config_kwargs", "client_kwargs", "use_listings_cache"),
}
_CONFIG: Final = {
    *("connect_timeout", "read_timeout", "proxies", "s3"),
    *("max_pool_connections", "response_checksum_validation", "request_checksum_calculation"),
    "retries",
}
_OF_PROFILES: Final = ("endpoint_url", "services", "s3")
_OF_ENVIRONMENT: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_RESERVED: Final = ("--x-s3", "--op-s3", "--ol-s3", "--table-s3", "-s3alias", ".mrap")
"""Ends of names that are no buckets, but have endpoints or signatures of their own."""
# botocore encodes other characters of a path, and refuses what comes behind it.
_ENDPOINT: Final = re.compile(r"[A-Za-z]+://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?")
# botocore has its own view of what else is named so.
_SIGNED_REGION: Final = re.compile(r"(?!.*-global$)[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
_REGION: Final = re.compile(r"(?!cn-|us-iso|eu-isoe|eusc-)[a-z]{2}(-[a-z]+)+-[0-9]")

Keys: TypeAlias = tuple[str, str, str | None]


class AwsChain:
    """The credentials that botocore finds, renewed by it in time. Whatever renews them without
    telling when they expire, such as a tool that writes the file of shared credentials, is looked
    at again after a refusal.

    Args:
        profile: Of the AWS configuration; `None`: the default.
        session: botocore's, for that profile.
    """

    def __init__(self, profile: str | None, session: Any) -> None:  # noqa: ANN401  # botocore ships no types
        self._profile = profile
        self._session = session
        self._given: Secret[Keys] | None = None
        self._found: Any = None

    @property
    def may_wait(self) -> bool:
        """Whether `keys` may ask who gives them: a server, or a program that takes its time."""
        return self._found is None or getattr(self._found, "refresh_needed", bool)()

    def keys(self) -> Secret[Keys] | None:
        """Those of now; `None`: there are none. Not for several threads at a time."""
        self._found = self._session.get_credentials()
        self._given = _keys(self._found)
        return self._given

    def renew(self) -> bool:
        """Whether it has other keys now than it gave last. May ask who gives them."""
        try:
            session = _session(self._profile, gives_credentials=True)
            found = _keys(session.get_credentials())
        except Exception:  # noqa: BLE001  # the refusal is the better error
            return False
        if found is None or found == self._given:
            return False
        self._session = session
        return True


@dataclass(frozen=True, slots=True)
class S3RangeSettings:
    """How ranges of a bucket's objects are asked for.

    Attributes:
        http: The server: the bucket's own where addresses are virtual.
        path: What comes before the key, percent-encoded, without the last slash.
        region: For the signature.
        request_payer: Whether the one who asks pays.
        keys: Access key, secret key and token as given; `None`: the AWS chain, or unsigned.
        chain: Where it gives the credentials; a client is opened alike whichever gave them.
    """

    http: HttpSettings
    path: str
    region: str
    request_payer: bool
    keys: Secret[Keys | None]
    chain: AwsChain | None = field(compare=False)

    @property
    def endpoint(self) -> str:
        """See `RangeSettings`."""
        return self.http.url

    @property
    def may_wait(self) -> bool:
        """See `RangeSettings`."""
        return self.chain is not None and self.chain.may_wait

    def credentials(self) -> Secret[Keys | None]:
        """Those of now, renewed where they must be; a secret `None` for unsigned requests.

        Not for several threads at a time, as botocore's session is not.

        Raises:
            LeftToFsspecError: The chain has none.
        """
        if self.chain is None:
            return self.keys
        found = self.chain.keys()
        if found is None:
            raise LeftToFsspecError("there are no credentials")
        return Secret(found.reveal())

    def renew(self) -> bool:
        """Looks into the AWS chain again; keys that were given as they are stay."""
        return self.chain is not None and self.chain.renew()

    def open(self, credentials: Secret[Keys | None]) -> S3Ranges:
        """A client that tries each request once. See `RangeSettings.open` for what it raises."""
        from kts_source.store.s3_ranges import S3Ranges

        return S3Ranges(self, credentials)


def range_settings(bucket: str, arguments: Mapping[str, Any]) -> S3RangeSettings:
    """The settings that do what the arguments do with s3fs. Nothing is asked of a store.

    Args:
        bucket: Its name.
        arguments: See `storage_options.s3_arguments`.

    Raises:
        LeftToFsspecError: Only s3fs can do all of it.
    """
    config, client = arguments["config_kwargs"], arguments["client_kwargs"]
    _require_known(bucket, arguments)
    # Where nothing is signed, s3fs has no use for keys.
    has_keys = not arguments["anon"] and arguments.get("key") is not None
    has_chain = not has_keys and not arguments["anon"]
    session = _session(arguments.get("profile"), gives_credentials=has_chain)
    region = client.get("region_name", session.get_config_variable("region"))
    if region is not None and not _SIGNED_REGION.fullmatch(str(region)):
        raise LeftToFsspecError("the region is not an ordinary one")
    given = arguments.get("endpoint_url")
    is_virtual = (config.get("s3") or {}).get("addressing_style") == "virtual"
    if given is None:
        if region is None or not _REGION.fullmatch(region):
            raise LeftToFsspecError("the region is not given, or has endpoints of its own")
        host = f"s3.{region}.amazonaws.com"
        endpoint = f"https://{bucket}.{host}" if is_virtual else f"https://{host}"
    elif is_virtual:
        raise LeftToFsspecError("virtual addresses of an endpoint of one's own")
    else:
        endpoint = given.rstrip("/")
    parts = urllib.parse.urlsplit(endpoint)
    is_plain = _ENDPOINT.fullmatch(endpoint) is not None and parts.hostname
    if parts.scheme not in ("http", "https") or not is_plain:
        raise LeftToFsspecError("the endpoint is not of the kind https://host:port")
    keys = (arguments["key"], arguments["secret"], arguments.get("token")) if has_keys else None
    http = HttpSettings(
        f"{parts.scheme}://{parts.netloc}",
        config["connect_timeout"],
        config["read_timeout"],
        Secret((config.get("proxies") or {}).get(parts.scheme)),
        _ca_file(session) if parts.scheme == "https" else None,
    )
    return S3RangeSettings(
        http,
        parts.path if is_virtual else f"{parts.path}/{bucket}",
        region or "us-east-1",
        bool(arguments.get("requester_pays")),
        Secret(keys),
        AwsChain(arguments.get("profile"), session) if has_chain else None,
    )


def _ca_file(session: Any) -> str:  # noqa: ANN401  # botocore's
    """Whose certificates s3fs trusts."""
    from botocore.httpsession import get_cert_path

    named = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    return str(get_cert_path(named or True))


def _require_known(bucket: str, arguments: Mapping[str, Any]) -> None:
    """Refuses what only s3fs knows."""
    if not _BUCKET.fullmatch(bucket) or bucket.endswith(_RESERVED):
        raise LeftToFsspecError("the bucket's name is not an ordinary one")
    config = arguments["config_kwargs"]
    unknown = {
        *(arguments.keys() - _ARGUMENTS),
        *(config.keys() - _CONFIG),
        *(arguments["client_kwargs"].keys() - {"region_name"}),
        *((config.get("s3") or {}).keys() - {"addressing_style"}),
        *((config.get("proxies") or {}).keys() - {"http", "https"}),
    }
    require_known(unknown, ("s3", "s3a"))
    for name in ("connect_timeout", "read_timeout"):
        if not isinstance(config[name], int | float):
            raise LeftToFsspecError(f"{name} is not a number")
    if (config.get("s3") or {}).get("addressing_style") not in (None, "auto", "path", "virtual"):
        raise LeftToFsspecError("the addressing style is not an ordinary one")
    if arguments.get("key") is not None and arguments.get("secret") is None:
        raise LeftToFsspecError("an access key without its secret")
    for name in _OF_ENVIRONMENT:
        if os.environ.get(name):
            raise LeftToFsspecError(f"{name} is set")
    if "proxies" not in config:
        require_no_proxy()


def _keys(found: Any) -> Secret[Keys] | None:  # noqa: ANN401  # botocore's
    if found is None:
        return None
    frozen = found.get_frozen_credentials()
    return Secret((frozen.access_key, frozen.secret_key, frozen.token))


def _session(profile: str | None, *, gives_credentials: bool) -> Any:  # noqa: ANN401  # botocore ships no types
    """botocore's, for what it finds; no request is made. Only one that gives credentials may need a
    client, whose handlers take 5 ms to register.
    """
    import botocore.exceptions
    import botocore.session

    hide_tokens()
    session = botocore.session.Session(profile=profile, include_builtin_handlers=gives_credentials)
    try:
        scoped = session.get_scoped_config()
    except botocore.exceptions.BotoCoreError:
        raise LeftToFsspecError("the AWS profile cannot be read") from None
    for name in _OF_PROFILES:
        if scoped.get(name):
            raise LeftToFsspecError(f"the AWS configuration has {name}")
    for name in ("use_fips_endpoint", "use_dualstack_endpoint"):
        if session.get_config_variable(name):
            raise LeftToFsspecError(f"the AWS configuration has {name}")
    return session
