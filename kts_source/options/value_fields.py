"""Fields of decoded keys and values that conditions name, wanted in the table or not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kts_source.options.value_formats import UTF8
from kts_source.predicate.fields import find_field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from kts_source.options.value_formats import ColumnFormat
    from kts_source.predicate.fields import FindField


def fields_of_formats(formats: Iterable[ColumnFormat]) -> Mapping[str, FindField]:
    """What finds fields, by column. Text is none: conditions look at its bytes."""
    return {one.column: partial(_field, one) for one in formats if one.format != UTF8}


def only_fields(form: ColumnFormat, paths: Iterable[tuple[str, ...]]) -> ColumnFormat:
    """The format with what is needed to read some fields, as `fields_of_formats` found them."""
    needed = {_needed(form, path) for path in paths}
    fields = tuple(sorted(".".join(path) for path in needed))
    return replace(form, fields=None if () in needed else fields)


def _field(form: ColumnFormat, path: tuple[str, ...]) -> tuple[tuple[str, ...], pa.DataType]:
    if form.needs_type:
        raise ValueError(f"needs option '{form.column}.schema': no sample is read for a condition")
    try:
        whole = replace(form, fields=None).type
    except ValueError:
        # It may have parts that are no column, such as a type that contains itself.
        if not path:
            raise
        whole = replace(form, fields=(".".join(path),)).type
    return find_field(whole, path)


def _needed(form: ColumnFormat, path: tuple[str, ...]) -> tuple[str, ...]:
    """The longest part of the path that can be asked for: option `columns` has no names for members
    of unions, and takes a name with dots for another where there are both.
    """
    for length in range(len(path), 0, -1):
        part = path[:length]
        try:
            exact, _ = find_field(replace(form, fields=(".".join(part),)).type, path)
        except ValueError:
            continue
        if exact == path:
            return part
    return ()
