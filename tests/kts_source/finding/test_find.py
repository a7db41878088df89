"""Tests `kts_source.find` on tiers that a real broker wrote. Checks the matching rows and the
certificate, which reports the offsets that were searched.
"""

from __future__ import annotations

import json
import pickle
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import kts_source
from kts_source.errors import InvalidOptionError
from kts_source.finding.query import digest_of_keys
from tests.golden_data import (
    ISOLATION_LEVELS,
    TOPICS,
    assert_same_rows,
    expected_table,
    rows,
    tier_options,
)
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.finding.query import Conditions
    from tests.golden_data import IsolationLevel, Row

COLUMNS = "key,value,topic,partition,offset,timestamp,timestampType,headers"
KEY, VALUE, HEADERS = 0, 1, 7


def expected_rows(
    topic: str, matches: Callable[[Row], bool], level: IsolationLevel = "read_uncommitted"
) -> pa.Table:
    table = expected_table(topic, level)
    return table.filter(pa.array([matches(row) for row in rows(table)], pa.bool_()))


def search(topic: str, options: dict[str, str] | None = None, **conditions: Any) -> Any:  # noqa: ANN401
    find_conditions: Conditions = conditions  # type: ignore[assignment]
    return kts_source.find(tier_options(topic, columns=COLUMNS, **options or {}), **find_conditions)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("level", only(1, ISOLATION_LEVELS))
def test_find_by_keys_returns_all_matching_rows(topic: str, level: IsolationLevel) -> None:
    all_rows = rows(expected_table(topic, level))
    existing_keys = [*dict.fromkeys(row[KEY] for row in all_rows)]
    for keys in ({*existing_keys[::7], b"unknown key", None}, {existing_keys[0]}):
        expected = expected_rows(topic, partial(_has_key, keys), level)
        result = search(topic, {"isolationLevel": level}, keys=keys)
        assert_same_rows(result.to_table(), expected)
        certificate = result.certificate
        assert certificate.records == len(all_rows)
        assert certificate.keys == len(keys)
        assert certificate.key_digest == digest_of_keys(keys)
        assert certificate.complete == all(
            not partition.undecided for partition in certificate.partitions
        )
        assert certificate.complete or level == "read_committed"


def _has_key(keys: set[bytes | None], row: Row) -> bool:
    return row[KEY] in keys


def test_find_returns_aborted_records_by_default() -> None:
    committed = search("txn", {"isolationLevel": "read_committed"}, keys=[b"k1", None])
    uncommitted = search("txn", keys=[b"k1", None])
    assert uncommitted.to_table().num_rows > committed.to_table().num_rows > 0
    assert uncommitted.certificate.isolation_level == "read_uncommitted"
    assert uncommitted.certificate.complete
    text = "Records of aborted transactions are in the tier and were skipped."
    assert text in committed.certificate.assumptions
    assert text not in uncommitted.certificate.assumptions


