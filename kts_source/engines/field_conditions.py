"""Conditions of engines on fields of decoded keys and values, where they mean what ours mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from kts_source.predicate.model import Compare, Field, Kind, Op, find_field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.predicate.model import Predicate


def field_comparison(
    schema: pa.Schema, names: Sequence[str], op: Op, literal: int | str
) -> Predicate | None:
    """A field compared with a literal; `None` where it is not certain that engines compare so.

    Taken are whole numbers, which no engine rounds as long as they fit the field, and equal texts.
    Null fields are neither here nor there kept.

    Args:
        schema: Of the scan.
        names: A column and names below it, as the engine spells them.
        op: One of the comparisons but `SAME`.
        literal: What the field is compared with.
    """
    source, *path = names
    if not path or source not in ("key", "value") or source not in schema.names:
        return None
    try:
        exact, kind = find_field(schema.field(source).type, path)
    except ValueError:
        return None
    if exact != tuple(path):
        return None
    if isinstance(literal, str):
        if op is not Op.EQ or not pa.types.is_string(kind):
            return None
        return Compare(op, Field(source, exact, Kind.BYTES), literal.encode())
    if not pa.types.is_signed_integer(kind):
        return None
    most = 1 << (kind.bit_width - 1)
    if not -most <= literal < most:
        return None
    return Compare(op, Field(source, exact, Kind.NUMBER), literal)
