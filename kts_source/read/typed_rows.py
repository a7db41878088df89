"""Decodes keys and values of rows according to options `key.format` and `value.format`.

If a condition uses fields of decoded keys or values, these fields are decoded first. Then the
matching rows are decoded again, for the columns of the table. For the condition, a row is malformed
only if one of these fields is malformed. So the choice of columns does not change which rows match.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.columns import ERROR_COLUMNS, PARTITION, RAW_COLUMNS, TOPIC
from kts_source.errors import ErrorLocation, InvalidValueError, TieredKafkaError
from kts_source.options.value_formats import (
    DROP_MALFORMED,
    FAILFAST,
    PERMISSIVE,
    UTF8,
    only_fields,
)
from kts_source.predicate.evaluate import wanted_rows
from kts_source.predicate.model import columns_of, fields_of
from kts_source.read.value_decoders import framed, needed_columns, value_decoder
from kts_source.texts import one_line, some
from segment_format.values.decoded import BadValue, DecodedValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kts_source.options.value_formats import ColumnFormat
    from kts_source.predicate.model import Predicate
    from kts_source.read.task_metrics import TaskMeter

BadValues = tuple[BadValue, ...]
_Outcome = tuple[int, pa.RecordBatch, InvalidValueError | None]
"""Three values: the number of malformed rows that are skipped, the valid rows, and the error to
raise after these rows.
"""

log = logging.getLogger(__name__)

_LOCATION: Final = (TOPIC, PARTITION, "offset")
_NO_BAD_VALUES: Final[Mapping[str, BadValues]] = MappingProxyType({})
_SOURCES: Final = {raw: column for column, raw in RAW_COLUMNS.items()}

SetAside: TypeAlias = "Callable[[pa.RecordBatch, Mapping[int, str]], object]"
"""Called with stored rows and, by row number, the reasons why some of them cannot be decoded."""


class TypedRows:
    """Decodes the keys and values of batches.

    Args:
        columns: Wanted columns, in order.
        formats: Formats of keys and values; columns without a format stay binary.
        where: Condition on fields of decoded keys and values. Returned rows satisfy it.
        set_aside: Called with a batch and the reasons by number of the malformed row. These rows
            are skipped, even in mode FAILFAST. Not called in mode PERMISSIVE, where malformed
            values become null.
        warns: False if the caller reports malformed rows, so that no warning is logged.
    """

    def __init__(
        self,
        columns: Sequence[str],
        formats: Sequence[ColumnFormat],
        where: Predicate | None = None,
        set_aside: SetAside | None = None,
        *,
        warns: bool = True,
    ) -> None:
        self._warns = warns
        self._columns = list(columns)
        self._set_aside = set_aside
        self._skipped: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._filter = (
            None if where is None else _FieldFilter(where, formats, fails=set_aside is None)
        )
        # In mode DROPMALFORMED, decode the column even if it is not wanted, so that the choice of
        # columns does not change which rows are skipped.
        self._formats = [
            form
            for form in formats
            if form.mode == DROP_MALFORMED
            or form.column in columns
            or (form.error_column is not None and form.error_column in columns)
        ]
        plain = [_SOURCES.get(name, name) for name in columns if name not in ERROR_COLUMNS.values()]
        decoded = [form.column for form in self._formats]
        location = _LOCATION if self._formats or self._filter is not None else ()  # for errors
        filtered = () if self._filter is None else self._filter.columns
        headers = needed_columns(self._formats)
        names = (*plain, *decoded, *location, *filtered, *headers)
        self.read_columns = tuple(dict.fromkeys(names))

    def decoded(
        self, batches: Iterable[pa.RecordBatch], meter: TaskMeter | None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the decoded rows of batches. The batches must have the columns `read_columns`.

        Raises:
            InvalidValueError: A value cannot be decoded, the mode is FAILFAST, and there is no
                `set_aside`.
            RegistryError: The registry does not respond.
        """
        dropped = 0
        self._skipped.clear()
        try:
            for batch in batches:
                began = time.perf_counter()
                malformed, rows, error = self._decode_wanted(batch)
                if meter is not None:
                    meter.stopwatch.decode += time.perf_counter() - began
                dropped += malformed
                if rows.num_rows:
                    yield rows
                if error is not None:
                    raise error
        finally:
            if dropped and self._warns:
                self._warn(dropped)
            if dropped and meter is not None:
                meter.malformed += dropped

    def _warn(self, dropped: int) -> None:
        outcome = "skipped" if self._set_aside is None else "rejected"
        log.warning(
            "%d rows cannot be decoded and are %s: %s",
            *(dropped, outcome),
            some(
                f"{topic}-{partition}: {count} rows, offsets {low} to {high}"
                for (topic, partition), (count, low, high) in self._skipped.items()
            ),
        )

    def _note_skipped(self, batch: pa.RecordBatch, rows: Sequence[int]) -> None:
        """Adds rows of a batch, given in ascending order, to the rows that the warning names."""
        topic, partition, first = (batch.column(name)[rows[0]].as_py() for name in _LOCATION)
        last = batch.column("offset")[rows[-1]].as_py()
        count, low, high = self._skipped.get((topic, partition), (0, first, last))
        self._skipped[topic, partition] = count + len(rows), min(low, first), max(high, last)

    def _decode_wanted(self, batch: pa.RecordBatch) -> _Outcome:
        """Applies the condition to a batch, and decodes the matching rows."""
        if self._filter is None:
            return self._decode(batch)
        kept = self._filter.keep(batch)
        if kept.malformed:
            rows = sorted({bad.row for bads in kept.dropped.values() for bad in bads})
            self._note_skipped(batch, rows)
        if self._set_aside is not None and kept.dropped:
            reasons: dict[int, str] = {}
            for column, bad in kept.dropped.items():
                reasons = _reasons_by_row(column, bad) | reasons
            self._set_aside(batch, dict(sorted(reasons.items())))
        malformed, decoded, error = 0, kept.batch, None
        if decoded.num_rows:
            malformed, decoded, error = self._decode(kept.batch, kept.bad)
        return malformed + kept.malformed, decoded, error or kept.error

    def _decode(
        self, batch: pa.RecordBatch, bad_values: Mapping[str, BadValues] = _NO_BAD_VALUES
    ) -> _Outcome:
        """Decodes the rows of a batch. `bad_values` maps a column to the values that the filter
        could not decode.
        """
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns |= {raw: columns[name] for raw, name in _SOURCES.items() if name in columns}
        kept = None
        reasons: dict[int, str] = {}
        for form in _formats_of(batch, self._formats):
            values = _decode_column(batch, form)
            if values.bad and form.mode == FAILFAST and self._set_aside is None:
                # First return the valid rows before the malformed row: a LIMIT may need no others.
                bad = values.bad[0]
                malformed, rows, earlier = self._decode(batch.slice(0, bad.row), bad_values)
                return malformed, rows, earlier or _error(batch, form, bad)
            if values.bad and form.mode != PERMISSIVE:
                if self._set_aside is not None:
                    reasons = _reasons_by_row(form.column, values.bad) | reasons
                kept = np.ones(batch.num_rows, np.bool_) if kept is None else kept
                kept[[bad.row for bad in values.bad]] = False
            if known_bad := bad_values.get(form.column):
                values = _with_nulls_for(values, known_bad)
            columns[form.column] = values.array
            if form.error_column is not None:
                columns[form.error_column] = _error_column(batch.num_rows, values.bad)
        if self._set_aside is not None and reasons:
            self._set_aside(batch, dict(sorted(reasons.items())))
        rows = pa.RecordBatch.from_arrays(
            [columns[name] for name in self._columns], names=self._columns
        )
        if kept is not None:
            rows = rows.filter(pa.array(kept))
            self._note_skipped(batch, np.flatnonzero(~kept).tolist())
        return batch.num_rows - rows.num_rows, rows, None


