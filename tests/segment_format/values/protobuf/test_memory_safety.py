"""Checks that the kernel neither reads past the values nor writes past the columns' memory.

The values end at a page without access rights, so a read past them ends the process. The tests
therefore use a separate process. Output memory is followed by marker bytes.
"""

from __future__ import annotations

import subprocess
import sys
from random import Random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from segment_format.kernels import arrow_buffers
from segment_format.values.protobuf import decoder as decoder_module
from segment_format.values.protobuf.decoder import ConfluentProtobufDecoder, ProtobufDecoder
from tests.segment_format.kernels.test_memory_safety import MARK, GuardedPages
from tests.segment_format.values.protobuf.generated import Writer, random_file
from tests.segment_format.values.protobuf.oracle import descriptor_set
from tests.segment_format.values.protobuf.sample import sample_file, sample_value

HEAD = b"\0\0\0\0\7\2\2"

MARKED = 64


def run() -> int:
    """Decodes all prefixes of a sample, and copies of the sample with one changed byte, each alone,
    with and without a Confluent header. Returns the number of values.
    """
    decoders = {
        syntax: ProtobufDecoder(descriptor_set(sample_file(syntax)), "s.Order")
        for syntax in ("proto2", "proto3")
    }
    decoded = 0
    for syntax, decoder in decoders.items():
        sample = sample_value(syntax)
        pages = GuardedPages(len(sample))
        values = [sample[:size] for size in range(len(sample) + 1)]
        values += [
            sample[:position] + bytes([sample[position] ^ bits]) + sample[position + 1 :]
            for position in range(len(sample))
            for bits in (1, 0x08, 0x80, 0xFF)
        ]
        for value in values:
            view = pages.ending_with(value)
            data = pa.foreign_buffer(view.ctypes.data, len(value), view)
            ends = pa.py_buffer(np.array([0, len(value)], np.int32))
            array = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
            decoder.decode(array).array.validate(full=True)
            framed = pages.ending_with(HEAD[: len(value)] + value[len(HEAD) :])
            data = pa.foreign_buffer(framed.ctypes.data, len(value), framed)
            array = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
            ConfluentProtobufDecoder(decoder).decode(array).array.validate(full=True)
            decoded += 1
    return decoded


@pytest.mark.skipif(sys.platform == "win32", reason="pages are guarded by mprotect")
def test_kernel_does_not_read_past_the_values() -> None:
    code = f"from {__name__} import run; print(run())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


def test_kernel_does_not_write_past_its_memory() -> None:
    allocations: list[tuple[pa.Buffer, int]] = []
    resized = arrow_buffers.resized

    def marked(buffer: pa.Buffer | None, size: int, *, is_zeroed: bool) -> pa.Buffer:
        if buffer is not None:
            np.frombuffer(buffer, np.uint8)[-MARKED:] = 0
        # The kernel may write to all bytes of `size`, so the marker bytes are stored after them.
        buffer = resized(buffer, size + MARKED, is_zeroed=is_zeroed)
        np.frombuffer(buffer, np.uint8)[size:] = MARK
        allocations[:] = [pair for pair in allocations if pair[0] is not buffer]
        allocations.append((buffer, size))
        return buffer

    with (
        patch.object(arrow_buffers, "resized", marked),
        patch.object(arrow_buffers, "SLACK", 16),
        patch.object(decoder_module, "_MIN_CAPACITY", 1),
    ):
        for seed in range(60):
            file = random_file(Random(seed))
            decoder = ProtobufDecoder(descriptor_set(file), "t.Top")
            writer = Writer(file, Random(seed))
            values = pa.array([writer.value() for _ in range(80)], pa.binary())
            allocations.clear()
            decoder.decode(values)
            for buffer, size in allocations:
                assert (np.frombuffer(buffer, np.uint8)[size:] == MARK).all()
