"""`kts_source.find` on what a real broker wrote: the rows expected, and what it certifies."""

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.finding.query import Conditions
    from tests.golden_data import IsolationLevel, Row

COLUMNS = "key,value,topic,partition,offset,timestamp,timestampType,headers"
KEY, VALUE, HEADERS = 0, 1, 7


def expected_rows(
    topic: str, wanted: Callable[[Row], bool], level: IsolationLevel = "read_uncommitted"
) -> pa.Table:
    table = expected_table(topic, level)
    return table.filter(pa.array([wanted(row) for row in rows(table)], pa.bool_()))


def search(topic: str, options: dict[str, str] | None = None, **conditions: Any) -> Any:  # noqa: ANN401
    given: Conditions = conditions  # type: ignore[assignment]
    return kts_source.find(tier_options(topic, columns=COLUMNS, **options or {}), **given)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("level", ISOLATION_LEVELS)
def test_keys(topic: str, level: IsolationLevel) -> None:
    every = rows(expected_table(topic, level))
    there = [*dict.fromkeys(row[KEY] for row in every)]
    for sought in ({*there[::7], b"nobody has this", None}, {there[0]}):
        wanted = expected_rows(topic, partial(_has_key, sought), level)
        found = search(topic, {"isolationLevel": level}, keys=sought)
        assert_same_rows(found.to_table(), wanted)
        proof = found.certificate
        assert proof.records == len(every)
        assert proof.keys == len(sought)
        assert proof.key_digest == digest_of_keys(sought)
        assert proof.complete == all(not part.undecided for part in proof.partitions)
        assert proof.complete or level == "read_committed"


def _has_key(sought: set[bytes | None], row: Row) -> bool:
    return row[KEY] in sought


def test_without_a_level_records_of_aborted_transactions_are_found() -> None:
    committed = search("txn", {"isolationLevel": "read_committed"}, keys=[b"k1", None])
    every = search("txn", keys=[b"k1", None])
    assert every.to_table().num_rows > committed.to_table().num_rows > 0
    assert every.certificate.isolation_level == "read_uncommitted"
    assert every.certificate.complete
    text = "Records of aborted transactions are in the tier and were skipped."
    assert text in committed.certificate.assumptions
    assert text not in every.certificate.assumptions


