"""Tests exports of topics with different formats into one table."""

from __future__ import annotations

import json
import pickle
import random
import struct
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kts_source
from kts_source.cli.app import main
from kts_source.errors import (
    FingerprintError,
    InvalidOptionError,
    InvalidValueError,
    RejectedRowsError,
    SchemaChangedError,
)
from kts_source.export.by_topic import exports_of
from kts_source.export.task import ExportJob, WriteTarget
from kts_source.options import parse_options
from kts_source.secret import Secret
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import expected_table, tier_options
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.test_follow import Driven
from tests.kts_source.read.typed_tier import (
    OLD,
    SCHEMA,
    T0,
    avro,
    long,
    text,
    write,
    write_two_schemas,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

JSON = {"value.format": "json", "value.schema": "id bigint, country string"}
AVRO = {"value.format": "avro", "value.schema": json.dumps(SCHEMA)}
BOTH = {"clicks": JSON, "orders": AVRO}


def write_topics(folder: Path, topics: Mapping[str, Sequence[bytes | None]]) -> dict[str, str]:
    """Writes topics of one partition each. Returns options that read all of them."""
    for topic, values in topics.items():
        topic_id = uuid.uuid5(uuid.NAMESPACE_URL, topic)
        options = write(folder / "tier", [list(values)], topic, topic_id)
    return options | {"subscribe": ",".join(topics), "maxSegmentsPerTask": "2"}


def click(number: int, **more: Any) -> bytes:  # noqa: ANN401
    return json.dumps({"id": number, "country": "FR", **more}).encode()


@pytest.fixture
def tier(tmp_path: Path) -> dict[str, str]:
    return write_topics(
        tmp_path,
        {"clicks": [click(n) for n in range(12)], "orders": [avro(n) for n in range(15)]},
    )


def values_in(lake: Lake, topic: str) -> list[Any]:
    """Returns the values of a topic in order of offsets. Values in older Parquet files may lack
    fields.
    """
    if lake.table_format == "parquet":
        paths = (lake.folder / "table").glob("*.parquet")
        rows = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    else:
        rows = lake.read().to_pylist()
    of_topic = [row for row in rows if row["topic"] == topic]
    return [row["value"] for row in sorted(of_topic, key=lambda row: row["offset"])]


# -- compared with scans of single topics


def names_in(kind: pa.DataType) -> dict[str, Any]:
    """Returns the names of a struct's fields, each with the names inside it."""
    return {f.name: names_in(f.type) for f in kind} if pa.types.is_struct(kind) else {}


def merged(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {n: merged(first.get(n, {}), other.get(n, {})) for n in {**first, **other}}


def filled(value: Any, names: dict[str, Any]) -> Any:  # noqa: ANN401
    """Returns a value with null for each of the `names` that it lacks."""
    if not names or value is None:
        return value
    return {name: filled(value.get(name), inner) for name, inner in names.items()}


def assert_is_union(lake: Lake, tables: Sequence[pa.Table]) -> None:
    """Asserts that a table has the rows of `tables`. A value has the fields of all of them."""
    names: dict[str, Any] = {}
    for table in tables:
        names = merged(names, names_in(table.schema.field("value").type))
    expected = [
        row | {"value": filled(row["value"], names)}
        for table in tables
        for row in table.to_pylist()
    ]
    order = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    table = lake.read().select(tables[0].column_names)
    assert names_in(table.schema.field("value").type).keys() == names.keys()
    assert table.sort_by(order).to_pylist() == expected


POOL: dict[str, tuple[str, Any]] = {
    "id": ("long", lambda chosen: chosen.randrange(-99, 99)),
    "name": ("string", lambda chosen: chosen.choice(["", "x", "Zürich"])),
    "is_new": ("boolean", lambda chosen: chosen.random() < 0.5),
    "amount": ("double", lambda chosen: chosen.randrange(99) / 4),
}
DDL = {"long": "bigint", "string": "string", "boolean": "boolean", "double": "double"}


def random_topic(chosen: random.Random) -> tuple[dict[str, str], list[bytes | None]]:
    """Returns a format with random fields, one of which may be a struct, and random values."""
    names = chosen.sample(list(POOL), chosen.randint(1, 3))
    inner = chosen.sample(list(POOL), chosen.randint(0, 2))
    rows: list[Any] = [
        {name: POOL[name][1](chosen) for name in names}
        | ({"at": {name: POOL[name][1](chosen) for name in inner}} if inner else {})
        for _ in range(chosen.randint(1, 30))
    ]
    if chosen.random() < 0.5:
        ddl = [f"{name} {DDL[POOL[name][0]]}" for name in names]
        if inner:
            ddl.append(f"at struct<{', '.join(f'{n}: {DDL[POOL[n][0]]}' for n in inner)}>")
        options = {"value.format": "json", "value.schema": ", ".join(ddl)}
        return options, [json.dumps(row).encode() for row in rows]
    fields: list[Any] = [{"name": name, "type": POOL[name][0]} for name in names]
    if inner:
        kind = {"type": "record", "name": "At", "fields": [
            {"name": name, "type": POOL[name][0]} for name in inner
        ]}  # fmt: skip
        fields.append({"name": "at", "type": kind})
    schema = {"type": "record", "name": "R", "fields": fields}
    options = {"value.format": "avro", "value.schema": json.dumps(schema)}
    return options, [
        b"".join(map(avro_bytes, [*(row[n] for n in names), *row.get("at", {}).values()]))
        for row in rows
    ]


def avro_bytes(value: Any) -> bytes:  # noqa: ANN401
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, float):
        return struct.pack("<d", value)
    return text(value) if isinstance(value, str) else long(value)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("table_format", FORMATS)
def test_table_is_the_union_by_name_of_random_topics(
    table_format: str, seed: int, tmp_path: Path
) -> None:
    chosen = random.Random(seed)
    topics = {f"t{number}": random_topic(chosen) for number in range(chosen.randint(2, 4))}
    source = write_topics(tmp_path, {topic: values for topic, (_, values) in topics.items()})
    own = {topic: options for topic, (options, _) in topics.items()}
    lake = Lake(tmp_path, table_format)
    report = lake.export(source, topic_options=own, commit_bytes=chosen.choice([1, 1 << 30]))
    tables = [
        kts_source.scan(source | {"subscribe": topic} | own[topic]).to_table() for topic in topics
    ]
    assert_is_union(lake, tables)
    assert report.rows == sum(table.num_rows for table in tables)
    assert lake.export(source, topic_options=own).rows == 0


@pytest.mark.parametrize("table_format", FORMATS)
def test_golden_json_topics_and_an_avro_format_are_in_one_table(
    table_format: str, tmp_path: Path
) -> None:
    # Most values of golden topics are JSON. The others are invalid, so they are null.
    source = tier_options(["epochs", "retained", "txn"], **{"value.mode": "PERMISSIVE"})
    source["targetPartitionBytes"] = "100k"
    record = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
    own = {
        "epochs": {"value.format": "json", "value.schema": "id bigint, t string"},
        "retained": {"value.format": "json", "value.schema": "n bigint, t string"},
        "txn": {"value.format": "avro", "value.schema": json.dumps(record)},
    }
    lake = Lake(tmp_path, table_format)
    lake.export(source, topic_options=own)
    tables = [
        kts_source.scan(source | {"subscribe": topic} | own[topic]).to_table() for topic in own
    ]
    assert_is_union(lake, tables)
    golden = {topic: expected_table(topic, "read_committed")["value"].to_pylist() for topic in own}
    for topic, name in (("epochs", "id"), ("retained", "n")):
        found = [value[name] for value in values_in(lake, topic) if value is not None]
        documents = [
            json.loads(each) for each in golden[topic] if (each or b"").startswith(b'{"id"')
        ]
        assert sorted(found) == sorted(document[name] for document in documents)
        assert len(found) > 300


def test_fields_partition_and_sort_and_filter_rows_of_all_topics(
    tier: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "delta")
    where = {"where": "value.country <> 'DE'"}
    arguments: Any = {"partition_by": ["value.country"], "sort_within_files": ["value.country"]}
    assert lake.export(tier | where, topic_options=BOTH, **arguments).rows == 22
    table = lake.read()
    countries = table["value_country"].to_pylist()
    assert (countries.count("FR"), countries.count("CH")) == (12, 10)
    with pytest.raises(InvalidOptionError, match=r"clicks: .*value\.amount"):
        lake.export(tier | {"where": "value.amount > 1"}, topic_options=BOTH)
    other = BOTH | {"clicks": JSON | {"value.schema": "id bigint, country int"}}
    with pytest.raises(InvalidOptionError, match="'where' compares a field whose type differs"):
        lake.export(tier | {"where": "value.country is null"}, topic_options=other)


def ids_and_amounts(batch: pa.RecordBatch) -> pa.RecordBatch:
    value = batch["value"]
    columns = {name: pc.struct_field(value, name) for name in ("id", "amount")}
    return pa.RecordBatch.from_pydict({"topic": batch["topic"]} | columns)


def test_transform_gets_the_same_columns_for_all_topics(
    tier: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "parquet")
    lake.export(tier, topic_options=BOTH, transform=ids_and_amounts)
    rows = lake.read().sort_by([("topic", "ascending"), ("id", "ascending")]).to_pylist()
    assert rows[3] == {"topic": "clicks", "id": 3, "amount": None}
    assert sorted(row["amount"] for row in rows[12:]) == list(range(15))
    assert lake.export(tier, topic_options=BOTH, transform=ids_and_amounts).rows == 0


# -- changes between runs


@pytest.mark.parametrize("table_format", FORMATS)
def test_topic_and_fields_are_added_later(table_format: str, tmp_path: Path) -> None:
    pages = {"value.format": "json", "value.schema": "url string"}
    topics = {
        "clicks": [click(n, device="x") for n in range(12)],
        "orders": [avro(n) for n in range(15)],
        "pages": [b'{"url": "/%d"}' % n for n in range(4)],
    }
    source = write_topics(tmp_path, topics)
    two = source | {"subscribe": "clicks,orders"}
    lake = Lake(tmp_path, table_format)
    part = {"endingOffsets": json.dumps({"clicks": {"0": 5}, "orders": {"0": 15}})}
    assert lake.export(two | part, topic_options=BOTH).rows == 20
    longer = JSON | {"value.schema": f"{JSON['value.schema']}, device string"}
    own = {"clicks": longer, "orders": AVRO, "pages": pages}
    with pytest.raises(SchemaChangedError, match="schema_evolution='add' adds the new fields"):
        lake.export(source, topic_options=own)
    assert lake.export(source, topic_options=own, schema_evolution="add").rows == 11
    devices = [value.get("device") for value in values_in(lake, "clicks")]
    assert devices == [None] * 5 + ["x"] * 7
    assert [value["url"] for value in values_in(lake, "pages")] == [f"/{n}" for n in range(4)]
    assert [value["amount"] for value in values_in(lake, "orders")] == list(range(15))
    # A run may also read only some of the topics again.
    only = source | {"subscribe": "pages"}
    assert lake.export(only, topic_options={"pages": pages}, schema_evolution="add").rows == 0
    changed = own | {"pages": pages | {"value.schema": "url bigint"}}
    with pytest.raises(SchemaChangedError, match=r"value\.url is (large_)?string in the table"):
        lake.export(source, topic_options=changed, schema_evolution="add")


@pytest.mark.parametrize("table_format", FORMATS)
def test_table_of_one_format_is_not_continued_with_formats_by_topic(
    table_format: str, tier: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(tier | {"subscribe": "clicks"} | JSON)
    with pytest.raises(FingerprintError, match="columns: value: json → format by topic"):
        lake.export(tier, topic_options=BOTH)


def test_field_that_one_topic_requires_is_nullable_in_the_table(
    tier: dict[str, str], tmp_path: Path
) -> None:
    strict = JSON | {"value.schema": "id bigint not null, country string not null"}
    lake = Lake(tmp_path, "iceberg")
    assert lake.export(tier, topic_options=BOTH | {"clicks": strict}).rows == 27
    assert values_in(lake, "orders")[0]["id"] is None
    assert lake.export(tier, topic_options=BOTH | {"clicks": strict}).rows == 0


def test_topics_that_match_a_pattern_use_the_formats_of_all_topics(
    tier: dict[str, str], tmp_path: Path
) -> None:
    del tier["subscribe"]
    source = tier | {"subscribePattern": ".*"} | JSON
    lake = Lake(tmp_path, "delta")
    assert lake.export(source, topic_options={"orders": AVRO}).rows == 27
    assert values_in(lake, "clicks")[7]["id"] == 7
    write_topics(tmp_path, {"more": [click(1)]})
    assert lake.export(source, topic_options={"orders": AVRO}).rows == 1


# -- rejected rows


@pytest.mark.parametrize("table_format", FORMATS)
def test_dead_letters_name_the_topic_and_are_replayed_with_its_format(
    table_format: str, tmp_path: Path
) -> None:
    clicks = [b"{" if n == 3 else click(n) for n in range(12)]
    orders = [avro(n) + (b"x" if n == 7 else b"") for n in range(15)]
    source = write_topics(tmp_path, {"clicks": clicks, "orders": orders})
    lake = Lake(tmp_path, table_format)
    with pytest.raises(InvalidValueError, match="topic clicks, partition 0, offset 3"):
        lake.export(source, topic_options=BOTH)
    letters: Any = {"dead_letters": str(tmp_path / "letters"), "topic_options": BOTH}
    with pytest.raises(RejectedRowsError, match=r"clicks-0: 1 of 12.*orders-0: 1 of 15"):
        lake.export(source, max_rejected="1%", commit_bytes=1 << 30, **letters)
    report = lake.export(source, **letters)
    assert (report.rows, report.rejected) == (25, 2)
    rejected = pa.concat_tables(
        pq.read_table(path) for path in (tmp_path / "letters").glob("*.parquet")
    ).sort_by("topic")
    assert rejected["topic"].to_pylist() == ["clicks", "orders"]
    assert rejected["value"].to_pylist() == [b"{", orders[7]]
    for path in (tmp_path / "letters").glob("*.parquet"):
        table = pq.read_table(path)
        fixed = {"clicks": click(3), "orders": avro(7)}
        values = pa.array([fixed[topic] for topic in table["topic"].to_pylist()], pa.binary())
        index = table.schema.get_field_index("value")
        pq.write_table(table.set_column(index, "value", values), path)
    assert lake.export(source, replay=True, **letters).rows == 2
    assert lake.export(source, replay=True, **letters).rows == 0
    assert sorted(value["id"] for value in values_in(lake, "clicks")) == list(range(12))
    assert sorted(value["amount"] for value in values_in(lake, "orders")) == list(range(15))
    assert lake.export(source, verify=True, **letters).rows == 0


def test_dry_run_samples_each_topic(tier: dict[str, str], tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    wrong = BOTH | {"orders": AVRO | {"value.schema": json.dumps(OLD)}}
    report = lake.export(tier, topic_options=wrong, dry_run=True)
    assert (report.rows_read, report.rejected) == (27, 15)
    names = BOTH | {"clicks": JSON | {"value.schema": "Id bigint"}}
    topics = {"clicks": [click(n) for n in range(30)], "orders": [avro(n) for n in range(3)]}
    source = write_topics(tmp_path / "more", topics)
    with pytest.raises(InvalidOptionError, match="none of 20 sampled values has a field"):
        lake.export(source, topic_options=names, dry_run=True)
    with pytest.raises(InvalidOptionError, match=r"none of \d+ values has a field"):
        lake.export(source, topic_options=names)
    assert lake.read().num_rows == 0


# -- new fields


def test_new_fields_are_reported_with_their_topic(tmp_path: Path) -> None:
    (tmp_path / "avro").mkdir()
    orders = write_two_schemas(tmp_path / "avro")
    framed: list[bytes | None] = [b"\0\0\0\0\2" + avro(n) for n in range(10)]
    source = write_topics(
        tmp_path,
        {
            "a": [click(n, new=n) for n in range(5)],
            "b": [click(n, new=f"{n}") for n in range(5)],
            "orders": framed,
        },
    )
    own = {
        "a": JSON,
        "b": JSON,
        "orders": {
            "value.format": "avro-confluent",
            "value.schema-registry.url": orders["value.schema-registry.url"],
            "value.schema": json.dumps(OLD),
        },
    }
    lake = Lake(tmp_path, "delta")
    report = lake.export(source, topic_options=own)
    names = [
        f"value.{field['name']} (schema id 2) (topic orders)" for field in SCHEMA["fields"][4:]
    ]
    assert set(report.new_fields) == {"value.new (topic a)", "value.new (topic b)", *names}
    with pytest.raises(SchemaChangedError, match=r"value\.new \(topic a\)"):
        Lake(tmp_path / "fail", "delta").export(source, topic_options=own, on_new_fields="fail")
    # A topic cannot add a field with another type than another topic.
    with pytest.raises(InvalidOptionError, match=r"value\.new is int64 in topic a and string in"):
        Lake(tmp_path / "add", "delta").export(source, topic_options=own, on_new_fields="add")
    del own["a"]
    source["subscribe"] = "b,orders"
    both = Lake(tmp_path / "both", "iceberg")
    (tmp_path / "both").mkdir()
    report = both.export(source, topic_options=own, on_new_fields="add")
    assert (report.rows, report.new_fields) == (15, ())
    assert set(report.added_fields) == {"value.new (topic b)", *names}
    assert [value["new"] for value in values_in(both, "b")] == [f"{n}" for n in range(5)]
    assert [value["price"] for value in values_in(both, "orders")][2] == Decimal("2.56")


@pytest.mark.parametrize("table_format", FORMATS)
def test_new_fields_of_each_topic_are_added(table_format: str, tmp_path: Path) -> None:
    first = write_topics(
        tmp_path,
        {"clicks": [click(n, score=n) for n in range(5)], "orders": [avro(n) for n in range(5)]},
    )
    lake = Lake(tmp_path, table_format)
    add: Any = {"topic_options": BOTH, "on_new_fields": "add"}
    report = lake.export(first, **add)
    assert (report.rows, report.added_fields) == (10, ("value.score (topic clicks)",))
    # Later values would be inferred as another type.
    later = [click(n, score=n if n < 5 else n + 0.5, note="x") for n in range(8)]
    wrong = write_topics(
        tmp_path / "wrong", {"clicks": later, "orders": [avro(n) for n in range(5)]}
    )
    with pytest.raises(InvalidValueError, match="score: the number has a fraction"):
        lake.export(wrong, **add)
    later = [click(n, score=n, note="x", page={"url": "/"}) for n in range(8)]
    source = write_topics(
        tmp_path / "later", {"clicks": later, "orders": [avro(n) for n in range(5)]}
    )
    report = lake.export(source, **add)
    # `note` is a field of orders, so it is in the table already.
    assert (report.rows, report.added_fields) == (3, ("value.page (topic clicks)",))
    clicks = values_in(lake, "clicks")
    assert [value["score"] for value in clicks] == list(range(8))
    assert [value.get("note") for value in clicks] == [None] * 5 + ["x"] * 3
    assert clicks[7]["page"] == {"url": "/"}
    assert {value.get("score") for value in values_in(lake, "orders")} == {None}
    assert lake.export(source, **add).rows == 0


def test_follow_continues_each_topic_with_its_format(tier: dict[str, str], tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")

    def gain() -> None:
        log = LogBuilder(start_offset=12)
        log.append([SimpleRecord(click(n), b"k", timestamp=T0) for n in range(12, 16)])
        topic_id = uuid.uuid5(uuid.NAMESPACE_URL, "clicks")
        files = log.roll()
        assert files is not None
        writer = AivenTierWriter(tier["path"], topic="clicks", topic_id=topic_id, partition=0)
        writer.write_segment(files)

    driven = Driven([gain, lambda: None])
    report = driven.run(lake, tier, topic_options=BOTH, round_bytes=1 << 30)
    assert (report.rows, driven.outcomes) == (31, ["done", "done", "idle"])
    assert [value["id"] for value in values_in(lake, "clicks")] == list(range(16))


# -- refused options


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            {"clicks": JSON | {"value.schema": "amount string"}, "orders": AVRO},
            r"topics clicks and orders cannot be in one table: value\.amount is string in topic"
            r" clicks and int64 in topic orders.*with \{topic\} in the target",
        ),
        (
            {"clicks": JSON | {"value.schema": "Amount bigint"}, "orders": AVRO},
            r"value\.amount and value\.Amount differ only in case",
        ),
        (
            {"clicks": {"value.format": "utf8"}, "orders": AVRO},
            "value is string in topic clicks and struct<",
        ),
        ({"clicks": JSON}, "the values of only one of them are decoded"),
        (BOTH | {"clicks": JSON | {"key.format": "utf8"}}, "the keys of only one of them"),
        (
            BOTH | {"orders": AVRO | {"value.mode": "PERMISSIVE"}},
            "'value.mode' is failfast for clicks and permissive for orders",
        ),
        (BOTH | {"clicks": JSON | {"StartingOffsets": "earliest"}}, "option 'StartingOffsets'"),
        ({"texts": JSON}, "names texts, but the options select clicks, orders"),
        (
            {"clicks": {"value.format": "json"}, "orders": AVRO},
            "an export needs option 'value.schema' of topic clicks",
        ),
    ],
)
def test_contradicting_options_of_topics_are_refused(
    own: dict[str, Any], message: str, tier: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        Lake(tmp_path, "delta").export(tier, topic_options=own)


def test_settings_and_tasks_do_not_show_options_of_topics(
    tier: dict[str, str], tmp_path: Path
) -> None:
    own = {"clicks": JSON | {"value.schema-registry.basic.auth.user.info": "me:hidden"}}
    (export,) = exports_of(tier, tmp_path / "lake", own)
    assert export.settings.topic_options.reveal() == own
    assert "hidden" not in repr(export)
    target = WriteTarget(str(tmp_path), Secret({}), "", "", "file")
    job = ExportJob(parse_options(tier), target, "run", export.settings)
    assert b"hidden" not in pickle.dumps(job)


def test_command_writes_topics_with_different_formats_to_one_table(
    tier: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(tmp_path, "delta")
    arguments = ["export", tier["path"], tier["subscribe"], lake.target, "--workers", "2"]
    arguments += ["--table-format", "delta", "-o", "cache=false", "--json"]
    for topic, options in BOTH.items():
        for name, value in options.items():
            arguments += ["--topic-option", f"{topic}:{name}={value}"]
    assert main([*arguments, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["rowsRead"] == 27
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 27
    assert [value["amount"] for value in values_in(lake, "orders")] == list(range(15))
