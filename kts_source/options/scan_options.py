"""The options of one `load()`, typed: names and texts in, values out."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kts_source.cache.caches import NO_CACHE, CacheSettings
from kts_source.columns import ALL_COLUMNS, DEFAULT_COLUMNS, HEADERS, LINEAGE_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.keyring import KEY_OPTION_PATTERN, KEY_SOURCES, KeyRing
from kts_source.options.cache_options import cache_settings
from kts_source.options.fetch_options import (
    FetchOptions,
    fetch_options,
    take_aliases,
    take_fallback,
)
from kts_source.options.parsing import check_characters, parse_choice
from kts_source.options.requested_bounds import (
    Bound,
    EarliestBound,
    LatestBound,
    OffsetsBound,
    TimestampBound,
    TimestampsBound,
)
from kts_source.options.selection import (
    Assign,
    Selection,
    Subscribe,
    SubscribePattern,
)
from kts_source.store.presigned_path import hide_query
from kts_source.store.storage_options import S3_OPTIONS, storage_options_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.options.requested_bounds import TimestampRange
    from kts_source.predicate.model import Predicate
    from kts_source.secret import Secret

from kts_source.options.option_table import OPTIONS, READ_COMMITTED, READ_UNCOMMITTED

_BY_LOWER_NAME: Final = {option.name.lower(): option for option in OPTIONS}
_ISOLATION_ALIAS: Final = "kafka.isolation.level"

# Refused by Spark's Kafka source for the same reason: the source decides these itself.
_REFUSED_KAFKA: Final[Mapping[str, str]] = {
    "kafka.auto.offset.reset": "use startingOffsets instead",
    "kafka.key.deserializer": "keys are returned as bytes; deserialise them with DataFrame"
    " operations",
    "kafka.value.deserializer": "values are returned as bytes; deserialise them with DataFrame"
    " operations",
    "kafka.key.serializer": "this source does not write",
    "kafka.value.serializer": "this source does not write",
    "kafka.enable.auto.commit": "this source commits no offsets",
    "kafka.interceptor.classes": "this source runs no consumer",
}
# Options of Spark's Kafka source that only tune its consumers or its streams: accepted, without
# effect.
_IGNORED: Final = frozenset(
    name.lower()
    for name in (
        "groupIdPrefix",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
    )
)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Every option of one `load()`, checked and typed.

    Attributes:
        selection: Which topics and partitions.
        topic_ids: Topic name ("" = any) to the id of the incarnation wanted.
        starting: Lower bound, inclusive.
        ending: Upper bound, exclusive.
        columns: Columns of the table, in order.
        target_partition_bytes: Original (decrypted, chunk-decompressed) bytes.
        storage: Credentials and settings of the store.
        fetch: Time-outs, attempts, the mirror and where metrics go.
        cache: What is kept on local disk.
        max_timestamp_ahead_ms: No record is dated later after its upload; `None` = nothing is
            assumed.
        key_ring: What opens encrypted segments.
        ignored: Options accepted without effect, in lower case, sorted.
        where: Rows for which it is not true are left out.
        given: Names of the options that the user gave, as the table of options spells them.
    """

    path: str
    key_prefix: str
    layout: str
    selection: Selection
    topic_ids: Mapping[str, str]
    isolation_level: str
    starting: Bound
    ending: Bound
    timestamp_strategy: str
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    check_crcs: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    target_partition_bytes: int
    max_segments_per_task: int
    max_plan_bytes: int | None
    max_plan_requests: int | None
    plan_file: str | None = field(repr=False)  # the query string of a URL may be a signature
    max_batch_bytes: int
    max_concurrent_requests: int
    prefetch_bytes: int
    storage: Secret[Mapping[str, Any]]
    key_ring: KeyRing
    ignored: tuple[str, ...] = field(default=())
    fetch: FetchOptions = field(default_factory=FetchOptions)
    cache: CacheSettings = NO_CACHE
    max_timestamp_ahead_ms: int | None = None
    where: Predicate | None = None
    given: frozenset[str] = frozenset()

    @property
    def read_committed(self) -> bool:
        """Whether aborted and undecided transactions are left out."""
        return self.isolation_level == READ_COMMITTED


