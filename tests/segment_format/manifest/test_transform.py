from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import ChunkError, DecryptionError, SegmentFormatError
from segment_format.manifest.chunk_index import Chunk
from segment_format.manifest.encryption import decrypt
from segment_format.manifest.segment_manifest import IndexRange
from segment_format.manifest.transform import restore_chunk, restore_index
from tests.segment_format.manifest.writers import encrypt, transform_chunk, transform_index
from tests.segment_format.outcomes import value_or_error

KEY = bytes(range(32))
AAD = bytes(range(32, 64))
TEXT = b"some bytes of a segment file, " * 40

modes = pytest.mark.parametrize("compression", [False, True], ids=["stored", "zstd"])
keys = pytest.mark.parametrize("data_key", [None, KEY], ids=["clear", "aes"])


def chunk_of(original: bytes, stored: bytes) -> Chunk:
    return Chunk(3, 300, len(original), 900, len(stored))


@modes
@keys
def test_chunk_round_trips(compression: bool, data_key: bytes | None) -> None:
    stored = transform_chunk(TEXT, compression=compression, data_key=data_key, aad=AAD)
    chunk = chunk_of(TEXT, stored)
    for given_bytes in (stored, memoryview(stored)):
        restored = restore_chunk(
            given_bytes, chunk, compression=compression, data_key=data_key, aad=AAD
        )
        assert bytes(restored) == TEXT


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=200), st.booleans(), st.booleans())
def test_any_chunk_round_trips(original: bytes, compression: bool, encrypted: bool) -> None:
    data_key = KEY if encrypted else None
    stored = transform_chunk(original, compression=compression, data_key=data_key, aad=AAD)
    restored = restore_chunk(
        stored, chunk_of(original, stored), compression=compression, data_key=data_key, aad=AAD
    )
    assert bytes(restored) == original


def test_plain_chunk_is_not_copied() -> None:
    view = memoryview(TEXT)
    assert restore_chunk(view, chunk_of(TEXT, TEXT), compression=False) is view


@modes
@keys
@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_stored_length_raises(compression: bool, data_key: bytes | None, change: int) -> None:
    stored = transform_chunk(TEXT, compression=compression, data_key=data_key, aad=AAD)
    wrong = (stored + b"x")[: len(stored) + change]
    with pytest.raises(ChunkError, match=r"chunk 3: \d+ stored bytes") as caught:
        restore_chunk(
            wrong, chunk_of(TEXT, stored), compression=compression, data_key=data_key, aad=AAD
        )
    assert caught.value.position == 300


@modes
@keys
@pytest.mark.parametrize("change", [-1, 1])
def test_wrong_original_length_raises(
    compression: bool, data_key: bytes | None, change: int
) -> None:
    stored = transform_chunk(TEXT, compression=compression, data_key=data_key, aad=AAD)
    wrong = Chunk(3, 300, len(TEXT) + change, 900, len(stored))
    with pytest.raises(ChunkError, match=r"chunk 3: .*manifest") as caught:
        restore_chunk(stored, wrong, compression=compression, data_key=data_key, aad=AAD)
    assert caught.value.position == 300


def test_zstd_frame_with_wrong_size_raises_before_decompression() -> None:
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(1 << 30))
    with pytest.raises(ChunkError, match="states 1073741824 bytes, but the manifest states 16384"):
        restore_chunk(bomb, Chunk(0, 0, 16384, 0, len(bomb)), compression=True)


def test_zstd_frame_with_false_content_size_raises() -> None:
    # The frame states 16384 bytes but contains a megabyte: only the size field is changed.
    frame = bytearray(zstandard.ZstdCompressor(level=3).compress(bytes(1 << 20)))
    assert frame[4] == 0xA0  # single segment, four bytes of content size
    frame[5:9] = (16384).to_bytes(4, "little")
    with pytest.raises(ChunkError, match="does not decompress"):
        restore_chunk(bytes(frame), Chunk(0, 0, 16384, 0, len(frame)), compression=True)
    # The frame states more than it contains.
    frame = bytearray(zstandard.ZstdCompressor(level=3).compress(bytes(70000)))
    frame[5:9] = (80000).to_bytes(4, "little")
    with pytest.raises(ChunkError):
        restore_chunk(bytes(frame), Chunk(0, 0, 80000, 0, len(frame)), compression=True)


def test_payload_that_is_not_one_zstd_frame_with_size_raises() -> None:
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    with pytest.raises(ChunkError, match="states no size"):
        restore_chunk(unsized, chunk_of(TEXT, unsized), compression=True)
    for stored in (TEXT, b"", b"\x28\xb5\x2f\xfd"):
        with pytest.raises(ChunkError, match="chunk 3"):
            restore_chunk(stored, chunk_of(TEXT, stored), compression=True)
    frame = transform_chunk(TEXT, compression=True)
    skippable = b"\x50\x2a\x4d\x18" + bytes(4)
    for stored in (frame + b"x", frame + frame, skippable, skippable + frame, frame + skippable):
        with pytest.raises(ChunkError, match=r"not exactly one zstd frame|does not decompress"):
            restore_chunk(stored, chunk_of(TEXT, stored), compression=True)


