"""Option combinations about what only brokers know, and what stays different when ours has them.

A difference is a row of the table in `docs/kafka-source.md`; `ROWS` says which cases show it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tests.integration.differential_case import (
    FAR_FUTURE_MS,
    Case,
    Options,
    Verdict,
    fixed,
    time_of,
    timed,
)
from tests.integration.differential_refusals import ours
from tests.integration.workload import GONE_RECORDS, PLAIN_RECORDS, TOPICS, UNTIERED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.integration.workload import TierFacts

EVERY: Final = {**TOPICS, **UNTIERED}
NAMES: Final = ",".join(EVERY)
COMMITTED: Final = {"kafka.isolation.level": "read_committed"}
IN_A_HURRY: Final = {
    "kafka.request.timeout.ms": "1500",
    "kafka.default.api.timeout.ms": "2500",
    "kafka.socket.connection.setup.timeout.ms": "1000",
}


def around(facts: TierFacts, topics: str, of_tier: int) -> str:
    """JSON with an offset so far from the end of every partition's tier, within its log."""
    named: dict[str, dict[str, int]] = {}
    for topic in topics.split(","):
        for number in range(EVERY[topic]):
            place = topic, number
            at = facts.tier_stable[place] + of_tier
            inside = min(max(at, facts.starts[place]), facts.stable[place])
            named.setdefault(topic, {})[str(number)] = inside
    return json.dumps(named)


def ends(facts: TierFacts, topics: str, more: int = 0) -> str:
    """JSON with the end of every partition, or so many offsets behind it."""
    return json.dumps(
        {
            topic: {str(n): facts.latest[topic, n] + more for n in range(EVERY[topic])}
            for topic in topics.split(",")
        }
    )


def times(facts: TierFacts, topic: str, of_tier: int) -> str:
    """JSON with the time of the record so far from the end of every partition's tier."""
    places = [(topic, number) for number in range(EVERY[topic])]
    return json.dumps(
        {topic: {str(n): time_of(facts.tier_ends[name, n] + of_tier) for name, n in places}}
    )


