"""The options of one `load()`, typed: names and texts in, values out.

Options that say where a topic's records stand: the tier, the disks of brokers, and who lists
them.

Each function takes the typed options by name, and whether brokers are named, and raises
`InvalidOptionError` for what contradicts itself.

Options of a batch, and what of them a batch or a stream cannot have.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kts_source.broker.kafka_options import broker_settings
from kts_source.columns import ALL_COLUMNS, DEFAULT_COLUMNS, HEADERS, LINEAGE_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.keyring import KEY_OPTION_PATTERN, KEY_SOURCES, KeyRing
from kts_source.options.fetch_options import FetchOptions, cache_settings, fetch_options
from kts_source.options.option_table import DISKS, METADATA_TOPIC, OPTIONS, READ_COMMITTED
from kts_source.options.parsing import check_characters
from kts_source.options.selection import Bound, mentions
from kts_source.options.stream_options import StreamSettings, stream_settings
from kts_source.options.value_formats import (
    ColumnFormat,
    column_formats,
    error_columns,
    further_columns,
)
from kts_source.predicate.model import And
from kts_source.store.joined_store import is_beside
from kts_source.store.open_store import refuse_credentials
from kts_source.store.storage_options import (
    S3_OPTIONS,
    hide_query,
    is_presigned,
    storage_options_from,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import tzinfo

    from kts_source.broker.settings import BrokerSettings
    from kts_source.cache.caches import CacheSettings
    from kts_source.options.selection import Selection
    from kts_source.predicate.model import Predicate
    from kts_source.secret import Secret


def tier_path(values: Mapping[str, Any], *, brokers: bool) -> str:
    """Option `path`; empty where brokers alone are read."""
    if not values["path"] and not brokers:
        raise InvalidOptionError(
            "option 'path' is missing: the root of the tier, such as s3://bucket or file:///folder;"
            " with kafka.bootstrap.servers it may be left out, and brokers alone are read"
        )
    if values["keyPrefix"].startswith("/") or ".." in re.split(r"[/\\]", values["keyPrefix"]):
        raise InvalidOptionError(
            f"option 'keyPrefix' must stay below the path: {values['keyPrefix']!r}"
        )
    return str(values["path"] or "")


def split_disks(path: str, layout: str) -> tuple[str, tuple[str, ...]]:
    """Option `path` of `tier_path`: the first path, and the others of brokers' disks."""
    if layout != DISKS or "," not in path:
        return path, ()
    first, *others = _paths("path", path)
    return first, tuple(others)


def catalog_of(values: Mapping[str, Any], *, brokers: bool) -> str:
    """Option `catalog`."""
    catalog = str(values["catalog"])
    if catalog == METADATA_TOPIC:
        if not brokers:
            raise InvalidOptionError(
                f"option catalog={catalog} needs option kafka.bootstrap.servers: the topic"
                " __remote_log_metadata is read from brokers"
            )
        if not values["path"]:
            raise InvalidOptionError(
                f"option catalog={catalog} needs option 'path': without a tier there are no"
                " segments to look for"
            )
    return catalog


def end_of_log(values: Mapping[str, Any]) -> bool:
    """Option `endOfLog`."""
    if values["endOfLog"] and values["layout"] != DISKS and values["tailPath"] is None:
        raise InvalidOptionError(
            f"option 'endOfLog' is for layout 'kafka-logs' or option 'tailPath', not for layout"
            f" {values['layout']!r} alone: a tier ends where it ends"
        )
    return bool(values["endOfLog"])


def tail_paths(values: Mapping[str, Any], *, brokers: bool) -> tuple[str, ...]:
    """The paths of option `tailPath`. Disks are of a cluster that is gone, so they are not read
    beside brokers.
    """
    if brokers and values["layout"] == DISKS:
        raise InvalidOptionError(
            "layout 'kafka-logs' reads the disks of brokers that are gone; with"
            " kafka.bootstrap.servers they are asked themselves: give one of the two"
        )
    if values["tailPath"] is None:
        return ()
    if brokers:
        raise InvalidOptionError(
            "option 'tailPath' reads the disks of brokers that are gone; with"
            " kafka.bootstrap.servers they are asked themselves: give one of the two"
        )
    if values["layout"] == DISKS:
        raise InvalidOptionError(
            "option 'tailPath' adds brokers' disks to a tier, and with layout 'kafka-logs' option"
            " 'path' has no tier: name all log directories in 'path', separated by commas"
        )
    if is_beside(values["keyPrefix"]):
        raise InvalidOptionError(f"option 'keyPrefix' cannot be {values['keyPrefix']!r} here")
    return _paths("tailPath", values["tailPath"])


