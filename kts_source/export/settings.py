"""What an export writes, where and how: the arguments of `backfill`, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, Unpack

from kts_source.errors import InvalidOptionError
from kts_source.export.partitioning import (
    AS_IS,
    CHECKED,
    TEXT_PARTITIONS,
    PartitionField,
    parse_partition_by,
)
from kts_source.options.stream_options import parse_duration_ms
from kts_source.secret import Secret
from kts_source.store.open_store import refuse_credentials, scheme_of
from kts_source.store.storage_options import S3_OPTIONS, storage_options_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from kts_source.export.transforms.row_transform import RowTransform

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
TABLE_FORMATS: Final = (PARQUET, DELTA, ICEBERG)

COMPRESSIONS: Final = ("zstd", "snappy", "lz4", "gzip", "none")

Transform: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch | None] | RowTransform"
"""Rows in, rows out, within a task; `None` drops them all. Must be picklable and deterministic."""


KEEP: Final = "keep"
REMOVE: Final = "remove"
REMOVE_OLD: Final = "remove-old"
TOMBSTONES: Final = (KEEP, REMOVE, REMOVE_OLD)

NO_EVOLUTION: Final = "none"
ADD_FIELDS: Final = "add"
SCHEMA_EVOLUTIONS: Final = (NO_EVOLUTION, ADD_FIELDS)

_LEAST_INTERVAL_SECONDS: Final = 1


@dataclass(frozen=True, slots=True)
class Compaction:
    """How to compact.

    Attributes:
        tombstones: `keep`, `remove`, or `remove-old`: those older than `delete_retention_ms`
            before the newest record of their partition.
        delete_retention_ms: Kafka's `delete.retention.ms`.
    """

    tombstones: str = KEEP
    delete_retention_ms: int = 86_400_000


@dataclass(frozen=True, slots=True)
class Following:
    """How to go on with what is new, in rounds.

    Attributes:
        interval_seconds: From the begin of one round to that of the next, once nothing is left.
        round_bytes: Original bytes of a round, in whole segments: it ends with the one that
            reaches them. A round is one commit.
    """

    interval_seconds: float = 60.0
    round_bytes: int = 8 << 30


class ExportArguments(TypedDict, total=False):
    """How a target is written, as `backfill` takes it by keyword; it says what each one means."""

    table_format: str
    partition_by: Sequence[str]
    transform: Transform | None
    sort_within_files: Sequence[str]
    target_file_bytes: int
    row_group_rows: int
    compression: str
    resume: bool
    export_id: str
    commit_bytes: int
    target_options: Mapping[str, str] | None
    catalog: Mapping[str, Any] | None
    dead_letters: str | None
    compact: bool
    tombstones: str
    delete_retention_ms: int
    follow: bool
    interval: str
    round_bytes: int
    schema_evolution: str
    text_partitions: str
    verify: bool


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """One target and how it is written: the arguments of `backfill`, checked.

    Attributes:
        target: A folder, `s3://bucket/prefix`, or an Iceberg table's name.
        compaction: How to keep the latest record of every key only; `None` keeps all records.
        following: How to go on round by round; `None` = one run, and it ends.
        schema_evolution: Whether a table gets the fields that typed columns have gained: `none` or
            `add`.
        text_partitions: Whether folders of a Parquet target may have texts that readers take for
            numbers, dates and the like: `checked` (no) or `as-is`.
        verify: Whether to compare the rows of the table with its records before a run.
        storage: Credentials and settings of the target.
        catalog: PyIceberg's properties of the catalog.
    """

    target: str
    table_format: str = PARQUET
    partition_by: tuple[PartitionField, ...] = ()
    transform: Transform | None = None
    sort_within_files: tuple[str, ...] = ()
    target_file_bytes: int = 256 << 20
    row_group_rows: int = 1 << 20
    compression: str = "zstd"
    resume: bool = True
    export_id: str = "kts"
    commit_bytes: int = 64 << 30
    dead_letters: str | None = None
    compaction: Compaction | None = None
    following: Following | None = None
    schema_evolution: str = NO_EVOLUTION
    text_partitions: str = CHECKED
    verify: bool = False
    storage: Secret[Mapping[str, str]] = field(default_factory=lambda: Secret({}))
    catalog: Secret[Mapping[str, str]] = field(default_factory=lambda: Secret({}))


def export_settings(
    target: str,
    *,
    source: Mapping[str, str] | None = None,
    **arguments: Unpack[ExportArguments],
) -> ExportSettings:
    """Checks the arguments of an export.

    Args:
        target: Folder, `s3://bucket/prefix`, or an Iceberg table's name (`namespace.table`).
        source: The source's options; its credentials open the target where no others are given.
        arguments: See `backfill`.

    Raises:
        InvalidOptionError: Anything that does not fit.
        TypeError: No such argument.
    """
    if unknown := arguments.keys() - ExportArguments.__annotations__.keys():
        raise TypeError(f"an export takes no argument {', '.join(sorted(unknown))}")
    given: dict[str, Any] = dict(arguments)
    for name in ("partition_by", "sort_within_files"):
        columns = given.get(name, ())
        if isinstance(columns, str):
            raise InvalidOptionError(f"{name} is a list of columns, not {columns!r}")
        given[name] = tuple(columns)
    given["partition_by"] = parse_partition_by(given["partition_by"])
    rules = ("tombstones", "delete_retention_ms")
    compaction = Compaction(**{name: given.pop(name) for name in rules if name in given})
    pace = {name: given.pop(name) for name in ("round_bytes",) if name in given}
    if "interval" in given:
        pace["interval_seconds"] = parse_duration_ms("interval", given.pop("interval")) / 1000
    following = Following(**pace) if given.pop("follow", False) else None
    catalog = given.pop("catalog", None)
    properties = {name: str(value) for name, value in (catalog or {}).items()}
    options = given.pop("target_options", None)
    if options is None:
        of_catalog = {name: properties[name] for name, _ in S3_OPTIONS if name in properties}
        options = of_catalog or source or {}
    is_path = given.get("table_format") != ICEBERG
    if given.get("dead_letters") is not None:
        given["dead_letters"] = _path("dead_letters", given["dead_letters"])
    settings = ExportSettings(
        _path("the target", target) if is_path else target,
        compaction=compaction if given.pop("compact", False) else None,
        following=following,
        **given,
        storage=storage_options_from(options),
        catalog=Secret(properties),
    )
    for name, value, allowed in (
        ("table_format", settings.table_format, TABLE_FORMATS),
        ("compression", settings.compression, COMPRESSIONS),
        ("tombstones", compaction.tombstones, TOMBSTONES),
        ("schema_evolution", settings.schema_evolution, SCHEMA_EVOLUTIONS),
        ("text_partitions", settings.text_partitions, TEXT_PARTITIONS),
    ):
        if value not in allowed:
            raise InvalidOptionError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    _check(settings, has_catalog=catalog is not None)
    return settings


def _path(name: str, path: str) -> str:
    """An output path, parsed as the paths of sources are: without blanks around it, and no near
    miss of a URL, which would become a local folder.
    """
    path = path.strip()
    if not path:
        raise InvalidOptionError(f"{name} is empty: give a folder or s3://bucket/prefix")
    refuse_credentials(path)
    scheme_of(path)
    return path


def _check(settings: ExportSettings, *, has_catalog: bool) -> None:
    for name in ("target_file_bytes", "row_group_rows", "commit_bytes"):
        if (value := getattr(settings, name)) < 1:
            raise InvalidOptionError(f"{name} must be positive, not {value}")
    if settings.following is not None:
        _check_following(settings, settings.following)
    if has_catalog != (settings.table_format == ICEBERG):
        raise InvalidOptionError("Iceberg needs catalog=…, and only Iceberg takes it")
    # The names of files have it and 84 letters more; 255 are the most.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,159}", settings.export_id):
        raise InvalidOptionError(
            f"export_id must be at most 160 letters, digits, - and _, beginning with a letter or"
            f" digit, not {settings.export_id!r}"
        )
    _check_folders(settings)
    if settings.compaction and (settings.transform is not None or settings.sort_within_files):
        raise InvalidOptionError("compact=True goes with neither transform nor sort_within_files")


def _check_folders(settings: ExportSettings) -> None:
    """Refuses what is for the folders of a Parquet target, or what readers of such would skip."""
    if settings.table_format != PARQUET:
        if settings.text_partitions == AS_IS:
            raise InvalidOptionError(
                f"text_partitions={AS_IS!r} is for a Parquet folder: the log of a table keeps the"
                " type of a partition column"
            )
        return
    for column in settings.partition_by:
        if column.name.startswith(("_", ".")):
            raise InvalidOptionError(
                f"partition_by {column} would make folders {column.name}=…, and readers such as"
                f" pyarrow skip names that begin with {column.name[0]!r} as hidden. Rename the"
                " column in the transform, or export into a Delta or Iceberg table"
            )


def _check_following(settings: ExportSettings, following: Following) -> None:
    if following.interval_seconds < _LEAST_INTERVAL_SECONDS:
        raise InvalidOptionError(
            f"interval must be at least {_LEAST_INTERVAL_SECONDS} s, not"
            f" {following.interval_seconds} s: every round lists the tier"
        )
    if following.round_bytes < 1:
        raise InvalidOptionError(f"round_bytes must be positive, not {following.round_bytes}")
    if not settings.resume:
        raise InvalidOptionError("follow=True goes on behind the table: resume=False forbids it")
    if settings.compaction is not None and settings.table_format == PARQUET:
        raise InvalidOptionError(
            "compact=True with follow=True replaces files round by round, which a folder of Parquet"
            " files cannot: export into a Delta or Iceberg table"
        )
