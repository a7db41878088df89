"""What a task reports of the files it wrote: enough to commit them without opening them again."""

from __future__ import annotations

import base64
import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kts_source.read.task_metrics import LostRange

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Bounds of a column in one file.

    Attributes:
        low: Smallest value; whole numbers as they are, dates and timestamps in ISO 8601 with
            milliseconds, rounded down; `None` where unknown.
        high: Largest value, timestamps rounded up.
        nulls: Number of nulls; `None` where unknown.
    """

    low: int | str | None
    high: int | str | None
    nulls: int | None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One closed Parquet file.

    Attributes:
        key: Where it was written, below the target's root.
        name: Final name, below the root: unique among all files of all commits.
        start: First offset that went into it, or was read for it.
        stop: One past the last one.
        values: Partition values as texts, in the order of the partition columns.
        statistics: By column.
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
        """The file of what `dataclasses.asdict` makes of one."""
        statistics = {name: ColumnStatistics(**one) for name, one in value["statistics"].items()}
        return cls(**{**value, "values": tuple(value["values"]), "statistics": statistics})


@dataclass(frozen=True, slots=True)
class DeadLetterFile:
    """A file of rejected rows.

    Attributes:
        key: Where it was written, below the folder of dead letters.
        name: Final name.
    """

    key: str
    name: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class SpillFile:
    """Records of one bucket on their way through a compaction."""

    bucket: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What one successful attempt of a task did.

    Attributes:
        number: The task's, within its run.
        schema: Of the rows written; `None` when there was none.
        rows_read: Visible rows decoded.
        dead_letters: The file of rows that the transform rejected.
        segment_bytes: Original bytes the task covers.
        requests: Reads sent to the tier.
        bytes_read: Object bytes received.
        retries: Attempts made again.
        seconds: Wall time.
        seconds_writing: Part of it spent in transforms and in encoding, compressing and storing.
        spills: Of a compaction's first round.
        newest_ms: Topic id, partition and newest timestamp seen there.
        lost: Offsets that were not read, since their objects had gone.
    """

    number: int
    files: tuple[WrittenFile, ...] = ()
    schema: pa.Schema | None = None
    rows_read: int = 0
    dead_letters: DeadLetterFile | None = None
    segment_bytes: int = 0
    requests: int = 0
    bytes_read: int = 0
    retries: int = 0
    seconds: float = 0.0
    seconds_writing: float = 0.0
    spills: tuple[SpillFile, ...] = ()
    newest_ms: tuple[tuple[str, int, int], ...] = ()
    lost: tuple[LostRange, ...] = ()

    def to_text(self) -> str:
        """One line of JSON, which is how it travels through Spark."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, default=schema_text)

    @classmethod
    def from_text(cls, text: str) -> TaskReport:
        """What `to_text` gave."""
        value = json.loads(text)
        files = tuple(WrittenFile.from_json(file) for file in value.pop("files"))
        letters, schema = value.pop("dead_letters"), value.pop("schema")
        return cls(
            files=files,
            schema=schema and schema_from_text(schema),
            dead_letters=None if letters is None else DeadLetterFile(**letters),
            spills=tuple(SpillFile(**spill) for spill in value.pop("spills")),
            newest_ms=tuple(tuple(entry) for entry in value.pop("newest_ms")),
            lost=tuple(LostRange(*lost) for lost in value.pop("lost")),
            **value,
        )


def schema_text(schema: pa.Schema) -> str:
    """A schema as ASCII."""
    return base64.b64encode(schema.serialize()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """What `schema_text` gave."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
