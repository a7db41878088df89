"""Tests memory limits, hostile lengths and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random

import pyarrow as pa
import pytest

from segment_format.values.protobuf import decoder as decoder_module
from tests.segment_format.values.protobuf.oracle import (
    Oracle,
    rows_of,
)
from tests.segment_format.values.protobuf.sample import (
    binary,
    decoder_of,
    sample_file,
    sample_value,
)


def test_row_that_exceeds_the_memory_limit_is_bad(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoder_module, "MAX_BUFFER_BYTES", 100_000)
    monkeypatch.setattr(decoder_module, "BYTES_PER_INPUT_BYTE", 2)
    values = binary(b"\x2a\x00", b"\x2a\x00" * 50_000, b"\x0a\x01a", b"\x2a\x00\x2a\x00")
    decoded = decoder_of("proto3").decode(values)
    decoded.array.validate(full=True)
    (bad,) = decoded.bad
    assert (bad.row, bad.path) == (1, "items")
    assert "too much memory" in bad.reason
    rows = decoded.array.to_pylist()
    assert rows[1] is None
    assert [rows[0]["items"], rows[2]["id"], rows[3]["items"]] == [
        [{"sku": "", "prices": []}],
        "a",
        [{"sku": "", "prices": []}] * 2,
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff\xff\xff\xff\x07",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x62\xff\xff\xff\xff\x07" + b"\x01" * 100,
        b"\x0a" + b"\xff" * 9 + b"\x7f",
        b"\x2a\xff\xff\xff\xff\x07\x0a\xff\xff\xff\xff\x07",
    ],
)
def test_hostile_length_allocates_no_memory(data: bytes) -> None:
    before = pa.default_memory_pool().max_memory()
    decoded = decoder_of("proto3").decode(binary(data))
    assert len(decoded.bad) == 1
    assert pa.default_memory_pool().max_memory() - before < 1 << 20


def test_large_value_does_not_enlarge_later_batches() -> None:
    decoder = decoder_of("proto3")
    decoder.decode(binary(b"\x2a\x00" * 500_000))
    before = pa.total_allocated_bytes()
    decoded = decoder.decode(binary(*[b"\x2a\x00"] * 100))
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert not decoded.bad


def test_decoded_memory_is_allocated_by_arrow() -> None:
    decoder = decoder_of("proto2")
    value = sample_value("proto2")
    values = binary(value, None, b"\xff", value + value)
    before = pa.total_allocated_bytes()
    array = decoder.decode(values).array
    assert pa.total_allocated_bytes() - before >= array.get_total_buffer_size()


def test_decoder_is_thread_safe() -> None:
    decoder = decoder_of("proto3")
    file, random = sample_file("proto3"), Random(3)
    values = [sample_value("proto3"), b"", b"\xff", b"\x2a\x00" * 200]
    oracle = Oracle(file, "s.Order")
    chosen = [[random.choice(values) for _ in range(random.randrange(500))] for _ in range(16)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda some: decoder.decode(binary(*some)), chosen))
    expected = {value: oracle.row(value) for value in values}
    for some, decoded in zip(chosen, results, strict=True):
        assert rows_of(decoded.array) == [expected[value] for value in some]