@pytest.mark.parametrize("topic", ["codecs", "wide", "timeline"])
def test_values_and_headers(topic: str) -> None:
    every = rows(expected_table(topic, "read_uncommitted"))
    values = [row[VALUE] for row in every if row[VALUE]]
    part = values[len(values) // 2][1:4]
    name = next((name for row in every for name, _ in row[HEADERS]), "none has this")
    pair = next((one for row in every for one in row[HEADERS] if one[1] is not None), None)

    def has_part(row: Row) -> bool:
        return row[VALUE] is not None and part in row[VALUE]

    def has_name(row: Row) -> bool:
        return name in [one for one, _ in row[HEADERS]]

    def has_pair(row: Row) -> bool:
        return pair in row[HEADERS] and has_part(row)

    cases: list[tuple[dict[str, Any], Callable[[Row], bool]]] = [
        ({"value_contains": part}, has_part),
        ({"headers": [name]}, has_name),
    ]
    if pair is not None:
        cases.append(({"headers": [pair], "value_contains": part}, has_pair))
    for conditions, wanted in cases:
        found = search(topic, **conditions)
        assert_same_rows(found.to_table(threads=1), expected_rows(topic, wanted))
        assert found.certificate.complete


def test_regular_expressions_look_at_bytes() -> None:
    every = rows(expected_table("codecs", "read_uncommitted"))
    pattern = rb"[0-9]{2}[a-f]"
    found = search("codecs", value_matches=pattern.decode())
    wanted = [r for r in every if r[VALUE] is not None and re.search(pattern, r[VALUE])]
    assert 0 < len(wanted) < len(every)
    assert found.to_table().num_rows == len(wanted)


def test_producers_and_where() -> None:
    table = kts_source.scan(
        tier_options("txn", columns="offset,partition,producerId,timestamp")
        | {"isolationLevel": "read_uncommitted"}
    ).to_table()
    ids = sorted({one for one in table["producerId"].to_pylist() if one is not None})
    some = ids[: len(ids) // 2]
    found = search("txn", producer_ids=some).to_table()
    assert found.num_rows == sum(one in some for one in table["producerId"].to_pylist()) > 0
    limited = search("txn", {"where": "offset >= 100 and partition = 1"}, producer_ids=some)
    places = zip(
        *(table[name].to_pylist() for name in ("partition", "offset", "producerId")), strict=True
    )
    wanted = [at for number, at, one in places if number == 1 and at >= 100 and one in some]
    assert limited.to_table()["offset"].to_pylist() == wanted
    (condition, *_) = limited.certificate.conditions
    assert condition.startswith("where ")
    assert any("time indexes" in text for text in limited.certificate.assumptions)


def test_records_are_counted_whichever_way_a_condition_is_decided() -> None:
    """Where most rows match, the decoder changes its way in the middle of a segment."""
    count = expected_table("codecs", "read_uncommitted").num_rows
    for where in ("timestampType >= 0", "timestampType < 0", "key = 'nobody'"):
        found = search("codecs", {"where": where})
        found.to_table(threads=1)
        assert found.certificate.records == count, where


def test_every_topic_of_a_tier() -> None:
    options = tier_options("x", columns="topic,partition,offset")
    del options["subscribe"]
    found = kts_source.find({**options, "subscribePattern": ".*"}, keys=[None])
    keyless = partial(_has_key, {None})
    wanted = sum(expected_rows(topic, keyless).num_rows for topic in TOPICS)
    assert found.to_table().num_rows == wanted
    assert {part.topic for part in found.certificate.partitions} >= set(TOPICS)


def test_a_scan_finds_in_what_is_left_of_it() -> None:
    whole = kts_source.scan(tier_options("codecs", columns="partition,offset,key"))
    keys = [key for key in whole.to_table()["key"].to_pylist() if key][:3]
    found = whole.where("partition = 0").find(keys=keys)
    plain = whole.where("partition = 0").to_table()
    wanted = [row for row in rows(plain) if row[2] in keys]
    assert rows(found.to_table()) == wanted
    assert len(wanted) > 0
    with pytest.raises(InvalidOptionError, match="after limit"):
        whole.limit(3).find(keys=keys)


def test_the_certificate_is_of_what_was_read_to_the_end() -> None:
    found = search("codecs", keys=[None, b"x"])
    with pytest.raises(RuntimeError, match="read to the end"):
        _ = found.certificate
    batches = found.batches()
    batches.close()
    with pytest.raises(RuntimeError, match="read to the end"):
        _ = found.certificate
    found.to_table()
    document = json.loads(found.certificate.to_json())
    assert document["complete"] is True
    assert document["version"] == 1
    assert document["matches"] == sum(part["matches"] for part in document["partitions"])
    assert {"start", "stop", "unread", "undecided", "unserved", "objectsDigest", "topicId"} <= set(
        document["partitions"][0]
    )
    pickle.loads(pickle.dumps(found.certificate))


@pytest.mark.parametrize(
    ("conditions", "options", "text"),
    [
        ({"keys": []}, {}, "at least one key"),
        ({}, {}, "no condition"),
        ({"value_matches": "("}, {}, "not a valid regular expression"),
        ({"value_contains": "x"}, {"value.format": "utf8"}, "leave out value.format"),
        ({"keys": [b"x"]}, {"kafka.bootstrap.servers": "localhost:1"}, "leave out kafka"),
        ({"keys": [b"x"]}, {"planFile": "plan.json"}, "leave out planFile"),
    ],
)
def test_mistakes(conditions: dict[str, Any], options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        search("codecs", options, **conditions)
