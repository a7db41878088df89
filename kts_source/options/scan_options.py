"""Parses the options of one `load()`: checks their names and texts, and converts the texts to typed
values.
"""

from __future__ import annotations

import difflib
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kts_source.broker.kafka_options import broker_settings
from kts_source.columns import ALL_COLUMNS, DEFAULT_COLUMNS, HEADERS, LINEAGE_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.keyring import KEY_OPTION_PATTERN, KEY_SOURCES, KeyRing
from kts_source.options.fetch_options import FetchOptions, cache_settings, fetch_options
from kts_source.options.option_table import (
    DISKS,
    ESSENTIAL_OPTIONS,
    METADATA_TOPIC,
    OPTIONS,
    READ_COMMITTED,
)
from kts_source.options.parsing import check_characters, option_texts
from kts_source.options.selection import Bound, mentions
from kts_source.options.stream_options import StreamSettings, stream_settings
from kts_source.options.times import TIME_RANGE, Clock, options_with_durations, resolved_times
from kts_source.options.value_formats import (
    ColumnFormat,
    column_formats,
    error_columns,
    further_columns,
)
from kts_source.predicate.model import And
from kts_source.store.joined_store import is_in_additional_store
from kts_source.store.open_store import expand_home, refuse_credentials
from kts_source.store.storage_options import (
    S3_OPTIONS,
    hide_query,
    is_presigned,
    storage_options_from,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import tzinfo

    from kts_source.broker.settings import BrokerSettings
    from kts_source.cache.caches import CacheSettings
    from kts_source.options.parsing import Options, OptionValue, PathOrOptions
    from kts_source.options.selection import Selection
    from kts_source.predicate.model import Predicate
    from kts_source.secret import Secret


_BY_LOWER_NAME: Final = {option.name.lower(): option for option in OPTIONS}
_ALIASES: Final = {
    "kafka.isolation.level": "isolationLevel",
    "kafka.check.crcs": "checkCrcs",
    # KIP-1254 defines these names.
    "fetch.remote.connect.timeout.ms": "fetchConnectTimeoutMs",
    "fetch.remote.read.timeout.ms": "fetchReadTimeoutMs",
}
_PLAIN: Final = (
    *("layout", "isolationLevel", "keyPrefix", "failOnDataLoss", "checkCrcs", "minPartitions"),
    *("maxRecordsPerPartition", "targetPartitionBytes", "maxSegmentsPerTask", "maxPlanBytes"),
    *("maxPlanRequests", "planFile", "maxBatchBytes", "maxConcurrentRequests", "prefetchBytes"),
    *("maxTimestampAheadMs", "timeZone"),
)
"""Options whose parsed value becomes an attribute of `ScanOptions` unchanged. The attribute of
`keyPrefix` is `key_prefix`.
"""
_STORAGE: Final = re.compile(r"s3\..*|storageoptions", re.DOTALL)
_KAFKA: Final = re.compile(r"kafka\..*", re.DOTALL)
_FALLBACK: Final = re.compile(r"fallback\.(s3\..+|storageoptions)")

_NOT_SUPPORTED: Final[Mapping[str, str]] = {
    "paths": "load() takes one path, the root of the tier; several were given",
    "storage.key.prefix": "the plugin itself ignores that name; its setting is `key.prefix`, here"
    " `keyPrefix`",
    # Spark's Kafka source also rejects these options.
    "kafka.auto.offset.reset": "use startingOffsets instead",
    "kafka.key.deserializer": "keys are returned as bytes; option key.format decodes them",
    "kafka.value.deserializer": "values are returned as bytes; option value.format decodes them",
    "kafka.key.serializer": "this source does not write",
    "kafka.value.serializer": "this source does not write",
    "kafka.enable.auto.commit": "this source commits no offsets",
    "kafka.interceptor.classes": "this source runs no consumer",
}
# Options of Spark's Kafka source that only tune its consumers; they have no effect here.
_IGNORED: Final = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """The checked, typed values of all options of one `load()`.

    Attributes:
        path: Root of the tier; empty if only brokers are read.
        tail_paths: Log directories with records that the tier lacks.
        disk_paths: With `layout=kafka-logs`, the second and further paths with log directories.
        catalog: Source of the list of segments.
        end_of_log: True to read logs on disks up to their end, beyond the high watermark.
        selection: Topics and partitions to read.
        topic_ids: Id of the incarnation to read, by topic name. The empty name stands for all
            topics.
        starting: Lower bound of the read offsets, inclusive.
        ending: Upper bound of the read offsets, exclusive.
        columns: Columns of the rows, in order.
        target_partition_bytes: Target size of a Spark partition in original bytes (after decryption
            and decompression of chunks).
        storage: Credentials and settings of the store.
        key_ring: Private keys of encrypted segments.
        ignored: Names of options that have no effect, in lower case, sorted.
        fetch: Timeouts, attempts, mirror and metrics.
        cache: Caches on local disk.
        max_timestamp_ahead_ms: Maximum time in ms by which a record's timestamp is later than the
            upload of its segment; `None` for no maximum.
        where: A condition. Only rows that meet it are returned.
        time_zone: Time zone of timestamp texts in `where` that name no zone; `None` rejects such
            texts.
        given: Names of the options that the user set, as spelled in the table of options.
        durations: Names of the options whose text is a duration before the current time, such as
            `-1h`.
        brokers: Settings of broker connections; `None` without `kafka.bootstrap.servers`.
        tail: True to read up to the end of the brokers' log; false to end where the tier ends.
        broker_fallback: True to read records from brokers if the store does not return them.
        stream: Settings of streams; not used in a batch.
        formats: Formats of decoded keys and values.
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
    durations: frozenset[str]
    brokers: BrokerSettings | None
    tail: bool
    broker_fallback: bool
    stream: StreamSettings
    formats: tuple[ColumnFormat, ...] = ()

    @property
    def by_metadata_topic(self) -> bool:
        """True if the list of segments is read from the topic `__remote_log_metadata`, not from a
        listing of the store.
        """
        return self.catalog == METADATA_TOPIC

    @property
    def has_formats_by_topic(self) -> bool:
        """True if topics have formats of keys and values of their own."""
        return any(form.topic for form in self.formats)

    @property
    def read_committed(self) -> bool:
        """True if records of aborted and undecided transactions are dropped."""
        return self.isolation_level == READ_COMMITTED


def parse_any_options(source: Options) -> ScanOptions:
    """Checks the options of a batch or a stream, and converts their texts to typed values.

    Args:
        source: Text or value of each option, by name. Names are case-insensitive.

    Raises:
        InvalidOptionError: An option is unknown, malformed, missing or contradicts another.
        RegistryError: A registry that must supply the schema does not answer.
    """
    spelled, texts = _by_lower_name(option_texts(source))
    key_texts = _pop_matching(texts, KEY_OPTION_PATTERN)
    storage_texts = _pop_matching(texts, _STORAGE)
    if "storageoptions" in storage_texts:  # it is also in the table of options
        texts["storageoptions"] = storage_texts["storageoptions"]
    fallback_texts = {
        name.removeprefix("fallback."): text
        for name, text in _pop_matching(texts, _FALLBACK).items()
    }
    _replace_aliases(texts)
    _refuse(texts, spelled)
    kafka_texts = _pop_matching(texts, _KAFKA)
    ignored = [name for name in _IGNORED if texts.pop(name, None) is not None]
    values = _parse_known(texts, spelled)
    durations = options_with_durations(values)
    values |= resolved_times(values, Clock(time.time_ns() // 1_000_000, values["timeZone"]))
    brokers, idle = broker_settings(kafka_texts)
    for name in ("tail", "brokerFallback"):
        if brokers is None and name.lower() in texts and values[name]:
            raise InvalidOptionError(f"option {name}=true needs option kafka.bootstrap.servers")
    selection = _selection(values)
    fetch = fetch_options(values, storage_texts, fallback_texts)
    cache = cache_settings(values, patience_seconds=fetch.retry_policy.read_timeout_seconds)
    formats = column_formats(values, texts, selection, cache)
    where = _where(values, formats)
    storage = {spelled[name]: text for name, text in storage_texts.items()}
    return ScanOptions(
        **_tier_values(values, storage, has_brokers=brokers is not None),
        **{_snake_case(name): values[name] for name in _PLAIN},
        selection=selection,
        topic_ids=values["topicId"] or {},
        starting=_bound(values, "starting"),
        ending=_ending(values),
        timestamp_strategy=values["startingOffsetsByTimestampStrategy"],
        columns=_columns(values, formats),
        key_ring=KeyRing.from_options(key_texts),
        ignored=tuple(sorted({*ignored, *idle})),
        fetch=fetch,
        cache=cache,
        where=where,
        given=frozenset(_BY_LOWER_NAME[name].name for name in texts),
        durations=durations,
        brokers=brokers,
        tail=brokers is not None and values["tail"],
        broker_fallback=brokers is not None and values["brokerFallback"],
        stream=stream_settings(values),
        formats=formats,
    )


def _by_lower_name(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns two maps by option name in lower case: the user's spelling, and the text."""
    return (
        {name.lower(): name for name in texts},
        {name.lower(): text for name, text in texts.items()},
    )


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name)


