"""Tests Ray datasets of a scan. The tests need Ray, which `.ci/engines_env` installs."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kts_source
from kts_source import metrics
from kts_source.errors import InvalidOptionError
from tests.golden_data import TOPICS, assert_same_rows, expected_table, tier_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.golden_data import IsolationLevel

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    # Ray and its dependencies emit warnings, for example about unclosed sockets.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def create_scan(topic: str, **options: str) -> kts_source.Scan:
    defaults = {"includeHeaders": "true", "targetPartitionBytes": "64k"}
    return kts_source.scan(tier_options(topic, **{**defaults, **options}))


def table_of(dataset: Any) -> pa.Table:  # noqa: ANN401  # Ray's Dataset is not typed
    import ray

    # Ray may shrink the types of empty or null columns of a block.
    tables = ray.get(dataset.to_arrow_refs())
    return pa.concat_tables(tables, promote_options="permissive")


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_ray_returns_all_rows(topic: str, level: IsolationLevel) -> None:
    expected = expected_table(topic, level)
    base = create_scan(topic, isolationLevel=level)
    assert_same_rows(table_of(base.to_ray()).cast(expected.schema), expected)
    assert base.to_ray().count() == expected.num_rows


def test_ray_pushes_conditions_and_columns_down(tmp_path: Path) -> None:
    from ray.data.expressions import col

    expected = expected_table("txn", "read_committed")
    source = create_scan("txn", metricsPath=tmp_path.as_uri())
    task_count = len(source.tasks)
    offset, partition = col("offset"), col("partition")
    dataset = source.to_ray().filter(expr=(partition == 1) & (offset >= 3000))
    result = table_of(dataset.select_columns(["offset"]))
    mask = pc.and_(pc.equal(expected["partition"], 1), pc.greater_equal(expected["offset"], 3000))
    expected_offsets = sorted(expected.filter(mask)["offset"].to_pylist())
    assert sorted(result["offset"].to_pylist()) == expected_offsets
    assert result.schema.names == ["offset"]
    cost = metrics.summary(str(tmp_path))
    assert len(cost.tasks) < task_count // 2, "tasks without a matching row ran"
    assert cost.total["bytes"] < source.plan.nominal_bytes / 2
    assert (
        source.to_ray().filter(expr=offset < 500).count()
        == pc.sum(pc.less(expected["offset"], 500)).as_py()
    )


def test_ray_applies_filters_that_are_python_functions() -> None:
    expected = expected_table("txn", "read_committed")
    result = create_scan("txn").to_ray().filter(lambda row: len(row["value"] or b"") % 3 == 1)
    lengths = (len(value or b"") for value in expected["value"].to_pylist())
    assert result.count() == sum(length % 3 == 1 for length in lengths)


def test_ray_applies_expressions_that_the_scan_cannot_translate() -> None:
    from ray.data.expressions import col

    condition = (col("offset") + col("partition") * 2 > 3000) | col("key").is_null()
    result = table_of(create_scan("txn").to_ray().filter(expr=condition).select_columns(["offset"]))
    rows = expected_table("txn", "read_committed").to_pylist()
    expected_offsets = [
        row["offset"]
        for row in rows
        if row["offset"] + row["partition"] * 2 > 3000 or row["key"] is None
    ]
    assert 0 < len(expected_offsets) < len(rows)
    assert sorted(result["offset"].to_pylist()) == sorted(expected_offsets)


def test_ray_refuses_a_limited_scan() -> None:
    assert len(create_scan("txn").to_ray().take(5)) == 5
    with pytest.raises(InvalidOptionError, match=r"call limit\(\) on Ray's dataset"):
        create_scan("txn").limit(5).to_ray()
