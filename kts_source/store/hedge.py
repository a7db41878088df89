"""A second request for an answer that is late: the first of the two to answer wins.

Most answers of an object store are fast and a few take ten times as long; asking again is often
answered before the straggler is. Costs up to one extra request and its bytes per late answer, so it
is off unless asked for.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from kts_source.store.cancel import Cancellation, cancelled_by

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


async def hedged(
    call: Callable[[], Coroutine[Any, Any, T]],
    *,
    after_seconds: float,
    on_second: Callable[[], object],
) -> T:
    """The answer of `call()`, or of a second `call()` made when the first is late.

    Args:
        call: Makes one attempt; what loses is cancelled and waited for.
        after_seconds: When the first counts as late.
        on_second: Called when the second attempt is made.

    Raises:
        Exception: What the first attempt raised before it was late; else what the last of both
            raised, when neither answered.
    """
    attempts = [asyncio.ensure_future(call())]
    try:
        done, _ = await asyncio.wait(attempts, timeout=after_seconds)
        if not done:
            on_second()
            attempts.append(asyncio.ensure_future(call()))
        waiting = set(attempts)
        while True:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            answered = [one for one in done if one.exception() is None]
            if answered or not waiting:
                return (answered or list(done))[0].result()
    finally:
        for one in attempts:
            one.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)


def hedged_call(
    call: Callable[[], T], *, after_seconds: float, on_second: Callable[[], object]
) -> T:
    """As `hedged`, for calls that wait in a thread and obey the current `Cancellation`.

    Args:
        call: Makes one attempt; called in threads of its own.
        after_seconds: When the first counts as late.
        on_second: Called when the second attempt is made.

    Raises:
        Exception: See `hedged`.
    """
    scope = Cancellation()

    def attempt() -> T:
        with scope.scope():
            return call()

    with ThreadPoolExecutor(2, thread_name_prefix="kts-hedge") as pool, cancelled_by(scope.cancel):
        try:
            waiting = {pool.submit(attempt)}
            done, _ = wait(waiting, after_seconds)
            if not done:
                on_second()
                waiting.add(pool.submit(attempt))
            while True:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                answered = [one for one in done if one.exception() is None]
                if answered or not waiting:
                    return (answered or list(done))[0].result()
        finally:
            scope.cancel()
