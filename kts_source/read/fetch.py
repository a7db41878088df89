"""Ordered read-ahead over byte ranges of many objects, bounded in requests and in bytes."""

from __future__ import annotations

import resource
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kts_source.store.cancel import Cancellation
from kts_source.store.meanwhile import doing_meanwhile

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future
    from types import TracebackType

    from kts_source.read.coalesce import ByteRange
    from kts_source.store.object_store import Data, ObjectStore


_QUEUE_PER_THREAD = 4
# What a consumer that stops soon may cost, a LIMIT above all: Spark takes a tenth of a second and
# more to end one. Whoever wants more than that reads on, and waits for no round trip again.
EARLY_BYTES: Final = 12 << 20
# What lies in memory is copied without giving the core away, or nearly so; for a few MiB of a disk
# or a network that happens ten times and more.
_OF_THREAD: Final[int | None] = getattr(resource, "RUSAGE_THREAD", None)
_FEW_WAITS = 8
_WAITS_PER_READ = 2


class FetchRequest(NamedTuple):
    """One ranged read.

    Attributes:
        key: The object.
        version: The version its bytes must belong to; None takes whatever is there.
        byte_range: What to read.
    """

    key: str
    version: str | None
    byte_range: ByteRange


class Fetched(NamedTuple):
    """An answered request and its bytes, as many as the range has."""

    request: FetchRequest
    data: Data


class FetchedRanges:
    """Iterator over `Fetched`, in the order of the requests. Close it, or use it in a `with`.

    Closing drops what was not handed out, aborts what is under way and waits until its threads have
    ended. Exhausting the iterator, an error, or forgetting it altogether does the same.
    """

    def __init__(self, results: Generator[Fetched]) -> None:
        self._results = results

    def __iter__(self) -> Iterator[Fetched]:
        return self

    def __next__(self) -> Fetched:
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
    store: ObjectStore,
    requests: Iterable[tuple[str, str | None, ByteRange]],
    *,
    max_concurrent_requests: int,
    prefetch_bytes: int,
    slow_start: bool = False,
    near: bool = False,
    on_read: Callable[[float], object] = lambda _seconds: None,
    meanwhile: Callable[[], object] | None = None,
) -> FetchedRanges:
    """Reads ranges ahead of the consumer and hands them on in order.

    At any time at most `max_concurrent_requests` are under way, and what is under way or waits for
    the consumer is at most `prefetch_bytes`, or a single larger request. The result handed out last
    is the consumer's and not counted. So memory is bounded by the larger of `prefetch_bytes` and
    one request, plus the request the consumer holds.

    Args:
        store: Where to read.
        requests: (key, version, range) in the order wanted; taken one by one as room appears, in
            the consumer's thread.
        max_concurrent_requests: Threads, at least one.
        prefetch_bytes: Bytes of read-ahead; zero reads only what is asked for next.
        slow_start: Reads the first request by itself, and ahead only once the second result is
            asked for, so that a consumer that stops early costs one request; then `EARLY_BYTES` in
            all until more than that is asked for, so that one that stops soon costs little.
        near: Whether bytes may lie in memory, as files of this machine do: then the consumer's own
            thread reads them, as long as it need not wait for them. Threads would only copy them
            into memory that no core has at hand.
        on_read: Called in the reading thread with the seconds that a request took.
        meanwhile: What the consumer's thread may do while it waits for the first answer of a slow
            start, see `doing_meanwhile`.

    Returns:
        The results. Nothing is read before the first is asked for. The error of a request is raised
        in its place in the order, and ends the fetch.

    Raises:
        ValueError: A bound out of range.
    """
    if max_concurrent_requests < 1 or prefetch_bytes < 0:
        raise ValueError(
            f"max_concurrent_requests {max_concurrent_requests} or prefetch_bytes "
            f"{prefetch_bytes} out of range"
        )
    wanted = (FetchRequest(*request) for request in requests)
    return FetchedRanges(
        _results(
            _Timed(store, on_read),
            wanted,
            max_concurrent_requests,
            prefetch_bytes,
            slow_start,
            near,
            meanwhile,
        )
    )