@modes
def test_wrong_key_raises(compression: bool) -> None:
    stored = transform_chunk(TEXT, compression=compression, data_key=KEY, aad=AAD)
    chunk = chunk_of(TEXT, stored)
    for data_key, aad in ((KEY[::-1], AAD), (KEY, AAD[::-1])):
        with pytest.raises(DecryptionError, match=r"chunk 3: .*wrong key, or changed") as caught:
            restore_chunk(stored, chunk, compression=compression, data_key=data_key, aad=aad)
        assert caught.value.position == 300
    with pytest.raises(ValueError, match="AAD"):
        restore_chunk(stored, chunk, compression=compression, data_key=KEY)


def test_chunk_too_short_for_encryption_raises() -> None:
    with pytest.raises(ChunkError, match="too few"):
        restore_chunk(bytes(27), Chunk(0, 0, 1, 0, 27), compression=False, data_key=KEY, aad=AAD)


def test_swapped_chunks_are_detected_only_if_their_lengths_differ() -> None:
    # The AAD contains no position, so swapped chunks of equal length pass. Batches are checked
    # later.
    first, second = (encrypt(text, data_key=KEY, aad=AAD) for text in (b"one", b"two"))
    assert restore_chunk(
        second, chunk_of(b"one", first), compression=False, data_key=KEY, aad=AAD
    ) == (b"two")


@keys
@pytest.mark.parametrize("original", [b"", b"some side file"])
def test_index_round_trips(original: bytes, data_key: bytes | None) -> None:
    stored = transform_index(original, data_key=data_key, aad=AAD)
    index_range = IndexRange(17, len(stored))
    assert bytes(restore_index(stored, index_range, data_key=data_key, aad=AAD)) == original
    if not original:
        assert stored == b""
    elif data_key is not None:
        assert decrypt(stored, data_key=data_key, aad=AAD) == original
    else:
        assert stored == original


@keys
def test_wrong_index_length_raises(data_key: bytes | None) -> None:
    stored = transform_index(b"some side file", data_key=data_key, aad=AAD)
    for size in (0, len(stored) - 1, len(stored) + 1):
        with pytest.raises(ChunkError, match=f"manifest states {size}"):
            restore_index(stored, IndexRange(0, size), data_key=data_key, aad=AAD)
    with pytest.raises(ChunkError, match="too few"):
        restore_index(b"x", IndexRange(0, 1), data_key=KEY, aad=AAD)
    if data_key is not None:
        with pytest.raises(DecryptionError):
            restore_index(stored, IndexRange(0, len(stored)), data_key=KEY[::-1], aad=AAD)


@settings(deadline=None)
@given(st.data(), st.booleans(), st.booleans())
def test_changed_chunk_is_restored_to_original_size_or_raises(
    data: st.DataObject, compression: bool, encrypted: bool
) -> None:
    data_key = KEY if encrypted else None
    stored = bytearray(transform_chunk(TEXT, compression=compression, data_key=data_key, aad=AAD))
    chunk = chunk_of(TEXT, bytes(stored))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    outcome = value_or_error(
        lambda: restore_chunk(
            bytes(stored), chunk, compression=compression, data_key=data_key, aad=AAD
        )
    )
    if isinstance(outcome, SegmentFormatError):
        assert isinstance(outcome, ChunkError)
    else:
        assert len(outcome) == len(TEXT)


@settings(deadline=None)
@given(st.binary(max_size=80), st.integers(1, 1000), st.booleans(), st.booleans())
def test_any_stored_bytes_are_restored_or_raise(
    stored: bytes, size: int, compression: bool, encrypted: bool
) -> None:
    outcome = value_or_error(
        lambda: restore_chunk(
            stored,
            Chunk(0, 0, size, 0, len(stored)),
            compression=compression,
            data_key=KEY if encrypted else None,
            aad=AAD,
        )
    )
    if isinstance(outcome, SegmentFormatError):
        assert isinstance(outcome, ChunkError)
    else:
        assert len(outcome) == size


def test_threads_do_not_share_a_decompressor() -> None:
    texts = [bytes([number]) * 50_000 for number in range(64)]
    stored = [transform_chunk(text, compression=True) for text in texts]

    def restore(number: int) -> bytes:
        chunk = chunk_of(texts[number], stored[number])
        return bytes(restore_chunk(stored[number], chunk, compression=True))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(restore, range(64))) == texts
