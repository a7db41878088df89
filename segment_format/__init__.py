"""Reads Kafka's on-disk formats and the objects of the storage plugin. Its functions take bytes and
return values.

`iter_arrow` yields the records of log bytes as Arrow batches. `iter_batches` yields them as Python
objects. Both raise `SegmentFormatError` for invalid bytes. The two functions are imported when they
are first used. So importing the package imports neither numba nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from segment_format.arrow import iter_arrow
    from segment_format.record.records import iter_batches

__all__ = ["SegmentFormatError", "iter_arrow", "iter_batches"]


def __getattr__(name: str) -> object:
    if name == "iter_arrow":
        from segment_format.arrow import iter_arrow

        return iter_arrow
    if name == "iter_batches":
        from segment_format.record.records import iter_batches

        return iter_batches
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
