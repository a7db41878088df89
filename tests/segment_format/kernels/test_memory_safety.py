"""Checks that kernels neither read past their input nor write past their buffers.

The input ends at a page without access rights, so a read past it ends the process. Output buffers
are followed by marker bytes.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from segment_format.errors import SegmentFormatError
from segment_format.kernels import contract as c
from segment_format.kernels.native import load_kernel
from segment_format.record.batch_header import crc32c
from segment_format.testing import SimpleRecord, write_batch
from segment_format.testing.batches import compress
from tests.fuzz.repair import batch_around
from tests.golden_data import VECTORS
from tests.segment_format.kernels.yardstick import ALL_COLUMNS, actual, expected

MARK = 0xA5


class GuardedPages:
    """Memory whose last byte is followed by a page without access rights."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self._usable = -(-size // page) * page
        self._map = mmap.mmap(-1, self._usable + page)
        self._whole = np.frombuffer(self._map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        start = self._whole.ctypes.data + self._usable
        if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def ending_with(self, data: bytes) -> Any:  # noqa: ANN401
        """Returns a view of a copy of `data` that ends at the guard page."""
        view = self._whole[self._usable - len(data) : self._usable]
        view[:] = np.frombuffer(data, np.uint8)
        return view


def hostile_logs() -> list[bytes]:
    """Returns batches that are truncated or changed at each byte, with valid checksums if possible.
    The payloads of some of them are shorter than a record.
    """
    document = json.loads((VECTORS / "kafka-vectors.json").read_text())
    stored = [
        bytes.fromhex(vector["hex"])
        for vector in document["batches"]
        if vector["name"] in ("v2-none-createtime", "v2-zstd", "delete-horizon", "v2-min")
    ]
    records = [
        SimpleRecord(
            value=b"v" * size,
            key=b"k" * (size % 70),
            headers=(("näme", b"x" * size), ("", None)) if size % 2 else (),
        )
        for size in (0, 1, 31, 32, 33, 63, 64, 500, 512, 513, 1000)
    ]
    stored += [
        write_batch(records, base_offset=5, codec=name) for name in ("none", "lz4", "snappy")
    ]
    logs = list(stored)
    for data in stored:
        for position in range(len(data)):
            logs.append(data[:position])
            for value in (0x00, 0x7F, 0x80, 0xFF):
                changed = bytearray(data)
                changed[position] = value
                if position >= 21:
                    changed[17:21] = crc32c(bytes(changed[21:])).to_bytes(4, "big")
                logs.append(bytes(changed))
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        for size in range(10):
            payload = compress(codec, b"\x0c\x00\x00\x00\x01\x01\x00"[:size].ljust(size, b"\x0c"))
            logs.append(batch_around(payload, codec=number, count=3))
    return logs


def read_before_guard_page() -> int:
    """Decodes every hostile log in front of a guard page. Returns the number of logs."""
    logs = hostile_logs()
    pages = GuardedPages(max(map(len, logs)))
    for data in logs:
        for columns in (ALL_COLUMNS, ("offset",), ("timestamp",), ("offset", "timestamp")):
            actual(pages.ending_with(data), columns=columns)
    return len(logs)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(mmap, "PROT_NONE") and sys.platform == "win32", reason="mprotect")
def test_kernel_does_not_read_past_the_window() -> None:
    code = f"from {__name__} import read_before_guard_page as run; print(run())"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=250
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > 5000


def test_read_of_guard_page_ends_the_process() -> None:
    code = (
        f"from {__name__} import GuardedPages\n"
        "import numpy as np\n"
        "view = GuardedPages(10).ending_with(b'x' * 10)\n"
        "np.lib.stride_tricks.as_strided(view, (11,)).sum()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert result.returncode < 0


@pytest.mark.parametrize("sizes", [(0, 1, 2), (31, 32, 33), (511, 512, 513), (1000, 7, 0)])
def test_kernel_does_not_write_past_the_buffers(sizes: tuple[int, ...]) -> None:
    from segment_format.kernels.columns import ColumnBuffers

    records = [
        SimpleRecord(value=b"v" * size, key=b"k" * size, headers=(("h" * size, b"x" * size),))
        for size in sizes
    ]
    data = np.frombuffer(write_batch(records, base_offset=5), np.uint8)
    total = sum(sizes)
    frame = np.zeros(c.FRAME_SIZE, np.int64)
    buffers = ColumnBuffers(frame.data, ("key", "value", "headers"), max_rows=3, max_bytes=1 << 20)
    outputs = {}
    for slot, buffers_size in (
        (c.KEY_BYTES, c.KEY_CAPACITY),
        (c.VALUE_BYTES, c.VALUE_CAPACITY),
        (c.HEADER_KEY_BYTES, c.HEADER_KEY_CAPACITY),
        (c.HEADER_VALUE_BYTES, c.HEADER_VALUE_CAPACITY),
    ):
        outputs[slot] = np.full(total + c.COPY_SLACK + 64, MARK, np.uint8)
        frame[slot] = outputs[slot].ctypes.data
        frame[buffers_size] = total
    frame[c.WANTED] = c.WANT_KEY | c.WANT_VALUE | c.WANT_HEADERS
    frame[[c.STOP_OFFSET, c.MAX_BYTES, c.MAX_BATCH_BYTES]] = 1 << 30
    frame[[c.FIRST_TIMESTAMP, c.LAST_TIMESTAMP]] = -(1 << 62), 1 << 62
    frame[c.MAX_ROWS] = 3
    decode_window = load_kernel("decode_window")
    status = decode_window(data.ctypes.data, data.size, 0, 0, frame.ctypes.data)
    assert status == c.NEED_MORE
    assert buffers.arrays()
    assert frame[c.ROWS] == 3
    for output in outputs.values():
        assert (output[total + c.COPY_SLACK :] == MARK).all()


def test_decoder_matches_reference_on_hostile_logs() -> None:
    logs = hostile_logs()[::7]
    outcomes = [actual(data) for data in logs]
    assert outcomes == [expected(data) for data in logs]
    assert {type(outcome) for outcome in outcomes} == {list, str}


def test_hostile_length_raises_error_immediately() -> None:
    """The error is raised before the decoder buffers gigabytes."""
    from segment_format.arrow import RecordDecoder

    data = bytearray(write_batch([SimpleRecord(b"v")], base_offset=5))
    data[8:12] = (0x7FFFFFF0).to_bytes(4, "big")
    decoder = RecordDecoder(columns=("offset",), max_batch_bytes=1 << 20, position=1000)
    with pytest.raises(SegmentFormatError, match="at most 1048576") as caught:
        list(decoder.feed(bytes(data)))
    assert caught.value.position == 1000
    assert caught.value.offset == 5
