"""Tests exports with a table per topic, as for the target `lake/{topic}`."""

from __future__ import annotations

import json
import pickle
import re
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kts_source import backfill
from kts_source.cli.app import main
from kts_source.errors import (
    DataLossError,
    InvalidOptionError,
    RejectedRowsError,
    SchemaChangedError,
    StoreUnavailableError,
    TopicNotFoundError,
    TopicsFailedError,
)
from kts_source.export.by_topic import TableExport, exports_of, run_exports
from kts_source.export.end_offsets import end_offsets
from kts_source.export.report import empty_report, failure_to_prometheus
from kts_source.options import parse_options
from tests.kts_source.read.typed_tier import SCHEMA, avro, write
from tests.schema_registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

JSON = {"value.format": "json", "value.schema": "id bigint"}
AVRO = {"value.format": "avro", "value.schema": json.dumps(SCHEMA)}
OPTIONS: dict[str, dict[str, Any]] = {"clicks": JSON, "orders": AVRO}


@pytest.fixture
def tier(tmp_path: Path) -> dict[str, str]:
    """Writes three topics, with values in JSON, Avro and text. Returns options that read them."""
    topics: dict[str, list[bytes | None]] = {
        "clicks": [b'{"id": %d}' % n for n in range(12)],
        "orders": [avro(n) for n in range(15)],
        "texts.v1": [b"text %d" % n for n in range(3)],
    }
    options = [
        write(tmp_path / "tier", [values], topic, uuid.UUID(int=number))
        for number, (topic, values) in enumerate(topics.items(), 1)
    ]
    return options[0] | {"subscribe": ",".join(topics)}


def run(tier: dict[str, str], tmp_path: Path, **arguments: Any) -> Any:  # noqa: ANN401
    return backfill(
        None,
        source=tier,
        target=tmp_path / "lake" / "{topic}",
        progress=False,
        **{"topic_options": OPTIONS, **arguments},
    )


def values_in(folder: Path) -> list[Any]:
    table = ds.dataset(folder, format="parquet").to_table().sort_by("offset")
    return list(table["value"].to_pylist())


def test_each_topic_is_exported_into_its_table_with_its_format(
    tier: dict[str, str], tmp_path: Path
) -> None:
    report = run(tier, tmp_path)
    lake = tmp_path / "lake"
    assert values_in(lake / "clicks") == [{"id": n} for n in range(12)]
    assert [value["amount"] for value in values_in(lake / "orders")] == list(range(15))
    assert values_in(lake / "texts.v1") == [b"text 0", b"text 1", b"text 2"]
    assert (report.rows, report.commits, report.target) == (30, 3, str(lake / "{topic}"))
    assert [(table.target, table.rows) for table in report.tables] == [
        (str(lake / "clicks"), 12),
        (str(lake / "orders"), 15),
        (str(lake / "texts.v1"), 3),
    ]
    assert report.newest_ms == max(table.newest_ms for table in report.tables)
    assert str(report).count("Exported to") == 3
    assert run(tier, tmp_path).rows == 0


def test_other_topics_are_exported_if_a_topic_fails(tier: dict[str, str], tmp_path: Path) -> None:
    wrong = OPTIONS | {"clicks": {"value.format": "json", "value.schema": "id string"}}
    with pytest.raises(TopicsFailedError, match=r"1 of 3 topics.*clicks: the value does") as raised:
        run(tier, tmp_path, topic_options=wrong)
    assert list(raised.value.errors) == ["clicks"]
    assert not raised.value.retriable
    report: Any = raised.value.report
    assert [table.rows for table in report.tables] == [15, 3]
    assert len(values_in(tmp_path / "lake" / "orders")) == 15
    assert [table.rows for table in run(tier, tmp_path).tables] == [12, 0, 0]


