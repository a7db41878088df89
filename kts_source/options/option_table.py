"""The options of the data source: one table that the parser, the docs and the error texts come
from.

Names are spelled as Spark's own Kafka source spells them wherever it has the option. Spark hands
option keys over in lower case, so names are compared without regard to case. Everything is checked
here, before any I/O, so that a mistake fails at `load()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.options.cache_options import CACHE_OPTIONS
from kts_source.options.fetch_options import FETCH_OPTIONS
from kts_source.options.option import Option
from kts_source.options.parsing import (
    MAX_INT32,
    parse_bool,
    parse_byte_size,
    parse_byte_size_within,
    parse_choice,
    parse_columns,
    parse_int,
    parse_positive_int,
    parse_positive_up_to,
    parse_text,
    parse_time_zone,
)
from kts_source.options.requested_bounds import (
    parse_offsets,
    parse_partition_timestamps,
    parse_timestamp,
    parse_timestamp_range,
)
from kts_source.options.selection import (
    parse_assign,
    parse_pattern,
    parse_subscribe,
    parse_topic_ids,
)
from kts_source.store.storage_options import S3_OPTIONS
from segment_format.record.batch_header import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"
_MAX_REQUESTS: Final = 1024
"""Each has a thread."""


OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "path",
        parse_text,
        None,
        "Root of the tier: `s3://bucket`, `file:///…`, a folder, any fsspec URL, or a list of"
        " presigned URLs (`https://…/list.json`, `presigned+file:///…/list.txt`; query strings are"
        " kept secret). Required.",
    ),
    Option(
        "keyPrefix",
        lambda _name, text: text,
        "",
        "The storage plugin's `key.prefix`, taken literally: no slash is added.",
    ),
    Option(
        "layout",
        parse_text,
        "aiven",
        "How objects are laid out: `aiven`, `local-tiered-storage`, or the name of a plug-in.",
    ),
    Option(
        "subscribe",
        parse_subscribe,
        None,
        "Topics, separated by commas. Exactly one of `subscribe`, `subscribePattern`, `assign`.",
    ),
    Option(
        "subscribePattern",
        parse_pattern,
        None,
        "Regular expression that is found anywhere in a topic's name, as in Spark's source;"
        " `^orders$` for a whole name.",
    ),
    Option("assign", parse_assign, None, 'Partitions: `{"topic":[0,1]}`.'),
    Option(
        "topicId",
        parse_topic_ids,
        None,
        'Which incarnation of a re-created topic to read: an id, or JSON `{"topic":"id"}`.'
        " Default: the newest by event timestamp.",
    ),
    Option(
        "isolationLevel",
        parse_choice(READ_COMMITTED, READ_UNCOMMITTED),
        READ_COMMITTED,
        "`read_committed` leaves aborted and undecided transactions out; `read_uncommitted`"
        " returns every record. Alias: `kafka.isolation.level`.",
    ),
    Option(
        "startingOffsets",
        parse_offsets,
        "earliest",
        'First offsets, inclusive: `earliest`, or `{"topic":{"0":23,"1":-2}}` (−2 earliest) with'
        " every tiered partition.",
    ),
    Option(
        "endingOffsets",
        parse_offsets,
        "latest",
        'Last offsets, exclusive: `latest`, or `{"topic":{"0":50,"1":-1}}` (−1 latest).',
    ),
    Option(
        "startingTimestamp",
        parse_timestamp,
        None,
        "Start at the first offset whose timestamp is at or after this, in ms since the epoch;"
        " before `startingOffsetsByTimestamp` and `startingOffsets`.",
    ),
    Option(
        "endingTimestamp",
        parse_timestamp,
        None,
        "End before the first offset whose timestamp is at or after this, in ms; no such offset:"
        " the end.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        parse_partition_timestamps,
        None,
        'The same per partition: `{"topic":{"0":1700000000000}}`; before `startingOffsets`.',
    ),
    Option(
        "endingOffsetsByTimestamp",
        parse_partition_timestamps,
        None,
        "The same for the end; before `endingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        parse_choice("error", "latest"),
        "error",
        "When no offset has the starting timestamp: `error`, or `latest` (an empty range).",
    ),
    Option(
        "maxTimestampAheadMs",
        parse_int,
        None,
        "Asserts that no record is dated more than this many ms after its segment was uploaded."
        " Timestamp bounds then need only the manifests of objects modified since; exact by"
        " default, which needs all.",
    ),
    Option("includeHeaders", parse_bool, "false", "Adds column `headers`."),
    Option(
        "includeLineage",
        parse_bool,
        "false",
        "Adds `leaderEpoch`, `producerId`, `producerEpoch`, `sequence`, `isTransactional`,"
        " `batchBaseOffset`, `codec` and `segmentId`.",
    ),
    Option(
        "columns",
        parse_columns,
        None,
        "Only these columns, in this order; the others are neither decoded nor copied.",
    ),
    Option(
        "where",
        parse_text,
        None,
        "Only rows for which this Spark SQL condition is true, decided where the bytes are:"
        " `key = 'k'`, `IN`, `BETWEEN`, `LIKE`, `startswith`, `endswith`, `contains`, `IS NULL`,"
        " `AND`, `OR`, `NOT` over the columns and `header('name')`, also those not in `columns`.",
    ),
    Option(
        "timestampRange",
        parse_timestamp_range,
        None,
        "Only rows dated in `start,stop` (ms since the epoch, the stop exclusive; either may be"
        " left out): a row filter, wherever the rows stand, that moves no offset bound.",
    ),
    Option(
        "timeZone",
        parse_time_zone,
        None,
        "Zone of timestamps in `where` that name none: `Europe/Zurich`, `UTC`, `+02:00`.",
    ),
    Option(
        "failOnDataLoss",
        parse_bool,
        "true",
        "`false` skips holes, vanished objects and offsets out of range with a warning that"
        " names them.",
    ),
    Option("checkCrcs", parse_bool, "true", "Verify the checksum of every record batch read."),
    Option(
        "minPartitions",
        parse_positive_up_to(MAX_INT32),
        None,
        "At least this many tasks where the data can be cut so far.",
    ),
    Option(
        "maxRecordsPerPartition",
        parse_positive_int,
        None,
        "At most about this many records in a task, told from offsets and bytes.",
    ),
    Option(
        "targetPartitionBytes",
        parse_byte_size,
        "128m",
        "Original bytes a task should hold; larger segments are cut, small ones packed.",
    ),
    Option(
        "maxSegmentsPerTask",
        parse_positive_up_to(MAX_INT32),
        "64",
        "At most this many segments or slices in a task.",
    ),
    Option(
        "maxPlanBytes",
        parse_byte_size,
        None,
        "Refuse, before any task starts, a plan that would fetch more stored bytes.",
    ),
    Option(
        "maxPlanRequests",
        parse_positive_int,
        None,
        "Refuse, before any task starts, a plan that would send more requests.",
    ),
    Option(
        "planFile",
        parse_text,
        None,
        "A plan written as JSON by an earlier run: read exactly that, without planning anew; an"
        " option that contradicts it is an error.",
    ),
    Option(
        "maxBatchBytes",
        parse_byte_size_within(HEADER_SIZE, MAX_INT32),
        "256m",
        "Refuse a record batch that is, or decompresses to, more than this.",
    ),
    Option(
        "maxConcurrentRequests",
        parse_positive_up_to(_MAX_REQUESTS),
        "16",
        "Requests that a task has under way at a time.",
    ),
    Option(
        "prefetchBytes",
        parse_byte_size,
        "128m",
        "Stored bytes that a task may read ahead; its memory is bounded by this, and some 32 MB for"
        " what is being decoded.",
    ),
    *FETCH_OPTIONS,
    *CACHE_OPTIONS,
    Option(
        "storageOptions",
        parse_text,
        None,
        "JSON handed to the fsspec filesystem as it is. Its values are kept secret.",
    ),
)


ESSENTIAL: Final = (
    "path",
    "keyPrefix",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "isolationLevel",
    "columns",
    "where",
)
"""The ten options that most reads need."""


def options_tables() -> dict[str, str]:
    """The tables of options in the docs, in Markdown: `essential`, `more` and `store`."""
    essential = {name: option for option in OPTIONS if (name := option.name) in ESSENTIAL}
    keys = "encryption.key.pairs.<id>.private.key"
    store = [
        (
            f"{keys}.file",
            "PEM file of the private key (PKCS#8) with that key id; the driver reads it, or the"
            " worker where the driver has no such file.",
        ),
        (
            f"{keys}.env",
            "Name of an environment variable that holds the PEM text, on the driver or on the"
            " worker.",
        ),
        (
            f"{keys}.callback",
            "`module:function` that is called with the key id on the driver and returns the PEM"
            " text, for secret scopes.",
        ),
        *S3_OPTIONS,
    ]
    return {
        "essential": _table(_row(essential[name]) for name in ESSENTIAL),
        "more": _table(_row(option) for option in OPTIONS if option.name not in essential),
        "store": _table((f"`{name}`", "", doc) for name, doc in store),
    }


def _row(option: Option) -> tuple[str, str, str]:
    default = "" if option.default is None else f"`{option.default}`" if option.default else '`""`'
    return f"`{option.name}`", default, option.doc


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [("option", "default", "meaning"), ("---", "---", "---"), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
