"""Ids of writers' schemas that stand in a record's headers, as Confluent's newer serializers write
them: `__value_schema_id` and `__key_schema_id` hold what others put in front of the value, byte 0
and an id, or byte 1 and a GUID.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.columns import HEADERS
from kts_source.options.value_formats import AVRO_CONFLUENT, JSON_CONFLUENT, PROTOBUF_CONFLUENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.options.value_formats import ColumnFormat

_NAMED_BY_ID: Final = (AVRO_CONFLUENT, JSON_CONFLUENT, PROTOBUF_CONFLUENT)


def needed_columns(formats: Iterable[ColumnFormat]) -> tuple[str, ...]:
    """What `framed` looks at beside the columns that are decoded."""
    return (HEADERS,) if any(one.format in _NAMED_BY_ID for one in formats) else ()


def framed(batch: pa.RecordBatch, form: ColumnFormat) -> pa.Array:
    """The values of a column as their format has them: what a header holds of the schema's id goes
    in front. Without that, a value that begins with zeros would be read behind what is no id.

    Args:
        batch: With the column and `needed_columns`.
        form: Of the column.
    """
    values = batch.column(form.column)
    if form.format not in _NAMED_BY_ID:
        return values
    headers = batch.column(HEADERS)
    each = headers.flatten()
    if not len(each):
        return values
    named = pc.equal(pc.struct_field(each, "key"), f"__{form.column}_schema_id")
    places = np.flatnonzero(pc.fill_null(named, False).to_numpy(zero_copy_only=False))
    if not len(places):
        return values
    rows = pc.list_parent_indices(headers).to_numpy()[places]
    # The last one of a name counts.
    last = np.full(len(values), -1, np.int64)
    np.maximum.at(last, rows, places)
    ids = pc.struct_field(each, "value").take(pa.array(last, mask=last < 0))
    return pc.binary_join_element_wise(pc.fill_null(ids, b""), values, b"")