def _pop_matching(texts: dict[str, str], names: re.Pattern[str]) -> dict[str, str]:
    """Removes from `texts` all options with a name that matches `names`, and returns them."""
    return {name: texts.pop(name) for name in list(texts) if names.fullmatch(name)}


def _replace_aliases(texts: dict[str, str]) -> None:
    for alias, name in _ALIASES.items():
        if alias in texts:
            text = texts.pop(alias)
            other = texts.setdefault(name.lower(), text)
            parse = _BY_LOWER_NAME[name.lower()].parse
            if parse(alias, text) != parse(name, other):
                raise InvalidOptionError(f"options {name}={other!r} and {alias}={text!r} disagree")


def _refuse(texts: Mapping[str, str], spelled: Mapping[str, str]) -> None:
    if refused := texts.keys() & _NOT_SUPPORTED.keys():
        name = min(refused)
        raise InvalidOptionError(
            f"option {spelled.get(name, name)!r} is not supported: {_NOT_SUPPORTED[name]}"
        )


def _parse_known(texts: Mapping[str, str], spelled: Mapping[str, str]) -> dict[str, Any]:
    """Parses the options of the table. `texts` contains the text of each option by its name in
    lower case, and `spelled` the user's spelling of each name.
    """
    for name, text in texts.items():
        if name not in _BY_LOWER_NAME:
            raise InvalidOptionError(_unknown(spelled.get(name, name)))
        check_characters(_BY_LOWER_NAME[name].name, text)
    values: dict[str, Any] = {}
    for lower, option in _BY_LOWER_NAME.items():
        value = texts.get(lower, option.default)
        values[option.name] = None if value is None else option.parse(option.name, value)
    return values


