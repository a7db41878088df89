"""Ready transforms: what becomes a column, what is rejected, and where rejected rows go."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kts_source.errors import InvalidOptionError, TransformError
from kts_source.export.run import clean, export
from kts_source.export.settings import export_settings
from kts_source.export.task_writer import LocalExecutor
from kts_source.export.transforms.row_transform import (
    JsonColumns,
    Rejected,
    Transformed,
    parse_json_objects,
)
from tests.golden_data import expected_table
from tests.kts_source.export.exporting import Lake, source
from tests.kts_source.export.killing import Killed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kts_source.export.files import TaskReport
    from kts_source.export.job import ExportJob, RunnableTask

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.float64()))])


def parsed_rows(values: Sequence[bytes]) -> dict[int, Any]:
    """The row of every value that is not rejected, by the value's number."""
    made, rejected = parse_json_objects(pa.array(values, pa.binary()), SCHEMA)
    bad = {found.row for found in rejected}
    good = [number for number in range(len(values)) if number not in bad]
    return dict(zip(good, made.to_pylist(), strict=True))


def batch_of(values: list[bytes | None]) -> pa.RecordBatch:
    rows = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(values, pa.binary()),
            pa.array(["t"] * rows),
            pa.array([0] * rows, pa.int32()),
            pa.array(range(100, 100 + rows), pa.int64()),
        ],
        names=["value", "topic", "partition", "offset"],
    )


KEEP = ("topic", "offset")


def test_json_members_become_columns() -> None:
    values: list[bytes | None] = [
        b'{"a": 1, "b": "x", "c": [1.5], "unknown": {"deep": []}}',
        b"{}",
        None,
        b' {"b": null} \n',
    ]
    done = JsonColumns(SCHEMA, keep=KEEP).apply(batch_of(values))
    assert done.rejected == ()
    assert done.rows is not None
    assert done.rows.to_pylist() == [
        {"topic": "t", "offset": 100, "a": 1, "b": "x", "c": [1.5]},
        {"topic": "t", "offset": 101, "a": None, "b": None, "c": None},
        {"topic": "t", "offset": 102, "a": None, "b": None, "c": None},
        {"topic": "t", "offset": 103, "a": None, "b": None, "c": None},
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b"{",
        b'{"a": 1}{"a": 2}',
        b'{"a": 1}\n{"a": 2}',
        b'{"a": "text"}',
        b'{"a": 1.5}',
        b'{"a": 1',
        b'"a": 1}',
        b"\xff\xfe",
        b'{"a": 99999999999999999999}',
    ],
)
def test_json_that_does_not_fit_is_rejected_alone(bad: bytes) -> None:
    good = b'{"a": 1}'
    done = JsonColumns(SCHEMA, keep=KEEP).apply(batch_of([good, bad, good, good]))
    assert [found.row for found in done.rejected] == [1]
    assert done.rejected[0].reason
    assert done.rows is not None
    assert done.rows.column("offset").to_pylist() == [100, 102, 103]


@pytest.mark.parametrize(
    "values",
    [
        [b'{"a": 1', b'{"a": 2}'],
        [b'{"a": {}', b'{"b": 1}}'],
        [b'{"a": 1}{"a": 2}', b""],
        [b'{"b": "}', b'{"}', b'{"a": 1}{"a": 2}'],
        [b'{"b": {"x": "}', b'{"}}', b'{"a": 1}{"a": 2}'],
    ],
)
def test_json_values_never_run_into_each_other(values: list[bytes]) -> None:
    for number, row in parsed_rows(values).items():
        alone = json.loads(values[number])
        assert row["a"] == alone.get("a")


PIECES = st.sampled_from(
    [b"{", b"}", b'"', b"a", b":", b"1", b",", b"\n", b" ", b"[", b"]", b'"a":1', b'{"a":2}', b"\\"]
)


@settings(deadline=None)
@given(st.lists(st.lists(PIECES, max_size=8).map(b"".join), max_size=5))
def test_json_batches_equal_single_values(values: list[bytes]) -> None:
    together = parsed_rows(values)
    for number, value in enumerate(values):
        assert together.get(number) == parsed_rows([value]).get(0)


def test_schemas_that_cannot_be() -> None:
    with pytest.raises(InvalidOptionError, match="offset would be there twice"):
        JsonColumns(pa.schema([("offset", pa.int64())]))
    with pytest.raises(InvalidOptionError, match="no column"):
        JsonColumns(pa.schema([]))
    with pytest.raises(InvalidOptionError, match="needs column 'value'"):
        JsonColumns(SCHEMA).apply(batch_of([b"{}"]).select(["topic"]))


class EvenOffsets:
    """Rejects every odd offset."""

    fingerprint = "even"

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        offsets = batch.column("offset").to_pylist()
        good = [row for row, offset in enumerate(offsets) if offset % 2 == 0]
        bad = tuple(
            Rejected(row, f"{offset} is odd") for row, offset in enumerate(offsets) if offset % 2
        )
        return Transformed(batch.take(pa.array(good, pa.int64())) if good else None, bad)


def test_rejected_rows_go_to_the_dead_letters(tmp_path: Path) -> None:
    lake, letters = Lake(tmp_path, "parquet"), tmp_path / "letters"
    settings = export_settings(lake.target, transform=EvenOffsets(), dead_letters=str(letters))
    report = export(source(), settings, LocalExecutor(1))
    expected = {
        (row["partition"], row["offset"]): row["value"]
        for row in expected_table("txn", "read_committed").to_pylist()
    }
    dead = ds.dataset(str(letters), format="parquet").to_table().to_pylist()
    found = {(row["partition"], row["offset"]): row["value"] for row in dead}
    assert found == {place: value for place, value in expected.items() if place[1] % 2}
    assert len(dead) == len(found) == report.rejected
    assert {row["reason"] for row in dead} == {f"{row['offset']} is odd" for row in dead}
    kept = lake.read()
    assert set(zip(kept["partition"].to_pylist(), kept["offset"].to_pylist(), strict=True)) == {
        place for place in expected if place[1] % 2 == 0
    }
    assert not list(letters.rglob("*.part"))


def test_dead_letters_of_attempts_that_died_are_listed_and_removable(tmp_path: Path) -> None:
    lake, letters = Lake(tmp_path, "parquet"), tmp_path / "letters"
    settings = export_settings(lake.target, transform=EvenOffsets(), dead_letters=str(letters))

    class Dying(LocalExecutor):
        def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
            for task in tasks:
                task.run(job)
            raise Killed

    with pytest.raises(Killed):
        export(source(), settings, Dying(1))
    left = {path.name for path in letters.rglob("*.part")}
    assert left
    for remove in (False, True):
        found = clean(settings, older_than_hours=-1, remove=remove)
        assert {key.rpartition("/")[2] for key in (entry.key for entry in found)} >= left
    assert not list(letters.rglob("*.part"))
    report = export(source(), settings, LocalExecutor(1))
    dead = ds.dataset(str(letters), format="parquet").to_table()
    assert dead.num_rows == report.rejected > 0
    assert clean(settings, older_than_hours=-1, remove=True) == ()
    assert ds.dataset(str(letters), format="parquet").count_rows() == report.rejected


def test_a_rejected_row_without_dead_letters_is_an_error(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    with pytest.raises(TransformError, match=r"is odd .*topic txn, partition \d, offset \d+"):
        lake.export(source(), transform=EvenOffsets())
