"""Checks that the compiled code of the value kernels is cached for other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from segment_format.kernels.code_folder import code_folder
from segment_format.values.avro.kernel import run_avro
from segment_format.values.json.rows import read_rows
from segment_format.values.protobuf.confluent import match_heads
from segment_format.values.protobuf.kernel import decode_values


@pytest.mark.parametrize("kernel", [run_avro, read_rows, decode_values, match_heads])
def test_machine_code_is_cached_for_all_processes(kernel: Any) -> None:  # noqa: ANN401
    folder = code_folder()
    assert folder is not None
    kept = Path(kernel.stats.cache_path)
    assert kept.parent == folder
    assert list(kept.glob(f"*.{kernel.py_func.__name__}-*.nbc"))