@dataclass(frozen=True, slots=True)
class _KeptRows:
    """Result of filtering a batch by a condition on fields.

    Attributes:
        batch: The rows that satisfy the condition.
        malformed: Number of rows that were skipped because they cannot be decoded.
        dropped: Malformed values in the skipped rows, by column. Row numbers refer to the
            unfiltered batch.
        bad: Malformed values in the kept rows, by column. Row numbers refer to `batch`.
        error: Error to raise after these rows were returned; `None` if no row fails.
    """

    batch: pa.RecordBatch
    malformed: int
    dropped: Mapping[str, BadValues]
    bad: Mapping[str, BadValues]
    error: InvalidValueError | None = None


class _FieldFilter:
    """Keeps the rows of batches that satisfy a condition on fields."""

    def __init__(self, where: Predicate, formats: Iterable[ColumnFormat], *, fails: bool) -> None:
        fields = fields_of(where)
        paths = {
            form.column: [field.path for field in fields if field.source == form.column]
            for form in formats
        }
        self._where = where
        self._fails = fails
        self._formats = tuple(
            only_fields(form, paths[form.column]) for form in formats if paths[form.column]
        )
        self.columns = tuple(sorted({*columns_of(where), *needed_columns(self._formats)}))

    def keep(self, batch: pa.RecordBatch) -> _KeptRows:
        """Returns the rows that satisfy the condition.

        Raises:
            RegistryError: The registry does not respond.
        """
        columns = {name: batch.column(name) for name in self.columns}
        drop = np.zeros(batch.num_rows, np.bool_)
        bad: dict[str, BadValues] = {}
        dropped: dict[str, BadValues] = {}
        for form in _formats_of(batch, self._formats):
            values = _decode_column(batch, form)
            if values.bad and form.mode == FAILFAST and self._fails:
                first = values.bad[0]
                before = self.keep(batch.slice(0, first.row))
                return replace(before, error=before.error or _error(batch, form, first))
            if form.mode == PERMISSIVE:
                bad[form.column] = values.bad
            elif values.bad:
                drop[[value.row for value in values.bad]] = True
                dropped[form.column] = values.bad
            columns[form.column] = values.array
        malformed = int(drop.sum())
        mask = wanted_rows(self._where, pa.RecordBatch.from_pydict(columns))
        if mask is None:
            return _KeptRows(batch.slice(0, 0), malformed, dropped, {})
        keep = pc.fill_null(mask, False).to_numpy(zero_copy_only=False) & ~drop
        return _KeptRows(batch.filter(pa.array(keep)), malformed, dropped, _renumber(bad, keep))


