"""Checks that scans of failing stores return the right rows or raise an error.

Environment variables:

    KTS_FAULT_SCANS    number of scans; 2,000 by default
    KTS_FAULT_SECONDS  time limit for all scans together; 120 by default.
                       2,000 scans need up to 3,600 seconds.
                       Each test runs at least `MIN_SCANS` scans, even if the time is over.
    KTS_FAULT_SEED     seed of a run to repeat

"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kts_source.secret import Secret
from kts_source.store.fsspec_store import FsspecStore
from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import storage_options_from
from tests.faults.faulty_filesystem import KINDS, ROOT, FaultyFileSystem, empty, fill
from tests.faults.faulty_http import HTTP_KINDS, Chooser
from tests.faults.trials import QUICK, Injector, Tally, run_trials, seed
from tests.faulty_proxy import faulty_proxy
from tests.golden_data import TIER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.store.object_store import ObjectStore
    from tests.s3 import S3Server

SCANS = int(os.environ.get("KTS_FAULT_SCANS", "2000"))
SECONDS = float(os.environ.get("KTS_FAULT_SECONDS", "120"))
MIN_SCANS = 40
"""Minimum number of scans of each test, even if the time limit is over."""


def report(
    name: str, first_seed: int, wanted: int, tally: Tally, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\n{name}: KTS_FAULT_SEED={first_seed}\n{tally.table()}")  # noqa: T201
    scans = sum(tally.outcomes.values())
    assert scans >= min(wanted, MIN_SCANS)
    assert tally.outcomes["right rows"] > 0
    assert scans > tally.outcomes["right rows"], "no scan failed"
    # On a busy machine, a request may exceed its deadline although no fault was injected.
    without_fault = sum(count for (fault, _), count in tally.by_fault.items() if fault == "none")
    assert tally.by_fault["none", "right rows"] * 10 >= without_fault, (
        "nearly all scans fail without a fault"
    )


@pytest.fixture
def faulty_memory() -> Iterator[str]:
    fill()
    yield f"faulty:/{ROOT}"
    empty()


@pytest.mark.timeout(3600)
def test_scans_of_failing_file_system_return_rows_of_consumer_or_raise(
    faulty_memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_faulty(injector: Injector) -> tuple[str, ObjectStore]:
        FaultyFileSystem.injector = injector
        return faulty_memory, FsspecStore(faulty_memory, Secret({}), retry_policy=QUICK)

    first_seed = seed()
    tally = run_trials(
        SCANS * 3 // 4, SECONDS / 2, KINDS, open_faulty, first_seed, min_trials=MIN_SCANS
    )
    report("file system in memory", first_seed, SCANS * 3 // 4, tally, capsys)


@pytest.mark.s3
@pytest.mark.timeout(3600)
def test_scans_of_failing_s3_server_return_rows_of_consumer_or_raise(
    s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = s3_server.upload(TIER)
    with faulty_proxy(s3_server.endpoint) as proxy:
        proxy.remembered = {}
        proxy.silence_seconds = 0.3
        chooser = Chooser(bucket)
        proxy.choose = chooser.choose
        storage = storage_options_from({**s3_server.options, "s3.endpoint": proxy.endpoint})

        def open_faulty(injector: Injector) -> tuple[str, ObjectStore]:
            chooser.injector = injector
            return f"s3://{bucket}", store

        store = _KeptOpen(f"s3://{bucket}", storage, retry_policy=QUICK)
        first_seed = seed()
        tally = run_trials(
            SCANS // 4, SECONDS / 2, HTTP_KINDS, open_faulty, first_seed, min_trials=MIN_SCANS
        )
        S3Store.close(store)
    report("S3 server behind a proxy", first_seed, SCANS // 4, tally, capsys)


class _KeptOpen(S3Store):
    """Store that ignores `close`, because opening a new client would take longer than a trial."""

    def close(self) -> None:
        pass
