"""Tests `where` on fields of decoded keys and values, in each mode and for each format."""

from __future__ import annotations

import json
import logging
import pickle
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import InvalidOptionError, InvalidValueError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task_metrics import read_metrics
from kts_source.read.value_decoders import value_decoder
from kts_source.tier import open_tier
from tests.kts_source.read.test_json_rows import as_json
from tests.kts_source.read.test_json_rows import value as json_value
from tests.kts_source.read.typed_tier import SCHEMA, as_avro, avro, text, write
from tests.schema_registry import PASSWORD, USER, Registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

    from kts_source.options.value_formats import ColumnFormat
    from segment_format.values.decoded import DecodedValues

BAD = {3: b"\x05", 17: b"", 25: avro(25) + b"x", 27: text("CH") + b"\x80"}
"""Maps the offset of each invalid value in partition 0 to the value. At 27 the amount is truncated.
The value at 25 is complete, but followed by extra bytes, which every decoder rejects.
"""


@pytest.fixture
def good(tmp_path: Path) -> dict[str, str]:
    values: list[bytes | None] = [avro(number) for number in range(30)]
    values[4] = None
    return write(tmp_path / "tier", [values, [avro(100)]])


@pytest.fixture
def damaged(tmp_path: Path) -> dict[str, str]:
    values: list[bytes | None] = [BAD.get(number, avro(number)) for number in range(30)]
    values[4] = None
    return write(tmp_path / "tier", [values, [avro(100)]])


def offsets(options: dict[str, str], where: str) -> list[int]:
    """Returns the offsets of the rows that match `where`, after checking that the option `where`
    and the method `Scan.where` return the same rows.
    """
    by_option: list[int] = (
        kts_source.scan(options | {"where": where}).to_table()["offset"].to_pylist()
    )
    assert kts_source.scan(options).where(where).to_table()["offset"].to_pylist() == by_option
    assert kts_source.scan(options).where(where).count() == len(by_option)
    return by_option


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("value.country = 'DE' AND value.amount > 10 AND offset > 5", [12, 15, 18, 21, 24, 27]),
        ("value.amount = 7 OR offset = 4 OR partition = 1", [4, 7, 0]),
        ("value.amount IS NULL", [4]),
        ("value IS NULL OR value.note = 'n6'", [4, 6]),
        ("NOT value.amount < 29", [29, 0]),
        ("value.amount IN (3, 3.5, NULL, 1e1)", [3, 10]),
        ("VALUE.Amount BETWEEN 4 AND 5.5", [5]),
        ("value.amount = offset AND key = 'k9'", [9]),
        ("value.note LIKE 'n_2' OR startswith(value.note, 'n28')", [12, 22, 28]),
        ("value.day = '1970-01-09' OR value.day = DATE '1970-01-10'", [8, 9]),
        ("value.at = timestamp AND value.at < TIMESTAMP '2023-11-14 22:13:20.002Z'", [0, 1]),
        ("value.local < '1970-01-01 00:00:00.000002'", [0, 1]),
        ("value.price = 2.56 AND value.amount > 28.5", [29, 0]),
        ("value.amount < 9999999999999999999999 AND value.amount > 28", [29, 0]),
        # At offset 4, amount is null: it is not smaller than a number beyond the range of bigint.
        ("value.amount < 99999999999999999999 AND offset BETWEEN 3 AND 5", [3, 5]),
        ("false OR value.amount > 99999999999999999999.5", []),
    ],
)
def test_rows_are_filtered_by_fields(good: dict[str, str], where: str, expected: list[int]) -> None:
    assert offsets(good | as_avro(), where) == expected


def test_condition_may_name_unselected_fields(good: dict[str, str]) -> None:
    options = good | as_avro(where="value.amount > 27", **{"value.columns": "country"})
    table = kts_source.scan(options).to_table()
    assert table["value"].to_pylist() == [{"country": "CH"}, {"country": "CH"}, {"country": "CH"}]
    narrow = kts_source.scan(options | {"columns": "key"})
    assert narrow.to_table().to_pydict() == {"key": [b"k28", b"k29", b"k0"]}
    assert narrow.to_table().schema == narrow.schema


