"""Work for a thread that is about to wait for an answer: what it will need when that is there.

Whoever asks enters `doing_meanwhile`; the first to wait inside takes the work, once its request is
under way.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_work: ContextVar[list[Callable[[], object]]] = ContextVar("work")


@contextlib.contextmanager
def doing_meanwhile(work: Callable[[], object] | None) -> Iterator[None]:
    """Has the first wait inside, in this thread, do some work. It may never be done.

    Args:
        work: Its errors are dropped: it must be what is done again, or already done, when needed.
    """
    token = _work.set([] if work is None else [work])
    try:
        yield
    finally:
        _work.reset(token)


def take_work() -> Callable[[], None] | None:
    """What to do while waiting, if there is something; nobody else gets it."""
    waiting = _work.get([])
    if not waiting:
        return None
    work = waiting.pop()

    def done_quietly() -> None:
        with contextlib.suppress(Exception):
            work()

    return done_quietly