def _paths(option: str, text: str) -> tuple[str, ...]:
    """Paths of disks, separated by commas."""
    paths = tuple(path.strip() for path in text.split(","))
    for path in paths:
        if not path:
            raise InvalidOptionError(f"option {option!r} names an empty path between its commas")
        if is_presigned(path):
            raise InvalidOptionError(f"option {option!r} cannot be a list of presigned URLs")
        refuse_credentials(path)
    return paths


_BY_LOWER_NAME: Final = {option.name.lower(): option for option in OPTIONS}
_ALIASES: Final = {
    "kafka.isolation.level": "isolationLevel",
    "kafka.check.crcs": "checkCrcs",
    # Names of KIP-1254.
    "fetch.remote.connect.timeout.ms": "fetchConnectTimeoutMs",
    "fetch.remote.read.timeout.ms": "fetchReadTimeoutMs",
}
_STORAGE: Final = re.compile(r"s3\..*|storageoptions", re.DOTALL)
_KAFKA: Final = re.compile(r"kafka\..*", re.DOTALL)
_FALLBACK: Final = re.compile(r"fallback\.(s3\..+|storageoptions)")

_NOT_SUPPORTED: Final[Mapping[str, str]] = {
    "paths": "load() takes one path, the root of the tier; several were given",
    "storage.key.prefix": "the plugin itself ignores that name; its setting is `key.prefix`, here"
    " `keyPrefix`",
    # Spark's Kafka source refuses these too: the source decides them itself.
    "kafka.auto.offset.reset": "use startingOffsets instead",
    "kafka.key.deserializer": "keys are returned as bytes, or as option key.format says",
    "kafka.value.deserializer": "values are returned as bytes, or as option value.format says",
    "kafka.key.serializer": "this source does not write",
    "kafka.value.serializer": "this source does not write",
    "kafka.enable.auto.commit": "this source commits no offsets",
    "kafka.interceptor.classes": "this source runs no consumer",
}
# Options of Spark's Kafka source that only tune its consumers: accepted, without effect.
_IGNORED: Final = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Every option of one `load()`, checked and typed.

    Attributes:
        selection: Which topics and partitions.
        catalog: What tells which segments there are.
        topic_ids: Topic name ("" = any) to the id of the incarnation wanted.
        starting: Lower bound, inclusive.
        ending: Upper bound, exclusive.
        columns: Columns of the table, in order.
        target_partition_bytes: Original (decrypted, chunk-decompressed) bytes.
        storage: Credentials and settings of the store.
        fetch: Time-outs, attempts, the mirror and where metrics go.
        cache: What is kept on local disk.
        max_timestamp_ahead_ms: No record is dated later after its upload; `None` = not assumed.
        key_ring: Private keys of encrypted segments.
        tail_paths: Where brokers' disks are that hold what the tier does not.
        disk_paths: Where those are that do not stand at `path`, if disks are all that is read.
        end_of_log: Whether a disk is read beyond the high watermark.
        ignored: Options accepted without effect, in lower case, sorted.
        where: Rows for which it is not true are left out.
        time_zone: Of timestamps in conditions that name none; `None` = such timestamps are refused.
        given: Names of the options that the user gave, as the table of options spells them.
        brokers: How to reach the brokers; `None` without `kafka.bootstrap.servers`.
        tail: Whether brokers serve what the tier does not hold.
        broker_fallback: Whether brokers serve what the store fails to give.
        stream: What micro-batches hold; without effect in a batch.
        formats: How keys and values are decoded; what is not named stays bytes.
    """

    path: str
    key_prefix: str
    layout: str
    tail_paths: tuple[str, ...]
    disk_paths: tuple[str, ...]
    catalog: str
    end_of_log: bool
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
    ignored: tuple[str, ...]
    fetch: FetchOptions
    cache: CacheSettings
    max_timestamp_ahead_ms: int | None
    where: Predicate | None
    time_zone: tzinfo | None
    given: frozenset[str]
    brokers: BrokerSettings | None
    tail: bool
    broker_fallback: bool
    stream: StreamSettings
    formats: tuple[ColumnFormat, ...] = ()

    @property
    def by_metadata_topic(self) -> bool:
        """Whether brokers' own record tells which segments there are, and nothing is listed."""
        return self.catalog == METADATA_TOPIC

    @property
    def read_committed(self) -> bool:
        """Whether aborted and undecided transactions are left out."""
        return self.isolation_level == READ_COMMITTED


