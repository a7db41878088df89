"""Decompresses zstd frames into memory of the caller.

Python's API for zstd (`compression.zstd`, or its backport before Python 3.14) creates a new
decompressor for each frame and returns new memory. For a batch of 16 KB without a content size,
this takes twice as long as libzstd itself. The extension module of the API contains libzstd and
exports its functions. `decompress_into` calls them through `ctypes`, with one context per thread.
It uses Python's API if the functions are not exported, or with `KTS_TUNING=off` (`docs/tuning.md`).

Source: `ZSTD_decompressDCtx` in the stable part of `zstd.h`.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from segment_format.tuning import is_on

if sys.version_info >= (3, 14):
    from compression import zstd as zstd

    _EXTENSION: Final = "_zstd"
else:
    from backports import zstd as zstd

    _EXTENSION: Final = "backports.zstd._zstd"

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE: Final = 1 << 20


class Context:
    """A decompression context of libzstd. Only one thread at a time may use it.

    Attributes:
        address: Address of the context.
        function_address: Address of the function `ZSTD_decompressDCtx`.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._decompress = library.ZSTD_decompressDCtx
        self._free = library.ZSTD_freeDCtx
        self._error_name = library.ZSTD_getErrorName
        self.function_address = ctypes.cast(self._decompress, ctypes.c_void_p).value or 0
        self.address = library.ZSTD_createDCtx()
        if self.address is None:
            raise MemoryError("libzstd has no memory for a decompression context")

    def __del__(self) -> None:
        self._free(self.address)

    def decompress(self, frames: memoryview, target: memoryview) -> int:
        """Does what `decompress_into` does."""
        source, content = pa.py_buffer(frames), pa.py_buffer(target)
        capacity = len(target)
        size: int = self._decompress(
            self.address, content.address, capacity, source.address, len(frames)
        )
        # Error codes are the largest numbers of the type `size_t`.
        if size > capacity:
            raise zstd.ZstdError(self._error_name(size).decode())
        return size


_thread = threading.local()


def decompress_into(frames: memoryview, target: memoryview) -> int:
    """Decompresses zstd frames, which may have skippable frames between them.

    The caller must check that no frame declares a window above its limit, see `scan_frames` in
    `segment_format.record.compression`.

    Args:
        frames: Complete frames, and nothing else.
        target: Writable memory for the content. Bytes after the content may be overwritten.

    Returns:
        Size of the content in bytes.

    Raises:
        ZstdError: A frame is invalid, or the content is larger than `target`.
    """
    try:
        context: Context | None = _thread.context
    except AttributeError:
        context = _thread.context = new_context()
    if context is not None:
        return context.decompress(frames, target)
    size = 0
    for piece in iter_pieces(frames, len(target)):
        if size + len(piece) > len(target):
            raise zstd.ZstdError(f"the content has more than {len(target)} bytes")
        target[size : size + len(piece)] = piece
        size += len(piece)
    return size


def new_context() -> Context | None:
    """Returns a new context; `None` if the functions of libzstd are not exported, or with
    `KTS_TUNING=off`.
    """
    library = _library() if is_on() else None
    return None if library is None else Context(library)


def iter_pieces(frames: memoryview, max_bytes: int) -> Iterator[bytes]:
    """Yields the content of zstd frames in pieces of at most 1 MiB, without knowing its size. Stops
    after `max_bytes` + 1 bytes, so that the caller can detect that there are more than `max_bytes`.

    Raises:
        ZstdError: A frame is invalid, truncated, or declares a window above 128 MiB.
    """
    room = max_bytes + 1
    while frames and room:
        size = zstd.get_frame_size(frames)
        data, frames = frames[:size], frames[size:]
        decompressor = zstd.ZstdDecompressor()
        while room and not decompressor.eof:
            piece = decompressor.decompress(data, min(_PIECE, room))
            data = data[:0]  # the decompressor keeps what it has not read yet
            if piece:
                room -= len(piece)
                yield piece
            elif not decompressor.eof:
                raise zstd.ZstdError("the frame is truncated")


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Returns the functions of libzstd in the extension module, or None if they are not exported,
    or if they belong to another version of libzstd.
    """
    path = getattr(sys.modules.get(_EXTENSION), "__file__", None)
    if path is None:
        return None
    try:
        library = ctypes.CDLL(path)
        if library.ZSTD_versionNumber() != _version_number():
            return None
        library.ZSTD_createDCtx.restype = ctypes.c_void_p
        library.ZSTD_freeDCtx.argtypes = [ctypes.c_void_p]
        library.ZSTD_getErrorName.argtypes = [ctypes.c_size_t]
        library.ZSTD_getErrorName.restype = ctypes.c_char_p
        library.ZSTD_decompressDCtx.restype = ctypes.c_size_t
        library.ZSTD_decompressDCtx.argtypes = [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_void_p, ctypes.c_size_t),
        ]
    except (OSError, AttributeError):
        return None
    return library


def _version_number() -> int:
    major, minor, release = zstd.zstd_version_info
    return (major * 100 + minor) * 100 + release
