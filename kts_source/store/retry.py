"""The one retry loop: client libraries are set to a single attempt."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kts_source.errors import StoreUnavailableError
from kts_source.store.cancel import pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenacity import RetryCallState

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

        Args:
            operation: Raises `TransientError` for what may be tried again; anything else ends the
                loop at once.
            uri: What the operation concerns, for the error.
            tally: Where retries are counted.

        Raises:
            StoreUnavailableError: Every attempt failed; carries the history.
        """
        began = time.monotonic()
        history: list[str] = []

        def attempt() -> T:
            try:
                return operation()
            except TransientError as error:
                after = time.monotonic() - began
                history.append(f"attempt {len(history) + 1}, failed after {after:.2f} s: {error}")
                raise

        first: list[TransientError] = []
        try:
            return attempt()
        except TransientError as error:
            first.append(error)
        try:
            return self._again(attempt, first, time.monotonic() - began, tally)
        except TransientError as error:
            # The library's own exceptions stay out: their texts are not ours to vouch for.
            raise StoreUnavailableError(
                f"the store did not answer properly in {len(history)} attempts, last: {error}",
                uri=uri,
                attempts=tuple(history),
            ) from None

    def _again(
        self, attempt: Callable[[], T], first: list[TransientError], seconds: float, tally: Tally
    ) -> T:
        """The loop after its first attempt, which took so many seconds; takes out how it failed.

        Most requests need no second one, and a short query not the library, whose import takes as
        long as some answers.
        """
        from tenacity import (
            Retrying,
            retry_if_exception_type,
            stop_after_attempt,
            stop_after_delay,
            wait_random_exponential,
        )

        def next_attempt() -> T:
            if first:
                raise first.pop()
            return attempt()

        def count(_state: RetryCallState) -> None:
            tally.add(retries=1)

        return Retrying(
            stop=stop_after_attempt(self.max_attempts)
            | stop_after_delay(max(0.0, self.give_up_after_seconds - seconds)),
            wait=wait_random_exponential(
                multiplier=self.first_pause_seconds, max=self.max_pause_seconds
            ),
            retry=retry_if_exception_type(TransientError),
            sleep=pause,
            before_sleep=count,
            reraise=True,
        )(next_attempt)


DEFAULT_RETRY_POLICY = RetryPolicy()
