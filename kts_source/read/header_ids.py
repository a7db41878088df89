"""Ids of writers' schemas that stand in a record's headers.

Confluent's newer serializers write `__value_schema_id` and `__key_schema_id`, which hold what
others put in front of the value: byte 0 and an id, or byte 1 and a GUID.

Apicurio's serializers write, by default, `apicurio.value.globalId` or `apicurio.value.contentId`,
an id of 8 bytes, and `apicurio.value.encoding`, with nothing in front of the value. Which of its
two kinds of ids a registry with Confluent's API knows, it does not say, so there they are not
looked up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.columns import HEADERS
from kts_source.options.value_formats import (
    AVRO_APICURIO,
    AVRO_CONFLUENT,
    JSON_CONFLUENT,
    PROTOBUF_CONFLUENT,
)
from segment_format.values.registry_framing import AS_JSON, CONFLUENT_HEADER, OTHER_IDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kts_source.options.value_formats import ColumnFormat

_NAMED_BY_ID: Final = (AVRO_CONFLUENT, JSON_CONFLUENT, PROTOBUF_CONFLUENT, AVRO_APICURIO)
_NO_ID: Final = bytes(CONFLUENT_HEADER)
"""In front of a value, it says that there is no id of a registry with Confluent's API."""


def needed_columns(formats: Iterable[ColumnFormat]) -> tuple[str, ...]:
    """What `framed` looks at beside the columns that are decoded."""
    return (HEADERS,) if any(one.format in _NAMED_BY_ID for one in formats) else ()


def framed(batch: pa.RecordBatch, form: ColumnFormat) -> pa.Array:
    """The values of a column as their format has them: what a header holds of the schema's id goes
    in front, or an id that there is not, where headers say that the format's own is not there.
    Without that, a value that begins with zeros would be read behind what is no id.

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
    names, texts = pc.struct_field(each, "key"), pc.struct_field(each, "value")
    found = _Headers(names, texts, pc.list_parent_indices(headers).to_numpy(), len(values))
    prefix = f"apicurio.{form.column}."
    apicurios = found.rows(pc.starts_with(names, prefix))
    if form.format == AVRO_APICURIO:
        if apicurios is None:
            return values
        assert form.registry is not None
        fronts = _of_apicurio(found, prefix, form.registry.ids, apicurios)
    else:
        ids = found.last(f"__{form.column}_schema_id")
        if ids is None and apicurios is None:
            return values
        fronts = pa.scalar(b"") if ids is None else pc.fill_null(ids, b"")
        if apicurios is not None:
            fronts = pc.if_else(apicurios, pa.scalar(_NO_ID), fronts)
    return pc.binary_join_element_wise(fronts, values, b"")


def _of_apicurio(found: _Headers, prefix: str, kind: str, apicurios: pa.Array) -> pa.Array:
    """What goes in front of values, as Apicurio's serializers write it without headers."""
    fronts = pc.if_else(apicurios, _front(OTHER_IDS), pa.scalar(b""))
    ids = found.last(f"{prefix}{kind}")
    if ids is not None:
        whole = pc.fill_null(pc.equal(pc.binary_length(ids), 8), False)
        fronts = pc.if_else(whole, pc.binary_join_element_wise(b"\0", ids, b""), fronts)
    encodings = found.last(f"{prefix}encoding")
    if encodings is not None:
        as_json = pc.fill_null(pc.equal(encodings, b"JSON"), False)
        fronts = pc.if_else(as_json, _front(AS_JSON), fronts)
    return fronts


def _front(number: int) -> pa.Scalar:
    return pa.scalar(b"\0" + number.to_bytes(8, "big", signed=True))


class _Headers(NamedTuple):
    """All headers of a batch, one behind the other.

    Attributes:
        names: Of each.
        texts: Of each.
        row_of: Which row each is of.
        height: How many rows there are.
    """

    names: pa.Array
    texts: pa.Array
    row_of: NDArray[np.int64]
    height: int

    def rows(self, mask: pa.Array) -> pa.Array | None:
        """Whether rows have a header of a mask; None where no row has one."""
        places = _places(mask)
        if not len(places):
            return None
        found = np.zeros(self.height, np.bool_)
        found[self.row_of[places]] = True
        return pa.array(found)

    def last(self, name: str) -> pa.Array | None:
        """The last header of a name in each row, null where a row has none; None where all have."""
        places = _places(pc.equal(self.names, name))
        if not len(places):
            return None
        last = np.full(self.height, -1, np.int64)
        np.maximum.at(last, self.row_of[places], places)
        return self.texts.take(pa.array(last, mask=last < 0))


def _places(mask: pa.Array) -> NDArray[np.intp]:
    return np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