def test_unexpected_error_of_a_topic_is_reported_with_class_and_traceback(
    tier: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "{topic}"
    bug = KeyError("amount")

    def fail(export: TableExport) -> Any:  # noqa: ANN401
        if export.topic == "orders":
            raise bug
        return empty_report(export.settings.target, "parquet")

    with pytest.raises(TopicsFailedError, match="orders: KeyError: 'amount'") as raised:
        run_exports(target, exports_of(tier, target, {}), fail)
    assert raised.value.__cause__ is bug
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is bug


def test_topics_failed_error_is_retriable_if_all_topic_errors_are() -> None:
    outage, loss = StoreUnavailableError("down"), DataLossError("lost")
    for errors, expected in (({"a": outage}, True), ({"a": outage, "b": loss}, False)):
        error = TopicsFailedError("text", errors=errors)
        assert error.retriable is expected
        restored = pickle.loads(pickle.dumps(error))
        assert (restored.retriable, list(restored.errors)) == (expected, list(errors))
    assert not TopicsFailedError.retriable


def test_metrics_have_samples_of_each_topic() -> None:
    done = replace(empty_report("lake/a", "parquet"), rows=7)
    report = replace(empty_report("lake/{topic}", "parquet"), tables=(done,))
    errors = {"b": RejectedRowsError("text", rejected=5, records=9)}
    error = TopicsFailedError("text", errors=errors, targets={"b": "lake/b"}, report=report)
    text = failure_to_prometheus("lake/{topic}", error)
    assert 'kts_export_success{target="lake/a"} 1\nkts_export_success{target="lake/b"} 0' in text
    assert 'kts_export_rejected_rows{target="lake/b"} 5' in text
    assert 'kts_export_rows{target="lake/a"} 7' in text
    assert len(re.findall("# TYPE kts_export_success", text)) == 1
    assert report.to_prometheus().count("lake/a") == done.to_prometheus().count("lake/a")


def test_options_of_a_topic_replace_options_of_the_source(tmp_path: Path) -> None:
    source = {
        "path": str(tmp_path),
        "assign": '{"a": [0, 1], "b": [2], "c": [3]}',
        "startingOffsets": '{"a": {"0": 5}, "c": {"3": -2}}',
        "value.format": "json",
        "value.schema": "id bigint",
        "value.mode": "PERMISSIVE",
        "key.format": "utf8",
    }
    own: Any = {"b": {"VALUE.Format": "avro", "value.schema": json.dumps(SCHEMA)},
                "c": {"value.format": "raw", "startingOffsets": "earliest"}}  # fmt: skip
    a, b, c = exports_of(source, tmp_path / "{topic}", own)
    assert a.source == source | {"assign": '{"a": [0, 1]}', "startingOffsets": '{"a": {"0": 5}}'}
    assert b.source == {
        "path": str(tmp_path),
        "assign": '{"b": [2]}',
        "value.mode": "PERMISSIVE",
        "key.format": "utf8",
        **own["b"],
    }
    assert c.source == {
        "path": str(tmp_path),
        "assign": '{"c": [3]}',
        "key.format": "utf8",
        **own["c"],
    }


def test_each_topic_uses_the_latest_schema_of_its_subject(
    tier: dict[str, str], tmp_path: Path
) -> None:
    def latest(schema_id: int, kind: str) -> dict[str, Any]:
        fields = [{"name": "x", "type": kind}]
        schema = {"type": "record", "name": f"R{schema_id}", "fields": fields}
        return {"id": schema_id, "version": 1, "schema": json.dumps(schema)}

    documents = {
        "/subjects/clicks-value/versions/latest": latest(1, "int"),
        "/subjects/shop.Order/versions/latest": latest(2, "string"),
    }
    server = Registry(documents)
    server.authorization = None
    with server.serving():
        source = tier | {"subscribe": "clicks,orders"}
        source |= {"value.format": "avro-confluent", "value.schema-registry.url": server.url}
        own = {"orders": {"value.subject": "shop.Order"}}
        exports = exports_of(source, tmp_path / "{topic}", own)
        (clicks,), (orders,) = (parse_options(each.source).formats for each in exports)
    assert (str(clicks.type), str(orders.type)) == ("struct<x: int32>", "struct<x: string>")


def test_subscribe_pattern_selects_topics_of_the_tier(tier: dict[str, str], tmp_path: Path) -> None:
    del tier["subscribe"]
    report = run(tier | {"subscribePattern": "s$"}, tmp_path)
    assert [table.target.rpartition("/")[2] for table in report.tables] == ["clicks", "orders"]
    with pytest.raises(TopicNotFoundError, match="no topic matches 'none'"):
        run(tier | {"subscribePattern": "none"}, tmp_path)


def test_subscribe_pattern_selects_damaged_topics_but_not_copies_in_progress(
    tier: dict[str, str], tmp_path: Path
) -> None:
    for path in (tmp_path / "tier").glob("clicks-*/0/*.rsm-manifest"):
        path.write_text("{")
    (orders,) = (tmp_path / "tier").glob("orders-*/0/00000000000000000010-*.rsm-manifest")
    copy = tmp_path / "tier" / f"new-{orders.parts[-3].removeprefix('orders-')}" / "0"
    copy.mkdir(parents=True)
    (copy / orders.with_suffix(".log").name).write_bytes(b"incomplete")
    del tier["subscribe"]
    tier |= {"subscribePattern": ".*", "failOnDataLoss": "true"}
    with pytest.raises(TopicsFailedError, match=r"1 of 3 topics.*clicks: manifest") as raised:
        run(tier, tmp_path)
    assert list(raised.value.errors) == ["clicks"]
    report: Any = raised.value.report
    assert [table.rows for table in report.tables] == [15, 3]
    with pytest.raises(TopicNotFoundError, match="'new' has a complete segment"):
        run(tier | {"subscribePattern": "new"}, tmp_path)


def test_subscribe_pattern_is_not_limited_by_bytes_of_exported_topics(
    tier: dict[str, str], tmp_path: Path
) -> None:
    del tier["subscribe"]
    tier["subscribePattern"] = ".*"
    assert run(tier, tmp_path).rows == 30
    assert run(tier | {"maxPlanBytes": "1"}, tmp_path).rows == 0


def test_iceberg_table_names_have_underscores_for_dots(
    tier: dict[str, str], tmp_path: Path
) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "name": "lake"}
    catalog["warehouse"] = tmp_path.as_uri()
    arguments: Any = {"table_format": "iceberg", "catalog": catalog, "progress": False}
    tier["subscribe"] = "texts.v1"
    report = backfill(None, source=tier, target="shop.{topic}_raw", **arguments)
    assert report.tables[0].target == "shop.texts_v1_raw"
    opened = load_catalog("lake", **{k: v for k, v in catalog.items() if k != "name"})
    assert opened.load_table("shop.texts_v1_raw").scan().to_arrow().num_rows == 3
    opened.close()
    tier["subscribe"] = "texts.v1,texts_v1"
    with pytest.raises(InvalidOptionError, match=r"have the same table shop\.texts_v1"):
        backfill(None, source=tier, target="shop.{topic}", **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topic_options": {"click": JSON}}, "names click, but the options select clicks, orders"),
        (
            {"source": {"startingOffsets": '{"orderz": {"0": 5}}'}},
            "'startingOffsets' names orderz, but the options select clicks, orders, texts.v1",
        ),
        ({"source": {"assign": '{"orders": [0]}'}}, "subscribe and assign are set"),
        (
            {"topic_options": {"orders": {"topicId": {"clicks": "lZ6vvmajTWKDBUTV6SQAtQ"}}}},
            "'topicId' names clicks, but the options select orders",
        ),
        *(
            (
                {"topic_options": {"orders": {name: text}}},
                f"topic_options of 'orders' have option '{name}'",
            )
            for name, text in (
                ("subscribe", "clicks"),
                ("SubscribePattern", ".*"),
                ("assign", '{"clicks": [0]}'),
                ("planFile", "plan.json"),
            )
        ),
        ({"follow": True}, "follow each topic in a process of its own"),
        ({"target": "lake"}, r"the values of only one of them are decoded.*with \{topic\}"),
        (
            {"target": "lake", "topic_options": {}, "dead_letters": "{topic}"},
            r"dead_letters contains \{topic\}, but the target does not",
        ),
    ],
)
def test_contradicting_arguments_are_refused(
    changes: dict[str, Any], message: str, tier: dict[str, str], tmp_path: Path
) -> None:
    arguments: Any = {"target": tmp_path / "{topic}", "topic_options": OPTIONS, **changes}
    arguments["source"] = tier | changes.get("source", {})
    with pytest.raises(InvalidOptionError, match=message):
        backfill(None, progress=False, **arguments)


