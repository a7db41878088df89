from __future__ import annotations

import gzip
import random
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import cramjam
import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import (
    DecompressionError,
    SegmentFormatError,
    UnsupportedCompressionError,
)
from segment_format.record.batch_header import CompressionType
from segment_format.record.compression import DEFAULT_MAX_BATCH_BYTES, decompress
from tests.quick import examples
from tests.segment_format.outcomes import assert_value_or_positioned_error, value_or_error
from tests.segment_format.record.vectors import CODEC_NUMBERS, kafka_vectors

if TYPE_CHECKING:
    from collections.abc import Callable

GZIP, SNAPPY, LZ4, ZSTD = (CompressionType(number) for number in range(1, 5))
XERIAL_HEADER = bytes.fromhex("82534e4150505900 00000001 00000001")


def java_zstd(data: bytes, *, content_size: bool = False, checksum: bool = False) -> bytes:
    """Compresses like Kafka's Java producer: one frame, by default without content size."""
    compressor = zstandard.ZstdCompressor(write_content_size=content_size, write_checksum=checksum)
    if content_size:
        return compressor.compress(data)
    stream = compressor.compressobj()
    return stream.compress(data) + stream.flush()


def flushed_zstd(pieces: list[bytes]) -> bytes:
    """Returns one zstd frame with a block for each of `pieces`, like a producer that flushes after
    each record.
    """
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return b"".join(
        [
            *(
                stream.compress(piece) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
                for piece in pieces
            ),
            stream.flush(),
        ]
    )


def java_lz4(data: bytes, **settings_: Any) -> bytes:  # noqa: ANN401
    return bytes(
        lz4.frame.compress(
            data,
            **{
                "block_size": lz4.frame.BLOCKSIZE_MAX64KB,
                "block_linked": False,
                "store_size": False,
                **settings_,
            },
        )
    )


def xerial(data: bytes, block: int = 32 << 10) -> bytes:
    blocks = [
        bytes(cramjam.snappy.compress_raw(data[start : start + block]))
        for start in range(0, len(data), block)
    ]
    return XERIAL_HEADER + b"".join(len(raw).to_bytes(4, "big") + raw for raw in blocks)


