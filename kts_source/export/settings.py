"""Checks the arguments of `backfill` and converts them to `ExportSettings`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from pathlib import PurePath, PurePosixPath
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, Unpack

from kts_source.errors import InvalidOptionError
from kts_source.export.partitioning import (
    AS_IS,
    CHECKED,
    TEXT_PARTITIONS,
    PartitionField,
    parse_partition_by,
)
from kts_source.export.rejections import DEFAULT_MAX_REJECTED, parse_max_rejected
from kts_source.options.parsing import option_texts
from kts_source.options.times import parse_duration_ms
from kts_source.secret import Secret
from kts_source.store.local_store import local_root
from kts_source.store.open_store import (
    expand_home,
    refuse_credentials,
    scheme_of,
    storage_of_other_path,
)
from kts_source.store.storage_options import S3_OPTIONS, STORAGE_OPTIONS, storage_options_from

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from kts_source.export.transforms import RowTransform
    from kts_source.options import Options

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
TABLE_FORMATS: Final = (PARQUET, DELTA, ICEBERG)

PATH: Final = "path"
SPARK: Final = "spark"
WRITERS: Final = (PATH, SPARK)

TOPIC_FIELD: Final = "{topic}"
"""Stands for the topic in the target of `backfill`; see `export.by_topic`."""
COMPRESSIONS: Final = ("zstd", "snappy", "lz4", "gzip", "none")

Transform: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch | None] | RowTransform"
"""Called with rows in a task; returns rows or `None`. Must be picklable and deterministic."""


KEEP: Final = "keep"
REMOVE: Final = "remove"
REMOVE_OLD: Final = "remove-old"
TOMBSTONES: Final = (KEEP, REMOVE, REMOVE_OLD)

NO_EVOLUTION: Final = "none"
ADD_FIELDS: Final = "add"
WARN: Final = "warn"
FAIL: Final = "fail"
ADD: Final = "add"
ON_NEW_FIELDS: Final = (WARN, FAIL, ADD)
SCHEMA_EVOLUTIONS: Final = (NO_EVOLUTION, ADD_FIELDS)

_MIN_INTERVAL_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class Compaction:
    """Settings of a compaction.

    Attributes:
        tombstones: `keep` keeps all tombstones, `remove` removes all. `remove-old` removes a
            tombstone if its timestamp is more than `delete_retention_ms` before the newest
            timestamp of its partition.
        delete_retention_ms: Age in ms for `remove-old`, like Kafka's `delete.retention.ms`.
    """

    tombstones: str = KEEP
    delete_retention_ms: int = 86_400_000


@dataclass(frozen=True, slots=True)
class Following:
    """Pace of an export that repeats in rounds to follow new records.

    Attributes:
        interval_seconds: Time between the starts of two rounds. If a round ends and more records
            can be read, the next round starts immediately.
        round_bytes: Size of a round in original bytes of segments. A round ends with the segment
            that reaches this size, and has one commit.
        has_table: True if an earlier round has written to the table, so it must still exist.
    """

    interval_seconds: float = 60.0
    round_bytes: int = 8 << 30
    has_table: bool = False


class ExportArguments(TypedDict, total=False):
    """Keyword arguments of `backfill`; see its docstring."""

    table_format: str
    writer: str
    partition_by: Sequence[str]
    transform: Transform | None
    sort_within_files: Sequence[str]
    target_file_bytes: int
    row_group_rows: int
    compression: str
    resume: bool
    export_id: str
    second_copy: bool
    commit_bytes: int
    target_options: Options | None
    catalog: Mapping[str, Any] | None
    dead_letters: str | os.PathLike[str] | None
    max_rejected: str
    replay: bool
    compact: bool
    tombstones: str
    delete_retention_ms: int
    follow: bool
    interval: str
    round_bytes: int
    schema_evolution: str
    on_new_fields: str
    text_partitions: str
    verify: bool
    dry_run: bool


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The checked arguments of `backfill`. The docstring of `backfill` describes the attributes
    that are missing here.

    Attributes:
        target: A folder, a URL such as `s3://bucket/prefix`, or the name of a table.
        writer: `path`: the tasks write the files of the table. `spark`: Spark appends the rows of
            the tasks to a table of one of its catalogs.
        compaction: Keeps only the latest record of every key; `None` keeps all records.
        following: Pace of an export that follows new records in rounds; `None` for a single run.
        max_rejected: Maximum share of rejected records in a commit, from 0 to 1.
        schema_evolution: `add` adds new fields of typed columns to the table; `none` rejects them.
        on_new_fields: Handling of fields that the schema lacks. `fail` ends the run with an error;
            `warn` reports them; `add` adds them to the table, and sets `schema_evolution` to `add`.
        text_partitions: `checked` rejects a partition value of a Parquet target if it is a text
            that readers would parse as a number, a date or another type. `as-is` accepts it.
        verify: True to check before a run that the table has all rows that its commits recorded.
        storage: Credentials and settings of the target.
        catalog: Properties of the Iceberg catalog, with the names that PyIceberg uses.
        topic_options: Formats of single topics in a table of several topics, as options by topic.
    """

    target: str
    table_format: str = PARQUET
    writer: str = PATH
    partition_by: tuple[PartitionField, ...] = ()
    transform: Transform | None = None
    sort_within_files: tuple[str, ...] = ()
    target_file_bytes: int = 256 << 20
    row_group_rows: int = 1 << 20
    compression: str = "zstd"
    resume: bool = True
    export_id: str = "kts"
    second_copy: bool = False
    commit_bytes: int = 64 << 30
    dead_letters: str | None = None
    max_rejected: float = DEFAULT_MAX_REJECTED
    replay: bool = False
    compaction: Compaction | None = None
    following: Following | None = None
    schema_evolution: str = NO_EVOLUTION
    on_new_fields: str = WARN
    text_partitions: str = CHECKED
    verify: bool = False
    dry_run: bool = False
    storage: Secret[Mapping[str, str]] = field(default_factory=lambda: Secret({}))
    catalog: Secret[Mapping[str, str]] = field(default_factory=lambda: Secret({}))
    topic_options: Secret[Mapping[str, Options]] = field(default_factory=lambda: Secret({}))


