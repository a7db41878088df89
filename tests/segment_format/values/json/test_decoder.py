"""Tests the error of a bad row, rejected types, and limits for hostile values."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from segment_format.values.json import contract as c
from segment_format.values.json import decoder as batch
from segment_format.values.json.decoder import JsonDecoder
from tests.segment_format.kernels.test_memory_safety import GuardedPages
from tests.segment_format.values.json import oracle
from tests.segment_format.values.json.test_equal_to_oracle import SAMPLE, SAMPLE_TYPE, check

NESTED = pa.struct(
    [
        ("id", pa.int64()),
        pa.field("user", pa.struct([("name", pa.string()), pa.field("age", pa.int32())])),
        ("tags", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.struct([("x", pa.bool_())]))),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("bin", pa.binary()),
        ("d", pa.decimal128(5, 2)),
    ]
)


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        (b"", "", "the text ends too early (byte 0)"),
        (b'{"id":', "id", "the text ends too early (byte 6)"),
        (b'{"id":"1"}', "id", "expected a number for int64, not a string (byte 6)"),
        (b'{"id":true}', "id", "expected a number for int64, not a boolean (byte 6)"),
        (b'{"user":[]}', "user", "expected an object, not an array (byte 8)"),
        (b'{"user":{"age":1.5}}', "user.age",
         "the number has a fraction or more digits than int32 can represent (byte 15)"),
        (b'{"user":{"age":3e9}}', "user.age", "the number is too large for int32 (byte 15)"),
        (b'{"user":{"name":"\\x"}}', "user.name",
         "a string has an invalid escape (byte 16)"),
        (b'{"tags":["a",2]}', "tags", "expected a string for string, not a number (byte 13)"),
        (b'{"tags":["a" "b"]}', "tags", "a comma or the closing bracket must follow (byte 13)"),
        (b'{"m":{"k":{"x":"y"}}}', "m.x", "expected a boolean for bool, not a string (byte 15)"),
        (b'{"m":{"k" 1}}', "m", "a colon must follow the name of a field (byte 10)"),
        (b'{"other":[1,}', "", "no JSON value starts here (byte 12)"),
        (b'{"id":1}}', "", "bytes follow the value (byte 8)"),
        (b'\xef\xbb\xbf{}', "", "expected an object, not something else (byte 0)"),
        (b'{"day":"2023-02-29"}', "day", "a date must be YYYY-MM-DD (byte 7)"),
        (b'{"at":"2023-02-28T00:00"}', "at",
         "the timestamp has no time zone; use type timestamp_ntz (byte 6)"),
        (b'{"local":"2023-02-28T00:00Z"}', "local",
         "the timestamp has a time zone; use type timestamp (byte 9)"),
        (b'{"bin":"abc"}', "bin", "a binary value must be base64 with padding (byte 7)"),
        (b'{"d":1000}', "d", "the number is too large for decimal128(5, 2) (byte 5)"),
        (b'{"user":{"name":"\\ud800"}}', "user.name",
         "a string has half a surrogate pair (byte 16)"),
        (b'{"user":{"name":"\xff"}}', "user.name", "a string is not UTF-8 (byte 16)"),
        (b'{"user":{"name":"\n"}}', "user.name",
         "a string has a control character that is not escaped (byte 16)"),
    ],
)  # fmt: skip
def test_bad_row_reports_path_and_reason(text: bytes, path: str, reason: str) -> None:
    values = [b'{"id":7}', text, None, b'{"id":8}']
    result = JsonDecoder(NESTED).decode(pa.array(values, pa.binary()))
    (bad,) = result.bad
    assert (bad.row, bad.path, bad.reason) == (1, path, reason)
    assert result.array.is_valid().to_pylist() == [True, False, False, True]
    assert [row and row["id"] for row in result.array.to_pylist()] == [7, None, None, 8]


def test_value_does_not_continue_in_the_bytes_of_the_next_row() -> None:
    """An incomplete value is bad even if it would be complete together with the bytes of the next
    row.
    """
    values = [b'{"a":1,"b":2}', b'{"a":1', b',"b":2}', b'{"a":3,"b', b'":4}', b'{"a":5,"b":', b"6}"]
    for kind in (pa.struct([("a", pa.int32()), ("b", pa.int32())]), pa.struct([])):
        result = JsonDecoder(kind).decode(pa.array(values, pa.binary()))
        ends = {error.row: error.reason for error in result.bad if error.row % 2}
        assert len(result.bad) == 6
        assert ends[1] == "the text ends too early (byte 6)"
        assert ends[3] == "a string does not end (byte 7)"
        assert ends[5] == "the text ends too early (byte 11)"


def test_null_in_required_field_makes_row_bad() -> None:
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    items = pa.list_(pa.field("element", pa.string(), nullable=False))
    kind = pa.struct([pa.field("a", inner, nullable=False), pa.field("b", items)])
    values = [b'{"a":{"x":1}}', b"{}", b'{"a":null}', b'{"a":{}}', b'{"a":{"x":2},"b":["",null]}']
    values += [b'{"a":{"x":1},"a":{}}', b'{"b":["q"],"a":{"x":3}}']
    result = JsonDecoder(kind).decode(pa.array(values, pa.binary()))
    result.array.validate(full=True)
    missing = "the field may not be null, and is missing"
    null = "the value may not be null"
    assert [(error.row, error.path, error.reason.split(" (")[0]) for error in result.bad] == [
        (1, "a", missing),
        (2, "a", null),
        (3, "a.x", missing),
        (4, "b", null),
        (5, "a.x", missing),
    ]
    assert check(kind, values) == 5


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.int8(), "int8"),
        (pa.struct([("a", pa.list_(pa.uint32()))]), "a: uint32"),
        (pa.struct([("a", pa.struct([("b", pa.time64("us"))]))]), "a.b: time64"),
        (pa.map_(pa.int32(), pa.string()), "map<int32, string>"),
        (pa.timestamp("ms"), "timestamp[ms]"),
        (pa.timestamp("us", "Europe/Zurich"), "timestamp[us, tz=Europe/Zurich]"),
        (pa.large_string(), "large_string"),
        (pa.dictionary(pa.int32(), pa.string()), "dictionary"),
        (pa.decimal256(50, 2), "decimal256"),
        (pa.decimal128(5, -2), "decimal128(5, -2)"),
        (pa.struct([("a", pa.int32()), ("a", pa.int32())]), "same name"),
    ],
)
def test_unsupported_type_raises_with_its_name(kind: pa.DataType, name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(name)):
        JsonDecoder(kind)


def test_too_deep_type_raises() -> None:
    kind = pa.int32()
    for _ in range(101):
        kind = pa.list_(kind)
    with pytest.raises(ValueError, match="100 levels deep"):
        JsonDecoder(kind)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (["nothing"], "there is no field 'nothing'; the fields are id, user"),
        (["user.x"], "there is no field 'user.x'; the fields are name, age"),
        (["id.x"], "field 'id' is a int64, so it has no field 'x'"),
        (["tags.x"], "field 'tags' is a list"),
    ],
)
def test_unknown_column_raises(columns: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        JsonDecoder(NESTED, columns)


def test_columns_keep_the_order_of_the_type() -> None:
    decoder = JsonDecoder(NESTED, ["tags", "user.age", "id"])
    inner = pa.struct([("age", pa.int32())])
    expected = [("id", pa.int64()), ("user", inner), ("tags", pa.list_(pa.string()))]
    assert decoder.type == pa.struct(expected)


def test_json_input_that_is_not_binary_raises() -> None:
    with pytest.raises(TypeError, match="string"):
        JsonDecoder(NESTED).decode(pa.array(["{}"]))


def test_empty_input_and_null_rows_decode() -> None:
    decoder = JsonDecoder(NESTED)
    assert decoder.decode(pa.array([], pa.binary())).array == pa.array([], NESTED)
    result = decoder.decode(pa.array([None, None], pa.binary()))
    assert result.array.null_count == 2
    assert not result.bad
    result = decoder.decode(pa.array([None, b"", None], pa.binary()))
    assert result.array.null_count == 3
    assert [(error.row, error.path) for error in result.bad] == [(1, "")]
    assert [error.row for error in decoder.decode(pa.array([b"", b""])).bad] == [0, 1]


def test_children_of_null_structs_round_trip_through_parquet() -> None:
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False), ("l", pa.list_(pa.string()))])
    kind = pa.struct([("s", inner), ("m", pa.map_(pa.string(), inner)), ("all", SAMPLE_TYPE)])
    values = [b'{"s":{"x":1,"l":["a",null]}}', None, b"{", b'{"m":{"k":null,"j":{"x":3}}}']
    values += [b'{"s":null,"all":' + SAMPLE + b"}", b"{}", b'{"s":{"x":1},"s":null}']
    result = JsonDecoder(kind).decode(pa.array(values, pa.binary())).array
    table = pa.table({"value": result})
    file = pa.BufferOutputStream()
    pq.write_table(table, file)
    assert pq.read_table(pa.BufferReader(file.getvalue())) == table


# --- Hostile values -------------------------------------------------------------------------------


def test_too_deep_value_makes_row_bad() -> None:
    max_depth = c.MAX_DEPTH
    skipped = [
        b'{"x":' + b"[" * depth + b"]" * depth + b"}"
        for depth in (max_depth - 1, max_depth, 100000)
    ]
    result = JsonDecoder(pa.struct([])).decode(pa.array(skipped, pa.binary()))
    assert [error.row for error in result.bad] == [1, 2]
    assert result.bad[0].reason.startswith(
        f"objects and arrays are nested more than {max_depth} deep"
    )
    objects = [b'{"x":' * depth + b"1" + b"}" * depth for depth in (max_depth, max_depth + 1)]
    result = JsonDecoder(pa.struct([])).decode(pa.array(objects, pa.binary()))
    assert [error.row for error in result.bad] == [1]


@pytest.mark.parametrize(
    "text",
    [
        b"1" * (1 << 20),
        b"0." + b"0" * (1 << 20) + b"1",
        b"0." + b"1" * (1 << 20),
        b"1e" + b"9" * (1 << 20),
        b"1" + b"0" * (1 << 20) + b"e-1048576",
        b"9007199254740993." + b"0" * (1 << 20) + b"1",
    ],
    ids=["integer", "small", "fraction", "exponent", "both", "open"],
)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.int64(), pa.decimal128(38, 10)])
def test_megabyte_of_digits_decodes_quickly(text: bytes, kind: pa.DataType) -> None:
    start = time.thread_time()
    result = JsonDecoder(kind).decode(pa.array([text, b"1"], pa.binary()))
    assert time.thread_time() - start < 5
    assert result.array[1].as_py() == 1
    if kind == pa.float64():
        expected = float(text)
        assert result.array[0].as_py() == (None if expected == float("inf") else expected)


def test_unterminated_string_search_stops_at_row_end() -> None:
    """If a search for the end of a string did not end with its row, the test would take hours."""
    values = [b'"'] * 50_000 + [b'{"a":"'] * 50_000
    result = JsonDecoder(pa.string()).decode(pa.array(values, pa.binary()))
    assert len(result.bad) == len(values)


def test_map_of_many_equal_or_long_keys_decodes() -> None:
    count = 50_000
    text = b"{" + b",".join(b'"key%d":%d' % (i % 1000, i) for i in range(count)) + b"}"
    long = b"{" + b",".join(b'"%s%d":%d' % (b"k" * 300, i, i) for i in range(5000)) + b"}"
    kind = pa.map_(pa.string(), pa.int32())
    result = JsonDecoder(kind).decode(pa.array([text, long, text], pa.binary()))
    result.array.validate(full=True)
    for row in (0, 2):
        assert dict(result.array[row].as_py()) == {f"key{i}": count - 1000 + i for i in range(1000)}
    assert len(result.array[1]) == 5000


def test_rows_with_many_different_keys_decode() -> None:
    rows = [b"{%s}" % b",".join(b'"%d":%d' % (i * r, i) for i in range(300)) for r in range(30)]
    result = JsonDecoder(pa.struct([("7", pa.int32())])).decode(pa.array(rows, pa.binary()))
    assert [value["7"] for value in result.array.to_pylist()] == [
        oracle.decoded(row, pa.struct([("7", pa.int32())]))[0]["7"] for row in rows
    ]


def test_items_that_exceed_the_memory_of_a_batch_make_row_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "_MAX_ITEM_BYTES", 100_000)
    kind = pa.list_(pa.struct([(f"f{i}", pa.float64()) for i in range(50)]))
    values = [b"[{}]", b"[" + b"{}," * 100_000 + b"{}]", b'[{"f1":1},{}]']
    result = JsonDecoder(kind).decode(pa.array(values, pa.binary()))
    result.array.validate(full=True)
    assert [(error.row, error.reason) for error in result.bad] == [
        (1, "its arrays and objects exceed the memory limit of a batch (byte 0)")
    ]
    assert len(result.array[2]) == 2


def test_row_that_enlarges_buffers_decodes() -> None:
    """The buffers for items and for unescaped text are enlarged in the middle of a row."""
    rows = []
    for count in (0, 1, 70, 3000, 5, 20_000):
        items = b",".join(b'{"y":[%d,%d],"s":"\\n%d"}' % (i, i, i) for i in range(count))
        rows.append(b'{"x":[%s],"x":[%s]}' % (items[: len(items)], items))
    item = pa.struct([("y", pa.list_(pa.int32())), ("s", pa.string())])
    check(pa.struct([("x", pa.list_(item))]), rows)


def test_decoder_is_thread_safe() -> None:
    decoder = JsonDecoder(SAMPLE_TYPE)
    values = pa.array([SAMPLE, b"{", SAMPLE[:40]] * 300, pa.binary())
    expected = decoder.decode(values)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(decoder.decode(values))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(result.array == expected.array, result.bad == expected.bad) for result in results] == [
        (True, True)
    ] * 4


def read_before_guard_page() -> int:
    """Decodes every prefix of the sample, each ending at a page without access rights."""
    pages = GuardedPages(1 << 16)
    values = [SAMPLE[:size] for size in range(0, len(SAMPLE) + 1, 2)]
    values += [b'"' + b"x" * size for size in range(70)] + [b"1" * size for size in range(40)]
    kinds = (SAMPLE_TYPE, pa.struct([]), pa.string(), pa.float64())
    decoders = [JsonDecoder(kind) for kind in kinds]
    for text in values:
        for decoder in decoders:
            view = pages.ending_with(text * 2)
            ends = pa.array([0, len(text), 2 * len(text)], pa.int32()).buffers()[1]
            data = pa.foreign_buffer(view.ctypes.data, len(text) * 2, pages)
            array = pa.Array.from_buffers(pa.binary(), 2, [None, ends, data])
            decoder.decode(array)
    return len(values)


@pytest.mark.skipif(sys.platform == "win32", reason="mprotect")
def test_decoder_does_not_read_past_the_values() -> None:
    code = f"from {__name__} import read_before_guard_page as run; print(run())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > 200
