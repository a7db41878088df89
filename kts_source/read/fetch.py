"""Reads ranges ahead in order, with a limit on requests and bytes."""

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
# Wasted if the consumer stops early, as with LIMIT, where Spark needs 0.1 s or more to stop a task.
# Enough that a consumer of more rows does not wait for a second round trip.
EARLY_BYTES: Final = 12 << 20
# Bytes in memory arrive at gigabytes per second, plus milliseconds for a core and the GIL. Slower
# sources are faster with several concurrent requests.
_NEAR_BYTES_PER_SECOND: Final = 250e6
_NEAR_SECONDS_PER_READ: Final = 1e-3
_PATIENCE_SECONDS: Final = 0.1
_HEAD_START_SECONDS: Final = 0.01
"""Seconds after which `while_waiting` is called. Until then, the thread that sends the request
needs the core.
"""


class Sized(Protocol):
    """A request."""

    @property
    def size(self) -> int:
        """Bytes of the response."""
        ...


R = TypeVar("R", bound=Sized)


class Fetched(NamedTuple, Generic[R]):
    """A completed request and its bytes."""

    request: R
    data: Data


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Limits of the read-ahead.

    At most `max_concurrent_requests` requests are pending. Pending requests and unconsumed
    responses have at most `prefetch_bytes`, or are a single larger request. The response that the
    consumer holds is not counted. So memory is limited to the larger of `prefetch_bytes` and one
    request, plus the consumer's response.

    Attributes:
        max_concurrent_requests: Number of threads, at least one.
        prefetch_bytes: Bytes of pending requests and unconsumed responses; 0 reads only the next
            request.
        slow_start: True if the first request is read alone, for consumers that may not need a
            second one. After it, at most `EARLY_BYTES` are read until the consumer requests more.

    Raises:
        ValueError: A bound out of range.
    """

    max_concurrent_requests: int
    prefetch_bytes: int
    slow_start: bool

    def __post_init__(self) -> None:
        if self.max_concurrent_requests < 1 or self.prefetch_bytes < 0:
            raise ValueError(
                f"max_concurrent_requests {self.max_concurrent_requests} or prefetch_bytes"
                f" {self.prefetch_bytes} out of range"
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

    Nothing is read before the consumer requests the first response. Closing the generator, an
    error, or garbage collection cancels pending requests and waits until the threads have ended.

    Args:
        read: Returns the bytes of one request; called from any thread.
        requests: Consumed one by one as there is room, in the consumer's thread.
        read_ahead: Limits of the read-ahead.
        near: True if bytes may be in memory, like local files. Then the consumer's thread reads
            them while that is fast; other threads would copy them into another core's cache.
        while_waiting: Called by the consumer's thread while it waits for the first response of a
            slow start. It may not be called, and its errors are ignored, so it must only do
            optional work in advance, such as imports.

    Raises:
        Exception: An error of `read` or `requests`, raised at the position of its request.
    """
    wanted = iter(requests)
    handed_out = 0
    if near:
        nearby = yield from _near(read, wanted)
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
        # No threads: planning does this thousands of times, and threads would cost more than the
        # reads.
        for request in wanted:
            yield Fetched(request, read(request))


def _near(
    read: Callable[[R], Data], requests: Iterator[R]
) -> Generator[Fetched[R], None, int | None]:
    """Reads in this thread until a read takes too long.

    Returns the bytes handed out, or `None` if no requests are left.
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
    """Pending requests in threads, in order. The end of the `with` block cancels them.

    Attributes:
        handed_out: Bytes that the consumer has used; they limit the read-ahead of a slow start.
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
        # Threads of an engine have their own scope, which may be cancelled here.
        with cancelled_by(self._cancellation.cancel):
            result = Fetched(request, future.result())
        self._ahead_bytes -= request.size
        # Continue reading while the consumer works on this result.
        self._fill(at_least_one=False, held=request.size)
        return result

    def _fill(self, *, at_least_one: bool, held: int = 0) -> None:
        room = self._settings.prefetch_bytes
        if self._settings.slow_start and self.handed_out < EARLY_BYTES:
            # The first request is read alone.
            room = min(room, EARLY_BYTES - self.handed_out - held) if self.handed_out else -1
        # The queue stays short even with many small requests.
        while (
            len(self._ahead) < _QUEUE_PER_THREAD * self._settings.max_concurrent_requests
            and (request := self._peek()) is not None
            and (self._ahead_bytes + request.size <= room or (at_least_one and not self._ahead))
        ):
            self._next_request = None
            self._ahead.append((request, self._pool.submit(self._answer, request)))
            self._ahead_bytes += request.size

    def _peek(self) -> R | None:
        """Returns the next request without removing it. Stores an error of the iterator for
        later.
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