_ROWS: Final[Mapping[str, Callable[[TierFacts], Options]]] = {
    "everything there is": fixed(subscribe=NAMES),
    "everything, the isolation level left out": fixed(subscribe=NAMES),
    "everything by pattern": fixed(subscribePattern="^(plain|txn|app|trim|empty|gone)"),
    "everything with headers": fixed(subscribe=NAMES, includeHeaders="true"),
    "everything in more partitions": fixed(subscribe=NAMES, minPartitions="29"),
    "everything, few records each": fixed(subscribe=NAMES, maxRecordsPerPartition="111"),
    "across the border": lambda facts: {
        "subscribe": "plain,append",
        "startingOffsets": around(facts, "plain,append", -40),
        "endingOffsets": around(facts, "plain,append", 25),
    },
    "across the border, in more partitions": lambda facts: {
        "subscribe": "plain,txn",
        "startingOffsets": around(facts, "plain,txn", -70),
        "endingOffsets": around(facts, "plain,txn", 90),
        "minPartitions": "11",
        "includeHeaders": "true",
    },
    "behind the tier": lambda facts: {
        "subscribe": NAMES,
        "startingOffsets": around(facts, NAMES, 0),
        "endingOffsets": around(facts, NAMES, 1_000_000),
    },
    "one record behind the tier": lambda facts: {
        "assign": '{"append":[0]}',
        "startingOffsets": json.dumps({"append": {"0": facts.tier_ends["append", 0]}}),
        "endingOffsets": json.dumps({"append": {"0": facts.tier_ends["append", 0] + 1}}),
    },
    "up to the very end": lambda facts: {
        "subscribe": "plain,append,trimmed,plain-sparse",
        "endingOffsets": ends(facts, "plain,append,trimmed,plain-sparse"),
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
    "start times behind the tier": lambda facts: {
        "subscribe": "plain",
        "startingOffsetsByTimestamp": times(facts, "plain", 150),
    },
    "end times behind the tier": lambda facts: {
        "subscribe": "plain",
        "endingOffsetsByTimestamp": times(facts, "plain", 150),
    },
    "times on both sides of the border": lambda facts: {
        "subscribe": "plain",
        "startingOffsetsByTimestamp": times(facts, "plain", -60),
        "endingOffsetsByTimestamp": times(facts, "plain", 60),
    },
    "end time behind the tier": timed(endingTimestamp=PLAIN_RECORDS - 130),
    "a start time that some have, strategy latest": fixed(
        subscribe=NAMES,
        startingTimestamp=str(time_of(PLAIN_RECORDS - 100)),
        startingOffsetsByTimestampStrategy="latest",
    ),
    "an end time, with topics that have no record": fixed(
        subscribe="plain,empty,gone", endingTimestamp=str(time_of(400))
    ),
    "a partition that was never written": fixed(assign='{"gone":[1],"plain-sparse":[0,1]}'),
    "below what was deleted, data loss allowed": fixed(
        assign='{"gone":[0],"trimmed":[0]}',
        failOnDataLoss="false",
        startingOffsets='{"gone":{"0":3},"trimmed":{"0":70}}',
    ),
    "small answers": fixed(
        subscribe="plain,txn",
        kafka_max_partition_fetch_bytes="1",
        kafka_fetch_max_bytes="5000",
        kafka_fetch_min_bytes="10",
        kafka_fetch_max_wait_ms="20",
        kafka_check_crcs="false",
        kafka_client_rack="far",
        kafka_request_timeout_ms="20000",
    ),
    "groups and polls": fixed(
        subscribe="append",
        kafka_group_id="some",
        kafka_max_poll_records="7",
        kafka_heartbeat_interval_ms="1000",
        kafka_metadata_max_age_ms="20000",
        kafka_receive_buffer_bytes="70000",
    ),
    "the protocol by name": fixed(subscribe="append", kafka_security_protocol="PLAINTEXT"),
    "the protocol in small letters": fixed(subscribe="append", kafka_security_protocol="plaintext"),
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
    "an empty topic": fixed(subscribe="empty"),
    "an empty topic by its offsets": fixed(
        subscribe="empty",
        startingOffsets='{"empty":{"0":0}}',
        endingOffsets='{"empty":{"0":0}}',
    ),
    "an empty topic by names of offsets": fixed(
        subscribe="empty",
        startingOffsets='{"empty":{"0":-2}}',
        endingOffsets='{"empty":{"0":-1}}',
    ),
    "an empty topic up to a time": fixed(subscribe="empty", endingTimestamp="5"),
    "an empty topic from a time, strategy latest": fixed(
        subscribe="empty", startingTimestamp="5", startingOffsetsByTimestampStrategy="latest"
    ),
    "an empty topic in more partitions": fixed(subscribe="empty", minPartitions="3"),
    "a topic of which all is deleted": fixed(subscribe="gone"),
    "its end": lambda _facts: {
        "subscribe": "gone",
        "startingOffsets": json.dumps({"gone": {"0": GONE_RECORDS, "1": 0}}),
    },
    "from the very end": lambda facts: {
        "subscribe": "plain",
        "startingOffsets": ends(facts, "plain"),
    },
    "a time that none has, strategy latest": fixed(
        subscribe=NAMES,
        startingTimestamp=str(FAR_FUTURE_MS),
        startingOffsetsByTimestampStrategy="latest",
    ),
}

_REFUSED: Final[Mapping[str, Callable[[TierFacts], Options]]] = {
    "an empty topic from a time": fixed(subscribe="empty", startingTimestamp="5"),
    "a time that some topics have not": fixed(subscribe="plain,gone", startingTimestamp="5"),
    "above an empty topic": fixed(subscribe="empty", startingOffsets='{"empty":{"0":1}}'),
    "an end above an empty topic": fixed(subscribe="empty", endingOffsets='{"empty":{"0":1}}'),
    "below what was deleted": fixed(assign='{"gone":[0]}', startingOffsets='{"gone":{"0":3}}'),
    "an end above a transaction that is open": lambda facts: {
        **COMMITTED,
        "assign": '{"txn":[1]}',
        "endingOffsets": json.dumps({"txn": {"1": facts.latest["txn", 1]}}),
    },
    "end offsets of one more partition": fixed(
        subscribe="append", endingOffsets='{"append":{"0":100,"1":0}}'
    ),
    "no servers": fixed(subscribe="append", kafka_bootstrap_servers=""),
    "a server without a port": fixed(subscribe="append", kafka_bootstrap_servers="127.0.0.1"),
    "a server that is not there": lambda _facts: {
        "subscribe": "append",
        "kafka.bootstrap.servers": "127.0.0.1:1",
        **IN_A_HURRY,
    },
    "an unknown protocol": fixed(subscribe="append", kafka_security_protocol="SSH"),
    "TLS with brokers that speak none": lambda _facts: {
        "subscribe": "append",
        "kafka.security.protocol": "SSL",
        **IN_A_HURRY,
    },
    "SASL without a login": fixed(
        subscribe="append", kafka_security_protocol="SASL_PLAINTEXT", kafka_sasl_mechanism="PLAIN"
    ),
    "an unknown mechanism": fixed(
        subscribe="append",
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_mechanism="NONE",
        kafka_sasl_jaas_config="some.Module required;",
    ),
    "a trust store that is not there": fixed(
        subscribe="append",
        kafka_security_protocol="SSL",
        kafka_ssl_truststore_location="/nowhere/trust.jks",
    ),
    "a wait in words": fixed(subscribe="append", kafka_fetch_max_wait_ms="long"),
    "fewer bytes than none": fixed(subscribe="append", kafka_max_partition_fetch_bytes="-1"),
}

MORE: Final[Mapping[str, Case]] = {
    **{name: Case(options) for name, options in _ROWS.items()},
    **{name: Case(options, Verdict.NO_ROWS) for name, options in _NO_ROWS.items()},
    **{name: Case(options, Verdict.BOTH_REFUSE) for name, options in _REFUSED.items()},
    "a security provider without TLS": ours(
        fixed(subscribe="append", kafka_ssl_provider="any"), "what cannot be honoured is refused"
    ),
    "a trust store without TLS": ours(
        fixed(subscribe="append", kafka_ssl_truststore_location="/nowhere/trust.jks"),
        "who gives certificates wants TLS",
    ),
}
"""Cases that the tier alone cannot answer."""

ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "an end, a start or a starting time behind the tier, without brokers": (
        "an end that is not tiered yet",
        "a start behind the tier",
        "a start time behind the tier",
        "an end above a transaction that the tier cannot decide",
    ),
    "JSON bounds, without brokers": (
        "a start of one more partition",
        "an end of one more partition",
        "a start without a partition that is not tiered",
    ),
    "a start above the end or an end below the log start, with `failOnDataLoss=false`": (
        "a start above everything, data loss allowed",
        "an end below the log start, data loss allowed",
    ),
    "a mistake without effect: an unknown option, a malformed one that another overrides": (
        "an unknown option",
        "a malformed option without effect",
    ),
    "JSON with a key twice, a fraction or text behind its end": (
        "a partition twice",
        "a topic twice",
        "an offset with a fraction",
        "more behind the JSON",
    ),
    "`assign` of nothing, `subscribePattern` that no topic matches": (
        "a pattern that no topic has",
        "assign nothing",
        "assign no partition",
        "assign a number below zero",
    ),
    "`assign` of a partition that is not, with brokers": ("assign a partition that is not",),
    "`subscribePattern`": ("a class that only Java's expressions have",),
    "times below zero": (
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
"""First cell of a row of the docs to the cases that show it."""

_WITHOUT_BROKERS: Final = tuple(row for row in ROWS if row.endswith("without brokers"))
STILL_DIFFERENT: Final = frozenset(
    name for row, names in ROWS.items() if row not in _WITHOUT_BROKERS for name in names
)
"""Cases that differ with brokers, too."""
