from __future__ import annotations

from typing import TYPE_CHECKING, Any

import google_crc32c
import numba
import numpy as np
import pytest

from segment_format.kernels.crc32c import INSTRUCTION_SET, LONG, SHORT, by_tables, crc32c
from segment_format.kernels.memory import array_address

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = [
    0,
    1,
    7,
    8,
    9,
    100,
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
        return function(array_address(data), np.uint64(data.size))

    result: Callable[..., int] = run
    return result


@pytest.fixture(scope="module", params=["in use", "tables"])
def checksum(request: pytest.FixtureRequest) -> Callable[..., int]:
    return _callable(crc32c if request.param == "in use" else by_tables)


def test_check_value(checksum: Callable[..., int]) -> None:
    assert checksum(np.frombuffer(b"Some String", np.uint8)) == 608512271


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_library(checksum: Callable[..., int], size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 3, dtype=np.uint8)
    for skip in range(3):  # alignment
        part = data[skip : skip + size]
        assert checksum(part) == google_crc32c.value(part.tobytes())


def test_the_instruction_is_used_where_there_is_one() -> None:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    has_one = features.get("sse4.2", False) or features.get("crc", False)
    assert bool(INSTRUCTION_SET) == has_one
    assert (crc32c is by_tables) == (not has_one)
