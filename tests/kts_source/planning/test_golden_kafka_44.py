"""Checks that scans of tiers of Kafka 4.4.0 return exactly the rows that a consumer received.

`tests/golden44/README.md` describes the software that wrote the tiers.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import DataLossError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from tests.golden_data import (
    GOLDEN_44,
    ISOLATION_LEVELS,
    SPARK_SCHEMA,
    IsolationLevel,
    assert_same_rows,
    encryption_options,
    expected_table,
)
from tests.kts_source.planning.scanning import run, scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PUBLIC, LOCAL = "public", "localtier"
OLDER_INCARNATION = "recreated-previous"


def read_summary(dataset: str) -> list[dict[str, Any]]:
    """Returns the topics of a data set's `summary.json`. Older topic incarnations are last."""
    document = json.loads((GOLDEN_44 / dataset / "expected" / "summary.json").read_text())
    topics: list[dict[str, Any]] = document["topics"]
    return topics


def list_topics() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields the data set, the name of the expected rows, and the summary of each incarnation of a
    topic.
    """
    for dataset in (PUBLIC, LOCAL):
        names: set[str] = set()
        for topic in read_summary(dataset):
            name = topic["topic"]
            yield dataset, OLDER_INCARNATION if name in names else name, topic
            names.add(name)


TOPICS = list(list_topics())
topics = pytest.mark.parametrize(
    ("dataset", "name", "topic"), TOPICS, ids=[f"{dataset}-{name}" for dataset, name, _ in TOPICS]
)


def make_options(dataset: str, topic: dict[str, Any], **options: str) -> dict[str, str]:
    """Returns the options that read one topic incarnation, including record headers."""
    folder = GOLDEN_44 / dataset
    layout = (
        {"keyPrefix": "tiered/", **encryption_options(folder / "keys")}
        if dataset == PUBLIC
        else {"layout": "local-tiered-storage"}
    )
    return {
        "path": (folder / "tier").as_uri(),
        "subscribe": topic["topic"],
        "topicId": topic["topicId"],
        "includeHeaders": "true",
        **layout,
        **options,
    }


def test_expected_rows_exist_for_every_topic() -> None:
    files = {
        (dataset, path.stem)
        for dataset in (PUBLIC, LOCAL)
        for path in (GOLDEN_44 / dataset / "expected").glob("*.parquet")
    }
    assert files == {(dataset, name) for dataset, name, _ in TOPICS}
    assert len(files) == 14


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@topics
def test_scan_returns_rows_that_consumer_received(
    dataset: str, name: str, topic: dict[str, Any], isolation_level: IsolationLevel
) -> None:
    table = scan(make_options(dataset, topic, isolationLevel=isolation_level))
    assert table.schema == SPARK_SCHEMA
    expected = expected_table(name, isolation_level, folder=GOLDEN_44 / dataset / "expected")
    assert_same_rows(table, expected)


@pytest.mark.parametrize("size", ["1", "16384", "1g"])
@topics
def test_scan_rows_do_not_depend_on_task_size(
    dataset: str, name: str, topic: dict[str, Any], size: str
) -> None:
    options = make_options(dataset, topic, targetPartitionBytes=size)
    plan = plan_scan(parse_options(options))
    expected = expected_table(name, "read_committed", folder=GOLDEN_44 / dataset / "expected")
    assert_same_rows(run(plan, options), expected)
    assert (len(plan.tasks) == 1) == (size == "1g")


@pytest.mark.parametrize(
    ("isolation_level", "end"),
    [
        ("read_uncommitted", "tier_end_offset"),
        ("read_committed", "tier_last_stable_offset"),
    ],
)
@topics
def test_plan_bounds_equal_offsets_of_broker(
    dataset: str, name: str, topic: dict[str, Any], isolation_level: str, end: str
) -> None:
    plan = plan_scan(parse_options(make_options(dataset, topic, isolationLevel=isolation_level)))
    assert {p.partition: (p.start, p.stop) for p in plan.partitions} == {
        p["partition"]: (p["log_start_offset"], p[end]) for p in topic["partitions"]
    }, name


@pytest.mark.parametrize("has_table", [False, True])
def test_hole_names_iceberg_mode_if_its_files_exist(tmp_path: Path, has_table: bool) -> None:
    # The plugin wrote offsets [420, 980) into an Iceberg table.
    tier = shutil.copytree(GOLDEN_44 / "iceberg-mixed" / "tier", tmp_path / "tier")
    if has_table:
        folder = tier / "warehouse" / "events" / "metadata"
        folder.mkdir(parents=True)
        (folder / "adh9f8BMS4anaUnD8KWfWg.puffin").write_bytes(b"PFA1")
    options = {"path": str(tier), "keyPrefix": "tiered/", "subscribe": "events"}
    with pytest.raises(DataLossError, match=r"offsets \[420, 980\)") as caught:
        scan(options)
    assert ("the table <iceberg.namespace>.events" in str(caught.value)) == has_table
    rows = scan({**options, "failOnDataLoss": "false"})
    assert sorted(rows["offset"].to_pylist()) == [*range(420), *range(980, 1400)]
