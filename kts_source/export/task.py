"""The values that the driver of an export sends to its tasks, and the reports that tasks return."""

from __future__ import annotations

import base64
import dataclasses
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from kts_source.export.rejections import RecordCounts
from kts_source.export.topic_fields import TopicFields
from kts_source.read.task_metrics import LostRange
from kts_source.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.export.partitioning import ValuesIn
    from kts_source.export.settings import ExportSettings
    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat

OFFSET: Final = "offset"
TOPIC_ID: Final = "topicId"
STAGES_OF_TASKS: Final = ("fetching", "compiling", "decoding")
"""Stages of a task whose seconds its report has. Fetching is the time spent
waiting for bytes. In the first task, compiling may overlap with fetching.
"""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """Location and names of the files that tasks create.

    Attributes:
        path: Root of the target.
        storage: Credentials and settings of the store.
        prefix: Prefix of every key, relative to the root.
        suffix: Suffix of every key.
        values_in: Location of the partition values of a file. `path`: the folder names in its path.
            `log`: the log of the table. `file`: columns of the file.
    """

    path: str
    storage: Secret[Mapping[str, str]]
    prefix: str
    suffix: str
    values_in: ValuesIn


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Values that all tasks of a run share. They include credentials, so an `ExportJob` is sent to
    tasks only as a pickle, never as text.

    Attributes:
        options: Options of the source, with the key ring loaded.
        columns: Schema of the rows to write. Decoded columns also have the fields that only the
            table has. `None` if no column is decoded or a transform may change the columns.
        base_formats: Formats of keys and values without the fields that this run has added; by
            default, the formats in `options`.
    """

    options: ScanOptions
    target: WriteTarget
    run_id: str
    settings: ExportSettings
    columns: pa.Schema | None = None
    base_formats: tuple[ColumnFormat, ...] = ()

    def __post_init__(self) -> None:
        # Only the driver commits, so only it needs the credentials of the catalog. `options` has
        # the parsed options of topics.
        settings = replace(self.settings, catalog=Secret({}), topic_options=Secret({}))
        object.__setattr__(self, "settings", settings)
        object.__setattr__(self, "base_formats", self.base_formats or self.options.formats)


class RunnableTask(Protocol):
    """A task that an executor runs. It can be pickled, and has no credentials and no private
    keys.
    """

    @property
    def number(self) -> int:
        """Number of the task within the run."""
        ...

    def run(self, job: ExportJob) -> TaskReport:
        """Runs one attempt of the task."""
        ...


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Bounds of a column in one file.

    Attributes:
        low: Smallest value; dates and timestamps in ISO 8601 with milliseconds, rounded down.
            `None` if unknown.
        high: Largest value, in the form of `low`, but rounded up. `None` if unknown.
        nulls: Number of nulls; `None` if unknown.
    """

    low: int | str | None
    high: int | str | None
    nulls: int | None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A closed Parquet file.

    Attributes:
        key: Key under which the task wrote the file, relative to the target's root. If Spark writes
            the rows, identifies the stored rows.
        name: Key of the file after the commit, relative to the target's root. It is unique among
            all files of all commits.
        start: First offset that was read for the file.
        stop: One past the last offset that was read for the file.
        values: Partition values as texts, in the order of the partition columns.
        statistics: Bounds and numbers of nulls, by path of the column.
    """

    key: str
    name: str
    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    rows: int
    size: int
    modified_ms: int
    values: tuple[str | None, ...]
    statistics: Mapping[str, ColumnStatistics]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> WrittenFile:
        """Creates a `WrittenFile` from the result of `dataclasses.asdict`."""
        statistics = {
            name: ColumnStatistics(**bounds) for name, bounds in value["statistics"].items()
        }
        return cls(**{**value, "values": tuple(value["values"]), "statistics": statistics})


@dataclass(frozen=True, slots=True)
class DeadLetterFile:
    """A file of rejected rows.

    Attributes:
        key: Key under which the task wrote the file, relative to the folder of dead letters.
        name: Key of the file after the commit, relative to the folder of dead letters.
    """

    key: str
    name: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class SpillFile:
    """A temporary file with records of one bucket. The first round of a compaction writes it, and
    the second round merges the files of each bucket.
    """

    bucket: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """Results of a successful attempt of a task. The driver commits the files of the task from
    these results, without opening the files.

    Attributes:
        schema: Schema of the rows that the task wrote; `None` if it wrote no row.
        rows_read: Number of rows that were read from the source, before the transform.
        dead_letters: The file of rows that were rejected.
        new_fields: Fields of keys and values that the schema lacks, with the place of their first
            record.
        new_schemas: With `on_new_fields="add"`, the result of `NewFields.schemas`.
        topic_fields: Fields of JSON keys and values by topic.
        counts: Numbers of read and of rejected records by partition.
        segment_bytes: Original bytes of the parts of segments that the task read.
        requests: Number of read requests sent to the tier.
        bytes_read: Number of bytes received from objects.
        seconds_writing: Part of `seconds` that was spent on transforms, encoding, compression and
            storing.
        seconds_of: Other parts of `seconds` by stage; see `STAGES_OF_TASKS`.
        mirrored: Number of reads that the mirror of the tier served.
        malformed: Number of rows that were dropped because they cannot be decoded (mode
            `DROPMALFORMED`).
        spills: Temporary files that a task of the first round of a compaction wrote.
        newest_ms: Three values for each partition: topic id, partition number, and timestamp of the
            newest record in ms. Only set in the first round of a compaction.
        lost: Ranges of offsets that were not read because their objects no longer exist.
    """

    number: int
    files: tuple[WrittenFile, ...] = ()
    schema: pa.Schema | None = None
    rows_read: int = 0
    dead_letters: DeadLetterFile | None = None
    counts: tuple[RecordCounts, ...] = ()
    new_fields: Mapping[str, str] = field(default_factory=dict[str, str])
    new_schemas: Mapping[str, str] = field(default_factory=dict[str, str])
    topic_fields: tuple[TopicFields, ...] = ()
    segment_bytes: int = 0
    requests: int = 0
    bytes_read: int = 0
    retries: int = 0
    seconds: float = 0.0
    seconds_writing: float = 0.0
    seconds_of: Mapping[str, float] = field(default_factory=dict[str, float])
    malformed: int = 0
    mirrored: int = 0
    spills: tuple[SpillFile, ...] = ()
    newest_ms: tuple[tuple[str, int, int], ...] = ()
    lost: tuple[LostRange, ...] = ()

    def to_text(self) -> str:
        """Encodes the report as one line of JSON, because Spark transfers reports as texts."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, default=schema_text)

    @classmethod
    def from_text(cls, text: str) -> TaskReport:
        """Decodes the result of `to_text`."""
        value = json.loads(text)
        files = tuple(WrittenFile.from_json(file) for file in value.pop("files"))
        letters, schema = value.pop("dead_letters"), value.pop("schema")
        return cls(
            files=files,
            schema=schema and schema_from_text(schema),
            dead_letters=None if letters is None else DeadLetterFile(**letters),
            counts=tuple(RecordCounts(**count) for count in value.pop("counts")),
            topic_fields=tuple(
                TopicFields(**{**each, "names": tuple(each["names"])})
                for each in value.pop("topic_fields")
            ),
            spills=tuple(SpillFile(**spill) for spill in value.pop("spills")),
            newest_ms=tuple(tuple(entry) for entry in value.pop("newest_ms")),
            lost=tuple(LostRange(*lost) for lost in value.pop("lost")),
            **value,
        )


def schema_text(schema: pa.Schema) -> str:
    """Encodes a schema as ASCII text."""
    return base64.b64encode(schema.serialize()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Decodes the result of `schema_text`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
