"""Calls `TieredKafkaBatchReader.read` as a Spark worker calls it, but without Spark."""

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
    monkeypatch.setattr(gc, "freeze", lambda: None)  # would last for the whole test process


def reader_of(topic: str) -> TieredKafkaBatchReader:
    return TieredKafkaBatchReader(parse_options(tier_options(topic, includeHeaders="true")))


@pytest.mark.usefixtures("fresh_worker")
def test_garbage_collector_is_disabled_until_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    is_enabled = []
    original = read_task.read_task

    def observed(*arguments: object, **keywords: object) -> object:
        is_enabled.append(gc.isenabled())
        return original(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(read_task, "read_task", observed)
    reader = reader_of("codecs")
    partition, *_ = reader.partitions()
    rows = reader.read(partition)
    first = next(rows)
    assert is_enabled == [False]
    assert gc.isenabled()
    assert first.num_rows
    rows.close()  # type: ignore[attr-defined]  # a generator
    assert gc.isenabled()
    next(reader.read(partition))
    assert is_enabled == [False, True]  # the second task of a worker imports nothing


def test_garbage_of_first_task_is_collected_after_gc_freeze(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    cycles: list[weakref.ref[Cycle]] = []
    original = task_rows._task_place

    def create_cycle(scan: str) -> object:
        cycles.append(weakref.ref(Cycle()))
        return original(scan)

    monkeypatch.setattr(task_rows, "_task_place", create_cycle)
    monkeypatch.setattr(worker_tuning, "_modules_frozen", 0)
    monkeypatch.setattr(worker_tuning, "_collects_between_tasks", lambda: True)
    reader = reader_of("codecs")
    partition, *_ = reader.partitions()
    rows = reader.read(partition)
    try:
        next(rows)
        gc.collect()
        assert cycles[0]() is not None  # frozen objects are not collected
        rows.close()  # type: ignore[attr-defined]  # a generator
        assert cycles[0]() is None
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("fresh_worker")
def test_garbage_collector_is_enabled_after_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_named: object) -> object:
        raise OSError("broken")

    reader = reader_of("codecs")
    partition, *_ = reader.partitions()
    monkeypatch.setattr(read_task, "read_task", fail)
    with pytest.raises(OSError, match="broken"):
        next(reader.read(partition))
    assert gc.isenabled()


def test_reader_returns_each_row_once() -> None:
    reader = reader_of("codecs")
    import pyarrow as pa

    rows = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert_same_rows(pa.Table.from_batches(rows), expected_table("codecs", "read_committed"))
