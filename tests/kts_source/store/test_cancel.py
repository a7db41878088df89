from __future__ import annotations

import pytest

from kts_source.store.request_policy import Cancellation, CancelledFetchError, cancelled_by, pause


def test_cancelled_scope_ends_pauses_and_runs_callbacks() -> None:
    cancellation = Cancellation()
    calls: list[str] = []
    with cancellation.scope():
        with cancelled_by(lambda: calls.append("before")):
            pass
        with cancelled_by(lambda: calls.append("during")):
            cancellation.cancel()
        with cancelled_by(lambda: calls.append("after")):
            pass
        with pytest.raises(CancelledFetchError):
            pause(600)
    assert calls == ["during", "after"]
    pause(0)
