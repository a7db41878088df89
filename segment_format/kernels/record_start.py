"""The first fields of a record, out of one load where they have their usual sizes.

Length of one or two bytes, attributes of one, timestamp and offset delta of one or two: seven bytes
at most, and no record that is long enough for its mandatory fields ends before they do. All else is
left to `segment_format.kernels.varint`, field by field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import inlined
from segment_format.kernels.memory import load_word

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_EIGHT = np.uint64(8)
_SIXTEEN = np.uint64(16)
_TWENTY_FOUR = np.uint64(24)
_LOW = np.uint64(0x7F)
_NEXT_LOW = np.uint64(0x7F00)
_CONTINUED = np.uint64(0x80)
_TWICE_CONTINUED = np.uint64(0x8000)
_NOWHERE = np.uint64(0)
WORD_SIZE = 8


@inlined
def read_start(at: Address) -> Value:
    """`(size, body, behind, offset delta)` of a record, `body` 0 where a field is unusual.

    `size` is not negative and counts from address `body`; whether it is possible is for the caller
    to see. Address `behind` follows the offset delta. Words are little-endian, as on every machine
    that numba runs on.

    Args:
        at: The record's address; `WORD_SIZE` bytes can be read there.
    """
    word = load_word(at)
    if word & _ONE:  # a negative size
        return np.int64(0), _NOWHERE, _NOWHERE, np.int64(0)
    if not word & _CONTINUED:
        size = np.int64((word & _LOW) >> _ONE)
        body = at + _ONE
        word >>= _SIXTEEN
    elif not word & _TWICE_CONTINUED:
        size = np.int64((word & _LOW) >> _ONE | (word & _NEXT_LOW) >> _TWO)
        body = at + _TWO
        word >>= _TWENTY_FOUR
    else:
        return np.int64(0), _NOWHERE, _NOWHERE, np.int64(0)
    behind = body + _THREE  # attributes, timestamp delta, offset delta
    if not word & _CONTINUED:  # the timestamp delta
        word >>= _EIGHT
    elif not word & _TWICE_CONTINUED:
        word >>= _SIXTEEN
        behind += _ONE
    else:
        return size, _NOWHERE, _NOWHERE, np.int64(0)
    if not word & _CONTINUED:
        raw = word & _LOW
    elif not word & _TWICE_CONTINUED:
        raw = (word & _LOW) | (word & _NEXT_LOW) >> _ONE
        behind += _ONE
    else:
        return size, _NOWHERE, _NOWHERE, np.int64(0)
    return size, body, behind, np.int64(raw >> _ONE) ^ -np.int64(raw & _ONE)
