from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import InvalidManifestError
from segment_format.manifest.chunk_index import (
    MAX_PAYLOAD_BYTES,
    decode_chunk_sizes,
    unpack_chunk_sizes,
)
from tests.golden_data import VECTORS
from tests.segment_format.manifest.writers import encode_chunk_sizes, pack_chunk_sizes
from tests.segment_format.outcomes import value_or_error

AIVEN = VECTORS / "aiven_vectors"
CASES: list[dict[str, Any]] = json.loads((AIVEN / "chunk_sizes.json").read_text())
LONG: dict[str, Any] = json.loads((AIVEN / "chunk_sizes_512.json").read_text())
MAX = 2**31 - 1

sizes_lists = st.lists(st.integers(0, MAX), max_size=40) | st.lists(
    st.integers(4_000_000, 4_194_304), max_size=40
)


def text_of(payload: bytes, **options: bool) -> str:
    frame = zstandard.ZstdCompressor(level=3, **options).compress(payload)  # type: ignore[arg-type]
    return base64.b64encode(frame).decode("ascii")


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{len(case['sizes'])}-{case['codec_hex'][:16]}"
)
def test_chunk_sizes_match_plugin_vectors(case: dict[str, Any]) -> None:
    payload = bytes.fromhex(case["codec_hex"])
    assert unpack_chunk_sizes(payload).tolist() == case["sizes"]
    assert pack_chunk_sizes(case["sizes"]) == payload
    if case["transformedChunks"] is not None:
        assert decode_chunk_sizes(case["transformedChunks"]).tolist() == case["sizes"]
        assert decode_chunk_sizes(encode_chunk_sizes(case["sizes"])).tolist() == case["sizes"]
        if len(case["sizes"]) < 10:  # raw zstd blocks do not depend on the zstd version
            assert encode_chunk_sizes(case["sizes"]) == case["transformedChunks"]


def test_chunk_sizes_match_plugin_vector_of_512_chunks() -> None:
    text = LONG["chunkIndex"]["transformedChunks"]
    assert decode_chunk_sizes(text).tolist() == LONG["sizes"]
    assert decode_chunk_sizes(encode_chunk_sizes(LONG["sizes"])).tolist() == LONG["sizes"]


RAMP = list(range(0, 2_147_481_647, 1000))
WIDTHS = [
    ([0, 1000, 2, 44002, 369], 2),
    ([2147483647, 2147483646, 2147483645, 10], 1),
    ([1073741823, 1073741822, 1073741821, 10], 1),
    (RAMP, 4),
    (RAMP[::-1], 4),
    ([1, 2, 3, 2147483647], 1),
    ([1, 265, 275, 285, 2147483647], 2),
    ([1, 65545, 65555, 65565, 2147483647], 3),
    ([1, 16777225, 16777235, 16777245, 2147483647], 4),
]


@pytest.mark.parametrize(("sizes", "width"), WIDTHS, ids=range(len(WIDTHS)))
def test_byte_width_of_chunk_sizes_fits_the_largest_value(sizes: list[int], width: int) -> None:
    payload = pack_chunk_sizes(sizes)
    assert payload[8] == width
    assert len(payload) == 4 + 4 + 1 + (len(sizes) - 1) * width + 4
    decoded = decode_chunk_sizes(encode_chunk_sizes(sizes))
    assert decoded.dtype == np.int32
    assert decoded.tolist() == sizes


@settings(deadline=None)
@given(sizes_lists)
def test_chunk_sizes_round_trip(sizes: list[int]) -> None:
    assert decode_chunk_sizes(encode_chunk_sizes(sizes)).tolist() == sizes


