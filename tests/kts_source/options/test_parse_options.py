"""Checks that invalid options raise an error with advice before any I/O."""

from __future__ import annotations

import pickle

import pytest

from kts_source.errors import InvalidOptionError
from kts_source.options import OPTIONS, parse_options
from kts_source.options.selection import (
    Assign,
    EarliestBound,
    LatestBound,
    OffsetsBound,
    Subscribe,
    SubscribePattern,
    TimestampBound,
    TimestampsBound,
)

BASE = {"path": "/tier", "subscribe": "orders"}


def refused(**changes: str | None) -> str:
    options = {name: text for name, text in {**BASE, **changes}.items() if text is not None}
    with pytest.raises(InvalidOptionError) as error:
        parse_options(options)
    return str(error.value)


def test_options_have_the_documented_defaults() -> None:
    options = parse_options(BASE)
    assert options.selection == Subscribe(("orders",))
    assert options.read_committed
    assert (options.starting, options.ending) == (EarliestBound(), LatestBound())
    assert options.columns == (
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
    )
    assert options.target_partition_bytes == 128 << 20
    assert options.fail_on_data_loss
    assert options.check_crcs
    assert options.key_prefix == ""


def test_option_names_ignore_case() -> None:
    options = parse_options({"PATH": "/tier", "SubScribe": "a , b", "INCLUDEHEADERS": "TRUE"})
    assert options.selection == Subscribe(("a", "b"))
    assert options.columns[-1] == "headers"


@pytest.mark.parametrize("option", [option.name for option in OPTIONS])
def test_misspelled_option_raises_error_that_suggests_the_right_name(option: str) -> None:
    typo = option[:-1] + "q"
    text = refused(**{typo.lower(): "x"})
    assert typo.lower() in text
    assert option in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"path": None}, "'path' is missing"),
        ({"paths": '["a","b"]'}, "one path"),
        ({"subscribe": None}, "subscribe, subscribePattern, assign must be set"),
        ({"assign": '{"orders":[0]}'}, "exactly one of"),
        ({"subscribePattern": "o.*"}, "exactly one of"),
        ({"subscribe": " , "}, "must have at least one name"),
        ({"subscribe": None, "subscribePattern": "("}, "not a regular expression"),
        ({"subscribe": None, "assign": "orders"}, "must be JSON"),
        ({"subscribe": None, "assign": '{"orders":0}'}, "must be JSON like"),
        ({"subscribe": None, "assign": '{"orders":[-1]}'}, "partition number"),
        ({"subscribe": None, "assign": '{"orders":["0"]}'}, "must be JSON like"),
        ({"subscribe": None, "assign": "{}"}, "at least one partition"),
        ({"isolationLevel": "serializable"}, "read_committed or read_uncommitted"),
        (
            {"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"},
            "disagree",
        ),
        ({"startingOffsets": "latest"}, "cannot be latest"),
        ({"startingOffsets": "erliest"}, "must be earliest, latest or JSON like"),
        ({"endingOffsets": "[5]"}, "must be earliest, latest or JSON like"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "cannot be latest"),
        ({"endingOffsets": "earliest"}, "cannot be earliest"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "cannot be earliest"),
        ({"endingOffsets": '{"orders":{"0":-3}}'}, "offset -3 of orders-0 is invalid"),
        ({"startingOffsets": '{"orders":{"0":1,"0":2}}'}, "a key twice"),
        ({"startingOffsets": '{"orders":{"0":1.5}}'}, "whole number"),
        ({"startingOffsets": '{"orders":{"x":1}}'}, "partition number"),
        ({"startingTimestamp": "yesterday"}, "a date or timestamp such as"),
        ({"startingTimestamp": "-5"}, "negative"),
        ({"endingOffsetsByTimestamp": '{"orders":{"0":-5}}'}, "negative"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"columns": "offset,offset"}, "twice"),
        ({"columns": "ofset"}, "did you mean 'offset'"),
        ({"minPartitions": "0"}, "positive"),
        ({"maxRecordsPerPartition": "-3"}, "positive"),
        ({"targetPartitionBytes": "12 parsecs"}, "must be a size"),
        ({"keyPrefix": "../elsewhere/"}, "must not lead out of the path"),
        ({"keyPrefix": "/abs"}, "must not lead out of the path"),
        ({"topicId": "nonsense"}, "not a Kafka id"),
        ({"kafka.auto.offset.reset": "earliest"}, "use startingOffsets"),
        ({"kafka.value.deserializer": "x"}, "not supported"),
        ({"kafka.enable.auto.commit": "true"}, "not supported"),
        ({"kafka.interceptor.classes": "x"}, "not supported"),
        ({"storage.key.prefix": "x/"}, "keyPrefix"),
        ({"storageOptions": "[1]"}, "storageOptions"),
        ({"startingOffsets": f'{{"orders":{{"0":{"9" * 5000}}}}}'}, "must be JSON"),
        ({"storageOptions": f'{{"a":{"9" * 5000}}}'}, "storageOptions"),
        ({"storageOptions": "[" * 100_000}, "storageOptions"),
        ({"path": "/a\0b"}, "'path' has a zero byte"),
        ({"planFile": "/\ud800"}, "'planFile' has a zero byte or half of a surrogate pair"),
    ],
)
def test_error_of_invalid_option_explains_the_fix(
    changes: dict[str, str | None], words: str
) -> None:
    assert words in refused(**changes)