class _Timed(NamedTuple):
    """A store, and who wants to know how long its reads take."""

    store: ObjectStore
    on_read: Callable[[float], object]

    def read(self, request: FetchRequest) -> Data:
        span = request.byte_range
        began = time.perf_counter()
        try:
            return self.store.get_range(request.key, span.start, span.stop, version=request.version)
        finally:
            self.on_read(time.perf_counter() - began)


def _results(
    store: _Timed,
    requests: Iterator[FetchRequest],
    max_concurrent_requests: int,
    prefetch_bytes: int,
    slow_start: bool,
    near: bool,
    meanwhile: Callable[[], object] | None,
) -> Generator[Fetched]:
    handed_out = 0  # bytes; they bound the read-ahead of a slow start
    if near and _OF_THREAD is not None:
        reads = waits = 0
        while waits <= _FEW_WAITS + _WAITS_PER_READ * reads:
            request = next(requests, None)
            if request is None:
                return
            before = resource.getrusage(_OF_THREAD).ru_nvcsw
            data = store.read(request)
            waits += resource.getrusage(_OF_THREAD).ru_nvcsw - before
            reads += 1
            handed_out += request.byte_range.size
            yield Fetched(request, data)
            del data
    elif slow_start:
        first = next(requests, None)
        if first is None:
            return
        with doing_meanwhile(meanwhile):
            data = store.read(first)
        handed_out = first.byte_range.size
        yield Fetched(first, data)
        del data
    if not prefetch_bytes:
        # One at a time: planning does it thousands of times, and threads cost more than the work.
        for request in requests:
            yield Fetched(request, store.read(request))
        return
    cancellation = Cancellation()

    def read(request: FetchRequest) -> Data:
        with cancellation.scope():
            return store.read(request)

    pool = ThreadPoolExecutor(max_concurrent_requests, thread_name_prefix="kts-fetch")
    source = _Source(requests)
    ahead: deque[tuple[FetchRequest, Future[Data]]] = deque()
    ahead_bytes = 0

    def fill(*, at_least_one: bool, held: int = 0) -> None:
        nonlocal ahead_bytes
        early = slow_start and handed_out < EARLY_BYTES
        room = min(prefetch_bytes, EARLY_BYTES - handed_out - held) if early else prefetch_bytes
        # Many tiny ranges must not make a long queue either.
        while (
            len(ahead) < _QUEUE_PER_THREAD * max_concurrent_requests
            and (size := source.next_size) is not None
            and (ahead_bytes + size <= room or (at_least_one and not ahead))
        ):
            request = source.take()
            ahead.append((request, pool.submit(read, request)))
            ahead_bytes += size

    try:
        while True:
            # Asked for: at least one request, and what else there is room for.
            fill(at_least_one=True)
            if not ahead:
                source.raise_failure()
                return
            request, future = ahead.popleft()
            result = Fetched(request, future.result())
            ahead_bytes -= request.byte_range.size
            # While the consumer works on this result, what it leaves room for is read.
            fill(at_least_one=False, held=request.byte_range.size)
            # Only the consumer holds the bytes from here on.
            del future
            yield result
            del result
            handed_out += request.byte_range.size  # it wants more than that
    finally:
        cancellation.cancel()
        pool.shutdown(wait=True, cancel_futures=True)


class _Source:
    """The requests, one looked at in advance; what their iterator raises waits for its turn."""

    def __init__(self, requests: Iterator[FetchRequest]) -> None:
        self._requests = requests
        self._next: FetchRequest | None = None
        self._failure: Exception | None = None
        self._advance()

    @property
    def next_size(self) -> int | None:
        return None if self._next is None else self._next.byte_range.size

    def take(self) -> FetchRequest:
        assert self._next is not None
        taken = self._next
        self._advance()
        return taken

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _advance(self) -> None:
        try:
            self._next = next(self._requests, None)
        except Exception as error:  # noqa: BLE001  # raised again, in its place in the order
            self._next, self._failure = None, error
