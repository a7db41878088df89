"""Reads byte ranges of S3 objects into reused memory. botocore signs requests, `HttpClient` sends
them.

Endpoint, region and credentials come from the same sources as for s3fs: its arguments, environment
variables and the AWS configuration files. A response is accepted only if it has the requested
version and exactly the requested range. Its headers are checked before its body is read.
"""

from __future__ import annotations

import html
import http.client
import logging
import os
import re
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.secret import MASK, Secret, scrub
from kts_source.store.http_client import HttpClient, HttpSettings
from kts_source.store.http_exchange import join_header, require_range
from kts_source.store.object_store import check_version
from kts_source.store.range_reader import (
    FsspecOnlyError,
    Range,
    RangeError,
    RangeReader,
    SharedClients,
    require_known,
)
from kts_source.store.request_policy import TransientError, hedged
from segment_format.reused_memory import writable_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.store.object_store import Tally
    from kts_source.store.request_policy import RetryPolicy

Keys: TypeAlias = tuple[str, str, str | None]

# Arguments and configuration of s3fs that this reader supports.
_ARGUMENTS: Final = {
    *("anon", "key", "secret", "token", "profile", "endpoint_url", "requester_pays"),
    *("config_kwargs", "client_kwargs", "use_listings_cache"),
}
_CONFIG: Final = {
    *("connect_timeout", "read_timeout", "proxies", "s3", "retries"),
    *("max_pool_connections", "response_checksum_validation", "request_checksum_calculation"),
}
_UNSUPPORTED_IN_PROFILES: Final = ("endpoint_url", "services", "s3")
_UNSUPPORTED_IN_ENVIRONMENT: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Suffixes of names that are not buckets, such as access points. They need special endpoints or
# signatures.
_RESERVED: Final = ("--x-s3", "--op-s3", "--ol-s3", "--table-s3", "-s3alias", ".mrap")
# botocore would percent-encode other characters of a path, and rejects a query or a fragment.
_ENDPOINT: Final = re.compile(r"[A-Za-z]+://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?")
# botocore signs requests to these regions with another region's name.
_SIGNED_REGION: Final = re.compile(r"(?!.*-global$)[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
_AWS_REGION: Final = re.compile(r"(?!cn-|us-iso|eu-isoe|eusc-)[a-z]{2}(-[a-z]+)+-[0-9]")

_MAX_ERROR_BYTES: Final = 64 << 10
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
# Only the message is used: other elements of an error may contain the request with its token.
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
# Responses that mean another region or host. s3fs looks up the right one.
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_WRONG_REGION: Final = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraint"})

_http_clients: Final = SharedClients[HttpClient]()


class AwsChain:
    """Credentials from the AWS credential chain. botocore renews them before they expire.

    Some sources replace credentials without stating an expiry time, for example a tool that writes
    the shared credentials file. So `renew` reads the chain again after S3 rejected the credentials.
    """

    def __init__(self, profile: str | None, session: Any) -> None:  # noqa: ANN401  # botocore ships no types
        self._profile = profile
        self._session = session
        self._credentials: Any = None

    @property
    def may_wait(self) -> bool:
        """True if the next call of `keys` may wait for a server or a program that issues
        credentials.
        """
        return self._credentials is None or getattr(self._credentials, "refresh_needed", bool)()

    def keys(self) -> Secret[Keys] | None:
        """Returns the current keys; `None` if the chain finds no credentials. Not thread-safe."""
        self._credentials = self._session.get_credentials()
        return _freeze(self._credentials)

    def renew(self, refused: Secret[Keys | None]) -> bool:
        """Reads the credential chain again. Returns whether the chain now has other keys than the
        rejected ones.
        """
        try:
            session = open_session(self._profile, with_credentials=True)
            keys = _freeze(session.get_credentials())
        except Exception:  # noqa: BLE001  # the refusal is the better error
            return False
        if keys is None or keys == refused:
            return False
        self._session = session
        return True


def _freeze(credentials: Any) -> Secret[Keys] | None:  # noqa: ANN401  # botocore's
    if credentials is None:
        return None
    frozen = credentials.get_frozen_credentials()
    return Secret((frozen.access_key, frozen.secret_key, frozen.token))


def open_session(profile: str | None, *, with_credentials: bool) -> Any:  # noqa: ANN401  # botocore ships no types
    """Opens a botocore session. Sends no request.

    The built-in event handlers are needed only to look up credentials, and take 5 ms to register.
    So they are registered only if `with_credentials` is true.

    Raises:
        FsspecOnlyError: The AWS configuration has settings that only s3fs supports.
    """
    import botocore.exceptions
    import botocore.session

    hide_tokens()
    session = botocore.session.Session(profile=profile, include_builtin_handlers=with_credentials)
    try:
        config = session.get_scoped_config()
    except botocore.exceptions.BotoCoreError:
        raise FsspecOnlyError("the AWS profile cannot be read") from None
    for name in _UNSUPPORTED_IN_PROFILES:
        if config.get(name):
            raise FsspecOnlyError(f"the AWS configuration has {name}")
    for name in ("use_fips_endpoint", "use_dualstack_endpoint"):
        if session.get_config_variable(name):
            raise FsspecOnlyError(f"the AWS configuration has {name}")
    return session


# Loggers whose messages contain requests, headers, arguments, or responses of the token service.
_LOGGERS: Final = ("botocore.auth", "botocore.endpoint", "botocore.parsers")
_TOKEN: Final = re.compile(
    r"((?:x-amz-security-token|WebIdentityToken|SessionToken|SecretAccessKey)"
    r"(?:['\"]?\s*[:=]\s*(?:b?['\"])?|>))[^'\"\s,&<}]+",
    re.IGNORECASE,
)


class _HidesTokens(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Masks session tokens in a log record. Always returns True, so that the record is
        logged.
        """
        text = record.getMessage()
        hidden = _TOKEN.sub(rf"\g<1>{MASK}", text)
        if hidden != text:
            record.msg, record.args = hidden, ()
        return True


_hides_tokens: Final = _HidesTokens()


def hide_tokens() -> None:
    """Masks session tokens in botocore's DEBUG messages. Repeated calls have no further effect."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_hides_tokens)


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Address of a bucket, and credentials for its objects.

    Attributes:
        http: Address of the server. With virtual-hosted addressing, its host name begins with the
            bucket's name.
        path: Path in front of the keys, percent-encoded, without a slash at the end.
        region: AWS region that is used to sign requests.
        requester_pays: True if requests have the header for requester-pays buckets.
        keys: Access keys from the options. The secret value is `None` if the AWS chain is used or
            requests are unsigned.
        chain: The AWS credential chain; `None` if the credentials do not come from it.
    """

    http: HttpSettings
    path: str
    region: str
    requester_pays: bool
    keys: Secret[Keys | None]
    chain: AwsChain | None


def s3_settings(bucket: str, arguments: Mapping[str, Any]) -> S3Settings:
    """Returns settings that have the same effect as `arguments`, the arguments of s3fs that
    `s3_arguments` returns.

    Sends no request.

    Raises:
        FsspecOnlyError: Only s3fs supports the arguments.
    """
    _require_supported(bucket, arguments)
    config = arguments["config_kwargs"]
    # s3fs ignores keys for unsigned requests.
    has_keys = not arguments["anon"] and arguments.get("key") is not None
    has_chain = not has_keys and not arguments["anon"]
    session = open_session(arguments.get("profile"), with_credentials=has_chain)
    region = arguments["client_kwargs"].get("region_name", session.get_config_variable("region"))
    if region is not None and not _SIGNED_REGION.fullmatch(str(region)):
        raise FsspecOnlyError("the region is unusual")
    is_virtual = (config.get("s3") or {}).get("addressing_style") == "virtual"
    endpoint = _endpoint(bucket, arguments.get("endpoint_url"), region, is_virtual=is_virtual)
    url_parts = urllib.parse.urlsplit(endpoint)
    is_plain = _ENDPOINT.fullmatch(endpoint) is not None and url_parts.hostname
    if url_parts.scheme not in ("http", "https") or not is_plain:
        raise FsspecOnlyError("the endpoint does not have the form https://host:port")
    keys = (arguments["key"], arguments["secret"], arguments.get("token")) if has_keys else None
    http_settings = HttpSettings(
        f"{url_parts.scheme}://{url_parts.netloc}",
        config["connect_timeout"],
        config["read_timeout"],
        Secret(_proxy(endpoint, config, url_parts.scheme)),
        _ca_file(session) if url_parts.scheme == "https" else None,
    )
    return S3Settings(
        http_settings,
        url_parts.path if is_virtual else f"{url_parts.path}/{bucket}",
        region or "us-east-1",
        bool(arguments.get("requester_pays")),
        Secret(keys),
        AwsChain(arguments.get("profile"), session) if has_chain else None,
    )


def _endpoint(bucket: str, endpoint: str | None, region: str | None, *, is_virtual: bool) -> str:
    if endpoint is not None:
        if is_virtual:
            raise FsspecOnlyError("virtual addressing is used with a custom endpoint")
        return endpoint.rstrip("/")
    if region is None or not _AWS_REGION.fullmatch(region):
        raise FsspecOnlyError("the region is not set, or has special endpoints")
    host = f"s3.{region}.amazonaws.com"
    return f"https://{bucket}.{host}" if is_virtual else f"https://{host}"


def _proxy(endpoint: str, config: Mapping[str, Any], scheme: str) -> str | None:
    """Returns the proxy in the options; without it, the proxy in the environment, unless `NO_PROXY`
    excludes the endpoint. Raises `FsspecOnlyError` if the environment names only a proxy for all
    schemes.
    """
    from botocore.utils import get_environ_proxies

    proxies = config["proxies"] if "proxies" in config else get_environ_proxies(endpoint)
    proxy = (proxies or {}).get(scheme)
    if proxy is None and "proxies" not in config and proxies.get("all"):
        raise FsspecOnlyError("the environment names a proxy for all schemes")
    return proxy


def _ca_file(session: Any) -> str:  # noqa: ANN401  # botocore's
    """Returns the path of the file with the certificates that s3fs trusts."""
    from botocore.httpsession import get_cert_path

    bundle = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    return str(get_cert_path(bundle or True))


def _require_supported(bucket: str, arguments: Mapping[str, Any]) -> None:
    if not _BUCKET.fullmatch(bucket) or bucket.endswith(_RESERVED):
        raise FsspecOnlyError("the bucket's name is unusual")
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
            raise FsspecOnlyError(f"{name} is not a number")
    if (config.get("s3") or {}).get("addressing_style") not in (None, "auto", "path", "virtual"):
        raise FsspecOnlyError("the addressing style is unknown")
    if arguments.get("key") is not None and arguments.get("secret") is None:
        raise FsspecOnlyError("the access key has no secret key")
    for name in _UNSUPPORTED_IN_ENVIRONMENT:
        if os.environ.get(name):
            raise FsspecOnlyError(f"{name} is set")


class S3Reader(RangeReader):
    """Reads byte ranges of S3 objects with `HttpClient`."""

    _name = "tiered-kafka's own client"

    def __init__(
        self, bucket: str, arguments: Secret[Mapping[str, Any]], policy: RetryPolicy, tally: Tally
    ) -> None:
        self._bucket_name = bucket
        self._arguments = arguments
        super().__init__(f"the bucket {bucket}", "s3fs", policy, tally)

    def _prepare(self) -> None:
        self._settings = settings = s3_settings(self._bucket_name, self._arguments.reveal())
        try:
            self._http = _http_clients.get(settings.http, lambda: HttpClient(settings.http))
        except (OSError, ValueError):
            raise FsspecOnlyError(f"{self._name} cannot open the store") from None

    def _client(self) -> Secret[Keys | None]:
        """Returns the current access keys. The secret value is `None` for unsigned requests."""
        chain = self._settings.chain
        if chain is None:
            return self._settings.keys

        def current() -> Secret[Keys] | None:
            with self._lock:
                return chain.keys()

        keys = self._within_deadline(current) if chain.may_wait else current()
        if keys is None:
            raise RangeError(0, "", "no credentials", is_doubtful=True, was_sent=False)
        return Secret(keys.reveal())

    def _renew(self, refused: Secret[Keys | None]) -> bool:
        chain = self._settings.chain
        if chain is None:
            return False
        with self._renewing:
            with self._lock:
                keys = chain.keys()
            return keys != refused or chain.renew(refused)

    def _attempt(self, client: Secret[Keys | None], wanted: Range) -> memoryview:
        def attempt() -> memoryview:
            return self._get(client, wanted)

        after = self._policy.hedge_after_seconds
        if after is None:
            return attempt()
        return hedged(
            attempt, after_seconds=after, on_second=lambda: self._tally.add(requests=1, hedges=1)
        )

    def _get(self, keys: Secret[Keys | None], wanted: Range) -> memoryview:
        settings = self._settings
        key, start, stop, version, uri = wanted
        headers = {"Host": settings.http.host, "Range": f"bytes={start}-{stop - 1}"}
        if version is not None:
            headers["If-Match"] = version
        if settings.requester_pays:
            headers["x-amz-request-payer"] = "requester"
        target = f"{settings.path}/{urllib.parse.quote(key, safe='/~')}"

        def read(answer: http.client.HTTPResponse) -> memoryview:
            if answer.status not in (200, 206):
                raise self._refusal(answer, keys)
            check_version(answer.headers.get("ETag"), version, uri=uri)
            content_range = join_header(answer.headers.get_all("Content-Range", ()))
            require_range(answer.status, content_range, _length(answer), start, stop, uri=uri)
            data = writable_bytes(stop - start)
            size = answer.readinto(data)
            if size != stop - start:
                raise TransientError(f"the response ended after {size} of {stop - start} bytes")
            return data.toreadonly()

        signed = _sign(settings, keys, target, headers)
        seconds = self._policy.request_deadline_seconds
        try:
            return self._http.get(target, signed, read, seconds=seconds)
        except ValueError as error:
            # An untrusted certificate, or a header that cannot be sent. s3fs reports both better.
            # The error's text is omitted, because it may contain the token.
            raise RangeError(0, "", type(error).__name__, is_doubtful=True) from None
        except (OSError, http.client.HTTPException) as error:
            raise RangeError(0, "", self._scrub(f"{type(error).__name__}: {error}", keys)) from None

    def _refusal(self, answer: http.client.HTTPResponse, keys: Secret[Keys | None]) -> RangeError:
        # Not `read`: if a chunk states a size of -1, http.client would read without a limit.
        buffer = bytearray(_MAX_ERROR_BYTES)
        body = buffer[: answer.readinto(buffer)].decode("utf-8", "replace")
        code, message = _CODE.search(body), _MESSAGE.search(body)
        words = (code and code[1], message and html.unescape(message[1]))
        text = " ".join(word for word in (str(answer.status), answer.reason, *words) if word)
        status, name = answer.status, code[1] if code else ""
        # http.client treats an interim response, such as 103, as the response.
        is_doubtful = 100 <= status < 200 or status in _REDIRECTS or name in _WRONG_REGION
        return RangeError(status, name, self._scrub(text, keys), is_doubtful=is_doubtful)

    def _scrub(self, text: str, keys: Secret[Keys | None]) -> str:
        """Masks credentials that do not come from options: keys of the AWS chain, and the user and
        password of a proxy.
        """
        secrets = [word for word in keys.reveal() or () if word]
        return scrub(text, [*self._http.secrets, *secrets])


def _length(answer: http.client.HTTPResponse) -> int | None:
    """Returns the `Content-Length`; `None` if it is missing, contradicts itself, or
    `Transfer-Encoding` marks the end of the body.
    """
    lengths = set(answer.headers.get_all("Content-Length", ()))
    is_certain = len(lengths) == 1 and "Transfer-Encoding" not in answer.headers
    return answer.length if is_certain else None


def _sign(
    settings: S3Settings, keys: Secret[Keys | None], target: str, headers: dict[str, str]
) -> dict[str, str]:
    if (words := keys.reveal()) is None:
        return headers
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("GET", settings.http.url + target, headers=headers)
    S3SigV4Auth(Credentials(*words), "s3", settings.region).add_auth(request)
    return dict(request.headers.items())
