"""Compares `where` on the golden topics with a filter after a full read.

Also checks that `where` does not change the offset ranges, ends and holes that a plan reports.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source.errors import InvalidOptionError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.predicate.parse import parse_predicate
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task_metrics import TaskMeter, TaskPlace
from kts_source.tier import open_tier
from tests.golden_data import TOPICS, assert_same_rows, expected_table, tier_options
from tests.kts_source.planning.scanning import run, scan
from tests.kts_source.predicate.oracle import truth
from tests.quick import only

if TYPE_CHECKING:
    from pathlib import Path

CONDITIONS = [
    "key IS NULL",
    "key > 'k5' AND offset < 3000",
    "partition = 1 OR offset BETWEEN 100 AND 120",
    "NOT (partition = 0 AND offset > 10)",
    "key LIKE '%1%2%' AND NOT startswith(key, 'k1')",
    "header('source') = 'web' OR header('trace') IS NULL",
    "timestamp >= timestamp_millis(1772001000000)",
    "timestampType <> 0 OR topic = 'txn'",
    "topic LIKE 'c%' AND key IN ('k997', 'k1', NULL)",
]


def expected(topic: str, condition: str) -> pa.Table:
    """Returns the expected rows of `topic` that match `condition` in the reference evaluation."""
    table = expected_table(topic, "read_committed")
    predicate = parse_predicate(condition)
    numbers = table.set_column(
        table.column_names.index("timestamp"), "timestamp", table["timestamp"].cast(pa.int64())
    )
    kept = []
    for row in numbers.to_pylist():
        row["topic"] = row["topic"].encode()
        row["headers"] = [(pair["key"], pair["value"]) for pair in row["headers"]]
        kept.append(truth(predicate, row) is True)
    return table.filter(pa.array(kept, pa.bool_()))


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("topic", only(2, ["codecs", "compacted", "txn", "evolved", "appendtime"]))
def test_where_returns_the_same_rows_as_a_filter_after_the_scan(topic: str, condition: str) -> None:
    expected_rows = expected(topic, condition)
    for size in ("20k", "1g"):
        table = scan(
            tier_options(topic, where=condition, targetPartitionBytes=size, includeHeaders="true")
        )
        if expected_rows.num_rows:
            assert_same_rows(table, expected_rows)
        else:
            assert table.num_rows == 0


def test_where_may_name_unselected_columns() -> None:
    table = scan(tier_options("codecs", columns="offset", where="header('source') = 'web'"))
    expected_rows = expected("codecs", "header('source') = 'web'")
    assert table.column_names == ["offset"]
    assert 0 < expected_rows.num_rows < 23962
    assert table["offset"].to_pylist() == expected_rows["offset"].to_pylist()


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("condition", ["offset > 1000000000", "offset >= 50", "partition = 77"])
def test_where_narrows_tasks_and_keeps_partitions_of_plan(topic: str, condition: str) -> None:
    plain = plan_scan(parse_options(tier_options(topic)))
    narrowed = plan_scan(parse_options(tier_options(topic, where=condition)))
    assert narrowed.partitions == plain.partitions
    assert narrowed.nominal_bytes <= plain.nominal_bytes
    if condition != "offset >= 50":
        assert narrowed.tasks == ()


def test_where_on_offsets_narrows_the_slices_of_a_plan() -> None:
    options = tier_options("codecs", where="offset BETWEEN 12000 AND 12010")
    plan = plan_scan(parse_options(options))
    full_plan = plan_scan(parse_options(tier_options("codecs")))
    (task,) = plan.tasks
    (task_slice,) = task.slices
    assert (task_slice.start_offset, task_slice.stop_offset) == (12000, 12011)
    assert 10 * plan.nominal_bytes < full_plan.nominal_bytes
    assert run(plan, options)["offset"].to_pylist() == list(range(12000, 12011))


def test_where_on_timestamps_skips_old_segments() -> None:
    everything = expected_table("timeline", "read_committed")
    stamps = sorted(everything["timestamp"].cast(pa.int64()).to_pylist())
    newest = stamps[-len(stamps) // 10]
    options = tier_options("timeline", where=f"timestamp >= timestamp_micros({newest})")
    plan = plan_scan(parse_options(options))
    full_plan = plan_scan(parse_options(tier_options("timeline")))
    assert plan.nominal_bytes < full_plan.nominal_bytes
    stamps_found = run(plan, options)["timestamp"].cast(pa.int64()).to_pylist()
    assert sorted(stamps_found) == [stamp for stamp in stamps if stamp >= newest]


@pytest.mark.parametrize(("topic", "side"), [("codecs", ">="), ("txn", ">="), ("appendtime", "<")])
def test_where_on_timestamps_skips_batches(topic: str, side: str) -> None:
    table = expected_table(topic, "read_committed")
    stamps = sorted(table["timestamp"].cast(pa.int64()).to_pylist())
    bound = stamps[len(stamps) // 2]
    options = parse_options(
        tier_options(topic, where=f"timestamp {side} timestamp_micros({bound})")
    )
    plan = plan_scan(options)
    stamps_found: list[int] = []
    skipped = 0
    with closing(open_tier(options)) as store:
        reader = SegmentSource(store, options.key_ring)
        for task in plan.tasks:
            meter = TaskMeter(task, store, TaskPlace())
            for batch in read_task(task, reader, ReadSettings.of(options), meter=meter):
                stamps_found += batch.column("timestamp").cast(pa.int64()).to_pylist()
            skipped += meter.finished("done").batches_skipped_timestamp
    assert sorted(stamps_found) == [stamp for stamp in stamps if (stamp >= bound) is (side == ">=")]
    assert skipped > 0


def test_replay_of_plan_narrowed_by_another_predicate_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    condition = "offset < 10"
    options = tier_options("codecs", where=condition)
    file.write_text(plan_scan(parse_options(options)).to_json())
    again = scan({**options, "planFile": str(file)})
    assert again["offset"].to_pylist() == list(range(10))
    for other in ({"where": "offset < 11"}, {}):
        with pytest.raises(InvalidOptionError, match="'where'"):
            scan({**tier_options("codecs"), **other, "planFile": str(file)})
    # A plan without a predicate contains everything and can be used with every predicate.
    file.write_text(plan_scan(parse_options(tier_options("codecs"))).to_json())
    assert scan({**options, "planFile": str(file)}).num_rows == 10