def export_settings(
    target: str | os.PathLike[str],
    *,
    source: Options | None = None,
    **arguments: Unpack[ExportArguments],
) -> ExportSettings:
    """Checks the arguments of an export.

    Args:
        target: Folder, URL such as `s3://bucket/prefix`, or an Iceberg table's name
            (`namespace.table`). With `writer="spark"`, the name of a table in a catalog of Spark.
        source: Options of the source. Their credentials are also the default for the target.
        arguments: See `backfill`.

    Raises:
        InvalidOptionError: An argument is invalid, or two contradict each other.
        TypeError: An argument is unknown.
    """
    if unknown := arguments.keys() - ExportArguments.__annotations__.keys():
        raise TypeError(f"unknown arguments of an export: {', '.join(sorted(unknown))}")
    values: dict[str, Any] = dict(arguments)
    _check_types(values)
    for name in ("partition_by", "sort_within_files"):
        columns = values.get(name, ())
        if isinstance(columns, str):
            raise InvalidOptionError(f"{name} must be a list of columns, not {columns!r}")
        values[name] = tuple(columns)
    values["partition_by"] = parse_partition_by(values["partition_by"])
    rules = ("tombstones", "delete_retention_ms")
    compaction = Compaction(**{name: values.pop(name) for name in rules if name in values})
    rounds = {name: values.pop(name) for name in ("round_bytes",) if name in values}
    if "interval" in values:
        rounds["interval_seconds"] = parse_duration_ms("interval", values.pop("interval")) / 1000
    following = Following(**rounds) if values.pop("follow", False) else None
    catalog = values.pop("catalog", None)
    target_options = values.pop("target_options", None)
    if values.get("writer") == SPARK:
        values.setdefault("table_format", DELTA)
    is_path = values.get("table_format") != ICEBERG and values.get("writer") != SPARK
    location = _path("the target", target) if is_path else os.fspath(target)
    properties = {name: str(value) for name, value in (catalog or {}).items()}
    storage = _storage(location, target_options, properties, source or {})
    _parse_values(values)
    settings = ExportSettings(
        location,
        compaction=compaction if values.pop("compact", False) else None,
        following=following,
        **values,
        storage=storage,
        catalog=Secret(properties),
    )
    _check_choices(settings, compaction.tombstones)
    _check(settings, has_catalog=catalog is not None)
    return settings