def test_end_offsets_refuses_target_with_several_tables(tier: dict[str, str]) -> None:
    with pytest.raises(InvalidOptionError, match="name the table of one topic"):
        end_offsets(source=tier, target="lake/{topic}")


def test_command_prints_all_reports_and_names_the_failing_topic(
    tier: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = tmp_path / "metrics.prom"
    arguments = ["export", tier["path"], tier["subscribe"], str(tmp_path / "lake" / "{topic}")]
    arguments += ["--workers", "1", "-o", "cache=false", "--prometheus", str(metrics)]
    arguments += ["--topic-option", "clicks:value.format=json"]
    bad = ["--topic-option", "clicks:value.schema=id string"]
    letters = ["--dead-letters", str(tmp_path / "letters" / "{topic}")]
    assert main([*arguments, *bad]) == 4
    output = capsys.readouterr()
    assert output.out.count("Exported to") == 2
    assert "1 of 3 topics were not exported" in output.err
    assert "clicks: the value does not match" in output.err
    assert f'kts_export_success{{target="{tmp_path}/lake/clicks"}} 0' in metrics.read_text()
    # With dead letters, all records are rejected: exit code 4 of `RejectedRowsError`.
    assert main([*arguments, *bad, *letters]) == 4
    good = ["--topic-option", "clicks:value.schema=id bigint"]
    assert main([*arguments, *good, *letters, "--json"]) == 0
    capsys.readouterr()
    assert values_in(tmp_path / "lake" / "clicks") == [{"id": n} for n in range(12)]
    assert f'kts_export_success{{target="{tmp_path}/lake/clicks"}} 1' in metrics.read_text()
    assert main([*arguments, "--topic-option", "clicks"]) == 2
    assert "must be TOPIC:NAME=VALUE" in capsys.readouterr().err


def test_dry_run_names_every_topic_that_would_fail(
    tier: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"value.format": "json", "value.schema": "id boolean"}
    damaged = {"value.format": "avro", "value.schema": "{"}
    own = {"clicks": wrong, "orders": damaged, "texts.v1": wrong}
    with pytest.raises(TopicsFailedError, match=r"1 of 3 topics would fail.*orders: ") as raised:
        run(tier, tmp_path, topic_options=own, dry_run=True)
    report: Any = raised.value.report
    assert [(table.rejected, table.rows_read) for table in report.tables] == [(12, 12), (3, 3)]
    arguments = ["export", tier["path"], tier["subscribe"], str(tmp_path / "lake" / "{topic}")]
    arguments += ["--workers", "1", "-o", "cache=false", "--dry-run"]
    for topic, options in own.items():
        for name, text in options.items():
            arguments += ["--topic-option", f"{topic}:{name}={text}"]
    assert main(arguments) == 1  # errors of several kinds
    output = capsys.readouterr()
    assert output.out.count("Dry run of") == 2
    assert "3 of 3 topics would fail" in output.err
    for text in ("clicks: 12 of 12 sampled", "orders: ", "texts.v1: 3 of 3 sampled"):
        assert text in output.err
    assert not (tmp_path / "lake").exists()
    assert main([*arguments, "--topic-option", "orders:value.format=json",
                 "--topic-option", "orders:value.schema=id boolean"]) == 4  # fmt: skip


def test_invalid_options_of_topics_are_an_error_that_names_all_topics(
    tier: dict[str, str], tmp_path: Path
) -> None:
    own = {"clicks": {"subscribe": "a"}, "orders": {"assign": "{}"}}
    with pytest.raises(InvalidOptionError, match=r"clicks: .*'subscribe'.*; orders: .*'assign'"):
        run(tier, tmp_path, topic_options=own)


def test_exports_with_different_formats_share_a_table_if_their_types_are_equal(
    tmp_path: Path,
) -> None:
    values: dict[str, list[bytes | None]] = {"a": [b'{"id": 1}'], "b": [b"\2\4"], "c": [b"\2\6"]}
    for number, (topic, of_topic) in enumerate(values.items(), 1):
        source = write(tmp_path / "tier", [of_topic], topic, uuid.UUID(int=number))
    own = {
        "a": {"value.format": "json", "value.schema": "id int"},
        **{
            topic: {"value.format": "avro", "value.schema": json.dumps(
                {"type": "record", "name": "R", "fields": [{"name": "id", "type": kind}]}
            )}
            for topic, kind in (("b", ["null", "int"]), ("c", ["null", "long"]))
        },
    }  # fmt: skip
    arguments: Any = {"target": tmp_path / "lake", "table_format": "delta"}
    arguments["progress"] = False
    for topic in ("a", "b"):
        single = source | {"subscribe": topic, **own[topic]}
        backfill(None, source=single, export_id=topic, **arguments)
    table = DeltaTable(tmp_path / "lake").to_pyarrow_table().sort_by("topic")
    assert table["topic"].to_pylist() == ["a", "b"]
    assert table["value"].to_pylist() == [{"id": 1}, {"id": 2}]
    other = source | {"subscribe": "c", **own["c"]}
    with pytest.raises(SchemaChangedError, match=r"value\.id is int32 in the table and int64"):
        backfill(None, source=other, export_id="c", **arguments)


@pytest.mark.parametrize(
    ("letters", "is_refused"),
    [("{topic}.bad", True), ("bad/{topic}", False), ("orders.bad", True), ("{topic}_bad", False)],
)
def test_dead_letters_in_the_table_of_another_topic_are_refused(
    letters: str, is_refused: bool, tmp_path: Path
) -> None:
    source = {"path": str(tmp_path), "subscribe": "orders,orders.bad"}
    arguments: Any = {"dead_letters": tmp_path / letters}
    target = tmp_path / "{topic}"
    if is_refused:
        with pytest.raises(InvalidOptionError, match=r"orders\.bad, so its readers"):
            exports_of(source, target, {}, **arguments)
    else:
        assert len(exports_of(source, target, {}, **arguments)) == 2
    delta = exports_of(source, target, {}, table_format="delta", **arguments)
    assert len(delta) == 2


def test_topic_without_assigned_partitions_is_ignored(tier: dict[str, str], tmp_path: Path) -> None:
    del tier["subscribe"]
    tier["assign"] = json.dumps({"clicks": [0], "orders": [], "texts.v1": []})
    assert [table.rows for table in run(tier, tmp_path, topic_options={}).tables] == [12]
    with pytest.raises(InvalidOptionError, match="topic_options names orders"):
        run(tier, tmp_path, topic_options={"orders": AVRO})
