"""Tests Avro kernels that are loaded from object files, without numba."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from segment_format.kernels import object_code
from segment_format.values.avro import decoder
from segment_format.values.avro.decoder import AvroDecoder
from segment_format.values.avro.schema import parse_avro
from tests.segment_format.values.avro.generated import Schemas, Values
from tests.segment_format.values.avro.test_decoder import is_same, some_values

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    from segment_format.values import map_key_kernel  # noqa: F401 - leaves its file
    from segment_format.values.avro import kernel  # noqa: F401 - leaves its file


def test_rows_decoded_with_object_file_match_rows_decoded_with_numba(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from segment_format.values.avro.kernel import run_avro

    stored = object_code.load_of_frame("run_avro")
    assert stored is not None
    random = Random(4)
    for _ in range(40):
        schema = parse_avro(json.dumps(Schemas(random).any(4)))
        values = pa.array(some_values(random, schema, 0.3), pa.binary())
        results = []
        for kernel in (stored, run_avro):
            monkeypatch.setattr(decoder, "load_kernel", lambda kernel=kernel: kernel)
            results.append(AvroDecoder(schema).decode(values))
        assert results[0].bad == results[1].bad
        assert is_same(results[0].array, results[1].array)


def test_process_with_object_file_does_not_load_numba() -> None:
    code = """
import sys
import pyarrow as pa
from segment_format.values.avro.decoder import AvroDecoder
from segment_format.values.avro.schema import parse_avro
decoder = AvroDecoder(parse_avro('{"type": "map", "values": "int"}'))
found = decoder.decode(pa.array([b"\\x04\\x02a\\x02\\x02a\\x04\\x00"], pa.binary()))
print(found.array.to_pylist(), {"numba"} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[[('a', 2)]] set()\n"


def test_object_file_keeps_last_value_of_duplicate_keys() -> None:
    random = Random(8)
    values = Values(random)
    decoder_of_maps = AvroDecoder(parse_avro('{"type": "map", "values": "int"}'))
    rows, expected = [], []
    for size in (0, 1, 2, 7, 8, 9, 16, 17, 500):
        pairs = [(f"k{random.randrange(size)}", random.randrange(99)) for _ in range(size)]
        value = values.long(size) if size else b""
        value += b"".join(values.sized(key.encode()) + values.long(number) for key, number in pairs)
        rows.append(value + b"\0")
        last = {key: position for position, (key, _) in enumerate(pairs)}
        expected.append([pairs[position] for position in sorted(last.values())])
    decoded = decoder_of_maps.decode(pa.array(rows, pa.binary()))
    decoded.array.validate(full=True)
    assert decoded.array.to_pylist() == expected
