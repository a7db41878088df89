"""Contains the cases in which this product reads from brokers. The differential test compares the
results with those of Spark's Kafka source.

The table in `docs/kafka-source.md` has a row for each difference between the two sources. `ROWS`
maps each row of the table to the cases that show the difference.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tests.integration.differential_case import (
    FAR_FUTURE_MS,
    Case,
    Options,
    Verdict,
    fixed_options,
    time_of,
    timed_options,
)
from tests.integration.differential_refusals import only_ours_rejects
from tests.integration.workload import GONE_RECORDS, PLAIN_RECORDS, TOPICS, UNTIERED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.integration.workload import TierFacts

EVERY: Final = {**TOPICS, **UNTIERED}
NAMES: Final = ",".join(EVERY)
COMMITTED: Final = {"kafka.isolation.level": "read_committed"}
SHORT_TIMEOUTS: Final = {
    "kafka.request.timeout.ms": "1500",
    "kafka.default.api.timeout.ms": "2500",
    "kafka.socket.connection.setup.timeout.ms": "1000",
}


def offsets_near_tier_end(facts: TierFacts, topics: str, of_tier: int) -> str:
    """Returns JSON with one offset for each partition: the last stable offset of the tier plus
    `of_tier`.

    Sums below the log start are replaced by the log start. Sums above the last stable offset of the
    log are replaced by this offset.
    """
    named: dict[str, dict[str, int]] = {}
    for topic in topics.split(","):
        for number in range(EVERY[topic]):
            key = topic, number
            offset = facts.tier_stable[key] + of_tier
            clamped = min(max(offset, facts.starts[key]), facts.stable[key])
            named.setdefault(topic, {})[str(number)] = clamped
    return json.dumps(named)


def end_offsets_json(facts: TierFacts, topics: str, more: int = 0) -> str:
    """Returns JSON with the high watermark of each partition, increased by `more`."""
    return json.dumps(
        {
            topic: {str(n): facts.latest[topic, n] + more for n in range(EVERY[topic])}
            for topic in topics.split(",")
        }
    )


def times_near_tier_end(facts: TierFacts, topic: str, of_tier: int) -> str:
    """Returns JSON with the create time of one record for each partition of a topic. The record has
    the offset `tier_end + of_tier`, where `tier_end` is the offset after the last tiered offset
    of the partition.
    """
    keys = [(topic, number) for number in range(EVERY[topic])]
    return json.dumps(
        {topic: {str(n): time_of(facts.tier_ends[name, n] + of_tier) for name, n in keys}}
    )


_ROWS: Final[Mapping[str, Callable[[TierFacts], Options]]] = {
    "everything": fixed_options(subscribe=NAMES),
    "everything, default isolation level": fixed_options(subscribe=NAMES),
    "everything by pattern": fixed_options(subscribePattern="^(plain|txn|app|trim|empty|gone)"),
    "everything with headers": fixed_options(subscribe=NAMES, includeHeaders="true"),
    "everything in more partitions": fixed_options(subscribe=NAMES, minPartitions="29"),
    "everything, few records each": fixed_options(subscribe=NAMES, maxRecordsPerPartition="111"),
    "across the end of the tier": lambda facts: {
        "subscribe": "plain,append",
        "startingOffsets": offsets_near_tier_end(facts, "plain,append", -40),
        "endingOffsets": offsets_near_tier_end(facts, "plain,append", 25),
    },
    "across the end of the tier, in more partitions": lambda facts: {
        "subscribe": "plain,txn",
        "startingOffsets": offsets_near_tier_end(facts, "plain,txn", -70),
        "endingOffsets": offsets_near_tier_end(facts, "plain,txn", 90),
        "minPartitions": "11",
        "includeHeaders": "true",
    },
    "after the tier": lambda facts: {
        "subscribe": NAMES,
        "startingOffsets": offsets_near_tier_end(facts, NAMES, 0),
        "endingOffsets": offsets_near_tier_end(facts, NAMES, 1_000_000),
    },
    "one record after the tier": lambda facts: {
        "assign": '{"append":[0]}',
        "startingOffsets": json.dumps({"append": {"0": facts.tier_ends["append", 0]}}),
        "endingOffsets": json.dumps({"append": {"0": facts.tier_ends["append", 0] + 1}}),
    },
    "up to the high watermark": lambda facts: {
        "subscribe": "plain,append,trimmed,plain-sparse",
        "endingOffsets": end_offsets_json(facts, "plain,append,trimmed,plain-sparse"),
    },
    "some from earliest, some to latest": lambda facts: {
        "assign": '{"plain":[0,1],"gone":[0,1],"empty":[0]}',
        "startingOffsets": json.dumps(
            {
                "plain": {"0": -2, "1": facts.tier_ends["plain", 1] - 3},
                "gone": {"0": -2, "1": 0},
                "empty": {"0": -2},
            }
        ),
        "endingOffsets": json.dumps(
            {
                "plain": {"0": facts.tier_ends["plain", 0] + 2, "1": -1},
                "gone": {"0": GONE_RECORDS, "1": -1},
                "empty": {"0": 0},
            }
        ),
    },
    "start times after the tier": lambda facts: {
        "subscribe": "plain",
        "startingOffsetsByTimestamp": times_near_tier_end(facts, "plain", 150),
    },
    "end times after the tier": lambda facts: {
        "subscribe": "plain",
        "endingOffsetsByTimestamp": times_near_tier_end(facts, "plain", 150),
    },
    "times before and after the end of the tier": lambda facts: {
        "subscribe": "plain",
        "startingOffsetsByTimestamp": times_near_tier_end(facts, "plain", -60),
        "endingOffsetsByTimestamp": times_near_tier_end(facts, "plain", 60),
    },
    "end time after the tier": timed_options(endingTimestamp=PLAIN_RECORDS - 130),
    "a start time with records in some topics, strategy latest": fixed_options(
        subscribe=NAMES,
        startingTimestamp=str(time_of(PLAIN_RECORDS - 100)),
        startingOffsetsByTimestampStrategy="latest",
    ),
    "an end time, with topics without records": fixed_options(
        subscribe="plain,empty,gone", endingTimestamp=str(time_of(400))
    ),
    "a partition without records": fixed_options(assign='{"gone":[1],"plain-sparse":[0,1]}'),
    "below deleted records, data loss allowed": fixed_options(
        assign='{"gone":[0],"trimmed":[0]}',
        failOnDataLoss="false",
        startingOffsets='{"gone":{"0":3},"trimmed":{"0":70}}',
    ),
    "small responses": fixed_options(
        subscribe="plain,txn",
        kafka_max_partition_fetch_bytes="1",
        kafka_fetch_max_bytes="5000",
        kafka_fetch_min_bytes="10",
        kafka_fetch_max_wait_ms="20",
        kafka_check_crcs="false",
        kafka_client_rack="far",
        kafka_request_timeout_ms="20000",
    ),
    "groups and polls": fixed_options(
        subscribe="append",
        kafka_group_id="some",
        kafka_max_poll_records="7",
        kafka_heartbeat_interval_ms="1000",
        kafka_metadata_max_age_ms="20000",
        kafka_receive_buffer_bytes="70000",
    ),
    "the protocol by name": fixed_options(subscribe="append", kafka_security_protocol="PLAINTEXT"),
    "the protocol in small letters": fixed_options(
        subscribe="append", kafka_security_protocol="plaintext"
    ),
    "servers with blanks and twice": lambda facts: {
        "subscribe": "append",
        "kafka.bootstrap.servers": f" {facts.bootstrap} , {facts.bootstrap},",
    },
    "one server of two is dead": lambda facts: {
        "subscribe": "append",
        "kafka.bootstrap.servers": f"127.0.0.1:1,{facts.bootstrap}",
    },
}

_NO_ROWS: Final[Mapping[str, Callable[[TierFacts], Options]]] = {
    "an empty topic": fixed_options(subscribe="empty"),
    "an empty topic by its offsets": fixed_options(
        subscribe="empty",
        startingOffsets='{"empty":{"0":0}}',
        endingOffsets='{"empty":{"0":0}}',
    ),
    "an empty topic by names of offsets": fixed_options(
        subscribe="empty",
        startingOffsets='{"empty":{"0":-2}}',
        endingOffsets='{"empty":{"0":-1}}',
    ),
    "an empty topic up to a time": fixed_options(subscribe="empty", endingTimestamp="5"),
    "an empty topic from a time, strategy latest": fixed_options(
        subscribe="empty", startingTimestamp="5", startingOffsetsByTimestampStrategy="latest"
    ),
    "an empty topic in more partitions": fixed_options(subscribe="empty", minPartitions="3"),
    "a topic with all records deleted": fixed_options(subscribe="gone"),
    "the end of a topic with all records deleted": lambda _facts: {
        "subscribe": "gone",
        "startingOffsets": json.dumps({"gone": {"0": GONE_RECORDS, "1": 0}}),
    },
    "from the high watermark": lambda facts: {
        "subscribe": "plain",
        "startingOffsets": end_offsets_json(facts, "plain"),
    },
    "a time after all records, strategy latest": fixed_options(
        subscribe=NAMES,
        startingTimestamp=str(FAR_FUTURE_MS),
        startingOffsetsByTimestampStrategy="latest",
    ),
}

_REFUSED: Final[Mapping[str, Callable[[TierFacts], Options]]] = {
    "an empty topic from a time": fixed_options(subscribe="empty", startingTimestamp="5"),
    "a start time without records in some topics": fixed_options(
        subscribe="plain,gone", startingTimestamp="5"
    ),
    "above an empty topic": fixed_options(subscribe="empty", startingOffsets='{"empty":{"0":1}}'),
    "an end above an empty topic": fixed_options(
        subscribe="empty", endingOffsets='{"empty":{"0":1}}'
    ),
    "below deleted records": fixed_options(
        assign='{"gone":[0]}', startingOffsets='{"gone":{"0":3}}'
    ),
    "an end above an open transaction": lambda facts: {
        **COMMITTED,
        "assign": '{"txn":[1]}',
        "endingOffsets": json.dumps({"txn": {"1": facts.latest["txn", 1]}}),
    },
    "end offsets of one more partition": fixed_options(
        subscribe="append", endingOffsets='{"append":{"0":100,"1":0}}'
    ),
    "no servers": fixed_options(subscribe="append", kafka_bootstrap_servers=""),
    "a server without a port": fixed_options(
        subscribe="append", kafka_bootstrap_servers="127.0.0.1"
    ),
    "an unreachable server": lambda _facts: {
        "subscribe": "append",
        "kafka.bootstrap.servers": "127.0.0.1:1",
        **SHORT_TIMEOUTS,
    },
    "an unknown protocol": fixed_options(subscribe="append", kafka_security_protocol="SSH"),
    "TLS with brokers without TLS": lambda _facts: {
        "subscribe": "append",
        "kafka.security.protocol": "SSL",
        **SHORT_TIMEOUTS,
    },
    "SASL without a login": fixed_options(
        subscribe="append", kafka_security_protocol="SASL_PLAINTEXT", kafka_sasl_mechanism="PLAIN"
    ),
    "an unknown mechanism": fixed_options(
        subscribe="append",
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_mechanism="NONE",
        kafka_sasl_jaas_config="some.Module required;",
    ),
    "a missing trust store": fixed_options(
        subscribe="append",
        kafka_security_protocol="SSL",
        kafka_ssl_truststore_location="/nowhere/trust.jks",
    ),
    "a wait in words": fixed_options(subscribe="append", kafka_fetch_max_wait_ms="long"),
    "a negative number of bytes": fixed_options(
        subscribe="append", kafka_max_partition_fetch_bytes="-1"
    ),
}

MORE: Final[Mapping[str, Case]] = {
    **{name: Case(options) for name, options in _ROWS.items()},
    **{name: Case(options, Verdict.NO_ROWS) for name, options in _NO_ROWS.items()},
    **{name: Case(options, Verdict.BOTH_REFUSE) for name, options in _REFUSED.items()},
    "a security provider without TLS": only_ours_rejects(
        fixed_options(subscribe="append", kafka_ssl_provider="any"),
        "settings that cannot be honored are rejected",
    ),
    "a trust store without TLS": only_ours_rejects(
        fixed_options(subscribe="append", kafka_ssl_truststore_location="/nowhere/trust.jks"),
        "certificates without TLS are a mistake",
    ),
}
"""Cases in which this product reads from brokers."""

ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "an end, a start or a starting time after the tier, without brokers": (
        "an untiered end",
        "a start after the tier",
        "a start time after the tier",
        "an end above an undecided transaction",
    ),
    "`assign` of a partition that has no segment, without brokers": (
        "assign a partition without a tier",
    ),
    "JSON bounds, without brokers": (
        "a start of one more partition",
        "an end of one more partition",
    ),
    "JSON bounds that omit partitions": (
        "a start without an untiered partition",
        "start without a partition",
        "end without a partition",
        "start times without a partition",
        "end times without a partition",
    ),
    "times as [dates, timestamps and durations](options.md#times)": (
        "start times as texts",
        "end date",
    ),
    "a start above the end or an end below the log start, with `failOnDataLoss=false`": (
        "a start above everything, data loss allowed",
        "an end below the log start, data loss allowed",
    ),
    "an unknown option, or a malformed option that another overrides": (
        "an unknown option",
        "a malformed option without effect",
    ),
    "JSON with a duplicate key, a fraction or text after its end": (
        "a partition twice",
        "a topic twice",
        "an offset with a fraction",
        "text after the JSON",
    ),
    "empty `assign`, `subscribePattern` without a matching topic": (
        "a pattern without a match",
        "assign nothing",
        "assign no partition",
        "assign a number below zero",
    ),
    "`assign` of a partition that does not exist": ("assign a missing partition",),
    "`subscribePattern`": ("a character class that only Java has",),
    "negative times": (
        "start time below zero",
        "end time below zero",
        "start times below zero",
    ),
    "blanks around numbers, flags and words; `READ_COMMITTED` in capitals": (
        "a number with blanks",
        "a flag with blanks",
        "a strategy with blanks",
        "isolation in capitals",
    ),
    "`kafka.*` options": (
        "a security provider without TLS",
        "a trust store without TLS",
        "key serializer",
        "value serializer",
    ),
}
"""Cases by first cell of the docs row that they show."""

_WITHOUT_BROKERS: Final = tuple(row for row in ROWS if row.endswith("without brokers"))
STILL_DIFFERENT: Final = frozenset(
    name for row, names in ROWS.items() if row not in _WITHOUT_BROKERS for name in names
)
"""Cases whose results differ even if this product reads from brokers."""
