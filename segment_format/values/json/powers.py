"""Powers of ten for numbers, as one table that kernels get the address of.

    20 x uint64          10^0 … 10^19
    23 x double          10^0 … 10^22, all exact
    651 x 2 x uint64     for q from -342 to 308: the upper, then the lower half of the 128 most
                         significant bits of 5^q; cut off for q >= 0, rounded up for q < 0

The last is what Eisel and Lemire multiply with: D. Lemire, "Number parsing at a gigabyte per
second", Software: Practice and Experience 51 (2021).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST: Final = -342
MOST: Final = 308
DOUBLES_AT: Final = 20 * 8
FIVES_AT: Final = DOUBLES_AT + 23 * 8


@functools.cache
def powers() -> NDArray[Any]:
    """The table, as uint64."""
    tens = [10**n for n in range(20)]
    doubles = np.array([float(10**n) for n in range(23)]).view(np.uint64).tolist()
    fives = [half for q in range(LEAST, MOST + 1) for half in divmod(_five(q), 1 << 64)]
    return np.array(tens + doubles + fives, np.uint64)


def _five(q: int) -> int:
    power: int = 5 ** abs(q)
    if q >= 0:
        return power << 127 >> (power.bit_length() - 1)
    z = (power - 1).bit_length()
    if q >= -27:
        return (1 << z + 127) // power + 1
    value = (1 << 2 * z + 128) // power + 1
    return value >> max(value.bit_length() - 128, 0)
