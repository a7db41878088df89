from __future__ import annotations

from typing import TYPE_CHECKING, Any

import google_crc32c
import numba
import numpy as np
import pytest

from segment_format.kernels.crc32c import (
    HAS_FOLDING,
    INSTRUCTION_SET,
    LONG,
    SHORT,
    by_folding,
    by_instruction,
    by_tables,
    crc32c,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [
    0,
    1,
    7,
    8,
    9,
    63,
    64,
    100,
    128,
    255,
    256,
    257,
    256 + 64,
    512 + 3 * 64 + 63,
    3 * SHORT - 1,
    3 * SHORT,
    3 * SHORT + 65,
    3 * LONG - 1,
    3 * LONG,
    9 * LONG + 5 * SHORT + 13,
]


def _callable(function: Any) -> Callable[..., int]:  # noqa: ANN401
    @numba.njit
    def run(data: Any) -> Any:  # noqa: ANN401
        return function(np.uint64(data.ctypes.data), np.uint64(data.size))

    result: Callable[..., int] = run
    return result


@pytest.fixture(scope="module", params=["folding", "instruction", "tables"])
def checksum(request: pytest.FixtureRequest) -> Callable[..., int]:
    if request.param == "folding" and not HAS_FOLDING:
        pytest.skip("this CPU does not multiply 512-bit vectors without carry")
    if request.param == "instruction" and not INSTRUCTION_SET:
        pytest.skip("this CPU has no CRC instruction")
    implementations = {"folding": by_folding, "instruction": by_instruction, "tables": by_tables}
    return _callable(implementations[request.param])


def test_checksum_matches_value_in_tests_of_kafka(checksum: Callable[..., int]) -> None:
    assert checksum(np.frombuffer(b"Some String", np.uint8)) == 608512271


@pytest.mark.parametrize("size", SIZES)
def test_checksum_matches_google_crc32c(checksum: Callable[..., int], size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 3, dtype=np.uint8)
    for skip in range(3):  # alignment
        unaligned = data[skip : skip + size]
        assert checksum(unaligned) == google_crc32c.value(unaligned.tobytes())


def test_checksum_uses_fastest_supported_instructions() -> None:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    has_one = features.get("sse4.2", False) or features.get("crc", False)
    assert bool(INSTRUCTION_SET) == has_one
    multiplies = features.get("avx512f", False) and features.get("vpclmulqdq", False)
    assert multiplies == HAS_FOLDING
    best = by_folding if multiplies else by_instruction if has_one else by_tables
    assert crc32c is best
