"""Checks the status, byte range and length of HTTP responses before their bytes are used.

gcsfs, adlfs and fsspec's HTTP file system do not check responses, follow any continuation token of
a listing, and repeat some requests automatically. Hooks in these libraries record the responses of
a call in an `Exchange`, so that reads can check their ranges. The hooks also reject repeated
requests: retries by the library, and a second request of a listing page because the tokens form a
cycle.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    TruncatedObjectError,
)
from kts_source.store.object_store import beyond_end
from kts_source.store.request_policy import TransientError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiohttp import ClientResponse

AS_STORED: Final[dict[str, Any]] = {
    "auto_decompress": False,
    "headers": {"Accept-Encoding": "identity"},
}
"""Arguments of an aiohttp session that returns bytes as stored, because ranges refer to stored
bytes.
"""

# Range units are case-insensitive (RFC 9110, 14.1).
_CONTENT_RANGE: Final = re.compile(
    r"bytes +(?P<first>\d+)-(?P<last>\d+)/(?P<size>\d+|\*)", re.IGNORECASE | re.ASCII
)
# Query parameters with the page token in Google's and Azure's listings.
_TOKENS: Final = ("pageToken", "marker")


def error_of_status(
    status: int, text: str, *, uri: str, wanted: str
) -> StoreError | TransientError:
    """Returns the error for an HTTP status. Status 0 means that no response was received.

    `text` describes the failure without credentials, and `wanted` the requested range and version.
    """
    match status:
        case 404:
            return ObjectNotFoundError("no such object", uri=uri)
        case 401 | 403:
            return access_denied(text, uri=uri)
        case 412:
            return ObjectChangedError(f"the object changed: {wanted} was planned", uri=uri)
        case 416:
            return TruncatedObjectError(f"the object ends before {wanted}", uri=uri)
    if status == 429 or (status >= 500 and status != 501):
        return TransientError(text)
    return StoreError(f"the store failed: {text}", uri=uri)


def access_denied(text: str, *, uri: str) -> AccessDeniedError:
    """Returns the error if a store refuses a request or the credentials. `text` describes the
    failure.
    """
    text = text.rstrip(". ")
    if "expire" not in text.lower():  # the text of expired credentials contains advice
        text += ". Check the credentials, their permissions and the clock of this machine"
    return AccessDeniedError(f"access denied: {text}", uri=uri)


def require_range(
    status: int,
    content_range: str | None,
    content_length: object,
    start: int,
    stop: int,
    *,
    uri: str,
) -> None:
    """Checks with the headers of a response that the body has exactly bytes [start, stop) of the
    object.

    Raises:
        TruncatedObjectError: The object ends before `stop`.
        TransientError: The response has another range or length, or ignores the range.
    """
    length = require_length(content_length)
    if content_range is None:
        if status == 206:
            raise TransientError("the response has no valid Content-Range")
        if start == 0 and length == stop:
            return  # the whole object was requested
        raise TransientError(f"the server ignored the requested range and sent {length} bytes")
    first, last, size = _parse_range(content_range)
    if first != start or last >= stop:
        raise TransientError(
            f"range [{start}, {stop}) was requested, but the response has range"
            f" [{first}, {last + 1})"
        )
    if last < stop - 1:
        if size == last + 1:
            raise beyond_end(last + 1, start, stop, uri=uri)
        raise TransientError(
            f"range [{start}, {stop}) was requested, but the response has only"
            f" [{first}, {last + 1})"
        )
    if length != stop - start:
        raise TransientError(
            f"the response has {length} bytes, but [{start}, {stop}) was requested"
        )


def _parse_range(content_range: str) -> tuple[int, int, int | None]:
    """Returns the first byte, the last byte (inclusive) and the object's size in a `Content-Range`.
    The size is `None` if the header has `*` instead.
    """
    match = _CONTENT_RANGE.fullmatch(content_range.strip())
    if match is None:
        raise TransientError(f"the Content-Range {content_range[:100]!r} cannot be read")
    first, last = int(match["first"]), int(match["last"])
    size = None if match["size"] == "*" else int(match["size"])
    if first > last + 1 or (size is not None and last >= size):
        raise TransientError(f"the Content-Range {content_range[:100]!r} contradicts itself")
    return first, last, size


def require_length(content_length: object) -> int:
    """Returns a `Content-Length` as a number. Raises `TransientError` if it is missing or
    invalid.
    """
    if not isinstance(content_length, int):
        raise TransientError("the response has no valid Content-Length")
    return content_length


def object_size(content_range: str | None) -> int:
    """Returns the object's size from a `Content-Range`. Raises `TransientError` if the header does
    not contain the size.
    """
    size = None if content_range is None else _parse_range(content_range)[2]
    if size is None:
        raise TransientError("the response does not state the object's size")
    return size


def join_header(values: Iterable[str]) -> str | None:
    """Returns the value of a header that may be repeated. Different values are joined by commas."""
    return ", ".join(sorted(set(values))) or None


async def read_range(answer: ClientResponse, start: int, stop: int, *, uri: str) -> bytes:
    """Returns bytes [start, stop) of an object from a successful response. Raises the errors of
    `require_range` if the response has other bytes.

    The aiohttp session must not decompress responses (see `AS_STORED`).
    """
    content_range = join_header(answer.headers.getall("Content-Range", ()))
    require_range(answer.status, content_range, answer.content_length, start, stop, uri=uri)
    return await answer.read()


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and range headers of a response; a missing header is `None`."""

    status: int
    content_range: str | None
    content_length: int | None