def _unknown(name: str) -> str:
    names = [option.name for option in OPTIONS] + [name for name, _ in S3_OPTIONS]
    names += [f"encryption.key.pairs.<id>.private.key.{kind}" for kind in KEY_SOURCES]
    by_lower = {option_name.lower(): option_name for option_name in names}
    names_topic = name.lower() in ("topic", "topics")
    close = ["subscribe"] if names_topic else _similar(name.lower(), by_lower)
    if close:
        guesses = " or ".join(repr(by_lower[match]) for match in close)
        return f"unknown option {name!r}; did you mean {guesses}?"
    usual = ", ".join(option.name for option in ESSENTIAL_OPTIONS)
    return f"unknown option {name!r}; often used are {usual}. See all options in docs/options.md"


def _similar(name: str, names: Iterable[str]) -> list[str]:
    """Returns up to two of `names` that are similar to `name`. A second one must be almost as
    similar as the first one.
    """
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, each, name).ratio() for each in close]
    return [each for each, ratio in zip(close, ratios, strict=True) if ratio > ratios[0] - 0.1]


def _selection(values: Mapping[str, Any]) -> Selection:
    names = ("subscribe", "subscribePattern", "assign")
    selected = [name for name in names if values[name] is not None]
    if len(selected) != 1:
        found = f"{' and '.join(selected)} are" if selected else "none is"
        hint = "" if selected else "; subscribePattern='.*' selects all topics"
        raise InvalidOptionError(
            f"exactly one of the options {', '.join(names)} must be set, but {found} set{hint}"
        )
    selection: Selection = values[selected[0]]
    return selection