def parse_any_options(given: Mapping[str, str]) -> ScanOptions:
    """Checks and types options of which nobody knows yet whether a batch or a stream wants them.

    Args:
        given: Option name (any case) to text.

    Raises:
        InvalidOptionError: Unknown, malformed, missing or contradictory options.
        RegistryError: A registry that has to say the schema does not answer.
    """
    texts = {name.lower(): text for name, text in given.items()}
    key_texts = _take(texts, KEY_OPTION_PATTERN)
    storage_texts = _take(texts, _STORAGE)
    if "storageoptions" in storage_texts:  # a row of the table as well
        texts["storageoptions"] = storage_texts["storageoptions"]
    fallback = _take(texts, _FALLBACK)
    fallback_texts = {name.removeprefix("fallback."): text for name, text in fallback.items()}
    _replace_aliases(texts)
    _refuse(texts)
    kafka_texts = _take(texts, _KAFKA)
    ignored = _take_ignored(texts)
    values = _parse_known(texts)
    brokers, idle = broker_settings(kafka_texts)
    _check_broker_options(values, texts, brokers)
    selection = _one_selection(values)
    fetch = fetch_options(values, storage_texts, fallback_texts)
    cache = cache_settings(values, patience_seconds=fetch.retry_policy.read_timeout_seconds)
    formats = column_formats(values, texts, selection, cache)
    where = _where(values, formats)
    first, further = split_disks(tier_path(values, brokers=brokers is not None), values["layout"])
    path, storage = hide_query(first, storage_options_from(storage_texts))
    return ScanOptions(
        path=path,
        key_prefix=values["keyPrefix"],
        layout=values["layout"],
        tail_paths=tail_paths(values, brokers=brokers is not None),
        disk_paths=further,
        catalog=catalog_of(values, brokers=brokers is not None),
        end_of_log=end_of_log(values),
        selection=selection,
        topic_ids=values["topicId"] or {},
        isolation_level=values["isolationLevel"],
        starting=_bound(values, "starting"),
        ending=_ending(values),
        timestamp_strategy=values["startingOffsetsByTimestampStrategy"],
        columns=_columns(values, formats),
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
        ignored=tuple(sorted({*ignored, *idle})),
        fetch=fetch,
        cache=cache,
        max_timestamp_ahead_ms=values["maxTimestampAheadMs"],
        where=where,
        time_zone=values["timeZone"],
        given=frozenset(_BY_LOWER_NAME[name].name for name in texts),
        brokers=brokers,
        tail=brokers is not None and values["tail"],
        broker_fallback=brokers is not None and values["brokerFallback"],
        stream=stream_settings(values),
        formats=formats,
    )


def _take(texts: dict[str, str], names: re.Pattern[str]) -> dict[str, str]:
    """The options whose name matches, taken out of `texts`."""
    return {name: texts.pop(name) for name in list(texts) if names.fullmatch(name)}


def _replace_aliases(texts: dict[str, str]) -> None:
    for alias, name in _ALIASES.items():
        if alias in texts:
            text = texts.pop(alias)
            other = texts.setdefault(name.lower(), text)
            parse = _BY_LOWER_NAME[name.lower()].parse
            if parse(alias, text) != parse(name, other):
                raise InvalidOptionError(f"options {name}={other!r} and {alias}={text!r} disagree")


def _refuse(texts: Mapping[str, str]) -> None:
    if refused := texts.keys() & _NOT_SUPPORTED.keys():
        name = min(refused)
        raise InvalidOptionError(f"option {name!r} is not supported: {_NOT_SUPPORTED[name]}")


def _take_ignored(texts: dict[str, str]) -> tuple[str, ...]:
    ignored = [name for name in texts if name in _IGNORED]
    for name in ignored:
        del texts[name]
    return tuple(ignored)


def _check_broker_options(
    values: Mapping[str, Any], texts: Mapping[str, str], brokers: BrokerSettings | None
) -> None:
    """Who asks for what brokers hold, and names none, would get less than that."""
    for name in ("tail", "brokerFallback"):
        if brokers is None and name.lower() in texts and values[name]:
            raise InvalidOptionError(f"option {name}=true needs option kafka.bootstrap.servers")


def _parse_known(texts: Mapping[str, str]) -> dict[str, Any]:
    for name, given in texts.items():
        if name not in _BY_LOWER_NAME:
            raise InvalidOptionError(_unknown(name))
        check_characters(name, given)
    values: dict[str, Any] = {}
    for lower, option in _BY_LOWER_NAME.items():
        text = texts.get(lower, option.default)
        values[option.name] = None if text is None else option.parse(option.name, text)
    return values


