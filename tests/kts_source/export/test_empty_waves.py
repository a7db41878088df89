"""Checks that a table also records the offsets of a wave without rows. A wave is the set of tasks
of one commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from kts_source.columns import ALL_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.export.row_schema import schema_without_rows
from kts_source.export.transforms import Rejected, Transformed
from kts_source.options import parse_options
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.small_tier import SmallTier, offset_option, ranges, table_offsets
from tests.quick import only

if TYPE_CHECKING:
    from pathlib import Path

EMPTY_WAVES = {
    "first two": (b"k", b"k", b"x"),
    "last": (b"x", b"x", b"k"),
    "all": (b"k", b"k", b"k"),
    "first": (b"k", b"x", b"x"),
    "second": (b"x", b"k", b"x"),
}


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def make_tier(folder: Path, keys: tuple[bytes, ...]) -> SmallTier:
    tier = SmallTier(folder / "tier")
    for key in keys:
        tier.grow(1, key)
    return tier


def expected(keys: tuple[bytes, ...]) -> list[int]:
    return [10 * n + m for n, key in enumerate(keys) if key == b"x" for m in range(10)]


@pytest.mark.parametrize("keys", only(3, EMPTY_WAVES.values()), ids=EMPTY_WAVES)
@pytest.mark.parametrize("in_turn", [True, False], ids=["waves", "runs"])
def test_commit_without_rows_advances_offsets(
    lake: Lake, tmp_path: Path, keys: tuple[bytes, ...], in_turn: bool
) -> None:
    tier = make_tier(tmp_path, keys)
    options = tier.options(where="key = 'x'")
    if in_turn:
        report = lake.export(options, commit_bytes=1)
        assert (report.commits, ranges(report)) == (3, [(0, 30)])
    else:
        for number in range(3):
            report = lake.export({**options, "endingOffsets": offset_option(10 * number + 10)})
            assert ranges(report) == [(10 * number, 10 * number + 10)]
    assert table_offsets(lake) == expected(keys)
    assert lake.export(options).commits == 0
    tier.grow(1, b"x")
    report = lake.export(options)
    assert (ranges(report), report.rows) == ([(30, 40)], 10)
    assert table_offsets(lake) == expected((*keys, b"x"))


def only_x(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """A transform that returns only records with key `x`, or `None` if there are none. It declares
    no columns, so they are unknown until it returns rows.
    """
    rows = batch.filter(pc.equal(batch["key"], b"x"))
    if not rows.num_rows:
        return None
    values = pa.array([int(value) for value in rows["value"].to_pylist()])
    return pa.RecordBatch.from_arrays([rows["offset"], values], names=["offset", "number"])


@pytest.mark.parametrize("keys", only(3, EMPTY_WAVES.values()), ids=EMPTY_WAVES)
def test_offsets_advance_if_transform_returns_no_rows(
    lake: Lake, tmp_path: Path, keys: tuple[bytes, ...]
) -> None:
    tier = make_tier(tmp_path, keys)
    report = lake.export(tier.options(), transform=only_x, commit_bytes=1)
    assert table_offsets(lake) == expected(keys)
    # If no row was returned, the columns are unknown. Then Delta and Iceberg tables do not
    # exist yet, so they cannot record offsets.
    unrecorded = b"x" not in keys and lake.table_format != "parquet"
    assert ranges(report) == ([] if unrecorded else [(0, 30)])
    assert bool(lake.export(tier.options(), transform=only_x).commits) is False
    tier.grow(1, b"x")
    report = lake.export(tier.options(), transform=only_x)
    assert ranges(report) == ([(0, 40)] if unrecorded else [(30, 40)])
    assert table_offsets(lake) == expected((*keys, b"x"))
    assert lake.export(tier.options(), transform=only_x).commits == 0


class RejectAll:
    """A row transform that rejects every row, so that all rows become dead letters."""

    fingerprint = "reject all"

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        rejected = tuple(Rejected(row, "no") for row in range(batch.num_rows))
        return Transformed(batch.slice(0, 0), rejected)


def test_offsets_advance_if_transform_rejects_all_rows(lake: Lake, tmp_path: Path) -> None:
    tier = make_tier(tmp_path, (b"k", b"k"))
    transform = RejectAll()
    letters = str(tmp_path / "letters")
    for _ in range(2):
        lake.export(tier.options(), transform=transform, dead_letters=letters)
    assert table_offsets(lake) == []
    assert len(list((tmp_path / "letters").glob("*.parquet"))) == 2


class Numbers:
    """A row transform that adds a column of numbers. If a batch has no rows, the column has another
    type; if `fails` is true, the transform raises an error instead.
    """

    fingerprint = "numbers"

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        if self._fails:
            batch["value"][0]
        keys = batch["key"].to_pylist()
        good = pa.array([row for row, key in enumerate(keys) if key == b"x"], pa.int64())
        numbers = pa.array([int(value) for value in batch["value"].take(good).to_pylist()])
        rows = pa.RecordBatch.from_arrays(
            [batch["offset"].take(good), numbers], names=["offset", "number"]
        )
        rejected = (Rejected(row, "k") for row, key in enumerate(keys) if key == b"k")
        return Transformed(rows, tuple(rejected))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("keys", only(3, EMPTY_WAVES.values()), ids=EMPTY_WAVES)
def test_export_continues_if_transform_returns_other_types_for_empty_batches(
    lake: Lake, tmp_path: Path, keys: tuple[bytes, ...], fails: bool
) -> None:
    tier = make_tier(tmp_path, keys)
    arguments: dict[str, Any] = {
        "transform": Numbers(fails=fails),
        "dead_letters": str(tmp_path / "letters"),
    }
    lake.export(tier.options(), commit_bytes=1, **arguments)
    tier.grow(1, b"x")
    lake.export(tier.options(), commit_bytes=1, **arguments)
    assert lake.export(tier.options(), **arguments).commits == 0
    assert table_offsets(lake) == expected((*keys, b"x"))
    letters = ds.dataset(list(map(str, (tmp_path / "letters").glob("*.parquet")))).to_table()
    all_offsets = set(range(10 * len(keys)))
    assert sorted(letters["offset"].to_pylist()) == sorted(all_offsets - set(expected(keys)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"partition_by": ["nope"]},
        {"partition_by": ["date(offset)"]},
        {"sort_within_files": ["nope"]},
    ],
    ids=str,
)
def test_invalid_columns_are_refused_even_without_rows(
    lake: Lake, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    tier = make_tier(tmp_path, (b"k",))
    options = tier.options(where="key = 'x'")
    with pytest.raises(InvalidOptionError, match=r"nope|needs a timestamp"):
        lake.export(options, **wrong)
    tier.grow(1, b"x")
    assert ranges(lake.export(options)) == [(0, 20)]


def test_empty_batches_have_the_columns_of_batches_with_rows(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, (b"x",))
    options = tier.options(columns=",".join(ALL_COLUMNS), includeHeaders="true")
    lake = Lake(tmp_path, "parquet")
    schemas = []

    def recorded(batch: pa.RecordBatch) -> pa.RecordBatch:
        schemas.append(batch.schema.remove_metadata())
        return batch

    lake.export(options, transform=recorded)
    assert schemas == [schema_without_rows(parse_options(options), lake.settings())]
