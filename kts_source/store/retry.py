"""The one retry loop: client libraries are set to a single attempt."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kts_source.errors import StoreUnavailableError
from kts_source.store.cancel import pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.store.counters import Tally

T = TypeVar("T")


class TransientError(Exception):
    """A failed attempt that may pass. Its text is free of credentials; it never leaves the loop."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently an operation is tried.

    Pauses are drawn at random between zero and a bound that doubles ("full jitter"), so that tasks
    throttled together do not come back together.

    Attributes:
        max_attempts: Attempts in all, the first included.
        first_pause_seconds: Bound of the first pause.
        max_pause_seconds: The bound never grows past this.
        give_up_after_seconds: No new attempt once this much time has passed since the first began.
        request_deadline_seconds: One attempt may take this long from its first byte out to its last
            byte in. Idle time on a connection has a (shorter) limit of its own.
        connect_timeout_seconds: For a connection to stand.
        read_timeout_seconds: Idle time: no byte for so long, while an answer is awaited.
        hedge_after_seconds: When a ranged read is asked for a second time while the first answer
            is still awaited; None never.
    """

    max_attempts: int = 6
    first_pause_seconds: float = 0.2
    max_pause_seconds: float = 8.0
    give_up_after_seconds: float = 120.0
    request_deadline_seconds: float = 60.0
    connect_timeout_seconds: float = 1.0
    read_timeout_seconds: float = 5.0
    hedge_after_seconds: float | None = None

    def run(self, operation: Callable[[], T], *, uri: str, tally: Tally) -> T:
        """The operation's result, after as many attempts as it takes and the policy allows.

        `TransientError` is tried again; anything else that the operation raises ends it at once.

        Raises:
            StoreUnavailableError: Every attempt failed; carries the history.
        """
        began = time.monotonic()
        history: list[str] = []
        bound = self.first_pause_seconds
        while True:
            try:
                return operation()
            except TransientError as error:
                last = str(error)
            # Outside the handler, so that what the next attempt raises does not carry this error.
            seconds = time.monotonic() - began
            history.append(f"attempt {len(history) + 1}, failed after {seconds:.2f} s: {last}")
            bound = min(bound, self.max_pause_seconds)
            wait = random.uniform(0, bound)
            late = seconds + wait >= self.give_up_after_seconds
            if late or len(history) >= self.max_attempts:
                raise StoreUnavailableError(
                    f"the store did not answer properly in {len(history)} attempts, last: {last}",
                    uri=uri,
                    attempts=tuple(history),
                ) from None
            tally.add(retries=1)
            pause(wait)
            bound *= 2


DEFAULT_RETRY_POLICY = RetryPolicy()
