"""Checks that the arguments of an export are documented and validated, and that errors name
them.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kts_source import backfill
from kts_source.cli.app import all_commands
from kts_source.errors import InvalidOptionError
from kts_source.export.settings import (
    Compaction,
    ExportArguments,
    ExportSettings,
    Following,
    export_settings,
    name_parts,
)
from kts_source.export.task import ExportJob, WriteTarget
from kts_source.options import parse_options
from kts_source.secret import Secret

# These arguments are public: do not remove them or change their defaults.
ARGUMENTS = {
    "table_format": "parquet",
    "writer": "path",
    "partition_by": (),
    "transform": None,
    "sort_within_files": (),
    "target_file_bytes": 256 << 20,
    "row_group_rows": 1 << 20,
    "compression": "zstd",
    "resume": True,
    "export_id": "kts",
    "second_copy": False,
    "commit_bytes": 64 << 30,
    "target_options": None,
    "catalog": None,
    "dead_letters": None,
    "max_rejected": "1%",
    "replay": False,
    "compact": False,
    "tombstones": "keep",
    "delete_retention_ms": 86_400_000,
    "follow": False,
    "interval": "60s",
    "round_bytes": 8 << 30,
    "schema_evolution": "none",
    "on_new_fields": "warn",
    "text_partitions": "checked",
    "verify": False,
    "dry_run": False,
}


def test_documented_defaults_match_the_defaults_of_settings() -> None:
    assert ExportArguments.__annotations__.keys() == ARGUMENTS.keys()
    help_text: Any = ARGUMENTS
    documented, explicit = export_settings("/t"), export_settings("/t", **help_text)
    for name in (field.name for field in dataclasses.fields(ExportSettings)):
        if name not in ("storage", "catalog"):
            assert getattr(documented, name) == getattr(explicit, name), name
    assert documented.storage.reveal() == explicit.storage.reveal()
    compacting = export_settings("/t", compact=True)
    assert compacting.compaction == Compaction("keep", 86_400_000)
    explicit = export_settings("/t", **{**help_text, "follow": True})
    assert export_settings("/t", follow=True).following == explicit.following == Following()


def test_help_lists_every_argument() -> None:
    text = inspect.getdoc(backfill) or ""
    for name in ("spark", "source", "target", "progress", *ARGUMENTS):
        assert f"\n    {name}: " in text, name
    options = {option.name for option in all_commands()["export"].params}
    in_python_only = {"transform", "target_options", "resume", "writer"}
    assert set(ARGUMENTS) - in_python_only <= options


def test_error_names_unknown_argument() -> None:
    wrong: Any = {"target_file_byte": 1, "storage": None}
    with pytest.raises(
        TypeError, match="unknown arguments of an export: storage, target_file_byte"
    ):
        backfill(None, source={}, target="/t", progress=False, **wrong)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"table_format": "orc"}, "table_format must be one of"),
        ({"writer": "flink"}, "writer must be one of"),
        ({"compression": "brotli"}, "compression must be one of"),
        ({"commit_bytes": 0}, "commit_bytes must be positive"),
        ({"commit_bytes": "32k"}, "commit_bytes must be a whole number, .*not '32k'"),
        ({"row_group_rows": 1.5}, "row_group_rows must be a whole number"),
        ({"target_file_bytes": True}, "target_file_bytes must be a whole number"),
        ({"follow": True, "round_bytes": "1g"}, "round_bytes must be a whole number"),
        ({"delete_retention_ms": "1d"}, "delete_retention_ms must be a whole number of ms"),
        ({"resume": "false"}, "resume must be True or False, not 'false'"),
        ({"interval": 60}, "interval must be a text"),
        ({"export_id": None}, "export_id must be a text"),
        ({"dead_letters": 5}, "dead_letters must be a folder"),
        ({"partition_by": 5}, "partition_by must be a list of columns, not 5"),
        ({"target_options": "s3"}, "target_options must be a dict"),
        ({"partition_by": "topic"}, "partition_by must be a list"),
        ({"sort_within_files": "key"}, "sort_within_files must be a list"),
        ({"tombstones": "eat"}, "tombstones must be one of"),
        ({"export_id": "a/b"}, "export_id is 'a/b'"),
        ({"export_id": "a" * 161}, "use at most 160 letters"),
        ({"catalog": {}}, "not valid for other targets"),
        ({"table_format": "iceberg"}, "required for an Iceberg table"),
        ({"compact": True, "sort_within_files": ["key"]}, "compact=True cannot be combined"),
    ],
)
def test_invalid_settings_are_refused(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidOptionError, match=match):
        export_settings("/t", **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"transform": str},
        {"sort_within_files": ["key"]},
        {"compression": "gzip"},
        {"target_file_bytes": 1},
        {"replay": True, "dead_letters": "/letters"},
        {"compact": True},
        {"schema_evolution": "add"},
        {"verify": True},
    ],
)
def test_arguments_that_need_files_are_refused_with_writer_spark(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=f"{next(iter(arguments))} is not supported"):
        export_settings("main.shop.orders", writer="spark", **arguments)


@pytest.mark.parametrize(
    "target", ["orders", "s3://bucket/t", "/lake/t", "a..b", ".a.b", "a.b.", "a.`/b`", "a.b c", ""]
)
def test_path_is_refused_as_name_of_a_table(target: str) -> None:
    with pytest.raises(InvalidOptionError, match="must be the name of a table"):
        export_settings(target, writer="spark")


def test_name_of_a_table_is_split_at_dots_outside_of_backquotes() -> None:
    assert name_parts("main.shop.orders") == ("main", "shop", "orders")
    assert name_parts("`my-catalog`.shop.`orders.v2`") == ("my-catalog", "shop", "orders.v2")


def test_table_by_name_without_spark_is_refused() -> None:
    source = {"path": "/t", "subscribe": "t"}
    with pytest.raises(InvalidOptionError, match="needs a Spark session"):
        backfill(None, source=source, target="shop.orders", writer="spark", progress=False)
    assert export_settings("shop.orders", writer="spark").table_format == "delta"


def test_writer_spark_is_refused_for_parquet() -> None:
    with pytest.raises(InvalidOptionError, match="writes Delta and Iceberg tables"):
        export_settings("shop.orders", writer="spark", table_format="parquet")


def test_catalog_is_refused_with_writer_spark() -> None:
    arguments: dict[str, Any] = {"writer": "spark", "table_format": "iceberg"}
    assert export_settings("lake.shop.orders", **arguments).table_format == "iceberg"
    with pytest.raises(InvalidOptionError, match="remove catalog"):
        export_settings("lake.shop.orders", catalog={"type": "sql"}, **arguments)


def test_export_job_contains_no_catalog_credentials() -> None:
    settings = export_settings(
        "lake.rows", table_format="iceberg", catalog={"uri": "x", "password": "hidden-word"}
    )
    assert "hidden-word" not in repr(settings)
    target = WriteTarget("/t", Secret({}), "data/", ".parquet", "file")
    options = parse_options({"path": "/t", "subscribe": "t"})
    job = ExportJob(options, target, "run", settings)
    assert b"hidden-word" not in pickle.dumps(job)
    assert job.settings.table_format == "iceberg"


@pytest.mark.parametrize("seed", range(60))
def test_folder_of_dead_letters_is_refused_if_readers_of_the_table_see_it(
    seed: int, tmp_path: Path
) -> None:
    chooser = random.Random(seed)
    parts = ["a", "b=1", "_bad", ".bad", "..", "a/..", "//", "table", "./"]
    target = str(tmp_path / "table")
    letters = "/".join([target, *chooser.choices(parts, k=chooser.randint(0, 3))])
    for folder in (target, letters):
        Path(folder).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"offset": [1]}), f"{letters}/rejected.parquet")
    is_seen = any(file.endswith("rejected.parquet") for file in ds.dataset(target).files)
    if chooser.random() < 0.3:
        target = Path(target).as_uri()
    if is_seen:
        with pytest.raises(InvalidOptionError, match="rejected rows as rows of the table"):
            export_settings(target, dead_letters=letters)
    else:
        export_settings(target, dead_letters=letters)
    export_settings(target, table_format="delta", dead_letters=letters)


def test_folder_of_dead_letters_in_a_bucket_is_compared_with_the_table() -> None:
    for letters in ("s3://lake/orders", "s3a://lake/orders/bad", "s3://lake//orders/"):
        with pytest.raises(InvalidOptionError, match="Choose another folder"):
            export_settings("s3://lake/orders/", dead_letters=letters)
    for letters in ("s3://lake/orders-bad", "s3://lake/orders/_bad", "s3://lake", "lake/orders"):
        export_settings("s3://lake/orders", dead_letters=letters)
