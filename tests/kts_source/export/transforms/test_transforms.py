"""Tests row transforms and the files of rejected rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from kts_source.errors import TransformError
from kts_source.export.run import clean, export
from kts_source.export.settings import export_settings
from kts_source.export.task_writer import LocalExecutor
from kts_source.export.transforms import Rejected, Transformed
from tests.golden_data import expected_table
from tests.kts_source.export.exporting import Lake, source
from tests.kts_source.export.killing import Killed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kts_source.export.task import ExportJob, RunnableTask, TaskReport


class EvenOffsets:
    """A row transform that keeps even offsets and rejects odd offsets."""

    fingerprint = "even"

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        offsets = batch.column("offset").to_pylist()
        good = [row for row, offset in enumerate(offsets) if offset % 2 == 0]
        bad = tuple(
            Rejected(row, f"{offset} is odd") for row, offset in enumerate(offsets) if offset % 2
        )
        return Transformed(batch.take(pa.array(good, pa.int64())) if good else None, bad)


def test_rejected_rows_are_written_to_dead_letters(tmp_path: Path) -> None:
    lake, letters = Lake(tmp_path, "parquet"), tmp_path / "letters"
    settings = export_settings(
        lake.target, transform=EvenOffsets(), dead_letters=str(letters), max_rejected="100%"
    )
    report = export(source(), settings, LocalExecutor(1))
    expected = {
        (row["partition"], row["offset"]): row["value"]
        for row in expected_table("txn", "read_committed").to_pylist()
    }
    dead = ds.dataset(str(letters), format="parquet").to_table().to_pylist()
    letters_found = {(row["partition"], row["offset"]): row["value"] for row in dead}
    assert letters_found == {
        location: value for location, value in expected.items() if location[1] % 2
    }
    assert len(dead) == len(letters_found) == report.rejected
    assert {row["reason"] for row in dead} == {f"{row['offset']} is odd" for row in dead}
    kept = lake.read()
    assert set(zip(kept["partition"].to_pylist(), kept["offset"].to_pylist(), strict=True)) == {
        location for location in expected if location[1] % 2 == 0
    }
    assert not list(letters.rglob("*.part"))


def test_clean_removes_dead_letter_files_of_killed_run(tmp_path: Path) -> None:
    lake, letters = Lake(tmp_path, "parquet"), tmp_path / "letters"
    settings = export_settings(
        lake.target, transform=EvenOffsets(), dead_letters=str(letters), max_rejected="100%"
    )

    class Dying(LocalExecutor):
        def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
            for task in tasks:
                task.run(job)
            raise Killed

    with pytest.raises(Killed):
        export(source(), settings, Dying(1))
    remaining = {path.name for path in letters.rglob("*.part")}
    assert remaining
    for remove in (False, True):
        orphans = clean(settings, older_than_hours=-1, remove=remove)
        assert {key.rpartition("/")[2] for key in (entry.key for entry in orphans)} >= remaining
    assert not list(letters.rglob("*.part"))
    report = export(source(), settings, LocalExecutor(1))
    dead = ds.dataset(str(letters), format="parquet").to_table()
    assert dead.num_rows == report.rejected > 0
    assert clean(settings, older_than_hours=-1, remove=True) == ()
    assert ds.dataset(str(letters), format="parquet").count_rows() == report.rejected


def test_rejected_row_without_dead_letters_fails_the_export(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    with pytest.raises(TransformError, match=r"is odd\. .*topic txn, partition \d, offset \d+"):
        lake.export(source(), transform=EvenOffsets())
