"""Avro values as Apicurio's own Java serializer writes them, by the schemas of its registry."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import kts_source
from kts_source.errors import InvalidValueError
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.integration.apicurio import VERSION, apicurio
from tests.integration.hybrid import hybrid_options
from tests.integration.java import java
from tests.integration.kafka_jars import kafka_class_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.integration.cluster import Cluster

pytestmark = pytest.mark.integration

SERDE = f"io.apicurio:apicurio-registry-serdes-avro-serde:{VERSION}"
HANDLER = {"apicurio.registry.id-handler": "io.apicurio.registry.serde.Legacy4ByteIdHandler"}
HEADERS = "apicurio.registry.headers.enabled"
CONFLUENT = {**HANDLER, "apicurio.registry.use-id": "contentId", HEADERS: "false"}
"""What makes its values those of Confluent's serializers, by ids that the registry's
Confluent-compatible API knows."""
TEXTS, NUMBERS = ("country", "city", "product", "customer"), ("amount", "quantity")


def record(name: str, /, **fields: object) -> dict[str, Any]:
    """A schema; a field that may be null has null as default."""
    made: list[dict[str, Any]] = []
    for field, kind in fields.items():
        made.append({"name": field, "type": kind})
        if isinstance(kind, list) and kind[0] == "null":
            made[-1]["default"] = None
    return {"type": "record", "name": name, "namespace": "shop", "fields": made}


ORDER = record(
    "Order",
    **dict.fromkeys(TEXTS, "string"),
    **dict.fromkeys(NUMBERS, "long"),
    price="double",
    discount="double",
    paid="boolean",
    note=["null", "string"],
)
NEXT_ORDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "v", "type": "int", "default": 9}]}


def order(number: int) -> dict[str, Any]:
    return {
        **{name: f"{name} {number} ö" for name in TEXTS},
        **{name: number * 10**at - 3 for at, name in enumerate(NUMBERS)},
        "price": number / 7,
        "discount": -0.5 * number,
        "paid": number % 3 == 0,
        "note": None if number % 2 else f"n{number}",
    }


class Serde(NamedTuple):
    """Apicurio's serializer and its registry.

    Attributes:
        url: Of the registry's Confluent-compatible API.
        classes: Of the serializer's JVM.
    """

    url: str
    classes: Any

    @property
    def api(self) -> str:
        """The URL of the registry's own API."""
        return self.url.replace("/apis/ccompat/v7", "/apis/registry/v2")

    def settings(self, **more: str) -> dict[str, str]:
        """What a serializer is configured with."""
        own = {"apicurio.registry.url": self.api, "apicurio.registry.auto-register": "true"}
        return own | more

    def serializer(self, **more: str) -> Any:  # noqa: ANN401  # an object of Java
        made = self.classes.io.apicurio.registry.serde.avro.AvroKafkaSerializer()
        made.configure(self.settings(**more), False)
        return made

    def schema(self, schema: object) -> Any:  # noqa: ANN401  # an object of Java
        parser = getattr(self.classes.org.apache.avro, "Schema$Parser")()
        return parser.parse(json.dumps(schema))

    def value(self, schema: object, row: dict[str, Any]) -> Any:  # noqa: ANN401  # an object of Java
        """A record of Avro's own classes.

        Args:
            schema: Its schema.
            row: As Avro's JSON encoding has it, but for nullable texts.
        """
        parsed, avro = self.schema(schema), self.classes.org.apache.avro
        if isinstance(row.get("note"), str):
            row = {**row, "note": {"string": row["note"]}}
        decoder = avro.io.DecoderFactory.get().jsonDecoder(parsed, json.dumps(row))
        return avro.generic.GenericDatumReader(parsed).read(None, decoder)

    def serialize(
        self, topic: str, schema: object, *rows: dict[str, Any], **more: str
    ) -> list[bytes]:
        made = self.serializer(**more)
        return [made.serialize(topic, self.value(schema, row)) for row in rows]

    def record(self, topic: str, value: Any, **more: str) -> SimpleRecord:  # noqa: ANN401  # of Java
        """A record as a producer gives it to the serializer, headers included."""
        headers = self.classes.org.apache.kafka.common.header.internals.RecordHeaders()
        data = self.serializer(**more).serialize(topic, headers, value)
        return SimpleRecord(data, None, tuple((h.key(), h.value()) for h in headers.toArray()))


