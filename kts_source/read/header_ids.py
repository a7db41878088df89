"""Ids of writers' schemas that stand in a record's headers, as Confluent's newer serializers write
them: `__value_schema_id` and `__key_schema_id` hold what others put in front of the value, byte 0
and an id, or byte 1 and a GUID.

Apicurio's serializers can put ids into headers, too: `apicurio.value.globalId`, `….contentId` and
others, with nothing in front of the value. Which of their two kinds of ids a registry with
Confluent's API knows, it does not say, so those are not looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.columns import HEADERS
from kts_source.options.value_formats import AVRO_CONFLUENT, JSON_CONFLUENT, PROTOBUF_CONFLUENT
from segment_format.values.confluent_header import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kts_source.options.value_formats import ColumnFormat

_NAMED_BY_ID: Final = (AVRO_CONFLUENT, JSON_CONFLUENT, PROTOBUF_CONFLUENT)
_NO_ID: Final = bytes(HEADER)
"""In front of a value, it says that there is no id of a registry with Confluent's API."""


def needed_columns(formats: Iterable[ColumnFormat]) -> tuple[str, ...]:
    """What `framed` looks at beside the columns that are decoded."""
    return (HEADERS,) if any(one.format in _NAMED_BY_ID for one in formats) else ()


def framed(batch: pa.RecordBatch, form: ColumnFormat) -> pa.Array:
    """The values of a column as their format has them: what a header holds of the schema's id goes
    in front, and an id that no registry gives where Apicurio's serializers put it there. Without
    that, a value that begins with zeros would be read behind what is no id.

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
    names = pc.struct_field(each, "key")
    named = _places(pc.equal(names, f"__{form.column}_schema_id"))
    apicurios = _places(pc.starts_with(names, f"apicurio.{form.column}."))
    if not len(named) and not len(apicurios):
        return values
    rows = pc.list_parent_indices(headers).to_numpy()
    # The last one of a name counts.
    last = np.full(len(values), -1, np.int64)
    np.maximum.at(last, rows[named], named)
    ids = pc.fill_null(pc.struct_field(each, "value").take(pa.array(last, mask=last < 0)), b"")
    if len(apicurios):
        unknown = np.zeros(len(values), np.bool_)
        unknown[rows[apicurios]] = True
        ids = pc.if_else(pa.array(unknown), pa.scalar(_NO_ID), ids)
    return pc.binary_join_element_wise(ids, values, b"")


def _places(mask: pa.Array) -> NDArray[np.intp]:
    return np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