@pytest.mark.parametrize("sizes", [[-1], [-1, 1, 2], [1, -1, 2], [1, 2, -1], [2**31], [0, 2**63]])
def test_impossible_chunk_size_is_not_written(sizes: list[int]) -> None:
    with pytest.raises(InvalidManifestError):
        encode_chunk_sizes(sizes)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("", "0 bytes"),
        ("000000", "3 bytes"),
        ("ffffffff", "negative count: -1"),
        ("0000000000", "need 4"),
        ("00000001", "need 8"),
        ("00000001ffffffff", "outside"),
        ("00000002", "4 bytes"),
        ("00000002 0000000a 00 0000000a", "values of 0 bytes"),
        ("00000002 0000000a 05 0000000000 0000000a", "values of 5 bytes"),
        ("00000002 ffffffff 01 00 0000000a", "base -1"),
        ("00000002 0000000a 01 00 0000000a ff", "width need"),
        ("00000003 0000000a 01 00 0000000a", "width need"),
        ("7fffffff 00000000 04", "width need"),
        ("00000002 7fffffff 01 01 0000000a", "outside"),
        ("00000002 00000001 04 ffffffff 0000000a", "outside"),
        ("00000002 0000000a 01 00 ffffffff", "outside"),
    ],
)
def test_contradictory_payload_of_chunk_sizes_raises(payload: str, reason: str) -> None:
    with pytest.raises(InvalidManifestError, match=reason):
        decode_chunk_sizes(text_of(bytes.fromhex(payload)))


def test_zstd_frame_without_content_size_raises() -> None:
    with pytest.raises(InvalidManifestError, match="without content size"):
        decode_chunk_sizes(text_of(pack_chunk_sizes([1, 2, 3]), write_content_size=False))


def test_payload_above_limit_raises_before_decompression() -> None:
    bomb = text_of(bytes(1 << 30))
    assert len(bomb) < 1 << 18
    with pytest.raises(InvalidManifestError, match="at most"):
        decode_chunk_sizes(bomb)


def test_payload_at_limit_decodes() -> None:
    count = MAX_PAYLOAD_BYTES - 13 + 1
    sizes = np.full(count, 7, dtype=np.int64)
    assert len(pack_chunk_sizes(sizes)) == MAX_PAYLOAD_BYTES
    assert len(decode_chunk_sizes(encode_chunk_sizes(sizes))) == count
    with pytest.raises(InvalidManifestError, match="too long"):
        encode_chunk_sizes(np.append(sizes, 7))


def test_zstd_frame_with_wrong_content_size_raises() -> None:
    frame = bytearray(base64.b64decode(text_of(pack_chunk_sizes([10, 20, 30]))))
    assert frame[4:6] == b"\x20\x0f"  # single segment, content size 15 in one byte
    for stated in (0, 14, 16, 255):
        frame[5] = stated
        with pytest.raises(InvalidManifestError):
            decode_chunk_sizes(base64.b64encode(frame).decode("ascii"))


@pytest.mark.parametrize(
    "change",
    [lambda frame: frame + b"x", lambda frame: frame + frame, lambda frame: frame[:-1]],
    ids=["a byte more", "two frames", "truncated"],
)
def test_payload_that_is_not_exactly_one_zstd_frame_raises(change: Any) -> None:  # noqa: ANN401 - a lambda
    frame = base64.b64decode(encode_chunk_sizes([1, 2, 3]))
    with pytest.raises(InvalidManifestError):
        decode_chunk_sizes(base64.b64encode(change(frame)).decode("ascii"))


@pytest.mark.parametrize(
    "text", ["", "?", "AAAA", "KLUv/SAPeQAAAAAAAwAAAAoBAAoAAAA", "ä", "\ud800"]
)
def test_invalid_text_of_chunk_sizes_raises(text: str) -> None:
    with pytest.raises(InvalidManifestError):
        decode_chunk_sizes(text)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_payload_of_chunk_sizes_decodes_or_raises(payload: bytes) -> None:
    outcome = value_or_error(lambda: unpack_chunk_sizes(payload))
    if isinstance(outcome, np.ndarray):
        assert int(outcome.min(initial=0)) >= 0
        assert unpack_chunk_sizes(pack_chunk_sizes(outcome)).tolist() == outcome.tolist()


@settings(deadline=None)
@given(sizes_lists, st.data())
def test_changed_zstd_frame_decodes_or_raises(sizes: list[int], data: st.DataObject) -> None:
    frame = bytearray(base64.b64decode(encode_chunk_sizes(sizes)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    outcome = value_or_error(lambda: decode_chunk_sizes(base64.b64encode(frame).decode("ascii")))
    if isinstance(outcome, np.ndarray):
        assert outcome.nbytes <= 4 * MAX_PAYLOAD_BYTES


@settings(deadline=None)
@given(
    st.text(max_size=80) | st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())
)
def test_any_text_of_chunk_sizes_decodes_or_raises(text: str) -> None:
    assert value_or_error(lambda: decode_chunk_sizes(text)) is not None