def test_rows_are_filtered_by_key_fields(tmp_path: Path) -> None:
    options = write(tmp_path, [[avro(number) for number in range(30)]])
    fixed = json.dumps({"type": "fixed", "name": "F", "size": 2})
    options |= as_avro(**{"key.format": "avro", "key.schema": fixed, "key.mode": "DROPMALFORMED"})
    # Keys that are not two bytes long are invalid, so their rows are dropped.
    assert offsets(options, "key = 'k7' OR value.amount = 8") == [7, 8]


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("value.nope = 1", "no field 'nope'"),
        ("value.country.x = 1", "field 'country' is a string"),
        ("value.tags IS NULL", "value.tags is a map"),
        ("value = 'x'", "compares a struct"),
        ("value.country = 5", "must be text or bytes"),
        ("value.amount = '5'", "must be a whole number"),
        ("value.country = value.amount", "compares bytes with a whole number"),
        ("value.at > value.local", "compares a timestamp with a timestamp without a zone"),
        ("value.local > TIMESTAMP '2024-01-01 00:00:00Z'", "must be a timestamp without a zone"),
        ("value.local > '2024-01-01 00:00:00Z'", "compared with a timestamp without a time zone"),
        ("value.day > TIMESTAMP '2024-01-01 00:00:00Z'", "must be a date"),
        ("value.day > '20240101'", "not a date"),
        ("value.country", "not a condition"),
        ("offset > 1.5", "must be a whole number"),
        ("CAST(value.amount AS STRING) = '5'", "not supported"),
        ("value.amount + 1 > 5", "not supported"),
        ("key.x = 1", "key.format"),
        ("value.amount > 123456789012345678901234567890123456789", "more than 38 digits"),
        ("value.amount > 1e999", "too large for a double"),
        ("value.tags['k'] IS NULL", "not supported"),
    ],
)
def test_error_about_unsupported_condition_states_the_reason(
    good: dict[str, str], where: str, named: str
) -> None:
    with pytest.raises(InvalidOptionError, match=named):
        kts_source.scan(good | as_avro(where=where))
    with pytest.raises(InvalidOptionError, match=named):
        kts_source.scan(good | as_avro()).where(where)


def test_condition_on_offset_and_field_narrows_plan_by_offset(good: dict[str, str]) -> None:
    full_plan = plan_scan(parse_options(good | as_avro(where="value.amount = 25")))
    plan = plan_scan(parse_options(good | as_avro(where="value.amount = 25 AND offset >= 20")))
    assert [len(scan_plan.tasks[0].slices) for scan_plan in (full_plan, plan)] == [4, 1]


def test_failfast_raises_for_malformed_condition_field(damaged: dict[str, str]) -> None:
    options = damaged | as_avro()
    # Rows that other conditions exclude are not decoded.
    assert offsets(options, "value.country = 'CH' AND offset > 25 AND offset < 27") == [26]
    with pytest.raises(InvalidValueError) as raised:
        kts_source.scan(options).where("value.amount = 29 AND offset > 4").to_table(threads=1)
    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("orders", 0, 17)
    first = kts_source.scan(options).where("value.amount >= 0").limit(3).to_table()
    assert first["offset"].to_pylist() == [0, 1, 2]


def test_failfast_raises_for_malformed_field_only_if_its_row_matches_the_condition(
    tmp_path: Path,
) -> None:
    # The field `note` is not UTF-8. This has no effect on scans that decode only `country`.
    bad = avro(2).replace(b"n2", b"\xff2")
    options = write(tmp_path, [[avro(0), bad, avro(3)]]) | as_avro()
    assert offsets(options, "value.country = 'DE'") == [0, 2]
    with pytest.raises(InvalidValueError, match="note") as raised:
        kts_source.scan(options).where("value.country = 'CH'").to_table()
    assert raised.value.offset == 1


def test_permissive_treats_malformed_values_as_null_in_conditions(damaged: dict[str, str]) -> None:
    options = damaged | as_avro(**{"value.mode": "PERMISSIVE"})
    # A malformed value and all its fields are null, whichever fields are selected.
    scan = kts_source.scan(options | {"value.columns": "country"}).where("value.amount IS NULL")
    rows_by_offset = {row["offset"]: row for row in scan.to_table().to_pylist()}
    assert list(rows_by_offset) == [3, 4, 17, 25, 27]
    assert all(row["value"] is None for row in rows_by_offset.values())
    assert [offset for offset, row in rows_by_offset.items() if row["valueError"] is None] == [4]
    assert rows_by_offset[27]["valueError"].startswith("amount: ")
    assert offsets(options, "value.amount > 23") == [24, 26, 28, 29, 0]


