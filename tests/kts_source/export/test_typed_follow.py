"""Tests exports that decode record values, most of them with `follow`: new fields in the schema, a
killed run, and outages of the schema registry.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from kts_source.cli.app import main
from kts_source.errors import InvalidOptionError, SchemaChangedError
from kts_source.registry.client import RETRY
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.test_evolution import of_schema, topic, values_of
from tests.kts_source.export.test_follow import Driven
from tests.kts_source.read.typed_tier import OLD, SCHEMA, TOPIC, avro, write
from tests.schema_registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["topic"]


def write_values(folder: Path, count: int) -> None:
    """Writes a topic with `count` values. The first ten have the first schema. The later values
    have the second schema, which contains a new field.
    """
    values: list[bytes | None] = [b"\0\0\0\0\1" + avro(n, old=True) for n in range(10)]
    values += [b"\0\0\0\0\2" + avro(number) for number in range(10, count)]
    write(folder / "tier", [values])


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_follow_adds_new_schema_fields_to_the_table(
    table_format: str, topic: dict[str, str], tmp_path: Path
) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(OLD))
    lake = Lake(tmp_path, table_format)

    def gain() -> None:
        schema.write_text(json.dumps(SCHEMA))
        write_values(tmp_path, 30)

    driven = Driven([gain, lambda: None])
    report = driven.run(
        lake, topic | {"value.schema": str(schema)}, schema_evolution="add", round_bytes=1 << 30
    )
    assert (report.rows, driven.outcomes) == (30, ["done", "done", "idle"])
    values = values_of(lake)
    assert [value["day"] is None for value in values] == [True] * 20 + [False] * 10


def test_follow_raises_schema_changed_error_without_schema_evolution(
    topic: dict[str, str], tmp_path: Path
) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(OLD))
    lake = Lake(tmp_path, "delta")
    driven = Driven([lambda: schema.write_text(json.dumps(SCHEMA))])
    with pytest.raises(SchemaChangedError):
        driven.run(lake, topic | {"value.schema": str(schema)}, round_bytes=1 << 30)
    assert driven.outcomes == ["done", "SchemaChangedError"]
    assert len(values_of(lake)) == 20


def test_kts_export_command_writes_decoded_values_to_delta_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write(tmp_path / "tier", [[avro(n) if n != 3 else b"" for n in range(12)]])
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(SCHEMA))
    arguments = ["export", options["path"], TOPIC, str(tmp_path / "table"), "--workers", "1"]
    arguments += ["--value-format", "avro", "--value-schema", str(schema), "--json"]
    arguments += ["--table-format", "delta", "--partition-by", "value.country"]
    arguments += ["--sort-within-files", "value.amount"]
    assert main(arguments) == 4
    assert "offset 3" in capsys.readouterr().err
    arguments += ["--dead-letters", str(tmp_path / "letters"), "--schema-evolution", "add"]
    arguments += ["--max-rejected", "10%"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["rejected"]) == (11, 1)
    countries = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["value_country"].to_pylist()
    assert sorted(countries) == ["CH"] * 8 + ["DE"] * 3


def die_between_column_and_data_commit(lake: Lake, options: dict[str, str]) -> None:
    """Runs an export that kills its process after it commits the new columns and before it commits
    the data.
    """

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    table: Any = DeltaTable
    table.create_write_transaction = die
    lake.export(options, schema_evolution="add")


def test_export_killed_after_adding_columns_is_completed_by_next_run(
    topic: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "delta")
    lake.export(of_schema(topic, OLD, 10))
    later = of_schema(topic, SCHEMA)
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=die_between_column_and_data_commit, args=(lake, later))
    child.start()
    child.join(120)
    assert child.exitcode == -signal.SIGKILL
    assert DeltaTable(lake.target).version() == 1
    assert [value["day"] for value in values_of(lake)] == [None] * 10
    # The table already has the columns, so the run adds none.
    assert lake.export(later).rows == 10
    assert DeltaTable(lake.target).version() == 2
    assert [value["day"] is None for value in values_of(lake)] == [True] * 10 + [False] * 10


def test_follow_waits_for_unavailable_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The registry is unavailable before the first round, and again in the round that reads a new
    schema id.
    """
    monkeypatch.setattr("kts_source.registry.client.RETRY", replace(RETRY, max_attempts=1))
    server = Registry(
        {
            f"/schemas/ids/{number}": {"schema": json.dumps(schema)}
            for number, schema in ((1, OLD), (2, SCHEMA))
        }
    )
    server.documents["/subjects/orders-value/versions/latest"] = {
        "id": 2, "schema": json.dumps(SCHEMA),
    }  # fmt: skip
    server.authorization = None
    values: list[bytes | None] = [framed(1, avro(number, old=True)) for number in range(10)]
    options = write(tmp_path / "tier", [values]) | {
        "value.format": "avro-confluent",
        "value.schema-registry.url": server.url,
    }

    def new_writer_and_outage() -> None:
        write(tmp_path / "tier", [[*values, *(framed(2, avro(n)) for n in range(10, 15))]])
        # The registry returns the latest version, but not the schema of the new values.
        server.failing = [200, 503]

    server.failing = [503] * 3  # for the check and for two rounds
    lake = Lake(tmp_path, "delta")
    driven = Driven([lambda: None, lambda: None, new_writer_and_outage, lambda: None])
    with server.serving(), caplog.at_level(logging.WARNING):
        report = driven.run(lake, options, round_bytes=1 << 30)
    down = "RegistryUnavailableError"
    assert driven.outcomes == [down, down, "done", down, "done"]
    assert driven.pauses == [60.0] * 5
    assert report.rows == 15
    assert [value["amount"] for value in values_of(lake)] == list(range(15))
    assert "round 0 is retried in 60 s: the registry does not answer" in caplog.text
    assert "round 3 is retried in 60 s: the registry does not answer" in caplog.text


def test_follow_refuses_invalid_source_options_after_registry_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kts_source.registry.client.RETRY", replace(RETRY, max_attempts=1))
    latest = {"id": 1, "schema": json.dumps(SCHEMA)}
    server = Registry({"/subjects/orders-value/versions/latest": latest})
    server.authorization = None
    server.failing = [503, 503]
    options = write(tmp_path / "tier", [[framed(1, avro(1))]]) | {
        "value.format": "avro-confluent",
        "value.schema-registry.url": server.url,
        "endingOffsets": '{"orders": {"0": 1}}',
    }
    driven = Driven([lambda: None])
    with server.serving(), pytest.raises(InvalidOptionError, match="endingOffsets"):
        driven.run(Lake(tmp_path, "delta"), options)
    assert driven.outcomes == ["RegistryUnavailableError", "InvalidOptionError"]


def framed(schema_id: int, value: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + value
