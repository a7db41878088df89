"""What the tasks of one export share, and what an executor asks of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.export.files import TaskReport
    from kts_source.export.partitioning import PartitionField
    from kts_source.export.settings import ExportSettings, Transform
    from kts_source.export.tables.export_table import WritePlace
    from kts_source.options import ScanOptions
    from kts_source.secret import Secret

OFFSET: Final = "offset"
TOPIC_ID: Final = "topicId"


@dataclass(frozen=True, slots=True)
class ExportJob:
    """What all tasks of a run share. It opens doors, so it travels in pickles only.

    Attributes:
        options: What to read, key ring loaded.
        place: Where to write.
    """

    options: ScanOptions
    place: WritePlace
    run_id: str
    export_id: str
    partition_by: tuple[PartitionField, ...]
    transform: Transform | None
    sort_within_files: tuple[str, ...]
    target_file_bytes: int
    row_group_rows: int
    compression: str
    dead_letters: str | None
    extra_columns: tuple[str, ...]

    @property
    def target_storage(self) -> Secret[Mapping[str, str]]:
        """What opens the door of the target and of the dead letters."""
        return self.place.storage

    @classmethod
    def of(
        cls, options: ScanOptions, settings: ExportSettings, place: WritePlace, run_id: str
    ) -> ExportJob:
        """The job of a run."""
        return cls(
            options,
            place,
            run_id,
            settings.export_id,
            settings.partition_by,
            settings.transform,
            settings.sort_within_files,
            settings.target_file_bytes,
            settings.row_group_rows,
            settings.compression,
            settings.dead_letters,
            (TOPIC_ID,) if settings.compaction else (),
        )


class RunnableTask(Protocol):
    """Anything an executor runs: picklable, and free of credentials and keys."""

    @property
    def number(self) -> int:
        """Within the run."""
        ...

    def run(self, job: ExportJob) -> TaskReport:
        """Does the work."""
        ...


class WritingTask(Protocol):
    """A task whose rows become files of the table."""

    @property
    def number(self) -> int:
        """Within the run."""
        ...

    @property
    def topic_ids(self) -> Mapping[tuple[str, int], str]:
        """Topic and partition to topic id, of all rows."""
        ...