def test_permissive_keeps_matching_rows_with_malformed_fields_outside_condition(
    tmp_path: Path,
) -> None:
    bad = avro(2).replace(b"n2", b"\xff2")
    options = write(tmp_path, [[avro(0), bad, avro(3)]])
    options |= as_avro(**{"value.mode": "PERMISSIVE"})
    (row,) = kts_source.scan(options).where("value.country = 'CH'").to_table().to_pylist()
    assert (row["offset"], row["value"]) == (1, None)
    assert row["valueError"].startswith("note: ")
    # The number of rows does not depend on the selected columns.
    assert offsets(options, "value.country = 'CH'") == [1]
    assert offsets(options | {"columns": "offset"}, "value.country = 'CH'") == [1]


def test_dropmalformed_skips_rows_with_malformed_condition_fields(
    damaged: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = damaged | as_avro(**{"value.mode": "DROPMALFORMED"})
    assert offsets(options, "value.amount IS NULL OR value.amount > 23") == [4, 24, 26, 28, 29, 0]
    options |= {"metricsPath": str(tmp_path / "metrics"), "where": "value.amount >= 0"}
    with caplog.at_level(logging.WARNING):
        kts_source.scan(options).to_table()
    assert "rows cannot be decoded and are skipped: " in caplog.text
    assert sum(
        task_metrics.malformed for task_metrics in read_metrics(str(tmp_path / "metrics"), {})
    ) == len(BAD)


def test_dropmalformed_skips_rows_with_malformed_unselected_condition_field(tmp_path: Path) -> None:
    values = [avro(1), avro(2).replace(b"n2", b"\xff2"), avro(3)]
    options = write(tmp_path, [[*values]])
    options |= as_avro(**{"value.mode": "DROPMALFORMED", "value.columns": "country"})
    assert offsets(options, "value.note IS NULL") == [0, 2]
    assert offsets(options, "value.country = 'CH'") == [0, 1]


def test_malformed_rows_are_rejected_in_both_passes(
    damaged: dict[str, str],
) -> None:
    options = parse_options(damaged | as_avro(where="value.amount >= 24", columns="offset,value"))
    (task, *_) = plan_scan(options).tasks
    aside: dict[int, str] = {}

    def set_aside(batch: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        aside.update({batch["offset"][row].as_py(): text for row, text in reasons.items()})

    with closing(open_tier(options)) as tier:
        source = SegmentSource(tier, options.key_ring)
        settings = ReadSettings.of(options)
        batches = list(read_task(task, source, settings, set_aside=set_aside))
    assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == [
        24,
        26,
        28,
        29,
        0,
    ]
    assert list(aside) == [3, 17, 25, 27]
    assert aside[27].startswith("value: amount: ")


def test_rows_are_filtered_by_json_fields_of_inferred_type(tmp_path: Path) -> None:
    options = write(tmp_path, [[json_value(number) for number in range(30)]])
    options |= {"value.format": "json"}
    # `scan` has inferred the types before `where` parses the condition.
    table = kts_source.scan(options).where("value.user.id = 7 AND offset < 9").to_table()
    assert table["offset"].to_pylist() == [7]
    with pytest.raises(InvalidOptionError, match=r"needs option 'value\.schema'"):
        kts_source.scan(options | {"where": "value.user.id = 7"})
    # The type of one column is inferred from a sample; the condition is on the other column.
    options |= {"key.format": "utf8", "value.columns": "amount"}
    both = {"key.format": "avro", "key.schema": '{"type": "fixed", "name": "F", "size": 2}'}
    both |= {"key.mode": "DROPMALFORMED", "where": "key = 'k7'"}
    assert kts_source.scan(options | both).to_table()["value"].to_pylist() == [{"amount": 7}]


def test_rows_are_filtered_by_json_fields(tmp_path: Path) -> None:
    options = write(tmp_path, [[json_value(number) for number in range(30)]]) | as_json()
    assert offsets(options, "value.user.id = 7 OR value.`user`.`ID` = 9") == [7, 9]
    assert offsets(options, "value.country = 'Dé' AND value.price >= 2.5 AND offset < 4") == [0, 3]
    assert offsets(options, "value.user IS NOT NULL AND value.amount < 2") == [0, 1]
    with pytest.raises(InvalidOptionError, match=r"value\.user\.tags is a map"):
        kts_source.scan(options).where("value.user.tags IS NOT NULL")


def test_field_names_that_differ_in_case_are_distinct(tmp_path: Path) -> None:
    options = write(tmp_path, [[b'{"a": 1, "A": 2}']])
    options |= {"value.format": "json", "value.schema": "a int, A int"}
    with pytest.raises(InvalidOptionError, match="differ only in case"):
        kts_source.scan(options).where("value.a = 1")


def test_rows_are_filtered_by_quoted_field_names_with_dots(tmp_path: Path) -> None:
    texts = [b'{"a.b": 1, "a": {"b": 2}}', b'{"a.b": 2, "a": {"b": 1}}']
    options = write(tmp_path, [[*texts]])
    options |= {"value.format": "json", "value.schema": "`a.b` int, a struct<b: int>"}
    assert offsets(options, "value.`a.b` = 1") == [0]
    assert offsets(options, "value.a.b = 1") == [1]
    assert offsets(options, "value.a.b = 1 AND value.`a.b` = 2") == [1]


def test_rows_are_filtered_by_union_members(tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "u", "type": ["int", "string"]}, {"name": "x", "type": "int"}],
    }
    options = write(tmp_path, [[b"\x00\x04\x02", b"\x02\x02a\x04", b"\x00\x06\x06"]])
    options |= {"value.format": "avro", "value.schema": json.dumps(schema)}
    assert offsets(options, "value.u.member0 = 3 OR value.u.member1 = 'a'") == [1, 2]


