"""Tests values with the header of AWS Glue's schema registry."""

from __future__ import annotations

import uuid
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from segment_format.values import registry_framing
from segment_format.values.avro.decoder import FramedAvroDecoder
from segment_format.values.avro.schema import parse_avro
from segment_format.values.registry_framing import AWS_GLUE

if TYPE_CHECKING:
    from segment_format.values.avro.schema import Schema

INT = uuid.UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
TEXT = uuid.UUID("00000000-0000-0000-0000-000000000000")
SCHEMAS = {str(INT): parse_avro('"int"'), str(TEXT): parse_avro('["null", "long"]')}


def framed(writer: uuid.UUID, content: bytes, *, packed: bool = False) -> bytes:
    return b"\3" + (b"\5" if packed else b"\0") + writer.bytes + content


def writer_of(name: str) -> Schema:
    if name not in SCHEMAS:
        raise LookupError("there is none")
    return SCHEMAS[name]


def decoded(values: list[bytes | None]) -> tuple[list[object], dict[int, str]]:
    decoder = FramedAvroDecoder(parse_avro('["null", "long"]'), writer_of, AWS_GLUE)
    assert decoder.type == pa.int64()
    # The offsets of a sliced array do not start at 0.
    array = pa.array([b"before", *values], pa.binary()).slice(1)
    result = decoder.decode(array)
    result.array.validate(full=True)
    return result.array.to_pylist(), {bad.row: bad.reason for bad in result.bad}


@pytest.mark.parametrize("packed", [False, True])
def test_glue_values_decode_by_writer_schema(*, packed: bool) -> None:
    first, second, unknown = b"\x0e", b"\x02\x12", uuid.UUID(int=7)
    if packed:
        first, second = zlib.compress(first), zlib.compress(second)
    values: list[bytes | None] = [
        framed(INT, first, packed=packed),
        None,
        framed(TEXT, second, packed=packed),
        framed(unknown, first, packed=packed),
        b"\3\0short",
        b"\0" + framed(INT, first),
        b"\3\1" + INT.bytes + first,
        b"",
        framed(INT, b"\x10"),
    ]
    rows, bad = decoded(values)
    assert rows == [7, None, 9, *[None] * 5, 8]
    assert bad[3] == f"schema {unknown}: there is none"
    assert sorted(bad) == [3, 4, 5, 6, 7]
    assert all("start with byte 3" in bad[row] for row in (4, 5, 6, 7))


def test_glue_empty_and_null_values_decode() -> None:
    assert decoded([]) == ([], {})
    assert decoded([None, None]) == ([None, None], {})
    with pytest.raises(TypeError, match="not binary"):
        FramedAvroDecoder(SCHEMAS[str(INT)], writer_of, AWS_GLUE).decode(pa.array(["x"]))


def test_glue_invalid_compression_makes_row_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_framing, "MAX_INFLATED_VALUE", 1000)
    monkeypatch.setattr(registry_framing, "MAX_INFLATED_BATCH", 1001)
    good, bomb = zlib.compress(b"\x0e"), zlib.compress(bytes(1 << 20))
    values = [good, bomb, good[:-1], good + b"x", b"no zlib", b"", good]
    rows, bad = decoded([framed(INT, content, packed=True) for content in values])
    assert rows == [7, *[None] * 5, 7]
    assert sorted(bad) == [1, 2, 3, 4, 5]
    assert "exceeds 1,000 bytes" in bad[1]
    many = [framed(INT, zlib.compress(bytes(990)), packed=True)] + [
        framed(INT, good, packed=True)
    ] * 20
    rows, bad = decoded([*many])
    # After the first value (990 bytes), 11 values of one byte reach the limit of 1001 bytes.
    assert [rows[0], *rows[11:13]] == [None, 7, None]
    assert "exceeds 0 bytes" in bad[20]
