"""The outline of a zstd stream: where its frames begin and end, how much each can expand to.

Little-endian (RFC 8878).

Frame: magic `28 b5 2f fd`, descriptor byte, [window descriptor 1], [dictionary id 0–4], [content
size 0–8], blocks, [checksum 4]. Descriptor: bits 7–6 content size field, 5 single segment,
3 reserved (0), 2 checksum, 1–0 dictionary id field.

Block: 3 bytes (bit 0 last, bits 1–2 type, rest size), then `size` bytes (raw, compressed) or one
(run length).

Skippable frame: magic `5x 2a 4d 18`, size u32, `size` bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from segment_format.errors import DecompressionError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_TAIL: Final = b"\x2a\x4d\x18"
_MAX_BLOCK: Final = 128 << 10
_MAX_WINDOW: Final = 1 << 27
_DICTIONARY_ID_SIZE: Final = (0, 1, 2, 4)
_CONTENT_SIZE_SIZE: Final = (0, 2, 4, 8)
_RAW, _RUN_LENGTH, _COMPRESSED = 0, 1, 2
_CHECKSUM_FLAG: Final = 0x04


def _block_limit(descriptor: int) -> int:
    """How much one block can expand to with this window descriptor, −1 where the window is too
    large.
    """
    window = (1 << 10 + (descriptor >> 3)) * (8 + (descriptor & 7)) // 8
    return min(window, _MAX_BLOCK) if window <= _MAX_WINDOW else -1


class Frame(NamedTuple):
    """One zstd frame.

    Attributes:
        start: First byte.
        stop: Byte after the last.
        max_output: Bytes it cannot expand beyond: the content size where stated, else the sum over
            its blocks.
        content_size: What it states, None where it does not.
    """

    start: int
    stop: int
    max_output: int
    content_size: int | None


def scan_frames(view: memoryview) -> Sequence[Frame]:
    """The frames of a stream, in order, skippable ones left out; block contents are not looked at.

    Memory: one tuple per frame, and a frame takes at least 9 bytes.

    Raises:
        DecompressionError: The stream is empty, cut, followed by something else, declares a window
            above 128 MiB (the limit of Kafka's decoder), or states a content size that its blocks
            cannot reach.
    """
    frames: list[Frame] = []
    end = len(view)
    position = 0
    while True:
        if end - position < 8:
            raise DecompressionError("zstd: not a frame, or a cut one", position=position)
        if bytes(view[position : position + 4]) == _MAGIC:
            frame = _scan_frame(view, position, end)
            frames.append(frame)
            position = frame.stop
        elif (
            bytes(view[position + 1 : position + 4]) == _SKIPPABLE_TAIL and view[position] >> 4 == 5
        ):
            position += 8 + int.from_bytes(view[position + 4 : position + 8], "little")
            if position > end:
                raise DecompressionError("zstd: a skippable frame is cut", position=end)
        else:
            raise DecompressionError("zstd: bytes that begin no frame", position=position)
        if position == end:
            return frames


def _scan_frame(view: memoryview, start: int, end: int) -> Frame:
    descriptor = view[start + 4]
    position = start + 5
    single_segment = descriptor & 0x20
    limit = -1
    if not single_segment:
        limit = _block_limit(view[position])
        position += 1
    position += _DICTIONARY_ID_SIZE[descriptor & 3]
    size_field = descriptor >> 6
    content_size = None
    if size_field or single_segment:
        width = _CONTENT_SIZE_SIZE[size_field] or 1
        content_size = int.from_bytes(view[position : position + width], "little")
        if width == 2:
            content_size += 256
        position += width
        if single_segment and content_size <= _MAX_WINDOW:
            limit = min(content_size, _MAX_BLOCK)
    if limit < 0:
        raise DecompressionError(
            f"zstd: the frame wants a window of more than {_MAX_WINDOW} bytes", position=start
        )
    max_output = 0
    while True:
        if position + 3 > end:
            raise DecompressionError("zstd: the frame is cut", position=end)
        block = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        size = block >> 3
        kind = block >> 1 & 3
        position += 3
        if kind == _COMPRESSED:
            max_output += limit
            position += size
        elif kind == _RAW:
            max_output += size
            position += size
        elif kind == _RUN_LENGTH:
            max_output += size
            position += 1
        else:
            raise DecompressionError("zstd: reserved block type", position=position - 3)
        if block & 1:
            break
    if descriptor & _CHECKSUM_FLAG:
        position += 4
    if position > end:
        raise DecompressionError("zstd: the frame is cut", position=end)
    if content_size is not None:
        if content_size > max_output:
            raise DecompressionError(
                f"zstd: content size {content_size}, but the blocks hold at most {max_output}",
                position=start,
            )
        max_output = content_size
    return Frame(start, position, max_output, content_size)