def parse_options(given: Mapping[str, str]) -> ScanOptions:
    """Checks and types the options of one `load()`.

    Args:
        given: Option name (any case) to text.

    Raises:
        InvalidOptionError: Unknown, malformed, missing or contradictory options.
    """
    texts = {name.lower(): text for name, text in given.items()}
    key_texts = {
        name: texts.pop(name) for name in list(texts) if KEY_OPTION_PATTERN.fullmatch(name)
    }
    storage_texts = {name: texts.pop(name) for name in list(texts) if name.startswith("s3.")}
    if "storageoptions" in texts:
        storage_texts["storageoptions"] = texts["storageoptions"]
    take_aliases(texts)
    fallback_texts = take_fallback(texts)
    ignored = _take_ignored(texts)
    values = _parse_known(texts)
    selection = _one_selection(values)
    fetch = fetch_options(values, storage_texts, fallback_texts)
    path, storage = hide_query(_path(values, texts), storage_options_from(storage_texts))
    return ScanOptions(
        path=path,
        key_prefix=values["keyPrefix"],
        layout=values["layout"],
        selection=selection,
        topic_ids=values["topicId"] or {},
        isolation_level=_isolation_level(values, texts),
        starting=_starting(values),
        ending=_ending(values),
        timestamp_strategy=values["startingOffsetsByTimestampStrategy"],
        columns=_columns(values),
        fail_on_data_loss=values["failOnDataLoss"],
        check_crcs=values["checkCrcs"],
        min_partitions=values["minPartitions"],
        max_records_per_partition=values["maxRecordsPerPartition"],
        target_partition_bytes=values["targetPartitionBytes"],
        max_segments_per_task=values["maxSegmentsPerTask"],
        max_plan_bytes=values["maxPlanBytes"],
        max_plan_requests=values["maxPlanRequests"],
        plan_file=values["planFile"],
        max_batch_bytes=values["maxBatchBytes"],
        max_concurrent_requests=values["maxConcurrentRequests"],
        prefetch_bytes=values["prefetchBytes"],
        storage=storage,
        key_ring=KeyRing.from_options(key_texts),
        ignored=ignored,
        fetch=fetch,
        cache=cache_settings(values, patience_seconds=fetch.retry_policy.read_timeout_seconds),
        max_timestamp_ahead_ms=values["maxTimestampAheadMs"],
        where=_where(values),
        given=_given(texts),
    )


def _given(texts: Mapping[str, str]) -> frozenset[str]:
    names = {"isolationlevel" if name == _ISOLATION_ALIAS else name for name in texts}
    return frozenset(_BY_LOWER_NAME[name].name for name in names if name in _BY_LOWER_NAME)


def _take_ignored(texts: dict[str, str]) -> tuple[str, ...]:
    ignored = []
    for name in sorted(texts):
        if name in _REFUSED_KAFKA:
            raise InvalidOptionError(f"option {name!r} is not supported: {_REFUSED_KAFKA[name]}")
        if name == _ISOLATION_ALIAS:
            continue
        if name.startswith("kafka.") or name in _IGNORED:
            ignored.append(name)
            del texts[name]
    return tuple(ignored)


def _parse_known(texts: Mapping[str, str]) -> dict[str, Any]:
    for name, given in texts.items():
        if name not in _BY_LOWER_NAME and name not in (_ISOLATION_ALIAS, "paths"):
            raise InvalidOptionError(_unknown(name))
        check_characters(name, given)
    values: dict[str, Any] = {}
    for lower, option in _BY_LOWER_NAME.items():
        text = texts.get(lower, option.default)
        values[option.name] = None if text is None else option.parse(option.name, text)
    for pair in ("startingOffsets", "endingOffsets"):
        if pair.lower() not in texts:
            values[pair] = None
    return values


def _unknown(name: str) -> str:
    names = [option.name for option in OPTIONS] + [name for name, _ in S3_OPTIONS]
    names += [f"encryption.key.pairs.<id>.private.key.{kind}" for kind in KEY_SOURCES]
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name, by_lower, n=2, cutoff=0.6)
    if name == "storage.key.prefix":
        return (
            f"unknown option {name!r}: the plugin itself ignores that name; its setting is"
            " `key.prefix`, here `keyPrefix`"
        )
    if close:
        guesses = " or ".join(repr(by_lower[match]) for match in close)
        return f"unknown option {name!r}; did you mean {guesses}?"
    return f"unknown option {name!r}; known are {', '.join(option.name for option in OPTIONS)}"


