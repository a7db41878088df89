"""The table of all options, for the parser, the docs and error texts.

Options of Spark's Kafka source have the same names here. Spark passes names in lower case, so names
are case-insensitive.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kts_source.options.fetch_options import CACHE_OPTIONS, FETCH_OPTIONS
from kts_source.options.parsing import (
    MAX_INT32,
    Option,
    parse_bool,
    parse_byte_size,
    parse_choice,
    parse_columns,
    parse_int,
    parse_positive_int,
    parse_positive_int32,
    parse_text,
    parse_time_zone,
)
from kts_source.options.selection import (
    parse_assign,
    parse_offsets,
    parse_pattern,
    parse_subscribe,
    parse_topic_ids,
)
from kts_source.options.stream_options import STREAM_OPTIONS
from kts_source.options.times import parse_partition_times, parse_time, parse_time_range
from kts_source.options.value_formats import VALUE_OPTIONS
from segment_format.record.batch_header import HEADER_SIZE

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"
DISKS: Final = "kafka-logs"
"""The layout of brokers' log directories."""
LISTING: Final = "listing"
METADATA_TOPIC: Final = "metadata-topic"
_MAX_REQUESTS: Final = 1024  # each has a thread

ESSENTIAL_OPTIONS: Final = (
    Option(
        "path",
        parse_text,
        "Root of the tier: `s3://bucket`, `file:///…`, a folder, any fsspec URL, or a list of"
        " presigned URLs (`https://…/list.json`, `presigned+file:///…/list.txt`; query strings are"
        " kept secret). With `layout=kafka-logs`, several paths separated by commas. Required.",
    ),
    Option(
        "keyPrefix",
        lambda _name, text: text,
        "The storage plugin's `key.prefix`, taken literally: no slash is added.",
        default="",
    ),
    Option(
        "subscribe",
        parse_subscribe,
        "Topics, separated by commas. Set one of `subscribe`, `subscribePattern` and `assign`.",
    ),
    Option(
        "startingOffsets",
        parse_offsets,
        'First offsets, inclusive: `earliest`, or `{"topic":{"0":23,"1":-2}}` (−2 earliest). Other'
        " partitions begin at `earliest`.",
        default="earliest",
    ),
    Option(
        "endingOffsets",
        parse_offsets,
        'Last offsets, exclusive: `latest`, or `{"topic":{"0":50,"1":-1}}` (−1 latest). Other'
        " partitions end at `latest`.",
        default="latest",
    ),
    Option(
        "startingTimestamp",
        parse_time,
        "Starts at the first record with this timestamp or a later one: ms since the epoch,"
        " `2026-02-25`, `2026-02-25T10:00Z`, or `-1h` before now. Overrides"
        " `startingOffsetsByTimestamp` and `startingOffsets`.",
    ),
    Option(
        "endingTimestamp",
        parse_time,
        "Ends before the first record with this timestamp or a later one, written as"
        " `startingTimestamp`. Without such a record, `latest` applies.",
    ),
    Option(
        "isolationLevel",
        partial(parse_choice, choices=(READ_COMMITTED, READ_UNCOMMITTED)),
        "`read_committed` drops records of aborted and undecided transactions; `read_uncommitted`"
        " returns every record. Alias: `kafka.isolation.level`.",
        default=READ_COMMITTED,
    ),
    Option(
        "columns",
        parse_columns,
        "Columns to return, in this order. Other columns are neither decoded nor copied.",
    ),
    Option(
        "where",
        parse_text,
        "Spark SQL condition; tasks return only rows for which it is true. Supports comparisons"
        " such as `key = 'k'`, `IN`, `BETWEEN`, `LIKE`, `startswith`, `endswith`, `contains`,"
        " `IS NULL`, `AND`, `OR` and `NOT` over columns, `header('name')` and fields such as"
        " `value.user.id`, even if they are not selected.",
    ),
)
"""Options that most reads need."""

