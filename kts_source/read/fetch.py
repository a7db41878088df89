"""Reads ranges in order and ahead of the consumer. Limits the number of requests and bytes."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from kts_source.store.request_policy import Cancellation, cancelled_by

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future

    from kts_source.store.object_store import Data


_QUEUE_PER_THREAD = 4
# These bytes are wasted if the consumer stops early: after a LIMIT is satisfied, Spark needs 0.1 s
# or more to stop a task. They are enough for a consumer without a LIMIT, which would otherwise wait
# for a second round trip.
EARLY_BYTES: Final = 12 << 20
# Bytes in the page cache are read at gigabytes per second, after up to milliseconds of waiting for
# a core and the GIL. A slower source is read faster with several concurrent requests.
_NEAR_BYTES_PER_SECOND: Final = 250e6
_NEAR_SECONDS_PER_READ: Final = 1e-3
_PATIENCE_SECONDS: Final = 0.1
_HEAD_START_SECONDS: Final = 0.01
"""Seconds after which `while_waiting` is called. Until then, the thread that sends the request
needs the CPU.
"""


class SizedRequest(Protocol):
    """A request for bytes."""

    @property
    def size(self) -> int:
        """Number of bytes in the response."""
        ...


R = TypeVar("R", bound=SizedRequest)


class Fetched(NamedTuple, Generic[R]):
    """A completed request and the bytes of its response."""

    request: R
    data: Data


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Limits of the read-ahead.

    At most `max_concurrent_requests` requests run at a time. Requested and unconsumed responses
    together have at most `prefetch_bytes` bytes, or are a single larger response. The response that
    the consumer is using is not counted.

    Attributes:
        max_concurrent_requests: Number of threads that send requests, at least one.
        prefetch_bytes: Limit on the bytes of requested and unconsumed responses. 0 turns read-ahead
            off: the consumer's thread reads each response when it is needed.
        slow_start: True to send the first request alone, because the consumer may need no other
            response. After the first response, at most `EARLY_BYTES` are read ahead until the
            consumer has used that many bytes.
    """

    max_concurrent_requests: int
    prefetch_bytes: int
    slow_start: bool

    def __post_init__(self) -> None:
        if self.max_concurrent_requests < 1 or self.prefetch_bytes < 0:
            raise ValueError(
                f"max_concurrent_requests must be at least 1, but is"
                f" {self.max_concurrent_requests}; prefetch_bytes must be at least 0, but is"
                f" {self.prefetch_bytes}"
            )


NO_READ_AHEAD: Final = ReadAhead(1, 0, slow_start=False)


def fetch_ranges(
    read: Callable[[R], Data],
    requests: Iterable[R],
    read_ahead: ReadAhead,
    *,
    near: bool = False,
    while_waiting: Callable[[], object] | None = None,
) -> Generator[Fetched[R]]:
    """Reads ahead of the consumer and yields the responses in the order of the requests.

    Nothing is read before the consumer requests the first response. When the generator is closed,
    garbage-collected or raises an error, it cancels pending requests and waits until its threads
    have ended.

    Args:
        read: Returns the bytes of one request; called from any thread.
        requests: The requests. The consumer's thread takes the next one when the limits of the
            read-ahead allow it.
        read_ahead: Limits of the read-ahead.
        near: True if the bytes may already be in memory, as with local files. Then the consumer's
            thread reads the bytes as long as reads are fast, because another thread would load them
            into the cache of another core.
        while_waiting: Called in the consumer's thread while it waits for the first response of a
            slow start. The call may be omitted, and its errors are ignored. So use it only for
            optional work, such as early imports.

    Raises:
        Exception: An error of `read` or `requests`, raised in place of the response to the failed
            request.
    """
    wanted = iter(requests)
    handed_out = 0
    if near:
        nearby = yield from _read_in_calling_thread(read, wanted)
        if nearby is None:
            return
        handed_out = nearby
    if read_ahead.prefetch_bytes:
        with _Queue(read, wanted, read_ahead, handed_out, while_waiting) as queue:
            while (result := queue.next()) is not None:
                yield result
                queue.handed_out += result.request.size  # the consumer has used these bytes
                del result
    else:
        # Use no threads here: planning makes thousands of such reads, and threads would cost more
        # time than the reads.
        for request in wanted:
            yield Fetched(request, read(request))