def _bound(values: Mapping[str, Any], side: str) -> Bound:
    """Returns the bound of the read on one side (`starting` or `ending`). If several options set
    it, a single timestamp comes first, then timestamps by partition, then offsets, as in Spark.
    """
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
        # Do not import sqlglot at module level, because the import takes a quarter of a second.
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
    """Returns the names of requested columns in their exact spelling.

    Args:
        option: The option that contains the names, for errors.
        names: Names in the requested order, case-insensitive.
        formats: Formats of decoded keys and values.

    Raises:
        InvalidOptionError: A name is not a column or occurs twice, or no column is named.
    """
    every = (*ALL_COLUMNS, *further_columns(formats))
    by_lower = {column.lower(): column for column in every}
    columns = []
    for name in names:
        column = by_lower.get(name.lower())
        if column is None:
            raise InvalidOptionError(
                f"option {option!r} names {name!r}, which is not a column{_hint(name, every)}"
                f" (columns: {', '.join(every)})"
            )
        if column in columns:
            raise InvalidOptionError(f"option {option!r} names {column!r} twice")
        columns.append(column)
    if not columns:
        raise InvalidOptionError(f"option {option!r} must name at least one column")
    return tuple(columns)


def _hint(name: str, columns: Sequence[str]) -> str:
    """Returns advice about an unknown column; an empty text if no column has a similar name."""
    column = name.partition(".")[0].lower()
    if column != name.lower() and column in ("key", "value"):
        return f"; select {column!r}, and its fields with option '{column}.columns'"
    close = difflib.get_close_matches(name, columns, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def parse_options(source: Options) -> ScanOptions:
    """Checks the options of one batch `load()`, and converts their texts to typed values.

    Args:
        source: Text or value of each option, by name. Names are case-insensitive.

    Raises:
        InvalidOptionError: An option is unknown, malformed, missing or contradicts another.
    """
    options = parse_any_options(source)
    check_for_batch(options)
    return options


def options_of(source: PathOrOptions | ScanOptions | None, **more: OptionValue) -> ScanOptions:
    """Returns the checked options of one batch `load()`. Returns `ScanOptions` unchanged.

    Args:
        source: Options, or the path of the tier; `None` = all options are in `more`.
        **more: Options in addition to those in `source`.

    Raises:
        InvalidOptionError: See `parse_options`.
        TypeError: `source` is a `ScanOptions` and `more` is not empty.
    """
    if isinstance(source, ScanOptions):
        if more:
            raise TypeError(f"`ScanOptions` cannot be combined with further options: {min(more)}")
        return source
    return parse_options(option_texts(source, **more))


def scan_facts(options: ScanOptions) -> dict[str, str]:
    """Returns the main options as texts for people, by name, without credentials."""
    return {
        "path": ",".join((options.path, *options.disk_paths)) or "brokers alone",
        "topics": str(options.selection),
        "columns": ", ".join(options.columns),
        "isolationLevel": options.isolation_level,
    }


def check_for_batch(options: ScanOptions) -> None:
    """Raises InvalidOptionError for options that only a stream can have."""
    if mentions(options.starting, "latest"):
        raise InvalidOptionError("option 'startingOffsets' cannot be latest (-1) in a batch query")


def check_for_stream(options: ScanOptions) -> None:
    """Raises InvalidOptionError for options that only a batch can have: an end, a plan file, or
    disks.
    """
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if name in options.given:
            raise InvalidOptionError(
                f"option {name!r} is not valid in a stream, because a stream has no end"
            )
    if options.plan_file is not None:
        raise InvalidOptionError(
            "option 'planFile' is not valid in a stream, because a stream plans each batch again"
        )
    if options.tail_paths:
        raise InvalidOptionError(
            "option 'tailPath' is not valid in a stream, because disks of stopped brokers do not"
            " change"
        )
    refuse_durations(options, {TIME_RANGE}, "a stream must filter all batches alike")


def refuse_durations(options: ScanOptions, names: AbstractSet[str], reason: str) -> None:
    """Raises InvalidOptionError if one of the options in `names` has a duration before the current
    time, which would mean another time in each run. `reason` explains why this is not allowed.
    """
    for name in sorted(options.durations & names):
        raise InvalidOptionError(
            f"option {name!r} has a duration before now, but {reason}. Set a timestamp such as"
            " 2026-02-25T10:00Z instead"
        )


def _tier_values(
    values: Mapping[str, Any], storage_texts: Mapping[str, str], *, has_brokers: bool
) -> dict[str, Any]:
    """Returns the attributes of `ScanOptions` that determine where records are stored."""
    _check_path(values, has_brokers=has_brokers)
    path = expand_home(values["path"] or "")
    disk_paths: tuple[str, ...] = ()
    if values["layout"] == DISKS and "," in path:
        path, *others = _paths("path", path)
        disk_paths = tuple(others)
    path, storage = hide_query(path, storage_options_from(storage_texts))
    tail_paths = _tail_paths(values, has_brokers=has_brokers)
    _check_catalog(values, has_brokers=has_brokers)
    if values["endOfLog"] and values["layout"] != DISKS and values["tailPath"] is None:
        raise InvalidOptionError(
            "option 'endOfLog' is for layout 'kafka-logs' or option 'tailPath', not for layout"
            f" {values['layout']!r} alone. Remove it, because a tier has no high watermark"
        )
    return {
        "path": path,
        "storage": storage,
        "disk_paths": disk_paths,
        "tail_paths": tail_paths,
        "catalog": values["catalog"],
        "end_of_log": values["endOfLog"],
    }


def _check_path(values: Mapping[str, Any], *, has_brokers: bool) -> None:
    if not values["path"] and not has_brokers:
        raise InvalidOptionError(
            "option 'path' is missing. Set it to the root of the tier, such as s3://bucket or"
            " file:///folder. To read only from brokers, set kafka.bootstrap.servers instead"
        )
    if values["keyPrefix"].startswith("/") or ".." in re.split(r"[/\\]", values["keyPrefix"]):
        raise InvalidOptionError(
            f"option 'keyPrefix' must not lead out of the path: {values['keyPrefix']!r}"
        )


def _check_catalog(values: Mapping[str, Any], *, has_brokers: bool) -> None:
    if values["catalog"] != METADATA_TOPIC:
        return
    if not has_brokers:
        raise InvalidOptionError(
            f"option catalog={METADATA_TOPIC} needs option kafka.bootstrap.servers: the topic"
            " __remote_log_metadata is read from brokers"
        )
    if not values["path"]:
        raise InvalidOptionError(
            f"option catalog={METADATA_TOPIC} needs option 'path': the topic lists the segments of"
            " a tier, but there is no tier to read them from"
        )


def _tail_paths(values: Mapping[str, Any], *, has_brokers: bool) -> tuple[str, ...]:
    """Returns the paths of option `tailPath`, which name disks of stopped brokers. Raises
    `InvalidOptionError` if the options also name running brokers, or if `layout` or `keyPrefix`
    contradicts `tailPath`.
    """
    for name, is_given in (
        ("layout 'kafka-logs'", values["layout"] == DISKS),
        ("option 'tailPath'", values["tailPath"] is not None),
    ):
        if has_brokers and is_given:
            raise InvalidOptionError(
                f"{name} reads the disks of stopped brokers, but kafka.bootstrap.servers reads from"
                " running brokers: set only one of the two options"
            )
    if values["tailPath"] is None:
        return ()
    if values["layout"] == DISKS:
        raise InvalidOptionError(
            "option 'tailPath' adds brokers' disks to a tier, but with layout 'kafka-logs' option"
            " 'path' names disks, not a tier: name all log directories in 'path', separated by"
            " commas"
        )
    if is_in_additional_store(values["keyPrefix"]):
        raise InvalidOptionError(
            f"option 'keyPrefix' cannot be {values['keyPrefix']!r} together with option"
            " 'tailPath', which uses this prefix internally"
        )
    return _paths("tailPath", values["tailPath"])


def _paths(option: str, text: str) -> tuple[str, ...]:
    """Splits the text of an option into paths, which are separated by commas."""
    paths = tuple(expand_home(path.strip()) for path in text.split(","))
    for path in paths:
        if not path:
            raise InvalidOptionError(f"option {option!r} names an empty path between its commas")
        if is_presigned(path):
            raise InvalidOptionError(f"option {option!r} cannot be a list of presigned URLs")
        refuse_credentials(path)
    return paths
