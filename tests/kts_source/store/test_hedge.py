from __future__ import annotations

import asyncio

import pytest

from kts_source.store.hedge import hedged


class Attempts:
    """Attempts that end when the test says so."""

    def __init__(self) -> None:
        self.made: list[asyncio.Future[str]] = []
        self.seconds = 0

    def __call__(self) -> asyncio.Future[str]:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.made.append(future)
        return future

    async def call(self) -> str:
        return await self()

    def count(self) -> None:
        self.seconds += 1


async def _soon(attempts: Attempts, number: int) -> None:
    for _ in range(1000):
        if len(attempts.made) >= number:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the attempt was not made")


def test_a_prompt_answer_is_asked_for_once() -> None:
    async def run() -> None:
        attempts = Attempts()
        answer = asyncio.ensure_future(
            hedged(attempts.call, after_seconds=60, on_second=attempts.count)
        )
        await _soon(attempts, 1)
        attempts.made[0].set_result("first")
        assert await answer == "first"
        assert attempts.seconds == 0

    asyncio.run(run())


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_to_answer_wins_and_the_other_is_cancelled(winner: int) -> None:
    async def run() -> None:
        attempts = Attempts()
        answer = asyncio.ensure_future(
            hedged(attempts.call, after_seconds=0, on_second=attempts.count)
        )
        await _soon(attempts, 2)
        attempts.made[winner].set_result(str(winner))
        assert await answer == str(winner)
        assert attempts.made[1 - winner].cancelled()
        assert attempts.seconds == 1

    asyncio.run(run())


def test_one_failure_of_two_waits_for_the_other() -> None:
    async def run() -> None:
        attempts = Attempts()
        answer = asyncio.ensure_future(
            hedged(attempts.call, after_seconds=0, on_second=attempts.count)
        )
        await _soon(attempts, 2)
        attempts.made[0].set_exception(ConnectionError("reset"))
        await asyncio.sleep(0.01)
        assert not answer.done()
        attempts.made[1].set_result("second")
        assert await answer == "second"

    asyncio.run(run())


def test_two_failures_fail() -> None:
    async def run() -> None:
        attempts = Attempts()
        answer = asyncio.ensure_future(
            hedged(attempts.call, after_seconds=0, on_second=attempts.count)
        )
        await _soon(attempts, 2)
        attempts.made[0].set_exception(ConnectionError("one"))
        attempts.made[1].set_exception(ConnectionError("two"))
        with pytest.raises(ConnectionError):
            await answer

    asyncio.run(run())


def test_who_waits_may_stop_both() -> None:
    async def run() -> None:
        attempts = Attempts()
        answer = asyncio.ensure_future(
            hedged(attempts.call, after_seconds=0, on_second=attempts.count)
        )
        await _soon(attempts, 2)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        assert all(one.cancelled() for one in attempts.made)

    asyncio.run(run())
