"""Ordered read-ahead over many reads, bounded in requests and in bytes."""

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
# What may be read in vain for a consumer that stops soon, as LIMIT does: Spark takes a tenth of a
# second and more to end one. A consumer that wants more never waits for a round trip again.
EARLY_BYTES: Final = 12 << 20
# Bytes in memory come at gigabytes a second, and whoever reads them waits some milliseconds
# for a core and for Python's lock. Slower ones come sooner by several requests at a time.
_NEAR_BYTES_PER_SECOND: Final = 250e6
_NEAR_SECONDS_PER_READ: Final = 1e-3
_PATIENCE_SECONDS: Final = 0.1
_HEAD_START_SECONDS: Final = 0.01
"""By then a request is on its way; other work would have competed with it for the core."""


class Sized(Protocol):
    """A request: whatever the reader understands."""

    @property
    def size(self) -> int:
        """Bytes of the answer."""
        ...


R = TypeVar("R", bound=Sized)


class Fetched(NamedTuple, Generic[R]):
    """An answered request and its bytes."""

    request: R
    data: Data


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """How much is under way beyond what was asked for.

    At any time at most `max_concurrent_requests` are under way, and what is under way or waits for
    the consumer is at most `prefetch_bytes`, or a single larger request. The result handed out last
    is the consumer's and not counted. So memory is bounded by the larger of `prefetch_bytes` and
    one request, plus the request the consumer holds.

    Attributes:
        max_concurrent_requests: Threads, at least one.
        prefetch_bytes: Bytes under way or waiting; 0 reads only what is asked for next.
        slow_start: Whether the first request is read by itself, so that a consumer that wants no
            second one costs no more; and from then on at most `EARLY_BYTES` in all, until the
            consumer asks for more than that.

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
    meanwhile: Callable[[], object] | None = None,
) -> Generator[Fetched[R]]:
    """Reads ahead of the consumer and yields the answers in the order of the requests.

    Nothing is read before the first answer is asked for. Closing the generator drops what was not
    handed out, aborts what is under way and waits until its threads have ended. Exhausting it, an
    error, or forgetting it altogether does the same.

    Args:
        read: Answers one request; called in any thread.
        requests: In the order wanted; taken one by one as room appears, in the consumer's thread.
        read_ahead: How much to have under way.
        near: Whether bytes may lie in memory, as files of this machine do: then the consumer's own
            thread reads them, as long as they come fast. Threads would only copy them into memory
            that no core has at hand.
        meanwhile: What the consumer's thread may do while it waits for the first answer of a slow
            start. It may never be called, and its errors are dropped: it must be what is done
            again, or already done, when needed.

    Raises:
        Exception: What `read` or `requests` raises, in its place in the order.
    """
    wanted = iter(requests)
    handed_out = 0
    if near:
        nearby = yield from _near(read, wanted)
        if nearby is None:
            return
        handed_out = nearby
    if read_ahead.prefetch_bytes:
        with _Queue(read, wanted, read_ahead, handed_out, meanwhile) as queue:
            while (result := queue.next()) is not None:
                yield result
                queue.handed_out += result.request.size  # the consumer wants more than that
                del result
    else:
        # In this thread: planning does it thousands of times, and threads cost more than the work.
        for request in wanted:
            yield Fetched(request, read(request))


def _near(
    read: Callable[[R], Data], requests: Iterator[R]
) -> Generator[Fetched[R], None, int | None]:
    """Reads in this thread until it has waited too long. Returns the bytes handed out, or `None` if
    they were all that was wanted.
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
    """What is under way in threads, in order. Leaving its `with` ends all of it.

    Attributes:
        handed_out: Bytes that the consumer is done with. They limit the read-ahead of a slow start.
    """

    def __init__(
        self,
        read: Callable[[R], Data],
        requests: Iterator[R],
        read_ahead: ReadAhead,
        handed_out: int,
        meanwhile: Callable[[], object] | None,
    ) -> None:
        self.handed_out = handed_out
        self._read = read
        self._requests = requests
        self._next_request: R | None = None
        self._failure: Exception | None = None
        self._settings = read_ahead
        self._meanwhile = meanwhile if read_ahead.slow_start and not handed_out else None
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
        """The next answer; `None` when all were given."""
        # Asked for: at least one request, and what else there is room for.
        self._fill(at_least_one=True)
        if not self._ahead:
            if self._failure is not None:
                raise self._failure
            return None
        request, future = self._ahead.popleft()
        if self._meanwhile is not None:
            if not wait([future], timeout=_HEAD_START_SECONDS).done:
                with contextlib.suppress(Exception):
                    self._meanwhile()
            self._meanwhile = None
        # Who reads in a scope of its own, as an engine's threads do, may be told to stop here.
        with cancelled_by(self._cancellation.cancel):
            result = Fetched(request, future.result())
        self._ahead_bytes -= request.size
        # While the consumer works on this result, what it leaves room for is read.
        self._fill(at_least_one=False, held=request.size)
        return result

    def _fill(self, *, at_least_one: bool, held: int = 0) -> None:
        room = self._settings.prefetch_bytes
        if self._settings.slow_start and self.handed_out < EARLY_BYTES:
            # The first request stands alone.
            room = min(room, EARLY_BYTES - self.handed_out - held) if self.handed_out else -1
        # Many tiny requests must not make a long queue either.
        while (
            len(self._ahead) < _QUEUE_PER_THREAD * self._settings.max_concurrent_requests
            and (request := self._peek()) is not None
            and (self._ahead_bytes + request.size <= room or (at_least_one and not self._ahead))
        ):
            self._next_request = None
            self._ahead.append((request, self._pool.submit(self._answer, request)))
            self._ahead_bytes += request.size

    def _peek(self) -> R | None:
        """The next request, still to be taken. What their iterator raises waits for its turn."""
        if self._next_request is None and self._failure is None:
            try:
                self._next_request = next(self._requests, None)
            except Exception as error:  # noqa: BLE001  # raised again, in its place in the order
                self._failure = error
        return self._next_request

    def _answer(self, request: R) -> Data:
        with self._cancellation.scope():
            return self._read(request)
