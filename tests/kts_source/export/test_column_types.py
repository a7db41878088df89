"""Checks that exports refuse unsupported column types before any row is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kts_source.errors import ExportError
from kts_source.export.parquet_file import ParquetFile
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.tables.rows import tier_of

if TYPE_CHECKING:
    from pathlib import Path

EVERYWHERE = [
    pa.duration("ms"),
    pa.list_(pa.duration("s")),
    pa.struct([("took", pa.duration("us"))]),
    pa.struct([]),
    pa.month_day_nano_interval(),
    pa.decimal128(5, -2),
    pa.dense_union([pa.field("number", pa.int64())]),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.struct([("a", pa.int64()), ("a", pa.int64())]),
]
IN_TABLES = [
    pa.uint8(),
    pa.struct([("count", pa.uint32())]),
    pa.map_(pa.string(), pa.uint64()),
    pa.timestamp("ns"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.float16(),
    pa.decimal256(50, 2),
    pa.time32("s"),
    pa.time64("ns"),
]
REFUSED = [
    *[(name, kind) for name in FORMATS for kind in EVERYWHERE],
    *[(name, kind) for name in ("delta", "iceberg") for kind in IN_TABLES],
    *[("delta", kind) for kind in (pa.time64("us"), pa.timestamp("s"), pa.uuid())],
    ("delta", pa.list_(pa.struct([("a", pa.int64()), ("A", pa.int64())]))),
    *[("iceberg", kind) for kind in (pa.date64(), pa.null(), pa.list_view(pa.int64()))],
]
WRITTEN = [
    *[("parquet", kind) for kind in (pa.uint64(), pa.time32("s"), pa.timestamp("ns", "UTC"))],
    *[("delta", kind) for kind in (pa.date64(), pa.timestamp("ms"), pa.large_string())],
    *[("iceberg", kind) for kind in (pa.time64("us"), pa.timestamp("s"), pa.uuid())],
]


@dataclass(frozen=True)
class WithColumn:
    """A transform that adds a column `extra` of type `kind`. The column contains nulls, except for
    union types.
    """

    kind: pa.DataType
    fingerprint: str = "column"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = pa.schema([batch.schema.field("offset"), pa.field("extra", self.kind)])
        rows = batch.num_rows
        nulls = pa.nulls(rows, self.kind) if not pa.types.is_union(self.kind) else self._union(rows)
        return pa.RecordBatch.from_arrays([batch["offset"], nulls], schema=schema)

    def _union(self, rows: int) -> pa.Array:
        types = pa.array([0] * rows, pa.int8())
        offsets = pa.array(range(rows), pa.int32())
        numbers = pa.array(range(rows), pa.int64())
        return pa.UnionArray.from_dense(types, offsets, [numbers], ["number"])


@pytest.mark.parametrize(("table_format", "kind"), REFUSED, ids=str)
def test_unsupported_type_is_refused_before_rows_are_written(
    tmp_path: Path, table_format: str, kind: pa.DataType
) -> None:
    lake = Lake(tmp_path, table_format)
    source = tier_of(tmp_path / "tier", ["a", "b"])
    with pytest.raises(ExportError, match=r"column extra.* cast it"):
        lake.export(source, transform=WithColumn(kind))
    assert not list(lake.folder.rglob("*.parquet")) + list(lake.folder.rglob("*.part"))


@pytest.mark.parametrize(("table_format", "kind"), WRITTEN, ids=str)
def test_supported_type_is_written(tmp_path: Path, table_format: str, kind: pa.DataType) -> None:
    lake = Lake(tmp_path, table_format)
    source = tier_of(tmp_path / "tier", ["a", "b"])
    report = lake.export(source, transform=WithColumn(kind))
    assert report.rows == 2
    assert lake.read()["extra"].to_pylist() == [None, None]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())]), 2),
        pa.list_view(pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    ],
    ids=["fixed_size_list", "list_view"],
)
def test_column_after_a_list_of_structs_has_its_own_bounds(kind: pa.DataType) -> None:
    schema = pa.schema([("items", kind), ("number", pa.int64())])
    items = pa.array([[{"a": 100, "b": 200}, {"a": 300, "b": 400}]], kind)
    file = ParquetFile(pa.BufferOutputStream(), schema, compression="none")
    file.add(pa.RecordBatch.from_arrays([items, pa.array([7])], schema=schema))
    _, statistics = file.close()
    assert (statistics["number"].low, statistics["number"].high) == (7, 7)


@pytest.mark.parametrize(
    ("table_format", "names"),
    [
        *[(name, ("c", "c")) for name in FORMATS],
        *[(name, ("offset", "c")) for name in FORMATS],
        ("delta", ("c", "C")),
    ],
    ids=str,
)
def test_duplicate_column_names_are_refused_before_rows_are_written(
    tmp_path: Path, table_format: str, names: tuple[str, str]
) -> None:
    lake = Lake(tmp_path, table_format)

    def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch["offset"], batch["offset"], batch["offset"]]
        return pa.RecordBatch.from_arrays(columns, names=["offset", *names])

    with pytest.raises(ExportError, match=r"the rows have .* rename one of them in the transform"):
        lake.export(tier_of(tmp_path / "tier", ["a", "b"]), transform=renamed)
    assert not list(tmp_path.rglob("*.parquet")) + list(tmp_path.rglob("*.part"))
