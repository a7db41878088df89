"""A plan file is a value that nobody vouches for: options that say something else are refused, and
whatever is wrong with the file is an error that names it.
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
    """Two topics of four segments with ten records each, some of them of an aborted transaction."""
    for topic, topic_id in IDS.items():
        log = LogBuilder()
        for _ in range(4):
            first = log.next_offset
            stamped = [SimpleRecord(b"v%d" % n, b"k", timestamp=T0 + first + n) for n in range(7)]
            log.append(stamped)
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


def planned(folder: Path, given: dict[str, str]) -> str:
    file = folder / "plan.json"
    file.write_text(kts_source.plan(given).to_json())
    return str(file)


def by_partition(value: int) -> str:
    return json.dumps({"t": {"0": value}})


OTHERS: list[tuple[dict[str, str], dict[str, str]]] = [
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
    ({}, {"startingOffsets": by_partition(4)}),
    ({}, {"endingOffsets": by_partition(12)}),
    ({"startingOffsets": by_partition(4)}, {"startingOffsets": "earliest"}),
    ({"endingOffsets": by_partition(12)}, {"endingOffsets": "latest"}),
    ({}, {"startingTimestamp": f"{T0 + 12}"}),
    ({}, {"endingTimestamp": f"{T0 + 12}"}),
    ({}, {"startingOffsetsByTimestamp": by_partition(T0 + 12)}),
    ({}, {"endingOffsetsByTimestamp": by_partition(T0 + 12)}),
    ({"startingTimestamp": f"{T0 + 12}"}, {"startingTimestamp": f"{T0 + 4}"}),
    ({}, {"maxRecordsPerPartition": "5"}),
    ({}, {"minPartitions": "3"}),
    ({}, {"targetPartitionBytes": "1k"}),
    ({}, {"maxSegmentsPerTask": "1"}),
    ({"where": "offset < 9"}, {"where": "offset < 8"}),
    ({"where": "offset < 9"}, {}),
    ({"timestampRange": f"{T0},"}, {"timestampRange": f",{T0}"}),
]


@pytest.mark.parametrize(("made", "given"), OTHERS)
def test_contradicting_option_is_refused_by_name(
    made: dict[str, str], given: dict[str, str], source: dict[str, str], tmp_path: Path
) -> None:
    plan = planned(tmp_path, {**source, **made})
    asked = {**source, **given, "planFile": plan}
    if {"assign", "subscribePattern"} & given.keys():
        del asked["subscribe"]
    name = next(iter(given or made))
    name = "where" if name == "timestampRange" else name
    with pytest.raises(InvalidOptionError, match=rf"'{name}'.*'planFile'"):
        kts_source.plan(asked)


@pytest.mark.parametrize(
    "made",
    [
        *[other for other, _ in OTHERS],
        *[
            {**given}
            for _, given in OTHERS
            if not {"topicId", "keyPrefix", "layout"} & given.keys()
        ],
        {"startingOffsets": "earliest", "endingOffsets": "latest"},
        {"topicId": IDS["t"]},
        {"startingTimestamp": f"{T0 + 12}", "endingTimestamp": f"{T0 + 34}"},
        {"startingTimestamp": f"{T0 + 90}", "startingOffsetsByTimestampStrategy": "latest"},
    ],
)
def test_replay_with_same_options_returns_same_rows(
    made: dict[str, str], source: dict[str, str], tmp_path: Path
) -> None:
    given = {**source, **made}
    if {"assign", "subscribePattern"} & made.keys():
        del given["subscribe"]
    if made.get("assign") == '{"t":[0,1]}':
        given["assign"] = '{"t":[0]}'
    plan = planned(tmp_path, given)
    assert scan({**given, "planFile": plan}) == scan(given)


def test_replay_accepts_selected_empty_partitions(source: dict[str, str], tmp_path: Path) -> None:
    del source["subscribe"]
    given = {**source, "assign": '{"t":[0,9]}'}
    plan = planned(tmp_path, given)
    assert scan({**given, "planFile": plan}).num_rows == scan(given).num_rows > 0
    with pytest.raises(InvalidOptionError, match=r"'assign'.*'planFile'"):
        kts_source.plan({**source, "assign": '{"t":[0,8]}', "planFile": plan})


def test_replay_applies_columns_and_where(source: dict[str, str], tmp_path: Path) -> None:
    plan = planned(tmp_path, source)
    asked = {**source, "columns": "offset", "where": "offset IN (3, 12)", "planFile": plan}
    assert scan(asked).to_pydict() == {"offset": [3, 12]}


def test_replay_of_plan_with_hole_fails(tmp_path: Path) -> None:
    write_tier(tmp_path / "tier", without=1)
    given = {"path": str(tmp_path / "tier"), "keyPrefix": "p-", "subscribe": "t"}
    plan = planned(tmp_path, {**given, "failOnDataLoss": "false"})
    assert scan({**given, "failOnDataLoss": "false", "planFile": plan}).num_rows == 21
    document = json.loads((tmp_path / "plan.json").read_text())
    document["madeWith"]["failOnDataLoss"] = True
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(DataLossError, match=r"\[10, 20\)"):
        kts_source.plan({**given, "planFile": plan})


class GuardedFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files that are given to whoever knows a token."""

    protocol = "guarded"

    def __init__(self, token: str | None = None, **options: object) -> None:
        super().__init__(**options)
        if token != "sesame":
            raise PermissionError("who are you?")