def _unknown(name: str) -> str:
    names = [option.name for option in OPTIONS] + [name for name, _ in S3_OPTIONS]
    names += [f"encryption.key.pairs.<id>.private.key.{kind}" for kind in KEY_SOURCES]
    by_lower = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name, by_lower, n=2, cutoff=0.6)
    if close:
        guesses = " or ".join(repr(by_lower[match]) for match in close)
        return f"unknown option {name!r}; did you mean {guesses}?"
    return f"unknown option {name!r}; known are {', '.join(option.name for option in OPTIONS)}"


def _one_selection(values: Mapping[str, Any]) -> Selection:
    names = ("subscribe", "subscribePattern", "assign")
    given = [name for name in names if values[name] is not None]
    if len(given) != 1:
        raise InvalidOptionError(
            f"one and only one of the options {', '.join(names)} must be given, not"
            f" {' and '.join(given) or 'none'}"
        )
    selection: Selection = values[given[0]]
    return selection


def _bound(values: Mapping[str, Any], side: str) -> Bound:
    """By the precedence of Spark's source: one timestamp, timestamps by partition, offsets."""
    names = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
    bound: Bound = next(values[name] for name in names if values[name] is not None)
    return bound


def _ending(values: Mapping[str, Any]) -> Bound:
    bound = _bound(values, "ending")
    if mentions(bound, "earliest"):
        raise InvalidOptionError("option 'endingOffsets' cannot be earliest (-2) in a batch query")
    return bound


def _where(values: Mapping[str, Any], formats: Sequence[ColumnFormat]) -> Predicate | None:
    terms: list[Predicate] = [*(values["timestampRange"] or ())]
    if values["where"] is not None:
        # Not at import time: sqlglot takes a quarter of a second.
        from kts_source.options.value_formats import fields_of_formats
        from kts_source.predicate.parse import parse_predicate

        fields = fields_of_formats(formats)
        terms.insert(0, parse_predicate(values["where"], values["timeZone"], fields=fields))
    if len(terms) < 2:
        return terms[0] if terms else None
    return And(tuple(terms))


def _columns(values: Mapping[str, Any], formats: Sequence[ColumnFormat]) -> tuple[str, ...]:
    names: tuple[str, ...] | None = values["columns"]
    if names is None:
        headers = (HEADERS,) if values["includeHeaders"] else ()
        lineage = LINEAGE_COLUMNS if values["includeLineage"] else ()
        return (*DEFAULT_COLUMNS, *headers, *lineage, *error_columns(formats))
    return checked_columns("columns", names, formats)


def checked_columns(
    option: str, names: Sequence[str], formats: Sequence[ColumnFormat] = ()
) -> tuple[str, ...]:
    """The table's columns of these names, in any case.

    Args:
        option: What named them, for error texts.
        names: In the order wanted.
        formats: How keys and values are decoded.

    Raises:
        InvalidOptionError: A name that is not a column, or twice, or no name at all.
    """
    every = (*ALL_COLUMNS, *further_columns(formats))
    by_lower = {column.lower(): column for column in every}
    columns = []
    for name in names:
        column = by_lower.get(name.lower())
        if column is None:
            close = difflib.get_close_matches(name, every, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InvalidOptionError(
                f"option {option!r} names {name!r}, which is not a column{hint} (columns:"
                f" {', '.join(every)})"
            )
        if column in columns:
            raise InvalidOptionError(f"option {option!r} names {column!r} twice")
        columns.append(column)
    if not columns:
        raise InvalidOptionError(f"option {option!r} names no column")
    return tuple(columns)


def parse_options(given: Mapping[str, str]) -> ScanOptions:
    """Checks and types the options of one batch `load()`.

    Args:
        given: Option name (any case) to text.

    Raises:
        InvalidOptionError: Unknown, malformed, missing or contradictory options.
    """
    options = parse_any_options(given)
    check_for_batch(options)
    return options


def check_for_batch(options: ScanOptions) -> None:
    """Refuses what only a stream can do.

    Raises:
        InvalidOptionError: It starts at the end.
    """
    if mentions(options.starting, "latest"):
        raise InvalidOptionError("option 'startingOffsets' cannot be latest (-1) in a batch query")


def check_for_stream(options: ScanOptions) -> None:
    """Refuses what only a batch can do.

    Raises:
        InvalidOptionError: An end, a plan, or disks.
    """
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if name in options.given:
            raise InvalidOptionError(f"option {name!r} is not valid in a stream: it has no end")
    if options.plan_file is not None:
        raise InvalidOptionError("option 'planFile' is not valid in a stream: it plans each batch")
    if options.tail_paths:
        raise InvalidOptionError("option 'tailPath' is not valid in a stream: disks do not grow")
