"""A deadline for calls that have none: those of fsspec's synchronous file systems."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from kts_source.store.cancel import CancelledFetchError, cancelled_by
from kts_source.store.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def within_deadline(seconds: float, call: Callable[[], T]) -> T:
    """The result of `call()`, made in a thread of its own. When the time is up that thread is left
    behind: nothing can stop it, but it keeps no process from ending.

    Raises:
        TransientError: The deadline passed.
        CancelledFetchError: The caller's scope was cancelled.
    """
    ended = threading.Event()
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  # the caller's to raise
            answer.set_exception(error)
        ended.set()

    threading.Thread(target=run, name="kts-store-call", daemon=True).start()
    with cancelled_by(ended.set):
        in_time = ended.wait(seconds)
    if answer.done():
        return answer.result()
    if in_time:
        raise CancelledFetchError
    raise TransientError(no_answer(seconds))


def no_answer(seconds: float) -> str:
    """The text of the error for an attempt that ran into its deadline."""
    return f"no complete answer by the deadline {seconds:g} s (option fetchDeadlineMs)"
