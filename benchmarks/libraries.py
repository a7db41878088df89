"""What libraries alone do to the bytes of a tier: read, decrypt and decompress them, check their
CRC and copy them once. Done between prebuilt batches in Spark's own workers, it is the least that a
source takes whose rows are stored so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import google_crc32c

from segment_format.manifest.segment_manifest import SegmentManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_IV: Final = 12
_LOG_OVERHEAD: Final = 12
_HEADER_SIZE: Final = 61


class LibraryWork:
    """The libraries' way through one log, as far as it is asked to go.

    Args:
        log: A `.log` of a tier, its manifest beside it.
        codec: Of its batches.
        key: File of the private key; empty for what is not encrypted.
    """

    def __init__(self, log: str, codec: str, key: str) -> None:
        self._log = Path(log)
        self._codec = codec
        self._manifest = SegmentManifest.from_json(
            self._log.with_suffix(".rsm-manifest").read_bytes()
        )
        self._decrypt = self._decryption(key)
        self._chunks = self._originals()
        self._left = b""
        self._position = 0

    def go_on(self, share: float, target: memoryview) -> None:
        """As many chunks as it takes until this share of the log is done, 0 to 1.

        Args:
            share: Where to be.
            target: Where bytes are copied, one piece over the other.
        """
        end = share * self._manifest.chunk_index.original_file_size
        while self._position < end and (chunk := next(self._chunks, None)) is not None:
            self._position += len(chunk)
            google_crc32c.value(chunk)
            for part in [chunk] if self._codec == "none" else self._decompressed(chunk):
                for start in range(0, len(part), len(target)):
                    piece = part[start : start + len(target)] if len(part) > len(target) else part
                    target[: len(piece)] = piece

    def _decryption(self, key: str) -> Callable[[bytes], bytes]:
        encryption = self._manifest.encryption
        if encryption is None:
            return lambda data: data
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        from segment_format.manifest.encryption import load_private_key, unwrap_data_key

        data_key = unwrap_data_key(encryption.data_key, load_private_key(Path(key).read_bytes()))
        cipher, aad = AESGCM(data_key), encryption.aad
        return lambda data: cipher.decrypt(data[:_IV], data[_IV:], aad)

    def _originals(self) -> Iterator[bytes]:
        from zstandard import ZstdDecompressor

        decompressor = ZstdDecompressor()
        with self._log.open("rb", buffering=0) as file:
            for chunk in self._manifest.chunk_index.chunks():
                data = self._decrypt(file.read(chunk.transformed_size))
                yield decompressor.decompress(data) if self._manifest.compression else data

    def _decompressed(self, chunk: bytes) -> list[bytes]:
        from benchmarks.decode import codec_alone

        data = self._left + chunk
        payloads, start = [], 0
        while start + _HEADER_SIZE <= len(data):
            stop = start + _LOG_OVERHEAD + int.from_bytes(data[start + 8 : start + 12], "big")
            if stop > len(data):
                break
            payloads.append(data[start + _HEADER_SIZE : stop])
            start = stop
        self._left = data[start:]
        parts = codec_alone(self._codec, payloads)()
        assert isinstance(parts, list)
        return parts