MORE_OPTIONS: Final = (
    Option(
        "layout",
        parse_text,
        "Layout of the objects: `aiven`, `local-tiered-storage`, `kafka-logs` (brokers' log"
        " directories), or the name of a plug-in.",
        default="aiven",
    ),
    Option(
        "tailPath",
        parse_text,
        "Log directories of lost brokers, or a folder with such directories; several paths are"
        " separated by commas. Records that the tier lacks, usually the newest, are read there.",
    ),
    Option(
        "catalog",
        partial(parse_choice, choices=(LISTING, METADATA_TOPIC)),
        "Source of the list of segments: a `listing` of the store, or the `metadata-topic`"
        " (`__remote_log_metadata`, with `kafka.bootstrap.servers`), for buckets that cannot be"
        " listed.",
        default=LISTING,
    ),
    Option(
        "endOfLog",
        parse_bool,
        "With `layout=kafka-logs` or `tailPath`: read all complete batches of the surviving"
        " replica, including those above the recorded high watermark.",
        default="false",
    ),
    Option(
        "subscribePattern",
        parse_pattern,
        "Regular expression that matches anywhere in a topic's name, as in Spark's source;"
        " `^orders$` matches a whole name.",
    ),
    Option("assign", parse_assign, 'Partitions: `{"topic":[0,1]}`.'),
    Option(
        "topicId",
        parse_topic_ids,
        'Incarnation of a re-created topic to read: an id, or JSON `{"topic":"id"}`.'
        " Default: the newest by event timestamp.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        parse_partition_times,
        'Start timestamps by partition: `{"topic":{"0":1700000000000,"1":"2026-02-25"}}`. Other'
        " partitions begin at `earliest`. Overrides `startingOffsets`.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        parse_partition_times,
        "End timestamps by partition. Other partitions end at `latest`. Overrides `endingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        partial(parse_choice, choices=("error", "latest")),
        "If no record is as late as the starting timestamp: `error`, or `latest` (no rows).",
        default="error",
    ),
    Option(
        "maxTimestampAheadMs",
        parse_int,
        "Asserts that timestamps of records are at most this many ms after the upload of their"
        " segment. Plans with timestamp bounds then read only manifests of objects modified since"
        " that time. Without this option, they read all manifests.",
    ),
    Option("includeHeaders", parse_bool, "Adds column `headers`.", default="false"),
    Option(
        "includeLineage",
        parse_bool,
        "Adds `leaderEpoch`, `producerId`, `producerEpoch`, `sequence`, `isTransactional`,"
        " `batchBaseOffset`, `codec` and `segmentId`.",
        default="false",
    ),
    Option(
        "timestampRange",
        parse_time_range,
        "Range of timestamps, `start,stop`, each written as `startingTimestamp`, without the stop;"
        " either may be empty. Filters rows and does not change offset bounds.",
    ),
    Option(
        "timeZone",
        parse_time_zone,
        "Zone of timestamps without a zone in `where` and in bounds: `Europe/Zurich`, `UTC`,"
        " `+02:00`. Default: UTC in bounds, an error in `where`.",
    ),
    Option(
        "failOnDataLoss",
        parse_bool,
        "`false` skips missing offsets, deleted objects and offsets out of range, with a warning"
        " that names them.",
        default="true",
    ),
    Option(
        "checkCrcs",
        parse_bool,
        "`false` skips the verification of checksums of record batches. Alias: `kafka.check.crcs`.",
        default="true",
    ),
    Option(
        "tail",
        parse_bool,
        "With `kafka.bootstrap.servers`: read records that the tier lacks, usually the newest, from"
        " brokers. `false` ends where the tier ends; brokers then define the log start and the"
        " valid segments, and still fill holes in the tier.",
        default="true",
    ),
    Option(
        "brokerFallback",
        parse_bool,
        "With `kafka.bootstrap.servers`: also read records from brokers if the store fails.",
        default="true",
    ),
    Option(
        "minPartitions",
        parse_positive_int32,
        "Minimum number of tasks, if the data can be split that far.",
    ),
    Option(
        "maxRecordsPerPartition",
        parse_positive_int,
        "Approximate maximum of records in a task, estimated from offsets and bytes.",
    ),
    Option(
        "targetPartitionBytes",
        parse_byte_size,
        "Target of original bytes per task; large segments are split, small ones share a task.",
        default="128m",
    ),
    Option(
        "maxSegmentsPerTask",
        parse_positive_int32,
        "Maximum number of segments or slices in a task.",
        default="64",
    ),
    Option(
        "maxPlanBytes",
        parse_byte_size,
        "Maximum stored bytes of a plan. A larger plan is an error before any task starts.",
    ),
    Option(
        "maxPlanRequests",
        parse_positive_int,
        "Maximum requests of a plan. A larger plan is an error before any task starts.",
    ),
    Option(
        "planFile",
        parse_text,
        "File with a plan as JSON from an earlier run. The scan reads exactly this plan, and a"
        " contradicting option is an error.",
    ),
    Option(
        "maxBatchBytes",
        partial(parse_byte_size, least=HEADER_SIZE, most=MAX_INT32),
        "Maximum size of a record batch, compressed or not. A larger batch is an error.",
        default="256m",
    ),
    Option(
        "maxConcurrentRequests",
        partial(parse_positive_int, most=_MAX_REQUESTS),
        "Maximum concurrent requests of a task.",
        default="16",
    ),
    Option(
        "prefetchBytes",
        parse_byte_size,
        "Stored bytes that a task may read ahead. Its memory is limited to this and about 32 MB for"
        " decoding.",
        default="128m",
    ),
    *FETCH_OPTIONS,
    *CACHE_OPTIONS,
    Option(
        "storageOptions",
        parse_text,
        "JSON passed to the fsspec filesystem unchanged. Its values are kept secret.",
    ),
)

OPTIONS: Final[tuple[Option, ...]] = (
    *ESSENTIAL_OPTIONS,
    *MORE_OPTIONS,
    *VALUE_OPTIONS,
    *STREAM_OPTIONS,
)
