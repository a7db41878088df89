"""Does only the work of libraries on the bytes of a tier: reads, decrypts, decompresses, checks the
CRC, and copies once.

The time of Spark workers that do only this work and return prebuilt batches is a lower bound for
any source of these rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import google_crc32c

from segment_format.manifest.segment_manifest import SegmentManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_IV: Final = 12
_LOG_OVERHEAD: Final = 12
_HEADER_SIZE: Final = 61
_PLAIN_CHUNK: Final = 4 << 20


class LibraryWork:
    """Processes the bytes of some logs with libraries, one step per call of `process_until`.

    Args:
        logs: `.log` files of a tier. The manifest must be in the same folder. A log without
            manifest is neither compressed nor encrypted.
        codec: Codec of the batches in the logs.
        key: File of the private key; empty without encryption.
    """

    def __init__(self, logs: Sequence[str], codec: str, key: str) -> None:
        self._codec = codec
        self._key = key
        logs_and_manifests = [(Path(log), _manifest(Path(log))) for log in logs]
        self._size = sum(
            manifest.chunk_index.original_file_size if manifest else log.stat().st_size
            for log, manifest in logs_and_manifests
        )
        self._chunks = (
            chunk
            for log, manifest in logs_and_manifests
            for chunk in self._original_bytes(log, manifest)
        )
        self._left = b""
        self._position = 0

    def process_until(self, share: float, target: memoryview) -> None:
        """Processes further chunks until `share` of all bytes is done.

        Args:
            share: Share of the bytes of all logs, 0 to 1.
            target: Buffer that receives the bytes; each chunk overwrites the one before.
        """
        end = share * self._size
        while self._position < end and (chunk := next(self._chunks, None)) is not None:
            self._position += len(chunk)
            google_crc32c.value(chunk)
            for content in [chunk] if self._codec == "none" else self._decompressed(chunk):
                for start in range(0, len(content), len(target)):
                    piece = (
                        content[start : start + len(target)]
                        if len(content) > len(target)
                        else content
                    )
                    target[: len(piece)] = piece

    def _original_bytes(self, log: Path, manifest: SegmentManifest | None) -> Iterator[bytes]:
        """Yields the original bytes of one log, chunk by chunk, after decrypting and decompressing
        them.
        """
        self._left = b""
        with log.open("rb", buffering=0) as file:
            if manifest is None:
                yield from iter(lambda: file.read(_PLAIN_CHUNK), b"")
                return
            from zstandard import ZstdDecompressor

            decrypt, decompressor = self._decryption(manifest), ZstdDecompressor()
            for chunk in manifest.chunk_index.chunks():
                data = decrypt(file.read(chunk.transformed_size))
                yield decompressor.decompress(data) if manifest.compression else data

    def _decryption(self, manifest: SegmentManifest) -> Callable[[bytes], bytes]:
        encryption = manifest.encryption
        if encryption is None:
            return lambda data: data
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        from segment_format.manifest.encryption import load_private_key, unwrap_data_key

        private_key = load_private_key(Path(self._key).read_bytes())
        cipher = AESGCM(unwrap_data_key(encryption.data_key, private_key))
        aad = encryption.aad
        return lambda data: cipher.decrypt(data[:_IV], data[_IV:], aad)

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
        pieces = codec_alone(self._codec, payloads)()
        assert isinstance(pieces, list)
        return pieces


def _manifest(log: Path) -> SegmentManifest | None:
    path = log.with_suffix(".rsm-manifest")
    return SegmentManifest.from_json(path.read_bytes()) if path.exists() else None
