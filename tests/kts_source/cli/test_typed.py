"""Tests `kts cat`, `kts schema` and `kts verify` with typed values, and the conversion of typed
values to JSON.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from kts_source.cli.app import main
from kts_source.cli.output import json_values
from tests.kts_source.read.typed_tier import SCHEMA, avro, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_cat_prints_fields_of_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = write(tmp_path / "tier", [[avro(0), None, b"\x05"]])
    schema = tmp_path / "order.avsc"
    schema.write_text(json.dumps(SCHEMA))
    arguments = ["cat", options["path"], options["subscribe"], "--value-format", "avro"]
    arguments += ["--value-schema", str(schema), "--key-format", "utf8"]
    assert main([*arguments, "--value-mode", "permissive"]) == 0
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(first)[:3] == ["key", "value", "topic"]
    assert first["key"] == "k0"
    assert first["value"] == {
        "country": "DE",
        "amount": 0,
        "at": "2023-11-14T22:13:20.000000+00:00",
        "local": "1970-01-01T00:00:00.000000",
        "note": "n0",
        "tags": {"k": [{"base64": "/wE="}]},
        "price": "2.56",
        "day": "1970-01-01",
    }
    assert second["value"] is None
    assert second["valueError"] is None
    assert third["value"] is None
    assert third["valueError"].startswith("country: ")
    assert main(arguments) == 4
    assert "offset 2" in capsys.readouterr().err
    assert main([*arguments, "--format", "raw"]) == 2
    assert "--format raw needs values as bytes" in capsys.readouterr().err


def test_schema_command_infers_json_schema_that_cat_accepts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values: list[bytes | None] = [b'{"id": 1, "tags": ["a"]}', b'{"id": 2, "x y": {"z": 1.5}}']
    options = write(tmp_path / "tier", [values])
    location = [options["path"], options["subscribe"], "--value-format", "json"]
    assert main(["schema", *location]) == 0
    ddl = capsys.readouterr().out
    assert ddl == "id bigint, tags array<string>, `x y` struct<z: double>\n"
    file = tmp_path / "order.ddl"
    file.write_text(ddl)
    for schema_option in ([], ["--value-schema", str(file)]):
        assert main(["cat", *location, *schema_option, "--columns", "value,valueRaw"]) == 0
        _, last = map(json.loads, capsys.readouterr().out.splitlines())
        assert last["value"] == {"id": 2, "tags": None, "x y": {"z": 1.5}}
        assert json.loads(last["valueRaw"]) == {"id": 2, "x y": {"z": 1.5}}
    assert main(["cat", *location, "--limit", "0"]) == 0
    schema = {"properties": {"id": {"type": "integer"}}, "required": ["id"]}
    assert main(["schema", *location, "--value-schema", json.dumps(schema)]) == 0
    assert capsys.readouterr().out == "id bigint not null\n"


def test_schema_command_prints_types_of_binary_avro_and_utf8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write(tmp_path / "tier", [[avro(0)]])
    arguments = ["schema", options["path"], options["subscribe"]]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"key": "binary", "value": "binary"}
    arguments += ["--value-format", "avro", "--value-schema", json.dumps(SCHEMA)]
    assert main([*arguments, "--value-columns", "price,tags", "--key-format", "utf8"]) == 0
    assert capsys.readouterr().out == "tags map<string,array<binary>>, price decimal(6,2)\n"
    assert main([*arguments, "--key-format", "utf8", "--of", "key"]) == 0
    assert capsys.readouterr().out == "string\n"


def test_schema_escapes_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    options = write(tmp_path / "tier", [[rb'{"a\u001b[2J\nb": 1}']])
    arguments = ["schema", options["path"], options["subscribe"], "--value-format", "json"]
    with caplog.at_level(logging.INFO):
        assert main(arguments) == 2
    assert "\nb" not in caplog.text
    captured = capsys.readouterr()
    assert "--json" in captured.err
    assert "\x1b" not in captured.out + captured.err
    assert main([*arguments, "--json"]) == 0
    assert "\x1b" not in (out := capsys.readouterr().out)
    assert json.loads(out)["value"] == "`a\x1b[2J\nb` bigint"


def test_schema_command_fails_if_no_schema_can_be_inferred(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write(tmp_path / "tier", [[None]])
    arguments = ["schema", options["path"], options["subscribe"], "--value-format", "json"]
    assert main(arguments) == 2
    assert "needs option --value-schema: no type can be inferred" in capsys.readouterr().err


def test_verify_command_accepts_values_that_cannot_be_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = write(tmp_path / "tier", [[avro(0), b"\x05"]])
    arguments = ["verify", options["path"], options["subscribe"], "--value-format", "avro"]
    arguments += ["--value-schema", json.dumps(SCHEMA), "--value-mode", "DROPMALFORMED", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 2


def test_json_output_supports_values_that_python_types_cannot_represent() -> None:
    far = pa.array([2**62, None], pa.int64())
    assert json_values(far.view(pa.timestamp("us", tz="UTC"))) == [
        "+148108-07-06T14:00:27.387904+00:00",
        None,
    ]
    assert json_values(pa.array([-(2**31)], pa.int32()).view(pa.date32())) == ["-5877641-06-23"]
    assert json_values(pa.array([float("nan"), 1.5, None])) == ["nan", 1.5, None]
    struct = pa.array([{"a": [None, {"b": 1}]}, None, {"a": None}])
    assert json_values(struct.slice(0, 2)) == [{"a": [None, {"b": 1}]}, None]
