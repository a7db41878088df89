"""Checks replays of plan files.

A plan file is not trusted: contradicting options and invalid contents raise errors.
"""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

import kts_source
from kts_source.errors import DataLossError, InvalidOptionError, TieredKafkaError
from kts_source.planning.scan_plan import ScanPlan
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T0 = 1_700_000_000_000
IDS = {"t": "lZ6vvmajTWKDBUTV6SQAtQ", "u": "adh9f8BMS4anaUnD8KWfWg"}


def write_tier(folder: Path, *, without: int | None = None) -> None:
    """Writes two topics of four segments. Each segment has seven plain records and two records of
    an aborted transaction. In both topics, the segment with number `without` is missing.
    """
    for topic, topic_id in IDS.items():
        log = LogBuilder()
        for _ in range(4):
            first = log.next_offset
            records = [SimpleRecord(b"v%d" % n, b"k", timestamp=T0 + first + n) for n in range(7)]
            log.append(records)
            log.send(7, [SimpleRecord(b"aborted", timestamp=T0 + first + 7)] * 2)
            log.abort(7)
            log.roll()
        writer = AivenTierWriter(folder, topic=topic, topic_id=topic_id, key_prefix="p-")
        for number, segment in enumerate(log.build().segments):
            if number != without:
                writer.write_segment(segment)


@pytest.fixture
def source(tmp_path: Path) -> dict[str, str]:
    write_tier(tmp_path / "tier")
    return {"path": str(tmp_path / "tier"), "keyPrefix": "p-", "subscribe": "t", "cache": "false"}


def write_plan(folder: Path, options: dict[str, str]) -> str:
    plan_file = folder / "plan.json"
    plan_file.write_text(kts_source.plan(options).to_json())
    return str(plan_file)


def format_offsets(value: int) -> str:
    return json.dumps({"t": {"0": value}})


CONTRADICTIONS: list[tuple[dict[str, str], dict[str, str]]] = [
    ({}, {"isolationLevel": "read_uncommitted"}),
    ({"isolationLevel": "read_uncommitted"}, {"isolationLevel": "read_committed"}),
    ({"isolationLevel": "read_uncommitted"}, {}),
    ({"failOnDataLoss": "false"}, {}),
    ({}, {"subscribe": "u"}),
    ({}, {"subscribe": "t,u"}),
    ({"subscribe": "t,u"}, {"subscribe": "t"}),
    ({"subscribe": "t,u"}, {"assign": '{"t":[0]}'}),
    ({}, {"assign": '{"t":[0,1]}'}),
    ({"subscribe": "t,u"}, {"subscribePattern": "^t$"}),
    ({}, {"topicId": IDS["u"]}),
    ({}, {"topicId": json.dumps({"t": IDS["u"]})}),
    ({}, {"keyPrefix": "q-"}),
    ({}, {"layout": "local-tiered-storage"}),
    ({}, {"startingOffsets": format_offsets(4)}),
    ({}, {"endingOffsets": format_offsets(12)}),
    ({"startingOffsets": format_offsets(4)}, {"startingOffsets": "earliest"}),
    ({"endingOffsets": format_offsets(12)}, {"endingOffsets": "latest"}),
    ({}, {"startingTimestamp": f"{T0 + 12}"}),
    ({}, {"endingTimestamp": f"{T0 + 12}"}),
    ({}, {"startingOffsetsByTimestamp": format_offsets(T0 + 12)}),
    ({}, {"endingOffsetsByTimestamp": format_offsets(T0 + 12)}),
    ({"startingTimestamp": f"{T0 + 12}"}, {"startingTimestamp": f"{T0 + 4}"}),
    ({}, {"maxRecordsPerPartition": "5"}),
    ({}, {"minPartitions": "3"}),
    ({}, {"targetPartitionBytes": "1k"}),
    ({}, {"maxSegmentsPerTask": "1"}),
    ({"where": "offset < 9"}, {"where": "offset < 8"}),
    ({"where": "offset < 9"}, {}),
    ({"timestampRange": f"{T0},"}, {"timestampRange": f",{T0}"}),
]


@pytest.mark.parametrize(("plan_options", "replay_options"), CONTRADICTIONS)
def test_replay_with_contradicting_option_raises_error_that_names_the_option(
    plan_options: dict[str, str],
    replay_options: dict[str, str],
    source: dict[str, str],
    tmp_path: Path,
) -> None:
    plan = write_plan(tmp_path, {**source, **plan_options})
    options = {**source, **replay_options, "planFile": plan}
    if {"assign", "subscribePattern"} & replay_options.keys():
        del options["subscribe"]
    name = next(iter(replay_options or plan_options))
    name = "where" if name == "timestampRange" else name
    with pytest.raises(InvalidOptionError, match=rf"'{name}'.*'planFile'"):
        kts_source.plan(options)


