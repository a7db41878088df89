"""What obstore is told about a bucket: the same as s3fs, or why it cannot be.

s3fs' arguments and what botocore finds in the environment and the AWS configuration files decide.
obstore would look into the environment for itself, so all that it could take from there is set.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.secret import Secret
from kts_source.store.botocore_log import hide_tokens
from kts_source.store.obstore_settings import (
    LeftToFsspecError,
    client_options,
    require_known,
    require_no_bundle,
    require_no_proxy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from obstore.store import ClientConfig

    from kts_source.store.retry import RetryPolicy

_ARGUMENTS: Final = {
    *("anon", "key", "secret", "token", "profile", "endpoint_url", "requester_pays"),
    *("config_kwargs", "client_kwargs", "use_listings_cache"),
}
_CONFIG: Final = {
    *("connect_timeout", "read_timeout", "proxies", "s3"),
    *("max_pool_connections", "response_checksum_validation", "retries"),
}
_OF_PROFILES: Final = ("endpoint_url", "services", "s3")
_OF_ENVIRONMENT: Final = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    # obstore's own name for what s3fs would not see.
    "AWS_SSE_CUSTOMER_KEY_BASE64",
)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
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

    def keys(self) -> Secret[Keys] | None:
        """Those of now; `None`: there are none. Not for several threads at a time."""
        self._given = _keys(self._session)
        return self._given

    def renew(self) -> bool:
        """Whether it has other keys now than it gave last. May ask who gives them."""
        try:
            session = _session(self._profile, gives_credentials=True)
            found = _keys(session)
        except Exception:  # noqa: BLE001  # the refusal is the better error
            return False
        if found is None or found == self._given:
            return False
        self._session = session
        return True


@dataclass(frozen=True, slots=True)
class S3RangeSettings:
    """What opens obstore's store of a bucket.

    Attributes:
        endpoint: URL, with the bucket in its host where addresses are virtual.
        config: Other configuration of `obstore.store.S3Store`.
        client_options: Its client's.
        keys: Access key, secret key and token as given; `None`: the AWS chain, or unsigned.
        chain: Where it gives the credentials; a store is opened alike whichever gave them.
        is_aws: Whether the endpoint is one of AWS's own.
    """

    endpoint: str
    config: Mapping[str, Any]
    client_options: ClientConfig = field(repr=False)  # a proxy's URL may hold a password
    keys: Secret[Keys | None]
    chain: AwsChain | None = field(compare=False)
    is_aws: bool

    def credentials(self) -> Secret[Keys | None]:
        """Those of now, renewed where they must be; a secret `None` for unsigned requests.

        Not for several threads at a time, as botocore's session is not.

        Raises:
            LeftToFsspecError: The chain has none, or they are not obstore's to have.
        """
        if self.chain is None:
            return self._checked(self.keys)
        found = self.chain.keys()
        if found is None:
            raise LeftToFsspecError("there are no credentials")
        return self._checked(found)

    def _checked(self, keys: Secret[Any]) -> Secret[Any]:
        """Refuses tokens where a redirect may lead anywhere: obstore sends them along."""
        given = keys.reveal()
        if not self.is_aws and given is not None and given[2] is not None:
            raise LeftToFsspecError("temporary credentials at an endpoint of one's own")
        return keys

    def renew(self) -> bool:
        """Looks into the AWS chain again; keys that were given as they are stay."""
        return self.chain is not None and self.chain.renew()

    def open(self, credentials: Secret[Keys | None]) -> Any:  # noqa: ANN401
        """A store that tries each request once."""
        from obstore.store import S3Store

        named: dict[str, Any] = {}
        keys = credentials.reveal()
        if keys is not None:
            access, secret, token = keys
            found = {"access_key_id": access, "secret_access_key": secret, "token": token}
            # As a provider: beside keys alone, obstore takes a token of the environment.
            named["credential_provider"] = lambda: {**found, "expires_at": None}
        return S3Store(
            **self.config,
            **named,
            endpoint=self.endpoint,
            skip_signature=keys is None,
            client_options=self.client_options,
            retry_config={"max_retries": 0},
        )


def range_settings(
    bucket: str, arguments: Mapping[str, Any], policy: RetryPolicy
) -> S3RangeSettings:
    """The settings that are to obstore what the arguments are to s3fs. Nothing is asked of a store.

    Args:
        bucket: Its name.
        arguments: See `storage_options.s3_arguments`.
        policy: The deadline of a request.

    Raises:
        LeftToFsspecError: obstore cannot do all of it.
    """
    config, client = arguments["config_kwargs"], arguments["client_kwargs"]
    _require_known(bucket, arguments)
    has_keys = arguments.get("key") is not None
    has_chain = not has_keys and not arguments["anon"]
    session = _session(arguments.get("profile"), gives_credentials=has_chain)
    region = client.get("region_name") or session.get_config_variable("region")
    given = arguments.get("endpoint_url")
    style = (config.get("s3") or {}).get("addressing_style")
    if given is None:
        if region is None or not _REGION.fullmatch(region):
            raise LeftToFsspecError("the region is not given, or has endpoints of its own")
        host = f"s3.{region}.amazonaws.com"
        endpoint = f"https://{bucket}.{host}" if style == "virtual" else f"https://{host}"
    elif style == "virtual":
        raise LeftToFsspecError("virtual addresses of an endpoint of one's own")
    else:
        endpoint = given.rstrip("/")
    require_no_bundle(endpoint, session.get_config_variable("ca_bundle"))
    keys = (arguments["key"], arguments["secret"], arguments.get("token")) if has_keys else None
    of_client = client_options(endpoint, config["connect_timeout"], config["read_timeout"], policy)
    if proxies := config.get("proxies"):
        of_client["proxy_url"] = proxies["https" if endpoint[4] == "s" else "http"]
    settings = S3RangeSettings(
        endpoint,
        {
            "bucket": bucket,
            "region": region or "us-east-1",
            "virtual_hosted_style_request": style == "virtual",
            "request_payer": bool(arguments.get("requester_pays")),
        },
        of_client,
        Secret(keys),
        AwsChain(arguments.get("profile"), session) if has_chain else None,
        given is None,
    )
    if has_keys:
        settings.credentials()  # tells now what is left to s3fs
    return settings


def _require_known(bucket: str, arguments: Mapping[str, Any]) -> None:
    """Refuses what only s3fs knows."""
    if not _BUCKET.fullmatch(bucket) or bucket.endswith("--x-s3"):
        raise LeftToFsspecError("the bucket's name is not an ordinary one")
    config = arguments["config_kwargs"]
    unknown = {
        *(arguments.keys() - _ARGUMENTS),
        *(config.keys() - _CONFIG),
        *(arguments["client_kwargs"].keys() - {"region_name"}),
        *((config.get("s3") or {}).keys() - {"addressing_style"}),
        *((config.get("proxies") or {}).keys() - {"http", "https"}),
    }
    require_known(unknown, ("s3", "s3a"), "AWS_")
    if arguments.get("key") is not None and arguments.get("secret") is None:
        raise LeftToFsspecError("an access key without its secret")
    for name in _OF_ENVIRONMENT:
        if os.environ.get(name):
            raise LeftToFsspecError(f"{name} is set")
    if "proxies" not in config:
        require_no_proxy()


def _keys(session: Any) -> Secret[Keys] | None:  # noqa: ANN401  # botocore's
    found = session.get_credentials()
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
