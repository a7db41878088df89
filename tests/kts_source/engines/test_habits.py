"""Tests methods of a scan that users know from Polars, PyIceberg, DuckDB or pyarrow."""

from __future__ import annotations

import inspect
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

import kts_source
from tests.golden_data import assert_same_rows, expected_table, tier_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source import Scan

EXPECTED = expected_table("txn", "read_committed")


def txn(**options: str) -> Scan:
    return kts_source.scan(tier_options("txn", includeHeaders="true", **options))


def test_dir_lists_the_public_names() -> None:
    names = dir(kts_source)
    assert {*kts_source.__all__, "errors", "__version__"} <= set(names)
    assert not {"Final", "annotations", "importlib"} & set(names)
    assert all(hasattr(kts_source, name) for name in names)


def test_dir_lists_no_name_that_needs_a_missing_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    names = dir(kts_source)
    assert {"scan", "backfill"} <= set(names)
    assert not {"register", "run_available_now", "TieredKafkaDataSource"} & set(names)


def test_path_may_be_a_keyword() -> None:
    options: dict[str, Any] = {**tier_options("txn")}
    expected = kts_source.describe(options).partitions
    assert kts_source.scan(**options).count() == kts_source.scan(options).count()
    assert kts_source.describe(**options).partitions == expected
    assert len(kts_source.plan(**options).partitions) == len(expected)
    assert len(kts_source.report(**options).facts.partitions) == len(expected)


def test_select_accepts_names_and_lists() -> None:
    for scan in (
        txn().select("offset", "Key"),
        txn().select(["offset", "key"]),
        txn().select(name for name in ("offset", "key")),
        txn().select(["offset"], "key"),
    ):
        assert scan.columns == ("offset", "key")
    with pytest.raises(kts_source.errors.InvalidOptionError, match="at least one column"):
        txn().select()


def test_filter_returns_only_matching_rows() -> None:
    condition = "partition = 1 AND offset >= 3000"
    filtered = txn().filter(condition).to_table()
    mask = [
        partition == 1 and offset >= 3000
        for partition, offset in zip(
            EXPECTED["partition"].to_pylist(), EXPECTED["offset"].to_pylist(), strict=True
        )
    ]
    assert_same_rows(filtered, EXPECTED.filter(pa.array(mask)))


def test_head_returns_the_first_rows() -> None:
    offsets = [
        offset
        for partition, offset in sorted(
            zip(EXPECTED["partition"].to_pylist(), EXPECTED["offset"].to_pylist(), strict=True)
        )
        if partition == 0
    ]
    assert txn().head(3)["offset"].to_pylist() == offsets[:3]
    assert txn().head().num_rows == 10
    assert txn().head(0).num_rows == 0
    assert txn().limit(2).head(5).num_rows == 2


def test_show_prints_the_first_rows_as_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    scan = txn().select("partition", "offset", "timestamp", "key").where("offset >= 1000")
    scan.show(2)
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["partition", "offset", "timestamp", "key"]
    assert len(rows) == 2
    first = scan.head(1).to_pylist()[0]
    assert rows[0].split()[:2] == ["0", f"{first['offset']:,}"]
    assert f"{first['timestamp']:%Y-%m-%d %H:%M:%S}" in rows[0]
    assert rows[0].index(f"{first['offset']:,}") + 5 == header.index("offset") + len("offset")
    scan.where("offset < 0").show()
    assert capsys.readouterr().out.startswith("no rows\npartition  offset")


def test_to_arrow_returns_the_same_table_as_to_table() -> None:
    done: list[tuple[int, int]] = []
    table = txn().to_arrow(threads=1, progress=lambda *sizes: done.append(sizes))
    assert table.equals(txn().to_table(threads=1))
    assert done


def test_iteration_over_a_scan_yields_all_rows_as_batches() -> None:
    batches = list(txn())
    assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
    assert_same_rows(pa.Table.from_batches(batches), EXPECTED)
    assert next(iter(txn())).num_rows > 0


def test_len_of_a_scan_raises_error_that_names_count() -> None:
    scan = txn()
    with pytest.raises(TypeError, match=r"call count\(\)"):
        len(scan)
    assert bool(scan)


def test_to_duckdb_returns_a_relation_that_skips_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    from kts_source.engines import base_scan

    read: list[int] = []
    whole = base_scan.TaskRun._read

    def counted(run: Any, number: int) -> Any:  # noqa: ANN401
        read.append(number)
        return whole(run, number)

    monkeypatch.setattr(base_scan.TaskRun, "_read", counted)
    scan = txn(targetPartitionBytes="32k")
    with duckdb.connect() as connection:
        relation = scan.to_duckdb(connection)
        wanted = relation.filter('"partition" = 1 and "offset" < 100').aggregate("count(*)")
        offsets = zip(
            EXPECTED["partition"].to_pylist(), EXPECTED["offset"].to_pylist(), strict=True
        )
        expected = sum(partition == 1 and offset < 100 for partition, offset in offsets)
        assert wanted.fetchall() == [(expected,)]
    assert 0 < len(read) < len(scan.tasks)


def test_find_accepts_text_keys_and_headers() -> None:
    keys = [key for key in EXPECTED["key"].to_pylist() if key is not None][:2]
    texts = [key.decode() for key in keys]
    options = tier_options("txn")
    by_bytes = kts_source.find(options, keys=keys).to_table()
    assert by_bytes.num_rows >= 2
    assert kts_source.find(options, keys=texts).to_table().equals(by_bytes)
    with_header = kts_source.find(options, headers=[("dup", "1")]).to_table()
    assert with_header.num_rows > 0
    assert with_header.equals(kts_source.find(options, headers=[("dup", b"1")]).to_table())
    wrong: Any = [5]
    with pytest.raises(kts_source.errors.InvalidOptionError, match="a key is of type int"):
        kts_source.find(options, keys=wrong)


def test_version_attribute_equals_installed_package_version() -> None:
    assert kts_source.__version__ == metadata.version("tiered-kafka")


def test_public_functions_and_methods_never_have_return_type_any() -> None:
    def untyped(owner: str, function: Callable[..., object]) -> bool:
        annotation = inspect.signature(function).return_annotation
        return annotation in (inspect.Signature.empty, "Any") and owner is not None

    found = []
    for name in kts_source.__all__:
        value = getattr(kts_source, name)
        members = {name: value}
        if inspect.isclass(value):
            members = {
                f"{name}.{member}": function
                for member, function in inspect.getmembers(value, inspect.isfunction)
                if not member.startswith("_")
            }
        found += [each for each, function in members.items() if untyped(each, function)]
    # Spark's own base class.
    assert [each for each in found if not each.startswith("TieredKafkaDataSource.")] == []
