"""The reader's generator, called as Spark's worker calls it, without a Spark."""

from __future__ import annotations

import gc
import weakref

import pytest

from kts_source.options import parse_options
from kts_source.read import read_task
from kts_source.spark import readers as task_rows
from kts_source.spark import worker as worker_tuning
from kts_source.spark.readers import TieredKafkaBatchReader
from tests.golden_data import assert_same_rows, expected_table, tier_options


@pytest.fixture
def fresh_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_tuning, "_modules_frozen", 0)
    monkeypatch.setattr(worker_tuning, "_collects_between_tasks", lambda: True)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # for a worker's whole life, not for the tests'


def reader_of(topic: str) -> TieredKafkaBatchReader:
    return TieredKafkaBatchReader(parse_options(tier_options(topic, includeHeaders="true")))


@pytest.mark.usefixtures("fresh_worker")
def test_the_collector_rests_until_the_first_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = read_task.read_task

    def watched(*arguments: object, **named: object) -> object:
        seen.append(gc.isenabled())
        return original(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(read_task, "read_task", watched)
    reader = reader_of("codecs")
    partition, *_ = reader.partitions()
    rows = reader.read(partition)
    first = next(rows)
    assert seen == [False]
    assert gc.isenabled()
    assert first.num_rows
    rows.close()  # type: ignore[attr-defined]  # a generator
    assert gc.isenabled()
    next(reader.read(partition))
    assert seen == [False, True]  # a worker's second task has nothing left to import


def test_what_the_first_task_leaves_is_collected_though_it_was_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    left: list[weakref.ref[Cycle]] = []
    place = task_rows._place

    def leaving(scan: str) -> object:
        left.append(weakref.ref(Cycle()))
        return place(scan)

    monkeypatch.setattr(task_rows, "_place", leaving)
    monkeypatch.setattr(worker_tuning, "_modules_frozen", 0)
    monkeypatch.setattr(worker_tuning, "_collects_between_tasks", lambda: True)
    reader = reader_of("codecs")
    partition, *_ = reader.partitions()
    rows = reader.read(partition)
    try:
        next(rows)
        gc.collect()
        assert left[0]() is not None  # frozen: no collection looks through what was imported
        rows.close()  # type: ignore[attr-defined]  # a generator
        assert left[0]() is None
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("fresh_worker")
def test_the_collector_works_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object, **_named: object) -> object:
        raise OSError("broken")

    reader = reader_of("codecs")
    partition, *_ = reader.partitions()
    monkeypatch.setattr(read_task, "read_task", broken)
    with pytest.raises(OSError, match="broken"):
        next(reader.read(partition))
    assert gc.isenabled()


def test_all_rows_come_once() -> None:
    reader = reader_of("codecs")
    import pyarrow as pa

    rows = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert_same_rows(pa.Table.from_batches(rows), expected_table("codecs", "read_committed"))
