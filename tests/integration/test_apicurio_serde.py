"""Reads Avro values that Apicurio's Java serializer wrote, with the schemas of its registry."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

import kts_source
from kts_source.errors import InvalidValueError
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.integration.apicurio_serde import (
    CONFLUENT,
    HANDLER,
    Serde,
    apicurio_serde,
    global_ids,
)
from tests.integration.avro_samples import BASKET, BASKETS, NEXT_ORDER, ORDER, order, record
from tests.integration.hybrid import hybrid_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.integration.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(720)]


@pytest.fixture(scope="module")
def serde() -> Iterator[Serde]:
    with apicurio_serde() as started:
        started.serialize("one", record("First", a="int"), {"a": 1})  # gets id 1
        yield started


def read(
    root: Path, serde: Serde, values: Sequence[bytes | SimpleRecord | None], /, **more: str
) -> Any:  # noqa: ANN401  # untyped
    """Writes `values` to topic `orders` of a new tier and returns the rows of a scan.

    The scan decodes the values with the schemas of the registry. `more` contains further options of
    the scan. In their names, `__` stands for a dot.
    """
    log = LogBuilder()
    log.append(
        [value if isinstance(value, SimpleRecord) else SimpleRecord(value) for value in values]
    )
    files = log.roll()
    assert files is not None
    AivenTierWriter(str(root), topic="orders", partition=0).write_segment(files)
    options = {
        "path": str(root),
        "subscribe": "orders",
        "cache": "false",
        "value.format": "avro-confluent",
        **{name.replace("__", "."): text for name, text in more.items()},
    }
    urls = {"avro-confluent": serde.url, "avro-apicurio": serde.api}
    if (url := urls.get(options["value.format"])) is not None:
        options["value.schema-registry.url"] = url
    return kts_source.scan(options).to_table()


def test_scan_decodes_flat_records_of_two_schema_versions(serde: Serde, tmp_path: Path) -> None:
    rows = [order(number) for number in range(40)]
    first = serde.serialize("orders", ORDER, *rows[:20], **CONFLUENT)
    both = [{**row, "v": number} for number, row in enumerate(rows[20:])]
    second = serde.serialize("orders", NEXT_ORDER, *both, **CONFLUENT)
    assert serde.serializer(**CONFLUENT).serialize("orders", None) is None
    values = [value for pair in zip(first, second, strict=True) for value in pair]
    decoded = read(tmp_path, serde, [*values, None])["value"].to_pylist()
    old = [{**row, "v": 9} for row in rows[:20]]
    assert decoded == [*(row for pair in zip(old, both, strict=True) for row in pair), None]
    assert len({value[:5] for value in values}) == 2
    filtered = read(
        *(tmp_path / "where", serde, values),
        where="value.v = 9 AND value.paid",
        value__columns="amount,note",
    )
    expected = [{name: row[name] for name in ("amount", "note")} for row in old if row["paid"]]
    assert filtered["value"].to_pylist() == expected


def test_scan_decodes_nested_records_and_unions(serde: Serde, tmp_path: Path) -> None:
    values = serde.serialize("baskets", BASKET, *(row for row, _ in BASKETS), **CONFLUENT)
    rows = read(tmp_path, serde, values, value__subject="baskets-value")
    assert rows["value"].to_pylist() == [expected for _, expected in BASKETS]


def logical(kind: str, base: str | dict[str, Any], **more: int) -> dict[str, Any]:
    avro_type = {"type": base} if isinstance(base, str) else dict(base)
    return {**avro_type, "logicalType": kind, **more}


TIMES = record(
    "Times",
    day=logical("date", "int"),
    at=logical("timestamp-millis", "long"),
    exactly=logical("timestamp-micros", "long"),
    local=logical("local-timestamp-micros", "long"),
    clock=logical("time-millis", "int"),
    price=logical("decimal", "bytes", precision=9, scale=2),
    fee=logical("decimal", {"type": "fixed", "name": "Fee", "size": 5}, precision=8, scale=3),
    id=logical("uuid", "string"),
    seen=["null", logical("timestamp-millis", "long")],
)
CONVERSIONS = (
    *("Conversions$DecimalConversion", "Conversions$UUIDConversion"),
    *(
        f"data.TimeConversions${name}Conversion"
        for name in ("Date", "TimestampMillis", "TimestampMicros", "TimeMillis")
    ),
    "data.TimeConversions$LocalTimestampMicrosConversion",
)


def test_scan_decodes_logical_types_written_from_java_classes(serde: Serde, tmp_path: Path) -> None:
    java, avro = serde.classes.java, serde.classes.org.apache.avro
    for name in CONVERSIONS:
        package, _, kind = name.rpartition(".")
        conversions = getattr(avro, package) if package else avro
        avro.generic.GenericData.get().addLogicalTypeConversion(getattr(conversions, kind)())
    java_record = getattr(avro.generic, "GenericData$Record")(serde.schema(TIMES))
    java_values = {
        "day": java.time.LocalDate.of(2024, 2, 29),
        "at": java.time.Instant.parse("1969-12-31T23:59:58.123Z"),
        "exactly": java.time.Instant.parse("2024-02-29T12:34:56.789012Z"),
        "local": java.time.LocalDateTime.parse("2024-02-29T12:34:56.000001"),
        "clock": java.time.LocalTime.of(23, 59, 1),
        "price": java.math.BigDecimal("-1234567.89"),
        "fee": java.math.BigDecimal("0.001"),
        "id": java.util.UUID.fromString("f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
        "seen": java.time.Instant.ofEpochMilli(1_700_000_000_001),
    }
    for name, value in java_values.items():
        java_record.put(name, value)
    values = [serde.serializer(**CONFLUENT).serialize("times", java_record)]
    java_record.put("seen", None)
    values.append(serde.serializer(**CONFLUENT).serialize("times", java_record))
    expected = {
        "day": date(2024, 2, 29),
        "at": datetime(1969, 12, 31, 23, 59, 58, 123_000, UTC),
        "exactly": datetime(2024, 2, 29, 12, 34, 56, 789_012, UTC),
        "local": datetime(2024, 2, 29, 12, 34, 56, 1),
        "clock": (24 * 60 - 1) * 60_000 + 1000,
        "price": Decimal("-1234567.89"),
        "fee": Decimal("0.001"),
        "id": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "seen": datetime(2023, 11, 14, 22, 13, 20, 1000, UTC),
    }
    rows = read(tmp_path, serde, values, value__subject="times-value")["value"].to_pylist()
    assert rows == [expected, {**expected, "seen": None}]


def test_values_with_eight_byte_ids_raise_error_that_names_id_handler(
    serde: Serde, tmp_path: Path
) -> None:
    row = order(1)
    (good,) = serde.serialize("orders", ORDER, row, **CONFLUENT)
    for number, kind in enumerate(("globalId", "contentId")):
        (value,) = serde.serialize("orders", ORDER, row, **{"apicurio.registry.use-id": kind})
        assert value[9:] == good[5:]
        with pytest.raises(InvalidValueError, match=r"id-handler=.*Legacy4ByteIdHandler") as raised:
            read(tmp_path / f"fails {number}", serde, [good, value])
        assert raised.value.offset == 1
        rows = read(tmp_path / f"null {number}", serde, [good, value], value__mode="PERMISSIVE")
        decoded = rows["value"].to_pylist()
        assert [value and value["city"] for value in decoded] == [row["city"], None]
        assert "ids of 8 bytes" in rows["valueError"][1].as_py()


NULLABLE = ["null", "string"]
HOLLOW = record("Hollow", **dict.fromkeys("abcd", NULLABLE), e="int", f="int")


@pytest.mark.parametrize("which", ["globalId", "contentId"])
def test_values_with_ids_in_headers_raise_error_that_names_serializer_setting(
    serde: Serde, tmp_path: Path, which: str
) -> None:
    hollow = {**dict.fromkeys("abcd"), "e": -1, "f": 7}
    settings = {**HANDLER, "apicurio.registry.use-id": which}  # headers are the default
    hollow_record = serde.record(
        "hollow", serde.value(HOLLOW, hollow), serde.serializer(**settings)
    )
    assert f"apicurio.value.{which}" in [name for name, _ in hollow_record.headers]
    # A reader that takes bytes 1 to 4 for the schema id finds a schema with one int.
    assert hollow_record.value == b"\0\0\0\0\1\x0e"
    bare = SimpleRecord(hollow_record.value)
    rows = read(tmp_path / "bare", serde, [bare], value__subject="one-value")
    assert rows["value"].to_pylist() == [{"a": 7}]
    records = [bare, hollow_record, SimpleRecord(None, None, hollow_record.headers)]
    options = {"value.subject": "one-value"}
    with pytest.raises(InvalidValueError, match=r"apicurio\.registry\.headers\.enabled=false"):
        read(tmp_path / "fails", serde, records, **options)
    rows = read(tmp_path / "null", serde, records, **options, value__mode="PERMISSIVE")
    assert rows["value"].to_pylist() == [{"a": 7}, None, None]
    reasons = rows["valueError"].to_pylist()
    assert [reason and "has schema id 0" in reason for reason in reasons] == [None, True, None]
    # With the writer's schema as an option, the values can be decoded.
    alone = {"value.format": "avro", "value.schema": json.dumps(HOLLOW)}
    decoded = read(tmp_path / "avro", serde, [hollow_record], **alone)["value"].to_pylist()
    assert decoded == [hollow]


TEXT = record("Text", n="long", s="string")


def test_avro_values_in_json_encoding_raise_error_that_names_encoding(
    serde: Serde, tmp_path: Path
) -> None:
    as_json = {"apicurio.registry.avro.encoding": "JSON"}
    # In Avro's binary encoding, the first value means a long and a string of 17 bytes.
    rows = [{"n": 1, "s": "hello"}, {"n": 2, "s": "some other text"}]
    good = serde.serialize("texts", TEXT, *rows, **CONFLUENT)
    texts = serde.serialize("texts", TEXT, *rows, **CONFLUENT | as_json)
    assert texts[0][5:] == b'{"n":1,"s":"hello"}'
    options = {"value.subject": "texts-value", "value.mode": "PERMISSIVE"}
    decoded = read(tmp_path / "confluent", serde, [texts[0], good[1], texts[1], good[0]], **options)
    assert decoded["value"].to_pylist() == [None, rows[1], None, rows[0]]
    reasons = decoded["valueError"].to_pylist()
    assert reasons[0] == reasons[2]
    assert "Avro's JSON encoding" in reasons[0]
    with pytest.raises(InvalidValueError, match="encoding=BINARY"):
        read(tmp_path / "fails", serde, [*good, *texts], value__subject="texts-value")
    alone = {"value.format": "avro", "value.schema": json.dumps(TEXT), "value.mode": "PERMISSIVE"}
    decoded = read(tmp_path / "avro", serde, [value[5:] for value in (*texts, *good)], **alone)
    assert decoded["value"].to_pylist() == [None, None, *rows]
    json_record = serde.record("texts", serde.value(TEXT, rows[0]), serde.serializer(**as_json))
    assert json_record.value == texts[0][5:]
    assert read(tmp_path / "headers", serde, [json_record], **options)["value"].to_pylist() == [
        None
    ]


def test_scan_decodes_global_ids_only_if_the_registry_serves_global_ids(
    serde: Serde, tmp_path: Path
) -> None:
    rows = [order(3), order(4)]
    by_content, _ = serde.serialize("first", ORDER, *rows, **CONFLUENT)
    # A schema registered twice keeps its content id but gets a second global id.
    by_global, _ = serde.serialize("second", ORDER, *rows, **HANDLER)
    assert serde.serialize("second", ORDER, *rows, **CONFLUENT)[0] == by_content
    assert by_global[:5] != by_content[:5]
    assert by_global[5:] == by_content[5:]
    options = {"value.schema": json.dumps(ORDER), "value.mode": "PERMISSIVE"}
    decoded = read(tmp_path / "as it is", serde, [by_global, by_content], **options)
    assert decoded["value"].to_pylist() == [None, rows[0]]
    assert "has no schema at" in decoded["valueError"][0].as_py()
    # The client caches unknown ids by registry address, so use another address.
    other = serde._replace(url=serde.url.replace("127.0.0.1", "localhost"))
    with global_ids(serde):
        decoded = read(tmp_path / "global", other, [by_global], **options)
    assert decoded["value"].to_pylist() == [rows[0]]


@pytest.mark.parametrize("which", ["globalId", "contentId"])
def test_scan_through_apicurio_api_decodes_ids_in_headers_and_eight_byte_ids(
    serde: Serde, tmp_path: Path, which: str
) -> None:
    topic = f"defaults-{which}"
    serde.serialize(f"before-{topic}", ORDER, order(0))  # so that content ids and global ids differ
    ids = {"apicurio.registry.use-id": which}
    rows = [{**order(number), "v": number} for number in range(20)]
    old = [SimpleRecord(value) for value in serde.serialize(topic, ORDER, *rows[:10], **ids)]
    for row in rows[:10]:
        row["v"] = 9
    serializer = serde.serializer(**ids)
    new = [serde.record(topic, serde.value(NEXT_ORDER, row), serializer) for row in rows[10:]]
    assert next(name for name, _ in new[0].headers) == f"apicurio.value.{which}"
    other = "contentId" if which == "globalId" else "globalId"
    others = {"apicurio.registry.use-id": other}
    as_json = {**ids, "apicurio.registry.avro.encoding": "JSON"}
    rejected = [
        serde.record(topic, serde.value(NEXT_ORDER, rows[-1]), serde.serializer(**settings))
        for settings in (others, as_json)
    ]
    rejected.append(SimpleRecord(serde.serialize(topic, NEXT_ORDER, rows[-1], **as_json)[0]))
    records = [entry for pair in zip(old, new, strict=True) for entry in pair]
    records += [*rejected, SimpleRecord(None, None, new[0].headers)]
    decoded = read(
        *(tmp_path, serde, records),
        value__format="avro-apicurio",
        value__schema=json.dumps(NEXT_ORDER),
        **{"value.schema-registry.use-id": which, "value.mode": "PERMISSIVE"},
    )
    expected = [row for pair in zip(rows[:10], rows[10:], strict=True) for row in pair]
    assert decoded["value"].to_pylist() == [*expected, None, None, None, None]
    reasons = decoded["valueError"].to_pylist()
    assert reasons[:20] == [None] * 20
    assert "option schema-registry.use-id" in reasons[20]
    assert "JSON encoding" in reasons[21]
    assert "JSON encoding" in reasons[22]
    assert reasons[23] is None


def test_scan_resolves_references_between_schemas(serde: Serde, tmp_path: Path) -> None:
    serializer = serde.serializer(**{"apicurio.registry.dereference-schema": "false"})
    records = [serde.record("own", serde.value(BASKET, row), serializer) for row, _ in BASKETS]
    schema_id = int.from_bytes(records[0].headers[0][1] or b"", "big")
    with urllib.request.urlopen(f"{serde.api}/ids/globalIds/{schema_id}/references") as response:
        assert {reference["name"] for reference in json.load(response)} >= {
            "shop.Person",
            "shop.Line",
        }
    decoded = read(
        *(tmp_path, serde, records),
        value__format="avro-apicurio",
        value__schema=json.dumps(BASKET),
    )
    assert decoded["value"].to_pylist() == [expected for _, expected in BASKETS]


def test_scan_decodes_tiered_values_of_java_producers(serde: Serde, cluster: Cluster) -> None:
    topic, kafka = "apicurio-orders", serde.classes.org.apache.kafka.clients.producer
    cluster.admin.create_topic(topic)
    common = {
        "bootstrap.servers": cluster.bootstrap,
        "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
        "value.serializer": "io.apicurio.registry.serde.avro.AvroKafkaSerializer",
    }
    producers = [
        kafka.KafkaProducer(serde.settings(**settings) | common) for settings in (CONFLUENT, {})
    ]
    rows = [{**order(number), "note": f"{number} " * 400} for number in range(60)]
    for number, row in enumerate(rows):
        value = serde.value(ORDER, row) if number % 10 else None
        sent = producers[number % 10 == 3].send(kafka.ProducerRecord(topic, value))
        assert sent.get().offset() == number
    for producer in producers:
        producer.close()
    admin = cluster.admin
    end = admin.local_bases(1, topic)[-1]
    admin.wait_tiered(topic, 0, end)
    admin.wait_local_deleted(topic, 0, end)
    options = hybrid_options("", cluster.tier, subscribe=topic) | {
        "columns": "offset,value,valueError",
        "cache": "false",
        "value.schema": json.dumps(ORDER),
        "value.mode": "PERMISSIVE",
    }
    del options["kafka.bootstrap.servers"]
    assert end > 20
    # Each of the two formats decodes the values of one producer and rejects the other values.
    by_header = {number for number in range(end) if number % 10 == 3}
    by_id = {number for number in range(end) if number % 10} - by_header
    for value_format, url, good, bad in (
        ("avro-confluent", serde.url, by_id, by_header),
        ("avro-apicurio", serde.api, by_header, by_id),
    ):
        format_options = {"value.format": value_format, "value.schema-registry.url": url}
        table = kts_source.scan(options | format_options).to_table()
        assert table["offset"].to_pylist() == list(range(end))
        expected = [row if number in good else None for number, row in enumerate(rows[:end])]
        assert table["value"].to_pylist() == expected
        reasons = table["valueError"].to_pylist()
        assert {number for number, reason in enumerate(reasons) if reason is not None} == bad
