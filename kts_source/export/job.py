"""What the tasks of one export share, and what an executor needs of a task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from kts_source.secret import Secret

if TYPE_CHECKING:
    import pyarrow as pa

    from kts_source.export.files import TaskReport
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import WritePlace
    from kts_source.options import ScanOptions

OFFSET: Final = "offset"
TOPIC_ID: Final = "topicId"


@dataclass(frozen=True, slots=True)
class ExportJob:
    """What all tasks of a run share. It holds credentials, so it travels in pickles only.

    Attributes:
        options: What to read, key ring loaded.
        place: Where to write.
        settings: How to write, without the catalog's credentials, which no task needs.
        columns: Of the rows, where they are decoded: those of the table may have more fields.
    """

    options: ScanOptions
    place: WritePlace
    run_id: str
    settings: ExportSettings
    columns: pa.Schema | None = None

    @classmethod
    def of(
        cls,
        options: ScanOptions,
        settings: ExportSettings,
        place: WritePlace,
        run_id: str,
        columns: pa.Schema | None = None,
    ) -> ExportJob:
        """The job of a run."""
        return cls(options, place, run_id, replace(settings, catalog=Secret({})), columns)


class RunnableTask(Protocol):
    """Anything an executor runs: picklable, and free of credentials and keys."""

    @property
    def number(self) -> int:
        """Within the run."""
        ...

    def run(self, job: ExportJob) -> TaskReport:
        """One attempt."""
        ...