def test_plan_file_is_opened_with_storage_options_of_tier(
    source: dict[str, str], tmp_path: Path
) -> None:
    fsspec.register_implementation("guarded", GuardedFiles, clobber=True)
    given = {
        **source,
        "path": f"guarded://{tmp_path}/tier",
        "storageOptions": '{"token":"sesame"}',
    }
    plan = planned(tmp_path, given)
    assert scan({**given, "planFile": f"guarded://{plan}"}).num_rows == 28
    # Another kind of store is not handed the options of the tier's.
    assert scan({**given, "planFile": plan}).num_rows == 28
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
        (b'{"version":%d}' % version, f"version '{version}'.*version 4 only: plan again")
        for version in (1, 2, 3, 5)
    ),
    (b'{"version":true}', "version 'True'"),
    (b'{"version":[]}', "version"),
    (b'{"version":4,"segments":[{}]}', "not a plan"),
    (b'{"version":4,"segments":5}', "not a plan"),
]


@pytest.mark.parametrize(("data", "says"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_invalid_plan_file_is_refused_by_name(
    data: bytes, says: str, source: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(data)
    with pytest.raises(InvalidOptionError, match=rf"'planFile' \(.*bad\.json\): .*{says}"):
        kts_source.plan({**source, "planFile": str(file)})


@pytest.mark.parametrize("name", ["none.json", "tier", "/", "no://where/plan.json", "memory://x"])
def test_missing_plan_file_is_refused_by_name(
    name: str, source: dict[str, str], tmp_path: Path
) -> None:
    path = name if "/" in name else str(tmp_path / name)
    with pytest.raises(TieredKafkaError, match=r"'planFile'") as caught:
        kts_source.plan({**source, "planFile": path})
    assert path in str(caught.value)


def test_large_plan_file_is_refused_by_name(
    source: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, source)
    monkeypatch.setattr("kts_source.planning.replay._MAX_BYTES", 100)
    with pytest.raises(TieredKafkaError, match=r"'planFile'.*100 allowed"):
        kts_source.plan({**source, "planFile": plan})


def test_plan_file_url_query_is_not_in_errors(source: dict[str, str]) -> None:
    file = "http://localhost:1/plan.json?X-Amz-Signature=c0ffee"
    given = {**source, "planFile": file, "maxAttempts": "1"}
    with pytest.raises(TieredKafkaError, match="'planFile'") as caught:
        kts_source.plan(given)
    assert "c0ffee" not in str(caught.value)
    assert "c0ffee" not in repr(caught.value)


def paths_to_values(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of all values but the whole, lists and objects too."""
    inner: list[tuple[Any, object]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    if isinstance(value, list):
        inner = list(enumerate(value))
    found = [path] if path else []
    for key, one in inner:
        found += paths_to_values(one, (*path, key))
    return found


def replaced(document: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    at: Any = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return changed


def upper(value: object) -> object:
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
    upper,
]


def test_mutated_plan_returns_same_rows_or_fails(source: dict[str, str], tmp_path: Path) -> None:
    """Each value of a plan in turn: what is read stays within the plan's own rows."""
    given = {**source, "endingOffsets": by_partition(15), "targetPartitionBytes": "300"}
    plan = planned(tmp_path, given)
    document = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "secret").write_bytes(b"x" * 1000)
    seen = 0
    for path in paths_to_values(document):
        if path[0] in ("segments", "tasks") and path[1:2] > (0,):
            continue  # they are as the first
        at: Any = document
        for step in path:
            at = at[step]
        for change in HOSTILE:
            text = json.dumps(replaced(document, path, change(at)))
            try:
                ScanPlan.from_json(text)
            except InvalidOptionError:
                seen += 1
                continue
            if change is not upper:
                # What can be read as a plan is compared with the tier.
                (tmp_path / "plan.json").write_text(text)
                try:
                    kts_source.plan({**given, "planFile": plan})
                except TieredKafkaError:
                    seen += 1
    assert seen > 500


@pytest.mark.parametrize("key", ["../tier/secret", "/etc/passwd", "a/../../secret", "./x"])
def test_plan_key_outside_root_is_refused(key: str, source: dict[str, str], tmp_path: Path) -> None:
    plan = planned(tmp_path, source)
    document = json.loads((tmp_path / "plan.json").read_text())
    for entry in document["segments"][0]["objects"].values():
        entry[0] = key
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(InvalidOptionError, match="'planFile'"):
        kts_source.plan({**source, "planFile": plan})


def test_chunk_count_is_bounded_by_object_size(source: dict[str, str], tmp_path: Path) -> None:
    plan = planned(tmp_path, source)
    document = json.loads((tmp_path / "plan.json").read_text())
    segment = document["segments"][0]
    size = segment["objects"][segment["facts"][6]][1]
    for chunks in ([1, (1 << 31) - 1, 0, size], [1, 1 << 20, 1, 1], [1, 1 << 30, 1, 1]):
        segment["facts"][8] = chunks
        (tmp_path / "plan.json").write_text(json.dumps(document))
        with pytest.raises(InvalidOptionError, match="'planFile'"):
            kts_source.plan({**source, "planFile": plan})


@pytest.mark.parametrize("twice", ["task", "slice", "partition"])
def test_plan_with_repeated_slices_is_refused(
    twice: str, source: dict[str, str], tmp_path: Path
) -> None:
    plan = planned(tmp_path, source)
    document = json.loads((tmp_path / "plan.json").read_text())
    if twice == "task":
        document["tasks"] *= 2
    elif twice == "slice":
        document["tasks"][0] *= 2
    else:
        document["partitions"] *= 2
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(InvalidOptionError, match=re.escape("'planFile'")):
        kts_source.plan({**source, "planFile": plan})


def test_describe_ignores_plan_file(source: dict[str, str], tmp_path: Path) -> None:
    plan = planned(tmp_path, {**source, "endingOffsets": by_partition(12)})
    (mark,) = kts_source.describe({**source, "planFile": plan}).partitions
    assert mark.tier_end == 40
