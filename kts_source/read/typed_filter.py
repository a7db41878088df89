"""Rows left out by what fields of their keys and values say; only those fields are decoded for it.

What is kept is decoded once more, as the table wants it. Which rows are kept does not depend on
that: a row is malformed for the condition where the condition's own fields are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.options.value_formats import FAILFAST, PERMISSIVE, only_fields
from kts_source.predicate.evaluate import wanted_rows
from kts_source.predicate.model import columns_of, fields_of
from kts_source.read.header_ids import framed, needed_columns
from kts_source.read.value_decoders import value_decoder
from segment_format.values.decoded import BadValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kts_source.options.value_formats import ColumnFormat
    from kts_source.predicate.model import Predicate


@dataclass(frozen=True, slots=True)
class KeptRows:
    """What is left of a batch.

    Attributes:
        batch: The rows, as they came.
        malformed: How many were left out because they cannot be decoded.
        dropped: Column -> its values that are why, by row of what was given.
        bad: Column -> its values that cannot be decoded and are kept, by row of the batch.
        failed: The value that ends the query; it is of the row behind those decided here.
    """

    batch: pa.RecordBatch
    malformed: int
    dropped: Mapping[str, tuple[BadValue, ...]]
    bad: Mapping[str, tuple[BadValue, ...]]
    failed: FailedValue | None = None


@dataclass(frozen=True, slots=True)
class FailedValue:
    """A value that ends the query.

    Attributes:
        form: Of its column.
        bad: What is wrong.
        batch: The one that it is of.
    """

    form: ColumnFormat
    bad: BadValue
    batch: pa.RecordBatch


class TypedFilter:
    """Keeps the rows of batches for which a predicate is true.

    Args:
        where: The predicate.
        formats: How the columns that it names fields of are decoded.
        fails: Whether a malformed value of mode FAILFAST ends the query; else its row is left out.

    Attributes:
        columns: Those that batches must have.
    """

    def __init__(
        self, where: Predicate, formats: Iterable[ColumnFormat], *, fails: bool = True
    ) -> None:
        fields = fields_of(where)
        paths = {
            one.column: [field.path for field in fields if field.source == one.column]
            for one in formats
        }
        self._where = where
        self._fails = fails
        self._formats = tuple(
            only_fields(one, paths[one.column]) for one in formats if paths[one.column]
        )
        self.columns = tuple(sorted({*columns_of(where), *needed_columns(self._formats)}))

    def kept(self, batch: pa.RecordBatch) -> KeptRows:
        """The rows of a batch that are kept.

        Raises:
            RegistryError: The registry does not answer.
        """
        found = {name: batch.column(name) for name in self.columns}
        drop = np.zeros(batch.num_rows, np.bool_)
        bad: dict[str, tuple[BadValue, ...]] = {}
        dropped: dict[str, tuple[BadValue, ...]] = {}
        for form in self._formats:
            values = value_decoder(form).decode(framed(batch, form))
            if values.bad and form.mode == FAILFAST and self._fails:
                first = values.bad[0]
                before = self.kept(batch.slice(0, first.row))
                failed = before.failed or FailedValue(form, first, batch)
                return replace(before, failed=failed)
            if form.mode == PERMISSIVE:
                bad[form.column] = values.bad
            elif values.bad:
                drop[[one.row for one in values.bad]] = True
                dropped[form.column] = values.bad
            found[form.column] = values.array
        malformed = int(drop.sum())
        mask = wanted_rows(self._where, pa.RecordBatch.from_pydict(found))
        if mask is None:
            return KeptRows(batch.slice(0, 0), malformed, dropped, {})
        keep = pc.fill_null(mask, False).to_numpy(zero_copy_only=False) & ~drop
        return KeptRows(batch.filter(pa.array(keep)), malformed, dropped, _moved(bad, keep))


def _moved(
    bad: Mapping[str, tuple[BadValue, ...]], keep: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> dict[str, tuple[BadValue, ...]]:
    """By their rows among those that are kept."""
    if not any(bad.values()):
        return {}
    places = np.cumsum(keep) - 1
    return {
        column: tuple(
            BadValue(int(places[one.row]), one.path, one.reason) for one in values if keep[one.row]
        )
        for column, values in bad.items()
    }
