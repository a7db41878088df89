"""Lists the cases of the differential test in which at least one source rejects the options.

The sources are Spark's Kafka source and this product. If only one of them rejects the options,
`Case.reason` explains why.
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
    offsets_json,
    time_of,
    timed_options,
    timestamps_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.integration.workload import TierFacts

REFUSED: Final[Mapping[str, Case]] = {
    name: Case(options, Verdict.BOTH_REFUSE)
    for name, options in {
        "no selection": fixed_options(),
        "two selections": fixed_options(subscribe="plain", assign='{"plain":[0]}'),
        "subscribe nothing": fixed_options(subscribe=" , "),
        "a missing topic": fixed_options(subscribe="plain,missing"),
        "a topic in backticks": fixed_options(subscribe="`plain`"),
        "empty pattern": fixed_options(subscribePattern=" "),
        "assign without JSON": fixed_options(assign="plain"),
        "assign a name for a number": fixed_options(assign='{"plain":["zero"]}'),
        "start at latest": fixed_options(subscribe="plain", startingOffsets="latest"),
        "start at −1": lambda facts: {
            "subscribe": "plain",
            "startingOffsets": offsets_json(facts, "plain", 0, plain_0=-1),
        },
        "end at earliest": fixed_options(subscribe="plain", endingOffsets="earliest"),
        "end at −2": lambda facts: {
            "subscribe": "plain",
            "endingOffsets": offsets_json(facts, "plain", 1, plain_0=-2),
        },
        "start of another topic": fixed_options(
            subscribe="append", startingOffsets='{"append":{"0":1},"plain":{"0":1}}'
        ),
        "end of a partition of another topic": fixed_options(
            subscribe="append", endingOffsets='{"append":{"0":1},"plain":{"0":1}}'
        ),
        "a start above the end": fixed_options(
            subscribe="append",
            startingOffsets='{"append":{"0":300}}',
            endingOffsets='{"append":{"0":100}}',
        ),
        "a start above the end in one partition": fixed_options(
            subscribe="plain",
            startingOffsets='{"plain":{"0":300,"1":5,"2":5}}',
            endingOffsets='{"plain":{"0":100,"1":50,"2":50}}',
        ),
        "a start time above the end time": timed_options(
            startingTimestamp=300, endingTimestamp=100
        ),
        "start times above the end times": fixed_options(
            subscribe="plain",
            startingOffsetsByTimestamp=timestamps_json("plain", 300),
            endingOffsetsByTimestamp=timestamps_json("plain", 100),
        ),
        "a start at −3": fixed_options(subscribe="append", startingOffsets='{"append":{"0":-3}}'),
        "an end at −3": fixed_options(subscribe="append", endingOffsets='{"append":{"0":-3}}'),
        "a start above the largest offset": fixed_options(
            subscribe="append", startingOffsets='{"append":{"0":99999999999999999999}}'
        ),
        "a start above everything": lambda facts: {
            "subscribe": "append",
            "startingOffsets": json.dumps({"append": {"0": facts.latest["append", 0] + 100}}),
        },
        "an end above everything": lambda facts: {
            "subscribe": "append",
            "endingOffsets": json.dumps({"append": {"0": facts.latest["append", 0] + 100}}),
        },
        "an end below the log start": fixed_options(
            subscribe="trimmed", endingOffsets='{"trimmed":{"0":5}}'
        ),
        "assign a text for a number": fixed_options(assign='{"append":["0"]}'),
        "start in an array": fixed_options(subscribe="append", startingOffsets="[1]"),
        "start without a text": fixed_options(subscribe="append", startingOffsets=""),
        "start time without a text": fixed_options(subscribe="append", startingTimestamp=""),
        "start times of another topic": fixed_options(
            subscribe="append", startingOffsetsByTimestamp='{"append":{"0":1},"txn":{"0":1}}'
        ),
        "records each in words": fixed_options(subscribe="plain", maxRecordsPerPartition="some"),
        "headers without a text": fixed_options(subscribe="plain", includeHeaders=""),
        "start without JSON": fixed_options(subscribe="plain", startingOffsets="first"),
        "start with a text for a number": fixed_options(
            subscribe="append", startingOffsets='{"append":{"0":"one"}}'
        ),
        "start time in words": fixed_options(subscribe="plain", startingTimestamp="yesterday"),
        "end time in words": fixed_options(subscribe="plain", endingTimestamp="tomorrow"),
        "no match": fixed_options(subscribe="plain", startingTimestamp=str(FAR_FUTURE_MS)),
        "no match by partition": fixed_options(
            subscribe="append",
            startingOffsetsByTimestamp=json.dumps({"append": {"0": FAR_FUTURE_MS}}),
        ),
        "an unknown strategy": fixed_options(
            subscribe="plain", startingOffsetsByTimestampStrategy="earliest"
        ),
        "below the log start": fixed_options(
            subscribe="trimmed", startingOffsets='{"trimmed":{"0":5}}'
        ),
        "no partitions": fixed_options(subscribe="plain", minPartitions="0"),
        "partitions below zero": fixed_options(subscribe="plain", minPartitions="-3"),
        "partitions in words": fixed_options(subscribe="plain", minPartitions="many"),
        "no records each": fixed_options(subscribe="plain", maxRecordsPerPartition="0"),
        "headers, maybe": fixed_options(subscribe="plain", includeHeaders="maybe"),
        "data loss, maybe": fixed_options(subscribe="plain", failOnDataLoss="maybe"),
        "offset reset": fixed_options(subscribe="plain", kafka_auto_offset_reset="earliest"),
        "key deserializer": fixed_options(subscribe="plain", kafka_key_deserializer="x"),
        "value deserializer": fixed_options(subscribe="plain", kafka_value_deserializer="x"),
        "auto commit": fixed_options(subscribe="plain", kafka_enable_auto_commit="true"),
        "interceptors": fixed_options(subscribe="plain", kafka_interceptor_classes="x"),
        "an unknown isolation": fixed_options(
            subscribe="plain", kafka_isolation_level="serializable"
        ),
    }.items()
}


def only_ours_rejects(options: Callable[[TierFacts], Options], reason: str) -> Case:
    """Returns a case that this product rejects and Spark's Kafka source accepts."""
    return Case(options, Verdict.ONLY_OURS_REFUSES, reason)


