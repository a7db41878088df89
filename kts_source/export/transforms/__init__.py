"""What becomes of rows before they are written: ready transforms, schemas, dead letters."""

from kts_source.export.transforms.row_transform import (
    JsonColumns,
    Rejected,
    RowTransform,
    Transformed,
)
from kts_source.export.transforms.wire_format import WireFormatColumns

__all__ = ["JsonColumns", "Rejected", "RowTransform", "Transformed", "WireFormatColumns"]
