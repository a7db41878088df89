"""Tests the full texts of the error messages that users most likely see.

Each message says what failed and where, why, and what to do. Paths and object names are shortened:
`TIER` is the folder of the tier, `SEGMENT-5` the stem of the segment that begins at offset 5.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import kts_source
from segment_format.kafka_uuid import uuid_to_text
from segment_format.testing import (
    AivenTierWriter,
    EncryptionKey,
    LocalTierWriter,
    LogBuilder,
    SimpleRecord,
)
from tests.kts_source.broker.fake_broker import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC: Final = "orders"
TOPIC_ID, OTHER_ID = (uuid_to_text(uuid.UUID(int=number << 80)) for number in (5, 6))
KEYS: Final = Path(__file__).parent.parent / "golden" / "keys"
KEY_OPTION: Final = "encryption.key.pairs.key1.private.key.file"
PUBLIC_KEY: Final = EncryptionKey("key1", (KEYS / "key1.public.pem").read_bytes())


def write_tier(
    root: Path,
    writer_class: type[AivenTierWriter | LocalTierWriter] = AivenTierWriter,
    *,
    value: bytes = b'{"n": 1}',
    topic_id: str = TOPIC_ID,
    **arguments: Any,  # noqa: ANN401  # arguments of the writers
) -> Path:
    """Writes three segments of five records each; returns the tier's folder."""
    builder = LogBuilder()
    for _ in range(3):
        builder.append([SimpleRecord(value)] * 5)
        builder.roll()
    randbytes = random.Random(topic_id).randbytes
    arguments |= {"topic": TOPIC, "topic_id": topic_id, "random_bytes": randbytes}
    writer = writer_class(str(root), **arguments)
    for segment in builder.build().segments:
        writer.write_segment(segment)
    return root


def options_of(root: Path, **named: str | None) -> dict[str, str]:
    """Returns options that read the topic.

    In a name, `__` stands for a dot. The value `None` removes the option.
    """
    named = {"path": str(root), "subscribe": TOPIC, **named}
    return {name.replace("__", "."): text for name, text in named.items() if text is not None}


def object_at(root: Path, suffix: str, base_offset: int = 5) -> Path:
    (path,) = root.rglob(f"{base_offset:020d}-*.{suffix}")
    return path