_TYPES: Final[Mapping[str, tuple[type | tuple[type, ...], str]]] = {
    **dict.fromkeys(
        ("target_file_bytes", "row_group_rows", "commit_bytes", "round_bytes"),
        (Integral, "a whole number, such as 33554432"),
    ),
    "delete_retention_ms": (Integral, "a whole number of ms, such as 86400000"),
    **dict.fromkeys(
        ("resume", "second_copy", "replay", "compact", "follow", "verify", "dry_run"),
        (bool, "True or False"),
    ),
    **dict.fromkeys(("export_id", "interval"), (str, "a text")),
    "dead_letters": ((str, os.PathLike, NoneType), "a folder"),
    "partition_by": (Sequence, "a list of columns"),
    "sort_within_files": (Sequence, "a list of columns"),
    "target_options": ((Mapping, NoneType), "a dict of options"),
    "catalog": ((Mapping, NoneType), "a dict of properties"),
}
"""Types of arguments that are not texts with a list of allowed values."""


def _check_types(values: Mapping[str, Any]) -> None:
    for name, (types, text) in _TYPES.items():
        value = values.get(name)
        is_number = types is Integral and isinstance(value, bool)
        if name in values and (is_number or not isinstance(value, types)):
            raise InvalidOptionError(f"{name} must be {text}, not {value!r}")


def _check_choices(settings: ExportSettings, tombstones: str) -> None:
    """Raises `InvalidOptionError` if a setting is none of its allowed values."""
    for name, value, allowed in (
        ("table_format", settings.table_format, TABLE_FORMATS),
        ("writer", settings.writer, WRITERS),
        ("compression", settings.compression, COMPRESSIONS),
        ("tombstones", tombstones, TOMBSTONES),
        ("schema_evolution", settings.schema_evolution, SCHEMA_EVOLUTIONS),
        ("on_new_fields", settings.on_new_fields, ON_NEW_FIELDS),
        ("text_partitions", settings.text_partitions, TEXT_PARTITIONS),
    ):
        if value not in allowed:
            raise InvalidOptionError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")


_CATALOG_ARGUMENTS: Final = {
    "adls.account-name": "account_name",
    "adls.account-key": "account_key",
    "adls.sas-token": "sas_token",
    "adls.connection-string": "connection_string",
    "adls.tenant-id": "tenant_id",
    "adls.client-id": "client_id",
    "adls.client-secret": "client_secret",
    "adls.account-host": "account_host",
    "gcs.project-id": "project",
    "gcs.oauth2.token": "token",
    "gcs.service.host": "endpoint_url",
}