@pytest.mark.parametrize("topic", ["codecs", "wide", "timeline"])
def test_find_by_values_and_headers_returns_matching_rows(topic: str) -> None:
    all_rows = rows(expected_table(topic, "read_uncommitted"))
    values = [row[VALUE] for row in all_rows if row[VALUE]]
    fragment = values[len(values) // 2][1:4]
    name = next((name for row in all_rows for name, _ in row[HEADERS]), "unknown header")
    header = next(
        (header for row in all_rows for header in row[HEADERS] if header[1] is not None), None
    )

    def has_fragment(row: Row) -> bool:
        return row[VALUE] is not None and fragment in row[VALUE]

    def has_name(row: Row) -> bool:
        return name in [header_name for header_name, _ in row[HEADERS]]

    def has_header(row: Row) -> bool:
        return header in row[HEADERS] and has_fragment(row)

    cases: list[tuple[dict[str, Any], Callable[[Row], bool]]] = [
        ({"value_contains": fragment}, has_fragment),
        ({"headers": [name]}, has_name),
    ]
    if header is not None:
        cases.append(({"headers": [header], "value_contains": fragment}, has_header))
    for conditions, matches in cases:
        result = search(topic, **conditions)
        assert_same_rows(result.to_table(threads=1), expected_rows(topic, matches))
        assert result.certificate.complete


def test_find_with_value_matches_searches_the_bytes_of_values() -> None:
    all_rows = rows(expected_table("codecs", "read_uncommitted"))
    pattern = rb"[0-9]{2}[a-f]"
    result = search("codecs", value_matches=pattern.decode())
    expected = [
        row for row in all_rows if row[VALUE] is not None and re.search(pattern, row[VALUE])
    ]
    assert 0 < len(expected) < len(all_rows)
    assert result.to_table().num_rows == len(expected)


def test_find_by_producer_ids_and_where_returns_matching_rows() -> None:
    table = kts_source.scan(
        tier_options("txn", columns="offset,partition,producerId,timestamp")
        | {"isolationLevel": "read_uncommitted"}
    ).to_table()
    producers = table["producerId"].to_pylist()
    all_ids = sorted({producer for producer in producers if producer is not None})
    ids = all_ids[: len(all_ids) // 2]
    result = search("txn", producer_ids=ids).to_table()
    assert result.num_rows == sum(producer in ids for producer in producers) > 0
    limited = search("txn", {"where": "offset >= 100 and partition = 1"}, producer_ids=ids)
    records = zip(
        *(table[name].to_pylist() for name in ("partition", "offset", "producerId")), strict=True
    )
    expected = [
        offset
        for partition, offset, producer in records
        if partition == 1 and offset >= 100 and producer in ids
    ]
    assert limited.to_table()["offset"].to_pylist() == expected
    (condition, *_) = limited.certificate.conditions
    assert condition.startswith("where ")
    assert any("time indexes" in text for text in limited.certificate.assumptions)


def test_certificate_counts_all_records_for_any_number_of_matches() -> None:
    """If most rows match, the decoder changes its strategy in the middle of a segment."""
    count = expected_table("codecs", "read_uncommitted").num_rows
    for where in ("timestampType >= 0", "timestampType < 0", "key = 'unknown'"):
        result = search("codecs", {"where": where})
        result.to_table(threads=1)
        assert result.certificate.records == count, where


def test_find_searches_all_topics_of_a_pattern() -> None:
    options = tier_options("x", columns="topic,partition,offset")
    del options["subscribe"]
    result = kts_source.find({**options, "subscribePattern": ".*"}, keys=[None])
    keyless = partial(_has_key, {None})
    expected = sum(expected_rows(topic, keyless).num_rows for topic in TOPICS)
    assert result.to_table().num_rows == expected
    assert {partition.topic for partition in result.certificate.partitions} >= set(TOPICS)


def test_find_in_filtered_scan_searches_only_its_rows() -> None:
    scan = kts_source.scan(tier_options("codecs", columns="partition,offset,key"))
    keys = [key for key in scan.to_table()["key"].to_pylist() if key][:3]
    result = scan.where("partition = 0").find(keys=keys)
    filtered = scan.where("partition = 0").to_table()
    expected = [row for row in rows(filtered) if row[2] in keys]
    assert rows(result.to_table()) == expected
    assert len(expected) > 0
    with pytest.raises(InvalidOptionError, match="after limit"):
        scan.limit(3).find(keys=keys)


def test_certificate_is_available_only_after_a_completed_read() -> None:
    result = search("codecs", keys=[None, b"x"])
    with pytest.raises(RuntimeError, match="read the batches to the end"):
        _ = result.certificate
    batches = result.batches()
    batches.close()
    with pytest.raises(RuntimeError, match="read the batches to the end"):
        _ = result.certificate
    result.to_table()
    document = json.loads(result.certificate.to_json())
    assert document["complete"] is True
    assert document["version"] == 1
    assert document["matches"] == sum(partition["matches"] for partition in document["partitions"])
    assert {"start", "stop", "unread", "undecided", "unserved", "objectsDigest", "topicId"} <= set(
        document["partitions"][0]
    )
    pickle.loads(pickle.dumps(result.certificate))


@pytest.mark.parametrize(
    ("conditions", "options", "text"),
    [
        ({"keys": []}, {}, "at least one key"),
        ({}, {}, "no condition"),
        ({"value_matches": "("}, {}, "not a valid regular expression"),
        ({"value_contains": "x"}, {"value.format": "utf8"}, "remove value.format"),
        ({"keys": [b"x"]}, {"kafka.bootstrap.servers": "localhost:1"}, "remove option kafka"),
        ({"keys": [b"x"]}, {"planFile": "plan.json"}, "remove option planFile"),
    ],
)
def test_find_refuses_invalid_conditions(
    conditions: dict[str, Any], options: dict[str, str], text: str
) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        search("codecs", options, **conditions)