def error_text(root: Path, action: Callable[[], object]) -> str:
    """Returns class and message of the error that an action raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the text is compared
        action()
    text = f"{type(caught.value).__name__}: {caught.value}".replace(str(root), "TIER")
    text = re.sub(
        rf"{TOPIC}-[\w-]{{22}}/0/(\d{{20}})-[\w-]{{22}}",
        lambda match: f"SEGMENT-{int(match[1])}",
        text,
    )
    return re.sub(r"127\.0\.0\.1:\d+", "BROKER", text)


OPTION_ERRORS: Final[dict[str, tuple[dict[str, str | None], str]]] = {
    "unknown_option": (
        {"startingOffset": "earliest"},
        "InvalidOptionError: unknown option 'startingOffset'; did you mean 'startingOffsets'?",
    ),
    "unknown_option_of_the_store": (
        {"s3__Endpiont": "http://x"},
        "InvalidOptionError: unknown option s3.Endpiont: did you mean s3.endpoint?",
    ),
    "unsupported_option": (
        {"Kafka.Auto.Offset.Reset": "latest"},
        "InvalidOptionError: option 'Kafka.Auto.Offset.Reset' is not supported: use"
        " startingOffsets instead",
    ),
    "option_with_a_zero_byte": (
        {"KEYPREFIX": "a\0"},
        "InvalidOptionError: option 'keyPrefix' has a zero byte or half of a surrogate pair",
    ),
    "missing_path": (
        {"path": None},
        "InvalidOptionError: option 'path' is missing. Set it to the root of the tier,"
        " such as s3://bucket or file:///folder. To read only from brokers, set"
        " kafka.bootstrap.servers instead",
    ),
    "no_topic": (
        {"subscribe": None},
        "InvalidOptionError: exactly one of the options subscribe, subscribePattern, assign must be"
        " set, but none is set; subscribePattern='.*' selects all topics",
    ),
    "two_selections": (
        {"subscribePattern": "o.*"},
        "InvalidOptionError: exactly one of the options subscribe, subscribePattern, assign must be"
        " set, but subscribe and subscribePattern are set",
    ),
    "option_like_no_other": (
        {"foo": "1"},
        "InvalidOptionError: unknown option 'foo'; often used are path, keyPrefix, subscribe,"
        " startingOffsets, endingOffsets, startingTimestamp, endingTimestamp, isolationLevel,"
        " columns, where. See all options in docs/options.md",
    ),
    "size": (
        {"targetPartitionBytes": "lots"},
        "InvalidOptionError: option 'targetPartitionBytes' must be a size such as"
        " 134217728 or 128m, not 'lots'",
    ),
    "boolean": (
        {"failOnDataLoss": "maybe"},
        "InvalidOptionError: option 'failOnDataLoss' must be true or false, not 'maybe'",
    ),
    "number": (
        {"minPartitions": "-1"},
        "InvalidOptionError: option 'minPartitions' must be positive, not '-1'",
    ),
    "starting_offsets": (
        {"startingOffsets": "{orders"},
        "InvalidOptionError: option 'startingOffsets' must be JSON like"
        ' {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, not \'{orders\': Expecting property'
        " name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    "latest_start": (
        {"startingOffsets": "latest"},
        "InvalidOptionError: option 'startingOffsets' cannot be latest (-1) in a batch query",
    ),
    "topic_pattern": (
        {"subscribe": None, "subscribePattern": "orders("},
        "InvalidOptionError: option 'subscribePattern' is not a regular expression:"
        " 'orders(': missing ), unterminated subpattern at position 6",
    ),
    "isolation_level": (
        {"isolationLevel": "committed"},
        "InvalidOptionError: option 'isolationLevel' must be read_committed or"
        " read_uncommitted, not 'committed'",
    ),
    "column": (
        {"columns": "offset,vlaue"},
        "InvalidOptionError: option 'columns' names 'vlaue', which is not a column; did"
        " you mean 'value'? (columns: key, value, topic, partition, offset, timestamp,"
        " timestampType, headers, leaderEpoch, producerId, producerEpoch, sequence,"
        " isTransactional, batchBaseOffset, codec, segmentId)",
    ),
    "layout": (
        {"layout": "avien"},
        "InvalidOptionError: option 'layout' is 'avien'; known layouts: aiven,"
        " kafka-logs, local-tiered-storage",
    ),
    "value_format": (
        {"value__format": "csv"},
        "InvalidOptionError: option 'value.format' must be raw or utf8 or json or"
        " json-confluent or avro or avro-confluent or avro-glue or avro-apicurio or"
        " protobuf or protobuf-confluent, not 'csv'",
    ),
    "json_schema": (
        {"value__format": "json", "value__schema": "amount bigint,"},
        "InvalidOptionError: option 'value.schema' is neither a DDL (expected the name of"
        " a column at character 14, not the end) nor a file of one: 'amount bigint,'"
        " (FileNotFoundError)",
    ),
    "avro_without_schema": (
        {"value__format": "avro"},
        "InvalidOptionError: option 'value.format' = avro needs option 'value.schema'",
    ),
    "where_without_operand": (
        {"where": "offset >"},
        "InvalidOptionError: option 'where': an operand is missing near '>' in 'offset >';"
        " write a condition such as offset >= 10 AND key = 'a'",
    ),
    "where_with_double_equals": (
        {"where": "key =="},
        "InvalidOptionError: option 'where': an operand is missing near '==' in 'key ==';"
        " write a condition such as offset >= 10 AND key = 'a'",
    ),
    "where_without_first_operand": (
        {"where": "= 'secret of mine'"},
        "InvalidOptionError: option 'where': an operand is missing near \"'secret of mine'\" in"
        " \"= 'secret of mine'\"; write a condition such as offset >= 10 AND key = 'a'",
    ),
    "where_with_extra_text": (
        {"where": "offset > 1 )"},
        "InvalidOptionError: option 'where': unexpected text near ')' in 'offset > 1 )';"
        " write a condition such as offset >= 10 AND key = 'a'",
    ),
    "where_unknown_column": (
        {"where": "offst > 5"},
        "InvalidOptionError: option 'where': offst is not a column for predicates"
        " (columns: key, value, topic, partition, offset, timestamp, timestampType); did you mean"
        " 'offset'?",
    ),
    "where_field_without_column": (
        {"where": "amount > 5"},
        "InvalidOptionError: option 'where': amount is not a column for predicates"
        " (columns: key, value, topic, partition, offset, timestamp, timestampType); for a field of"
        " values, set option 'value.format' and write value.<field>",
    ),
    "where_field_without_schema": (
        {"where": "value.amount > 5", "value.format": "json"},
        "InvalidOptionError: option 'where': value.amount needs option 'value.schema', because the"
        " type of a field in a condition is not inferred from a sample: `kts schema` prints the"
        " schema of a sample",
    ),
    "column_is_a_field": (
        {"columns": "offset,value.amount", "value.format": "json"},
        "InvalidOptionError: option 'columns' names 'value.amount', which is not a column; select"
        " 'value', and its fields with option 'value.columns' (columns: key, value, topic,"
        " partition, offset, timestamp, timestampType, headers, leaderEpoch, producerId,"
        " producerEpoch, sequence, isTransactional, batchBaseOffset, codec, segmentId, valueRaw)",
    ),
    "topic_instead_of_subscribe": (
        {"topic": "orders"},
        "InvalidOptionError: unknown option 'topic'; did you mean 'subscribe'?",
    ),
    "where_wrong_type": (
        {"where": "offset > 'abc'"},
        "InvalidOptionError: option 'where': offset > 'abc': the literal must be a whole number",
    ),
    "where_without_time_zone": (
        {"where": "timestamp > '2024-01-31 12:00:00'"},
        "InvalidOptionError: option 'where': timestamp > '2024-01-31 12:00:00':"
        " '2024-01-31 12:00:00' has no time zone; add a time zone, or set option 'timeZone'",
    ),
    "topic_id": (
        {"topicId": "abc"},
        "InvalidOptionError: option 'topicId': not a Kafka id (22 characters of base64url): 'abc'",
    ),
    "metadata_topic_without_brokers": (
        {"catalog": "metadata-topic"},
        "InvalidOptionError: option catalog=metadata-topic needs option"
        " kafka.bootstrap.servers: the topic __remote_log_metadata is read from brokers",
    ),
    "login_without_jaas": (
        {
            "kafka__bootstrap__servers": "b:9092",
            "kafka__security__protocol": "SASL_SSL",
            "kafka__sasl__mechanism": "PLAIN",
        },
        "InvalidOptionError: option 'kafka.sasl.jaas.config' is needed for PLAIN",
    ),
    "missing_truststore": (
        {
            "kafka__bootstrap__servers": "b:9092",
            "kafka__security__protocol": "SSL",
            "kafka__ssl__truststore__location": "/missing/ca.pem",
        },
        "InvalidOptionError: option 'kafka.ssl.truststore.location' is not a file on the driver",
    ),
    "broker_without_port": (
        {"kafka__bootstrap__servers": "broker-1"},
        "InvalidOptionError: option 'kafka.bootstrap.servers' must be like"
        " host:9092,[::1]:9092; its entry 1 is invalid",
    ),
}


@pytest.mark.parametrize("name", OPTION_ERRORS)
def test_option_error_has_expected_text(tmp_path: Path, name: str) -> None:
    options, expected = OPTION_ERRORS[name]
    if any(option.startswith("kafka__") for option in options):
        pytest.importorskip("kafka")
    assert (
        error_text(tmp_path, lambda: kts_source.plan(options_of(tmp_path, **options))) == expected
    )


PLAN_ERRORS: Final[dict[str, tuple[dict[str, str | None], str]]] = {
    "unknown_topic": (
        {"subscribe": "orderz"},
        "TopicNotFoundError: no topic 'orderz' in the tier at file://TIER/; it has orders",
    ),
    "pattern_without_match": (
        {"subscribe": None, "subscribePattern": "^payments$"},
        "TopicNotFoundError: no topic matches '^payments$' in the tier at file://TIER/;"
        " it has orders",
    ),
    "unknown_topic_id": (
        {"topicId": "AAAAAAAGAAAAAAAAAAAAAA"},
        "InvalidOptionError: option 'topicId': topic 'orders' has no id"
        " AAAAAAAGAAAAAAAAAAAAAA; the tier has AAAAAAAFAAAAAAAAAAAAAA",
    ),
    "offset_above_end": (
        {"startingOffsets": '{"orders":{"0":99}}'},
        "OffsetOutOfRangeError: orders-0: startingOffsets names offset 99, which is"
        " not tiered yet: the tier holds [0, 15); failOnDataLoss=false reads the offsets"
        " that exist [topic orders, partition 0]",
    ),
    "offsets_of_other_partition": (
        {"startingOffsets": '{"orders":{"1":3}}'},
        "InvalidOptionError: the starting offsets name partitions that are not read: orders-1."
        " Remove them from the option, or name all other partitions, too, if they are empty."
        " Partitions to read: orders-0",
    ),
    "timestamp_above_end": (
        {"startingTimestamp": "99999999999999"},
        "OffsetOutOfRangeError: orders-0: no record in the tier has a timestamp at or after"
        " 99999999999999 ms (5138-11-16T09:46:39.999+00:00): the newest record is from"
        " 2023-11-14T22:13:20.000+00:00. Set startingOffsetsByTimestampStrategy=latest to read"
        " nothing instead [topic orders, partition 0]",
    ),
    "too_many_requests": (
        {"maxPlanRequests": "1"},
        "PlanTooLargeError: the plan needs 3 requests for 408 bytes, which exceeds"
        " maxPlanRequests=1; select fewer offsets, timestamps or topics, or raise the limit",
    ),
    "too_many_bytes": (
        {"maxPlanBytes": "100"},
        "PlanTooLargeError: the plan needs 3 requests for 408 bytes, which exceeds"
        " maxPlanBytes=100; select fewer offsets, timestamps or topics, or raise the limit",
    ),
}


@pytest.mark.parametrize("name", PLAN_ERRORS)
def test_plan_error_has_expected_text(tmp_path: Path, name: str) -> None:
    write_tier(tmp_path)
    options, expected = PLAN_ERRORS[name]
    assert (
        error_text(tmp_path, lambda: kts_source.plan(options_of(tmp_path, **options))) == expected
    )


def read(root: Path, **options: str | None) -> object:
    return kts_source.scan(options_of(root, **options)).to_table()


def read_missing_folder(root: Path) -> None:
    read(root / "missing")


def read_empty_folder(root: Path) -> None:
    root.mkdir()
    read(root)


def read_without_key_prefix(root: Path) -> None:
    read(write_tier(root, key_prefix="tiered/"))


def read_with_wrong_layout(root: Path) -> None:
    read(write_tier(root, LocalTierWriter))


def read_topic_with_two_ids(root: Path) -> None:
    write_tier(root, LocalTierWriter)
    read(write_tier(root, LocalTierWriter, topic_id=OTHER_ID), layout="local-tiered-storage")


def read_tier_with_hole(root: Path) -> None:
    write_tier(root)
    for suffix in ("log", "indexes", "rsm-manifest"):
        object_at(root, suffix).unlink()
    read(root)


def read_tier_without_log(root: Path) -> None:
    object_at(write_tier(root), "log").unlink()
    read(root)


def read_tier_with_malformed_manifest(root: Path) -> None:
    object_at(write_tier(root), "rsm-manifest").write_text("{")
    read(root)


def read_tier_with_incomplete_manifest(root: Path) -> None:
    path = object_at(write_tier(root), "rsm-manifest")
    document = json.loads(path.read_text())
    del document["chunkIndex"]
    path.write_text(json.dumps(document))
    read(root)


def read_truncated_log(root: Path) -> None:
    path = object_at(write_tier(root), "log")
    path.write_bytes(path.read_bytes()[:-10])
    read(root)


def read_damaged_batch(root: Path) -> None:
    path = object_at(write_tier(root), "log")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    read(root)


def read_object_deleted_after_plan(root: Path) -> None:
    scan = kts_source.scan(options_of(write_tier(root)))
    assert scan.tasks
    object_at(root, "log").unlink()
    scan.to_table()


def read_encrypted_tier_without_key(root: Path) -> None:
    read(write_tier(root, encryption=PUBLIC_KEY))


def read_encrypted_tier_with_missing_key_file(root: Path) -> None:
    read(write_tier(root, encryption=PUBLIC_KEY), **{KEY_OPTION: "/missing/key1.pem"})


def read_encrypted_tier_with_wrong_key(root: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    path = root.parent / "wrong.pem"
    pem = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(pem)
    read(write_tier(root, encryption=PUBLIC_KEY), **{KEY_OPTION: str(path)})


def read_value_of_wrong_type(root: Path) -> None:
    read(write_tier(root), value__format="json", value__schema="n boolean")


def read_values_with_missing_schema_folder(root: Path) -> None:
    read(
        write_tier(root, value=b"\0\0\0\0\x07\x04hi"),
        value__format="avro-confluent",
        value__schema='"string"',
        **{"value__schema-registry__url": "/missing/schemas"},
    )


def read_store_with_expired_credentials(root: Path) -> None:
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("ExpiredToken: the provided token has expired")

    class ExpiredFileSystem(LocalFileSystem):  # type: ignore[misc]
        protocol = "expired"
        find = ls = info = walk = cat_file = refuse

    fsspec.register_implementation("expired", ExpiredFileSystem, clobber=True)
    read(root, path="expired://bucket/tier")


def read_with_old_brokers(root: Path) -> None:
    pytest.importorskip("kafka")
    with FakeCluster(versions={"Fetch": 12, "ListOffsets": 7}) as cluster:
        read(write_tier(root), kafka__bootstrap__servers=cluster.bootstrap)


def read_missing_plan_file(root: Path) -> None:
    read(write_tier(root), planFile=str(root / "plan.json"))


def plan_file(root: Path, **changes: object) -> str:
    """Writes a plan file of the tier in which `changes` replace members; returns the path."""
    document = json.loads(kts_source.plan(options_of(write_tier(root))).to_json()) | changes
    path = root.parent / "plan.json"
    path.write_text(json.dumps(document))
    return str(path)


def read_plan_file_of_other_version(root: Path) -> None:
    read(root, planFile=plan_file(root, version=1))


def read_plan_file_with_other_isolation_level(root: Path) -> None:
    read(root, planFile=plan_file(root), isolationLevel="read_uncommitted")


def read_plan_file_after_object_changed(root: Path) -> None:
    path = plan_file(root)
    log = object_at(root, "log")
    log.write_bytes(log.read_bytes()[:-1])
    read(root, planFile=path)


def export_to_unsupported_store(root: Path) -> None:
    kts_source.backfill(None, source=options_of(write_tier(root)), target="hdfs://lake/orders")


def search_without_condition(root: Path) -> None:
    kts_source.find(options_of(write_tier(root)))


def filter_after_limit(root: Path) -> None:
    kts_source.scan(options_of(write_tier(root))).limit(1).where("offset > 3")


def audit_at_unknown_level(root: Path) -> None:
    kts_source.audit(options_of(write_tier(root)), level="everything")


READ_ERRORS: Final[dict[Callable[[Path], None], str]] = {
    read_missing_folder: (
        "StoreNotFoundError: the folder does not exist. Set option 'path' to the folder that"
        " contains the tier [object file://TIER/missing/]"
    ),
    read_empty_folder: (
        "TierNotFoundError: no tier at file://TIER/: searched for folders"
        " <topic>-<topic id>/ of layout 'aiven'. Check option 'path', and option 'keyPrefix',"
        " which is the plugin's key.prefix with its slash if it has one"
    ),
    read_without_key_prefix: (
        "TierNotFoundError: no tier at file://TIER/: searched for folders"
        " <topic>-<topic id>/ of layout 'aiven'; did you mean keyPrefix 'tiered/'?"
    ),
    read_with_wrong_layout: (
        "TierNotFoundError: no tier at file://TIER/: searched for folders"
        " <topic>-<topic id>/ of layout 'aiven'; the objects have layout"
        " 'local-tiered-storage': set layout=local-tiered-storage"
    ),
    read_topic_with_two_ids: (
        "InvalidOptionError: topic 'orders' has several topic ids"
        " (AAAAAAAFAAAAAAAAAAAAAA, AAAAAAAGAAAAAAAAAAAAAA), and layout"
        " 'local-tiered-storage' does not record which id is newest; choose an id with"
        " option 'topicId'"
    ),
    read_tier_with_hole: (
        "DataLossError: orders-0: no segment in the tier holds offsets [5, 10) between"
        " SEGMENT-0.log and SEGMENT-10.log; failOnDataLoss=false skips them [topic orders,"
        " partition 0]"
    ),
    read_tier_without_log: (
        "DataLossError: orders-0: no segment in the tier holds offsets [5, 10) between"
        " SEGMENT-0.log and SEGMENT-10.log; only incomplete segments exist:"
        " SEGMENT-5.indexes, SEGMENT-5.rsm-manifest (no .log: lost, or a delete is"
        " running); failOnDataLoss=false skips them [topic orders, partition 0]"
    ),
    read_tier_with_malformed_manifest: (
        "CorruptSegmentError: manifest is not JSON: Expecting property name enclosed in"
        " double quotes (at byte 1) [topic orders, partition 0, offset 5, object"
        " file://TIER/SEGMENT-5.rsm-manifest]"
    ),
    read_tier_with_incomplete_manifest: (
        "CorruptSegmentError: manifest: chunkIndex is missing [topic orders, partition 0,"
        " offset 5, object file://TIER/SEGMENT-5.rsm-manifest]"
    ),
    read_truncated_log: (
        "CorruptSegmentError: the chunks add up to 136 bytes, but the object"
        " SEGMENT-5.log has 126 bytes: the object was truncated, or belongs to another"
        " manifest"
        " [topic orders, partition 0, offset 5, object file://TIER/SEGMENT-5.rsm-manifest]"
    ),
    read_damaged_batch: (
        "CorruptSegmentError: the batch is damaged: stored CRC 0x7d074e73, computed"
        " 0xd846dc0d. Restore the object or set fallbackPath; `kts verify` finds all damaged"
        " batches [topic orders, partition 0, offset 5, object"
        " file://TIER/SEGMENT-5.log, byte 0]"
    ),
    read_object_deleted_after_plan: (
        "DataLossError: offsets [5, 10) cannot be read: the object was deleted after the"
        " plan was made: file://TIER/SEGMENT-5.log. Plan again, or set"
        " failOnDataLoss=false to skip these offsets [topic orders, partition 0, offset 5,"
        " object file://TIER/SEGMENT-5.log]"
    ),
    read_encrypted_tier_without_key: (
        "UnknownKeyError: the segment is encrypted with key id 'key1', and no private"
        " key is configured. Set option encryption.key.pairs.key1.private.key.file [topic"
        " orders, partition 0, object file://TIER/SEGMENT-10.log]"
    ),
    read_encrypted_tier_with_missing_key_file: (
        "UnknownKeyError: the segment is encrypted with key id 'key1', and the file"
        " named by option encryption.key.pairs.key1.private.key.file does not exist on the"
        " driver or on this worker [topic orders, partition 0, object"
        " file://TIER/SEGMENT-10.log]"
    ),
    read_encrypted_tier_with_wrong_key: (
        "UnknownKeyError: the data key cannot be decrypted with the private key of key pair"
        " 'key1' [topic orders, partition 0, object file://TIER/SEGMENT-10.log]"
    ),
    read_value_of_wrong_type: (
        "InvalidValueError: the value does not match option 'value.format' (json): n:"
        " expected a boolean for bool, not a number (byte 6). If all rows fail, correct"
        " option 'value.schema'. Otherwise set value.mode=PERMISSIVE to get null, or"
        " DROPMALFORMED to skip such rows [topic orders, partition 0, offset 0]"
    ),
    read_values_with_missing_schema_folder: (
        "RegistryError: the folder of schemas /missing/schemas does not exist on this"
        " machine [topic orders, partition 0, offset 0]"
    ),
    read_store_with_expired_credentials: (
        "AccessDeniedError: access denied: PermissionError: ExpiredToken: the provided"
        " token has expired [object expired://bucket/tier/orders-]"
    ),
    read_with_old_brokers: (
        "BrokerError: broker BROKER is older than Kafka 3.1 and cannot fetch by topic id,"
        " which detects topics that were created again. Upgrade it, or remove"
        " kafka.bootstrap.servers to read only the tier"
    ),
    read_missing_plan_file: (
        "InvalidOptionError: option 'planFile' (TIER/plan.json): the file does not exist;"
        " create it with `kts plan --json` or `ScanPlan.to_json`"
    ),
    read_plan_file_of_other_version: (
        "InvalidOptionError: option 'planFile' (FOLDER/plan.json): the plan has version"
        " '1', but this release reads only version 4; plan again"
    ),
    read_plan_file_with_other_isolation_level: (
        "InvalidOptionError: option 'isolationLevel' (read_uncommitted) contradicts"
        " option 'planFile', whose plan was made with read_committed: remove one of them,"
        " or plan again"
    ),
    read_plan_file_after_object_changed: (
        "ObjectChangedError: the object has changed since the plan was made; plan again"
        " [object file://TIER/SEGMENT-5.log]"
    ),
    export_to_unsupported_store: (
        "UnsupportedTargetError: cannot export to hdfs://: targets are local folders,"
        " s3://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix and"
        " gs://bucket/prefix"
    ),
    search_without_condition: (
        "InvalidOptionError: the search has no condition: give keys, values, headers,"
        " producers, or option where"
    ),
    filter_after_limit: (
        "InvalidOptionError: where() after limit(): the limit applies to matching rows,"
        " so call where() before limit()"
    ),
    audit_at_unknown_level: (
        "InvalidOptionError: unknown audit level 'everything'. Use one of listing,"
        " metadata, indexes, bytes."
    ),
}


@pytest.mark.parametrize("action", READ_ERRORS, ids=lambda action: action.__name__)
def test_read_error_has_expected_text(tmp_path: Path, action: Callable[[Path], None]) -> None:
    root = tmp_path / "tier"
    assert error_text(root, lambda: action(root)) == READ_ERRORS[action].replace(
        "FOLDER", str(tmp_path)
    )