def _storage_of_catalog(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the storage options that the properties of a PyIceberg catalog contain.

    The names `s3.*` are the same. For Azure and Google, PyIceberg has properties of its own, and
    `storageOptions` contains arguments of adlfs and gcsfs.
    """
    options = {name: properties[name] for name, _ in S3_OPTIONS if name in properties}
    arguments = {
        argument: properties[name]
        for name, argument in _CATALOG_ARGUMENTS.items()
        if name in properties
    }
    return {**options, STORAGE_OPTIONS: json.dumps(arguments)} if arguments else options


def _storage(
    target: str,
    target_options: Options | None,
    catalog: Mapping[str, str],
    source: Options,
) -> Secret[Mapping[str, str]]:
    """Returns the storage options of the target: those in `target_options`, else those in the
    catalog's properties, else those of the source that also apply to the target.
    """
    if target_options is None:
        target_options = _storage_of_catalog(catalog) or None
    if target_options is not None:
        return storage_options_from(option_texts(target_options))
    storage = storage_options_from(option_texts(source))
    path = next((text for name, text in source.items() if name.lower() == "path"), None)
    if catalog or path is None or scheme_of(target) == "file":
        return storage
    return storage_of_other_path(str(path), target, storage)


def location_of(path: str) -> PurePath:
    """Returns the location of a folder in a form that can be compared with other locations."""
    scheme = scheme_of(path)
    if scheme == "file":
        return local_root(path).resolve()
    return PurePosixPath(scheme, path.partition("://")[2])


def check_letters(letters: str, tables: Mapping[PurePath, str]) -> None:
    """Raises `InvalidOptionError` if readers of a Parquet folder would return the rejected rows in
    the folder `letters` as rows of the table. `tables` has the Parquet folders by location.
    """
    location = location_of(letters)
    for parent in (location, *location.parents):
        below = location.relative_to(parent).parts
        if parent in tables and not any(part.startswith(("_", ".")) for part in below):
            raise InvalidOptionError(
                f"dead_letters {letters} is in the Parquet folder {tables[parent]}, so its readers"
                " would return rejected rows as rows of the table. Choose another folder"
            )


def _parse_values(values: dict[str, Any]) -> None:
    """Parses `dead_letters` and `max_rejected` in place. Sets `schema_evolution` if
    `on_new_fields` implies it.
    """
    if values.get("on_new_fields") == ADD:
        values["schema_evolution"] = ADD_FIELDS
    if values.get("dead_letters") is not None:
        values["dead_letters"] = _path("dead_letters", values["dead_letters"])
    if "max_rejected" in values:
        values["max_rejected"] = parse_max_rejected(values["max_rejected"])


def _path(name: str, path: str | os.PathLike[str]) -> str:
    """Removes blanks at both ends of an output path. Raises `InvalidOptionError` for a misspelled
    URL, because it would become the name of a local folder.
    """
    path = expand_home(os.fspath(path).strip())
    if not path:
        raise InvalidOptionError(f"{name} is empty: give a folder or s3://bucket/prefix")
    refuse_credentials(path)
    scheme_of(path)
    return path


def _check(settings: ExportSettings, *, has_catalog: bool) -> None:
    if TOPIC_FIELD in settings.target:
        raise InvalidOptionError(
            f"{TOPIC_FIELD} in the target is valid only for an export, which writes a table per"
            " topic: name the table of one topic"
        )
    if TOPIC_FIELD in (settings.dead_letters or ""):
        raise InvalidOptionError(
            f"dead_letters contains {TOPIC_FIELD}, but the target does not: add {TOPIC_FIELD} to"
            " the target, or remove it from dead_letters"
        )
    for name in ("target_file_bytes", "row_group_rows", "commit_bytes"):
        if (value := getattr(settings, name)) < 1:
            raise InvalidOptionError(f"{name} must be positive, not {value}")
    if settings.following is not None:
        _check_following(settings, settings.following)
    if settings.writer == SPARK:
        _check_spark_writer(settings)
    if settings.writer == SPARK and has_catalog:
        raise InvalidOptionError(
            "catalog=… is not valid with writer='spark', because Spark's settings define its"
            " catalogs: remove catalog"
        )
    if has_catalog != (settings.table_format == ICEBERG and settings.writer != SPARK):
        raise InvalidOptionError(
            "catalog=… is required for an Iceberg table, and is not valid for other targets"
        )
    # A file name may have 255 characters. The parts other than the export_id need up to 84.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,159}", settings.export_id):
        raise InvalidOptionError(
            f"export_id is {settings.export_id!r}: use at most 160 letters, digits, - and _, and"
            " begin with a letter or a digit"
        )
    _check_folders(settings)
    if settings.dry_run and (settings.replay or settings.following):
        raise InvalidOptionError(
            "dry_run=True cannot be combined with follow or replay: remove them"
        )
    if settings.replay and (
        settings.dead_letters is None or settings.following or settings.compaction
    ):
        raise InvalidOptionError(
            "replay=True needs dead_letters=…, and cannot be combined with follow or compact"
        )
    if settings.compaction and (settings.transform is not None or settings.sort_within_files):
        raise InvalidOptionError(
            "compact=True cannot be combined with transform or sort_within_files: remove them"
        )


_BY_PATH_ONLY: Final = (
    *("transform", "sort_within_files", "target_file_bytes", "row_group_rows", "compression"),
    *("replay", "compaction", "schema_evolution", "verify"),
)
"""Settings that need files written by the tasks themselves."""
_NAME_PART: Final = re.compile(r"`([^`/]+)`|(\w+)")


def _check_spark_writer(settings: ExportSettings) -> None:
    if settings.table_format == PARQUET:
        raise InvalidOptionError(
            "writer='spark' writes Delta and Iceberg tables, not table_format='parquet': remove"
            " writer"
        )
    name_parts(settings.target)
    defaults = {each.name: each.default for each in fields(ExportSettings)}
    for name in _BY_PATH_ONLY:
        if getattr(settings, name) != defaults[name]:
            argument = "compact" if name == "compaction" else name
            raise InvalidOptionError(
                f"{argument} is not supported with writer='spark', because Spark writes the files"
                f" of the table: remove {argument}, or export to the path of a table without writer"
            )


def name_parts(name: str) -> tuple[str, ...]:
    """Splits the name of a table in a catalog of Spark, such as `main.shop.orders`. Parts may be in
    backquotes.

    Raises:
        InvalidOptionError: The name is invalid, or has no namespace.
    """
    parts = []
    end = -1
    for match in _NAME_PART.finditer(name):
        if match.start() != end + 1 or (end >= 0 and name[end] != "."):
            break
        parts.append(match[1] or match[2])
        end = match.end()
    if end != len(name) or len(parts) < 2:
        raise InvalidOptionError(
            f"with writer='spark', the target must be the name of a table with its namespace, such"
            f" as main.shop.orders, not {name!r}. Put parts with other characters in backquotes"
        )
    return tuple(parts)


def _check_folders(settings: ExportSettings) -> None:
    """Raises `InvalidOptionError` if the settings do not fit the kind of target: options for
    Parquet folders with a table as target; or a Parquet folder that contains rejected rows, or has
    partition columns whose names readers would skip as hidden.
    """
    if settings.table_format != PARQUET:
        if settings.text_partitions == AS_IS:
            raise InvalidOptionError(
                f"text_partitions={AS_IS!r} is only for a Parquet folder: remove it, because a"
                " Delta or Iceberg table records the types of its partition columns"
            )
        return
    if settings.dead_letters is not None:
        check_letters(settings.dead_letters, {location_of(settings.target): settings.target})
    for column in settings.partition_by:
        if column.name.startswith(("_", ".")):
            raise InvalidOptionError(
                f"partition_by {column} would make folders {column.name}=…, and readers such as"
                f" pyarrow skip names that begin with {column.name[0]!r} as hidden. Rename the"
                " column in the transform, or export into a Delta or Iceberg table"
            )


def _check_following(settings: ExportSettings, following: Following) -> None:
    if following.interval_seconds < _MIN_INTERVAL_SECONDS:
        raise InvalidOptionError(
            f"interval must be at least {_MIN_INTERVAL_SECONDS} s, not"
            f" {following.interval_seconds} s, because every round lists the whole tier"
        )
    if following.round_bytes < 1:
        raise InvalidOptionError(f"round_bytes must be positive, not {following.round_bytes}")
    if not settings.resume:
        raise InvalidOptionError(
            "follow=True resumes after the offsets in the table, but resume=False does not resume:"
            " remove one of them"
        )
    if settings.compaction is not None and settings.table_format == PARQUET:
        raise InvalidOptionError(
            "compact=True with follow=True replaces files in every round, but a folder of Parquet"
            " files cannot replace files atomically: export into a Delta or Iceberg table"
        )
