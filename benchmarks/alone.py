"""Measures each stage of a scan separately, on the bytes of one kind of records.

The sum of the stages is called the additive bound. The table of times per stage on the result page
takes from this module only the stages that the metrics of a scan do not separate.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.decode import codec_alone
from benchmarks.report import best_seconds
from kts_source.columns import DEFAULT_COLUMNS
from segment_format.arrow import RECORD_COLUMNS, RecordDecoder
from tests.uniform_batches import UniformBatches, write_uniform_batches

if TYPE_CHECKING:
    from benchmarks.tiers import TierShape

_BYTES: Final = 16 << 20
_CHUNK: Final = 4 << 20
_HEADER_SIZE: Final = 61
_COLUMNS: Final = tuple(name for name in DEFAULT_COLUMNS if name in RECORD_COLUMNS)


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds per record of each stage, measured alone on one core.

    Attributes:
        frame: Reading batch headers, without decoding records.
        crc: CRC-32C of the stored batches.
        codec: Decompression of the batches; 0 without a codec.
        chunk: Decompression of the chunks; 0 if they are not compressed.
        decrypt: AES-GCM of the chunks; 0 if they are not encrypted.
        plain: Decoding uncompressed batches of the same records to Arrow, including headers and
            CRC.
    """

    frame: float
    crc: float
    codec: float
    chunk: float
    decrypt: float
    plain: float

    @property
    def total(self) -> float:
        """Returns the sum of all stages, without the transfer of rows to Spark."""
        return self.codec + self.chunk + self.decrypt + self.plain


def measure_alone(shape: TierShape, *, repeats: int) -> Alone:
    """Returns the seconds of each stage for the records of this shape."""
    stored, plain = _batches(shape, shape.codec), _batches(shape, "none")
    records = len(stored.sizes) * stored.records_per_batch
    starts = np.concatenate(([0], np.cumsum(stored.sizes)))
    payloads = [
        stored.data[start + _HEADER_SIZE : stop]
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]
    actions = [
        lambda: _decode(stored.data, start_offset=1 << 60, check_crcs=False),
        lambda: google_crc32c.value(stored.data),
        lambda: _decode(plain.data),
    ]
    if shape.codec != "none":
        actions.append(codec_alone(shape.codec, payloads))
    figures = best_seconds(*actions, repeats=repeats)
    chunk, decrypt = _chunks(stored.data, shape, repeats)
    codec = figures[3] if shape.codec != "none" else 0.0
    seconds = (figures[0], figures[1], codec, chunk, decrypt, figures[2])
    return Alone(*(figure / records for figure in seconds))


def _batches(shape: TierShape, codec: str) -> UniformBatches:
    per_batch = max(1, shape.batch_bytes // (shape.value_bytes + 20))
    return write_uniform_batches(
        batch_count=max(1, _BYTES // (per_batch * (shape.value_bytes + 20) + 61)),
        records_per_batch=per_batch,
        value_size=shape.value_bytes,
        key_size=8,
        codec=codec,
        payload=shape.payload,
    )


def _decode(data: bytes, *, start_offset: int = 0, check_crcs: bool = True) -> None:
    decoder = RecordDecoder(columns=_COLUMNS, start_offset=start_offset, check_crcs=check_crcs)
    for start in range(0, len(data), _CHUNK):
        for _ in decoder.feed(data[start : start + _CHUNK]):
            pass
    for _ in decoder.finish():
        pass


def _chunks(log: bytes, shape: TierShape, repeats: int) -> tuple[float, float]:
    """Splits the log into chunks. Returns the seconds to decompress all chunks, and the seconds to
    decrypt them.
    """
    chunks = [log[start : start + _CHUNK] for start in range(0, len(log), _CHUNK)]
    chunk = decrypt = 0.0
    if shape.compression:
        compressor, decompressor = zstandard.ZstdCompressor(), zstandard.ZstdDecompressor()
        frames = [compressor.compress(plain) for plain in chunks]
        (chunk,) = best_seconds(
            lambda: [decompressor.decompress(frame) for frame in frames], repeats=repeats
        )
        chunks = frames
    if shape.encryption:
        cipher, nonce, aad = AESGCM(os.urandom(32)), os.urandom(12), os.urandom(32)
        messages = [cipher.encrypt(nonce, plain, aad) for plain in chunks]
        (decrypt,) = best_seconds(
            lambda: [cipher.decrypt(nonce, message, aad) for message in messages], repeats=repeats
        )
    return chunk, decrypt