def test_kafka_isolation_level_is_an_alias_of_isolation_level() -> None:
    options = parse_options({**BASE, "kafka.isolation.level": "read_uncommitted"})
    assert not options.read_committed
    assert options.given == {"path", "subscribe", "isolationLevel"}  # can contradict a plan file


@pytest.mark.parametrize(
    ("name", "alias", "text", "other"),
    [
        ("isolationLevel", "kafka.isolation.level", "read_committed", "READ_COMMITTED "),
        ("fetchReadTimeoutMs", "fetch.remote.read.timeout.ms", "2500", "+2500"),
        ("checkCrcs", "kafka.check.crcs", "false", "False"),
    ],
)
def test_option_and_alias_with_equal_values_are_accepted(
    name: str, alias: str, text: str, other: str
) -> None:
    options = parse_options({**BASE, name: text, alias: other})
    assert options.given == {*BASE, name}
    assert repr(parse_options({**BASE, name: text})) == repr(options)
    assert f"'{alias}' must be" in refused(**{alias: "x"})


def test_kafka_options_have_no_effect_without_bootstrap_servers() -> None:
    kafka_options = {"kafka.ssl.truststore.location": "/gone", "kafkaConsumer.pollTimeoutMs": "5"}
    options = parse_options({**BASE, **kafka_options})
    assert options.ignored == ("kafka.ssl.truststore.location", "kafkaconsumer.polltimeoutms")
    assert (options.brokers, options.tail, options.broker_fallback) == (None, False, False)


def test_bootstrap_servers_are_read_from_kafka_options() -> None:
    brokers = {"kafka.bootstrap.servers": "x:9092", "kafka.group.id": "g"}
    options = parse_options({**BASE, **brokers})
    assert options.brokers is not None
    assert options.brokers.bootstrap == (("x", 9092),)
    assert options.ignored == ("kafka.group.id",)
    assert (options.tail, options.broker_fallback) == (True, True)
    tier_only = parse_options({**BASE, **brokers, "tail": "false", "brokerFallback": "FALSE"})
    assert (tier_only.tail, tier_only.broker_fallback) == (False, False)


@pytest.mark.parametrize("name", ["tail", "brokerFallback"])
def test_tail_and_broker_fallback_without_bootstrap_servers_are_refused(name: str) -> None:
    assert f"{name}=true needs option kafka.bootstrap.servers" in refused(**{name: "true"})
    assert parse_options({**BASE, name: "false"}).brokers is None


def test_topic_selections_are_parsed() -> None:
    pattern = parse_options({"path": "/t", "subscribePattern": "ord.*"}).selection
    assert pattern == SubscribePattern("ord.*")
    assert pattern.wanted(["orders", "my-orders", "sales"]) == ("my-orders", "orders")
    anchored = parse_options({"path": "/t", "subscribePattern": "^ord.*$"}).selection
    assert anchored.wanted(["orders", "my-orders", "ord"]) == ("ord", "orders")
    assign = parse_options({"path": "/t", "assign": '{"b":[1,0],"a":[3]}'}).selection
    assert assign == Assign({"b": (0, 1), "a": (3,)})


def test_offset_options_have_the_same_precedence_as_in_sparks_kafka_source() -> None:
    options = {**BASE, "startingOffsets": '{"orders":{"0":5}}'}
    assert parse_options(options).starting == OffsetsBound({"orders": {0: 5}})
    options["startingOffsetsByTimestamp"] = '{"orders":{"0":1000}}'
    assert parse_options(options).starting == TimestampsBound({"orders": {0: 1000}})
    options["startingTimestamp"] = "2000"
    assert parse_options(options).starting == TimestampBound(2000)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64k", 64 << 10), ("128m", 128 << 20), ("1 GiB", 1 << 30), ("2T", 2 << 40)],
)
def test_byte_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_options({**BASE, "targetPartitionBytes": text}).target_partition_bytes == size


def test_options_hide_secrets() -> None:
    options = parse_options(
        {
            **BASE,
            "s3.access-key-id": "AKIDEXAMPLE",
            "s3.secret-access-key": "s3cr3t-value",
            "storageOptions": '{"token":"t0k3n-value"}',
            "encryption.key.pairs.key1.private.key.file": "/secret-folder/key.pem",
            "planFile": "https://host/plan.json?signature=s3cr3t-value",
            "fallbackPath": "https://host/list.json?signature=s3cr3t-value",
            "metricsPath": "ftp://user:s3cr3t-value@host/metrics",
        }
    )
    for text in (repr(options), str(options), f"{options}"):
        assert "s3cr3t-value" not in text
        assert "t0k3n-value" not in text
        assert "secret-folder" not in text
    assert options.key_ring.key_ids == ("key1",)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kafka.bootstrap.servers": None}, "needs option kafka.bootstrap.servers"),
        ({"layout": "kafka-logs"}, "reads the disks of stopped brokers"),
        ({"path": None}, "needs option 'path'"),
        ({"catalog": "topic"}, "must be listing or metadata-topic"),
    ],
)
def test_metadata_topic_catalog_with_unusable_options_is_refused(
    changes: dict[str, str | None], text: str
) -> None:
    catalog_options = {"catalog": "metadata-topic", "kafka.bootstrap.servers": "b:9092", **changes}
    assert text in refused(**catalog_options)


def test_catalog_defaults_to_listing() -> None:
    brokers = {**BASE, "kafka.bootstrap.servers": "b:9092"}
    assert not parse_options(brokers).by_metadata_topic
    assert parse_options({**brokers, "catalog": "Metadata-Topic"}).by_metadata_topic