def _read_in_calling_thread(
    read: Callable[[R], Data], requests: Iterator[R]
) -> Generator[Fetched[R], None, int | None]:
    """Reads responses in the caller's thread and yields them, until the reads take too long.
    Returns the number of yielded bytes; `None` if no requests are left.
    """
    handed_out, patience = 0, _PATIENCE_SECONDS
    while patience > 0:
        request = next(requests, None)
        if request is None:
            return None
        began = time.perf_counter()
        data = read(request)
        allowed = _NEAR_SECONDS_PER_READ + request.size / _NEAR_BYTES_PER_SECOND
        patience = min(patience + allowed - (time.perf_counter() - began), _PATIENCE_SECONDS)
        handed_out += request.size
        yield Fetched(request, data)
        del data
    return handed_out


class _Queue(Generic[R]):
    """Pending requests and unconsumed responses, in the order of the requests. Threads send the
    requests. Leaving the `with` block cancels pending requests.

    Attributes:
        handed_out: Bytes that the consumer has used. They limit the read-ahead of a slow start.
    """

    def __init__(
        self,
        read: Callable[[R], Data],
        requests: Iterator[R],
        read_ahead: ReadAhead,
        handed_out: int,
        while_waiting: Callable[[], object] | None,
    ) -> None:
        self.handed_out = handed_out
        self._read = read
        self._requests = requests
        self._next_request: R | None = None
        self._failure: Exception | None = None
        self._settings = read_ahead
        self._while_waiting = while_waiting if read_ahead.slow_start and not handed_out else None
        self._cancellation = Cancellation()
        self._pool = ThreadPoolExecutor(
            read_ahead.max_concurrent_requests, thread_name_prefix="kts-fetch"
        )
        self._ahead: deque[tuple[R, Future[Data]]] = deque()
        self._ahead_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._cancellation.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def next(self) -> Fetched[R] | None:
        """Returns the next response; `None` after the last one."""
        self._fill(at_least_one=True)
        if not self._ahead:
            if self._failure is not None:
                raise self._failure
            return None
        request, future = self._ahead.popleft()
        if self._while_waiting is not None:
            if not wait([future], timeout=_HEAD_START_SECONDS).done:
                with contextlib.suppress(Exception):
                    self._while_waiting()
            self._while_waiting = None
        # If the calling thread's own scope is cancelled, cancel the pending requests.
        with cancelled_by(self._cancellation.cancel):
            result = Fetched(request, future.result())
        self._ahead_bytes -= request.size
        # Submit further requests, which run while the consumer works on this result.
        self._fill(at_least_one=False, held=request.size)
        return result

    def _fill(self, *, at_least_one: bool, held: int = 0) -> None:
        room = self._settings.prefetch_bytes
        if self._settings.slow_start and self.handed_out < EARLY_BYTES:
            # Send the first request alone.
            room = min(room, EARLY_BYTES - self.handed_out - held) if self.handed_out else -1
        # The limit on the number of requests keeps the queue short if requests are small.
        while (
            len(self._ahead) < _QUEUE_PER_THREAD * self._settings.max_concurrent_requests
            and (request := self._peek()) is not None
            and (self._ahead_bytes + request.size <= room or (at_least_one and not self._ahead))
        ):
            self._next_request = None
            self._ahead.append((request, self._pool.submit(self._answer, request)))
            self._ahead_bytes += request.size

    def _peek(self) -> R | None:
        """Returns the next request without removing it. If the iterator of requests raises an
        error, stores the error; `next` raises it after the earlier responses.
        """
        if self._next_request is None and self._failure is None:
            try:
                self._next_request = next(self._requests, None)
            except Exception as error:  # noqa: BLE001  # raised again in its turn
                self._failure = error
        return self._next_request

    def _answer(self, request: R) -> Data:
        with self._cancellation.scope():
            return self._read(request)