def test_rows_are_filtered_by_fields_of_a_recursive_message(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2 as d

    file = d.FileDescriptorProto(name="node.proto", syntax="proto3")
    message = file.message_type.add(name="Node")
    message.field.add(name="id", number=1, type=5, label=1)
    message.field.add(name="next", number=2, type=11, type_name=".Node", label=1)
    descriptors = tmp_path / "node.desc"
    descriptors.write_bytes(d.FileDescriptorSet(file=[file]).SerializeToString())
    options = write(tmp_path / "tier", [[b"\x08\x01", b"\x08\x02\x12\x02\x08\x03"]])
    options |= {"value.format": "protobuf", "value.schema": str(descriptors)}
    options |= {"value.message": "Node", "value.columns": "id"}
    assert offsets(options, "value.id = 2") == [1]
    with pytest.raises(InvalidOptionError, match="contains itself"):
        kts_source.scan(options).where("value.next IS NULL")


def test_rows_are_filtered_by_scalar_values(tmp_path: Path) -> None:
    options = write(tmp_path, [[b"\x02", b"\x04", None]])
    options |= {"value.format": "avro", "value.schema": '"long"'}
    assert offsets(options, "value > 1") == [1]
    assert offsets(options, "value IS NULL") == [2]


def test_excluded_rows_decode_only_the_fields_of_the_condition(
    good: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[tuple[str, ...] | None, int]] = []

    class Counting:
        def __init__(self, form: ColumnFormat) -> None:
            self._form = form

        def decode(self, values: pa.Array) -> DecodedValues:
            decoded.append((self._form.fields, len(values)))
            return value_decoder(self._form).decode(values)

    monkeypatch.setattr("kts_source.read.typed_rows.value_decoder", Counting)
    kts_source.scan(good | as_avro()).where("value.amount = 7").to_table(threads=1)
    rows: dict[tuple[str, ...] | None, int] = {}
    for fields, count in decoded:
        rows[fields] = rows.get(fields, 0) + count
    assert rows == {("amount",): 31, None: 1}


def test_registry_receives_one_request_per_schema_id(tmp_path: Path) -> None:
    values = [b"\0\0\0\0\x07" + avro(number) for number in range(20)]
    server = Registry({"/schemas/ids/7": {"schema": json.dumps(SCHEMA)}})
    with server.serving():
        url = server.url.replace("//", f"//{USER}:{PASSWORD}@")
        options = write(tmp_path, [[*values]]) | as_avro()
        options |= {"value.format": "avro-confluent", "value.schema-registry.url": url}
        table = kts_source.scan(options).where("value.amount > 15").to_table()
    assert table["offset"].to_pylist() == [16, 17, 18, 19]
    assert len(server.asked) == 1


def test_scan_with_field_condition_can_be_pickled(good: dict[str, str]) -> None:
    scan = kts_source.scan(good | as_avro()).where("value.price > 1.5 AND value.amount > 1.5e1")
    again = pickle.loads(pickle.dumps(scan))
    assert again.to_table().equals(scan.to_table())
    assert repr(again) == repr(scan)
