"""Watches the HTTP requests that a cloud's library makes for one call of ours.

gcsfs, adlfs and fsspec's HTTP file system believe any answer of success, follow any listing token,
and partly repeat requests automatically. The hooks of this module run inside these libraries. They
record the answers, so that a read can check their ranges, and stop a request that was made before
in the same call: a listing whose tokens turn in a circle, or a retry that would multiply with ours.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import StoreError
from kts_source.store.http_answer import (
    AS_STORED,
    first_byte,
    joined_header,
    require_range,
)
from kts_source.store.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Names of listing tokens in queries: Google's and Azure's.
_TOKENS: Final = ("pageToken", "marker")


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and headers of an answer that matter for ranges; `None` where a header is missing."""

    status: int
    content_range: str | None
    content_length: int | None


@dataclass(slots=True)
class Exchange:
    """Requests and answers of one call.

    Args:
        uri: Of the object or prefix, for errors.
    """

    uri: str
    answers: list[Answer] = field(default_factory=list)
    _requests: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Watches the requests of the current task and of the tasks that it starts."""
        _current.set(self)

    def on_request(self, url: str, query: Iterable[str], byte_range: str | None) -> None:
        """Refuses a page or a range that was asked for before.

        Raises:
            StoreError: The tokens of a listing turn in a circle.
            TransientError: The library repeats a read.
        """
        is_page = any(name in _TOKENS for name in query)
        if not is_page and byte_range is None:
            return
        request = f"{url}\n{byte_range}"
        if request not in self._requests:
            self._requests.add(request)
        elif is_page:
            raise StoreError(
                "the listing returned a continuation token twice and would never end", uri=self.uri
            )
        else:
            raise TransientError("the answer was not read to its end")

    def require_range(self, start: int, stop: int) -> None:
        """Refuses recorded answers that are not about bytes [start, stop), if there are any.

        Raises:
            TruncatedObjectError: The object ends before `stop`.
            TransientError: The answers are about other bytes.
        """
        # A library that reads a long range in parts gets them in any order.
        answers = sorted(self.answers, key=lambda answer: first_byte(answer.content_range))
        position = start
        for answer in answers:
            end = stop if answer is answers[-1] else position + (answer.content_length or 0)
            content_range, length = answer.content_range, answer.content_length
            require_range(answer.status, content_range, length, position, end, uri=self.uri)
            position = end


_current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)


def aiohttp_tracing() -> Any:  # noqa: ANN401  # aiohttp is imported late
    """Returns a `TraceConfig` that reports requests to the current `Exchange`."""
    import aiohttp

    async def on_start(_session: Any, _context: Any, params: Any) -> None:  # noqa: ANN401
        if (exchange := _current.get()) is not None:
            exchange.on_request(str(params.url), params.url.query, params.headers.get("Range"))

    async def on_end(_session: Any, _context: Any, params: Any) -> None:  # noqa: ANN401
        if (exchange := _current.get()) is not None and params.response.status < 300:
            headers = params.response.headers
            content_range = joined_header(headers.getall("Content-Range", ()))
            exchange.answers.append(
                Answer(params.response.status, content_range, params.response.content_length)
            )

    tracing = aiohttp.TraceConfig()
    tracing.on_request_start.append(on_start)
    tracing.on_request_end.append(on_end)
    return tracing


def watched_session(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments of an aiohttp session that is watched and does not decompress.

    Args:
        arguments: Those that the user asked for.
    """
    return {
        **AS_STORED,
        **arguments,
        "headers": {**AS_STORED["headers"], **(arguments.get("headers") or {})},
        "trace_configs": [*(arguments.get("trace_configs") or ()), aiohttp_tracing()],
    }


class _AzureWatch:
    """A policy of Azure's pipelines. Its library is not imported: it comes along with adlfs."""

    def __init__(self, following: Any) -> None:  # noqa: ANN401  # a policy
        self.next = following

    async def send(self, request: Any) -> Any:  # noqa: ANN401
        exchange, asked = _current.get(), request.http_request
        if exchange is not None:
            byte_range = asked.headers.get("x-ms-range") or asked.headers.get("Range")
            exchange.on_request(asked.url, asked.query, byte_range)
        answer = await self.next.send(request)
        response = answer.http_response
        stream = response.stream_download

        def as_stored(pipeline: Any, **named: Any) -> Any:  # noqa: ANN401
            return stream(pipeline, **{**named, "decompress": False})

        response.stream_download = as_stored
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
    """Makes a client and its children try once, not decompress, and report to the `Exchange`."""
    policies = client._pipeline._impl_policies  # noqa: SLF001  # adlfs takes no policies
    for policy in policies:
        if hasattr(policy, "total_retries"):
            policy.total_retries = 0
    policies.insert(0, _AzureWatch(policies[0]))


def watch_google(filesystem: Any, bucket: str) -> None:  # noqa: ANN401  # gcsfs ships no types
    """Makes gcsfs try once: `_request` retries by a decorator, which is taken off.

    Newer versions ask Google for the kind of a bucket before the first request, by gRPC and with
    retries. An emulator does not answer that, so an `http://` endpoint is not asked.
    """
    once = getattr(type(filesystem)._request, "__wrapped__", None)  # noqa: SLF001  # no option does it
    if once is not None:
        filesystem._request = once.__get__(filesystem)  # noqa: SLF001
    kinds = getattr(filesystem, "_storage_layout_cache", None)
    if kinds is not None and filesystem._location.startswith("http:"):  # noqa: SLF001
        from gcsfs.extended_gcsfs import BucketType

        kinds[bucket] = BucketType.NON_HIERARCHICAL
