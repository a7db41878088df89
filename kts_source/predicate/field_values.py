"""Fields of decoded columns, read as what a predicate compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.predicate.model import MAX_INT64, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kts_source.predicate.model import Field

DECIMAL: Final = pa.decimal256(76, 38)
"""Holds every decimal of Spark exactly, whatever its scale."""


def field_values(field: Field, column: pa.Array) -> pa.Array:
    """A field of a decoded column as binary, int64 or `DECIMAL`; a struct or duration as it is.

    Doubles become whole numbers in the same order, see `ordered`.
    """
    values = column
    for name in field.path:
        values = pc.struct_field(values, [values.type.get_field_index(name)])
    match field.kind:
        case Kind.BYTES:
            return values.cast(pa.binary())
        case Kind.NUMBER | Kind.BOOLEAN:
            return values.cast(pa.int64())
        case Kind.DATE:
            return values.view(pa.int32()).cast(pa.int64())
        case Kind.INSTANT | Kind.LOCAL:
            return values.view(pa.int64())
        case Kind.DECIMAL:
            return values.cast(DECIMAL)
        case Kind.DOUBLE:
            floats = _doubles(values).to_numpy(zero_copy_only=False)
            empty = pc.is_null(values).to_numpy(zero_copy_only=False)
            return pa.array(ordered(floats), mask=empty)
    return values


def ordered(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers in the order in which Spark has doubles: NaN equals itself and is the largest,
    -0 is 0.
    """
    bits = (values + 0.0).view(np.int64)
    return np.where(np.isnan(values), MAX_INT64, np.where(bits < 0, bits ^ MAX_INT64, bits))


def _doubles(values: pa.Array) -> pa.Array:
    if pa.types.is_decimal(values.type):
        # Arrow's own cast does not always give the nearest.
        nearest = [None if one is None else float(one) for one in values.to_pylist()]
        return pa.array(nearest, pa.float64())
    return values.cast(pa.float64(), safe=False)
