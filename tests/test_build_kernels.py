"""Tests the build of the kernels: its checks of the code, and the build for another machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from segment_format.kernels import native
from tools import build_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
AARCH64 = 183  # e_machine of ELF
CRC32CX, CRC32CX_MASK = 0x9AC05C00, 0xFFE0FC00  # without the numbers of the registers


def check(text: str) -> None:
    parse: Callable[[str], object] = build_kernels._parsed
    build_kernels._check(parse(text))


def test_kernel_that_calls_only_the_c_library_passes() -> None:
    check("declare ptr @memcpy(ptr, ptr, i64)\ndefine i64 @kernel() { ret i64 -7 }")


def test_kernel_that_may_raise_is_refused() -> None:
    text = f"define i64 @kernel(i1 %a) {{ %r = select i1 %a, i64 0, i64 {build_kernels._RAISED}"
    with pytest.raises(SystemExit, match="kernel may raise an exception"):
        check(f"{text}\n ret i64 %r }}")


def test_kernel_that_calls_python_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"not allowed: \['PyErr_Clear'\]"):
        check("declare void @PyErr_Clear()\ndefine void @kernel() { ret void }")


def test_host_machine_is_a_build_target() -> None:
    name = build_kernels.host_target()
    assert name is not None
    assert build_kernels.TARGETS[name].machine == native.machine_name()


@pytest.mark.slow
def test_kernels_for_aarch64_compile_on_any_machine(tmp_path: Path) -> None:
    output = tmp_path / "crc.o"
    subprocess.run(
        [
            *(sys.executable, "-m", "tools.build_kernels"),
            *("--emit", "linux-aarch64", "crc", str(output)),
        ],
        cwd=ROOT,
        check=True,
    )
    data = output.read_bytes()
    assert int.from_bytes(data[18:20], "little") == AARCH64
    words = np.frombuffer(data, "<u4", len(data) // 4)
    assert np.count_nonzero(words & CRC32CX_MASK == CRC32CX) > 10
    for name in native.KERNELS:
        assert f"kts_crc_{name}".encode() in data