@pytest.fixture(scope="module")
def serde() -> Iterator[Serde]:
    class_path = kafka_class_path((SERDE,))
    with apicurio() as url, java(class_path) as classes:
        found = Serde(url, classes)
        found.serialize("one", record("First", a="int"), {"a": 1})  # has id 1
        yield found


def read(
    root: Path, serde: Serde, values: Sequence[bytes | SimpleRecord | None], **more: str
) -> Any:  # noqa: ANN401  # untyped
    """A tier of one topic `orders`, read by the registry's latest schema of it."""
    log = LogBuilder()
    log.append([one if isinstance(one, SimpleRecord) else SimpleRecord(one) for one in values])
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
    if options["value.format"] == "avro-confluent":
        options["value.schema-registry.url"] = serde.url
    return kts_source.scan(options).to_table()


def test_ten_flat_fields_of_two_versions(serde: Serde, tmp_path: Path) -> None:
    rows = [order(number) for number in range(40)]
    first = serde.serialize("orders", ORDER, *rows[:20], **CONFLUENT)
    both = [{**row, "v": at} for at, row in enumerate(rows[20:])]
    second = serde.serialize("orders", NEXT_ORDER, *both, **CONFLUENT)
    assert serde.serializer(**CONFLUENT).serialize("orders", None) is None
    values = [one for pair in zip(first, second, strict=True) for one in pair]
    found = read(tmp_path, serde, [*values, None])["value"].to_pylist()
    old = [{**row, "v": 9} for row in rows[:20]]
    assert found == [*(one for pair in zip(old, both, strict=True) for one in pair), None]
    assert len({value[:5] for value in values}) == 2
    filtered = read(
        *(tmp_path / "where", serde, values),
        where="value.v = 9 AND value.paid",
        value__columns="amount,note",
    )
    expected = [{name: row[name] for name in ("amount", "note")} for row in old if row["paid"]]
    assert filtered["value"].to_pylist() == expected


PERSON = record("Person", name="string", age=["null", "int"])
LINE = record("Line", sku="string", count="int")
BASKET = record(
    "Basket",
    buyer=PERSON,
    lines={"type": "array", "items": LINE},
    rates={"type": "map", "values": "double"},
    choice=["string", "long", "shop.Person"],
    maybe=["null", "long"],
    state={"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]},
    digest={"type": "fixed", "name": "Digest", "size": 4},
    raw="bytes",
)
ANNA, BEN = {"name": "Anna", "age": None}, {"name": "Ben", "age": {"int": 44}}
LINES = [{"sku": "a", "count": 1}, {"sku": "ß", "count": -7}]
FULL = {"state": "PAID", "digest": "\0\1\xfe\xff", "raw": "\x80"}
FULL_BYTES = {"state": "PAID", "digest": b"\0\1\xfe\xff", "raw": b"\x80"}
EMPTY = {"maybe": None, "state": "NEW", "digest": "abcd", "raw": ""}
EMPTY_BYTES = {**EMPTY, "digest": b"abcd", "raw": b""}
NO_CHOICE = {"member0": None, "member1": None, "member2": None}
BASKETS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            **FULL,
            "buyer": BEN,
            "lines": LINES,
            "rates": {"x": 0.5},
            "choice": {"string": "s"},
            "maybe": {"long": 1 << 40},
        },
        {
            **FULL_BYTES,
            "buyer": {"name": "Ben", "age": 44},
            "lines": LINES,
            "rates": [("x", 0.5)],
            "choice": {**NO_CHOICE, "member0": "s"},
            "maybe": 1 << 40,
        },
    ),
    (
        {**EMPTY, "buyer": ANNA, "lines": [], "rates": {}, "choice": {"shop.Person": ANNA}},
        {
            **EMPTY_BYTES,
            "buyer": ANNA,
            "lines": [],
            "rates": [],
            "choice": {**NO_CHOICE, "member2": ANNA},
        },
    ),
    (
        {**EMPTY, "buyer": ANNA, "lines": LINES[1:], "rates": {}, "choice": {"long": -5}},
        {
            **EMPTY_BYTES,
            "buyer": ANNA,
            "lines": LINES[1:],
            "rates": [],
            "choice": {**NO_CHOICE, "member1": -5},
        },
    ),
]


