"""Tests values with the header of Apicurio's serializers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from segment_format.values.avro.decoder import FramedAvroDecoder
from segment_format.values.avro.schema import parse_avro
from segment_format.values.registry_framing import APICURIO, AS_JSON, JSON_TEXT, OTHER_IDS

LARGE = (1 << 40) + 5
SCHEMAS = {7: parse_avro('"int"'), LARGE: parse_avro('["null", "long"]')}


def framed(schema_id: int, content: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(8, "big", signed=True) + content


def test_apicurio_values_decode_or_are_bad_rows_with_a_reason() -> None:
    decoder = FramedAvroDecoder(parse_avro('["null", "long"]'), SCHEMAS.__getitem__, APICURIO)
    assert decoder.type == pa.int64()
    cases: list[tuple[bytes | None, int | None, str]] = [
        (framed(7, b"\x0e"), 7, ""),
        (framed(LARGE, b"\2\x12"), 9, ""),
        (framed(LARGE, b"\0"), None, ""),
        (None, None, ""),
        (framed(8, b"\x0e"), None, "schema 8"),
        (b"\0\0\0\0\7\x0e", None, "8 bytes"),
        (framed(7, b"\x0e")[:8], None, "8 bytes"),
        (b"\1" + framed(7, b"\x0e")[1:], None, "8 bytes"),
        (framed(0, b"\x0e"), None, "8 bytes"),
        (framed(-(1 << 63), b"\x0e"), None, "8 bytes"),
        (framed(OTHER_IDS, b"\x0e"), None, "use-id"),
        (framed(AS_JSON, b"\x0e"), None, JSON_TEXT),
        (framed(7, b'{"a":1}'), None, JSON_TEXT),
        (framed(7, b"\x0e\x0e"), None, "after the end"),
    ]
    result = decoder.decode(
        pa.array([b"before", *(case[0] for case in cases)], pa.binary()).slice(1)
    )
    result.array.validate(full=True)
    assert result.array.to_pylist() == [value for _, value, _ in cases]
    reasons = {bad.row: bad.reason for bad in result.bad}
    assert list(reasons) == [row for row, (_, _, reason) in enumerate(cases) if reason]
    for row, reason in reasons.items():
        assert cases[row][2] in reason


def test_apicurio_input_that_is_not_binary_raises() -> None:
    decoder = FramedAvroDecoder(parse_avro('"int"'), SCHEMAS.__getitem__, APICURIO)
    with pytest.raises(TypeError, match="binary"):
        decoder.decode(pa.array(["x"]))
    assert decoder.decode(pa.array([], pa.binary())).array.type == pa.int32()
