"""Tests JSON values after a Confluent header."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from segment_format.values.json.ddl import parse_ddl
from segment_format.values.json.decoder import ConfluentJsonDecoder, JsonDecoder

PLAIN = JsonDecoder(parse_ddl("a string, b array<bigint>"))
DECODER = ConfluentJsonDecoder(PLAIN)
TEXTS = [b'{"a": "x\\n\xc3\xa9", "b": [1, 2]}', b'{"a": "x', b"", b"null", b'{"b": [1.0, 3, null]}']
HEADS = [b"\0\0\0\0\1", b"\0\xff\0\0\0", b"\0\0\0\0\0", b"\2\0\0\0\1", b"\0\0", b""]
GOOD = [*HEADS[:2], b"\1" + bytes(16)]


@pytest.mark.parametrize("seed", range(30))
def test_confluent_json_rows_match_json_rows_without_header(seed: int) -> None:
    chance = random.Random(seed)
    rows: list[tuple[bytes | None, bytes | None]] = []
    for _ in range(chance.randrange(40)):
        head, text = chance.choice([*HEADS, *GOOD]), chance.choice(TEXTS)
        if head in GOOD:
            rows.append((head + text, text))
        elif len(head) == 5:
            rows.append((head + text, None))
        else:
            rows.append((head, None))
        if chance.random() < 0.2:
            rows.append((None, None))
    first, stop = chance.randrange(3), len(rows) - chance.randrange(3)
    values = pa.array([row for row, _ in rows], pa.binary())[first:stop]
    texts = pa.array([row for _, row in rows], pa.binary())[first:stop]
    result, expected = DECODER.decode(values), PLAIN.decode(texts)
    result.array.validate(full=True)
    assert result.array.equals(expected.array)
    assert [error for error in result.bad if error in expected.bad] == list(expected.bad)
    headless = values.is_valid().to_numpy(False) & texts.is_null().to_numpy(False)
    bad = {error.row for error in expected.bad} | set(headless.nonzero()[0].tolist())
    assert [error.row for error in result.bad] == sorted(bad)


def test_reasons_of_bad_confluent_json_rows_describe_the_header() -> None:
    decoded = DECODER.decode(pa.array([*HEADS, None], pa.binary()))
    reasons = {error.row: error.reason for error in decoded.bad}
    assert "id 0" in reasons[2]
    assert "neither byte 0" in reasons[3]
    assert "shorter" in reasons[4]
    assert 6 not in reasons


def test_confluent_json_input_that_is_not_binary_raises() -> None:
    with pytest.raises(TypeError, match="binary"):
        DECODER.decode(pa.array(["x"]))
    assert DECODER.decode(pa.array([], pa.binary())).array.type == DECODER.type