@pytest.mark.parametrize(
    "plan_options",
    [
        *[plan_options for plan_options, _ in CONTRADICTIONS],
        *[
            {**replay_options}
            for _, replay_options in CONTRADICTIONS
            if not {"topicId", "keyPrefix", "layout"} & replay_options.keys()
        ],
        {"startingOffsets": "earliest", "endingOffsets": "latest"},
        {"topicId": IDS["t"]},
        {"startingTimestamp": f"{T0 + 12}", "endingTimestamp": f"{T0 + 34}"},
        {"startingTimestamp": f"{T0 + 90}", "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_replay_with_same_options_returns_same_rows(
    plan_options: dict[str, str], source: dict[str, str], tmp_path: Path
) -> None:
    options = {**source, **plan_options}
    if {"assign", "subscribePattern"} & plan_options.keys():
        del options["subscribe"]
    if plan_options.get("assign") == '{"t":[0,1]}':
        options["assign"] = '{"t":[0]}'
    plan = write_plan(tmp_path, options)
    assert scan({**options, "planFile": plan}) == scan(options)


def test_replay_accepts_assigned_partition_without_segments(
    source: dict[str, str], tmp_path: Path
) -> None:
    del source["subscribe"]
    options = {**source, "assign": '{"t":[0,9]}', "failOnDataLoss": "false"}
    plan = write_plan(tmp_path, options)
    assert scan({**options, "planFile": plan}).num_rows == scan(options).num_rows > 0
    with pytest.raises(InvalidOptionError, match=r"'assign'.*'planFile'"):
        kts_source.plan({**options, "assign": '{"t":[0,8]}', "planFile": plan})


def test_replay_applies_columns_and_where(source: dict[str, str], tmp_path: Path) -> None:
    plan = write_plan(tmp_path, source)
    options = {**source, "columns": "offset", "where": "offset IN (3, 12)", "planFile": plan}
    assert scan(options).to_pydict() == {"offset": [3, 12]}


def test_replay_of_plan_with_hole_raises_data_loss_error(tmp_path: Path) -> None:
    write_tier(tmp_path / "tier", without=1)
    options = {"path": str(tmp_path / "tier"), "keyPrefix": "p-", "subscribe": "t"}
    plan = write_plan(tmp_path, {**options, "failOnDataLoss": "false"})
    assert scan({**options, "failOnDataLoss": "false", "planFile": plan}).num_rows == 21
    document = json.loads((tmp_path / "plan.json").read_text())
    document["madeWith"]["failOnDataLoss"] = True
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(DataLossError, match=r"\[10, 20\)"):
        kts_source.plan({**options, "planFile": plan})


class GuardedFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Local files that can be opened only with the right token."""

    protocol = "guarded"

    def __init__(self, token: str | None = None, **options: object) -> None:
        super().__init__(**options)
        if token != "sesame":
            raise PermissionError("the token is missing or wrong")


def test_plan_file_is_opened_with_storage_options_of_tier(
    source: dict[str, str], tmp_path: Path
) -> None:
    fsspec.register_implementation("guarded", GuardedFiles, clobber=True)
    options = {
        **source,
        "path": f"guarded://{tmp_path}/tier",
        "storageOptions": '{"token":"sesame"}',
    }
    plan = write_plan(tmp_path, options)
    assert scan({**options, "planFile": f"guarded://{plan}"}).num_rows == 28
    # Stores with another protocol do not receive the storage options of the tier.
    assert scan({**options, "planFile": plan}).num_rows == 28
    assert "sesame" not in (tmp_path / "plan.json").read_text()


BAD_FILES: list[tuple[bytes, str]] = [
    (b"", "not a plan"),
    (b"\xff\xfe", "UTF-8"),
    (b"[" * 200_000, "not a plan"),
    (b'{"a":' * 200_000, "not a plan"),
    (b"9" * 10_000, "not a plan"),
    (b"null", "not a plan"),
    (b"[]", "not a plan"),
    (b"{}", "not a plan"),
    *(
        (b'{"version":%d}' % version, f"version '{version}'.*only version 4; plan again")
        for version in (1, 2, 3, 5)
    ),
    (b'{"version":true}', "version 'True'"),
    (b'{"version":[]}', "version"),
    (b'{"version":4,"segments":[{}]}', "not a plan"),
    (b'{"version":4,"segments":5}', "not a plan"),
]


@pytest.mark.parametrize(("data", "reason"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_invalid_plan_file_raises_error_that_names_the_file(
    data: bytes, reason: str, source: dict[str, str], tmp_path: Path
) -> None:
    plan_file = tmp_path / "bad.json"
    plan_file.write_bytes(data)
    with pytest.raises(InvalidOptionError, match=rf"'planFile' \(.*bad\.json\): .*{reason}"):
        kts_source.plan({**source, "planFile": str(plan_file)})


@pytest.mark.parametrize("name", ["none.json", "tier", "/", "no://where/plan.json", "memory://x"])
def test_missing_plan_file_raises_error_that_names_the_file(
    name: str, source: dict[str, str], tmp_path: Path
) -> None:
    path = name if "/" in name else str(tmp_path / name)
    with pytest.raises(TieredKafkaError, match=r"'planFile'") as error:
        kts_source.plan({**source, "planFile": path})
    assert path in str(error.value)


def test_too_large_plan_file_raises_error_that_names_the_limit(
    source: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = write_plan(tmp_path, source)
    monkeypatch.setattr("kts_source.planning.planner._MAX_BYTES", 100)
    with pytest.raises(TieredKafkaError, match=r"'planFile'.*limit of 100 bytes"):
        kts_source.plan({**source, "planFile": plan})


def test_errors_do_not_contain_the_query_of_a_plan_file_url(source: dict[str, str]) -> None:
    url = "http://localhost:1/plan.json?X-Amz-Signature=c0ffee"
    options = {**source, "planFile": url, "maxAttempts": "1"}
    with pytest.raises(TieredKafkaError, match="'planFile'") as error:
        kts_source.plan(options)
    assert "c0ffee" not in str(error.value)
    assert "c0ffee" not in repr(error.value)


def paths_to_values(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the path of each value inside `value`, as a tuple of keys and list indexes."""
    inner: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    if isinstance(value, list):
        inner = list(enumerate(value))
    paths = [path] if path else []
    for key, child in inner:
        paths += paths_to_values(child, (*path, key))
    return paths


def replace_value(document: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    parent: Any = changed
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    return changed


def to_upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


HOSTILE: list[Callable[[Any], Any]] = [
    lambda _: None,
    lambda _: [],
    lambda _: [["t", [0]]],
    lambda _: {},
    lambda _: {"t": [0]},
    lambda _: True,
    lambda _: "x",
    lambda _: -1,
    lambda _: -(1 << 62),
    lambda _: 1 << 31,
    lambda _: (1 << 63) - 1,
    lambda _: 1 << 70,
    lambda _: 1.5,
    lambda _: float("inf"),
    lambda _: "\ud800",
    lambda _: "../secret",
    lambda _: "/etc/passwd",
    lambda _: "s3://other/key",
    to_upper,
]


def test_plan_with_a_hostile_value_is_accepted_or_raises_expected_error(
    source: dict[str, str], tmp_path: Path
) -> None:
    """Replaces each value of a plan with hostile values."""
    options = {**source, "endingOffsets": format_offsets(15), "targetPartitionBytes": "300"}
    plan = write_plan(tmp_path, options)
    document = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "secret").write_bytes(b"x" * 1000)
    error_count = 0
    for path in paths_to_values(document):
        if path[0] in ("segments", "tasks") and path[1:2] > (0,):
            continue  # like the first entry
        current: Any = document
        for step in path:
            current = current[step]
        for change in HOSTILE:
            text = json.dumps(replace_value(document, path, change(current)))
            try:
                ScanPlan.from_json(text)
            except InvalidOptionError:
                error_count += 1
                continue
            if change is not to_upper:
                # The planner compares a valid plan with the tier.
                (tmp_path / "plan.json").write_text(text)
                try:
                    kts_source.plan({**options, "planFile": plan})
                except TieredKafkaError:
                    error_count += 1
    assert error_count > 500


@pytest.mark.parametrize("key", ["../tier/secret", "/etc/passwd", "a/../../secret", "./x"])
def test_plan_with_key_outside_root_raises_invalid_option_error(
    key: str, source: dict[str, str], tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, source)
    document = json.loads((tmp_path / "plan.json").read_text())
    for entry in document["segments"][0]["objects"].values():
        entry[0] = key
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(InvalidOptionError, match="'planFile'"):
        kts_source.plan({**source, "planFile": plan})


def test_plan_with_too_many_chunks_raises_invalid_option_error(
    source: dict[str, str], tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, source)
    document = json.loads((tmp_path / "plan.json").read_text())
    segment = document["segments"][0]
    size = segment["objects"][segment["facts"][6]][1]
    for chunks in ([1, (1 << 31) - 1, 0, size], [1, 1 << 20, 1, 1], [1, 1 << 30, 1, 1]):
        segment["facts"][8] = chunks
        (tmp_path / "plan.json").write_text(json.dumps(document))
        with pytest.raises(InvalidOptionError, match="'planFile'"):
            kts_source.plan({**source, "planFile": plan})


@pytest.mark.parametrize("repeated", ["task", "slice", "partition"])
def test_plan_with_repeated_slices_raises_invalid_option_error(
    repeated: str, source: dict[str, str], tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, source)
    document = json.loads((tmp_path / "plan.json").read_text())
    if repeated == "task":
        document["tasks"] *= 2
    elif repeated == "slice":
        document["tasks"][0] *= 2
    else:
        document["partitions"] *= 2
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(InvalidOptionError, match=re.escape("'planFile'")):
        kts_source.plan({**source, "planFile": plan})


def test_describe_ignores_plan_file(source: dict[str, str], tmp_path: Path) -> None:
    plan = write_plan(tmp_path, {**source, "endingOffsets": format_offsets(12)})
    (mark,) = kts_source.describe({**source, "planFile": plan}).partitions
    assert mark.tier_end == 40