def test_nested_records_and_unions(serde: Serde, tmp_path: Path) -> None:
    values = serde.serialize("baskets", BASKET, *(given for given, _ in BASKETS), **CONFLUENT)
    rows = read(tmp_path, serde, values, value__subject="baskets-value")
    assert rows["value"].to_pylist() == [expected for _, expected in BASKETS]


def logical(kind: str, base: str | dict[str, Any], **more: int) -> dict[str, Any]:
    made = {"type": base} if isinstance(base, str) else dict(base)
    return {**made, "logicalType": kind, **more}


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


def test_logical_types_from_javas_own(serde: Serde, tmp_path: Path) -> None:
    java, avro = serde.classes.java, serde.classes.org.apache.avro
    for name in CONVERSIONS:
        package, _, kind = name.rpartition(".")
        place = getattr(avro, package) if package else avro
        avro.generic.GenericData.get().addLogicalTypeConversion(getattr(place, kind)())
    one = getattr(avro.generic, "GenericData$Record")(serde.schema(TIMES))
    given = {
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
    for name, value in given.items():
        one.put(name, value)
    values = [serde.serializer(**CONFLUENT).serialize("times", one)]
    one.put("seen", None)
    values.append(serde.serializer(**CONFLUENT).serialize("times", one))
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


def test_ids_of_eight_bytes_are_refused_by_name(serde: Serde, tmp_path: Path) -> None:
    given = order(1)
    (good,) = serde.serialize("orders", ORDER, given, **CONFLUENT)
    for at, which in enumerate(("globalId", "contentId")):
        (value,) = serde.serialize("orders", ORDER, given, **{"apicurio.registry.use-id": which})
        assert value[9:] == good[5:]
        with pytest.raises(
            InvalidValueError, match=r"id-handler = .*Legacy4ByteIdHandler"
        ) as raised:
            read(tmp_path / f"fails {at}", serde, [good, value])
        assert raised.value.offset == 1
        rows = read(tmp_path / f"null {at}", serde, [good, value], value__mode="PERMISSIVE")
        assert [one and one["city"] for one in rows["value"].to_pylist()] == [given["city"], None]
        assert "ids of 8 bytes" in rows["valueError"][1].as_py()


NULLABLE = ["null", "string"]
HOLLOW = record("Hollow", **dict.fromkeys("abcd", NULLABLE), e="int", f="int")


@pytest.mark.parametrize("which", ["globalId", "contentId"])
def test_ids_in_headers_are_refused_by_name(serde: Serde, tmp_path: Path, which: str) -> None:
    hollow = {**dict.fromkeys("abcd"), "e": -1, "f": 7}
    settings = {**HANDLER, "apicurio.registry.use-id": which}  # headers are the default
    one = serde.record("hollow", serde.value(HOLLOW, hollow), **settings)
    assert f"apicurio.value.{which}" in [name for name, _ in one.headers]
    # What looks like an id is that of a schema with one int.
    assert one.value == b"\0\0\0\0\1\x0e"
    bare = SimpleRecord(one.value)
    rows = read(tmp_path / "bare", serde, [bare], value__subject="one-value")
    assert rows["value"].to_pylist() == [{"a": 7}]
    records = [bare, one, SimpleRecord(None, None, one.headers)]
    options = {"value.subject": "one-value"}
    with pytest.raises(InvalidValueError, match=r"apicurio\.registry\.headers\.enabled = false"):
        read(tmp_path / "fails", serde, records, **options)
    rows = read(tmp_path / "null", serde, records, **options, value__mode="PERMISSIVE")
    assert rows["value"].to_pylist() == [{"a": 7}, None, None]
    assert [one and one[:11] for one in rows["valueError"].to_pylist()] == [
        None,
        "schema id 0",
        None,
    ]
    # Of one writer's schema, such values can be read.
    alone = {"value.format": "avro", "value.schema": json.dumps(HOLLOW)}
    assert read(tmp_path / "avro", serde, [one], **alone)["value"].to_pylist() == [hollow]


TEXT = record("Text", n="long", s="string")


def test_avros_json_encoding_is_refused_by_name(serde: Serde, tmp_path: Path) -> None:
    as_json = {"apicurio.registry.avro.encoding": "JSON"}
    # Read as binary, the first one is a long and a string of 17 bytes.
    rows = [{"n": 1, "s": "hello"}, {"n": 2, "s": "some other text"}]
    good = serde.serialize("texts", TEXT, *rows, **CONFLUENT)
    texts = serde.serialize("texts", TEXT, *rows, **CONFLUENT | as_json)
    assert texts[0][5:] == b'{"n":1,"s":"hello"}'
    options = {"value.subject": "texts-value", "value.mode": "PERMISSIVE"}
    found = read(tmp_path / "confluent", serde, [texts[0], good[1], texts[1], good[0]], **options)
    assert found["value"].to_pylist() == [None, rows[1], None, rows[0]]
    reasons = found["valueError"].to_pylist()
    assert reasons[0] == reasons[2]
    assert "Avro's JSON encoding" in reasons[0]
    with pytest.raises(InvalidValueError, match="encoding=BINARY"):
        read(tmp_path / "fails", serde, [*good, *texts], value__subject="texts-value")
    alone = {"value.format": "avro", "value.schema": json.dumps(TEXT), "value.mode": "PERMISSIVE"}
    found = read(tmp_path / "avro", serde, [one[5:] for one in (*texts, *good)], **alone)
    assert found["value"].to_pylist() == [None, None, *rows]
    one = serde.record("texts", serde.value(TEXT, rows[0]), **as_json)
    assert one.value == texts[0][5:]
    assert read(tmp_path / "headers", serde, [one], **options)["value"].to_pylist() == [None]


def test_which_ids_the_registry_knows(serde: Serde, tmp_path: Path) -> None:
    """By default those of contents; global ones are others, unless it is told to know those."""
    rows = [order(3), order(4)]
    by_content, _ = serde.serialize("first", ORDER, *rows, **CONFLUENT)
    # Its content has the id of the first place where it is.
    by_global, _ = serde.serialize("second", ORDER, *rows, **HANDLER)
    assert serde.serialize("second", ORDER, *rows, **CONFLUENT)[0] == by_content
    assert by_global[:5] != by_content[:5]
    assert by_global[5:] == by_content[5:]
    options = {"value.schema": json.dumps(ORDER), "value.mode": "PERMISSIVE"}
    found = read(tmp_path / "as it is", serde, [by_global, by_content], **options)
    assert found["value"].to_pylist() == [None, rows[0]]
    assert "does not know" in found["valueError"][0].as_py()
    # Of another address, what an id was says nothing.
    other = serde._replace(url=serde.url.replace("127.0.0.1", "localhost"))
    with global_ids(serde):
        found = read(tmp_path / "told", other, [by_global], **options)
    assert found["value"].to_pylist() == [rows[0]]


@contextlib.contextmanager
def global_ids(serde: Serde) -> Iterator[None]:
    """The registry's Confluent-compatible API knows schemas by their global ids, for the block."""
    name = "registry.ccompat.legacy-id-mode.enabled"
    place = f"{serde.api}/admin/config/properties/{name}"
    asked = {"Content-Type": "application/json"}
    for text in ("true", "false"):
        body = json.dumps({"name": name, "value": text}).encode()
        request = urllib.request.Request(place, body, asked, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        if text == "true":
            yield


def test_a_topic_of_a_java_producer(serde: Serde, cluster: Cluster) -> None:
    """Serialized in the producer, sent through a broker, and read from where the broker put it."""
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
        "value.format": "avro-confluent",
        "value.schema-registry.url": serde.url,
        "value.mode": "PERMISSIVE",
    }
    del options["kafka.bootstrap.servers"]
    table = kts_source.scan(options).to_table()
    assert table["offset"].to_pylist() == list(range(end))
    assert end > 20
    expected = [row if n % 10 not in (0, 3) else None for n, row in enumerate(rows[:end])]
    assert table["value"].to_pylist() == expected
    refused = [n for n, one in enumerate(table["valueError"].to_pylist()) if one is not None]
    assert refused == list(range(3, end, 10))