def only_spark_rejects(options: Callable[[TierFacts], Options], reason: str) -> Case:
    """Returns a case that Spark's Kafka source rejects and this product accepts."""
    return Case(options, Verdict.ONLY_SPARK_REFUSES, reason)


NOT_TIERED: Final = "requested rows must not be missing, and the tier does not contain them"
NOTHING: Final = "a selection of nothing is a mistake; Spark returns an empty table"
NUMBERS: Final = "negative times are codes of Kafka's protocol, −5 the end of the tier"
SLOPPY: Final = "JSON that is partly ignored is a mistake"
BLANKS: Final = "blanks around a word or a number are harmless"
UNKNOWN_TO_THE_TIER: Final = "the tier does not know partitions that have no segments"
DEFAULTS: Final = "partitions that a bound does not name have its default"
TIMES: Final = "a time may be a date, a timestamp or a duration"
CLAMPED: Final = "with data loss allowed, all ranges are clamped to the existing offsets"

# Differences from `format("kafka")`, each with its reason.
DIFFERENT: Final[Mapping[str, Case]] = {
    "an untiered end": only_ours_rejects(
        lambda facts: {
            "subscribe": "append",
            "endingOffsets": json.dumps({"append": {"0": facts.latest["append", 0]}}),
        },
        NOT_TIERED,
    ),
    "a start after the tier": only_ours_rejects(
        lambda facts: {
            "subscribe": "append",
            "startingOffsets": json.dumps({"append": {"0": facts.latest["append", 0]}}),
        },
        NOT_TIERED,
    ),
    "a start time after the tier": only_ours_rejects(
        fixed_options(assign='{"plain":[0]}', startingTimestamp=str(time_of(1499))), NOT_TIERED
    ),
    "an end above an undecided transaction": only_ours_rejects(
        lambda facts: {
            "assign": '{"txn":[0]}',
            "kafka.isolation.level": "read_committed",
            "endingOffsets": json.dumps({"txn": {"0": facts.tier_ends["txn", 0]}}),
        },
        NOT_TIERED,
    ),
    "an unknown option": only_ours_rejects(
        fixed_options(subscribe="plain", startingOffset="earliest"),
        "Spark's source ignores unknown options; a misspelled bound would then read everything",
    ),
    "a malformed option without effect": only_ours_rejects(
        fixed_options(
            subscribe="plain", startingTimestamp=str(time_of(5)), startingOffsets="first"
        ),
        "a malformed option is a mistake even if another option takes precedence",
    ),
    "key serializer": only_ours_rejects(
        fixed_options(subscribe="append", kafka_key_serializer="x"), "this source does not write"
    ),
    "value serializer": only_ours_rejects(
        fixed_options(subscribe="append", kafka_value_serializer="x"), "this source does not write"
    ),
    "a pattern without a match": only_ours_rejects(fixed_options(subscribePattern="zzz"), NOTHING),
    "assign nothing": only_ours_rejects(fixed_options(assign="{}"), NOTHING),
    "assign no partition": only_ours_rejects(fixed_options(assign='{"append":[]}'), NOTHING),
    "assign a number below zero": only_ours_rejects(
        fixed_options(assign='{"append":[-1]}'), NOTHING
    ),
    "assign a partition without a tier": only_ours_rejects(
        fixed_options(assign='{"plain-sparse":[1,0]}'), NOT_TIERED
    ),
    "assign a missing partition": only_ours_rejects(
        fixed_options(assign='{"append":[0,9]}'), "a number above all partitions is a mistake"
    ),
    "a character class that only Java has": only_ours_rejects(
        fixed_options(subscribePattern=r"\p{Lower}ppend"), "patterns are Python's"
    ),
    "start time below zero": only_ours_rejects(
        fixed_options(subscribe="append", startingTimestamp="-5"), NUMBERS
    ),
    "end time below zero": only_ours_rejects(
        fixed_options(subscribe="append", endingTimestamp="-5"), NUMBERS
    ),
    "start times below zero": only_ours_rejects(
        fixed_options(subscribe="append", startingOffsetsByTimestamp='{"append":{"0":-5}}'), NUMBERS
    ),
    "a partition twice": only_ours_rejects(
        fixed_options(subscribe="append", startingOffsets='{"append":{"0":1,"0":5}}'), SLOPPY
    ),
    "a topic twice": only_ours_rejects(fixed_options(assign='{"append":[0],"append":[0]}'), SLOPPY),
    "an offset with a fraction": only_ours_rejects(
        fixed_options(subscribe="append", startingOffsets='{"append":{"0":5.7}}'), SLOPPY
    ),
    "text after the JSON": only_ours_rejects(
        fixed_options(subscribe="append", startingOffsets='{"append":{"0":5}} x'), SLOPPY
    ),
    "a number with blanks": only_spark_rejects(
        fixed_options(subscribe="append", minPartitions=" 5 "), BLANKS
    ),
    "a flag with blanks": only_spark_rejects(
        fixed_options(subscribe="append", includeHeaders=" true"), BLANKS
    ),
    "a strategy with blanks": only_spark_rejects(
        fixed_options(subscribe="append", startingOffsetsByTimestampStrategy=" latest "), BLANKS
    ),
    "isolation in capitals": only_spark_rejects(
        fixed_options(subscribe="txn", kafka_isolation_level="READ_COMMITTED"), "case is ignored"
    ),
    "a start of one more partition": only_spark_rejects(
        fixed_options(subscribe="append", startingOffsets='{"append":{"0":1,"7":0}}'),
        UNKNOWN_TO_THE_TIER,
    ),
    "an end of one more partition": only_spark_rejects(
        fixed_options(subscribe="append", endingOffsets='{"append":{"0":100,"7":0}}'),
        UNKNOWN_TO_THE_TIER,
    ),
    "a start without an untiered partition": only_spark_rejects(
        fixed_options(subscribe="plain-sparse", startingOffsets='{"plain-sparse":{"0":1}}'),
        UNKNOWN_TO_THE_TIER,
    ),
    "start without a partition": only_spark_rejects(
        fixed_options(subscribe="plain", startingOffsets='{"plain":{"0":1,"1":1}}'), DEFAULTS
    ),
    "end without a partition": only_spark_rejects(
        fixed_options(subscribe="plain", endingOffsets='{"plain":{"0":1,"1":1}}'), DEFAULTS
    ),
    "start times without a partition": only_spark_rejects(
        fixed_options(subscribe="plain", startingOffsetsByTimestamp='{"plain":{"0":1,"1":1}}'),
        DEFAULTS,
    ),
    "end times without a partition": only_spark_rejects(
        fixed_options(subscribe="plain", endingOffsetsByTimestamp='{"plain":{"0":1}}'), DEFAULTS
    ),
    "start times as texts": only_spark_rejects(
        fixed_options(subscribe="append", startingOffsetsByTimestamp='{"append":{"0":"5"}}'), TIMES
    ),
    "end date": only_spark_rejects(
        fixed_options(subscribe="plain", endingTimestamp="2024-01-01"), TIMES
    ),
    "a start above everything, data loss allowed": only_spark_rejects(
        lambda facts: {
            "subscribe": "append",
            "failOnDataLoss": "false",
            "startingOffsets": json.dumps({"append": {"0": facts.latest["append", 0] + 100}}),
        },
        CLAMPED,
    ),
    "an end below the log start, data loss allowed": only_spark_rejects(
        fixed_options(
            subscribe="trimmed", failOnDataLoss="false", endingOffsets='{"trimmed":{"0":5}}'
        ),
        CLAMPED,
    ),
}
