"""Ordered read-ahead over many reads, bounded in requests and in bytes."""

from __future__ import annotations

import contextlib
import resource
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, Self, TypeVar

from kts_source.store.cancel import Cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future
    from types import TracebackType

    from kts_source.store.object_store import Data


_QUEUE_PER_THREAD = 4
# What a consumer that stops soon may cost, a LIMIT above all: Spark takes a tenth of a second and
# more to end one. Whoever wants more than that reads on, and waits for no round trip again.
EARLY_BYTES: Final = 12 << 20
# What lies in memory is copied without giving the core away, or nearly so; for a few MiB of a disk
# or a network that happens ten times and more.
_OF_THREAD: Final[int | None] = getattr(resource, "RUSAGE_THREAD", None)
_FEW_WAITS = 8
_WAITS_PER_READ = 2
_HEAD_START_SECONDS: Final = 0.01
"""A request is on its way by then. Other work before that would compete with it for the core."""


class Sized(Protocol):
    """A request: whatever the reader understands, and how many bytes its answer has."""

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
        slow_start: Reads the first request by itself, and ahead only once the second result is
            asked for, so that a consumer that stops early costs one request; then `EARLY_BYTES` in
            all until more than that is asked for, so that one that stops soon costs little.

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


class FetchedRanges(Generic[R]):
    """Iterator over `Fetched`, in the order of the requests. Close it, or use it in a `with`.

    Closing drops what was not handed out, aborts what is under way and waits until its threads have
    ended. Exhausting the iterator, an error, or forgetting it altogether does the same.
    """

    def __init__(self, results: Generator[Fetched[R]]) -> None:
        self._results = results

    def __iter__(self) -> Iterator[Fetched[R]]:
        return self

    def __next__(self) -> Fetched[R]:
        return next(self._results)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the fetch. May be called again."""
        self._results.close()


def fetch_ranges(
    read: Callable[[R], Data],
    requests: Iterable[R],
    read_ahead: ReadAhead,
    *,
    near: bool = False,
    meanwhile: Callable[[], object] | None = None,
) -> FetchedRanges[R]:
    """Reads ahead of the consumer and hands the answers on in order.

    Args:
        read: Answers one request; called in any thread.
        requests: In the order wanted; taken one by one as room appears, in the consumer's thread.
        read_ahead: How much to have under way.
        near: Whether bytes may lie in memory, as files of this machine do: then the consumer's own
            thread reads them, as long as it need not wait for them. Threads would only copy them
            into memory that no core has at hand.
        meanwhile: What the consumer's thread may do while it waits for the first answer of a slow
            start. It may never be called, and its errors are dropped: it must be what is done
            again, or already done, when needed.

    Returns:
        The results. Nothing is read before the first is asked for. The error of a request is raised
        in its place in the order, and ends the fetch.
    """
    wanted = iter(requests)
    if near and _OF_THREAD is not None:
        return FetchedRanges(_near(read, wanted, read_ahead))
    if not read_ahead.prefetch_bytes:
        return FetchedRanges(_one_by_one(read, wanted))
    return FetchedRanges(_ahead(read, wanted, read_ahead, meanwhile=meanwhile))


def _one_by_one(read: Callable[[R], Data], requests: Iterator[R]) -> Generator[Fetched[R]]:
    # In this thread: planning does it thousands of times, and threads cost more than the work.
    for request in requests:
        yield Fetched(request, read(request))


def _near(
    read: Callable[[R], Data], requests: Iterator[R], read_ahead: ReadAhead
) -> Generator[Fetched[R]]:
    """In this thread until it has waited too often; then as from anywhere else."""
    assert _OF_THREAD is not None
    handed_out = reads = waits = 0
    while waits <= _FEW_WAITS + _WAITS_PER_READ * reads:
        request = next(requests, None)
        if request is None:
            return
        before = resource.getrusage(_OF_THREAD).ru_nvcsw
        data = read(request)
        waits += resource.getrusage(_OF_THREAD).ru_nvcsw - before
        reads += 1
        handed_out += request.size
        yield Fetched(request, data)
        del data
    if read_ahead.prefetch_bytes:
        yield from _ahead(read, requests, read_ahead, handed_out=handed_out)
    else:
        yield from _one_by_one(read, requests)


def _ahead(
    read: Callable[[R], Data],
    requests: Iterator[R],
    read_ahead: ReadAhead,
    *,
    handed_out: int = 0,
    meanwhile: Callable[[], object] | None = None,
) -> Generator[Fetched[R]]:
    """By threads, ahead of the consumer; `handed_out` bytes went to it before."""
    with _Queue(read, requests, read_ahead, handed_out) as queue:
        if read_ahead.slow_start and not handed_out:
            first = queue.first(meanwhile)
            if first is None:
                return
            yield first
            queue.handed_out += first.request.size
            del first
        while (result := queue.next()) is not None:
            yield result
            queue.handed_out += result.request.size  # the consumer wants more than that
            del result


class _Queue(Generic[R]):
    """What is under way, in order. Leaving its `with` ends all of it."""

    def __init__(
        self,
        read: Callable[[R], Data],
        requests: Iterator[R],
        read_ahead: ReadAhead,
        handed_out: int,
    ) -> None:
        self.handed_out = handed_out  # bytes; they bound the read-ahead of a slow start
        self._read = read
        self._settings = read_ahead
        self._source = _Source(requests)
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

    def first(self, meanwhile: Callable[[], object] | None) -> Fetched[R] | None:
        """The first answer, with nothing read ahead of it; `None` where nothing is wanted."""
        if self._source.next_size is None:
            self._source.raise_failure()
            return None
        self._submit()
        request, future = self._ahead.popleft()
        self._ahead_bytes -= request.size
        if meanwhile is not None and not wait([future], timeout=_HEAD_START_SECONDS).done:
            with contextlib.suppress(Exception):
                meanwhile()
        return Fetched(request, future.result())

    def next(self) -> Fetched[R] | None:
        """The next answer; `None` when all were given."""
        # Asked for: at least one request, and what else there is room for.
        self._fill(at_least_one=True)
        if not self._ahead:
            self._source.raise_failure()
            return None
        request, future = self._ahead.popleft()
        result = Fetched(request, future.result())
        self._ahead_bytes -= request.size
        # While the consumer works on this result, what it leaves room for is read.
        self._fill(at_least_one=False, held=request.size)
        return result

    def _fill(self, *, at_least_one: bool, held: int = 0) -> None:
        room = self._settings.prefetch_bytes
        if self._settings.slow_start and self.handed_out < EARLY_BYTES:
            room = min(room, EARLY_BYTES - self.handed_out - held)
        # Many tiny requests must not make a long queue either.
        while (
            len(self._ahead) < _QUEUE_PER_THREAD * self._settings.max_concurrent_requests
            and (size := self._source.next_size) is not None
            and (self._ahead_bytes + size <= room or (at_least_one and not self._ahead))
        ):
            self._submit()

    def _submit(self) -> None:
        request = self._source.take()
        self._ahead.append((request, self._pool.submit(self._answer, request)))
        self._ahead_bytes += request.size

    def _answer(self, request: R) -> Data:
        with self._cancellation.scope():
            return self._read(request)


class _Source(Generic[R]):
    """The requests, one looked at in advance once its size is asked for; what their iterator raises
    waits for its turn.
    """

    def __init__(self, requests: Iterator[R]) -> None:
        self._requests = requests
        self._next: R | None = None
        self._failure: Exception | None = None

    @property
    def next_size(self) -> int | None:
        if self._next is None and self._failure is None:
            try:
                self._next = next(self._requests, None)
            except Exception as error:  # noqa: BLE001  # raised again, in its place in the order
                self._failure = error
        return None if self._next is None else self._next.size

    def take(self) -> R:
        assert self._next is not None
        taken, self._next = self._next, None
        return taken

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