@dataclass(slots=True)
class Exchange:
    """Records the requests and responses of one call of a client library.

    Args:
        uri: URI of the object or of the listed prefix, for errors.
    """

    uri: str
    answers: list[Answer] = field(default_factory=list)
    _requests: set[str] = field(default_factory=set)

    def start(self) -> None:
        """Starts recording the requests of the current asyncio task and of its child tasks."""
        _current.set(self)

    def check_request(self, url: str, query: Iterable[str], byte_range: str | None) -> None:
        """Raises `StoreError` if the same page of a listing is requested a second time. Raises
        `TransientError` if the same range of an object is requested a second time.
        """
        is_page = any(name in _TOKENS for name in query)
        if not is_page and byte_range is None:
            return
        request = f"{url}\n{byte_range}"
        if request not in self._requests:
            self._requests.add(request)
        elif is_page:
            raise StoreError(
                "the listing returned a continuation token twice, so it would never end",
                uri=self.uri,
            )
        else:
            raise TransientError("the response was not read completely")

    def require_range(self, start: int, stop: int) -> None:
        """Checks that the recorded responses together are exactly bytes [start, stop). Raises the
        same errors as `http_exchange.require_range`, and does nothing if no response was recorded.
        """

        def first_byte(answer: Answer) -> int:
            return 0 if answer.content_range is None else _parse_range(answer.content_range)[0]

        # A library may split a range into several requests, whose responses arrive in any order.
        answers = sorted(self.answers, key=first_byte)
        position = start
        for answer in answers:
            end = stop if answer is answers[-1] else position + (answer.content_length or 0)
            content_range, length = answer.content_range, answer.content_length
            require_range(answer.status, content_range, length, position, end, uri=self.uri)
            position = end


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def watched_session(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments of an aiohttp session that also records requests in the current `Exchange`.

    The session does not decompress responses.
    """
    import aiohttp

    async def on_start(_session: Any, _context: Any, params: Any) -> None:  # noqa: ANN401
        if (exchange := _current.get()) is not None:
            exchange.check_request(str(params.url), params.url.query, params.headers.get("Range"))

    async def on_end(_session: Any, _context: Any, params: Any) -> None:  # noqa: ANN401
        response = params.response
        if (exchange := _current.get()) is not None and response.status < 300:
            content_range = join_header(response.headers.getall("Content-Range", ()))
            exchange.answers.append(Answer(response.status, content_range, response.content_length))

    tracing = aiohttp.TraceConfig()
    tracing.on_request_start.append(on_start)
    tracing.on_request_end.append(on_end)
    return {
        **AS_STORED,
        **arguments,
        "headers": {**AS_STORED["headers"], **(arguments.get("headers") or {})},
        "trace_configs": [*(arguments.get("trace_configs") or ()), tracing],
    }


class _AzureWatch:
    """Policy in a pipeline of Azure's SDK: checks each request, and records each response in the
    current `Exchange`. Not a subclass of the SDK's policy class, so that Azure's library need not
    be imported.
    """

    def __init__(self, next_policy: Any) -> None:  # noqa: ANN401
        self.next = next_policy

    async def send(self, request: Any) -> Any:  # noqa: ANN401
        exchange, http_request = _current.get(), request.http_request
        if exchange is not None:
            headers = http_request.headers
            byte_range = headers.get("x-ms-range") or headers.get("Range")
            exchange.check_request(http_request.url, http_request.query, byte_range)
        answer = await self.next.send(request)
        response = answer.http_response
        stream = response.stream_download

        def stream_as_stored(pipeline: Any, **named: Any) -> Any:  # noqa: ANN401
            return stream(pipeline, **{**named, "decompress": False})

        response.stream_download = stream_as_stored
        if exchange is not None and response.status_code < 300:
            length = response.headers.get("Content-Length", "")
            exchange.answers.append(
                Answer(
                    response.status_code,
                    response.headers.get("Content-Range"),
                    int(length) if length.isdecimal() else None,
                )
            )
        return answer


def watch_azure(client: Any) -> None:  # noqa: ANN401  # Azure's `BlobServiceClient`
    """Changes a client of Azure's SDK: it sends each request only once, does not decompress
    responses, and records the responses in the current `Exchange`.
    """
    policies = client._pipeline._impl_policies  # noqa: SLF001  # adlfs takes no policies
    for policy in policies:
        if hasattr(policy, "total_retries"):
            policy.total_retries = 0
    policies.insert(0, _AzureWatch(policies[0]))


def watch_google(filesystem: Any, bucket: str) -> None:  # noqa: ANN401  # gcsfs ships no types
    """Makes gcsfs send each request only once, by removing the retrying decorator of `_request`.

    Newer versions of gcsfs first ask Google for the kind of a bucket, through gRPC and with
    retries. Emulators do not support that request, so it is disabled for `http://` endpoints.
    """
    once = getattr(type(filesystem)._request, "__wrapped__", None)  # noqa: SLF001  # no option does it
    if once is not None:
        filesystem._request = once.__get__(filesystem)  # noqa: SLF001
    kinds = getattr(filesystem, "_storage_layout_cache", None)
    if kinds is not None and filesystem._location.startswith("http:"):  # noqa: SLF001
        from gcsfs.extended_gcsfs import BucketType

        kinds[bucket] = BucketType.NON_HIERARCHICAL