def _path(values: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    if "paths" in texts:
        raise InvalidOptionError("load() takes one path, the root of the tier; several were given")
    if not values["path"]:
        raise InvalidOptionError(
            "option 'path' is missing: the root of the tier, such as s3://bucket or file:///folder"
        )
    if values["keyPrefix"].startswith("/") or ".." in re.split(r"[/\\]", values["keyPrefix"]):
        raise InvalidOptionError(
            f"option 'keyPrefix' must stay below the path: {values['keyPrefix']!r}"
        )
    return str(values["path"])


def _one_selection(values: Mapping[str, Any]) -> Selection:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if values[name] is not None]
    if not given:
        raise InvalidOptionError(f"one of the options {', '.join(names)} must be given")
    if len(given) > 1:
        raise InvalidOptionError(
            f"only one of the options {', '.join(names)} can be given; there are"
            f" {' and '.join(given)}"
        )
    selection = values[given[0]]
    assert isinstance(selection, Subscribe | SubscribePattern | Assign)
    return selection


def _isolation_level(values: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    alias = texts.get(_ISOLATION_ALIAS)
    if alias is None:
        return str(values["isolationLevel"])
    level = parse_choice(READ_COMMITTED, READ_UNCOMMITTED)(_ISOLATION_ALIAS, alias)
    if "isolationlevel" in texts and level != values["isolationLevel"]:
        raise InvalidOptionError(
            f"options isolationLevel={values['isolationLevel']!r} and"
            f" kafka.isolation.level={alias!r} disagree"
        )
    return str(level)


def _starting(values: Mapping[str, Any]) -> Bound:
    bound = _bound(values, "starting", EarliestBound())
    if isinstance(bound, LatestBound) or (
        isinstance(bound, OffsetsBound) and bound.mentions_latest
    ):
        raise InvalidOptionError("option 'startingOffsets' cannot be latest (−1) in a batch query")
    return bound


def _ending(values: Mapping[str, Any]) -> Bound:
    bound = _bound(values, "ending", LatestBound())
    if isinstance(bound, EarliestBound) or (
        isinstance(bound, OffsetsBound) and bound.mentions_earliest
    ):
        raise InvalidOptionError("option 'endingOffsets' cannot be earliest (−2) in a batch query")
    return bound


def _bound(values: Mapping[str, Any], side: str, default: Bound) -> Bound:
    # The precedence of Spark's source: the one timestamp, then timestamps by partition, then
    # offsets.
    for name in (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"):
        if values[name] is not None:
            bound = values[name]
            assert isinstance(
                bound, EarliestBound | LatestBound | OffsetsBound | TimestampBound | TimestampsBound
            )
            return bound
    return default


def _where(values: Mapping[str, Any]) -> Predicate | None:
    terms: list[Predicate] = []
    if values["where"] is not None:
        # Not at import time: sqlglot takes a quarter of a second.
        from kts_source.predicate.parse import parse_predicate

        terms.append(parse_predicate(values["where"], values["timeZone"]))
    if values["timestampRange"] is not None:
        terms.extend(_dated(values["timestampRange"]))
    if len(terms) < 2:
        return terms[0] if terms else None
    from kts_source.predicate.model import And

    return And(tuple(terms))


def _dated(wanted: TimestampRange) -> Iterator[Predicate]:
    from kts_source.predicate.model import Column, Compare, Op

    if wanted.start_ms is not None:
        yield Compare(Op.GE, Column("timestamp"), _microseconds(wanted.start_ms))
    if wanted.stop_ms is not None:
        yield Compare(Op.LT, Column("timestamp"), _microseconds(wanted.stop_ms))


def _microseconds(milliseconds: int) -> int:
    """What the table's timestamps are compared with; beyond all of them where none is so far."""
    return min(max(milliseconds * 1000, -(1 << 63)), (1 << 63) - 1)


def _columns(values: Mapping[str, Any]) -> tuple[str, ...]:
    names: tuple[str, ...] | None = values["columns"]
    if names is None:
        headers = (HEADERS,) if values["includeHeaders"] else ()
        lineage = LINEAGE_COLUMNS if values["includeLineage"] else ()
        return (*DEFAULT_COLUMNS, *headers, *lineage)
    by_lower = {column.lower(): column for column in ALL_COLUMNS}
    columns = []
    for name in names:
        column = by_lower.get(name.lower())
        if column is None:
            close = difflib.get_close_matches(name, ALL_COLUMNS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InvalidOptionError(
                f"option 'columns' names {name!r}, which is not a column{hint} (columns:"
                f" {', '.join(ALL_COLUMNS)})"
            )
        if column in columns:
            raise InvalidOptionError(f"option 'columns' names {column!r} twice")
        columns.append(column)
    return tuple(columns)
