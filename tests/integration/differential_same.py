"""Contains the cases in which Spark's Kafka source and this product return the same rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tests.integration.differential_case import (
    ALL,
    FAR_FUTURE_MS,
    TIMED,
    Case,
    Verdict,
    fixed_options,
    offsets_json,
    time_of,
    timed_options,
    timestamps_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


SAME: Final[Mapping[str, Case]] = {
    # Topics and partitions.
    "subscribe one": Case(fixed_options(subscribe="plain")),
    "subscribe several with blanks": Case(fixed_options(subscribe=" plain , txn,")),
    "subscribe all": Case(fixed_options(subscribe=ALL)),
    "subscribe one twice": Case(fixed_options(subscribe="txn,txn")),
    "pattern of a prefix": Case(fixed_options(subscribePattern="plain.*")),
    "pattern within names": Case(fixed_options(subscribePattern="l.in")),
    "pattern of a full name": Case(fixed_options(subscribePattern="^pl.in$")),
    "pattern with a choice": Case(fixed_options(subscribePattern="txn|append")),
    "assign some": Case(fixed_options(assign='{"plain":[0,2]}')),
    "assign several topics": Case(fixed_options(assign='{"txn":[1],"plain":[1]}')),
    "assign one partition twice": Case(fixed_options(assign='{"plain":[1,1]}')),
    # Offsets.
    "earliest and latest by name": Case(
        fixed_options(subscribe=ALL, startingOffsets="earliest", endingOffsets="latest")
    ),
    "names in capitals": Case(
        fixed_options(subscribe="txn", startingOffsets="EARLIEST", endingOffsets="Latest")
    ),
    "start offsets": Case(
        lambda facts: {"subscribe": ALL, "startingOffsets": offsets_json(facts, ALL, 0.4)}
    ),
    "end offsets": Case(
        lambda facts: {"subscribe": ALL, "endingOffsets": offsets_json(facts, ALL, 0.6)}
    ),
    "start and end offsets": Case(
        lambda facts: {
            "subscribe": ALL,
            "startingOffsets": offsets_json(facts, ALL, 0.21),
            "endingOffsets": offsets_json(facts, ALL, 0.83),
        }
    ),
    "some partitions from earliest to latest": Case(
        lambda facts: {
            "subscribe": TIMED,
            "startingOffsets": offsets_json(facts, TIMED, 0.5, plain_1=-2, txn_0=-2),
            "endingOffsets": offsets_json(facts, TIMED, 0.9, plain_1=-1, txn_1=-1),
        }
    ),
    "start offsets of assigned partitions": Case(
        lambda facts: {
            "assign": '{"plain":[0,2]}',
            "startingOffsets": '{"plain":{"0":100,"2":-2}}',
            "endingOffsets": json.dumps({"plain": {"2": 100, "0": facts.tier_stable["plain", 0]}}),
        }
    ),
    "one record": Case(
        fixed_options(
            assign='{"plain":[1]}',
            startingOffsets='{"plain":{"1":123}}',
            endingOffsets='{"plain":{"1":124}}',
        )
    ),
    "an empty range": Case(
        lambda facts: {
            "subscribe": ALL,
            "startingOffsets": offsets_json(facts, ALL, 0.5),
            "endingOffsets": offsets_json(facts, ALL, 0.5),
        },
        Verdict.NO_ROWS,
    ),
    "from the end of the tier": Case(
        lambda facts: {
            "assign": '{"plain":[0]}',
            "startingOffsets": json.dumps({"plain": {"0": facts.tier_ends["plain", 0]}}),
        },
        Verdict.NO_ROWS,
    ),
    "from the log start inside a segment": Case(
        lambda facts: {
            "subscribe": "trimmed",
            "startingOffsets": json.dumps({"trimmed": {"0": facts.starts["trimmed", 0]}}),
        }
    ),
    # Timestamps.
    "start time": Case(timed_options(startingTimestamp=300)),
    "start time between records": Case(timed_options(startingTimestamp=300.5)),
    "start time among late records": Case(timed_options(startingTimestamp=265 - 90)),
    "start time before everything": Case(fixed_options(subscribe=TIMED, startingTimestamp="0")),
    "start time with only markers after it": Case(
        fixed_options(subscribe="txn", startingTimestamp=str(time_of(10_000_000)))
    ),
    "end time": Case(timed_options(endingTimestamp=300)),
    "end time between records": Case(timed_options(endingTimestamp=250.25)),
    "end time before everything": Case(
        fixed_options(subscribe=TIMED, endingTimestamp="1"), Verdict.NO_ROWS
    ),
    "end time after everything": Case(
        fixed_options(subscribe=TIMED, endingTimestamp=str(FAR_FUTURE_MS))
    ),
    "start and end time": Case(timed_options(startingTimestamp=111, endingTimestamp=333)),
    "start and end time alike": Case(
        timed_options(startingTimestamp=200, endingTimestamp=200), Verdict.NO_ROWS
    ),
    "start times by partition": Case(
        fixed_options(
            subscribe=TIMED, startingOffsetsByTimestamp=timestamps_json(TIMED, 20, 350, 120, 7, 260)
        )
    ),
    "end times by partition": Case(
        fixed_options(
            subscribe=TIMED, endingOffsetsByTimestamp=timestamps_json(TIMED, 300, 210, 33, 150, 90)
        )
    ),
    "start and end times by partition": Case(
        fixed_options(
            subscribe=TIMED,
            startingOffsetsByTimestamp=timestamps_json(TIMED, 10, 20, 30, 40, 50),
            endingOffsetsByTimestamp=timestamps_json(TIMED, 300, 210, 133, 150, 290),
        )
    ),
    "start time, end offsets": Case(
        lambda facts: {
            "subscribe": TIMED,
            "startingTimestamp": str(time_of(50)),
            "endingOffsets": offsets_json(facts, TIMED, 0.9),
        }
    ),
    "start offsets, end time": Case(
        lambda facts: {
            "subscribe": TIMED,
            "startingOffsets": offsets_json(facts, TIMED, 0.05),
            "endingTimestamp": str(time_of(290)),
        }
    ),
    "times with blanks around": Case(
        fixed_options(
            subscribe=TIMED, startingTimestamp=f" {time_of(30)} ", endingTimestamp=f" {time_of(90)}"
        )
    ),
    "log append time": Case(fixed_options(subscribe="append", startingTimestamp=str(time_of(0)))),
    "no match, strategy latest": Case(
        fixed_options(
            subscribe=TIMED,
            startingTimestamp=str(FAR_FUTURE_MS),
            startingOffsetsByTimestampStrategy="latest",
        ),
        Verdict.NO_ROWS,
    ),
    "a match after the tier, strategy latest": Case(
        fixed_options(
            subscribe="plain",
            startingTimestamp=str(time_of(1499)),
            startingOffsetsByTimestampStrategy="latest",
        ),
        Verdict.NO_ROWS,
    ),
    "a match, strategy latest": Case(
        fixed_options(
            subscribe=TIMED,
            startingOffsetsByTimestamp=timestamps_json(TIMED, 99),
            startingOffsetsByTimestampStrategy="LATEST",
        )
    ),
    # Precedence: a single timestamp overrides timestamps by partition, which override offsets.
    "start time over times and offsets": Case(
        lambda facts: {
            "subscribe": TIMED,
            "startingTimestamp": str(time_of(222)),
            "startingOffsetsByTimestamp": timestamps_json(TIMED, 1),
            "startingOffsets": offsets_json(facts, TIMED, 0),
        }
    ),
    "start times over offsets": Case(
        lambda facts: {
            "subscribe": TIMED,
            "startingOffsetsByTimestamp": timestamps_json(TIMED, 222),
            "startingOffsets": offsets_json(facts, TIMED, 0),
        }
    ),
    "start time over latest": Case(
        fixed_options(
            subscribe=TIMED, startingTimestamp=str(time_of(222)), startingOffsets="latest"
        )
    ),
    "end time over times and offsets": Case(
        lambda facts: {
            "subscribe": TIMED,
            "endingTimestamp": str(time_of(222)),
            "endingOffsetsByTimestamp": timestamps_json(TIMED, 1),
            "endingOffsets": offsets_json(facts, TIMED, 0),
        }
    ),
    "end times over offsets": Case(
        lambda facts: {
            "subscribe": TIMED,
            "endingOffsetsByTimestamp": timestamps_json(TIMED, 222),
            "endingOffsets": offsets_json(facts, TIMED, 0),
        }
    ),
    "end time over earliest": Case(
        fixed_options(subscribe=TIMED, endingTimestamp=str(time_of(222)), endingOffsets="earliest")
    ),
    # Other options.
    "headers": Case(fixed_options(subscribe=ALL, includeHeaders="true")),
    "headers in capitals": Case(fixed_options(subscribe="plain", includeHeaders="TRUE")),
    "no headers": Case(fixed_options(subscribe="plain", includeHeaders="false")),
    "more partitions": Case(fixed_options(subscribe=ALL, minPartitions="13")),
    "few records each": Case(fixed_options(subscribe=TIMED, maxRecordsPerPartition="300")),
    "few records each in more partitions": Case(
        fixed_options(subscribe="txn", maxRecordsPerPartition="500", minPartitions="5")
    ),
    "data loss allowed": Case(fixed_options(subscribe=ALL, failOnDataLoss="false")),
    "below the log start, data loss allowed": Case(
        fixed_options(
            subscribe="trimmed",
            failOnDataLoss="false",
            startingOffsets='{"trimmed":{"0":5}}',
        )
    ),
    "an end above everything, data loss allowed": Case(
        lambda facts: {
            "subscribe": "append",
            "failOnDataLoss": "false",
            "endingOffsets": json.dumps({"append": {"0": facts.latest["append", 0] + 100}}),
        }
    ),
    "up to the log start": Case(
        lambda facts: {
            "subscribe": "trimmed",
            "endingOffsets": json.dumps({"trimmed": {"0": facts.starts["trimmed", 0]}}),
        },
        Verdict.NO_ROWS,
    ),
    "a strategy without times": Case(
        fixed_options(subscribe="txn", startingOffsetsByTimestampStrategy="latest")
    ),
    "options of consumers and streams": Case(
        lambda _facts: {
            "subscribe": "txn",
            "kafka.client.id": "ours",
            "kafka.session.timeout.ms": "30000",
            "kafka.fetch.max.bytes": "100000",
            "groupIdPrefix": "some",
            "kafkaConsumer.pollTimeoutMs": "60000",
            "fetchOffset.numRetries": "2",
            "fetchOffset.retryIntervalMs": "20",
            "maxOffsetsPerTrigger": "10",
        }
    ),
}
