"""Tests values with a Confluent header and message index."""

from __future__ import annotations

import uuid
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.values.protobuf.decoder import ConfluentProtobufDecoder, read_message_index
from tests.quick import examples
from tests.segment_format.values.protobuf.oracle import rows_of
from tests.segment_format.values.protobuf.sample import binary, decoder_of, sample_value

GUID = uuid.UUID(int=7)
NAMES: dict[tuple[int | str, tuple[int, ...]], str] = {
    (7, (1,)): "s.Order",
    (8, (0, 2)): "s.Order",
    (9, (1,)): "s.Item",
    (str(GUID), (1,)): "s.Order",
}


def name_of(schema_id: int | str, path: tuple[int, ...]) -> str:
    if (schema_id, path) not in NAMES:
        raise LookupError("not found")
    return NAMES[schema_id, path]


def readable(value: bytes) -> tuple[bytes, str]:
    """Removes the header of a value. Returns the bytes of the message, which are empty if the
    header is invalid, and the reason why it is invalid, which is empty if it is valid.
    """
    if len(value) < 5:
        return b"", "the value is shorter than"
    schema_id: int | str = int.from_bytes(value[1:5], "big")
    start = 5
    if value[0] == 1 and len(value) >= 17:
        schema_id, start = str(uuid.UUID(bytes=value[1:17])), 17
    elif value[0]:
        return b"", "the value starts with neither byte 0"
    if not schema_id:
        return b"", "the value has schema id 0"
    try:
        path, start = read_message_index(value, start)
    except ValueError:
        return b"", "no message index"
    name = NAMES.get((schema_id, path))
    if name is None:
        return b"", f"schema {schema_id}: not found"
    if name != "s.Order":
        return b"", f"schema {schema_id}: message {name}, not s.Order"
    return value[start:], ""


HEADS = st.sampled_from(
    (
        *(b"\0\0\0\0\7\2\2", b"\0\0\0\0\7\x82\0\2", b"\0\0\0\0\x08\4\0\4", b"\0\0\0\0\t\2\2"),
        *(b"\0\0\0\0\7\0", b"\0\0\0\0\0\2\2", b"\1\0\0\0\7\2\2", b"\0\0\0\0\7\2", b"", b"\0\0\0"),
        *(b"\1" + GUID.bytes + b"\2\2", b"\1" + GUID.bytes + b"\0", b"\1" + bytes(16) + b"\2\2"),
    )
)
VALUES = st.one_of(
    st.none(),
    st.builds(
        lambda head, rest: head + rest, HEADS, st.sampled_from((b"", b"\x18\5", b"\xff", b"\0"))
    ),
    st.binary(max_size=8),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(VALUES, max_size=12), st.integers(0, 12), st.sampled_from((0, 1, 64)))
def test_values_with_confluent_header_match_plain_values(
    values: list[bytes | None], skip: int, max_heads: int
) -> None:
    decoder = decoder_of("proto3", "count", "id")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segment_format.values.protobuf.decoder._MAX_HEADS", max_heads)
        framed = ConfluentProtobufDecoder(decoder, name_of)
        for _ in range(2):
            decoded = framed.decode(pa.array(values, pa.binary()).slice(skip))
    decoded.array.validate(full=True)
    read_values = [None if value is None else readable(value) for value in values[skip:]]
    plain = decoder.decode(
        binary(*(None if entry is None or entry[1] else entry[0] for entry in read_values))
    )
    assert rows_of(decoded.array) == rows_of(plain.array)
    reasons = {error.row: error.reason for error in plain.bad}
    reasons |= {
        row: entry[1] for row, entry in enumerate(read_values) if entry is not None and entry[1]
    }
    assert [error.row for error in decoded.bad] == sorted(reasons)
    for error in decoded.bad:
        assert error.reason.startswith(reasons[error.row])


def test_default_message_index_is_taken_from_reader_schema() -> None:
    decoder = decoder_of("proto3")
    assert decoder.message_index == (1,)
    framed = ConfluentProtobufDecoder(decoder)
    assert framed.type == decoder.type
    value = sample_value("proto3")
    decoded = framed.decode(binary(b"\0\0\0\0\1\2\2" + value, b"\0\0\0\0\1\0" + value, None))
    assert rows_of(decoded.array) == [*rows_of(decoder.decode(binary(value)).array), None, None]
    assert [(error.row, error.reason) for error in decoded.bad] == [
        (1, "message index [0], not [1]")
    ]


def test_schema_lookup_is_cached_and_repeated_in_next_batch_after_failure() -> None:
    requests: list[tuple[int | str, tuple[int, ...]]] = []

    def counting(schema_id: int | str, path: tuple[int, ...]) -> str:
        requests.append((schema_id, path))
        return name_of(schema_id, path)

    framed = ConfluentProtobufDecoder(decoder_of("proto3", "count"), counting)
    random = Random(1)
    values = [b"\0\0\0\0\7\2\2\x18\5", b"\0\0\0\0\x08\4\0\4", b"\0\0\0\0\x63\0"] * 100
    for _ in range(3):
        random.shuffle(values)
        assert len(framed.decode(binary(*values)).bad) == 100
    good = [(7, (1,)), (8, (0, 2))]
    assert sorted(requests) == [*good, *[(99, (0,))] * 3]
