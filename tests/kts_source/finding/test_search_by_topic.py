"""Tests searches over topics with options of their own, such as formats."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from kts_source import find
from kts_source.cli.app import main
from kts_source.errors import InvalidOptionError
from tests.kts_source.read.typed_tier import SCHEMA, avro, write

if TYPE_CHECKING:
    from pathlib import Path

FORMATS: dict[str, dict[str, Any]] = {
    "clicks": {"value.format": "json", "value.schema": "id bigint"},
    "orders": {"value.format": "avro", "value.schema": json.dumps(SCHEMA)},
}
TOPICS: dict[str, list[bytes | None]] = {
    "clicks": [b'{"id": %d}' % n for n in range(12)],
    "orders": [avro(n) for n in range(15)],
    "texts": [b"text %d" % n for n in range(3)],
}


@pytest.fixture
def tier(tmp_path: Path) -> dict[str, str]:
    """Writes the topics. The record at offset n has the key `kn`."""
    options = [
        write(tmp_path / "tier", [values], topic, uuid.UUID(int=number))
        for number, (topic, values) in enumerate(TOPICS.items(), 1)
    ]
    return options[0] | {"subscribe": ",".join(TOPICS)}


def rows(search: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
    """Returns topic and value of all records of a search."""
    return [(row["topic"], row["value"]) for batch in search.batches() for row in batch.to_pylist()]


def test_search_decodes_each_topic_with_its_format(tier: dict[str, str]) -> None:
    search = find(tier, topic_options=FORMATS, keys=["k2", "k11"])
    found = rows(search)
    assert [topic for topic, _ in found] == ["clicks", "clicks", "orders", "orders", "texts"]
    values = [value for _, value in found]
    assert (values[:2], values[4]) == ([{"id": 2}, {"id": 11}], b"text 2")
    assert [value["amount"] for value in values[2:4]] == [2, 11]
    with pytest.raises(InvalidOptionError, match="topics clicks and orders have different columns"):
        search.to_table()
    # Do what the error advises.
    assert find(
        {**tier, "columns": "topic,offset"}, topic_options=FORMATS, keys=["k2"]
    ).to_table().to_pylist() == [{"topic": topic, "offset": 2} for topic in TOPICS]


def test_certificate_of_all_topics_names_the_format_of_each(tier: dict[str, str]) -> None:
    own = {**FORMATS, "orders": {**FORMATS["orders"], "where": "value.amount >= 11"}}
    search = find(tier, topic_options=own, keys=["k2", "k11"])
    with pytest.raises(RuntimeError, match="read the batches"):
        _ = search.certificate
    assert len(rows(search)) == 4
    proof = search.certificate
    assert (proof.complete, proof.exhaustive) == (True, True)
    assert (proof.matches, proof.records, proof.keys) == (4, 12 + 15 + 3, 2)
    assert [(each.topic, each.stop) for each in proof.partitions] == [
        ("clicks", 12), ("orders", 15), ("texts", 3),
    ]  # fmt: skip
    clicks, orders = proof.formats
    assert clicks == "clicks: value: json, struct<id: int64>"
    assert orders.startswith("orders: value: avro, struct<country: string")
    (condition,) = proof.conditions
    assert condition.startswith("orders: where ")
    common = [text for text in proof.assumptions if "Brokers were not asked" in text]
    assert len(common) == 1
    assert common[0].startswith("Brokers were not asked")
    assert json.loads(proof.to_json())["formats"] == list(proof.formats)
    single = find({**tier, "subscribe": "clicks", **FORMATS["clicks"]}, keys=["k2"])
    single.to_table()
    assert single.certificate.formats == ("value: json, struct<id: int64>",)


def test_damaged_segment_is_listed_once_and_other_topics_are_searched(
    tier: dict[str, str], tmp_path: Path
) -> None:
    (log,) = (tmp_path / "tier").glob("clicks-*/0/*00010-*.log")
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    search = find(tier, topic_options=FORMATS, keys=["k2", "k11"])
    assert [topic for topic, _ in rows(search)] == ["clicks", "orders", "orders", "texts"]
    proof = search.certificate
    assert not proof.complete
    unread = [(each.topic, part.start) for each in proof.partitions for part in each.unread]
    assert unread == [("clicks", 10)]
    # A format that does not fit leaves the record in the result, with the reason.
    swapped = {"clicks": FORMATS["orders"], "orders": FORMATS["clicks"]}
    batches = list(find(tier, topic_options=swapped, keys=["k3"]).batches())
    assert [batch["value"].to_pylist() for batch in batches] == [[None], [None]]
    assert all(batch["valueError"][0].as_py() for batch in batches)


def test_progress_ends_at_the_size_of_all_topics(tier: dict[str, str]) -> None:
    calls: list[tuple[int, int]] = []
    search = find(tier, topic_options=FORMATS, keys=["k2"])
    for _ in search.batches(threads=1, progress=lambda read, total: calls.append((read, total))):
        pass
    assert [read for read, _ in calls] == sorted(read for read, _ in calls)
    assert calls[-1][0] == calls[-1][1] == calls[0][1]


def test_search_prints_the_topics(tier: dict[str, str]) -> None:
    text = str(find(tier, topic_options=FORMATS, keys=["k2"]))
    assert "clicks" in text
    assert "valueError" in text


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"click": {}}, "topic_options names click, but the options select clicks, orders, texts"),
        ({"orders": {"subscribe": "texts"}}, "only the options of all topics can select topics"),
        (
            {topic: {"value.format": "avro"} for topic in ("clicks", "texts")},
            "clicks: .*value.schema.*; texts: .*value.schema|clicks, texts: .*value.schema",
        ),
    ],
)
def test_invalid_topic_options_are_an_error_that_names_all_topics(
    own: dict[str, Any], message: str, tier: dict[str, str]
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        find(tier, topic_options=own, keys=["k2"])


def test_command_prints_values_in_the_format_of_each_topic(
    tier: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["find", tier["path"], "-o", "cache=false", "--key", "k2"]
    for topic, options in FORMATS.items():
        for name, text in options.items():
            arguments += ["--topic-option", f"{topic}:{name}={text}"]
    proof = tmp_path / "proof.json"
    assert main([*arguments, "--certificate", str(proof)]) == 0
    clicks, orders, texts = map(json.loads, capsys.readouterr().out.splitlines())
    assert (clicks["value"], texts["value"]) == ({"id": 2}, "text 2")
    assert (orders["value"]["amount"], orders["value"]["note"]) == (2, "n2")
    assert not {"valueError", "valueRaw", "valueRawBase64"} & {*clicks, *orders, *texts}
    assert len(json.loads(proof.read_text())["formats"]) == 2
    # All topics need a condition.
    conditions = ["--topic-option", "clicks:where=value.id = 7"]
    without_key = [*arguments[:4], *arguments[6:]]
    assert main([*without_key, *conditions]) == 2
    assert "orders, texts: the search has no condition" in capsys.readouterr().err
    for topic in ("orders", "texts"):
        conditions += ["--topic-option", f"{topic}:where=offset = 2"]
    assert main([*without_key, *conditions]) == 0
    assert [json.loads(line)["offset"] for line in capsys.readouterr().out.splitlines()] == [
        7,
        2,
        2,
    ]


def test_type_of_json_is_inferred_although_offsets_are_missing(tmp_path: Path) -> None:
    tier = write(tmp_path, [[b'{"id": %d}' % n for n in range(30)]], "clicks")
    for file in tmp_path.glob("clicks-*/0/*00010-*"):
        file.unlink()
    search = find(tier, topic_options={"clicks": {"value.format": "json"}}, keys=["k2", "k11"])
    assert rows(search) == [("clicks", {"id": 2})]
    (partition,) = search.certificate.partitions
    assert [(part.start, part.stop) for part in partition.unread] == [(10, 20)]


def test_names_of_topic_options_are_not_case_sensitive(
    tier: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["find", tier["path"], "clicks", "-o", "cache=false"]
    own = ["--topic-option", "clicks:WHERE=offset = 2", "--topic-option", "clicks:COLUMNS=value"]
    assert main([*command, *own]) == 0
    assert json.loads(capsys.readouterr().out) == {"value": '{"id": 2}'}
    assert main([*command, *own, "--offsets"]) == 2
    assert "--offsets and --columns both select columns" in capsys.readouterr().err