def _formats_of(batch: pa.RecordBatch, formats: Sequence[ColumnFormat]) -> list[ColumnFormat]:
    """Returns the formats of the records in a batch. All of them are of one topic."""
    if not batch.num_rows or all(not form.topic for form in formats):
        return list(formats)
    topic = batch.column(TOPIC)[0].as_py()
    return [form for form in formats if form.is_of(topic)]


def _decode_column(batch: pa.RecordBatch, form: ColumnFormat) -> DecodedValues:
    try:
        return value_decoder(form).decode(framed(batch, form))
    except TieredKafkaError as error:  # from the registry
        raise error.located(**_location(batch, 0)) from None


def _renumber(
    bad: Mapping[str, BadValues], keep: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> dict[str, BadValues]:
    """Returns the malformed values in the rows that the mask `keep` selects. Their row numbers
    refer to the filtered batch.
    """
    if not any(bad.values()):
        return {}
    numbers = np.cumsum(keep) - 1
    return {
        column: tuple(
            BadValue(int(numbers[value.row]), value.path, value.reason)
            for value in values
            if keep[value.row]
        )
        for column, values in bad.items()
    }


def _with_nulls_for(values: DecodedValues, bad_values: BadValues) -> DecodedValues:
    """Returns `values`, with `bad_values` (values that the filter could not decode) replaced by
    nulls and added to the malformed values.
    """
    by_row = {bad.row: bad for bad in (*bad_values, *values.bad) if bad.row < len(values.array)}
    null = np.zeros(len(values.array), np.bool_)
    null[list(by_row)] = True
    rows = pa.array(np.arange(len(null)), mask=null)
    return DecodedValues(values.array.take(rows), tuple(by_row[row] for row in sorted(by_row)))


def _reasons_by_row(column: str, values: BadValues) -> dict[int, str]:
    return {bad.row: f"{column}: {_text(bad)}" for bad in values}


def _error_column(rows: int, values: Sequence[BadValue]) -> pa.Array:
    if not values:
        return pa.nulls(rows, pa.string())
    reasons: list[str | None] = [None] * rows
    for bad in values:
        reasons[bad.row] = _text(bad)
    return pa.array(reasons, pa.string())


def _text(bad: BadValue) -> str:
    # Truncate path and reason, because they may quote a schema of megabytes for each row.
    reason = one_line(bad.reason)
    return f"{one_line(bad.path)}: {reason}" if bad.path else reason


def _error(batch: pa.RecordBatch, form: ColumnFormat, bad: BadValue) -> InvalidValueError:
    fault = (
        f"the {form.column} does not match option '{form.column}.format' ({form.format}):"
        f" {_text(bad)}"
    )
    cause = "format" if form.format == UTF8 else "schema"
    return InvalidValueError(
        f"{fault}. If all rows fail, correct option '{form.column}.{cause}'. Otherwise set"
        f" {form.column}.mode=PERMISSIVE to get null, or DROPMALFORMED to skip such rows",
        fault=fault,
        **_location(batch, bad.row),
    )


def _location(batch: pa.RecordBatch, row: int) -> ErrorLocation:
    return ErrorLocation(
        topic=batch.column(TOPIC)[row].as_py(),
        partition=batch.column(PARTITION)[row].as_py(),
        offset=batch.column("offset")[row].as_py(),
    )
