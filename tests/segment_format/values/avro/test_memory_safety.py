"""Checks that the kernel does not read past its input, which ends at a page without access
rights.
"""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from segment_format.values.avro.decoder import AvroDecoder
from segment_format.values.avro.schema import parse_avro
from tests.segment_format.kernels.test_memory_safety import GuardedPages
from tests.segment_format.values.avro.generated import Schemas, Values
from tests.segment_format.values.avro.reference import BadAvroError, read


def read_before_guard_page() -> int:
    """Decodes prefixes of values that end at an inaccessible page. Returns the number of
    prefixes.
    """
    pages = GuardedPages(1 << 16)
    random = Random(11)
    count = 0
    for number in range(60):
        text = '"string"' if number == 0 else json.dumps(Schemas(random).any(4))
        schema = parse_avro(text)
        decoder = AvroDecoder(schema)
        value = Values(random).of(schema)[:2000]
        for size in {len(value), *(random.randrange(len(value) + 1) for _ in range(40))}:
            data = value[:size]
            ends = pa.py_buffer(np.array([0, size], np.int32))
            buffers = [None, ends, pa.py_buffer(pages.ending_with(data))]
            result = decoder.decode(pa.Array.from_buffers(pa.binary(), 1, buffers))
            try:
                read(schema, schema, data)
                is_good = True
            except BadAvroError:
                is_good = False
            assert (not result.bad) == is_good
            count += 1
    return count


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="mprotect")
def test_kernel_does_not_read_past_the_value() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import *; print(read_before_guard_page())"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 500