COMPRESSORS: dict[str, tuple[CompressionType, Callable[[bytes], bytes]]] = {
    "gzip": (GZIP, gzip.compress),
    "gzip of two members": (GZIP, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "xerial": (SNAPPY, xerial),
    "raw snappy": (SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "lz4": (LZ4, java_lz4),
    "lz4 with content size": (LZ4, lambda data: java_lz4(data, store_size=True)),
    "lz4 in 4 MiB blocks": (
        LZ4,
        lambda data: java_lz4(
            data, block_size=lz4.frame.BLOCKSIZE_MAX4MB, content_checksum=True, block_checksum=True
        ),
    ),
    "zstd": (ZSTD, java_zstd),
    "zstd with content size": (ZSTD, lambda data: java_zstd(data, content_size=True)),
    "zstd with checksum": (ZSTD, lambda data: java_zstd(data, checksum=True)),
    "zstd of three frames": (
        ZSTD,
        lambda data: java_zstd(data[:7]) + java_zstd(b"") + java_zstd(data[7:], content_size=True),
    ),
    "zstd in tiny blocks": (
        ZSTD,
        lambda data: flushed_zstd(
            [data[start : start + 700] for start in range(0, len(data), 700)]
        ),
    ),
}


def sample(size: int, seed: int = 1) -> bytes:
    """Returns bytes that compress about three to one."""
    words = [random.Random(seed + n).randbytes(9) for n in range(40)]
    chooser = random.Random(seed)
    return b"".join(chooser.choice(words) for _ in range(size // 9 + 1))[:size]


@pytest.mark.parametrize("size", [1, 100, 16 << 10, 300_000, 5 << 20])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_compressed_content_round_trips(name: str, size: int) -> None:
    codec, compress = COMPRESSORS[name]
    data = sample(size)

    assert bytes(decompress(codec, compress(data))) == data


@pytest.mark.parametrize("name", COMPRESSORS)
def test_payload_one_byte_above_the_output_limit_raises(name: str) -> None:
    codec, compress = COMPRESSORS[name]
    data = sample(3 << 20)
    payload = compress(data)

    assert bytes(decompress(codec, payload, max_output_bytes=len(data))) == data
    for bound in (len(data) - 1, len(data) // 2, 1000, 0):
        with pytest.raises(DecompressionError, match=f"more than {bound} bytes"):
            decompress(codec, payload, max_output_bytes=bound)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("convert", [bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)])
def test_compressed_payload_may_be_any_buffer_type(name: str, convert: Any) -> None:  # noqa: ANN401
    codec, compress = COMPRESSORS[name]
    data = sample(50_000)

    assert bytes(decompress(codec, convert(compress(data)))) == data


def zstd_bomb(blocks: int) -> bytes:
    """Returns a frame of run-length blocks: four bytes for each 128 KiB."""
    header = b"\x28\xb5\x2f\xfd\x00\x58"
    middle = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    last = ((128 << 10) << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
    return header + middle * (blocks - 1) + last


def zstd_claiming(content_size: int) -> bytes:
    """Returns a valid frame of one raw block with a wrong content size in its header."""
    return b"\x28\xb5\x2f\xfd\xc0\x58" + content_size.to_bytes(8, "little") + b"\x09\0\0x"


def lz4_claiming(content_size: int) -> bytes:
    payload = bytearray(java_lz4(b"x" * 100, store_size=True))
    payload[6:14] = content_size.to_bytes(8, "little")
    return bytes(payload)


BOMBS = {
    "1 KB of zstd for 32 MB": (ZSTD, zstd_bomb(256)),
    "zstd of many frames": (ZSTD, zstd_bomb(2) * 100),
    "1 KB of zstd inside skippable frames": (
        ZSTD,
        b"\x50\x2a\x4d\x18\x00\x00\x00\x00" + zstd_bomb(256),
    ),
    "gzip": (GZIP, gzip.compress(bytes(16 << 20))),
    "gzip of many members": (GZIP, gzip.compress(bytes(1 << 20)) * 20),
    "lz4": (LZ4, java_lz4(bytes(16 << 20))),
    "lz4 in 4 MiB blocks": (LZ4, java_lz4(bytes(16 << 20), block_size=7)),
    "snappy": (SNAPPY, xerial(bytes(16 << 20))),
    "raw snappy": (SNAPPY, bytes(cramjam.snappy.compress_raw(bytes(16 << 20)))),
    "snappy that claims 4 GiB": (SNAPPY, b"\xff\xff\xff\xff\x0f\x00"),
    "xerial blocks that claim 4 GiB": (
        SNAPPY,
        XERIAL_HEADER + b"\0\0\0\x06\xff\xff\xff\xff\x0f\x00" * 50,
    ),
    "zstd that claims 1 TiB": (ZSTD, zstd_claiming(1 << 40)),
    "zstd that claims 100 MiB": (ZSTD, zstd_claiming(100 << 20)),
    "lz4 that claims 1 TiB": (LZ4, lz4_claiming(1 << 40)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bomb_raises_without_allocating(name: str) -> None:
    codec, payload = BOMBS[name]
    bound = 2 << 20
    decompress(
        codec, COMPRESSORS[codec.name.lower() if codec is not SNAPPY else "xerial"][1](b"warm up")
    )

    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError):
            decompress(codec, payload, max_output_bytes=bound)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * bound + (1 << 20)


@pytest.mark.parametrize("changed", [4, 7, 8, 11, 15])
def test_later_snappy_stream_header_is_skipped_without_checks(changed: int) -> None:
    header = bytearray(XERIAL_HEADER)
    header[changed] ^= 0xFF
    later_block = xerial(b"def")[len(header) :]

    assert bytes(decompress(SNAPPY, xerial(b"abc") + header + later_block)) == b"abcdef"


def test_impossible_snappy_size_raises_before_allocation() -> None:
    """The payload has 12 bytes but states a size of 200 MiB, which the default limit allows."""
    claimed = b"\x80\x80\x80\x64" + bytes(8)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError, match="cannot expand"):
            decompress(SNAPPY, claimed)
        with pytest.raises(DecompressionError, match="cannot expand"):
            decompress(SNAPPY, XERIAL_HEADER + (len(claimed).to_bytes(4, "big") + claimed) * 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_zstd_of_ten_gigabytes_raises_at_default_limit() -> None:
    with pytest.raises(DecompressionError, match=f"more than {DEFAULT_MAX_BATCH_BYTES} bytes"):
        decompress(ZSTD, zstd_bomb(80_000))


def test_zstd_window_above_kafka_limit_raises() -> None:
    frame = bytearray(java_zstd(b"abc"))
    frame[5] = 17 << 3  # 2^27, the largest allowed window
    assert decompress(ZSTD, frame) == b"abc"

    frame[5] = 17 << 3 | 1
    with pytest.raises(DecompressionError, match="window"):
        decompress(ZSTD, frame)


def test_wrong_content_size_in_lz4_header_is_ignored_in_magic_0() -> None:
    frame = bytearray(java_lz4(b"x" * 100, store_size=True))
    frame[6] = 7
    with pytest.raises(DecompressionError, match="header checksum"):
        decompress(LZ4, frame)

    assert decompress(LZ4, bytes(frame), magic=0) == b"x" * 100


@pytest.mark.parametrize("flags", range(0x60, 0x80, 4))
@pytest.mark.parametrize("block_size", range(0x40, 0x80, 0x10))
def test_header_checksum_of_lz4_matches_library(flags: int, block_size: int) -> None:
    context = lz4.frame.create_compression_context()
    frame = b"".join(
        [
            lz4.frame.compress_begin(
                context,
                source_size=3 if flags & 8 else 0,
                block_size=block_size >> 4,
                block_linked=False,
                content_checksum=bool(flags & 4),
                block_checksum=bool(flags & 16),
            ),
            lz4.frame.compress_chunk(context, b"abc"),
            lz4.frame.compress_flush(context),
        ]
    )
    assert frame[4:6] == bytes((flags, block_size))
    position = 14 if flags & 8 else 6

    assert decompress(LZ4, frame) == b"abc"
    for wrong in range(256):
        if wrong == frame[position]:
            continue
        changed = frame[:position] + bytes((wrong,)) + frame[position + 1 :]
        with pytest.raises(DecompressionError):
            decompress(LZ4, changed)
        assert decompress(LZ4, changed, magic=0) == b"abc"


@pytest.mark.parametrize(
    "trailing",
    [
        b"\x1f\x8b\x07" + bytes(40),  # another compression method, so no member begins here
        b"\x1f\x8b",
        b"\x1f\x8b\x08" + bytes(10),  # too short for a member
        bytes(100),
        b"garbage",
    ],
)
def test_trailing_bytes_of_gzip_are_ignored(trailing: bytes) -> None:
    assert decompress(GZIP, gzip.compress(b"abc") + trailing) == b"abc"


def test_truncated_second_member_of_gzip_raises() -> None:
    with pytest.raises(DecompressionError) as caught:
        decompress(GZIP, gzip.compress(b"abc") + gzip.compress(b"d" * 1000)[:-3])
    assert caught.value.position == len(gzip.compress(b"abc"))


def test_undefined_codec_raises() -> None:
    for codec, magic in ((5, 2), (7, 2), (-1, 2), (ZSTD, 1), (ZSTD, 0)):
        with pytest.raises(UnsupportedCompressionError):
            decompress(codec, java_zstd(b"abc"), magic=magic)


def test_uncompressed_payload_is_returned_unchanged() -> None:
    payload = b"abc"

    assert decompress(CompressionType.NONE, payload) is payload


def test_every_thread_has_its_own_zstd_decompressor() -> None:
    inputs = [sample(200_000, seed) for seed in range(8)]
    outputs: dict[int, bool] = {}

    def work(index: int) -> None:
        payload = java_zstd(inputs[index])
        outputs[index] = all(bytes(decompress(ZSTD, payload)) == inputs[index] for _ in range(20))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == dict.fromkeys(range(len(inputs)), True)


PAYLOADS = [
    (CODEC_NUMBERS[case["codec"]], bytes.fromhex(case["payload"]))
    for case in kafka_vectors()["codec"]
    if case["codec"] != "none"
] + [(codec, compress(sample(4000))) for codec, compress in COMPRESSORS.values()]


@settings(max_examples=examples(400))
@given(st.integers(min_value=1, max_value=4), st.binary(max_size=200), st.integers(0, 2))
def test_any_bytes_decompress_or_raise_with_position(codec: int, data: bytes, magic: int) -> None:
    if codec != ZSTD or magic == 2:
        assert_value_or_positioned_error(
            lambda: decompress(codec, data, magic=magic, max_output_bytes=1 << 16), size=len(data)
        )


@settings(max_examples=examples(600))
@given(st.sampled_from(PAYLOADS), st.data())
def test_corrupted_payload_decompresses_to_at_most_the_size_limit_or_raises(
    payload: tuple[int, bytes], data: st.DataObject
) -> None:
    codec, stored = payload
    changed = bytearray(stored)
    for _ in range(data.draw(st.integers(1, 4))):
        if changed:
            position = data.draw(st.integers(0, len(changed) - 1))
            changed[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    kept = bytes(changed[:cut])

    outcome = value_or_error(lambda: bytes(decompress(codec, kept, max_output_bytes=1 << 16)))

    if isinstance(outcome, SegmentFormatError):
        assert outcome.position is not None
        assert 0 <= outcome.position <= cut
    else:
        assert len(outcome) <= 1 << 16


@pytest.mark.parametrize("name", [name for name in COMPRESSORS if name != "raw snappy"])
def test_truncated_payload_never_returns_all_content(name: str) -> None:
    codec, compress = COMPRESSORS[name]
    data = sample(3000)
    payload = compress(data)

    for size in range(len(payload)):
        kept = payload[:size]
        outcome = value_or_error(lambda kept=kept: bytes(decompress(codec, kept)))  # type: ignore[misc]
        assert isinstance(outcome, SegmentFormatError) or len(outcome) < len(data), size


def zstd_frame(
    content: bytes, *, window: int = 0x58, content_size: int | None = None, checksum: bytes = b""
) -> bytes:
    """Returns a zstd frame with one raw block. A content size is stored in 8 bytes."""
    size = b"" if content_size is None else content_size.to_bytes(8, "little")
    flags = (0xC0 if size else 0) | (4 if checksum else 0)
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    return b"\x28\xb5\x2f\xfd" + bytes((flags, window)) + size + block + checksum


@pytest.mark.parametrize("seed", range(40))
def test_zstd_frames_that_kafka_ignores_are_refused(seed: int) -> None:
    """The README lists them, because Kafka's consumer returns the records of the first frame."""
    chooser = random.Random(seed)
    content = chooser.randbytes(chooser.randint(1, 400))
    first = chooser.choice((zstd_frame, zstandard.compress))(content)
    assert bytes(decompress(4, first)) == content
    skippable = b"\x50\x2a\x4d\x18\x08\0\0\0padding."
    second = chooser.choice((zstd_frame(b"more"), zstandard.compress(b"more"), skippable))
    cut = chooser.randint(1, len(second) - 1)
    wrong_size = chooser.choice((len(content) + 1, (1 << 64) - 1, len(content) - 1))
    for payload in (
        first + second[:cut],
        zstd_frame(content, content_size=wrong_size),
        zstd_frame(content, content_size=len(content), window=0xF8),
    ):
        with pytest.raises(DecompressionError, match="zstd"):
            decompress(4, payload)
    assert bytes(decompress(4, first + skippable)) == content
    assert bytes(decompress(4, zstd_frame(content, content_size=len(content)))) == content
